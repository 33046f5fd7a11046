/* Iterations of relaxed PDHG for second-order total variation of images, in float numbers.
 * lmd.solvers.classical.pdhg has the formulas, lmd.problems.tv the model,
 * lmd.operators.second_order the operators.
 *
 * x is (C, H, W) and the slopes w are (C, 2, H, W), one array X; their dual fields p (C, 2, H, W)
 * and q (C, 3, H, W) are one array P. An iteration goes twice through the rows. First it writes
 * 2 P~ - P to `over` and moves P; then it computes X~ from `over` and moves X. Entries that do not
 * exist, such as the last slopes along an axis, stay 0. Threads share the rows and meet between the
 * passes; the answer does not depend on the number of threads. */

#include <stdlib.h>

#include "rows.h"
#include "threads.h"

#define HALF 0.70710678f /* root of 1/2 */

typedef struct {
    long channels, height, width;
    int isotropic, coupled, misfit, last;
    float bounds[2], by[2]; /* the bounds of p and q; one over the spacings */
    float tau, sigma, relaxation;
    const float *y, *weight, *low, *high;
    float *X, *P, *over, *target, *dual, *X_sum, *P_sum;
} Second;

/* The offset of row i of component a of channel c, in an array with `components` per channel. */
static long row_of(const Second *job, long c, long a, long components, long i) {
    return ((c * components + a) * job->height + i) * job->width;
}

/* v[k] += s (there[k] - here[k]) for the first n entries. */
static void rise(long n, float s, const float *there, const float *here, float *restrict v) {
#pragma omp simd
    for (long k = 0; k < n; k++) v[k] += s * (there[k] - here[k]);
}

/* v[k] += s here[k] for the first n entries. */
static void add(long n, float s, const float *here, float *restrict v) {
#pragma omp simd
    for (long k = 0; k < n; k++) v[k] += s * here[k];
}

/* v[k] += t (here[k] - here[k - 1]) for the first n entries, with 0 before the first. */
static void fall(long n, float t, const float *here, float *restrict v) {
    v[0] += t * here[0];
    rise(n - 1, t, here + 1, here, v + 1);
}

/* Adds row i of s (Dx - w) to `rows` (C, 2, W). */
static void slopes(const Second *job, long i, float *rows) {
    const long W = job->width, area = job->height * W, all = job->channels * area;
    const float s = job->sigma;
    for (long c = 0; c < job->channels; c++, rows += 2 * W) {
        const float *x = job->X + c * area + i * W, *w = job->X + all + row_of(job, c, 0, 2, i);
        if (i + 1 < job->height) {
            rise(W, s * job->by[0], x + W, x, rows);
            add(W, -s, w, rows);
        }
        rise(W - 1, s * job->by[1], x + 1, x, rows + W);
        add(W - 1, -s, w + area, rows + W);
    }
}

/* Adds row i of s Ew to `rows` (C, 3, W). */
static void bends(const Second *job, long i, float *rows) {
    const long W = job->width, H = job->height, area = H * W, all = job->channels * area;
    const float s0 = job->sigma * job->by[0], s1 = job->sigma * job->by[1];
    for (long c = 0; c < job->channels; c++, rows += 3 * W) {
        const float *w0 = job->X + all + row_of(job, c, 0, 2, i), *w1 = w0 + area;
        if (i + 2 < H) rise(W, s0, w0 + W, w0, rows);
        if (i + 1 < H) rise(W - 1, HALF * s1, w0 + 1, w0, rows + W);
        if (i + 1 < H) rise(W - 1, HALF * s0, w1 + W, w1, rows + W);
        rise(W - 2, s1, w1 + 1, w1, rows + 2 * W);
    }
}

/* Row i of p, if `components` is 2, or of q, if it is 3: computes p~ in `rows` (C, components, W),
 * writes 2 p~ - p to `over`, and moves p. `room` has room for two rows. */
static void ascend(const Second *job, long i, long components, float *rows, float *room) {
    const long W = job->width, all = job->channels * job->height * W;
    const long from = (components == 2 ? 0 : 2 * all) + i * W;
    const Form form = {job->channels, components, job->isotropic, job->coupled};
    for (long f = 0; f < job->channels * components; f++)
        memcpy(rows + f * W, job->P + from + f * job->height * W, (size_t)W * sizeof(float));
    if (components == 2) slopes(job, i, rows);
    else bends(job, i, rows);
    for (long k = 0; k < W; k++) room[k] = job->bounds[components - 2];
    for (long g = 0; g < groups_of(&form); g++)
        project_group(group_of(&form, g), rows, W, room, room + W);
    for (long f = 0; f < job->channels * components; f++) {
        const long at = from + f * job->height * W;
        reflect(W, rows + f * W, job->P + at, job->over + at);
        relax(W, job->relaxation, rows + f * W, job->P + at, job->last ? job->dual + at : NULL,
            job->P_sum ? job->P_sum + at : NULL);
    }
}

