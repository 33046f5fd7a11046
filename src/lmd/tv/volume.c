/* Total variation models in float numbers: images and volumes, spacings, coupled channels, maps of weights, Huber, boxes.
   Whole solves with squares by FGP, and iterations of relaxed PDHG with any of the misfits. lmd.solvers.classical.fgp, learned_fgp
   and RelaxedPDHG have the formulas, lmd.problems.models the models.

   Arrays are (C, n0, n1, n2) and dual fields (C, axes, n0, n1, n2), row by row; an image has n1 = 1 and two axes. An
   iteration goes through the planes n0 once, in place: x of the next plane is made before q of this one changes. Threads
   share the planes by slabs, and make x at both ends of their own before anything changes. Every number is made by the
   same operations whoever makes it, so that the answer does not depend on the number of threads. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rows.h"
#include "shared.h"
#include "threads.h"

enum { SUMS = 12, SHORTEST = 8 };
enum { VALUE, SLACK, AWAY, MISFIT, DUAL, LENGTHS, SQUARES, WEIGHTS2, REACH2, REACHED_BY, WEIGHTS, RATIO };
#define SHRINK (1 - 5e-7) /* what p is multiplied by in proofs, so that its rounding does not lead out of the domain */

typedef struct {
    long channels, n0, n1, n2, axes, maps, map_axes; /* maps: channels of the map of weights; 0 is a number */
    int isotropic, coupled, boxed, cold; /* cold: p is 0 to begin with */
    double bound, scale, inverse, step, delta, low, high, tolerance, norm, roundings;
    double h[3]; /* of the axes n0, n1, n2 */
    const float *y, *map;
    float *p, *q;
    long learned, limit, restart;
    const double *steps, *momenta;
    Meeting *meeting;
} Model;

/* Where a solve stands: every thread computes it for itself, and alike. */
typedef struct {
    long iteration, next_look, mark_at;
    double m, step, momentum, value, gap, mark, first;
    int status;
} Pace;

/* What a thread has to itself: planes of x, and rows. */
typedef struct {
    float *here, *next, *edge, *rows, *squares, *bound, *zeros;
    double *z, *v, *lines;
    void *memory;
    int members; /* threads that share the planes */
} Team;

static long plane_of(const Model *job) { return job->n1 * job->n2; }

static int make(const Model *job, Team *team)
{
    long plane = plane_of(job), fields = job->channels * job->axes, n = job->n2;
    long floats = 3 * job->channels * plane + (fields + 3) * n, doubles = (2 * fields + 8) * n;
    team->memory = malloc((size_t)floats * sizeof(float) + (size_t)doubles * sizeof(double) + 64);
    if (!team->memory) return 0;
    team->z = team->memory;
    team->v = team->z + fields * n;
    team->lines = team->v + fields * n;
    team->here = (float *)(team->lines + 8 * n);
    team->next = team->here + job->channels * plane;
    team->edge = team->next + job->channels * plane;
    team->rows = team->edge + job->channels * plane;
    team->squares = team->rows + fields * n;
    team->bound = team->squares + n;
    team->zeros = team->bound + n;
    for (long k = 0; k < n; k++) team->bound[k] = (float)job->bound, team->zeros[k] = 0;
    return 1;
}

/* Which axis of the arrays component a of a field belongs to. */
static int axis_of(const Model *job, long a) { return job->axes == 3 ? (int)a : a ? 2 : 0; }

static long row_of(const Model *job, long c, long a, long i, long j)
{
    return (((c * job->axes + a) * job->n0 + i) * job->n1 + j) * job->n2;
}

/* The bounds of a row of component a of channel c. */
static const float *bounds(const Model *job, const Team *team, long c, long a, long i, long j)
{
    if (!job->maps) return team->bound;
    long channel = job->maps > 1 ? c : 0, axis = job->map_axes > 1 ? a : 0;
    return job->map + (((channel * job->map_axes + axis) * job->n0 + i) * job->n1 + j) * job->n2;
}

