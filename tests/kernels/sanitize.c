/* Random calls of every function of tv.c, for the sanitizers: `make sanitize`.

   Every array is malloc'ed to its exact size, so that the address sanitizer sees a read or write past its end. Shapes
   go from one pixel to more than a tile; memory runs out now and then. What is checked besides: an answer does not
   depend on the number of threads, is finite where the input is, and is within its bounds. */

#define DRIVER "sanitize"
#include "sanitize.h"

#define malloc scarce_malloc
#define calloc scarce_calloc
#include "tv.c"
#undef malloc
#undef calloc

enum { MOST_ARRAYS = 64, MOST_THREADS = 4 };
static const long SIDES[] = {1, 1, 2, 3, 5, 7, 13, 16, 23, 24, 25, 31, 33, 47, 48, 49, 71, 97, 127, 255, 256, 257, 263, 300, 521};
static const long MOST_PIXELS[] = {100, 1000, 8000}; /* in all planes: many small calls, some larger than a tile */

static float *arrays[MOST_ARRAYS]; /* those of the call at hand */
static int held;
static int spoilt; /* whether one of them holds a NaN */

static long one_of(const long *values, size_t bytes) { return values[below((long)(bytes / sizeof(long)))]; }

/* An array of exactly so many bytes, freed after the call. */
static void *array(long count, size_t bytes)
{
    if (held == MOST_ARRAYS) fail("more arrays than there is room for");
    arrays[held] = malloc((size_t)count * bytes);
    if (!arrays[held]) fail("no memory");
    return arrays[held++];
}

/* Random numbers in [low, high], now and then with a NaN. */
static float *between(long count, float low, float high)
{
    float *x = array(count, sizeof(float));
    for (long i = 0; i < count; i++) x[i] = low + (high - low) * (float)random_number() / 0x1p31f;
    if (random_number() % 200 == 0) x[random_number() % count] = NAN, spoilt = 1;
    return x;
}

static void free_all(void)
{
    while (held) free(arrays[--held]);
    spoilt = 0;
}

static void same(const char *name, const void *one, const void *other, long count, size_t bytes)
{
    if (memcmp(one, other, (size_t)count * bytes)) fail(name);
}

static void check_finite(const char *name, const float *x, long count)
{
    for (long i = 0; i < count && !spoilt; i++)
        if (!isfinite(x[i])) fail(name);
}

static void check_within(const char *name, const float *x, long count, float low, float high)
{
    for (long i = 0; i < count && !spoilt; i++)
        if (x[i] < low || x[i] > high) fail(name);
}

/* Sides of an image of which `planes` are not too much work. */
static void choose_sides(long planes, long *height, long *width)
{
    long most = one_of(MOST_PIXELS, sizeof MOST_PIXELS);
    do {
        *height = one_of(SIDES, sizeof SIDES), *width = one_of(SIDES, sizeof SIDES);
    } while (planes * *height * *width > most);
}

