/* Random calls of saddle.c, for the sanitizers: `make sanitize`.

   As in sanitize.c every array is malloc'ed to its exact size, and memory runs out now and then. What is checked
   besides: an answer does not depend on the number of threads, and is within its bounds. */

#define DRIVER "sanitize_saddle"
#include "sanitize.h"

#define calloc scarce_calloc
#define aligned_alloc scarce_aligned
#include "saddle.c"
#undef calloc
#undef aligned_alloc

static const long SIDES[] = {1, 1, 2, 3, 7, 15, 16, 17, 31, 33, 48, 70, 129};

/* The solve with one thread and with several. */
static void check(void)
{
    long batch = 1 + below(3), channels = 1 + below(3), height = SIDES[below(13)], width = SIDES[below(13)];
    long masks = below(2) ? channels : 1, learned = below(12), limit = 1 + learned + below(70), doubles = below(2);
    long pixels = height * width, size = batch * channels * pixels, isotropic = below(2);
    double tolerance = below(2) ? -1.0 : below(2) ? 1e-2 : 1e-9;
    int d = (int)doubles;
    void *y = random_between(size, d, 0, 1), *mask = random_between(batch * masks * pixels, d, 0, 1), *x = random_between(size, d, 0, 1);
    void *low = random_between(batch * channels, d, 0, 0), *high = random_between(batch * channels, d, 1, 1);
    void *p = below(2) ? random_between(2 * size, d, -0.1, 0.1) : NULL, *out[2][2];
    double *bound = random_between(batch, 1, 0.1, 0.5), *numbers = random_between(3 * learned + 1, 1, 0.5, 1.5), *report[2];
    for (long i = 0; i < batch * masks * pixels; i++) {
        if (doubles)
            ((double *)mask)[i] = random_number() % 2;
        else
            ((float *)mask)[i] = (float)(random_number() % 2);
    }
    for (int n = 0; n < 2; n++) {
        out[n][0] = random_between(size, d, 0, 1), out[n][1] = random_between(2 * size, d, 0, 1), report[n] = random_between(COLUMNS * batch, 1, 0.1, 0.1);
        scarce = n && below(4) == 0;
        int failed = lmd_saddle(y, mask, low, high, x, p, bound, numbers, 1.0, 8.0, 1.9, tolerance, batch, channels, masks,
                                height, width, learned, limit, 12, isotropic, doubles, n ? 1 + below(4) : 1, out[n][0],
                                out[n][1], report[n]);
        if (failed && !scarce) fail("a failure with enough memory");
        if (n && !failed && memcmp(out[0][0], out[1][0], (size_t)size * (doubles ? 8 : 4))) fail("threads change the answer");
        scarce = 0;
    }
    for (long i = 0; i < size; i++) {
        double found = doubles ? ((double *)out[0][0])[i] : (double)((float *)out[0][0])[i];
        if (!(found >= 0 && found <= 1)) fail("x outside of its box");
    }
    void *all[] = {y, mask, x, low, high, p, bound, numbers, out[0][0], out[0][1], out[1][0], out[1][1], report[0], report[1]};
    for (unsigned a = 0; a < sizeof all / sizeof *all; a++) free(all[a]);
}

DRIVE(check)
