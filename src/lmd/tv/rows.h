/* Operations of TV iterations on rows of float numbers, for volume.c and second.c. */

#ifndef LMD_ROWS
#define LMD_ROWS

#include <math.h>
#include <string.h>

#include "shared.h"

/* The rows (channels, axes, n) of a field, and the axes over which lengths are taken. */
typedef struct {
    long channels, axes;
    int isotropic, coupled;
} Form;

/* Rows that share a length: `count` rows, `stride` apart, the first of (channel, axis). */
typedef struct {
    long first, count, stride, channel, axis;
} Group;

static inline long groups_of(const Form *form) {
    return (form->coupled ? 1 : form->channels) * (form->isotropic ? 1 : form->axes);
}

static inline Group group_of(const Form *form, long n) {
    const long each = form->isotropic ? 1 : form->axes, c = n / each, a = n % each;
    const long count = (form->coupled ? form->channels : 1) * (form->isotropic ? form->axes : 1);
    return (Group){c * form->axes + a, count, each, c, a};
}

/* Projects a group of rows onto lengths of at most the bound, which has n entries. */
static inline void project_group(
    Group group, float *rows, long n, const float *bound, float *squares) {
    rows += group.first * n;
    if (group.count == 1) {
#pragma omp simd
        for (long k = 0; k < n; k++) {
            float at = rows[k] > bound[k] ? bound[k] : rows[k];
            rows[k] = at < -bound[k] ? -bound[k] : at;
        }
        return;
    }
    memset(squares, 0, (size_t)n * sizeof(float));
    for (long r = 0; r < group.count; r++) {
        const float *v = rows + r * group.stride * n;
#pragma omp simd
        for (long k = 0; k < n; k++) squares[k] += v[k] * v[k];
    }
#pragma omp simd
    for (long k = 0; k < n; k++)
        squares[k] = squares[k] > bound[k] * bound[k] ? bound[k] / sqrtf(squares[k]) : 1;
    for (long r = 0; r < group.count; r++) {
        float *v = rows + r * group.stride * n;
#pragma omp simd
        for (long k = 0; k < n; k++) v[k] *= squares[k];
    }
}

static inline void clamp(long n, float low, float high, float *restrict v) {
#pragma omp simd
    for (long k = 0; k < n; k++) {
        float at = v[k] < low ? low : v[k];
        v[k] = at > high ? high : at;
    }
}

/* The prox of the misfit, then the box, in place, for one row. */
static inline void draw_near(int misfit, long n, float t, float low, float high, const float *y,
    const float *weight, float *restrict v) {
    if (misfit == MISFIT_SQUARES)
#pragma omp simd
        for (long k = 0; k < n; k++)
            v[k] += 2 * t * weight[k] / (1 + 2 * t * weight[k]) * (y[k] - v[k]);
    else if (misfit == MISFIT_COUNTS)
#pragma omp simd
        for (long k = 0; k < n; k++) {
            float counted = y[k] < 0 ? 0 : y[k], a = v[k] + weight[k] - t, product = t * counted;
            float root = sqrtf(a * a + 4 * product), below = root - a > 1e-37f ? root - a : 1e-37f;
            float drawn = (a > 0 ? 0.5f * (a + root) : 2 * product / below) - weight[k];
            v[k] = y[k] < 0 ? v[k] : drawn; /* counts below 0 mark lost entries */
        }
    else if (misfit == MISFIT_LINEAR)
#pragma omp simd
        for (long k = 0; k < n; k++) v[k] -= t * y[k];
    else
#pragma omp simd
        for (long k = 0; k < n; k++) {
            float off = v[k] - y[k], most = t * weight[k];
            off = off > most ? most : off;
            v[k] -= off < -most ? -most : off;
        }
    clamp(n, low, high, v);
}

/* Moves p, or x, of relaxed PDHG in place, given v = p~ or x~. v is also added to `sum` and copied
 * to `answer`, if these are not NULL. */
static inline void relax(
    long n, float r, const float *restrict v, float *restrict p, float *answer, float *sum) {
    if (answer) memcpy(answer, v, (size_t)n * sizeof(float));
#pragma omp simd
    for (long k = 0; k < n; k++) p[k] += r * (v[k] - p[k]);
    if (!sum) return;
#pragma omp simd
    for (long k = 0; k < n; k++) sum[k] += v[k];
}

/* 2 p~ - p of one row. */
static inline void reflect(
    long n, const float *restrict v, const float *restrict p, float *restrict over) {
#pragma omp simd
    for (long k = 0; k < n; k++) over[k] = 2 * v[k] - p[k];
}

/* The number of threads for slabs of `count` planes: each thread gets at least two planes. */
static inline int slabs_of(long count, int threads) {
    return (int)(threads <= count / 2 ? threads : count > 3 ? count / 2 : 1);
}

#endif
