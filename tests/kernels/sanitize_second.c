/* Random calls of second.c, for the sanitizers: `make sanitize`.

   As in sanitize.c every array is malloc'ed to its exact size, and memory runs out now and then.
   What is checked besides: X does not depend on the number of threads, and x is in its box. */

#define DRIVER "sanitize_second"
#include "sanitize.h"

#define malloc scarce_malloc
#define calloc scarce_calloc
#include "second.c"
#undef malloc
#undef calloc

static const long SIDES[] = {1, 1, 2, 3, 5, 7, 15, 16, 17, 33};

static void check(void) {
    long channels = 1 + below(3), height = SIDES[below(10)], width = SIDES[below(10)],
         count = 1 + below(9);
    long size = channels * height * width;
    const long sizes[] = {channels, height, width, count, below(2), below(2), below(3)};
    double reals[4] = {0.1, 0.2, 1.0, below(2) ? 1.0 : 2.0};
    int few = below(8) == 0;
    float *y = random_array(size, 0), *weight = random_array(size, 0), *ends[2];
    float *low = random_array(channels, 0), *high = random_array(channels, 0);
    double *numbers = random_array(3 * count, 1);
    for (long c = 0; c < channels; c++) low[c] *= 0.5f, high[c] = 0.5f + 0.5f * high[c];
    for (int n = 0; n < 2; n++) {
        float *X = random_array(3 * size, 0), *P = random_array(5 * size, 0),
              *dual = random_array(5 * size, 0);
        float *sums = below(2) ? random_array(8 * size, 0) : NULL;
        int failed;
        ends[n] = random_array(3 * size, 0);
        scarce = few;
        do {
            memset(X, 0, (size_t)(3 * size) * sizeof(float));
            memset(P, 0, (size_t)(5 * size) * sizeof(float));
            void *arrays[] = {y, weight, low, high, numbers, X, P, ends[n], dual, sums,
                sums ? sums + 3 * size : NULL};
            failed = lmd_second(arrays, reals, sizes, n ? 2 + (int)below(3) : 1, NULL);
            scarce = 0; /* once is enough */
        } while (failed);
        free(X), free(P), free(dual), free(sums);
    }
    for (long e = 0; e < 3 * size; e++)
        if (ends[0][e] != ends[1][e]) fail("threads differ");
    for (long e = 0; e < size; e++) {
        long c = e / (height * width);
        if (!(ends[0][e] >= low[c] && ends[0][e] <= high[c])) fail("out of the box");
    }
    free(ends[0]), free(ends[1]), free(y), free(weight), free(low), free(high), free(numbers);
}

DRIVE(check)