/* x = y - inverse K'q, in the box, of plane i. */
static void point(const Model *job, const Team *team, const float *field, long i, float *x)
{
    const long n = job->n2;
    const float low = job->boxed ? (float)job->low : -INFINITY, high = job->boxed ? (float)job->high : INFINITY;
    float by[3];
    for (int a = 0; a < 3; a++) by[a] = (float)(job->inverse / job->h[a]);
    for (long c = 0; c < job->channels; c++)
        for (long j = 0; j < job->n1; j++) {
            const float *y = job->y + ((c * job->n0 + i) * job->n1 + j) * n;
            const float *down = field + row_of(job, c, 0, i, j);
            const float *above = i ? field + row_of(job, c, 0, i - 1, j) : team->zeros;
            const float *mid = job->axes == 3 ? field + row_of(job, c, 1, i, j) : team->zeros;
            const float *before = job->axes == 3 && j ? field + row_of(job, c, 1, i, j - 1) : team->zeros;
            const float *right = field + row_of(job, c, job->axes - 1, i, j);
            float *restrict out = x + (c * job->n1 + j) * n;
            float first = y[0] - by[0] * (above[0] - down[0]) - by[1] * (before[0] - mid[0]) + by[2] * right[0];
            first = first < low ? low : first;
            out[0] = first > high ? high : first;
#pragma omp simd
            for (long k = 1; k < n; k++) {
                float v = y[k] - by[0] * (above[k] - down[k]) - by[1] * (before[k] - mid[k]);
                v -= by[2] * (right[k - 1] - right[k]);
                v = v < low ? low : v;
                out[k] = v > high ? high : v;
            }
        }
}

/* Differences of x along component a in row (i, j) of channel c: `there` minus `here`; 0 at the end of an axis. */
static int neighbours(const Model *job, long c, long a, long i, long j, const float *x, const float *after,
                      const float **here, const float **there)
{
    const int axis = axis_of(job, a);
    *here = x + (c * job->n1 + j) * job->n2;
    *there = axis == 0 ? after + (c * job->n1 + j) * job->n2 : axis == 1 ? *here + job->n2 : *here + 1;
    return axis == 0 ? i + 1 < job->n0 : axis == 1 ? j + 1 < job->n1 : 1;
}

/* q + t K x in row (i, j) of all channels and components. */
static void rise(const Model *job, const Team *team, long i, long j, const float *x, const float *after, float t)
{
    const long n = job->n2;
    for (long c = 0; c < job->channels; c++)
        for (long a = 0; a < job->axes; a++) {
            const float *q = job->q + row_of(job, c, a, i, j), *here, *there, *w = bounds(job, team, c, a, i, j);
            float *restrict v = team->rows + (c * job->axes + a) * n;
            const int axis = axis_of(job, a);
            const float by = t / (float)job->h[axis], soft = t * (float)job->delta;
            if (neighbours(job, c, a, i, j, x, after, &here, &there)) {
                long count = axis == 2 ? n - 1 : n;
#pragma omp simd
                for (long k = 0; k < count; k++) v[k] = q[k] + by * (there[k] - here[k]);
                if (axis == 2) v[n - 1] = q[n - 1];
            } else
                memcpy(v, q, (size_t)n * sizeof(float));
            if (job->delta > 0)
#pragma omp simd
                for (long k = 0; k < n; k++) v[k] *= w[k] / (w[k] + soft);
        }
}

static void project(const Model *job, const Team *team, long i, long j)
{
    const long n = job->n2, channels = job->channels, axes = job->axes;
    if (job->isotropic && job->coupled)
        draw(team->rows, channels * axes, 1, n, bounds(job, team, 0, 0, i, j), team->squares);
    else if (job->isotropic)
        for (long c = 0; c < channels; c++)
            draw(team->rows + c * axes * n, axes, 1, n, bounds(job, team, c, 0, i, j), team->squares);
    else if (job->coupled)
        for (long a = 0; a < axes; a++)
            draw(team->rows + a * n, channels, axes, n, bounds(job, team, 0, a, i, j), team->squares);
    else
        for (long c = 0; c < channels; c++)
            for (long a = 0; a < axes; a++) {
                const float *w = bounds(job, team, c, a, i, j);
                float *restrict v = team->rows + (c * axes + a) * n;
#pragma omp simd
                for (long k = 0; k < n; k++) {
                    float at = v[k] > w[k] ? w[k] : v[k];
                    v[k] = at < -w[k] ? -w[k] : at;
                }
            }
}

