/* Iterations of relaxed PDHG for second-order total variation of images, in float numbers. lmd.solvers.classical.pdhg has the
   formulas, lmd.problems.models the model, lmd.operators.second_order the operators.

   x is (C, H, W) and the slopes w are (C, 2, H, W), one array X; their dual fields p (C, 2, H, W) and q (C, 3, H, W), one array P.
   An iteration goes twice through the rows: 2 P~ - P goes to `over` and P moves; then X is made from `over`, and moves. Entries
   that are none, such as the last slopes along an axis, are 0 and stay so. Threads share the rows, and wait for each other
   between the two; every number is made by the same operations whoever makes it. */

#include <stdlib.h>

#include "rows.h"
#include "threads.h"

#define HALF 0.70710678f /* root of 1/2 */

typedef struct {
    long channels, height, width;
    int isotropic, coupled, misfit, last;
    float bounds[2], by[2]; /* of p and q; one over the spacings */
    float tau, sigma, relaxation;
    const float *y, *weight, *low, *high;
    float *X, *P, *over, *target, *dual, *X_sum, *P_sum;
} Second;

/* Where row i of component a of channel c begins, of an array with so many components of each channel. */
static long row_of(const Second *job, long c, long a, long components, long i)
{
    return ((c * components + a) * job->height + i) * job->width;
}

/* v[k] += s (there[k] - here[k]) of the first n. */
static void rise(long n, float s, const float *there, const float *here, float *restrict v)
{
#pragma omp simd
    for (long k = 0; k < n; k++) v[k] += s * (there[k] - here[k]);
}

/* Row i of p + s (Dx - w) to `rows`, (C, 2, W). */
static void slopes(const Second *job, long i, float *rows)
{
    const long W = job->width, area = job->height * W, all = job->channels * area;
    const float s = job->sigma;
    for (long c = 0; c < job->channels; c++) {
        const float *x = job->X + c * area + i * W, *w0 = job->X + all + row_of(job, c, 0, 2, i), *w1 = w0 + area;
        float *restrict v0 = rows + 2 * c * W, *restrict v1 = v0 + W;
        memcpy(v0, job->P + row_of(job, c, 0, 2, i), (size_t)W * sizeof(float));
        memcpy(v1, job->P + row_of(job, c, 1, 2, i), (size_t)W * sizeof(float));
        if (i + 1 < job->height) {
            rise(W, s * job->by[0], x + W, x, v0);
#pragma omp simd
            for (long k = 0; k < W; k++) v0[k] -= s * w0[k];
        }
        rise(W - 1, s * job->by[1], x + 1, x, v1);
#pragma omp simd
        for (long k = 0; k < W - 1; k++) v1[k] -= s * w1[k];
    }
}

/* Row i of q + s Ew to `rows`, (C, 3, W). */
static void bends(const Second *job, long i, float *rows)
{
    const long W = job->width, H = job->height, area = H * W, all = job->channels * area;
    const float s0 = job->sigma * job->by[0], s1 = job->sigma * job->by[1];
    for (long c = 0; c < job->channels; c++) {
        const float *w0 = job->X + all + row_of(job, c, 0, 2, i), *w1 = w0 + area;
        float *v = rows + 3 * c * W;
        for (long a = 0; a < 3; a++) memcpy(v + a * W, job->P + 2 * all + row_of(job, c, a, 3, i), (size_t)W * sizeof(float));
        if (i + 2 < H) rise(W, s0, w0 + W, w0, v);
        if (i + 1 < H) rise(W - 1, HALF * s1, w0 + 1, w0, v + W);
        if (i + 1 < H) rise(W - 1, HALF * s0, w1 + W, w1, v + W);
        rise(W - 2, s1, w1 + 1, w1, v + 2 * W);
    }
}

/* Rows (C, components, W) drawn to lengths of at most the bound, which `line` holds. */
static void project(const Second *job, long components, const float *line, float *squares, float *rows)
{
    const long W = job->width, C = job->channels;
    if (job->isotropic && job->coupled)
        draw(rows, C * components, 1, W, line, squares);
    else if (job->isotropic)
        for (long c = 0; c < C; c++) draw(rows + c * components * W, components, 1, W, line, squares);
    else if (job->coupled)
        for (long a = 0; a < components; a++) draw(rows + a * W, C, components, W, line, squares);
    else {
        const float most = line[0];
#pragma omp simd
        for (long k = 0; k < C * components * W; k++) {
            float at = rows[k] > most ? most : rows[k];
            rows[k] = at < -most ? -most : at;
        }
    }
}

/* What the rows (C, components, W) hold is P~ of row i of the field that begins `from` entries into P. */
static void ascend(const Second *job, long i, long components, long from, const float *rows)
{
    const long W = job->width;
    const float r = job->relaxation;
    for (long f = 0; f < job->channels * components; f++) {
        const long at = from + f * job->height * W + i * W;
        const float *restrict v = rows + f * W;
        float *restrict p = job->P + at, *restrict over = job->over + at;
        if (job->last) memcpy(job->dual + at, v, (size_t)W * sizeof(float));
        if (job->P_sum) add(W, v, job->P_sum + at);
#pragma omp simd
        for (long k = 0; k < W; k++) {
            over[k] = 2 * v[k] - p[k];
            p[k] += r * (v[k] - p[k]);
        }
    }
}

