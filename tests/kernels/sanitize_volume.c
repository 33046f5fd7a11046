/* Random calls of volume.c, for the sanitizers: `make sanitize`.

   As in sanitize.c every array is malloc'ed to its exact size, and memory runs out now and then.
   What is checked besides: x does not depend on the number of threads, is finite, and is in its
   box. */

#define DRIVER "sanitize_volume"
#include "sanitize.h"

#define malloc scarce_malloc
#include "volume.c"
#undef malloc

static const long SIDES[] = {1, 1, 2, 3, 5, 7, 15, 16, 17, 33};

/* The same solve with one thread and with several. */
static void check_solve(void) {
    long channels = 1 + below(3), axes = 2 + below(2), learned = below(9);
    long n0 = SIDES[below(10)], n1 = axes == 2 ? 1 : SIDES[below(10)], n2 = SIDES[below(10)];
    long maps = below(3) ? 0 : below(2) ? 1 : channels, map_axes = maps ? (below(2) ? 1 : axes) : 0;
    long size = channels * n0 * n1 * n2;
    const int boxed = below(3) == 0, few = below(8) == 0;
    const long sizes[] = {channels, axes, n0, n1, n2, maps, map_axes, below(2), below(2), boxed,
        learned, learned + below(40), 8};
    double norm = 2.0 * sqrt((double)axes);
    double reals[] = {0.1, below(3) ? 0.0 : 0.05, 1.0, 1.0, below(2) ? 1.0 : 2.0, 0.5,
        1.0 / (norm * norm), below(2) ? 1e-2 : 1e-6, 0.2, 0.8, norm, 16.0};
    float *y = random_array(size, 0),
          *map = maps ? random_array(maps * map_axes * n0 * n1 * n2, 0) : NULL, *x[2];
    double *numbers = random_array(2 * learned, 1);
    if (maps) reals[0] = 1.0;
    for (int n = 0; n < 2; n++) {
        float *p = random_array(axes * size, 0);
        double *report = random_array(REPORT, 1);
        int failed;
        x[n] = random_array(size, 0);
        scarce = few;
        do {
            memset(p, 0, (size_t)(axes * size) * sizeof(float));
            memset(report, 0, REPORT * sizeof(double));
            void *arrays[] = {y, map, numbers, p, x[n]};
            failed = lmd_model(arrays, reals, sizes, n ? 2 + (int)below(3) : 1, report);
            scarce = 0; /* once is enough */
        } while (failed);
        free(p), free(report);
    }
    for (long e = 0; e < size; e++) {
        if (x[0][e] != x[1][e]) fail("threads differ");
        if (!isfinite(x[0][e])) fail("not finite");
        if (boxed && (x[0][e] < 0.2f || x[0][e] > 0.8f)) fail("out of the box");
    }
    free(x[0]), free(x[1]), free(y), free(map), free(numbers);
}

/* Iterations of relaxed PDHG with one thread and with several. */
static void check_relaxed(void) {
    long channels = 1 + below(3), axes = 2 + below(2), count = 1 + below(9);
    long n0 = SIDES[below(10)], n1 = axes == 2 ? 1 : SIDES[below(10)], n2 = SIDES[below(10)];
    long maps = below(3) ? 0 : below(2) ? 1 : channels, map_axes = maps ? (below(2) ? 1 : axes) : 0;
    long size = channels * n0 * n1 * n2;
    const long sizes[] = {
        channels, axes, n0, n1, n2, maps, map_axes, below(2), below(2), below(4), count};
    double reals[5] = {maps ? 1.0 : 0.1, below(3) ? 0.0 : 0.05, 1.0, 1.0, below(2) ? 1.0 : 2.0};
    int few = below(8) == 0;
    float *y = random_array(size, 0), *weight = random_array(size, 0);
    float *map = maps ? random_array(maps * map_axes * n0 * n1 * n2, 0) : NULL;
    float *low = random_array(channels, 0), *high = random_array(channels, 0),
          *x = random_array(size, 0), *ends[2];
    double *numbers = random_array(3 * count, 1);
    for (long c = 0; c < channels; c++) low[c] *= 0.5f, high[c] = 0.5f + 0.5f * high[c];
    for (int n = 0; n < 2; n++) {
        float *start = random_array(size, 0), *p = random_array(axes * size, 0),
              *dual = random_array(axes * size, 0);
        float *sums = below(2) ? random_array((1 + axes) * size, 0) : NULL;
        int failed;
        ends[n] = random_array(size, 0);
        scarce = few;
        do {
            memcpy(start, x, (size_t)size * sizeof(float));
            memset(p, 0, (size_t)(axes * size) * sizeof(float));
            void *arrays[] = {y, weight, map, low, high, numbers, start, p, ends[n], dual, sums,
                sums ? sums + size : NULL};
            failed = lmd_relaxed(arrays, reals, sizes, n ? 2 + (int)below(3) : 1, NULL);
            scarce = 0;
        } while (failed);
        free(start), free(p), free(dual), free(sums);
    }
    for (long i = 0; i < n0; i++)
        for (long c = 0; c < channels; c++)
            for (long k = 0; k < n1 * n2; k++) {
                long e = (i * channels + c) * n1 * n2 + k;
                if (ends[0][e] != ends[1][e]) fail("threads differ");
                if (!(ends[0][e] >= low[c] && ends[0][e] <= high[c])) fail("out of the box");
            }
    free(ends[0]), free(ends[1]), free(y), free(weight), free(map), free(low), free(high), free(x),
        free(numbers);
}

static void check(void) {
    if (below(2)) check_solve();
    else check_relaxed();
}

DRIVE(check)
