/* Iterations of fast gradient projection for total variation denoising with given numbers, and their derivatives by
   these numbers: what training unrolls. lmd.solvers.learned.fgp has the formulas.

   Images (planes, H, W) and dual fields (planes, 2, H, W) are float and contiguous; each plane is on its own. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

/* What is given for one plane. */
typedef struct {
    const float *y, *start, *steps, *momenta; /* start: p_0; NULL is 0 */
    float bound, inverse;
    long height, width, iterations;
    int isotropic;
    Meeting *meeting;
} Plane;

/* x = y - inverse K'q, or K'q without y. */
static void primal(const Plane *plane, const float *y, float inverse, const float *q, float *restrict x)
{
    const long height = plane->height, width = plane->width;
    for (long i = 0; i < height && !watch(plane->meeting, width); i++) {
        const float *down = q + i * width, *right = q + (height + i) * width;
        float *restrict out = x + i * width;
        for (long j = 0; j < width; j++) out[j] = (i ? down[j - width] : 0) - (i + 1 < height ? down[j] : 0);
        for (long j = 0; j + 1 < width; j++) out[j] -= right[j];
        for (long j = 1; j < width; j++) out[j] += right[j - 1];
        if (!y) continue;
        const float *data = y + i * width;
        for (long j = 0; j < width; j++) out[j] = data[j] - inverse * out[j];
    }
}

/* z = Kx. */
static void differences(const Plane *plane, const float *x, float *restrict z)
{
    const long height = plane->height, width = plane->width;
    for (long i = 0; i < height && !watch(plane->meeting, width); i++) {
        const float *here = x + i * width;
        float *restrict down = z + i * width, *restrict right = z + (height + i) * width;
        for (long j = 0; j < width; j++) down[j] = i + 1 < height ? here[j + width] - here[j] : 0;
        for (long j = 0; j + 1 < width; j++) right[j] = here[j + 1] - here[j];
        right[width - 1] = 0;
    }
}

/* q_k from p_k and p_{k-1}, `points` (N + 1, 2, H, W). */
static void extrapolate(const Plane *plane, const float *points, long k, float *restrict q)
{
    const long size = 2 * plane->height * plane->width;
    const float *now = points + k * size, *before = k ? now - size : now, m = k ? plane->momenta[k - 1] : 0;
    for (long e = 0; e < size; e++) q[e] = now[e] + m * (now[e] - before[e]);
}

/* The rise K x(q), through x. */
static void ascend(const Plane *plane, const float *q, float *x, float *rise)
{
    primal(plane, plane->y, plane->inverse, q, x);
    differences(plane, x, rise);
}

/* points[k + 1] = P(q + t rise). */
static void project(const Plane *plane, const float *q, const float *rise, float t, float *restrict p)
{
    const long pixels = plane->height * plane->width;
    const float b = plane->bound;
    if (!plane->isotropic) {
        for (long e = 0; e < 2 * pixels; e++) {
            float v = q[e] + t * rise[e];
            v = v > b ? b : v;
            p[e] = v < -b ? -b : v;
        }
        return;
    }
    for (long e = 0; e < pixels; e++) {
        float v = q[e] + t * rise[e], w = q[pixels + e] + t * rise[pixels + e], square = v * v + w * w;
        float factor = square > b * b ? b / sqrtf(square) : 1;
        p[e] = v * factor;
        p[pixels + e] = w * factor;
    }
}

static void forward_plane(const Plane *plane, float *points, float *work)
{
    const long size = 2 * plane->height * plane->width;
    float *q = work, *rise = work + size, *x = work + 2 * size;
    if (plane->start)
        memcpy(points, plane->start, (size_t)size * sizeof(float));
    else
        memset(points, 0, (size_t)size * sizeof(float));
    for (long k = 0; k < plane->iterations && !watch(plane->meeting, size); k++) {
        extrapolate(plane, points, k, q);
        ascend(plane, q, x, rise);
        project(plane, q, rise, plane->steps[k], points + (k + 1) * size);
    }
}

