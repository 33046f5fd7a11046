/* Iterations of lmd.solvers.LearnedInteriorPoint on the rows that the solver has chosen, for each
   data set. Everything is computed in double precision from float rows. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared.h"
#include "threads.h"

enum {
    TOGETHER =
        8 /* rows that are added to the matrix in one pass, and columns that it is padded to */
};
#define LEAST_CENTRING 1e-6
#define MOST_CENTRING 0.5

/* The positive variables at a point, or changes of these: one number of each kind for each row, in
 * four consecutive arrays. */
typedef struct {
    double *dual, *room, *slack, *surplus;
} Around;

/* One data set: padded rows (count, ld), and working memory. */
typedef struct {
    long n, ld, count;
    double *point, *used, *weight, *shift, *missing, *matrix, *base, *move;
    Around now, ahead, by;
    Meeting *meeting;
} Problem;

static inline double larger(double a, double b) { return a > b ? a : b; }

static double dot(const double *a, const double *b, long n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < n; j++) sum += a[j] * b[j];
    return sum;
}

static double mean_product(const Problem *p, double length, const Around *by) {
    const Around *now = &p->now;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < p->count; i++)
        sum += (now->dual[i] + length * by->dual[i]) * (now->surplus[i] + length * by->surplus[i]) +
            (now->room[i] + length * by->room[i]) * (now->slack[i] + length * by->slack[i]);
    return sum / (2 * p->count);
}

static double longest(const Problem *p, const Around *by) {
    const Around *now = &p->now;
    double steepest = 1;
#pragma omp simd reduction(max : steepest)
    for (long i = 0; i < 4 * p->count; i++)
        steepest = larger(steepest, -by->dual[i] / now->dual[i]);
    return 1 / steepest;
}

/* The sum of scale_i times row i, added to `sum`. */
static void add_rows(const Problem *p, const double *scale, double *sum) {
    for (long i = 0; i < p->count; i++) {
        const double *row = p->used + i * p->ld, by = scale[i];
#pragma omp simd
        for (long j = 0; j < p->ld; j++) sum[j] += by * row[j];
    }
}

/* Computes the upper triangle of penalty + rows' diag(weight) rows, and its Cholesky factor in
 * place. Entries left of the diagonal are not used. */
static void factorise(Problem *p) {
    const long n = p->n, ld = p->ld;
    double *M = p->matrix;
    memset(M, 0, (size_t)(n * ld) * sizeof(double));
    for (long i = 0; i < p->count && !watch(p->meeting, n * ld); i += TOGETHER)
        for (long a = 0; a < n; a++) {
            const double *row = p->used + i * ld; /* rows past the last are 0 */
            double *to = M + a * ld, scale[TOGETHER];
            for (long k = 0; k < TOGETHER; k++) scale[k] = p->weight[i + k] * row[k * ld + a];
#pragma omp simd
            for (long b = a / TOGETHER * TOGETHER; b < ld; b++) {
                double sum = to[b];
                for (long k = 0; k < TOGETHER; k++) sum += scale[k] * row[k * ld + b];
                to[b] = sum;
            }
        }
    for (long a = 0; a < n - 1; a++)
        M[a * ld + a] += 1; /* the bias, which comes last, is not penalised */
    for (long k = 0; k < n && !watch(p->meeting, (n - k) * ld); k++) {
        double *row = M + k * ld;
        const double by = 1 / sqrt(row[k]);
        for (long b = k; b < ld; b++) row[b] *= by;
        for (long a = k + 1; a < n; a++) {
            double *to = M + a * ld;
            const double times = row[a];
#pragma omp simd
            for (long b = a / TOGETHER * TOGETHER; b < ld; b++) to[b] -= times * row[b];
        }
    }
}

static void solve(const Problem *p, double *x) {
    const long n = p->n, ld = p->ld;
    for (long k = 0; k < n; k++) {
        const double *row = p->matrix + k * ld, by = x[k] /= row[k];
#pragma omp simd
        for (long b = k + 1; b < n; b++) x[b] -= by * row[b];
    }
    for (long k = n - 1; k >= 0; k--) {
        const double *row = p->matrix + k * ld;
        x[k] = (x[k] - dot(row + k + 1, x + k + 1, n - k - 1)) / row[k];
    }
}

/* Computes the direction, in `to` and `move`, that to first order changes each product (dual times
   surplus, room times slack) by aim - product - corrected times the product of the changes in
   `before`, and makes the residuals 0. */
