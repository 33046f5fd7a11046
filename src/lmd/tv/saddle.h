/* One plane of total variation inpainting, in numbers of type REAL. saddle.c includes this file
   once for each type; NAME(f) is the name of f for that type. */

#define Plane NAME(PlaneOf)

/* Rows are padded to whole vectors; columns from `width` on do not count. */
typedef struct {
    REAL *x, *down, *right, *y, *kept;
    REAL *then, *then_down, *then_right; /* x and p when steps were last balanced */
    REAL *bounds, *rows, *zeros;         /* bounds of differences to the right; scratch rows */
    REAL low, high;
    void *memory;
} Plane;

static int NAME(load)(const Job *job, long c, Plane *plane) {
    const long width = job->width, size = job->height * width, stride = job->stride;
    const long whole = job->height * stride;
    const long first = c * size, mask = mask_of(job, c);
    const long reals = 8 * whole + (4 * DEPTH + 5) * (stride + LANES) + 2 * LANES;
    plane->memory = aligned_alloc(64, (size_t)(reals * (long)sizeof(REAL) + 63) / 64 * 64);
    if (!plane->memory) return 0;
    memset(plane->memory, 0, (size_t)reals * sizeof(REAL));
    REAL **arrays[8] = {&plane->x, &plane->down, &plane->right, &plane->y, &plane->kept,
        &plane->then, &plane->then_down, &plane->then_right};
    for (int a = 0; a < 8; a++) *arrays[a] = (REAL *)plane->memory + a * whole;
    plane->zeros = (REAL *)plane->memory + 8 * whole + LANES; /* reads go past the last row */
    plane->bounds = plane->zeros + stride + LANES;
    plane->rows = plane->bounds + stride + LANES;
    plane->low = (REAL)job->low[c], plane->high = (REAL)job->high[c];
    for (long j = 0; j + 1 < width; j++) plane->bounds[j] = (REAL)job->bound;
    for (long i = 0; i < job->height; i++)
        for (long j = 0; j < width; j++) {
            const long to = i * stride + j, from = i * width + j;
            plane->x[to] = (REAL)get(job, job->x, first + from);
            plane->y[to] = (REAL)get(job, job->y, first + from);
            plane->kept[to] = get(job, job->mask, mask + from) > 0 ? 1 : 0;
            if (job->p && i + 1 < job->height)
                plane->down[to] = (REAL)get(job, job->p, 2 * first + from);
            if (job->p && j + 1 < width)
                plane->right[to] = (REAL)get(job, job->p, 2 * first + size + from);
        }
    /* x, down and right are contiguous, and so are then, then_down and then_right */
    memcpy(plane->then, plane->x, 3 * (size_t)whole * sizeof(REAL));
    return 1;
}

/* One row of one iteration, in place. `above` is 2 p~ - p along the columns in the previous row,
 * `here` and `side` are 2 p~ - p of this row. With `answer`, writes x~ and p~ to rows instead. */
INLINE void NAME(row)(const Job *job, const Plane *plane, long i, const int isotropic,
    const REAL *restrict above, REAL *restrict here, REAL *restrict side, REAL *restrict answers,
    const int answer) {
    const long stride = job->stride, at = i * stride;
    const REAL t = (REAL)job->tau, s = (REAL)(1 / (job->tau * job->squared_norm)),
               bound = (REAL)job->bound;
    const REAL r = (REAL)job->relaxation,
               pull = (REAL)(2 * job->scale * job->tau / (1 + 2 * job->scale * job->tau));
    const REAL low = plane->low, high = plane->high, *restrict bounds = plane->bounds;
    const REAL *restrict y = plane->y + at, *restrict kept = plane->kept + at;
    REAL *restrict down = plane->down + at, *restrict right = plane->right + at, *x = plane->x + at;
    const REAL *next = i + 1 < job->height ? x + stride : x;
#pragma omp simd
    for (long j = 0; j < stride; j++) {
        REAL p = down[j], q = right[j], v = p + s * (next[j] - x[j]), w = q + s * (x[j + 1] - x[j]);
        if (isotropic) {
            w = bounds[j] > 0 ? w : 0;
            REAL square = v * v + w * w, factor = square > bound * bound ? bound / SQRT(square) : 1;
            v *= factor, w *= factor;
        } else {
            v = v > bound ? bound : v, v = v < -bound ? -bound : v;
            w = w > bounds[j] ? bounds[j] : w, w = w < -bounds[j] ? -bounds[j] : w;
        }
        here[j] = 2 * v - p, side[j] = 2 * w - q;
        if (answer) answers[j] = v, answers[stride + j] = w;
        else down[j] = p + r * (v - p), right[j] = q + r * (w - q);
    }
#pragma omp simd
    for (long j = 0; j < stride; j++) {
        REAL v = x[j] - t * ((above[j] - here[j]) + (side[j - 1] - side[j]));
        v += pull * kept[j] * (y[j] - v);
        v = v > high ? high : v, v = v < low ? low : v;
        if (answer) answers[2 * stride + j] = v;
        else x[j] += r * (v - x[j]);
    }
}

