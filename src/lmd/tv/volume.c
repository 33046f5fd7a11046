/* Total variation models in float numbers: signals, images and volumes, with spacings, coupled
 * channels, maps of weights, Huber functions and boxes. This file has whole solves by FGP for
 * squares, and iterations of relaxed PDHG for any misfit. lmd.solvers.classical.fgp and pdhg and
 * lmd.solvers.learned.primal_dual have the formulas, lmd.problems.tv the models.
 *
 * Arrays are (C, n0, n1, n2) and dual fields (C, axes, n0, n1, n2), row by row; an image has n1 = 1
 * and two axes, a signal n0 = n1 = 1 and one axis. An iteration goes once through the n0 planes, in
 * place: it computes x of the next plane before q of this one changes. Threads share the planes by
 * slabs, and compute x at both ends of their slab before anything changes. All threads compute with
 * the same operations, so the number of threads does not change the answer. */

#include <float.h>
#include <stdlib.h>

#include "pace.h"
#include "rows.h"

enum {
    FIRST_LOOK = 8, /* iterations before the first gap evaluation, at least */
    SHORTEST = 8    /* iterations between two gap evaluations, at least */
};

/* The sums from which a gap and its rounding are computed. */
enum {
    VALUE,      /* g(Kx) */
    SLACK,      /* the residual of g at p */
    AWAY,       /* the residual of the squares at -K'p */
    MISFIT,     /* ||x - y||^2 */
    DUAL,       /* ||p||^2 */
    LENGTHS,    /* lengths of Kx, times weights */
    SQUARES,    /* ||Kx||^2 */
    WEIGHTS2,   /* squares of weights */
    REACH2,     /* squares of the largest distances from x in the box */
    REACHED_BY, /* the largest change of the squares over these distances */
    WEIGHTS,    /* weights */
    RATIO,      /* the largest square of a length of p over its weight */
    SUMS
};

/* The factor on p in proofs, which keeps p in the domain despite rounding. */
#define SHRINK (1 - 5e-7)

typedef struct {
    Form form;                 /* channels, axes, isotropic, coupled */
    long n0, n1, n2;           /* lengths of the three axes of the arrays */
    long maps, map_axes;       /* channels and axes of the map of weights; 0 is none */
    double bound, delta, h[3]; /* the weight (1 with a map), the delta of Huber, the spacings */
    const float *y, *map;      /* data; weights */
    float *p, *q;              /* FGP: the dual points p and q; PDHG: the last p~, and p */
    double scale, inverse, step, tolerance, low, high, norm, roundings;
    int boxed;
    long limit, restart;
    Meeting *meeting;
} Model;

/* Data of one thread: planes of x, and rows. */
typedef struct {
    float *here, *next, *edge, *rows, *squares, *bound, *zeros;
    double *z, *v, *lines;
    void *memory;
    long members;  /* number of threads that share the planes */
    long from, to; /* the planes of this thread */
} Team;

static long plane_of(const Model *job) { return job->n1 * job->n2; }

/* The model that lmd_model and lmd_relaxed are given. `sizes`: channels, axes, n0, n1, n2, maps,
 * map_axes, isotropic, coupled. `reals`: bound, delta, h0, h1, h2. */
static Model model_of(const double *reals, const long *sizes, Meeting *meeting) {
    return (Model){.form = {sizes[0], sizes[1], (int)sizes[7], (int)sizes[8]},
        .n0 = sizes[2],
        .n1 = sizes[3],
        .n2 = sizes[4],
        .maps = sizes[5],
        .map_axes = sizes[6],
        .bound = reals[0],
        .delta = reals[1],
        .h = {reals[2], reals[3], reals[4]},
        .meeting = meeting};
}

/* Sets up the memory and planes of this thread; all threads meet. Returns whether all succeeded. */
static int join(const Model *job, Team *team) {
    const long plane = job->form.channels * plane_of(job), n = job->n2;
    const long fields = job->form.channels * job->form.axes;
    const long floats = 3 * plane + (fields + 3) * n, doubles = (2 * fields + 3) * n;
    const long thread = omp_get_thread_num();
    team->members = omp_get_num_threads();
    team->from = job->n0 * thread / team->members;
    team->to = job->n0 * (thread + 1) / team->members;
    team->memory = malloc((size_t)floats * sizeof(float) + (size_t)doubles * sizeof(double) + 64);
    if (!team->memory) fail_with(job->meeting, NO_MEMORY);
    meet(job->meeting, (int)team->members);
    if (job->meeting->stop) return 0;
    team->z = team->memory;
    team->v = team->z + fields * n;
    team->lines = team->v + fields * n;
    team->here = (float *)(team->lines + 3 * n);
    team->next = team->here + plane;
    team->edge = team->next + plane;
    team->rows = team->edge + plane;
    team->squares = team->rows + fields * n;
    team->bound = team->squares + n;
    team->zeros = team->bound + n;
    for (long k = 0; k < n; k++) team->bound[k] = (float)job->bound, team->zeros[k] = 0;
    return 1;
}

