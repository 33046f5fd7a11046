/* Whole solves of total variation denoising by fast gradient projection, with given or classical numbers: iterations,
   gaps and the decision to stop, in one call. lmd.solvers.classical.fgp and learned_fgp have the formulas.

   Images (B, C, H, W) and dual fields (B, C, 2, H, W) are contiguous, of float or double numbers. Rows are padded to
   whole vectors in working memory. A block of iterations goes through the rows together, each iteration one row behind
   the one before, in place, so that the memory is read once for all of them. Threads share an image by runs of rows,
   keep copies of the rows next to their own and compute those again as far as a block needs them; every number is made
   by the same operations whoever computes it, so that the answer does not depend on their number.

   What was learned is chosen here too: by the tolerance and the roughness of y, and its numbers by the roughness; from
   a dual point that is given also by the gap that it proves.
   Some begin on coarser grids: y averaged over 2 x 2 pixels with half the bound has the same minimiser among images
   that are constant on them, and its dual field, twice as large, interpolated between the edges of these squares, is
   where the finer grid begins. lmd.problems.scales has the formulas. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "shared.h"
#include "regions.h"
#include "threads.h"

#if defined(__AVX512F__)
enum { VECTOR = 64 }; /* bytes */
#elif defined(__AVX__)
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
#define INLINE static inline __attribute__((always_inline))

enum {
    DEPTH = 16,        /* iterations that may go through the memory together, */
    DEEP = 12,         /* those that do on planes larger than LARGE, */
    USUAL = 8,         /* and on others */
    RESTART = 8,       /* iterations between two checks of the momentum of FGP */
    FIRST_LOOK = 8,    /* the iteration after which a gap is first evaluated where nothing was learned */
    SHORTEST = 8,      /* iterations between two gap evaluations, at least */
    SUMS = 4,          /* numbers that a row has of the gap */
    SOON = 3,          /* rows ahead that are asked for from memory */
    FAR = 3,           /* times the roughest data of the schedules: beyond, FGP is faster */
    LARGE = 1 << 19,   /* pixels of a plane that does not stay in the cache */
    NEAR = 1 << 18,    /* bytes of rows that stay in the nearer cache */
    CLOSE = 32000,     /* bytes of rows that stay in the nearest cache */
    FEW = 128,         /* rows that one thread does better alone */
    MANY = 40,         /* lines of the cache from which on rows may collide in it, */
    PLACES = 64,       /* and the number of places there */
    LEVELS = 16,       /* coarser grids, at most */
    SMALLEST = 16,     /* the shorter side of an image that is made coarser, at least */
    LONG_ROW = 6000,   /* bytes of a row from which on it is done in parts, */
    PART = 2048,       /* and bytes of a part */
    PARTS = 16,        /* sums of a row, each of every 16th pixel, so that its alignment does not matter */
    STRIP = 128,       /* columns of coupled channels that are done together */
    LOOK = 8,          /* iterations that a gap evaluation costs, */
    WORTH = 13,        /* and one of the answer averaged over regions */
    ROOM = 144         /* iterations of a schedule that is taken up again, at most */
};
enum { EXACT, FLAT }; /* kinds of looks */
#define ROUNDED 5e-5 /* relative gaps below this are left to double precision, */
#define ROOMY 5e-4   /* answers to tolerances below this are averaged over regions in the end */
#define NEAR_GAP 0.5 /* dual points that prove a larger relative gap are no start */
#define GROWN 1.6    /* gaps at the horizon on large planes, over those that schedules get to on small ones */
#define FLATTER 8    /* what `flatter` is to begin with after learned iterations, about what it usually is; */
#define LESS_FLAT 25 /* of lengths of gradients, where fewer pixels are flat; */
#define BY_FGP 0.4   /* as a share of these from the beginning of FGP on, whose dual points tell regions better */
#define LEAST 5e-7   /* unless nearly all is drawn flat, which it is in the anisotropic form: then those below this */

