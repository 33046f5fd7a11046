/* Random data sets through the learned interior-point steps, with memory that is sometimes scarce;
 * see sanitize.sh. */

#define DRIVER "sanitize_interior"
#include "sanitize.h"

#define calloc scarce_calloc
#include "interior.c"
#undef calloc

static void check(void) {
    long sets = 1 + below(3), m = 1 + below(60), n = 2 + below(20), iterations = 1 + below(6);
    long count = 1 + below(m), *places = malloc((size_t)(sets * count) * sizeof(long));
    float *rows = random_between(sets * m * n, 0, -1, 1);
    float *numbers = random_between(2 * iterations, 0, 0.5, 0.95);
    double *points = random_between(sets * n, 1, -1, 1);
    double *inner = random_between(sets * 4 * count, 1, 0.1, 1);
    const long sizes[] = {sets, m, n, count, iterations};
    void *arrays[] = {rows, places, numbers, points, inner};
    for (long i = 0; i < sets * count; i++) places[i] = below(m);
    while (lmd_interior(arrays, NULL, sizes, 1 + (int)below(3), NULL)) scarce = 0;
    for (long i = 0; i < sets * 4 * count; i++)
        if (!(inner[i] > 0)) fail("a step leads out of the interior");
    free(rows), free(places), free(numbers), free(points), free(inner);
}

DRIVE(check)