static void swap(float **one, float **other) {
    float *first = *one;
    *one = *other, *other = first;
}

/* The axis of the arrays along which component a of a field takes differences. */
static int axis_of(const Model *job, long a) { return a + 1 == job->form.axes ? 2 : (int)a; }

static long row_of(const Model *job, long c, long a, long i, long j) {
    return (((c * job->form.axes + a) * job->n0 + i) * job->n1 + j) * job->n2;
}

/* The bounds of a row of component a of channel c. */
static const float *bounds(const Model *job, const Team *team, long c, long a, long i, long j) {
    if (!job->maps) return team->bound;
    const long channel = job->maps > 1 ? c : 0, axis = job->map_axes > 1 ? a : 0;
    return job->map + (((channel * job->map_axes + axis) * job->n0 + i) * job->n1 + j) * job->n2;
}

/* The rows of a field whose differences K' takes: previous and current, along the three axes. */
typedef struct {
    const float *above, *down, *before, *mid, *right;
} Around;

/* These rows of a field whose first component has its row j at `down`, and in the previous plane at
 * `above`, which may be NULL; the next component is `axis` numbers on. */
static Around around(
    const Model *job, const Team *team, const float *down, const float *above, long axis, long j) {
    const int volume = job->form.axes == 3;
    const float *mid = volume ? down + axis : team->zeros;
    return (Around){.above = above ? above : team->zeros,
        .down = job->form.axes > 1 ? down : team->zeros,
        .mid = mid,
        .before = volume && j ? mid - job->n2 : team->zeros,
        .right = down + (job->form.axes - 1) * axis};
}

static Around around_row(
    const Model *job, const Team *team, const float *field, long c, long i, long j) {
    const float *down = field + row_of(job, c, 0, i, j);
    return around(job, team, down, i ? down - plane_of(job) : NULL, job->n0 * plane_of(job), j);
}

/* One row of v = from - t K'p. */
static void descend_row(
    const Model *job, Around p, double t, const float *from, float *restrict v) {
    float by[3];
    for (int a = 0; a < 3; a++) by[a] = (float)(t / job->h[a]);
    v[0] = from[0] - by[0] * (p.above[0] - p.down[0]) - by[1] * (p.before[0] - p.mid[0]) +
        by[2] * p.right[0];
#pragma omp simd
    for (long k = 1; k < job->n2; k++)
        v[k] = from[k] - by[0] * (p.above[k] - p.down[k]) - by[1] * (p.before[k] - p.mid[k]) -
            by[2] * (p.right[k - 1] - p.right[k]);
}

/* Plane i of x = y - inverse K'q, clipped to the box. */
static void point(const Model *job, const Team *team, const float *field, long i, float *x) {
    for (long c = 0; c < job->form.channels; c++)
        for (long j = 0; j < job->n1; j++, x += job->n2) {
            const float *y = job->y + ((c * job->n0 + i) * job->n1 + j) * job->n2;
            descend_row(job, around_row(job, team, field, c, i, j), job->inverse, y, x);
            if (job->boxed) clamp(job->n2, (float)job->low, (float)job->high, x);
        }
}

/* Finds the rows `here` and `there` of x whose difference is component a of Kx in row (i, j) of
 * channel c; `after` is the next plane. Returns their number: 0 at the end of an axis. */
static long neighbours(const Model *job, long c, long a, long i, long j, const float *x,
    const float *after, const float **here, const float **there) {
    const int axis = axis_of(job, a);
    const long n = job->n2, at = (c * job->n1 + j) * n;
    *here = x + at;
    *there = axis == 0 ? after + at : axis == 1 ? *here + n : *here + 1;
    if (axis == 2) return n - 1;
    return (axis == 0 ? i + 1 < job->n0 : j + 1 < job->n1) ? n : 0;
}

