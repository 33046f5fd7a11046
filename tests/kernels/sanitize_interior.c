/* Random data sets through the learned interior-point steps, with memory that is sometimes scarce; see sanitize.sh. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int scarce;

static void *maybe(size_t count, size_t size)
{
    return scarce && rand() % 2 ? NULL : calloc(count, size);
}

#define calloc maybe
#include "interior.c"
#undef calloc

static float *array(long size)
{
    float *found = malloc((size_t)size * sizeof(float));
    for (long i = 0; i < size; i++) found[i] = 2 * (float)rand() / (float)RAND_MAX - 1;
    return found;
}

static void check(void)
{
    long sets = 1 + rand() % 3, m = 1 + rand() % 60, n = 2 + rand() % 20, iterations = 1 + rand() % 6, kept = 0;
    float *rows = array(sets * m * n), *guess = array(n), *numbers = array(1 + 3 * iterations);
    if (rand() % 4 == 0)
        for (long i = 0; i < sets * m * n; i++) rows[i] = 0.5f; /* equal margins */
    numbers[0] = 0.1f;
    for (long k = 0; k < iterations; k++) {
        float *own = numbers + 1 + 3 * k;
        own[0] += 1.5f, own[1] = 0.9f, own[2] = k && rand() % 2 ? 0 : (float)(1 + rand() % m);
        kept = own[2] > 0 ? (long)own[2] : kept;
    }
    double *points = malloc((size_t)(sets * n) * sizeof(double)), *found = malloc((size_t)(sets * 5 * kept) * sizeof(double));
    while (lmd_interior(rows, guess, numbers, 1.0f, sets, m, n, kept, iterations, 1 + rand() % 3, points, found)) scarce = 0;
    for (long s = 0; s < sets; s++)
        for (long i = 0; i < kept; i++)
            if (!(found[s * 5 * kept + i] >= 0 && found[s * 5 * kept + i] < m)) puts("places"), exit(1);
    free(rows), free(guess), free(numbers), free(points), free(found);
}

int main(int count, char **words)
{
    srand(count > 2 ? (unsigned)atol(words[2]) : 1);
    time_t end = time(NULL) + (time_t)(count > 1 ? atof(words[1]) : 10);
    long calls = 0;
    for (; time(NULL) <= end; calls++) {
        scarce = rand() % 8 == 0;
        check();
    }
    printf("sanitize_interior: %ld calls\n", calls);
    return 0;
}