static void try_dual(long planes, long height, long width, long size, long steps, int threads)
{
    long pixels = planes * height * width;
    int fresh = (int)below(3); /* nothing before, no p before p, or both */
    float *x = between(pixels, 0, 1), *y = between(pixels, 0, 1), *bound = between(planes, 0.1f, 1);
    float *p = fresh > 0 ? between(2 * pixels, -1, 1) : NULL, *before = fresh > 1 ? between(2 * pixels, -1, 1) : NULL;
    float *kernels = between(steps * 8 * size * size, -0.1f, 0.1f);
    float *p_new[2], *p_last[2] = {NULL, NULL}, *x_new[2];
    for (int i = 0; i < 2; i++) {
        p_new[i] = array(2 * pixels, sizeof(float)), x_new[i] = array(pixels, sizeof(float));
        if (steps > 1) p_last[i] = array(2 * pixels, sizeof(float));
        if (lmd_dual_steps(x, p, before, y, kernels, bound, 2, planes, height, width, size, steps, i ? threads : 1,
                           p_new[i], p_last[i], x_new[i]))
            return;
    }
    same("the dual steps depend on the threads", p_new[0], p_new[1], 2 * pixels, sizeof(float));
    same("the dual steps depend on the threads", x_new[0], x_new[1], pixels, sizeof(float));
    if (steps > 1) same("the dual steps depend on the threads", p_last[0], p_last[1], 2 * pixels, sizeof(float));
    float *trace = array(steps * pixels, sizeof(float)), *p_end = array(2 * pixels, sizeof(float));
    float *p_beside = steps > 1 ? array(2 * pixels, sizeof(float)) : NULL;
    if (lmd_dual_trace(x, p, before, y, kernels, bound, 2, planes, height, width, size, steps, threads, p_end, p_beside,
                       trace))
        return;
    same("the trace of dual steps ends elsewhere", p_new[0], p_end, 2 * pixels, sizeof(float));
    same("the trace of dual steps ends elsewhere", x_new[0], trace + (steps - 1) * pixels, pixels, sizeof(float));
    if (steps > 1) same("the trace of dual steps ends elsewhere", p_last[0], p_beside, 2 * pixels, sizeof(float));
    check_finite("the dual steps are not finite", p_new[0], 2 * pixels);
    check_finite("the dual steps are not finite", x_new[0], pixels);
    check_within("the dual steps leave their bounds", p_new[0], 2 * pixels, -1, 1);
}

static void try_saddle(long planes, long height, long width, long size, long steps, int threads)
{
    static const long sizes[] = {1, 3, 5, 7, 9, 11};
    long pixels = planes * height * width, primal_size = one_of(sizes, sizeof sizes);
    long channels_per_mask = planes % 2 ? 1 : 2, masks = planes / channels_per_mask;
    int fresh = (int)below(2);
    float *x = between(pixels, 0, 1), *y = between(pixels, 0, 1), *mask = between(masks * height * width, 0, 1);
    for (long i = 0; i < masks * height * width; i++) mask[i] = mask[i] > 0.5f ? 1 : 0;
    float *moved = fresh ? NULL : between(pixels, -1, 1), *p = fresh ? NULL : between(2 * pixels, -1, 1);
    float *p_moved = fresh ? NULL : between(2 * pixels, -1, 1), *bound = between(planes, 0.1f, 1);
    float *low = between(planes, 0, 0.2f), *high = between(planes, 0.8f, 1);
    float *kernels = between(steps * 12 * size * size, -0.1f, 0.1f);
    float *primal_kernels = between(steps * 6 * primal_size * primal_size, -0.1f, 0.1f);
    float *out[2][4];
    for (int i = 0; i < 2; i++) {
        for (int c = 0; c < 4; c++) out[i][c] = array(c < 2 ? pixels : 2 * pixels, sizeof(float));
        if (lmd_saddle_steps(x, moved, p, p_moved, y, mask, kernels, primal_kernels, bound, low, high, 2, planes,
                             channels_per_mask, height, width, size, primal_size, steps, i ? threads : 1, out[i][0],
                             out[i][1], out[i][2], out[i][3]))
            return;
    }
    for (int c = 0; c < 4; c++) {
        long count = c < 2 ? pixels : 2 * pixels;
        same("the saddle steps depend on the threads", out[0][c], out[1][c], count, sizeof(float));
        check_finite("the saddle steps are not finite", out[0][c], count);
    }
    check_within("the saddle steps leave the box", out[0][0], pixels, 0, 1);
    check_within("the saddle steps leave their bounds", out[0][2], 2 * pixels, -1, 1);
}