/* Row (i, j) of q + t K x, for all channels and components, in `team->rows`. */
static void rise(const Model *job, const Team *team, long i, long j, const float *x,
    const float *after, float t) {
    const long n = job->n2;
    for (long c = 0; c < job->form.channels; c++)
        for (long a = 0; a < job->form.axes; a++) {
            const float *q = job->q + row_of(job, c, a, i, j), *here, *there;
            const float *w = bounds(job, team, c, a, i, j);
            const float by = t / (float)job->h[axis_of(job, a)], soft = t * (float)job->delta;
            float *restrict v = team->rows + (c * job->form.axes + a) * n;
            const long count = neighbours(job, c, a, i, j, x, after, &here, &there);
#pragma omp simd
            for (long k = 0; k < count; k++) v[k] = q[k] + by * (there[k] - here[k]);
            for (long k = count; k < n; k++) v[k] = q[k];
            if (job->delta > 0)
#pragma omp simd
                for (long k = 0; k < n; k++) v[k] *= w[k] / (w[k] + soft);
        }
}

static void project(const Model *job, const Team *team, long i, long j) {
    for (long g = 0; g < groups_of(&job->form); g++) {
        const Group group = group_of(&job->form, g);
        const float *bound = bounds(job, team, group.channel, group.axis, i, j);
        project_group(group, team->rows, job->n2, bound, team->squares);
    }
}

