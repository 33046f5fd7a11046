/* Random calls of every function of convolve.c, for the sanitizers: `make sanitize`.

   Every array is malloc'ed to its exact size, so that the address sanitizer sees a read or write
   past its end. Shapes go from one pixel to several bands; memory runs out now and then. What is
   checked besides: an answer does not depend on the number of threads, and is finite where the
   input is. */

#define DRIVER "sanitize"
#include <math.h>

#include "sanitize.h"

#define malloc scarce_malloc
#define calloc scarce_calloc
#include "convolve.c"
#undef malloc
#undef calloc

enum { MOST_ARRAYS = 64, MOST_THREADS = 4 };
static const long SIDES[] = {1, 1, 2, 3, 5, 7, 13, 16, 23, 24, 25, 31, 33, 47, 48, 49, 71, 97, 127,
    255, 256, 257, 263, 300, 521};
static const long MOST_PIXELS[] = {
    100, 1000, 8000}; /* in all planes: many small calls, some of several bands */

static float *arrays[MOST_ARRAYS]; /* those of the call at hand */
static int held;
static int spoilt; /* whether one of them holds a NaN */

static long one_of(const long *values, size_t bytes) {
    return values[below((long)(bytes / sizeof(long)))];
}

/* An array of exactly so many bytes, freed after the call. */
static void *array(long count, size_t bytes) {
    if (held == MOST_ARRAYS) fail("more arrays than there is room for");
    arrays[held] = malloc((size_t)count * bytes);
    if (!arrays[held]) fail("no memory");
    return arrays[held++];
}

/* Random numbers in [low, high], now and then with a NaN. */
static float *between(long count, float low, float high) {
    float *x = array(count, sizeof(float));
    for (long i = 0; i < count; i++) x[i] = low + (high - low) * (float)random_number() / 0x1p31f;
    if (random_number() % 200 == 0) x[random_number() % count] = NAN, spoilt = 1;
    return x;
}

static void free_all(void) {
    while (held) free(arrays[--held]);
    spoilt = 0;
}

static void same(const char *name, const void *one, const void *other, long count, size_t bytes) {
    if (memcmp(one, other, (size_t)count * bytes)) fail(name);
}

static void check_finite(const char *name, const float *x, long count) {
    for (long i = 0; i < count && !spoilt; i++)
        if (!isfinite(x[i])) fail(name);
}

/* Sides of an image of which `planes` are not too much work. */
static void choose_sides(long planes, long *height, long *width) {
    long most = one_of(MOST_PIXELS, sizeof MOST_PIXELS);
    do {
        *height = one_of(SIDES, sizeof SIDES), *width = one_of(SIDES, sizeof SIDES);
    } while (planes * *height * *width > most);
}

static void try_convolve(long images, long height, long width, long size, int threads) {
    long fields = 1 + below(6), outputs = 2 * (1 + below(3)), pixels = height * width;
    float *x = between(images * fields * pixels, -1, 1),
          *kernel = between(outputs * fields * size * size, -1, 1);
    const long sizes[] = {images, fields, outputs, height, width, size};
    float *out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = array(images * outputs * pixels, sizeof(float));
        if (lmd_convolve((void *[]){x, kernel, out[i]}, NULL, sizes, i ? threads : 1, NULL)) return;
    }
    same("the convolution depends on the threads", out[0], out[1], images * outputs * pixels,
        sizeof(float));
    check_finite("the convolution is not finite", out[0], images * outputs * pixels);
    if (size > LARGEST) return;
    float *gradient = between(images * outputs * pixels, -1, 1), *by_kernel[2];
    long count = outputs * fields * size * size;
    for (int i = 0; i < 2; i++) {
        by_kernel[i] = array(count, sizeof(float));
        void *given[] = {x, gradient, by_kernel[i]};
        if (lmd_convolve_backward(given, NULL, sizes, i ? threads : 1, NULL)) return;
    }
    check_finite("the derivative is not finite", by_kernel[0], count);
    for (long i = 0; i < count && !spoilt; i++)
        if (fabsf(by_kernel[0][i] - by_kernel[1][i]) > 1e-5f * (float)(images * pixels))
            fail("the derivative depends on the threads");
}

static void check(void) {
    static const long sizes[] = {1, 3, 5, 7, 9, 11};
    long images = 1 + below(4), size = one_of(sizes, sizeof sizes), height, width;
    choose_sides(images, &height, &width);
    try_convolve(images, height, width, size, 1 + (int)below(MOST_THREADS));
    free_all();
}

DRIVE(check)
