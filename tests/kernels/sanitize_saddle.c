/* Random calls of saddle.c, for the sanitizers: `make sanitize`.

   As in sanitize.c every array is malloc'ed to its exact size, and memory runs out now and then. What is checked
   besides: an answer does not depend on the number of threads, and is within its bounds. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int scarce; /* whether there may be no memory */

static void *scarce_calloc(size_t count, size_t bytes) { return scarce && rand() % 3 == 0 ? NULL : calloc(count, bytes); }
static void *scarce_aligned(size_t to, size_t bytes) { return scarce && rand() % 3 == 0 ? NULL : aligned_alloc(to, bytes); }
#define calloc scarce_calloc
#define aligned_alloc scarce_aligned
#include "saddle.c"
#undef calloc
#undef aligned_alloc

static const long SIDES[] = {1, 1, 2, 3, 7, 15, 16, 17, 31, 33, 48, 70, 129};

static void fail(const char *what)
{
    fprintf(stderr, "sanitize_saddle: %s\n", what);
    exit(1);
}

/* Numbers from `low` to `high`; with `rounded`, those of them alone. */
static void *array(long count, int doubles, double low, double high, int rounded)
{
    void *x = malloc((size_t)count * (doubles ? 8 : 4));
    if (!x) fail("no memory");
    for (long i = 0; i < count; i++) {
        double drawn = rounded ? (rand() % 2 ? high : low) : low + (high - low) * rand() / RAND_MAX;
        if (doubles)
            ((double *)x)[i] = drawn;
        else
            ((float *)x)[i] = (float)drawn;
    }
    return x;
}

/* The solve with one thread and with several. */
static void check(void)
{
    long batch = 1 + rand() % 3, channels = 1 + rand() % 3, height = SIDES[rand() % 13], width = SIDES[rand() % 13];
    long masks = rand() % 2 ? channels : 1, learned = rand() % 12, limit = 1 + learned + rand() % 70, doubles = rand() % 2;
    long pixels = height * width, size = batch * channels * pixels, isotropic = rand() % 2;
    double tolerance = rand() % 2 ? -1.0 : rand() % 2 ? 1e-2 : 1e-9;
    int d = (int)doubles;
    void *y = array(size, d, 0, 1, 0), *mask = array(batch * masks * pixels, d, 0, 1, 1), *x = array(size, d, 0, 1, 0);
    void *low = array(batch * channels, d, 0, 0, 0), *high = array(batch * channels, d, 1, 1, 0);
    void *p = rand() % 2 ? array(2 * size, d, -0.1, 0.1, 0) : NULL, *out[2][2];
    double *bound = array(batch, 1, 0.1, 0.5, 0), *numbers = array(3 * learned + 1, 1, 0.5, 1.5, 0), *report[2];
    for (int n = 0; n < 2; n++) {
        out[n][0] = array(size, d, 0, 1, 0), out[n][1] = array(2 * size, d, 0, 1, 0), report[n] = array(5 * batch, 1, 0.1, 0.1, 0);
        scarce = n && rand() % 4 == 0;
        int failed = lmd_saddle(y, mask, low, high, x, p, bound, numbers, 1.0, 8.0, 1.9, tolerance, batch, channels, masks,
                                height, width, learned, limit, 12, isotropic, doubles, n ? 1 + rand() % 4 : 1, out[n][0],
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

int main(int count, char **arguments)
{
    if (count != 3) fail("usage: sanitize_saddle SECONDS SEED");
    srand((unsigned)atol(arguments[2]));
    time_t end = time(NULL) + atol(arguments[1]);
    long calls = 0;
    do check(), calls++;
    while (time(NULL) < end);
    printf("sanitize_saddle: %ld calls\n", calls);
    return 0;
}