/* p and q of a row from what `rows` holds; returns how far the move is uphill. */
static double move(const Model *job, const Team *team, long i, long j, float m)
{
    const long n = job->n2;
    double total = 0;
    for (long c = 0; c < job->channels; c++)
        for (long a = 0; a < job->axes; a++) {
            float *restrict p = job->p + row_of(job, c, a, i, j), *restrict q = job->q + row_of(job, c, a, i, j);
            const float *restrict v = team->rows + (c * job->axes + a) * n;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (long k = 0; k < n; k++) {
                float moved = v[k] - p[k];
                sum += (v[k] - q[k]) * moved;
                p[k] = v[k];
                q[k] = v[k] + m * moved;
            }
            total += (double)sum;
        }
    return total;
}

/* One iteration of planes [from, to). All threads wait for each other once they have x at the ends. */
static void iterate(const Model *job, Team *team, long from, long to, const Pace *pace, double *uphill)
{
    if (from < to) point(job, team, job->q, from, team->here);
    if (from < to && to < job->n0) point(job, team, job->q, to, team->edge);
    meet(job->meeting, team->members);
    for (long i = from; i < to && !watch(job->meeting, job->channels * plane_of(job)); i++) {
        float *after = i + 1 < to ? team->next : team->edge;
        if (i + 1 < to) point(job, team, job->q, i + 1, after);
        uphill[i] = 0;
        for (long j = 0; j < job->n1; j++) {
            rise(job, team, i, j, team->here, after, (float)pace->step);
            project(job, team, i, j);
            uphill[i] += move(job, team, i, j, (float)pace->momentum);
        }
        float *here = team->here;
        team->here = team->next;
        team->next = here;
    }
    meet(job->meeting, team->members);
}

/* The sums of one group of rows, in double precision: of g(Kx), its residual at p, and what bounds their rounding. */
static void group_sums(const Model *job, const Team *team, long first, long count, long stride, const float *w, double *out)
{
    const long n = job->n2, map = job->maps;
    double *z2 = team->lines, *zp = z2 + n, *p2 = zp + n, delta = job->delta;
    double value = 0, slack = 0, lengths = 0, squares = 0, weights2 = 0, weights = 0, dual = 0, ratio = out[RATIO];
    memset(z2, 0, (size_t)(3 * n) * sizeof(double));
    for (long r = 0; r < count; r++) {
        const double *z = team->z + (first + r * stride) * n, *v = team->v + (first + r * stride) * n;
#pragma omp simd
        for (long k = 0; k < n; k++) z2[k] += z[k] * z[k], zp[k] += z[k] * v[k], p2[k] += v[k] * v[k];
    }
#pragma omp simd reduction(+ : value, slack, lengths, squares, weights2, weights, dual) reduction(max : ratio)
    for (long k = 0; k < n; k++) {
        double size = sqrt(z2[k]), weight = map ? (double)w[k] : job->bound;
        double near = size < delta ? size : delta, rest = size - near;
        double over = p2[k] > 0 ? p2[k] / (weight * weight) : 0;
        double soft = delta > 0 ? weight / (2 * delta) : 0, share = size > 0 ? near / size : 0, far = 1 - share;
        double away = delta > 0 ? near * near - 2 * share * delta / weight * zp[k] + delta * delta * over : 0;
        double left = weight * rest - far * zp[k];
        value += weight * rest + soft * near * near;
        slack += (left > 0 ? left : 0) + (away > 0 ? soft * away : 0);
        lengths += weight * size;
        squares += z2[k];
        weights2 += weight * weight;
        weights += weight;
        dual += p2[k];
        ratio = over > ratio ? over : ratio;
    }
    out[VALUE] += value, out[SLACK] += slack, out[LENGTHS] += lengths, out[SQUARES] += squares, out[DUAL] += dual;
    out[WEIGHTS2] += weights2, out[WEIGHTS] += weights, out[RATIO] = ratio;
}

