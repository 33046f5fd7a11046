/* Total variation inpainting by relaxed PDHG: iterations, gap evaluations and stopping.
 * lmd.solvers.classical.pdhg has the formulas.
 *
 * Images (B, C, H, W) and dual fields (B, C, 2, H, W) are contiguous, of float or double numbers.
 * Each plane iterates on its own until the next meeting, with several iterations in one pass
 * through the memory. Threads share planes, or instances if there are many. The answer does not
 * depend on the number of threads. */

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "pace.h"

enum {
    DEPTH = 8,    /* iterations of one pass through the memory */
    LANES = 16,   /* numbers of a vector, at most */
    SUMS = 4,     /* numbers that a plane adds to the gap */
    SHORTEST = 12 /* iterations between two gap evaluations, at least */
};
/* Relative gaps below this need double precision. */
#define ROUNDED 3e-4

/* One instance: its arrays, its options, and the state of its solve. */
typedef struct {
    const void *y, *mask, *x, *p; /* x, p: where to start; p can be NULL */
    void *x_out, *p_out;
    const double *low, *high; /* of each channel */
    long channels, masks, height, width, stride, limit;
    long interval, last, trusted; /* steps are compared after 1, 2, 4, ... times `interval`
                                     iterations, up to `last`, and balanced from `trusted` on */
    int isotropic, doubles;
    double bound, scale, squared_norm, tau, relaxation, tolerance, extent;
    Pace pace;
    Meeting *meeting;
} Job;

static int is_due(const Job *job, long k) {
    const long n = k / job->interval;
    return k > 0 && k % job->interval == 0 && k <= job->last && (n & (n - 1)) == 0;
}

/* The iteration at which planes meet next. The answer is one iteration ahead of the iterations in
 * place. */
static long next_meeting(const Job *job) {
    const long until = least(job->limit, job->pace.next_look) - 1;
    long n = job->interval;
    while (n <= job->pace.iteration) n *= 2;
    return n <= job->last && n < until ? n : until;
}

/* F(x) and a bound on F(x) - min F, from the sums: docs/guarantees.md, Theorem 7. */
static void certify(Job *job, const double *sums) {
    const double count = (double)(job->channels * job->height * job->width), eps = DBL_EPSILON;
    const double bound = job->bound, s = job->scale, extent = job->extent;
    const double value = s * sums[2] + bound * sums[0];
    double gap = sums[1] + (sums[3] > 0 ? sums[3] : 0);
    gap += eps * (32 * bound * sums[0] + count * extent * (600 * bound + 128 * s * extent));
    gap += (3 * count + 8) * eps * (value + gap);
    job->pace.value = value, job->pace.gap = value == 0 ? 0 : gap; /* no value is below 0 */
}

/* Balances the steps, from x = ||x - x_then||^2 and p = ||p - p_then||^2: tau moves half of the way
 * to its wanted value, in logarithms. */
static void balance(Job *job, double x, double p) {
    const double wanted = sqrt(x / (p * job->squared_norm)) / job->tau;
    if (job->pace.iteration < job->trusted || !(x > 0) || !isfinite(wanted)) return;
    job->tau *= sqrt(fmin(fmax(wanted, 1.0 / 16), 16));
}

/* Entry k of an array of an instance. */
INLINE double get(const Job *job, const void *array, long k) {
    return job->doubles ? ((const double *)array)[k] : (double)((const float *)array)[k];
}

INLINE void put(const Job *job, void *array, long k, double value) {
    if (job->doubles) ((double *)array)[k] = value;
    else ((float *)array)[k] = (float)value;
}

/* The offset of the mask of a channel. */
static long mask_of(const Job *job, long c) {
    return job->masks > 1 ? c * job->height * job->width : 0;
}

/* A row of an array from entry `at` on. */
static void get_row(const Job *job, const void *array, long at, double *row) {
    for (long j = 0; j < job->width; j++) row[j] = get(job, array, at + j);
}

