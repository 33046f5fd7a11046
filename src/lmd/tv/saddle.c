/* Whole solves of total variation inpainting by PDHG with over-relaxation, with given numbers or constant ones:
   iterations, gaps and the decision to stop, in one call. lmd.solvers.classical.pdhg has the formulas.

   Images (B, C, H, W) and dual fields (B, C, 2, H, W) are contiguous, of float or double numbers. Planes go through the
   iterations on their own, up to the next look at the gap, several iterations in each pass through the memory; threads
   share planes, or instances where there are many. No number depends on how many threads there are. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shared.h"
#include "threads.h"

#define INLINE static inline __attribute__((always_inline))

enum { DEPTH = 8, LANES = 16, SUMS = 4, COLUMNS = 6, SHORTEST = 12, BALANCE = 25, TRUSTED = 400, LAST = 12800 };
#define ROUNDED 3e-4 /* relative gaps below this are left to double precision */

/* Of one iteration: steps, relaxation, and how far a kept pixel is drawn to its data. */
typedef struct {
    double tau, sigma, relaxation, pull;
} Numbers;

/* One instance: its arrays, what is asked for, and where it stands. */
typedef struct {
    const void *y, *mask, *low, *high, *x, *p;
    void *x_out, *p_out;
    const double *numbers; /* factors of tau and of tau sigma, and relaxations (learned, 3) */
    long channels, masks, height, width, stride, learned, limit;
    int isotropic;
    double bound, scale, squared_norm, tau, relaxation, tolerance, extent, value, gap, mark;
    long iteration, mark_at, next_look;
    int status;
    Meeting *meeting; /* where the solves of a batch tell each other to stop */
} Job;

static Numbers numbers_of(const Job *job, long k)
{
    const double *own = k < job->learned ? job->numbers + 3 * k : NULL;
    Numbers n;
    n.tau = own ? job->tau * own[0] : job->tau;
    n.sigma = (own ? own[1] : 1) / (n.tau * job->squared_norm);
    n.relaxation = own ? own[2] : job->relaxation;
    n.pull = 2 * job->scale * n.tau / (1 + 2 * job->scale * n.tau);
    return n;
}

static int due(long k)
{
    long n = k / BALANCE;
    return k > 0 && k % BALANCE == 0 && k <= LAST && (n & (n - 1)) == 0;
}

/* Up to which iteration planes go before they meet again: the answer is one iteration ahead of what was made. */
static long meeting(const Job *job)
{
    long k = job->iteration, until = job->limit - 1 < job->next_look - 1 ? job->limit - 1 : job->next_look - 1;
    long n = BALANCE;
    while (n <= k) n *= 2;
    return n <= LAST && n < until ? n : until;
}

/* F(x) and a bound on F(x) - min F, from the sums: docs/guarantees.md, Theorem 3b. */
static void certify(Job *job, const double *sums)
{
    const double count = (double)(job->channels * job->height * job->width), eps = 2.220446049250313e-16;
    const double bound = job->bound, s = job->scale, extent = job->extent;
    double gap = sums[1] + (sums[3] > 0 ? sums[3] : 0);
    job->value = s * sums[2] + bound * sums[0];
    gap += eps * (32 * bound * sums[0] + count * extent * (600 * bound + 128 * s * extent));
    job->gap = job->value == 0 ? 0 : gap + (3 * count + 8) * eps * (job->value + gap); /* no value is below 0 */
}

/* After a look: whether that was it. */
static void decide(Job *job)
{
    long k = job->iteration + 1;
    if (job->gap < 0.9 * job->mark) job->mark = job->gap, job->mark_at = k;
    job->next_look = k + (k / 9 > SHORTEST ? k / 9 : SHORTEST);
    if (job->gap <= job->tolerance * (job->value - job->gap))
        job->status = REACHED;
    else if (k >= 4 * job->mark_at && k >= 400)
        job->status = STUCK;
    else if (k >= job->limit)
        job->status = FINISHED;
}

