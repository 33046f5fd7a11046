/* Random calls of loop.c, for the sanitizers: `make sanitize`.

   As in sanitize.c every array is malloc'ed to its exact size, and memory runs out now and then. What is checked
   besides: an answer does not depend on the number of threads, and is within its bounds. */

#define DRIVER "sanitize_loop"
#include "sanitize.h"

#define malloc scarce_malloc
#define calloc scarce_calloc
#include "loop.c"
#undef malloc
#undef calloc

static const long SIDES[] = {1, 1, 2, 3, 7, 15, 16, 17, 31, 33, 48, 70, 129};

/* The loop with one thread and with several. */
static void check_loop(void)
{
    long batch = 1 + below(3), coupled = below(3) == 0, channels = coupled ? 2 + below(7) : 1 + below(3);
    long height = SIDES[below(13)], width = SIDES[below(13)];
    if (below(64) == 0) batch = channels = 1, coupled = 0, height = 760, width = 720; /* more iterations at once */
    if (below(16) == 0) batch = 1, height = 1 + below(40), width = 750 + below(1500); /* rows in parts */
    long learned = below(12), limit = learned + below(40), doubles = below(2), isotropic = below(2);
    long size = batch * channels * height * width, restart = below(2) ? 8 : 0;
    double tolerance = below(2) ? -1.0 : below(2) ? 1e-2 : 1e-9;
    void *y = random_array(size, (int)doubles), *p = below(2) ? random_array(2 * size, (int)doubles) : NULL;
    long horizons[2] = {1 + below(5), below(2) ? 6 + below(9) : 60}, coarse[2] = {below(2), below(2)};
    double *bound = random_array(batch, 1), *numbers = learned ? random_array(2 * batch * learned, 1) : NULL, *reach = random_array(2 * FORMS * 5, 1);
    double *table = random_array(6 * (horizons[0] + horizons[1]), 1);
    Schedules all = {table, reach, horizons, coarse, 2, 3, 0.05, 4.0}, *schedules = learned ? NULL : &all;
    void *before = schedules && p && below(4) ? random_array(size, (int)doubles) : NULL; /* the frame that p is of */
    if (before && below(4)) memcpy(before, y, (size_t)(size * (doubles ? 8 : 4)));
    long on = (below(2) ? 3 : 0) + (below(2) ? 2 * width : 0); /* by so many numbers it has moved */
    if (before && size > on) memmove(before, (char *)before + on * (doubles ? 8 : 4), (size_t)((size - on) * (doubles ? 8 : 4)));
    void *out[2][3];
    double *report[2];
    for (int n = 0; n < 2; n++) {
        int threads = n ? 2 + below(3) : 1, failed;
        for (int a = 0; a < 3; a++) out[n][a] = random_array(a < 2 ? 2 * size : size, (int)doubles);
        report[n] = random_array(REPORT * batch, 1);
        do {
            for (long i = 0; i < batch; i++) report[n][REPORT * i] = 1;
            failed = lmd_fgp(y, p, NULL, before, bound, numbers, schedules, 0.5, 0.125, tolerance, 2.8, 16.0, batch, channels, height, width,
                             learned, 0, limit + 1, 5, isotropic, coupled, restart, doubles, threads, out[n][0],
                             out[n][1], out[n][2], report[n]);
            scarce = 0; /* once is enough */
        } while (failed);
    }
    for (int a = 0; a < 3; a++) {
        if (memcmp(out[0][a], out[1][a], (size_t)((a < 2 ? 2 : 1) * size * (doubles ? 8 : 4)))) fail("threads differ");
        free(out[0][a]), free(out[1][a]);
    }
    free(report[0]), free(report[1]), free(y), free(p), free(before), free(bound), free(numbers), free(reach), free(table);
}

DRIVE(check_loop)
