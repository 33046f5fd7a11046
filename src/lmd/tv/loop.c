/* Whole solves of total variation denoising by fast gradient projection, with learned or classical
   steps: iterations, gap evaluations and stopping, in one call. lmd.solvers.classical.fgp and
   lmd.solvers.learned.primal_dual have the formulas.

   Images (B, C, H, W) and dual fields (B, C, 2, H, W) are contiguous, of float or double numbers.
   Rows are padded to whole vectors in working memory. A block of iterations goes through the rows
   in place, each iteration one row behind the previous one, so that the memory is read once for the
   whole block. Threads share an image by runs of rows. They keep copies of the rows next to their
   own, and compute these again as far as a block needs them. All threads compute with the same
   operations, so that the answer does not depend on the number of threads.

   Learned schedules are chosen here too: by the tolerance and the roughness of y, and for a given
   dual point also by the gap that it proves. The roughness sets the numbers of a schedule. Some
   schedules begin on coarser grids: y averaged over 2 x 2 pixels, with half the bound, has the same
   minimiser among images that are constant on these squares. The finer grid begins at its dual
   field, doubled and interpolated inside the squares. lmd.problems.tv has the formulas. */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "pace.h"
#include "regions.h"

enum {
    DEPTH = 16,      /* iterations of a block, at most */
    DEEP = 12,       /* iterations of a block on planes larger than LARGE */
    USUAL = 8,       /* iterations of a block on other planes */
    FIRST_LOOK = 8,  /* iterations before the first gap evaluation, if none are learned */
    SHORTEST = 8,    /* iterations between two gap evaluations, at least */
    SUMS = 4,        /* numbers that a row adds to the gap */
    FAR = 3,         /* times the largest roughness of the schedules: from there FGP is faster */
    LARGE = 1 << 19, /* pixels of a plane that does not stay in the cache */
    LEVELS = 16,     /* coarser grids, at most */
    SMALLEST = 16,   /* shorter side of an image that is made coarser, at least */
    STRIP = 128,     /* columns of coupled channels that are processed together */
    LOOK = 8,        /* cost of a gap evaluation, in iterations */
    WORTH = 13,      /* cost of averaging over regions and evaluating that gap, in iterations */
    ROOM = 144       /* iterations of a schedule in a continuation, at most */
};
enum { EXACT, FLAT }; /* gap evaluations of x(p), and of x averaged over regions */

/* Least tolerance of float solves with lengths; double precision continues from there. */
#define ROUNDED 5e-5
/* The same for the anisotropic form without coupling, in which averages over regions are exact. */
#define LEAST 5e-7
/* Answers to tolerances below this are averaged over regions in the end. */
#define ROOMY 5e-4
/* Dual points that prove a larger relative gap are not used as a start. */
#define NEAR_GAP 0.5
/* Gaps at the horizon on large planes, relative to the gaps on small ones. */
#define GROWN 1.6
/* Typical values, with which Pace.flatter begins: in general, and for lengths of gradients, with
 * which fewer pixels are flat. */
#define FLATTER 8
#define LESS_FLAT 25

/* The learned schedules: `count` schedules of step sizes and momenta, the cheapest first, each for
   `nodes` roughnesses in geometric progression. */
typedef struct {
    const double *numbers; /* (2, nodes, horizon) of each schedule, one after the other */
    const double *reach;   /* logarithms of the gaps that they reach at the nodes and halfway
                              between (count, FORMS, 2 nodes - 1): anisotropic, isotropic, and both
                              with coupled channels */
    const long *horizons,
        *coarse; /* how many iterations, and whether they begin on coarser grids (count) */
    long count, nodes;
    double lowest, ratio;
} Schedules;