/* Where a solve stands: what every thread computes for itself, and alike. */
typedef struct {
    long iteration, blocks, mark_at, next_look;
    long begun, learned;   /* the iterations at which the learned numbers begin and end */
    const double *numbers; /* step-sizes and momenta (2, learned - begun) */
    double step, momentum, m; /* of the next iteration; m is that of FGP */
    double value, gap, mark;
    double flatter; /* the relative gap of x drawn flat is about this times the power 3/2 of that of x */
    double entry;   /* the gap where learned numbers were taken up again; 0 where they are not to be any more */
    int status;
} Pace;

/* What was learned: `count` schedules of step-sizes and momenta, the cheapest first, each for `nodes` roughnesses in
   geometric progression. */
struct Schedules {
    const double *numbers;        /* of one after the other: (2, nodes, horizon) */
    const double *reach;          /* the logarithm of the gap that it gets to at these and halfway between (count, FORMS, 2 nodes - 1), in
                                     the anisotropic and in the isotropic form, and in both with coupled channels */
    const long *horizons, *coarse; /* how many iterations, and whether they begin on coarser grids (count) */
    long count, nodes;
    double lowest, ratio;
};

/* One instance: its arrays, and what is asked for. */
typedef struct {
    const void *y, *p, *coarse; /* coarse: p of the coarser grid, in place of p */
    void *p_out, *x_out;
    const double *numbers; /* step-sizes and momenta (2, learned) of the first iterations */
    const Schedules *schedules; /* to choose them from, once p has been looked at */
    long learned, limit, channels, height, width, depth;
    long restart; /* momentum is looked at after so many iterations; 0 is never */
    int isotropic, coupled, once; /* once: few iterations from nothing, and what they find, piece by piece */
    double bound, inverse, scale, step, tolerance, norm, roundings;
    double asked; /* the tolerance in the end, where these numbers do not prove it */
    double known; /* the relative gap that p proves */
    Meeting *meeting;
    Pace pace;
} Job;

/* What the threads of a solve share. */
typedef struct {
    double *uphill, *sums; /* of each row; twice, so that no thread overwrites what another one still reads, sums thrice */
    Meeting meeting;
    int tickets, members; /* who came in time, and how many they are */
    Job levels[LEVELS];   /* the coarser grids, finest first */
    long coarser, chosen; /* how many; the schedule */
    double rough;         /* the roughness of y */
    void *memory;         /* theirs, and that of all numbers */
    Regions regions;
    void *flat; /* the memory of regions, where any were looked for */
} Shared;