static void try_sums(long planes, long height, long width, int threads)
{
    long pixels = planes * height * width;
    float *x = between(pixels, 0, 1), *bound = between(planes, 0.1f, 1);
    float *p = below(2) ? between(2 * pixels, -1, 1) : NULL, *y = below(2) ? between(pixels, 0, 1) : NULL;
    double *out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = array(SUMS * planes, sizeof(double));
        if (lmd_tv_sums(x, p, y, bound, 0.5f, planes, height, width, i ? threads : 1, out[i])) return;
    }
    same("the sums depend on the threads", out[0], out[1], SUMS * planes, sizeof(double));
    for (long i = 0; i < SUMS * planes && !spoilt; i++)
        if (!(out[0][i] >= 0)) fail("a sum is negative, or not finite");
}

static void try_smoothed(long planes, long height, long width, int threads)
{
    long pixels = planes * height * width, terms = 1 + below(3), alike = below(2) ? planes : 1;
    float *x = between(pixels, -1, 1), *y = between(pixels, -1, 1), *bound = between(planes, 0, 1);
    float *mask = below(2) ? between(planes / alike * height * width, 0, 1) : NULL;
    float *inverses = between(terms, 0, 100), *shares = between(terms, 0, 1), *out[2], *p[2];
    for (int i = 0; i < 2; i++) {
        out[i] = array(pixels, sizeof(float)), p[i] = array(2 * pixels, sizeof(float));
        lmd_smoothed_gradient(x, y, mask, bound, inverses, shares, 2, planes, alike, height, width, terms,
                              i ? threads : 1, out[i], p[i]);
    }
    same("the smoothed gradient depends on the threads", out[0], out[1], pixels, sizeof(float));
    check_finite("the smoothed gradient is not finite", out[0], pixels);
    same("the smoothed dual point depends on the threads", p[0], p[1], 2 * pixels, sizeof(float));
    check_within("the smoothed dual point is outside", p[0], 2 * pixels, -(float)terms, (float)terms);
}

static void try_convolve(long images, long height, long width, long size, int threads)
{
    long fields = 1 + below(6), outputs = 2 * (1 + below(3)), pixels = height * width;
    float *x = between(images * fields * pixels, -1, 1), *kernel = between(outputs * fields * size * size, -1, 1);
    float *out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = array(images * outputs * pixels, sizeof(float));
        if (lmd_convolve(x, kernel, images, fields, outputs, height, width, size, i ? threads : 1, out[i])) return;
    }
    same("the convolution depends on the threads", out[0], out[1], images * outputs * pixels, sizeof(float));
    check_finite("the convolution is not finite", out[0], images * outputs * pixels);
    if (size > LARGEST) return;
    float *gradient = between(images * outputs * pixels, -1, 1), *by_kernel[2];
    long count = outputs * fields * size * size;
    for (int i = 0; i < 2; i++) {
        by_kernel[i] = array(count, sizeof(float));
        if (lmd_convolve_backward(x, gradient, images, fields, outputs, height, width, size, i ? threads : 1,
                                  by_kernel[i]))
            return;
    }
    check_finite("the derivative is not finite", by_kernel[0], count);
    for (long i = 0; i < count && !spoilt; i++)
        if (fabsf(by_kernel[0][i] - by_kernel[1][i]) > 1e-5f * (float)(images * pixels))
            fail("the derivative depends on the threads");
}

static void check(void)
{
    static const long sizes[] = {1, 3, 5, 7, 9, 11};
    long planes = 1 + below(10), size = one_of(sizes, sizeof sizes), steps = 1 + below(5), height, width;
    int threads = 1 + (int)below(MOST_THREADS);
    choose_sides(planes, &height, &width);
    if (below(1000) == 0) planes = 1, height = 1300, width = 1100, size = 3; /* large enough for large pages */
    long which = below(5);
    if (which == 0) try_dual(planes, height, width, size, steps, threads);
    if (which == 1) try_saddle(planes, height, width, size, steps, threads);
    if (which == 2) try_sums(planes, height, width, threads);
    if (which == 3) try_convolve(1 + planes / 3, height, width, size, threads);
    if (which == 4) try_smoothed(planes, height, width, threads);
    free_all();
}

DRIVE(check)