/* `count` iterations, each one row behind the previous one, so that rows stay in the cache for all.
 * With `answer`, instead writes x~ and p~ of the next iteration to the output. */
static void NAME(block)(const Job *job, const Plane *plane, long c, long count, const int answer) {
    const long height = job->height, width = job->width, size = height * width;
    const long space = job->stride + LANES;
    REAL *answers = plane->rows + 4 * DEPTH * space;
    for (long front = 0; front < height + count - 1; front++) {
        if (watch(job->meeting, job->stride * count)) return;
        for (long s = 0; s < count; s++) {
            const long i = front - s;
            if (i < 0 || i >= height) continue;
            REAL *rows = plane->rows + 4 * s * space, *here = rows + i % 2 * space;
            const REAL *above = i ? rows + (i + 1) % 2 * space : plane->zeros;
            if (answer) NAME(row)
            (job, plane, i, job->isotropic, above, here, rows + 2 * space + 8, answers, 1);
            else if (job->isotropic)
                NAME(row)(job, plane, i, 1, above, here, rows + 2 * space + 8, NULL, 0);
            else NAME(row)(job, plane, i, 0, above, here, rows + 2 * space + 8, NULL, 0); }
        if (!answer) continue;
        for (long j = 0; j < width; j++) {
            const long at = c * size + front * width + j;
            put(job, job->p_out, at + c * size, (double)answers[j]);
            put(job, job->p_out, at + (c + 1) * size, (double)answers[job->stride + j]);
            put(job, job->x_out, at, (double)answers[2 * job->stride + j]);
        }
    }
}

/* Adds ||x - x_then||^2 and ||p - p_then||^2 of this plane to x and p. */
static void NAME(moved)(const Job *job, Plane *plane, double *x, double *p) {
    double first = 0, second = 0;
    for (long i = 0; i < job->height; i++)
        for (long at = i * job->stride; at < i * job->stride + job->width; at++) {
            double a = plane->x[at] - plane->then[at], b = plane->down[at] - plane->then_down[at];
            double d = plane->right[at] - plane->then_right[at];
            first += a * a, second += b * b + d * d;
        }
    *x += first, *p += second;
    memcpy(plane->then, plane->x, 3 * (size_t)(job->height * job->stride) * sizeof(REAL));
}

/* All iterations of a plane up to the next meeting; with `look`, also the answer and its sums. */
static void NAME(advance)(
    const Job *job, const Plane *plane, long c, long until, int look, double *sums) {
    for (long k = job->pace.iteration; k < until; k += DEPTH)
        NAME(block)(job, plane, c, least(until - k, DEPTH), 0);
    if (!look) return;
    memset(sums, 0, SUMS * sizeof(double));
    NAME(block)(job, plane, c, 1, 1);
    add_sums(job, c, sums);
}

static void NAME(solve)(Job *job, int threads) {
    const long channels = job->channels;
    Plane *planes = calloc((size_t)channels, sizeof(Plane));
    double *sums = calloc((size_t)channels * SUMS, sizeof(double));
    int failed = !planes || !sums;
    for (long c = 0; c < channels && !failed; c++) failed |= !NAME(load)(job, c, planes + c);
    if (failed) fail_with(job->meeting, NO_MEMORY);
    while (job->pace.status == GOING && !has_failed(job->meeting)) {
        const long until = next_meeting(job), last = until + 1 >= job->limit;
        const int look = last || until + 1 >= job->pace.next_look;
        int arrived = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
#pragma omp for schedule(dynamic) nowait
            for (long c = 0; c < channels; c++)
                NAME(advance)(job, planes + c, c, until, look, sums + c * SUMS);
            watch_others(job->meeting, &arrived);
        }
        job->pace.iteration = until;
        if (look) {
            double all[SUMS] = {0};
            for (long n = 0; n < channels * SUMS; n++) all[n % SUMS] += sums[n];
            certify(job, all);
            judge(&job->pace, until + 1, most((until + 1) / 9, SHORTEST), job->tolerance);
            if (last && job->pace.status == GOING) job->pace.status = FINISHED;
        }
        if (!is_due(job, until) || job->pace.status != GOING) continue;
        double x = 0, p = 0;
        for (long c = 0; c < channels; c++) NAME(moved)(job, planes + c, &x, &p);
        balance(job, x, p);
    }
    for (long c = 0; c < channels && planes; c++) free(planes[c].memory);
    free(planes);
    free(sums);
}
