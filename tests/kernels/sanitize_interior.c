/* Random data sets through the learned interior-point steps, with memory that is sometimes scarce; see sanitize.sh. */

#define DRIVER "sanitize_interior"
#include "sanitize.h"

#define calloc scarce_calloc
#include "interior.c"
#undef calloc

static void check(void)
{
    long sets = 1 + below(3), m = 1 + below(60), n = 2 + below(20), iterations = 1 + below(6), kept = 0;
    float *rows = random_between(sets * m * n, 0, -1, 1), *guess = random_between(n, 0, -1, 1);
    float *numbers = random_between(1 + 3 * iterations, 0, -1, 1);
    if (below(4) == 0)
        for (long i = 0; i < sets * m * n; i++) rows[i] = 0.5f; /* equal margins */
    numbers[0] = 0.1f;
    for (long k = 0; k < iterations; k++) {
        float *own = numbers + 1 + 3 * k;
        own[0] += 1.5f, own[1] = 0.9f, own[2] = k && below(2) ? 0 : (float)(1 + below(m));
        kept = own[2] > 0 ? (long)own[2] : kept;
    }
    double *points = malloc((size_t)(sets * n) * sizeof(double)), *found = malloc((size_t)(sets * 5 * kept) * sizeof(double));
    while (lmd_interior(rows, guess, numbers, 1.0f, sets, m, n, kept, iterations, 1 + below(3), points, found)) scarce = 0;
    for (long s = 0; s < sets; s++)
        for (long i = 0; i < kept; i++)
            if (!(found[s * 5 * kept + i] >= 0 && found[s * 5 * kept + i] < m)) fail("places");
    free(rows), free(guess), free(numbers), free(points), free(found);
}

DRIVE(check)