#define IO float
#define REAL float
#define SQRT sqrtf
#define NAME(f) f##_float
#include "saddle.h"
#undef REAL
#undef SQRT
#undef NAME
#define REAL double
#define SQRT sqrt
#define NAME(f) f##_mixed
#include "saddle.h"
#undef IO
#undef NAME
#define IO double
#define NAME(f) f##_double
#include "saddle.h"

/* One instance. Float numbers go on in double precision where their rounding hides what is left of the gap. */
static int solve(Job *job, int doubles, int threads)
{
    const double tolerance = job->tolerance;
    if (doubles) return solve_double(job, threads);
    if (tolerance >= 0 && tolerance < ROUNDED) job->tolerance = ROUNDED;
    if (!solve_float(job, threads)) return 0;
    const int done = job->status == FINISHED || (job->status == REACHED && tolerance >= ROUNDED);
    if (done || __atomic_load_n(&job->meeting->failed, __ATOMIC_RELAXED) || tolerance < 0 || job->iteration + 1 >= job->limit) return 1;
    job->x = job->x_out, job->p = job->p_out, job->tolerance = tolerance;
    job->status = GOING, job->mark = INFINITY, job->mark_at = job->iteration;
    return solve_mixed(job, threads);
}

/* A batch of solves. report (B, COLUMNS): tau to begin with; in the end tau, iterations, status, F(x), its gap, 0. */
int lmd_saddle(const void *y, const void *mask, const void *low, const void *high, const void *x, const void *p,
               const double *bound, const double *numbers, double scale, double squared_norm, double relaxation,
               double tolerance, long batch, long channels, long masks, long height, long width, long learned, long limit,
               long first_look, long isotropic, long doubles, int threads, void *x_out, void *p_out, double *report)
{
    const long number = doubles ? 8 : 4, plane = number * height * width, size = channels * plane;
    const int apart = batch >= threads;
    int arrived = 0;
    Meeting meeting = {0};
#pragma omp parallel num_threads(threads) if (apart && threads > 1)
    {
#pragma omp for schedule(dynamic) nowait
        for (long n = 0; n < batch; n++) {
            if (__atomic_load_n(&meeting.failed, __ATOMIC_RELAXED)) continue;
            Job job = {0};
            double *told = report + COLUMNS * n;
            job.y = (const char *)y + n * size, job.mask = (const char *)mask + n * masks * plane;
            job.low = (const char *)low + n * channels * number, job.high = (const char *)high + n * channels * number;
            job.x = (const char *)x + n * size, job.p = p ? (const char *)p + 2 * n * size : NULL;
            job.x_out = (char *)x_out + n * size, job.p_out = (char *)p_out + 2 * n * size;
            job.numbers = numbers, job.learned = learned, job.limit = limit;
            job.channels = channels, job.masks = masks, job.height = height, job.width = width;
            job.stride = (width + LANES - 1) / LANES * LANES, job.isotropic = (int)isotropic;
            job.bound = bound[n], job.scale = scale, job.squared_norm = squared_norm, job.tau = told[0];
            job.meeting = &meeting;
            job.relaxation = relaxation, job.tolerance = tolerance, job.mark = INFINITY;
            job.next_look = tolerance < 0 ? limit : learned > first_look ? learned : first_look;
            for (long c = 0; c < channels; c++) {
                double from = doubles ? ((const double *)job.low)[c] : (double)((const float *)job.low)[c];
                double to = doubles ? ((const double *)job.high)[c] : (double)((const float *)job.high)[c];
                if (to - from > job.extent) job.extent = to - from;
            }
            if (!solve(&job, (int)doubles, apart ? 1 : threads)) fail_with(&meeting, NO_MEMORY);
            told[0] = job.tau, told[1] = (double)job.iteration + 1, told[2] = job.status, told[3] = job.value, told[4] = job.gap;
        }
        watch_others(&meeting, &arrived);
    }
    return meeting.failed;
}
