/* What iterations of total variation models do to rows of float numbers: volume.c and second.c. */

#include <math.h>
#include <string.h>

#include "shared.h"


/* Draws a group of rows, `count` of them `stride` apart, to lengths of at most the bound. */
static inline void draw(float *rows, long count, long stride, long n, const float *bound, float *squares)
{
    memset(squares, 0, (size_t)n * sizeof(float));
    for (long r = 0; r < count; r++) {
        const float *v = rows + r * stride * n;
#pragma omp simd
        for (long k = 0; k < n; k++) squares[k] += v[k] * v[k];
    }
#pragma omp simd
    for (long k = 0; k < n; k++)
        squares[k] = squares[k] > bound[k] * bound[k] ? bound[k] / sqrtf(squares[k]) : 1;
    for (long r = 0; r < count; r++) {
        float *v = rows + r * stride * n;
#pragma omp simd
        for (long k = 0; k < n; k++) v[k] *= squares[k];
    }
}

/* Of one row, to begin with what is left without the misfit: its prox, kept to the box. */
static inline void draw_near(int misfit, long n, float t, float low, float high, const float *y, const float *weight,
                             float *restrict v)
{
    if (misfit == MISFIT_SQUARES)
#pragma omp simd
        for (long k = 0; k < n; k++) v[k] += 2 * t * weight[k] / (1 + 2 * t * weight[k]) * (y[k] - v[k]);
    else if (misfit == MISFIT_COUNTS)
#pragma omp simd
        for (long k = 0; k < n; k++) {
            float counted = y[k] < 0 ? 0 : y[k], a = v[k] + weight[k] - t, product = t * counted;
            float root = sqrtf(a * a + 4 * product), below = root - a > 1e-37f ? root - a : 1e-37f;
            float drawn = (a > 0 ? 0.5f * (a + root) : 2 * product / below) - weight[k];
            v[k] = y[k] < 0 ? v[k] : drawn; /* counts below 0 are lost */
        }
    else if (misfit == MISFIT_LINEAR) /* <y, x>: of terms behind other operators, at what they are linear in */
#pragma omp simd
        for (long k = 0; k < n; k++) v[k] -= t * y[k];
    else
#pragma omp simd
        for (long k = 0; k < n; k++) {
            float off = v[k] - y[k], most = t * weight[k];
            off = off > most ? most : off;
            v[k] -= off < -most ? -most : off;
        }
#pragma omp simd
    for (long k = 0; k < n; k++) {
        float at = v[k] < low ? low : v[k];
        v[k] = at > high ? high : at;
    }
}

/* Adds a row to another one. */
static inline void add(long n, const float *restrict v, float *restrict sum)
{
#pragma omp simd
    for (long k = 0; k < n; k++) sum[k] += v[k];
}