/* One instance: its arrays, and the options of its solve. */
typedef struct {
    const void *y, *p, *coarse; /* coarse: p of the coarser grid, in place of p */
    void *p_out, *x_out;
    const double *numbers; /* step sizes and momenta (2, learned) of the first iterations */
    const Schedules *schedules;
    long learned, limit, channels, height, width, depth;
    long restart;           /* iterations of FGP between two checks of its momentum */
    int isotropic, coupled; /* forms of total variation */
    int doubles;            /* whether arrays are of double numbers */
    int once;               /* few iterations from p = 0 and their gap, in one pass */
    double bound, inverse, scale, step, norm, roundings;
    double tolerance, asked; /* the tolerance in this precision, and the final tolerance */
    double known;            /* the relative gap that p proves */
    Meeting *meeting;
    Pace pace;
} Job;

/* Data that the threads of a solve share. */
typedef struct {
    double *uphill, *sums; /* of each row; two copies, so that no thread overwrites numbers that
                              another thread still reads, and three copies of sums */
    Meeting meeting;
    int tickets, members; /* threads that came in time; their number, once it is known */
    Job levels[LEVELS];   /* the coarser grids, finest first */
    long coarser, chosen; /* the number of coarser grids; the schedule */
    double rough;         /* the roughness of y */
    void *memory;         /* memory of the coarser grids and of the numbers of all grids */
    Regions regions;
    void *flat; /* memory of the regions, or NULL */
} Shared;