/* v[k] += t (here[k] - before[k]), what is before the first being 0. */
static void fall(long n, float t, const float *here, float *restrict v)
{
    v[0] += t * here[0];
#pragma omp simd
    for (long k = 1; k < n; k++) v[k] += t * (here[k] - here[k - 1]);
}

/* The answer v in place of a row of X that begins `at` entries into it. */
static void move(const Second *job, long at, const float *restrict v)
{
    float *restrict x = job->X + at;
    const float r = job->relaxation;
    if (job->last) memcpy(job->target + at, v, (size_t)job->width * sizeof(float));
    if (job->X_sum) add(job->width, v, job->X_sum + at);
#pragma omp simd
    for (long k = 0; k < job->width; k++) x[k] += r * (v[k] - x[k]);
}

/* Row i of X: x~ = prox(x - t D'p), w~ = w + t (p - E'q), p and q those of `over`. */
static void descend(const Second *job, long i, const float *zeros, float *restrict v)
{
    const long W = job->width, area = job->height * W, all = job->channels * area;
    const float t0 = job->tau * job->by[0], t1 = job->tau * job->by[1];
    for (long c = 0; c < job->channels; c++) {
        const float *p0 = job->over + row_of(job, c, 0, 2, i), *p1 = p0 + area;
        const float *q0 = job->over + 2 * all + row_of(job, c, 0, 3, i), *q1 = q0 + area, *q2 = q1 + area;
        const long x = c * area + i * W, w0 = all + row_of(job, c, 0, 2, i), w1 = w0 + area;
        memcpy(v, job->X + x, (size_t)W * sizeof(float));
        rise(W, t0, p0, i ? p0 - W : zeros, v);
        fall(W, t1, p1, v);
        draw_near(job->misfit, W, job->tau, job->low[c], job->high[c], job->y + x, job->weight + x, v);
        move(job, x, v);
        for (int a = 0; a < 2; a++) {
            const float *own = a ? q2 : q0, *p = a ? p1 : p0, *w = job->X + (a ? w1 : w0);
#pragma omp simd
            for (long k = 0; k < W; k++) v[k] = w[k] + job->tau * p[k];
            if (a) {
                fall(W, t1, own, v);
                rise(W, HALF * t0, q1, i ? q1 - W : zeros, v);
            } else {
                rise(W, t0, own, i ? own - W : zeros, v);
                fall(W, HALF * t1, q1, v);
            }
            move(job, a ? w1 : w0, v);
        }
    }
}

/* `count` iterations of one instance. y, weight (C, H, W); X and target, P and dual as above: X and P are where they start and
   end, target and dual are X~ and P~ of the last one; sums of these, or NULL. `numbers` (count, 3): tau, sigma and relaxation.
   `reals`: the bounds of p and q, h0, h1. `sizes`: C, H, W, count. `options`: isotropic, coupled, misfit. */
int lmd_second(const float *y, const float *weight, const float *low, const float *high, const double *numbers,
               const double *reals, const long *sizes, const int *options, int threads, float *X, float *P, float *target,
               float *dual, float *X_sum, float *P_sum)
{
    const long C = sizes[0], H = sizes[1], W = sizes[2], all = C * H * W;
    float *over = malloc((size_t)(5 * all) * sizeof(float));
    Meeting meeting = {0};
    if (!over) return NO_MEMORY;
    if (threads > H) threads = (int)H;
#pragma omp parallel num_threads(threads)
    {
        Second job = {.channels = C, .height = H, .width = W, .isotropic = options[0], .coupled = options[1],
                      .misfit = options[2], .bounds = {(float)reals[0], (float)reals[1]},
                      .by = {(float)(1 / reals[2]), (float)(1 / reals[3])}, .y = y, .weight = weight, .low = low, .high = high,
                      .X = X, .P = P, .over = over, .target = target, .dual = dual, .X_sum = X_sum, .P_sum = P_sum};
        const int members = omp_get_num_threads();
        const long thread = omp_get_thread_num();
        const long from = H * thread / members, to = H * (thread + 1) / members;
        float *rows = calloc((size_t)((3 * C + 4) * W), sizeof(float));
        float *squares = NULL, *zeros = NULL, *lines[2] = {NULL, NULL};
        if (rows) squares = rows + 3 * C * W, zeros = squares + W, lines[0] = zeros + W, lines[1] = lines[0] + W;
        if (!rows) fail_with(&meeting, NO_MEMORY);
        meet(&meeting, members);
        for (int n = 0; n < 2 && !meeting.stop; n++)
            for (long k = 0; k < W; k++) lines[n][k] = job.bounds[n];
        for (long k = 0; k < sizes[3] && !meeting.stop; k++) {
            job.tau = (float)numbers[3 * k], job.sigma = (float)numbers[3 * k + 1];
            job.relaxation = (float)numbers[3 * k + 2], job.last = k + 1 == sizes[3];
            for (long i = from; i < to && !watch(&meeting, C * W); i++) {
                slopes(&job, i, rows);
                project(&job, 2, lines[0], squares, rows);
                ascend(&job, i, 2, 0, rows);
                bends(&job, i, rows);
                project(&job, 3, lines[1], squares, rows);
                ascend(&job, i, 3, 2 * all, rows);
            }
            meet(&meeting, members);
            for (long i = from; i < to; i++) descend(&job, i, zeros, rows);
            meet(&meeting, members);
        }
        free(rows);
    }
    free(over);
    return meeting.failed;
}