static void direction(Problem *p, double aim, double corrected, const Around *before, Around *to) {
    const double *dual = p->now.dual, *room = p->now.room, *slack = p->now.slack,
                 *surplus = p->now.surplus;
    const double *weight = p->weight, *missing = p->missing;
    double *shift = p->shift, *more = to->surplus, *most = to->slack, *change = to->dual,
           *less = to->room;
#pragma omp simd
    for (long i = 0; i < p->count; i++) {
        more[i] = aim - dual[i] * surplus[i] - corrected * before->dual[i] * before->surplus[i];
        most[i] = aim - room[i] * slack[i] - corrected * before->room[i] * before->slack[i];
        shift[i] = weight[i] * (missing[i] - most[i] / room[i] + more[i] / dual[i]);
    }
    memcpy(p->move, p->base, (size_t)p->ld * sizeof(double));
    add_rows(p, shift, p->move);
    solve(p, p->move);
    for (long i = 0; i < p->count; i++)
        change[i] = shift[i] - weight[i] * dot(p->used + i * p->ld, p->move, p->n);
#pragma omp simd
    for (long i = 0; i < p->count; i++) {
        less[i] = -change[i];
        most[i] = (most[i] + slack[i] * change[i]) / room[i];
        more[i] = (more[i] - surplus[i] * change[i]) / dual[i];
    }
}

static void iterate(Problem *p, double centring, double share) {
    const double mean = mean_product(p, 0, &p->now), *used = p->used;
    double *dual = p->now.dual, *room = p->now.room, *slack = p->now.slack,
           *surplus = p->now.surplus;
    double *weight = p->weight, *missing = p->missing;
    for (long i = 0; i < p->count; i++) missing[i] = 1 - dot(used + i * p->ld, p->point, p->n);
#pragma omp simd
    for (long i = 0; i < p->count; i++) {
        weight[i] = dual[i] * room[i] / (slack[i] * dual[i] + surplus[i] * room[i]);
        missing[i] += surplus[i] - slack[i];
    }
    factorise(p);
    for (long j = 0; j < p->ld; j++) p->base[j] = j < p->n - 1 ? -p->point[j] : 0;
    add_rows(p, dual, p->base);
    direction(p, 0, 0, &p->now, &p->ahead);
    double ratio = mean_product(p, longest(p, &p->ahead), &p->ahead) / mean;
    double sigma = fmin(fmax(centring * ratio * ratio * ratio, LEAST_CENTRING), MOST_CENTRING);
    direction(p, sigma * mean, 1, &p->ahead, &p->by);
    const double far = share * longest(p, &p->by);
    for (long j = 0; j < p->n; j++) p->point[j] += far * p->move[j];
#pragma omp simd
    for (long i = 0; i < 4 * p->count; i++) dual[i] += far * p->by.dual[i];
}

static Around around(double *at, long m) { return (Around){at, at + m, at + 2 * m, at + 3 * m}; }

/* Iterates on each data set. `arrays`: rows (S, m, n), the indices of the chosen rows (S, k), the
   factor of the centring and the share of the way to the boundary of each iteration (iterations,
   2), points (S, n), and the dual variables, rooms, slacks and surpluses of the chosen rows (S, 4,
   k); the last two are starts and answers. `sizes`: S, m, n, k, iterations. */
int lmd_interior(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    const float *rows = arrays[0], *numbers = arrays[2];
    const long *places = arrays[1];
    double *points = arrays[3], *inner = arrays[4];
    const long sets = sizes[0], m = sizes[1], n = sizes[2], count = sizes[3];
    const long ld = (n + TOGETHER - 1) / TOGETHER * TOGETHER, size = count + TOGETHER;
    const long doubles = size * (ld + 11) + ld * (n + 2);
    double *memory = calloc((size_t)(threads * doubles), sizeof(double));
    if (!memory) return NO_MEMORY;
    int arrived = 0;
    (void)reals, (void)report;
    Meeting meeting = {0};
#pragma omp parallel num_threads(threads)
    {
        Problem p = {.n = n, .ld = ld, .count = count, .meeting = &meeting};
        p.used = memory + omp_get_thread_num() * doubles;
        p.weight = p.used + size * ld, p.shift = p.weight + size, p.missing = p.shift + size;
        p.ahead = around(p.missing + size, count), p.by = around(p.missing + 5 * size, count);
        p.base = p.missing + 9 * size, p.move = p.base + ld, p.matrix = p.move + ld;
#pragma omp for schedule(dynamic) nowait
        for (long s = 0; s < sets; s++) {
            p.point = points + s * n, p.now = around(inner + s * 4 * count, count);
            for (long i = 0; i < count; i++) {
                const float *row = rows + (s * m + places[s * count + i]) * n;
                for (long j = 0; j < n; j++) p.used[i * ld + j] = row[j];
            }
            for (long k = 0; k < sizes[4] && !watch(&meeting, count * n); k++)
                iterate(&p, numbers[2 * k], numbers[2 * k + 1]);
        }
        watch_others(&meeting, &arrived);
    }
    free(memory);
    return meeting.failed;
}