/* Moves the row of X at offset `at`, where v is the row of X~. */
static void move(const Second *job, long at, const float *v) {
    relax(job->width, job->relaxation, v, job->X + at, job->last ? job->target + at : NULL,
        job->X_sum ? job->X_sum + at : NULL);
}

/* Row i of X: x~ = prox(x - t D'p), w~ = w + t (p - E'q), where p and q are in `over`. */
static void descend(const Second *job, long i, const float *zeros, float *v) {
    const long W = job->width, area = job->height * W, all = job->channels * area;
    const float t0 = job->tau * job->by[0], t1 = job->tau * job->by[1];
    for (long c = 0; c < job->channels; c++) {
        const float *p0 = job->over + row_of(job, c, 0, 2, i), *p1 = p0 + area;
        const float *q0 = job->over + 2 * all + row_of(job, c, 0, 3, i), *q1 = q0 + area;
        const float *q2 = q1 + area;
        const long x = c * area + i * W, w0 = all + row_of(job, c, 0, 2, i), w1 = w0 + area;
        memcpy(v, job->X + x, (size_t)W * sizeof(float));
        rise(W, t0, p0, i ? p0 - W : zeros, v);
        fall(W, t1, p1, v);
        draw_near(
            job->misfit, W, job->tau, job->low[c], job->high[c], job->y + x, job->weight + x, v);
        move(job, x, v);
        memcpy(v, job->X + w0, (size_t)W * sizeof(float));
        add(W, job->tau, p0, v);
        rise(W, t0, q0, i ? q0 - W : zeros, v);
        fall(W, HALF * t1, q1, v);
        move(job, w0, v);
        memcpy(v, job->X + w1, (size_t)W * sizeof(float));
        add(W, job->tau, p1, v);
        fall(W, t1, q2, v);
        rise(W, HALF * t0, q1, i ? q1 - W : zeros, v);
        move(job, w1, v);
    }
}

/* Iterates on one instance. `arrays`: y and weight (C, H, W), low and high (C), numbers (count, 3)
 * tau, sigma and relaxation; X and P, starts and ends; the last X~ and P~; their sums, or NULL.
 * `reals`: bounds of p and q, h0, h1. `sizes`: C, H, W, count, isotropic, coupled, misfit. */
int lmd_second(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    const long C = sizes[0], H = sizes[1], W = sizes[2];
    const double *numbers = arrays[4];
    Second given = {.channels = C,
        .height = H,
        .width = W,
        .isotropic = (int)sizes[4],
        .coupled = (int)sizes[5],
        .misfit = (int)sizes[6],
        .bounds = {(float)reals[0], (float)reals[1]},
        .by = {(float)(1 / reals[2]), (float)(1 / reals[3])},
        .y = arrays[0],
        .weight = arrays[1],
        .low = arrays[2],
        .high = arrays[3],
        .X = arrays[5],
        .P = arrays[6],
        .target = arrays[7],
        .dual = arrays[8],
        .X_sum = arrays[9],
        .P_sum = arrays[10]};
    Meeting meeting = {0};
    given.over = malloc((size_t)(5 * C * H * W) * sizeof(float));
    if (!given.over) return NO_MEMORY;
#pragma omp parallel num_threads((int)least(H, threads))
    {
        Second job = given;
        const int members = omp_get_num_threads(), thread = omp_get_thread_num();
        const long from = H * thread / members, to = H * (thread + 1) / members;
        float *rows = calloc((size_t)((3 * C + 3) * W), sizeof(float)); /* and room, and zeros */
        if (!rows) fail_with(&meeting, NO_MEMORY);
        meet(&meeting, members);
        for (long k = 0; k < sizes[3] && !meeting.stop; k++) {
            job.tau = (float)numbers[3 * k], job.sigma = (float)numbers[3 * k + 1];
            job.relaxation = (float)numbers[3 * k + 2], job.last = k + 1 == sizes[3];
            for (long i = from; i < to && !watch(&meeting, C * W); i++) {
                ascend(&job, i, 2, rows, rows + 3 * C * W);
                ascend(&job, i, 3, rows, rows + 3 * C * W);
            }
            meet(&meeting, members);
            for (long i = from; i < to; i++) descend(&job, i, rows + (3 * C + 2) * W, rows);
            meet(&meeting, members);
        }
        free(rows);
    }
    free(given.over);
    return meeting.failed;
}