/* The sums of f of channel c in a row: away = s ||x - e||^2 + <slope, x - e>, e the best x for p. */
static void square_sums(const Model *job, const Team *team, long c, long i, long j, const float *x, double *out)
{
    const long n = job->n2, axes = job->axes;
    const float *y = job->y + ((c * job->n0 + i) * job->n1 + j) * n, *at = x + (c * job->n1 + j) * n;
    const float *above = i ? job->p + row_of(job, c, 0, i - 1, j) : team->zeros, *down = job->p + row_of(job, c, 0, i, j);
    const float *before = axes == 3 && j ? job->p + row_of(job, c, 1, i, j - 1) : team->zeros;
    const float *mid = axes == 3 ? job->p + row_of(job, c, 1, i, j) : team->zeros;
    const float *right = job->p + row_of(job, c, axes - 1, i, j);
    const double s = job->scale, low = job->low, high = job->high;
    double away = 0, misfit = 0, reach2 = 0, reached = 0;
    for (long k = 0; k < n; k++) {
        double u = ((double)above[k] - (double)down[k]) / job->h[0] + ((double)before[k] - (double)mid[k]) / job->h[1];
        u = SHRINK * (u + ((k ? (double)right[k - 1] : 0) - (double)right[k]) / job->h[2]);
        double off = (double)at[k] - (double)y[k], best = -u * job->inverse, slope = 0, far = fabs(off);
        if (job->boxed) {
            double lowest = low - (double)y[k], highest = high - (double)y[k];
            double end = best < lowest ? lowest : best > highest ? highest : best;
            slope = end == best ? 0 : 2 * s * end + u;
            best = end;
            far = fmax(far, fmax(fabs((double)at[k] - low), fabs((double)at[k] - high)));
        }
        double past = off - best, each = past * (slope + s * past);
        away += each > 0 ? each : 0;
        misfit += off * off;
        reach2 += far * far;
        reached += far * (s * far + fabs(u));
    }
    out[AWAY] += away, out[MISFIT] += misfit, out[REACH2] += reach2, out[REACHED_BY] += reached;
}

/* The sums of planes [from, to), each in its place. */
static void add_up(const Model *job, Team *team, long from, long to, double *sums)
{
    const long n = job->n2, axes = job->axes, channels = job->channels;
    if (from < to) point(job, team, job->p, from, team->here);
    for (long i = from; i < to; i++) {
        double *out = sums + SUMS * i;
        memset(out, 0, SUMS * sizeof(double));
        if (i + 1 < job->n0) point(job, team, job->p, i + 1, team->next);
        for (long j = 0; j < job->n1; j++) {
            for (long c = 0; c < channels; c++)
                for (long a = 0; a < axes; a++) {
                    const float *here, *there, *p = job->p + row_of(job, c, a, i, j);
                    double *restrict z = team->z + (c * axes + a) * n, *restrict v = team->v + (c * axes + a) * n;
                    const int axis = axis_of(job, a);
                    long count = !neighbours(job, c, a, i, j, team->here, team->next, &here, &there) ? 0
                                 : axis == 2                                                         ? n - 1
                                                                                                     : n;
                    for (long k = 0; k < count; k++) z[k] = ((double)there[k] - (double)here[k]) / job->h[axis];
                    for (long k = count; k < n; k++) z[k] = 0;
                    for (long k = 0; k < n; k++) v[k] = SHRINK * (double)p[k];
                }
            for (long c = 0; c < channels; c++) {
                square_sums(job, team, c, i, j, team->here, out);
                if (job->isotropic && !job->coupled)
                    group_sums(job, team, c * axes, axes, 1, bounds(job, team, c, 0, i, j), out);
                else if (!job->isotropic && !job->coupled)
                    for (long a = 0; a < axes; a++)
                        group_sums(job, team, c * axes + a, 1, 1, bounds(job, team, c, a, i, j), out);
            }
            if (job->isotropic && job->coupled)
                group_sums(job, team, 0, channels * axes, 1, bounds(job, team, 0, 0, i, j), out);
            else if (job->coupled)
                for (long a = 0; a < axes; a++)
                    group_sums(job, team, a, channels, axes, bounds(job, team, 0, a, i, j), out);
        }
        float *here = team->here;
        team->here = team->next;
        team->next = here;
    }
}