static void use_large_pages(void *memory, long bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 1 << 21;
    uintptr_t from = ((uintptr_t)memory + page - 1) / page * page, to = (uintptr_t)memory + (uintptr_t)bytes;
    if (memory && to >= from + 4 * page) madvise((void *)from, (to - from) / page * page, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

static double within_double(double x, double low, double high)
{
    x = x > high ? high : x; /* a NaN stays one */
    return x < low ? low : x;
}

enum { CLOSED = 1 << 20 };

static void wait_for(Shared *shared, int threads) { meet(&shared->meeting, threads); }

/* Who takes part: the threads that come within some microseconds, so that a busy machine does not keep the others
   waiting. Returns the place among them, or -1. */
static int roll_call(Shared *shared, int threads)
{
    if (omp_get_thread_num()) {
        int place = __atomic_fetch_add(&shared->tickets, 1, __ATOMIC_ACQ_REL);
        if (place >= CLOSED) return -1;
        for (long spins = 0; !__atomic_load_n(&shared->members, __ATOMIC_ACQUIRE); spins++) rest(spins);
        return place + 1;
    }
    for (long spins = 0; spins < PATIENCE && __atomic_load_n(&shared->tickets, __ATOMIC_ACQUIRE) < threads - 1; spins++)
        rest(0);
    int others = __atomic_exchange_n(&shared->tickets, CLOSED, __ATOMIC_ACQ_REL);
    __atomic_store_n(&shared->members, 1 + others, __ATOMIC_RELEASE);
    return 0;
}

static long least(long a, long b) { return a < b ? a : b; }
static long most(long a, long b) { return a > b ? a : b; }

/* How many planes lie abreast, of numbers of so many bytes: all that are coupled; or all, where the rows of a block are short enough to stay in the
   nearest cache, and threads need not copy such rows of each other: one has all, or better has, or all is done at once. */
static long abreast_of(const Job *job, long threads, size_t size)
{
    if (job->coupled) return job->channels;
    const long all = job->channels, line = (job->width * (long)size + 63) / 64 * 64;
    const int close = 5 * all * line * (job->depth + 1) <= CLOSE, alone = threads == 1 || job->once || all * job->height < FEW;
    return close && alone && all <= MAX_COUPLED ? all : 1;
}

/* How many threads get rows of their own: those of a coarser grid may be too few for all of them. */
static long runs_of(long rows, long threads) { return most(1, least(threads, rows / (2 * DEPTH))); }

/* The first row of run n of `runs` through all planes: where a plane is cut, both parts have more rows than a block needs. */
static long cut_at(long all, long height, long n, long runs)
{
    long at = all * n / runs, into = at % height;
    if (into < 2 * DEPTH) return at - into;
    return height - into < 2 * DEPTH ? at - into + height : at;
}

/* How many iterations the next block has: up to the end of the learned ones, the next look, decision or limit. */
static long plan(const Job *job, Pace *pace)
{
    long left = least(job->limit, pace->next_look) - pace->iteration;
    if (pace->iteration < pace->learned) return least(least(left, pace->learned - pace->iteration), job->depth);
    if (job->restart) left = least(left, job->restart - (pace->iteration - pace->learned) % job->restart);
    return least(left, job->depth);
}

/* The step-size and the momentum of the next iteration: those that are given, then FGP's. */
static void next_numbers(const Job *job, Pace *pace)
{
    long k = pace->iteration++;
    if (k < pace->learned) {
        const double *numbers = pace->numbers + k - pace->begun;
        pace->step = job->step * numbers[0];
        pace->momentum = job->schedules && k + 1 == pace->learned ? 0 : numbers[pace->learned - pace->begun]; /* what follows begins at p */
        return;
    }
    double after = (1 + sqrt(1 + 4 * pace->m * pace->m)) / 2;
    pace->step = job->step;
    pace->momentum = (pace->m - 1) / after;
    pace->m = after;
}

/* Whether momentum is looked at where it stands now. */
static int restarts(const Job *job, const Pace *pace)
{
    return job->restart && pace->iteration > pace->learned && (pace->iteration - pace->learned) % job->restart == 0;
}

static int looks(const Job *job, const Pace *pace)
{
    return job->tolerance >= 0 && (pace->iteration >= pace->next_look || pace->iteration >= job->limit);
}

/* F(x) and a bound on F(x) - min F, from the sums of all rows: docs/guarantees.md, Theorem 3b. */
static void certify(const Job *job, const double *of_rows, Pace *pace)
{
    const double eps = DBL_EPSILON, rows = (double)(job->channels * job->height), pixels = rows * (double)job->width;
    double sums[SUMS] = {0};
    for (long i = 0; i < job->channels * job->height; i++)
        for (int c = 0; c < SUMS; c++) sums[c] += of_rows[SUMS * i + c];
    const double tv = job->bound * sums[0], longest = job->bound * sqrt(2 * pixels); /* of all dual points */
    const double slack = tv > sums[1] ? tv - sums[1] : 0 * (tv - sums[1]); /* a NaN stays one */
    const double value = job->scale * sums[3] + tv, off = job->roundings * eps * (sqrt(sums[3]) + job->norm * job->inverse * longest);
    double gap = slack + job->scale * sums[2];
    const double rounding = 32 * eps * tv + 2 * sqrt(job->scale * gap) * off + job->scale * off * off;
    gap += rounding + (3 * pixels + 8) * eps * (fabs(value) + gap);
    pace->value = value;
    pace->gap = value == 0 ? 0 : gap; /* no value is below 0 */
}

/* After a block, and a look at its gap if it is time: whether momentum leads downhill, whether to go on. All threads decide
   alike. */
static void decide(const Job *job, const Shared *shared, Pace *pace)
{
    const long rows = job->channels * job->height, side = pace->blocks++ % 2 * rows;
    if (shared->meeting.stop) {
        pace->status = FINISHED;
        return;
    }
    if (restarts(job, pace)) {
        double uphill = 0;
        for (long i = 0; i < rows; i++) uphill += shared->uphill[side + i];
        if (uphill < 0) pace->m = 1;
    }
    if (looks(job, pace)) {
        long k = pace->iteration;
        if (pace->gap < 0.9 * pace->mark) pace->mark = pace->gap, pace->mark_at = k;
        pace->next_look = k + (k / 10 > SHORTEST ? k / 10 : least(k + 1, SHORTEST));
        if (pace->gap <= job->tolerance * (pace->value - pace->gap))
            pace->status = REACHED;
        else if (k >= 4 * pace->mark_at && k >= 400)
            pace->status = STUCK;
    }
    if (pace->status == GOING && pace->iteration >= job->limit) pace->status = FINISHED;
}

/* A gap relative to the least that the minimum can be; infinite where that may be 0. */
static double relative(const Pace *pace) { return pace->gap < pace->value ? pace->gap / (pace->value - pace->gap) : INFINITY; }

/* Whether x drawn flat on its regions may be near enough, where x itself is not, and is worth to be looked at: it costs as
   much as WORTH iterations, and gaps fall at least like 1 / k^2. Where x is near enough after many iterations and in the end, it
   is one look more that takes little time and most of what is left of the gap. */
static int may_be_flat(const Job *job, const Pace *pace)
{
    const double gap = relative(pace), done = (double)pace->iteration, left = done * (sqrt(gap / job->tolerance) - 1);
    if (!job->x_out || !(gap > 0)) return 0;
    if (pace->status == REACHED) return done >= 10 * WORTH && job->tolerance < ROOMY && job->tolerance <= job->asked;
    return pace->flatter * gap * sqrt(gap) <= job->tolerance && (left >= WORTH || pace->status != GOING);
}

/* What is known after a look at x drawn flat. Returns whether it is to be the answer. */
static int decide_flat(const Job *job, const Shared *shared, Pace *pace)
{
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

/* Room for the regions of all planes; none where there are more pixels than labels. */
static void make_room(const Job *job, Shared *shared)
{
    const size_t pixels = (size_t)(job->channels * job->height * job->width);
    Regions *all = &shared->regions;
    if (shared->flat || pixels > INT32_MAX) return;
    shared->flat = malloc(pixels * (3 * sizeof(int32_t) + 2 * sizeof(double)));
    if (!shared->flat) {
        fail_with(&shared->meeting, NO_MEMORY);
        return;
    }
    all->sum = shared->flat, all->gain = all->sum + pixels, all->label = (int32_t *)(all->gain + pixels);
    all->parent = all->label + pixels, all->count = all->parent + pixels;
}

/* How many lines of the cache a row has: such that its arrays, and what is read and written of them at the same time, do
   not share places there. */
static long lines_for(long lines)
{
    while (lines >= MANY && ((lines + 2) % PLACES < 4 || lines % PLACES == PLACES / 3)) lines++;
    return lines;
}

/* How many iterations go through the memory together: more where a plane is larger than what stays in the cache. */
static long depth_for(long height, long width) { return height * width > LARGE ? DEEP : USUAL; }

/* How many rows there is room for where those that are done with make it for others, a power of 2: of the iterations that
   follow each other, and of a look. */
static long room_for(long iterations) { return iterations + 5 > 16 ? 32 : 16; }

/* gamma mean |Ky| / b: what numbers depend on. Channels that are coupled share the bound, which is the less for each of them. */
static double roughness_of(const Job *job, double length)
{
    const double share = job->coupled ? pow((double)job->channels, job->isotropic ? 0.6 : 0.4) : 1;
    return share * job->scale * length / ((double)(job->channels * job->height * job->width) * job->bound);
}

/* Where a roughness lies between the nodes: the one below, and the share of the next. */
static long node_of(const Schedules *all, double rough, double *share)
{
    double place = within_double(log((rough > 1e-6 ? rough : 1e-6) / all->lowest) / log(all->ratio), 0, (double)(all->nodes - 1));
    long below = least((long)place, all->nodes - 2);
    *share = place - (double)below;
    return below;
}

/* The logarithm of the gap that schedule n gets to, at a roughness. */
static double reach_of(const Schedules *all, const Job *job, long n, double rough)
{
    double share;
    long place = 2 * node_of(all, rough, &share);
    if (share < 0.5)
        share *= 2;
    else
        place++, share = 2 * share - 1;
    const double *gaps = all->reach + (FORMS * n + 2 * job->coupled + job->isotropic) * (2 * all->nodes - 1) + place;
    return gaps[0] + share * (gaps[1] - gaps[0]);
}

/* The first schedule that gets to the tolerance at this roughness, or the one that gets nearest to it; large planes, with larger
   pieces, get less far (docs/speed.md). -1 is FGP itself: it is faster where y is far rougher than what any was learned for, unless a
   few iterations will do. */
static long choose(const Schedules *all, const Job *job, double rough, int coarsens)
{
    const double goal = log(job->height * job->width > LARGE ? job->tolerance / GROWN : job->tolerance);
    double nearest = INFINITY;
    long chosen = 0;
    for (long n = 0; n < all->count && nearest > goal; n++) {
        const double gap = reach_of(all, job, n, rough);
        if (gap >= nearest || (all->coarse[n] && !coarsens)) continue;
        chosen = n, nearest = gap;
    }
    const double roughest = all->lowest * pow(all->ratio, (double)(all->nodes - 1));
    return all->count > 1 && rough > FAR * roughest && all->horizons[chosen] > SHORTEST ? -1 : chosen;
}

/* The numbers of a schedule at a roughness, to where those of the job are. */
static void interpolate(const Schedules *all, long chosen, double rough, double *numbers)
{
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

/* A coarser grid for each that is large enough, and room for them and for the numbers of all. Returns 0 without it. */
static int plan_levels(Job *job, Shared *shared, const Schedules *all, long chosen, long size)
{
    const long horizon = all->horizons[chosen];
    long total = 2 * horizon * (LEVELS + 1) * (long)sizeof(double), height = job->height, width = job->width;
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

/* How many iterations a schedule costs: coarser grids are a third of the work again, and four to set up. */
static double cost_of(const Schedules *all, const Job *job, long chosen)
{
    if (chosen < 0) return 1e9; /* nobody knows */
    const double own = (double)all->horizons[chosen];
    return all->coarse[chosen] && least(job->height, job->width) >= SMALLEST ? 4 + 1.38 * own : own;
}

/* The schedule to go on with from p, given what a start from nothing costs; -1 where that is better. The gap falls by N^1.1
   to N^1.7 in N iterations, the more the rougher y is. */
static long choose_from(const Schedules *all, const Job *job, const Shared *shared, double cost)
{
    const double power = within_double(1.1 + 0.2 * log(shared->rough / 0.15), 1.05, 1.7);
    const double needed = pow(job->known / job->tolerance, 1 / power);
    long chosen = -1;
    for (long n = 0; n < all->count; n++) {
        if (all->coarse[n]) continue;
        chosen = n;
        if ((double)all->horizons[n] >= needed) break;
    }
    return job->known <= NEAR_GAP && chosen >= 0 && (double)all->horizons[chosen] + LOOK < cost ? chosen : -1;
}

/* Past what was learned, learned numbers once more from where it stands, those of as many iterations as the gap asks for: from
   there they get as far as FGP in twice as many (docs/speed.md). Nothing says that they converge, so FGP takes over for good
   where they did not lower the gap by a fifth; and below ROUNDED, where x drawn flat is what counts: the dual points of FGP tell
   better which regions there are. `room` is for 2 ROOM numbers. */
static void go_on(const Job *job, const Shared *shared, Pace *pace, double *room)
{
    const Schedules *all = job->schedules;
    const double gap = relative(pace);
    if (!all || all->count < 2 || job->asked < ROUNDED || pace->entry == 0) return;
    if (shared->rough > FAR * all->lowest * pow(all->ratio, (double)(all->nodes - 1))) return;
    const int falls = pace->gap <= 0.8 * pace->entry;
    pace->entry = falls ? pace->gap : 0;
    if (!falls) return;
    const double goal = fmax(job->tolerance, pow(job->tolerance / pace->flatter, 2.0 / 3)), needed = 25 * pow(gap / goal, 0.75);
    long chosen = -1;
    for (long n = 0; n < all->count; n++) {
        if (all->coarse[n] || all->horizons[n] > ROOM) continue;
        chosen = n;
        if ((double)all->horizons[n] >= needed || reach_of(all, job, n, shared->rough) <= log(goal)) break;
    }
    if (chosen < 0) return;
    interpolate(all, chosen, shared->rough, room);
    pace->numbers = room, pace->begun = pace->iteration;
    pace->learned = pace->next_look = pace->iteration + all->horizons[chosen];
}

static double total_of(const double *rows, long count)
{
    double sum = 0;
    for (long i = 0; i < count; i++) sum += rows[i];
    return sum;
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

/* What is given for all instances alike. */
typedef struct {
    const char *y, *p;
    char *p_out, *x_out;
    const double *bound, *gaps;
    const Schedules *schedules;
    double *report;
    double scale, step, tolerance, norm, roundings;
    long channels, height, width, limit;
    int isotropic, coupled, doubles;
} Batch;

/* One instance by threads that all come here. */
static void solve_one(Job *job, Shared *shared, const Batch *all, void *teams, int thread, int threads)
{
    if (job->known <= job->asked) return;
    if (all->doubles)
        begin_double(job, shared, all->schedules, teams, thread, threads);
    else
        begin_float(job, shared, all->schedules, teams, thread, threads);
    wait_for(shared, threads);
    if (job->pace.status != GOING) return;
    if (all->doubles)
        solve_double(job, shared, teams, thread, threads);
    else
        solve_float(job, shared, teams, thread, threads);
}

typedef Team_double Team_any; /* pointers and counts: of one size for all types */

/* Gaps fall to this in the type of the arrays: rounding of float numbers hides what is left. */
static double tolerance_of(const Batch *all)
{
    const double floor = all->doubles || all->tolerance < 0 ? -1 : all->isotropic || all->coupled ? ROUNDED : LEAST;
    return fmax(all->tolerance, floor);
}

static Job job_of(const Batch *all, long n)
{
    long size = (all->doubles ? 8 : 4) * all->channels * all->height * all->width;
    Job job = {0};
    job.y = all->y + n * size;
    job.p = all->p ? all->p + 2 * n * size : NULL;
    job.p_out = all->p_out + 2 * n * size;
    job.known = all->p ? all->gaps[n] : INFINITY;
    job.x_out = all->x_out + n * size;
    job.limit = all->limit;
    job.channels = all->channels, job.height = all->height, job.width = all->width, job.depth = depth_for(all->height, all->width);
    job.isotropic = all->isotropic, job.coupled = all->coupled, job.restart = RESTART;
    job.bound = all->bound[n], job.inverse = 0.5 / all->scale, job.scale = all->scale, job.step = all->step;
    job.asked = all->tolerance, job.tolerance = tolerance_of(all), job.norm = all->norm, job.roundings = all->roundings;
    job.pace.next_look = all->tolerance >= 0 ? FIRST_LOOK : all->limit;
    job.pace.flatter = (all->isotropic || all->coupled ? LESS_FLAT : FLATTER) * (all->schedules ? 1 : BY_FGP);
    job.pace.status = job.known <= all->tolerance ? REACHED : GOING; /* p is the answer */
    job.pace.m = 1, job.pace.entry = job.pace.mark = INFINITY;
    return job;
}

static void report_of(const Job *job, double *report)
{
    const int rounded = job->pace.status == REACHED && job->pace.iteration && job->pace.gap > job->asked * (job->pace.value - job->pace.gap);
    report[0] = (double)job->pace.iteration, report[1] = rounded ? STUCK : job->pace.status;
    report[2] = job->pace.value, report[3] = job->pace.gap;
}

/* calls.h says what is given. */
int lmd_fgp(const void *y, const void *p, const double *gaps, const double *bound, const Schedules *schedules, double scale, double step,
            double tolerance, double norm, double roundings, long batch, long channels, long height, long width, long limit,
            long isotropic, long coupled, long doubles, int threads, void *p_out, void *x_out, double *report)
{
    Batch all = {y, p, p_out, x_out, bound, gaps, schedules, report, scale, step, tolerance, norm, roundings,
                 channels, height, width, limit, (int)isotropic, (int)coupled, (int)doubles};
    long rows = channels * height, bytes = batch * rows * width * (doubles ? 8 : 4);
    use_large_pages(p_out, 2 * bytes);
    use_large_pages(x_out, bytes);
    int team = (int)runs_of(coupled ? height : rows, threads), failed = 0, arrived = 0;
    Meeting whole = {0}; /* of a batch whose instances threads share */
    int alone = batch >= 2 * threads || team == 1;
    if (alone) {
#pragma omp parallel num_threads(threads) reduction(| : failed) if (threads > 1 && batch > 1)
        {
            double *memory = malloc((size_t)(rows * (3 * SUMS + 2)) * sizeof(double));
            failed = memory == NULL ? NO_MEMORY : 0;
#pragma omp for schedule(dynamic) nowait
            for (long n = 0; n < batch; n++) {
                Team_any own;
                Job job = job_of(&all, n);
                if (failed || __atomic_load_n(&whole.failed, __ATOMIC_RELAXED)) continue;
                Shared shared = {.uphill = memory, .sums = memory + 2 * rows, .members = 1, .meeting = {.ended = &whole.failed}};
                job.meeting = &shared.meeting;
                solve_one(&job, &shared, &all, &own, 0, 1);
                report_of(&job, report + REPORT * n);
                free(shared.memory);
                free(shared.flat);
                failed |= shared.meeting.failed;
                if (failed & INTERRUPTED) fail_with(&whole, INTERRUPTED);
            }
            watch_others(&whole, &arrived);
            free(memory);
        }
        return failed | whole.failed;
    }
    double *memory = malloc((size_t)(rows * (3 * SUMS + 2)) * sizeof(double));
    Team_any *teams = malloc((size_t)team * sizeof(Team_any));
    failed = !memory || !teams ? NO_MEMORY : 0;
    for (long n = 0; n < batch && !failed; n++) {
        Job job = job_of(&all, n);
        Shared shared = {.uphill = memory, .sums = memory + 2 * rows};
        job.meeting = &shared.meeting;
#pragma omp parallel num_threads(team)
        {
            int place = roll_call(&shared, omp_get_num_threads());
            if (place >= 0) solve_one(&job, &shared, &all, teams, place, shared.members);
        }
        report_of(&job, report + REPORT * n);
        free(shared.memory);
        free(shared.flat);
        failed |= shared.meeting.failed;
    }
    free(memory);
    free(teams);
    return failed;
}
