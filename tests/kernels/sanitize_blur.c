/* Random calls of blur.c, for the sanitizers: `make sanitize`.

   As in sanitize.c every array is malloc'ed to its exact size, and memory runs out now and then.
   What is checked besides: what comes out does not depend on the number of threads, and <Ax, z> =
   <x, A'z>. */

#define DRIVER "sanitize_blur"
#include "sanitize.h"

#include <math.h>

#define malloc scarce_malloc
#include "blur.c"
#undef malloc

static const long SIDES[] = {1, 2, 3, 5, 7, 16, 17, 33, 64, 70};

static float *call(const float *x, const float *taps, const long *places, const long *sizes,
    int threads, int few) {
    float *out = random_array(sizes[0] * sizes[1] * sizes[2], 0);
    int failed;
    scarce = few;
    do {
        failed = lmd_blur(
            (void *[]){(void *)x, (void *)taps, (void *)places, out}, NULL, sizes, threads, NULL);
        scarce = 0;
    } while (failed);
    return out;
}

static void check(void) {
    long planes = 1 + below(3), height = SIDES[below(10)], width = SIDES[below(10)],
         passes = 1 + below(2);
    long sizes[12] = {planes, height, width, below(2), 0, passes}, size = planes * height * width,
         all = 0, at = 0;
    for (long n = 0; n < passes; n++) {
        long h = passes > 1 && n ? 1 : 1 + below(height < 9 ? height : 9);
        long w = passes > 1 && !n ? 1 : 1 + below(width < 9 ? width : 9);
        sizes[6 + 3 * n] = h, sizes[7 + 3 * n] = w, sizes[8 + 3 * n] = below(h * w + 1);
        all += sizes[8 + 3 * n];
    }
    long *places = malloc((size_t)(2 * all) * sizeof(long) + 1);
    if (!places) fail("no memory");
    for (long n = 0; n < passes; n++)
        for (long t = 0; t < sizes[8 + 3 * n]; t++, at++)
            places[2 * at] = below(sizes[6 + 3 * n]), places[2 * at + 1] = below(sizes[7 + 3 * n]);
    float *taps = random_array(all, 0), *x = random_array(size, 0), *z = random_array(size, 0);
    double products[2] = {0, 0};
    for (int adjoint = 0; adjoint < 2; adjoint++) {
        sizes[4] = adjoint;
        float *one = call(adjoint ? z : x, taps, places, sizes, 1, below(8) == 0);
        float *other = call(adjoint ? z : x, taps, places, sizes, 2 + below(3), below(8) == 0);
        for (long e = 0; e < size; e++) {
            if (one[e] != other[e]) fail("threads differ");
            products[adjoint] += (double)one[e] * (double)(adjoint ? x : z)[e];
        }
        free(one), free(other);
    }
    if (fabs(products[0] - products[1]) > 1e-4 * (fabs(products[0]) + 1)) fail("not the adjoint");
    free(places), free(taps), free(x), free(z);
}

DRIVE(check)