/* F(x) and a bound on F(x) - min F with room for its rounding: docs/guarantees.md, Theorem 3b, term by term. */
static void certify(const Model *job, const double *sums, Pace *pace)
{
    const double eps = 2.220446049250313e-16;
    double total[SUMS] = {0};
    for (long i = 0; i < job->n0; i++)
        for (int c = 0; c < SUMS; c++)
            total[c] = c == RATIO ? fmax(total[c], sums[SUMS * i + c]) : total[c] + sums[SUMS * i + c];
    double value = job->scale * total[MISFIT] + total[VALUE], away = total[AWAY] > 0 ? total[AWAY] : 0;
    double gap = total[SLACK] + away, members = (double)(job->axes * job->channels);
    double behind = job->roundings * eps * job->norm * sqrt(total[DUAL]); /* the error of K'p */
    double rounding = 2 * (32 + 4 * members) * eps * (total[LENGTHS] + job->delta * total[WEIGHTS]);
    rounding += 8 * eps * sqrt(total[WEIGHTS2] * total[SQUARES]);
    if (job->boxed)
        rounding += 128 * eps * total[REACHED_BY] + sqrt(total[REACH2]) * behind;
    else {
        double off = job->roundings * eps * sqrt(total[MISFIT]) + job->inverse * behind;
        rounding += 2 * sqrt(job->scale * away) * off + job->scale * off * off;
    }
    double count = (members + (double)job->channels) * (double)(job->n0 * job->n1 * job->n2) + 8;
    pace->value = value;
    pace->gap = total[RATIO] <= 1 ? gap + rounding + count * eps * (fabs(value) + gap) : INFINITY;
    if (value == 0) pace->gap = 0; /* no value is below 0 */
}

static int looks(const Model *job, const Pace *pace)
{
    return job->tolerance >= 0 && (pace->iteration >= pace->next_look || pace->iteration >= job->limit);
}

/* The numbers of the next iteration: those that are given, the last of them without momentum, then FGP's. */
static void next_numbers(const Model *job, Pace *pace)
{
    long k = pace->iteration++;
    if (k < job->learned) {
        pace->step = job->step * job->steps[k];
        pace->momentum = k + 1 < job->learned ? job->momenta[k] : 0;
        return;
    }
    double after = (1 + sqrt(1 + 4 * pace->m * pace->m)) / 2;
    pace->step = job->step;
    pace->momentum = (pace->m - 1) / after;
    pace->m = after;
}

/* After an iteration: whether momentum leads downhill, what the gap is, whether to go on. All threads decide alike. */
static void decide(const Model *job, const double *uphill, const double *sums, Pace *pace)
{
    long k = pace->iteration;
    if (job->restart && k > job->learned && (k - job->learned) % job->restart == 0) {
        double up = 0;
        for (long i = 0; i < job->n0; i++) up += uphill[i];
        if (up < 0) pace->m = 1;
    }
    if (looks(job, pace)) {
        certify(job, sums, pace);
        if (pace->gap < 0.9 * pace->mark) pace->mark = pace->gap, pace->mark_at = k;
        pace->next_look = k + (k / 10 > SHORTEST ? k / 10 : SHORTEST);
        if (pace->gap <= job->tolerance * (pace->value - pace->gap))
            pace->status = REACHED;
        else if (k >= 4 * pace->mark_at && k >= 400)
            pace->status = STUCK;
    }
    if (pace->status == GOING && k >= job->limit) pace->status = FINISHED;
}

/* All of a solve by one thread of those that share it. */
static void solve(const Model *job, Team *team, long from, long to, double *uphill, double *sums, Pace *pace, float *x)
{
    const long plane = plane_of(job);
    if (pace->status == GOING && job->cold) {
        add_up(job, team, from, to, sums);
        meet(job->meeting, team->members);
        certify(job, sums, pace);
        pace->first = pace->value;
    }
    while (pace->status == GOING) {
        next_numbers(job, pace);
        iterate(job, team, from, to, pace, uphill);
        if (job->meeting->stop) return;
        if (looks(job, pace)) {
            add_up(job, team, from, to, sums);
            meet(job->meeting, team->members);
        }
        decide(job, uphill, sums, pace); /* nobody writes what it reads before all have met again */
    }
    for (long i = from; i < to; i++) {
        point(job, team, job->p, i, team->here);
        for (long c = 0; c < job->channels; c++)
            memcpy(x + (c * job->n0 + i) * plane, team->here + c * plane, (size_t)plane * sizeof(float));
    }
}