/* Projects a row of p onto the bound, since p was rounded when it was stored. */
static void confine(const Job *job, double *restrict down, double *restrict right) {
    const double bound = job->bound;
    for (long j = 0; j < job->width; j++) {
        double v = down[j], w = right[j], square = v * v + w * w,
               factor = square > bound * bound ? bound / sqrt(square) : 1;
        down[j] = job->isotropic ? factor * v : v > bound ? bound : v < -bound ? -bound : v;
        right[j] = job->isotropic ? factor * w : w > bound ? bound : w < -bound ? -bound : w;
    }
}

/* Adds the sums of one row: length, slack, misfit and residual. `line` holds x, the next row of x,
 * p along the columns in the previous row, p of this row, y and the mask; x[width] is x[width - 1]
 * and right[-1] is 0. */
INLINE void sums_of(const Job *job, long c, double *const *line, const int isotropic, double *out) {
    const double *restrict x = line[0], *restrict next = line[1], *restrict above = line[2];
    const double *restrict down = line[3], *restrict right = line[4], *restrict y = line[5];
    const double *restrict known = line[6], low = job->low[c], high = job->high[c];
    const double bound = job->bound, s = job->scale, half = 0.5 / s;
    double length = 0, slack = 0, misfit = 0, residual = 0;
#pragma omp simd reduction(+ : length, slack, misfit, residual)
    for (long j = 0; j < job->width; j++) {
        double along = next[j] - x[j], across = x[j + 1] - x[j], v = down[j], w = right[j];
        if (isotropic) {
            double size = sqrt(along * along + across * across),
                   rest = bound * size - (along * v + across * w);
            length += size, slack += rest > 0 ? rest : 0;
        } else {
            length += fabs(along) + fabs(across);
            slack += fabs(along) * (along < 0 ? bound + v : bound - v) +
                fabs(across) * (across < 0 ? bound + w : bound - w);
        }
        double pushed = (v - above[j]) + (w - right[j - 1]), off = x[j] - y[j],
               free = half * pushed; /* pushed: -K'p */
        double nearest = free < low - y[j] ? low - y[j] : free;
        nearest = nearest > high - y[j] ? high - y[j] : nearest;
        double past = off - nearest, kept = past * (2 * s * (nearest - free) + s * past);
        double lost = pushed * ((pushed < 0 ? low : high) - x[j]);
        residual += known[j] > 0 ? kept : lost;
        misfit += known[j] > 0 ? off * off : 0;
    }
    out[0] += length, out[1] += slack, out[2] += misfit, out[3] += residual;
}

/* Adds the sums of one plane of the stored answer: docs/guarantees.md, Theorem 7. */
static void add_sums(const Job *job, long c, double *sums) {
    const long height = job->height, width = job->width, size = height * width, space = width + 16;
    const long x = c * size, p = 2 * x, mask = mask_of(job, c);
    double *memory = calloc((size_t)(7 * space + 8), sizeof(double)), *line[7];
    if (!memory) {
        fail_with(job->meeting, NO_MEMORY);
        return;
    }
    for (int a = 0; a < 7; a++)
        line[a] = memory + 8 + a * space; /* x, next, above, down, right, y, known */
    get_row(job, job->x_out, x, line[0]);
    for (long i = 0; i < height && !watch(job->meeting, width); i++) {
        const long at = i * width;
        get_row(job, job->x_out, x + (i + 1 < height ? at + width : at), line[1]);
        get_row(job, job->p_out, p + at, line[3]);
        get_row(job, job->p_out, p + size + at, line[4]);
        confine(job, line[3], line[4]);
        get_row(job, job->y, x + at, line[5]);
        get_row(job, job->mask, mask + at, line[6]);
        line[0][width] = line[0][width - 1];
        if (job->isotropic) sums_of(job, c, line, 1, sums);
        else sums_of(job, c, line, 0, sums);
        double *x_row = line[0], *above = line[2];
        line[0] = line[1], line[1] = x_row, line[2] = line[3], line[3] = above;
    }
    free(memory);
}

