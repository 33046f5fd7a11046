/* Random calls of loop.c, for the sanitizers: `make sanitize`.

   As in sanitize.c every array is malloc'ed to its exact size, and memory runs out now and then.
   What is checked besides: an answer does not depend on the number of threads, and is within its
   bounds. */

#define DRIVER "sanitize_loop"
#include "sanitize.h"

#define malloc scarce_malloc
#define calloc scarce_calloc
#include "loop.c"
#undef malloc
#undef calloc

static const long SIDES[] = {1, 1, 2, 3, 7, 15, 16, 17, 31, 33, 48, 70, 129};

/* The loop with one thread and with several. */
static void check_loop(void) {
    long batch = 1 + below(3), coupled = below(3) == 0,
         channels = coupled ? 2 + below(7) : 1 + below(3);
    long height = SIDES[below(13)], width = SIDES[below(13)];
    if (below(64) == 0)
        batch = channels = 1, coupled = 0, height = 760, width = 720; /* more iterations at once */
    if (below(16) == 0)
        batch = 1, height = 1 + below(40), width = 750 + below(1500); /* long rows */
    long limit = below(60), doubles = below(2), isotropic = below(2),
         size = batch * channels * height * width;
    double tolerance = below(2) ? 1e-2 : 1e-9;
    void *y = random_array(size, (int)doubles),
         *p = below(2) ? random_array(2 * size, (int)doubles) : NULL;
    long horizons[2] = {1 + below(5), below(2) ? 6 + below(9) : 60},
         coarse[2] = {below(2), below(2)};
    double *reals = random_array(7 + 2 * batch, 1), *reach = random_array(2 * FORMS * 5, 1);
    double *table = random_array(6 * (horizons[0] + horizons[1]), 1);
    const double constants[] = {0.5, 0.125, tolerance, 2.8, 16.0, 0.05, 4.0};
    const long sizes[] = {
        batch, channels, height, width, limit + 1, isotropic, coupled, doubles, 8, 2, 3};
    memcpy(reals, constants, sizeof constants);
    for (long n = 0; n < batch; n++)
        reals[7 + batch + n] = below(3) ? 0.1 : below(2) ? 0 : INFINITY;
    void *out[2][2];
    double *report[2];
    for (int n = 0; n < 2; n++) {
        int threads = n ? 2 + below(3) : 1, failed;
        for (int a = 0; a < 2; a++) out[n][a] = random_array(a ? size : 2 * size, (int)doubles);
        report[n] = random_array(REPORT * batch, 1);
        memset(out[n][0], 0, (size_t)(2 * size * (doubles ? 8 : 4))),
            memset(out[n][1], 0, (size_t)(size * (doubles ? 8 : 4)));
        do {
            void *arrays[] = {y, p, table, reach, horizons, coarse, out[n][0], out[n][1]};
            failed = lmd_fgp(arrays, reals, sizes, threads, report[n]);
            scarce = 0; /* once is enough */
        } while (failed);
    }
    for (int a = 0; a < 2; a++) {
        if (memcmp(out[0][a], out[1][a], (size_t)((a ? 1 : 2) * size * (doubles ? 8 : 4))))
            fail("threads differ");
        free(out[0][a]), free(out[1][a]);
    }
    free(report[0]), free(report[1]), free(y), free(p), free(reals), free(reach), free(table);
}

DRIVE(check_loop)