/* One instance. y, x (C, n0, n1, n2), p (C, axes, n0, n1, n2): where to start, and the answer; numbers (2, most). The map of
   weights is (maps, map_axes, n0, n1, n2), or none. `options`: isotropic, coupled, boxed, cold. `sizes`: channels, axes, n0, n1,
   n2, maps, map_axes, learned, most, limit, first look, restart. `reals`: bound, scale, step, tolerance, delta, low, high,
   norm, roundings, h0, h1, h2. report: iterations, status, F(x), its gap, F(y) where
   p is 0 to begin with. */
int lmd_model(const float *y, const float *map, const double *numbers, const double *reals, const long *sizes,
              const int *options, int threads, float *p, float *x, double *report)
{
    Model job = {.channels = sizes[0], .axes = sizes[1], .n0 = sizes[2], .n1 = sizes[3], .n2 = sizes[4], .maps = sizes[5],
                 .map_axes = sizes[6], .learned = sizes[7], .limit = sizes[9], .restart = sizes[11],
                 .isotropic = options[0], .coupled = options[1], .boxed = options[2], .cold = options[3], .bound = reals[0],
                 .scale = reals[1], .inverse = 0.5 / reals[1], .step = reals[2], .tolerance = reals[3],
                 .delta = reals[4], .low = reals[5], .high = reals[6], .norm = reals[7], .roundings = reals[8],
                 .h = {reals[9], reals[10], reals[11]}, .y = y, .map = map, .p = p, .steps = numbers,
                 .momenta = numbers + sizes[8]};
    const long all = job.channels * job.axes * job.n0 * plane_of(&job);
    double *shared = malloc((size_t)(job.n0 * (SUMS + 1)) * sizeof(double));
    Meeting meeting = {0};
    job.q = malloc((size_t)all * sizeof(float));
    if (!shared || !job.q) {
        free(shared);
        free(job.q);
        return NO_MEMORY;
    }
    memcpy(job.q, p, (size_t)all * sizeof(float));
    job.meeting = &meeting;
    double *uphill = shared + SUMS * job.n0;
    if (threads > job.n0 / 2) threads = job.n0 > 3 ? (int)(job.n0 / 2) : 1;
#pragma omp parallel num_threads(threads)
    {
        Team team = {.members = omp_get_num_threads()};
        Pace pace = {.m = 1, .mark = INFINITY, .next_look = sizes[7] > sizes[10] ? sizes[7] : sizes[10]};
        const long thread = omp_get_thread_num(), members = team.members;
        if (!make(&job, &team)) fail_with(&meeting, NO_MEMORY);
        meet(&meeting, team.members);
        if (!meeting.stop) {
            if (pace.iteration >= job.limit) pace.status = FINISHED;
            solve(&job, &team, job.n0 * thread / members, job.n0 * (thread + 1) / members, uphill, shared, &pace, x);
            if (thread == 0)
                report[0] = (double)pace.iteration, report[1] = pace.status, report[2] = pace.value, report[3] = pace.gap,
                report[4] = pace.first;
        }
        free(team.memory);
    }
    free(job.q);
    free(shared);
    return meeting.failed;
}

/* What relaxed PDHG has besides: the misfit, its box, and where it stands; x and x~ plane by plane, (n0, C, n1, n2). */
typedef struct {
    Model model;         /* its q is p of the iteration, its p where p~ goes in the end */
    int misfit;
    const float *weight; /* of the entries, like y: curvatures, backgrounds of counts, weights of distances; of slopes none */
    const float *low, *high; /* of each channel */
    float *x, *target, *x_sum, *p_sum; /* what x~ and p~ are added to, or NULL */
    double tau, sigma, relaxation;
    int last;
} Saddle;