#define REAL float
#define SQRT sqrtf
#define NAME(f) f##_float
#include "saddle.h"
#undef REAL
#undef SQRT
#undef NAME
#define REAL double
#define SQRT sqrt
#define NAME(f) f##_double
#include "saddle.h"

/* Solves one instance. Float solves continue in double precision if rounding hides the gap. */
static void solve(Job *job, int threads) {
    const double tolerance = job->tolerance;
    Pace *pace = &job->pace;
    if (job->doubles) {
        solve_double(job, threads);
        return;
    }
    job->tolerance = fmax(tolerance, ROUNDED);
    solve_float(job, threads);
    if (pace->status == FINISHED || (pace->status == REACHED && tolerance >= ROUNDED)) return;
    if (has_failed(job->meeting) || pace->iteration + 1 >= job->limit) return;
    job->x = job->x_out, job->p = job->p_out, job->tolerance = tolerance;
    pace->status = GOING, pace->mark = INFINITY, pace->mark_at = pace->iteration;
    solve_double(job, threads);
}

/* The arguments of lmd_saddle. */
typedef struct {
    void *const *arrays;
    const double *reals;
    const long *sizes;
    double *report;
    int threads; /* that share an instance */
    Meeting meeting;
} Batch;

static void solve_instance(void *batch_of, long n) {
    Batch *given = batch_of;
    const long *sizes = given->sizes, batch = sizes[0], channels = sizes[1];
    const long plane = (sizes[7] ? 8 : 4) * sizes[3] * sizes[4], bytes = channels * plane;
    const double *reals = given->reals, *bounds = reals + 4, *taus = bounds + batch;
    const double *low = taus + batch;
    char *const *arrays = (char *const *)given->arrays;
    Job job = {.bound = bounds[n], .tau = taus[n], .meeting = &given->meeting};
    job.y = arrays[0] + n * bytes, job.mask = arrays[1] + n * sizes[2] * plane;
    job.x = arrays[2] + n * bytes, job.x_out = arrays[3] + n * bytes;
    job.p_out = arrays[4] + 2 * n * bytes;
    job.low = low + n * channels, job.high = low + (batch + n) * channels;
    job.channels = channels, job.masks = sizes[2], job.height = sizes[3], job.width = sizes[4];
    job.stride = (sizes[4] + LANES - 1) / LANES * LANES, job.limit = sizes[5];
    job.isotropic = (int)sizes[6], job.doubles = (int)sizes[7];
    job.interval = sizes[8], job.last = sizes[9], job.trusted = sizes[10];
    job.scale = reals[0], job.squared_norm = reals[1], job.relaxation = reals[2];
    job.tolerance = reals[3];
    job.pace = (Pace){.mark = INFINITY, .next_look = SHORTEST};
    for (long c = 0; c < channels; c++) job.extent = fmax(job.extent, job.high[c] - job.low[c]);
    solve(&job, given->threads);
    double *own = given->report + REPORT * n;
    own[0] = (double)job.pace.iteration + 1, own[1] = job.pace.status;
    own[2] = job.pace.value, own[3] = job.pace.gap;
}

/* Solves a batch to a tolerance. `arrays`: y, mask (B, 1 or C, H, W), x to start from, and the
 * answers x and p. `reals`: scale, squared norm, relaxation, tolerance, then bounds and tau of each
 * instance, then low and high (B, C). `sizes`: B, C, channels of masks, H, W, limit, isotropic,
 * doubles; interval, last and trusted of a Job. */
int lmd_saddle(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    const int apart = sizes[0] >= threads;
    Batch given = {arrays, reals, sizes, report, apart ? 1 : threads, {0}};
    solve_each(&given.meeting, sizes[0], apart ? threads : 1, solve_instance, &given);
    return given.meeting.failed;
}