/* p and q of a row, from `team->rows`; returns <p_{k+1} - q_k, p_{k+1} - p_k>. */
static double move(const Model *job, const Team *team, long i, long j, float m) {
    const long n = job->n2;
    double total = 0;
    for (long f = 0; f < job->form.channels * job->form.axes; f++) {
        const long row = row_of(job, 0, f, i, j);
        float *restrict p = job->p + row, *restrict q = job->q + row, sum = 0;
        const float *restrict v = team->rows + f * n;
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

/* One iteration. All threads meet after they have computed x at the ends of their slabs. */
static void iterate(const Model *job, Team *team, const Pace *pace, double *uphill) {
    const long from = team->from, to = team->to;
    if (from < to) point(job, team, job->q, from, team->here);
    if (from < to && to < job->n0) point(job, team, job->q, to, team->edge);
    meet(job->meeting, (int)team->members);
    for (long i = from; i < to && !watch(job->meeting, job->form.channels * plane_of(job)); i++) {
        float *after = i + 1 < to ? team->next : team->edge;
        if (i + 1 < to) point(job, team, job->q, i + 1, after);
        uphill[i] = 0;
        for (long j = 0; j < job->n1; j++) {
            rise(job, team, i, j, team->here, after, (float)pace->step);
            project(job, team, i, j);
            uphill[i] += move(job, team, i, j, (float)pace->momentum);
        }
        swap(&team->here, &team->next);
    }
    meet(job->meeting, (int)team->members);
}

/* Adds the sums of one group of rows, in double precision: g(Kx), its residual at p, and the sums
 * that bound their rounding. */
static void group_sums(
    const Model *job, const Team *team, Group group, const float *w, double *out) {
    const long n = job->n2, map = job->maps;
    double *z2 = team->lines, *zp = z2 + n, *p2 = zp + n, delta = job->delta;
    double value = 0, slack = 0, lengths = 0, squares = 0, weights2 = 0, weights = 0, dual = 0,
           ratio = out[RATIO];
    memset(z2, 0, (size_t)(3 * n) * sizeof(double));
    for (long r = 0; r < group.count; r++) {
        const double *z = team->z + (group.first + r * group.stride) * n,
                     *v = team->v + (group.first + r * group.stride) * n;
#pragma omp simd
        for (long k = 0; k < n; k++)
            z2[k] += z[k] * z[k], zp[k] += z[k] * v[k], p2[k] += v[k] * v[k];
    }
#pragma omp simd reduction(+ : value, slack, lengths, squares, weights2, weights, dual) reduction(max : ratio)
    for (long k = 0; k < n; k++) {
        double size = sqrt(z2[k]), weight = map ? (double)w[k] : job->bound;
        double near = size < delta ? size : delta, rest = size - near;
        double over = p2[k] > 0 ? p2[k] / (weight * weight) : 0;
        double soft = delta > 0 ? weight / (2 * delta) : 0, share = size > 0 ? near / size : 0,
               far = 1 - share;
        double away =
            delta > 0 ? near * near - 2 * share * delta / weight * zp[k] + delta * delta * over : 0;
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
    out[VALUE] += value, out[SLACK] += slack, out[LENGTHS] += lengths, out[SQUARES] += squares,
        out[DUAL] += dual;
    out[WEIGHTS2] += weights2, out[WEIGHTS] += weights, out[RATIO] = ratio;
}

/* Adds the sums of f for a row of channel c: away = s ||x - e||^2 + <slope, x - e>, where e is the
 * best x for p. */
static void square_sums(
    const Model *job, const Team *team, long c, long i, long j, const float *x, double *out) {
    const long n = job->n2;
    const float *y = job->y + ((c * job->n0 + i) * job->n1 + j) * n,
                *at = x + (c * job->n1 + j) * n;
    const Around p = around_row(job, team, job->p, c, i, j);
    const double s = job->scale, low = job->low, high = job->high, *h = job->h;
    double away = 0, misfit = 0, reach2 = 0, reached = 0;
    for (long k = 0; k < n; k++) {
        const double left = k ? (double)p.right[k - 1] : 0;
        double u = ((double)p.above[k] - (double)p.down[k]) / h[0];
        u += ((double)p.before[k] - (double)p.mid[k]) / h[1] + (left - (double)p.right[k]) / h[2];
        u *= SHRINK;
        double off = (double)at[k] - (double)y[k], best = -u * job->inverse, slope = 0,
               far = fabs(off);
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

/* Computes the sums of each plane of this thread. */
static void add_up(const Model *job, Team *team, double *sums) {
    const long n = job->n2, fields = job->form.channels * job->form.axes;
    if (team->from < team->to) point(job, team, job->p, team->from, team->here);
    for (long i = team->from; i < team->to; i++) {
        double *out = sums + SUMS * i;
        memset(out, 0, SUMS * sizeof(double));
        if (i + 1 < job->n0) point(job, team, job->p, i + 1, team->next);
        for (long j = 0; j < job->n1; j++) {
            for (long f = 0; f < fields; f++) {
                const long c = f / job->form.axes, a = f % job->form.axes;
                const float *here, *there, *p = job->p + row_of(job, 0, f, i, j);
                const double h = job->h[axis_of(job, a)];
                double *restrict z = team->z + f * n, *restrict v = team->v + f * n;
                const long count =
                    neighbours(job, c, a, i, j, team->here, team->next, &here, &there);
                for (long k = 0; k < count; k++) z[k] = ((double)there[k] - (double)here[k]) / h;
                for (long k = count; k < n; k++) z[k] = 0;
                for (long k = 0; k < n; k++) v[k] = SHRINK * (double)p[k];
            }
            for (long c = 0; c < job->form.channels; c++)
                square_sums(job, team, c, i, j, team->here, out);
            for (long g = 0; g < groups_of(&job->form); g++) {
                const Group group = group_of(&job->form, g);
                group_sums(
                    job, team, group, bounds(job, team, group.channel, group.axis, i, j), out);
            }
        }
        swap(&team->here, &team->next);
    }
}

/* F(x) and a bound on F(x) - min F with room for its rounding: docs/guarantees.md, Theorem 7, term
 * by term. */
static void certify(const Model *job, const double *sums, Pace *pace) {
    const double eps = DBL_EPSILON;
    double total[SUMS] = {0};
    for (long i = 0; i < job->n0; i++)
        for (int c = 0; c < SUMS; c++)
            total[c] =
                c == RATIO ? fmax(total[c], sums[SUMS * i + c]) : total[c] + sums[SUMS * i + c];
    double value = job->scale * total[MISFIT] + total[VALUE],
           away = total[AWAY] > 0 ? total[AWAY] : 0;
    double gap = total[SLACK] + away, members = (double)(job->form.axes * job->form.channels);
    double behind = job->roundings * eps * job->norm * sqrt(total[DUAL]); /* the error of K'p */
    double rounding = 2 * (32 + 4 * members) * eps * (total[LENGTHS] + job->delta * total[WEIGHTS]);
    rounding += 8 * eps * sqrt(total[WEIGHTS2] * total[SQUARES]);
    if (job->boxed) rounding += 128 * eps * total[REACHED_BY] + sqrt(total[REACH2]) * behind;
    else {
        double off = job->roundings * eps * sqrt(total[MISFIT]) + job->inverse * behind;
        rounding += 2 * sqrt(job->scale * away) * off + job->scale * off * off;
    }
    double count =
        (members + (double)job->form.channels) * (double)(job->n0 * job->n1 * job->n2) + 8;
    pace->value = value;
    pace->gap = total[RATIO] <= 1 ? gap + rounding + count * eps * (fabs(value) + gap) : INFINITY;
    if (value == 0) pace->gap = 0; /* no value is below 0 */
}

/* The part of one thread in a solve; all threads take the same decisions. */
static void solve(
    const Model *job, Team *team, double *uphill, double *sums, Pace *pace, float *x) {
    const long plane = plane_of(job);
    if (pace->iteration >= job->limit) pace->status = FINISHED;
    while (pace->status == GOING) {
        next_numbers(pace, job->step);
        iterate(job, team, pace, uphill);
        if (job->meeting->stop) return;
        const long k = pace->iteration;
        const int look = looks(pace, job->tolerance, job->limit);
        if (look) {
            add_up(job, team, sums);
            meet(job->meeting, (int)team->members);
        }
        /* No thread changes the sums that are read here before all threads meet again. */
        double up = 0;
        for (long i = 0; i < job->n0; i++) up += uphill[i];
        if (restarts(pace, job->restart) && up < 0) pace->m = 1;
        if (look) {
            certify(job, sums, pace);
            judge(pace, k, most(k / 10, SHORTEST), job->tolerance);
        }
        if (pace->status == GOING && k >= job->limit) pace->status = FINISHED;
    }
    for (long i = team->from; i < team->to; i++) {
        point(job, team, job->p, i, team->here);
        for (long c = 0; c < job->form.channels; c++)
            memcpy(x + (c * job->n0 + i) * plane, team->here + c * plane,
                (size_t)plane * sizeof(float));
    }
}

/* Solves one instance with squares by FGP. `arrays`: y (C, n0, n1, n2), the map of weights (maps,
 * map_axes, n0, n1, n2) or NULL, step sizes and momenta (2, learned), p (C, axes, n0, n1, n2), the
 * start and the answer, and x, the answer. `sizes`: those of model_of, then boxed, learned, limit,
 * restart; `reals`: those of model_of, then scale, step, tolerance, low, high, norm, roundings. */
int lmd_model(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    Meeting meeting = {0};
    Model job = model_of(reals, sizes, &meeting);
    const long all = job.form.channels * job.form.axes * job.n0 * plane_of(&job);
    double *sums = malloc((size_t)(job.n0 * (SUMS + 1)) * sizeof(double));
    job.y = arrays[0], job.map = arrays[1], job.p = arrays[3];
    job.boxed = (int)sizes[9], job.limit = sizes[11], job.restart = sizes[12];
    job.scale = reals[5], job.inverse = 0.5 / reals[5], job.step = reals[6];
    job.tolerance = reals[7], job.low = reals[8], job.high = reals[9];
    job.norm = reals[10], job.roundings = reals[11];
    job.q = malloc((size_t)all * sizeof(float));
    if (!sums || !job.q) {
        free(sums);
        free(job.q);
        return NO_MEMORY;
    }
    memcpy(job.q, job.p, (size_t)all * sizeof(float));
#pragma omp parallel num_threads(slabs_of(job.n0, threads))
    {
        Team team = {0};
        Pace pace = {.m = 1,
            .mark = INFINITY,
            .next_look = most(sizes[10], FIRST_LOOK),
            .learned = sizes[10],
            .numbers = arrays[2]};
        if (join(&job, &team)) solve(&job, &team, sums + SUMS * job.n0, sums, &pace, arrays[4]);
        if (omp_get_thread_num() == 0) {
            report[0] = (double)pace.iteration, report[1] = pace.status;
            report[2] = pace.value, report[3] = pace.gap;
        }
        free(team.memory);
    }
    free(job.q);
    free(sums);
    return meeting.failed;
}

/* A model with the further data of relaxed PDHG; x and x~ are plane by plane, (n0, C, n1, n2). */
typedef struct {
    Model model; /* model.q is p of the iteration, model.p receives the last p~ */
    int misfit;
    const float *weight; /* of the entries, like y: curvatures, backgrounds of counts, weights of
                            distances; unused if linear */
    const float *low, *high;           /* ends of the box for each channel */
    float *x, *target, *x_sum, *p_sum; /* the last two are the sums of x~ and p~, or NULL */
    double tau, sigma, relaxation;
    int last;
} Saddle;

/* Computes p~ of plane i, writes 2 p~ - p to `over` (C, axes, n1, n2); moves p unless `looks`. */
static void ascend(
    const Saddle *job, const Team *team, long i, const float *after, float *over, int looks) {
    const Model *model = &job->model;
    const long n = model->n2, fields = model->form.channels * model->form.axes;
    const float *x = job->x + i * model->form.channels * plane_of(model);
    for (long j = 0; j < model->n1; j++) {
        rise(model, team, i, j, x, after, (float)job->sigma);
        project(model, team, i, j);
        for (long f = 0; f < fields; f++) {
            const long row = row_of(model, 0, f, i, j);
            const float *v = team->rows + f * n;
            reflect(n, v, model->q + row, over + (f * model->n1 + j) * n);
            if (!looks)
                relax(n, (float)job->relaxation, v, model->q + row,
                    job->last ? model->p + row : NULL, job->p_sum ? job->p_sum + row : NULL);
        }
    }
}

/* Computes x~ = prox(x - t K' over) of plane i, where `above` is `over` of the previous plane, and
 * moves x. */
static void descend(
    const Saddle *job, const Team *team, long i, const float *above, const float *over) {
    const Model *model = &job->model;
    const long n = model->n2, rows = model->n1, channels = model->form.channels;
    for (long c = 0; c < channels; c++)
        for (long j = 0; j < rows; j++) {
            const long at = ((i * channels + c) * rows + j) * n,
                       own = ((c * model->n0 + i) * rows + j) * n;
            const long row = (c * model->form.axes * rows + j) * n;
            const Around p = around(model, team, over + row, i ? above + row : NULL, rows * n, j);
            descend_row(model, p, job->tau, job->x + at, team->rows);
            draw_near(job->misfit, n, (float)job->tau, job->low[c], job->high[c], model->y + own,
                job->weight + own, team->rows);
            relax(n, (float)job->relaxation, team->rows, job->x + at,
                job->last ? job->target + at : NULL, job->x_sum ? job->x_sum + at : NULL);
        }
}

/* One iteration of the planes of a thread. It first copies x of the plane after its last one, and
 * computes 2 p~ - p of the plane before its first one. */
static void advance(const Saddle *job, Team *team, float *over, float *above) {
    const Model *model = &job->model;
    const long size = model->form.channels * plane_of(model), from = team->from, to = team->to;
    if (from < to && to < model->n0)
        memcpy(team->edge, job->x + to * size, (size_t)size * sizeof(float));
    if (from < to && from) ascend(job, team, from - 1, job->x + from * size, above, 1);
    meet(model->meeting, (int)team->members);
    for (long i = from; i < to && !watch(model->meeting, size); i++) {
        ascend(job, team, i, i + 1 < to ? job->x + (i + 1) * size : team->edge, over, 0);
        descend(job, team, i, above, over);
        swap(&over, &above);
    }
    meet(model->meeting, (int)team->members);
}

/* Iterates relaxed PDHG on one instance. `arrays`: y and weight (C, n0, n1, n2), the map of weights
 * or NULL, low and high (C), numbers (count, 3) tau, sigma and relaxation; x (n0, C, n1, n2) and p
 * (C, axes, n0, n1, n2), starts and ends; the last x~ and p~; their sums, or NULL. `sizes`: those
 * of model_of, then misfit, count. */
int lmd_relaxed(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    Meeting meeting = {0};
    Saddle given = {.model = model_of(reals, sizes, &meeting),
        .misfit = (int)sizes[9],
        .weight = arrays[1],
        .low = arrays[3],
        .high = arrays[4],
        .x = arrays[6],
        .target = arrays[8],
        .x_sum = arrays[10],
        .p_sum = arrays[11]};
    const double *numbers = arrays[5];
    given.model.y = arrays[0], given.model.map = arrays[2];
    given.model.q = arrays[7], given.model.p = arrays[9];
    const long plane = given.model.form.channels * given.model.form.axes * plane_of(&given.model);
#pragma omp parallel num_threads(slabs_of(given.model.n0, threads))
    {
        Saddle job = given;
        Team team = {0};
        float *over = malloc((size_t)(2 * plane) * sizeof(float));
        if (!over) fail_with(&meeting, NO_MEMORY);
        const int able = join(&job.model, &team);
        for (long k = 0; k < sizes[10] && able && !meeting.stop; k++) {
            job.tau = numbers[3 * k], job.sigma = numbers[3 * k + 1];
            job.relaxation = numbers[3 * k + 2], job.last = k + 1 == sizes[10];
            advance(&job, &team, over, over + plane);
        }
        free(over);
        free(team.memory);
    }
    return meeting.failed;
}