static void use_large_pages(void *memory, long bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 1 << 21;
    uintptr_t from = ((uintptr_t)memory + page - 1) / page * page,
              to = (uintptr_t)memory + (uintptr_t)bytes;
    if (memory && to >= from + 4 * page)
        madvise((void *)from, (to - from) / page * page, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

static double within_double(double x, double low, double high) {
    x = x > high ? high : x; /* a NaN stays one */
    return x < low ? low : x;
}

enum { CLOSED = 1 << 20 }; /* a thread with this ticket or a higher one is too late */

/* Only threads that come within some microseconds take part, so that the others do not wait on a
   busy machine. Returns the index of this thread among them, or -1. */
static int roll_call(Shared *shared, int threads) {
    if (omp_get_thread_num()) {
        int place = __atomic_fetch_add(&shared->tickets, 1, __ATOMIC_ACQ_REL);
        if (place >= CLOSED) return -1;
        for (long spins = 0; !__atomic_load_n(&shared->members, __ATOMIC_ACQUIRE); spins++)
            rest(spins);
        return place + 1;
    }
    for (long spins = 0;
         spins < PATIENCE && __atomic_load_n(&shared->tickets, __ATOMIC_ACQUIRE) < threads - 1;
         spins++)
        rest(0);
    int others = __atomic_exchange_n(&shared->tickets, CLOSED, __ATOMIC_ACQ_REL);
    __atomic_store_n(&shared->members, 1 + others, __ATOMIC_RELEASE);
    return 0;
}

/* The number of threads that get rows; a coarser grid may have too few rows for all. */
static long runs_of(long rows, long threads) { return most(1, least(threads, rows / (2 * DEPTH))); }

/* The first row of run n of `runs` through all planes. If a plane is cut, both parts have more rows
 * than a block needs. */
static long cut_at(long all, long height, long n, long runs) {
    long at = all * n / runs, into = at % height;
    if (into < 2 * DEPTH) return at - into;
    return height - into < 2 * DEPTH ? at - into + height : at;
}

/* Iterations of the next block: to the end of the schedule, the next gap, check or limit. */
static long plan(const Job *job, Pace *pace) {
    const long left = least(least(job->limit, pace->next_look) - pace->iteration, job->depth);
    const long done = pace->iteration - pace->learned;
    return least(left, done < 0 ? -done : job->restart - done % job->restart);
}

static double total_of(const double *rows, long count) {
    double sum = 0;
    for (long i = 0; i < count; i++) sum += rows[i];
    return sum;
}

/* F(x) and a bound on F(x) - min F, from the sums of all rows: docs/guarantees.md, Theorem 7. */
static void certify(const Job *job, const double *of_rows, Pace *pace) {
    const double eps = DBL_EPSILON, rows = (double)(job->channels * job->height),
                 pixels = rows * (double)job->width;
    double sums[SUMS] = {0};
    for (long i = 0; i < job->channels * job->height; i++)
        for (int c = 0; c < SUMS; c++) sums[c] += of_rows[SUMS * i + c];
    const double tv = job->bound * sums[0],
                 longest = job->bound * sqrt(2 * pixels);                  /* of all dual points */
    const double slack = tv > sums[1] ? tv - sums[1] : 0 * (tv - sums[1]); /* a NaN stays one */
    const double value = job->scale * sums[3] + tv,
                 off = job->roundings * eps * (sqrt(sums[3]) + job->norm * job->inverse * longest);
    double gap = slack + job->scale * sums[2];
    const double rounding =
        32 * eps * tv + 2 * sqrt(job->scale * gap) * off + job->scale * off * off;
    gap += rounding + (3 * pixels + 8) * eps * (fabs(value) + gap);
    pace->value = value;
    pace->gap = value == 0 ? 0 : gap; /* no value is below 0 */
}

/* After a block and a gap evaluation, if it is due: restarts FGP if the momentum leads downhill,
 * and decides whether to go on. All threads take the same decisions. */
static void decide(const Job *job, const Shared *shared, Pace *pace) {
    const long k = pace->iteration, rows = job->channels * job->height;
    const long side = pace->blocks++ % 2 * rows;
    if (shared->meeting.stop) {
        pace->status = FINISHED;
        return;
    }
    if (restarts(pace, job->restart)) {
        const long count = job->coupled ? job->height : rows; /* coupled planes have one sum */
        const double uphill = total_of(shared->uphill + side, count);
        if (uphill < 0) pace->m = 1;
    }
    if (looks(pace, job->tolerance, job->limit))
        judge(pace, k, k / 10 > SHORTEST ? k / 10 : least(k + 1, SHORTEST), job->tolerance);
    if (pace->status == GOING && k >= job->limit) pace->status = FINISHED;
}

/* The gap relative to the lower bound on the minimum; infinite if this bound is not positive. */
static double relative(const Pace *pace) {
    return pace->gap < pace->value ? pace->gap / (pace->value - pace->gap) : INFINITY;
}

/* Whether averaging x over regions pays: it may reach the tolerance although x does not, and costs
   less than the remaining iterations. Averaging costs as much as WORTH iterations; gaps fall at
   least like 1 / k^2. If x has reached a small tolerance after many iterations, averaging takes
   relatively little time and removes most of the remaining gap. */
static int may_be_flat(const Job *job, const Pace *pace) {
    const double gap = relative(pace), done = (double)pace->iteration,
                 left = done * (sqrt(gap / job->tolerance) - 1);
    if (!job->x_out || !(gap > 0)) return 0;
    if (pace->status == REACHED)
        return done >= 10 * WORTH && job->tolerance < ROOMY && job->tolerance <= job->asked;
    return pace->flatter * gap * sqrt(gap) <= job->tolerance &&
        (left >= WORTH || pace->status != GOING);
}

/* Evaluates the gap of x averaged over regions. Returns whether this x is the answer. */
static int decide_flat(const Job *job, const Shared *shared, Pace *pace) {
    Pace flat = *pace;
    certify(job, shared->sums + SUMS * 2 * job->channels * job->height, &flat);
    const int reached = flat.gap <= job->tolerance * (flat.value - flat.gap);
    const double gap = relative(pace);
    pace->flatter = relative(&flat) / (gap * sqrt(gap));
    if (pace->status == GOING ? !reached : !(flat.gap < pace->gap)) return 0;
    pace->value = flat.value, pace->gap = flat.gap;
    if (reached) pace->status = REACHED;
    return 1;
}

/* Allocates the regions of all planes, unless there are more pixels than labels. */
static void make_room(const Job *job, Shared *shared) {
    const size_t pixels = (size_t)(job->channels * job->height * job->width);
    Regions *all = &shared->regions;
    if (shared->flat || pixels > INT32_MAX) return;
    shared->flat = malloc(pixels * (3 * sizeof(int32_t) + 2 * sizeof(double)));
    if (!shared->flat) {
        fail_with(&shared->meeting, NO_MEMORY);
        return;
    }
    all->sum = shared->flat, all->gain = all->sum + pixels,
    all->label = (int32_t *)(all->gain + pixels);
    all->parent = all->label + pixels, all->count = all->parent + pixels;
}

/* The number of iterations of a block: more if a plane is too large for the cache. */
static long depth_for(long height, long width) { return height * width > LARGE ? DEEP : USUAL; }

/* The capacity in rows, a power of 2, of memory that is reused as soon as rows are finished: it has
   room for the iterations of a block and a gap evaluation. */
static long room_for(long iterations) { return iterations + 5 > 16 ? 32 : 16; }

/* The roughness s mean |Ky| / b, on which learned numbers depend. Coupled channels share the bound,
 * so that there is less of it for each. */
static double roughness_of(const Job *job, double length) {
    const double share = job->coupled ? pow((double)job->channels, job->isotropic ? 0.6 : 0.4) : 1;
    return share * job->scale * length /
        ((double)(job->channels * job->height * job->width) * job->bound);
}

/* The place of a roughness between the nodes: the node below, and the share of the next one. */
static long node_of(const Schedules *all, double rough, double *share) {
    double place = within_double(log((rough > 1e-6 ? rough : 1e-6) / all->lowest) / log(all->ratio),
        0, (double)(all->nodes - 1));
    long below = least((long)place, all->nodes - 2);
    *share = place - (double)below;
    return below;
}

/* The logarithm of the gap that schedule n reaches at a roughness. */
static double reach_of(const Schedules *all, const Job *job, long n, double rough) {
    double share;
    long place = 2 * node_of(all, rough, &share);
    if (share < 0.5) share *= 2;
    else place++, share = 2 * share - 1;
    const double *gaps =
        all->reach + (FORMS * n + 2 * job->coupled + job->isotropic) * (2 * all->nodes - 1) + place;
    return gaps[0] + share * (gaps[1] - gaps[0]);
}

/* The first schedule that reaches the tolerance at this roughness, or the one with the smallest
   gap; gaps are larger on large planes. -1 is FGP itself: it is faster if y is far
   rougher than the training data of all schedules, unless a few iterations are enough. */
static long choose(const Schedules *all, const Job *job, double rough, int coarsens) {
    const double goal =
        log(job->height * job->width > LARGE ? job->tolerance / GROWN : job->tolerance);
    double nearest = INFINITY;
    long chosen = 0;
    for (long n = 0; n < all->count && nearest > goal; n++) {
        const double gap = reach_of(all, job, n, rough);
        if (gap >= nearest || (all->coarse[n] && !coarsens)) continue;
        chosen = n, nearest = gap;
    }
    const double roughest = all->lowest * pow(all->ratio, (double)(all->nodes - 1));
    return all->count > 1 && rough > FAR * roughest && all->horizons[chosen] > SHORTEST ? -1
                                                                                        : chosen;
}

/* Writes the numbers of a schedule at a roughness to `numbers`. */
static void interpolate(const Schedules *all, long chosen, double rough, double *numbers) {
    const double *from = all->numbers;
    const long horizon = all->horizons[chosen];
    double share;
    long below = node_of(all, rough, &share);
    for (long n = 0; n < chosen; n++) from += 2 * all->nodes * all->horizons[n];
    for (long a = 0; a < 2; a++)
        for (long k = 0; k < horizon; k++) {
            const double *low = from + (a * all->nodes + below) * horizon + k;
            numbers[a * horizon + k] = low[0] + share * (low[horizon] - low[0]);
        }
}

/* Sets up coarser grids while they are large enough, with memory for them and for the numbers of
 * all grids. Returns 0 if there is not enough memory. */
static int plan_levels(Job *job, Shared *shared, long chosen, long size) {
    const Schedules *all = job->schedules;
    const long horizon = all->horizons[chosen];
    long total = 2 * horizon * (LEVELS + 1) * (long)sizeof(double), height = job->height,
         width = job->width;
    shared->coarser = 0;
    while (all->coarse[chosen] && least(height, width) >= SMALLEST && shared->coarser < LEVELS) {
        Job *level = shared->levels + shared->coarser++;
        height = (height + 1) / 2, width = (width + 1) / 2;
        *level = *job;
        level->height = height, level->width = width, level->depth = depth_for(height, width);
        total += 3 * job->channels * height * width * size;
    }
    char *at = shared->memory = malloc((size_t)total);
    if (!at) return 0;
    for (long n = -1; n < shared->coarser; n++) {
        Job *level = n < 0 ? job : shared->levels + n;
        level->numbers = (double *)at, level->learned = horizon;
        at += 2 * horizon * (long)sizeof(double);
    }
    for (long n = 0; n < shared->coarser; n++) {
        Job *level = shared->levels + n, *finer = n ? level - 1 : job;
        const long bytes = level->channels * level->height * level->width * size;
        double tall = sin(M_PI_2 * (double)(level->height - 1) / (double)level->height);
        double wide = sin(M_PI_2 * (double)(level->width - 1) / (double)level->width);
        level->step = job->step * job->norm * job->norm / (4 * (tall * tall + wide * wide));
        level->bound = finer->bound / 2, level->limit = horizon, level->tolerance = -1;
        level->y = at, level->p_out = at + bytes, level->x_out = NULL;
        level->pace.next_look = horizon;
        finer->coarse = level->p_out;
        at += 3 * bytes;
    }
    if (shared->coarser) shared->levels[shared->coarser - 1].coarse = NULL;
    return 1;
}

/* The cost of a schedule in iterations: coarser grids add about a third of the work, and four
 * iterations to set up. */
static double cost_of(const Schedules *all, const Job *job, long chosen) {
    if (chosen < 0) return 1e9; /* unknown */
    const double own = (double)all->horizons[chosen];
    return all->coarse[chosen] && least(job->height, job->width) >= SMALLEST ? 4 + 1.38 * own : own;
}

/* The schedule to start from p with, given the cost of a start from 0; -1 if the latter is
   better. The gap falls by N^1.1 to N^1.7 in N iterations; it falls faster if y is rougher. */
static long choose_from(const Schedules *all, const Job *job, const Shared *shared, double cost) {
    const double power = within_double(1.1 + 0.2 * log(shared->rough / 0.15), 1.05, 1.7);
    const double needed = pow(job->known / job->tolerance, 1 / power);
    long chosen = -1;
    for (long n = 0; n < all->count; n++) {
        if (all->coarse[n]) continue;
        chosen = n;
        if ((double)all->horizons[n] >= needed) break;
    }
    return job->known <= NEAR_GAP && chosen >= 0 && (double)all->horizons[chosen] + LOOK < cost
        ? chosen
        : -1;
}

/* Chooses how to begin: with a schedule or with FGP (-1, also without memory); from p or from 0;
 * with coarser grids or in one pass. */
static void choose_plan(Job *job, Shared *shared, double rough, long size) {
    const Schedules *all = job->schedules;
    long chosen = choose(all, job, rough, least(job->height, job->width) >= SMALLEST);
    shared->rough = rough, shared->chosen = -1;
    if (job->p) {
        const long warm = choose_from(all, job, shared, cost_of(all, job, chosen));
        if (warm < 0) job->p = NULL;
        else chosen = warm;
    }
    if (chosen < 0) return;
    if (!plan_levels(job, shared, chosen, size)) {
        fail_with(&shared->meeting, NO_MEMORY);
        return;
    }
    shared->chosen = chosen;
    interpolate(all, chosen, rough, (double *)job->numbers);
    job->pace.next_look = job->learned;
    job->once = job->learned < least(DEPTH, job->limit + 1) && !all->coarse[chosen] && !job->p;
    if (job->once) job->depth = job->learned + 1;
}

/* After the end of a schedule, takes up a learned schedule again from the current point, with as
   many iterations as the gap requires: it gets as far as FGP in twice as many.
   Convergence is not proven, so FGP takes over for good if the schedule did not lower the gap by a
   fifth. FGP also takes over for tolerances below ROUNDED, where averages over regions matter: its
   dual points show the regions better. `room` has room for 2 ROOM numbers. */
static void go_on(const Job *job, const Shared *shared, Pace *pace, double *room) {
    const Schedules *all = job->schedules;
    const double gap = relative(pace);
    if (!all || all->count < 2 || job->asked < ROUNDED || pace->entry == 0) return;
    if (shared->rough > FAR * all->lowest * pow(all->ratio, (double)(all->nodes - 1))) return;
    const int falls = pace->gap <= 0.8 * pace->entry;
    pace->entry = falls ? pace->gap : 0;
    if (!falls) return;
    const double goal = fmax(job->tolerance, pow(job->tolerance / pace->flatter, 2.0 / 3)),
                 needed = 25 * pow(gap / goal, 0.75);
    long chosen = -1;
    for (long n = 0; n < all->count; n++) {
        if (all->coarse[n] || all->horizons[n] > ROOM) continue;
        chosen = n;
        if ((double)all->horizons[n] >= needed || reach_of(all, job, n, shared->rough) <= log(goal))
            break;
    }
    if (chosen < 0) return;
    interpolate(all, chosen, shared->rough, room);
    pace->numbers = room, pace->begun = pace->iteration;
    pace->learned = pace->next_look = pace->iteration + all->horizons[chosen];
}

#define REAL float
#define SQRT sqrtf
#define ABSOLUTE fabsf
#define NAME(f) f##_float
#include "loop.h"
#undef REAL
#undef SQRT
#undef ABSOLUTE
#undef NAME
#define REAL double
#define SQRT sqrt
#define ABSOLUTE fabs
#define NAME(f) f##_double
#include "loop.h"

typedef TeamOf_double AnyTeam; /* pointers and counts, with the same size for all types */

/* The part of one thread in the solve of one instance. */
static void solve_by(Job *job, Shared *shared, void *teams, int thread, int threads) {
    if (job->known <= job->asked) return; /* p is the answer */
    if (job->doubles) begin_double(job, shared, teams, thread, threads);
    else begin_float(job, shared, teams, thread, threads);
    meet(&shared->meeting, threads);
    if (job->pace.status != GOING) return;
    if (job->doubles) solve_double(job, shared, teams, thread, threads);
    else solve_float(job, shared, teams, thread, threads);
}

/* The job of instance 0, bounds and known gaps of all, and how many threads share an instance. */
typedef struct {
    const Job *all;
    const double *bounds, *known;
    double *report;
    int threads;
    Meeting meeting;
} Batch;

/* Solves instance n of a batch. */
static void solve_instance(void *given, long n) {
    Batch *batch = given;
    const Job *all = batch->all;
    const int threads = batch->threads;
    const long rows = all->channels * all->height,
               bytes = (all->doubles ? 8 : 4) * rows * all->width;
    double *sums = malloc((size_t)(rows * (3 * SUMS + 2)) * sizeof(double));
    AnyTeam *teams = malloc((size_t)threads * sizeof(AnyTeam));
    Shared shared = {.sums = sums, .meeting = {.ended = &batch->meeting.failed}};
    if (sums) shared.uphill = sums + 3 * SUMS * rows;
    Job job = *all;
    job.y = (const char *)all->y + n * bytes, job.x_out = (char *)all->x_out + n * bytes;
    job.p_out = (char *)all->p_out + 2 * n * bytes;
    if (all->p) job.p = (const char *)all->p + 2 * n * bytes;
    job.bound = batch->bounds[n], job.known = batch->known[n], job.meeting = &shared.meeting;
    if (job.known <= job.asked) job.pace.status = REACHED;
    if (!sums || !teams) fail_with(&shared.meeting, NO_MEMORY);
    else if (threads == 1) solve_by(&job, &shared, teams, 0, 1);
    else
#pragma omp parallel num_threads(threads)
    {
        const int place = roll_call(&shared, omp_get_num_threads());
        if (place >= 0) solve_by(&job, &shared, teams, place, shared.members);
    }
    const Pace *pace = &job.pace;
    const int rounded = pace->status == REACHED && pace->iteration &&
        pace->gap > job.asked * (pace->value - pace->gap);
    double *report = batch->report + REPORT * n;
    report[0] = (double)pace->iteration, report[1] = rounded ? STUCK : pace->status;
    report[2] = pace->value, report[3] = pace->gap;
    free(sums), free(teams), free(shared.memory), free(shared.flat);
    fail_with(&batch->meeting, shared.meeting.failed);
}

/* Solves a batch to a tolerance. Threads share the instances, or the rows of each instance if there
 * are few. `arrays`: y, dual points (used as starts if better than 0) or NULL, the four arrays of
 * Schedules, and the answers p and x. `reals`: scale, step, tolerance, norm, roundings, lowest
 * and ratio of Schedules, then the bound of each instance, then the relative gap that its dual
 * point proves. `sizes`: batch, channels, height, width, limit, isotropic, coupled (2 to
 * MAX_COUPLED channels), doubles, restart, count and nodes of Schedules. */
int lmd_fgp(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    const long batch = sizes[0], rows = sizes[1] * sizes[2];
    const double *bounds = reals + 7, *known = bounds + batch;
    const Schedules schedules = {.numbers = arrays[2],
        .reach = arrays[3],
        .horizons = arrays[4],
        .coarse = arrays[5],
        .count = sizes[9],
        .nodes = sizes[10],
        .lowest = reals[5],
        .ratio = reals[6]};
    Job all = {.y = arrays[0],
        .p = arrays[1],
        .schedules = &schedules,
        .p_out = arrays[6],
        .x_out = arrays[7],
        .channels = sizes[1],
        .height = sizes[2],
        .width = sizes[3],
        .limit = sizes[4],
        .restart = sizes[8],
        .depth = depth_for(sizes[2], sizes[3])};
    all.isotropic = (int)sizes[5], all.coupled = (int)sizes[6], all.doubles = (int)sizes[7];
    all.scale = reals[0], all.inverse = 0.5 / reals[0], all.step = reals[1], all.asked = reals[2];
    all.norm = reals[3], all.roundings = reals[4];
    const int lengths = all.isotropic || all.coupled;
    all.tolerance = all.doubles ? all.asked : fmax(all.asked, lengths ? ROUNDED : LEAST);
    all.pace = (Pace){.next_look = FIRST_LOOK,
        .flatter = lengths ? LESS_FLAT : FLATTER,
        .m = 1,
        .entry = INFINITY,
        .mark = INFINITY};
    const long bytes = batch * rows * all.width * (all.doubles ? 8 : 4);
    use_large_pages(all.p_out, 2 * bytes);
    use_large_pages(all.x_out, bytes);
    const int team = (int)runs_of(all.coupled ? all.height : rows, threads);
    const int alone = team == 1 || batch >= 2 * threads;
    Batch given = {&all, bounds, known, report, alone ? 1 : team, {0}};
    solve_each(
        &given.meeting, batch, alone ? (int)least(threads, batch) : 1, solve_instance, &given);
    return given.meeting.failed;
}