/* p~ of plane i in place of p, with 2 p~ - p to `over` (C, axes, n1, n2); where it only looks, p stays. */
static void ascend(const Saddle *job, const Team *team, long i, const float *after, float *over, int looks)
{
    const Model *model = &job->model;
    const long n = model->n2, fields = model->channels * model->axes, size = model->channels * plane_of(model);
    const float r = (float)job->relaxation;
    for (long j = 0; j < model->n1; j++) {
        rise(model, team, i, j, job->x + i * size, after, (float)job->sigma);
        project(model, team, i, j);
        for (long f = 0; f < fields; f++) {
            const long row = row_of(model, 0, f, i, j);
            const float *restrict v = team->rows + f * n;
            float *restrict p = model->q + row, *restrict out = over + (f * model->n1 + j) * n;
#pragma omp simd
            for (long k = 0; k < n; k++) out[k] = 2 * v[k] - p[k];
            if (looks) continue;
            if (job->last) memcpy(model->p + row, v, (size_t)n * sizeof(float));
            if (job->p_sum) add(n, v, job->p_sum + row);
#pragma omp simd
            for (long k = 0; k < n; k++) p[k] += r * (v[k] - p[k]);
        }
    }
}

/* x of plane i: x~ = prox(x - t K' over), with `above` that of the plane before, and x moves past it. */
static void descend(const Saddle *job, const Team *team, long i, const float *above, const float *over)
{
    const Model *model = &job->model;
    const long n = model->n2, rows = model->n1, axes = model->axes;
    const float r = (float)job->relaxation;
    float by[3], *restrict v = team->rows;
    for (int a = 0; a < 3; a++) by[a] = (float)(job->tau / model->h[a]);
    for (long c = 0; c < model->channels; c++)
        for (long j = 0; j < rows; j++) {
            const long at = ((i * model->channels + c) * rows + j) * n, own = ((c * model->n0 + i) * rows + j) * n;
            const float *up = i ? above + (c * axes * rows + j) * n : team->zeros, *down = over + (c * axes * rows + j) * n;
            const float *mid = axes == 3 ? over + ((c * axes + 1) * rows + j) * n : team->zeros;
            const float *before = axes == 3 && j ? mid - n : team->zeros, *right = over + ((c * axes + axes - 1) * rows + j) * n;
            float *restrict x = job->x + at;
            v[0] = x[0] - by[0] * (up[0] - down[0]) - by[1] * (before[0] - mid[0]) + by[2] * right[0];
#pragma omp simd
            for (long k = 1; k < n; k++)
                v[k] = x[k] - by[0] * (up[k] - down[k]) - by[1] * (before[k] - mid[k]) - by[2] * (right[k - 1] - right[k]);
            draw_near(job->misfit, n, (float)job->tau, job->low[c], job->high[c], model->y + own, job->weight + own, v);
            if (job->last) memcpy(job->target + at, v, (size_t)n * sizeof(float));
            if (job->x_sum) add(n, v, job->x_sum + at);
#pragma omp simd
            for (long k = 0; k < n; k++) x[k] += r * (v[k] - x[k]);
        }
}

/* One iteration of planes [from, to) by one thread; x past the end and 2 p~ - p before the beginning are made first. */
static void relax(const Saddle *job, Team *team, long from, long to, float *overs)
{
    const Model *model = &job->model;
    const long size = model->channels * plane_of(model), fields = size * model->axes;
    float *over = overs, *above = overs + fields;
    if (from < to && to < model->n0) memcpy(team->edge, job->x + to * size, (size_t)size * sizeof(float));
    if (from < to && from) ascend(job, team, from - 1, job->x + from * size, above, 1);
    meet(model->meeting, team->members);
    for (long i = from; i < to && !watch(model->meeting, size); i++) {
        ascend(job, team, i, i + 1 < to ? job->x + (i + 1) * size : team->edge, over, 0);
        descend(job, team, i, above, over);
        float *swap = over;
        over = above;
        above = swap;
    }
    meet(model->meeting, team->members);
}

/* `count` iterations of relaxed PDHG of one instance. y, weight (C, n0, n1, n2); x and target (n0, C, n1, n2); p and dual
   (C, axes, n0, n1, n2): x and p are where they start and end, target and dual are x~ and p~ of the last one. `numbers`
   (count, 3): tau, sigma and relaxation. `options`: isotropic, coupled, misfit. `sizes`: channels, axes, n0, n1, n2, maps,
   map_axes, count. `reals`: bound, delta, h0, h1, h2. */
