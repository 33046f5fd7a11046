/* Random calls of saddle.c, for the sanitizers: `make sanitize`.

   As in sanitize.c every array is malloc'ed to its exact size, and memory runs out now and then.
   What is checked besides: an answer does not depend on the number of threads, and is within its
   bounds. */

#define DRIVER "sanitize_saddle"
#include "sanitize.h"

#define calloc scarce_calloc
#define aligned_alloc scarce_aligned
#include "saddle.c"
#undef calloc
#undef aligned_alloc

static const long SIDES[] = {1, 1, 2, 3, 7, 15, 16, 17, 31, 33, 48, 70, 129};

/* The solve with one thread and with several. */
static void check(void) {
    long batch = 1 + below(3), channels = 1 + below(3);
    long height = SIDES[below(13)], width = SIDES[below(13)];
    long masks = below(2) ? channels : 1, limit = 1 + below(82), doubles = below(2);
    long pixels = height * width, size = batch * channels * pixels, isotropic = below(2);
    double tolerance = below(2) ? 1e-2 : 1e-9;
    int d = (int)doubles;
    void *y = random_between(size, d, 0, 1), *x = random_between(size, d, 0, 1), *out[2][2];
    void *mask = random_between(batch * masks * pixels, d, 0, 1);
    long count = 4 + batch * (2 + 2 * channels);
    double *reals = random_between(count, 1, 0.1, 0.5), *report[2];
    const long sizes[] = {
        batch, channels, masks, height, width, limit, isotropic, doubles, 25, 12800, 10};
    const double constants[] = {1.0, 8.0, 1.9, tolerance};
    memcpy(reals, constants, sizeof constants);
    for (long n = 0; n < batch; n++) reals[4 + batch + n] = 0.1;
    for (long n = 0; n < 2 * batch * channels; n++)
        reals[4 + 2 * batch + n] = n < batch * channels ? 0 : 1;
    for (long i = 0; i < batch * masks * pixels; i++) {
        if (doubles) ((double *)mask)[i] = random_number() % 2;
        else ((float *)mask)[i] = (float)(random_number() % 2);
    }
    for (int n = 0; n < 2; n++) {
        out[n][0] = random_between(size, d, 0, 1), out[n][1] = random_between(2 * size, d, 0, 1);
        report[n] = random_between(REPORT * batch, 1, 0.1, 0.1);
        scarce = n && below(4) == 0;
        void *arrays[] = {y, mask, x, out[n][0], out[n][1]};
        int failed = lmd_saddle(arrays, reals, sizes, n ? 1 + (int)below(4) : 1, report[n]);
        if (failed && !scarce) fail("a failure with enough memory");
        if (n && !failed && memcmp(out[0][0], out[1][0], (size_t)size * (doubles ? 8 : 4)))
            fail("threads change the answer");
        scarce = 0;
    }
    for (long i = 0; i < size; i++) {
        double found = doubles ? ((double *)out[0][0])[i] : (double)((float *)out[0][0])[i];
        if (!(found >= 0 && found <= 1)) fail("x outside of its box");
    }
    void *all[] = {
        y, mask, x, reals, out[0][0], out[0][1], out[1][0], out[1][1], report[0], report[1]};
    for (unsigned a = 0; a < sizeof all / sizeof *all; a++) free(all[a]);
}

DRIVE(check)