/* The derivative by q + t rise from the one by its projection, in place; returns that by t. */
static double through(const Plane *plane, const float *q, const float *rise, float t, float *restrict g)
{
    const long pixels = plane->height * plane->width;
    const float b = plane->bound;
    double sum = 0;
    if (!plane->isotropic) {
#pragma omp simd reduction(+ : sum)
        for (long e = 0; e < 2 * pixels; e++) {
            float v = q[e] + t * rise[e];
            g[e] = v > -b && v < b ? g[e] : 0;
            sum += (double)(g[e] * rise[e]);
        }
        return sum;
    }
#pragma omp simd reduction(+ : sum)
    for (long e = 0; e < pixels; e++) {
        float v = q[e] + t * rise[e], w = q[pixels + e] + t * rise[pixels + e], length = sqrtf(v * v + w * w);
        float size = length > b ? length : 1, factor = length > b ? b / size : 1, radial = length > b ? 1 : 0;
        float along = radial * (v * g[e] + w * g[pixels + e]) / (size * size);
        g[e] = factor * (g[e] - along * v);
        g[pixels + e] = factor * (g[pixels + e] - along * w);
        sum += (double)(g[e] * rise[e] + g[pixels + e] * rise[pixels + e]);
    }
    return sum;
}

/* The derivatives by steps and momenta of <gradient, p_N>, added to out (2, N). */
static void backward_plane(const Plane *plane, const float *points, const float *gradient, float *work, double *out)
{
    const long size = 2 * plane->height * plane->width, steps = plane->iterations;
    float *q = work, *rise = q + size, *x = rise + size, *by_p = x + size / 2, *by_q = by_p + size, *turned = by_q + size;
    memcpy(by_p, gradient, (size_t)size * sizeof(float));
    memset(by_q, 0, (size_t)size * sizeof(float));
    for (long k = steps - 1; k >= 0 && !watch(plane->meeting, size); k--) {
        const float *now = points + k * size, *next = now + size, m = plane->momenta[k], t = plane->steps[k];
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long e = 0; e < size; e++) {
            sum += (double)(by_q[e] * (next[e] - now[e]));
            turned[e] = by_p[e] + (1 + m) * by_q[e];
            by_p[e] = -m * by_q[e];
        }
        out[steps + k] += sum;
        extrapolate(plane, points, k, q);
        ascend(plane, q, x, rise);
        out[k] += through(plane, q, rise, t, turned);
        primal(plane, NULL, 0, turned, x);
        differences(plane, x, rise);
        for (long e = 0; e < size; e++) by_q[e] = turned[e] - t * plane->inverse * rise[e];
    }
}

static Plane plane_of(const float *y, const float *start, const float *bound, const float *numbers, float inverse,
                      long channels, long height, long width, long iterations, long isotropic, long n, Meeting *meeting)
{
    const float *steps = numbers + n / channels * 2 * iterations;
    const float *first = start ? start + 2 * n * height * width : NULL;
    Plane plane = {y + n * height * width, first, steps, steps + iterations, bound[n / channels], inverse, height, width,
                   iterations, (int)isotropic, meeting};
    return plane;
}

/* p_0 to p_N of each plane: points (B C, N + 1, 2, H, W), numbers (B, 2, N). */
int lmd_unroll(const float *y, const float *start, const float *bound, const float *numbers, float inverse, long batch,
               long channels, long height, long width, long iterations, long isotropic, int threads, float *points)
{
    const long size = 2 * height * width, planes = batch * channels;
    float *work = malloc((size_t)(threads * 3 * size) * sizeof(float));
    Meeting meeting = {0};
    if (!work) return NO_MEMORY;
#pragma omp parallel for num_threads(threads)
    for (long n = 0; n < planes; n++) {
        Plane plane = plane_of(y, start, bound, numbers, inverse, channels, height, width, iterations, isotropic, n, &meeting);
        forward_plane(&plane, points + n * (iterations + 1) * size, work + omp_get_thread_num() * 3 * size);
    }
    free(work);
    return meeting.failed;
}

/* The derivatives by the numbers of <gradient, p_N>: out (B C, 2, N), each plane's on its own. */
int lmd_unroll_backward(const float *y, const float *bound, const float *numbers, const float *points,
                        const float *gradient, float inverse, long batch, long channels, long height, long width,
                        long iterations, long isotropic, int threads, double *out)
{
    const long size = 2 * height * width, planes = batch * channels;
    float *work = malloc((size_t)(threads * 6 * size) * sizeof(float));
    Meeting meeting = {0};
    if (!work) return NO_MEMORY;
    memset(out, 0, (size_t)(planes * 2 * iterations) * sizeof(double));
#pragma omp parallel for num_threads(threads)
    for (long n = 0; n < planes; n++) {
        Plane plane = plane_of(y, NULL, bound, numbers, inverse, channels, height, width, iterations, isotropic, n, &meeting);
        backward_plane(&plane, points + n * (iterations + 1) * size, gradient + n * size,
                       work + omp_get_thread_num() * 6 * size, out + n * 2 * iterations);
    }
    free(work);
    return meeting.failed;
}