int lmd_relaxed(const float *y, const float *weight, const float *map, const float *low, const float *high,
                const double *numbers, const double *reals, const long *sizes, const int *options, int threads, float *x,
                float *p, float *target, float *dual, float *x_sum, float *p_sum)
{
    Meeting meeting = {0};
    const Model model = {.channels = sizes[0], .axes = sizes[1], .n0 = sizes[2], .n1 = sizes[3], .n2 = sizes[4],
                         .maps = sizes[5], .map_axes = sizes[6], .isotropic = options[0], .coupled = options[1],
                         .bound = reals[0], .delta = reals[1], .h = {reals[2], reals[3], reals[4]}, .y = y, .map = map,
                         .p = dual, .q = p, .meeting = &meeting};
    const long plane = model.channels * model.axes * plane_of(&model);
    if (threads > model.n0 / 2) threads = model.n0 > 3 ? (int)(model.n0 / 2) : 1;
#pragma omp parallel num_threads(threads)
    {
        Saddle job = {.model = model, .misfit = options[2], .weight = weight, .low = low, .high = high, .x = x, .target = target,
                      .x_sum = x_sum, .p_sum = p_sum};
        Team team = {.members = omp_get_num_threads()};
        const long members = team.members, thread = omp_get_thread_num();
        float *overs = malloc((size_t)(2 * plane) * sizeof(float));
        if (!make(&model, &team) || !overs) fail_with(&meeting, NO_MEMORY);
        meet(&meeting, team.members);
        for (long k = 0; k < sizes[7] && !meeting.stop; k++) {
            job.tau = numbers[3 * k], job.sigma = numbers[3 * k + 1], job.relaxation = numbers[3 * k + 2];
            job.last = k + 1 == sizes[7];
            relax(&job, &team, model.n0 * thread / members, model.n0 * (thread + 1) / members, overs);
        }
        free(overs);
        free(team.memory);
    }
    return meeting.failed;
}

/* The prox of the conjugate of the misfit at v, with step s: its dual point next to v. */
static inline float conjugate(int misfit, float v, float s, float y, float weight)
{
    if (misfit == MISFIT_SQUARES) return (v - s * y) * (2 * weight / (2 * weight + s));
    if (misfit == MISFIT_DISTANCES) {
        float off = v - s * y;
        off = off > weight ? weight : off;
        return off < -weight ? -weight : off;
    }
    float up = s * weight, down = s * y, a = 1 - v - up, size = sqrtf(a * a + 4 * down);
    float below = size - a > 1e-37f ? size - a : 1e-37f, root = a > 0 ? 0.5f * (a + size) : 2 * down / below;
    float share = down / (root > 0 ? root : 1);
    return fabsf(v) + up + share < root ? v + up - share : 1 - root; /* near 0, 1 - root has the digits of 1 alone */
}

static void conjugates(int misfit, long n, const float *z, const float *y, const float *weight, float s, float r,
                       float *restrict q, float *restrict answer, float *restrict over, float *restrict sum)
{
#pragma omp simd
    for (long k = 0; k < n; k++) {
        float at = conjugate(misfit, q[k] + s * z[k], s, y[k], weight[k]);
        answer[k] = at;
        over[k] = 2 * at - q[k];
        q[k] += r * (at - q[k]);
        sum[k] += at;
    }
}

/* One dual step of relaxed PDHG for the misfit behind an operator, of n entries: z is what the operator makes of x. q~ goes to
   `answer` and is added to `sum`, 2 q~ - q goes to `over`, and q moves past q~. `reals`: sigma and relaxation. */
int lmd_beside(const float *z, const float *y, const float *weight, const double *reals, const long *sizes,
               const int *options, int threads, float *q, float *answer, float *over, float *sum)
{
    const long n = sizes[0], part = (n + threads - 1) / threads;
    const float s = (float)reals[0], r = (float)reals[1];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long from = 0; from < n; from += part) {
        const long own = from + part > n ? n - from : part;
        switch (options[0]) { /* each with a loop of its own */
        case MISFIT_SQUARES:
            conjugates(MISFIT_SQUARES, own, z + from, y + from, weight + from, s, r, q + from, answer + from, over + from, sum + from);
            break;
        case MISFIT_COUNTS:
            conjugates(MISFIT_COUNTS, own, z + from, y + from, weight + from, s, r, q + from, answer + from, over + from, sum + from);
            break;
        default:
            conjugates(MISFIT_DISTANCES, own, z + from, y + from, weight + from, s, r, q + from, answer + from, over + from, sum + from);
        }
    }
    return 0;
}
