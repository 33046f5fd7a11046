/* One plane of total variation inpainting, in numbers of type REAL, read from and written to arrays of type IO: what
   saddle.c includes once for each pair of types. NAME(f) is the name of f for this pair. */

/* Rows are of whole vectors; columns from `width` on do not count. */
typedef struct {
    REAL *x, *down, *right, *y, *kept, *then, *then_down, *then_right; /* x and p now and when steps were last balanced */
    REAL *bounds, *rows, *zeros;                                       /* of the differences to the right; scratch rows */
    REAL low, high;
    void *memory;
} NAME(Plane);

static int NAME(load)(const Job *job, long c, NAME(Plane) *plane)
{
    const long width = job->width, size = job->height * width, stride = job->stride, whole = job->height * stride;
    const IO *y = (const IO *)job->y + c * size, *mask = (const IO *)job->mask + (job->masks > 1 ? c : 0) * size;
    const IO *x = (const IO *)job->x + c * size, *p = job->p ? (const IO *)job->p + 2 * c * size : NULL;
    const long reals = 8 * whole + (4 * DEPTH + 5) * (stride + LANES) + 2 * LANES;
    plane->memory = aligned_alloc(64, (size_t)(reals * (long)sizeof(REAL) + 63) / 64 * 64);
    if (!plane->memory) return 0;
    memset(plane->memory, 0, (size_t)reals * sizeof(REAL));
    REAL **arrays[8] = {&plane->x,    &plane->down, &plane->right,     &plane->y,
                        &plane->kept, &plane->then, &plane->then_down, &plane->then_right};
    for (int a = 0; a < 8; a++) *arrays[a] = (REAL *)plane->memory + a * whole;
    plane->zeros = (REAL *)plane->memory + 8 * whole + LANES; /* what lies past the last row may be read */
    plane->bounds = plane->zeros + stride + LANES;
    plane->rows = plane->bounds + stride + LANES;
    plane->low = (REAL)((const IO *)job->low)[c], plane->high = (REAL)((const IO *)job->high)[c];
    for (long j = 0; j + 1 < width; j++) plane->bounds[j] = (REAL)job->bound;
    for (long i = 0; i < job->height; i++)
        for (long j = 0; j < width; j++) {
            const long to = i * stride + j, from = i * width + j;
            plane->x[to] = (REAL)x[from], plane->y[to] = (REAL)y[from], plane->kept[to] = mask[from] > 0 ? 1 : 0;
            if (p && i + 1 < job->height) plane->down[to] = (REAL)p[from];
            if (p && j + 1 < width) plane->right[to] = (REAL)p[size + from];
        }
    memcpy(plane->then, plane->x, 3 * (size_t)whole * sizeof(REAL)); /* x and p lie side by side, now and then */
    return 1;
}

/* One row of one iteration, in place: `above` is 2 p~ - p along the columns in the row before, `here` and `side` are
   that of this row. To `answer` writes x~ and p~ to rows instead. */
INLINE void NAME(row)(const NAME(Plane) *plane, const Numbers *n, long i, long stride, const REAL *next, REAL bound,
                      const int isotropic, const REAL *restrict above, REAL *restrict here, REAL *restrict side,
                      REAL *restrict answers, const int answer)
{
    const REAL s = (REAL)n->sigma, t = (REAL)n->tau, r = (REAL)n->relaxation, pull = (REAL)n->pull;
    const REAL low = plane->low, high = plane->high;
    const REAL *restrict bounds = plane->bounds, *restrict y = plane->y + i * stride, *restrict kept = plane->kept + i * stride;
    REAL *x = plane->x + i * stride;
    REAL *restrict down = plane->down + i * stride, *restrict right = plane->right + i * stride;
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
        if (answer)
            answers[j] = v, answers[stride + j] = w;
        else
            down[j] = p + r * (v - p), right[j] = q + r * (w - q);
    }
#pragma omp simd
    for (long j = 0; j < stride; j++) {
        REAL v = x[j] - t * ((above[j] - here[j]) + (side[j - 1] - side[j]));
        v += pull * kept[j] * (y[j] - v);
        v = v > high ? high : v, v = v < low ? low : v;
        if (answer)
            answers[2 * stride + j] = v;
        else
            x[j] += r * (v - x[j]);
    }
}

/* `count` iterations, each one row behind the one before it, so that rows are in the cache for all of them. */
static void NAME(block)(const Job *job, const NAME(Plane) *plane, const Numbers *numbers, long count)
{
    const long height = job->height, stride = job->stride, space = stride + LANES;
    for (long front = 0; front < height + count && !watch(job->meeting, stride * count); front++)
        for (long s = 0; s < count; s++) {
            const long i = front - s;
            if (i < 0 || i >= height) continue;
            REAL *rows = plane->rows + 4 * s * space;
            const REAL *next = plane->x + (i + 1 < height ? i + 1 : i) * stride, *above = i ? rows + (i + 1) % 2 * space : plane->zeros;
            if (job->isotropic)
                NAME(row)(plane, numbers + s, i, stride, next, (REAL)job->bound, 1, above, rows + i % 2 * space, rows + 2 * space + 8, NULL, 0);
            else
                NAME(row)(plane, numbers + s, i, stride, next, (REAL)job->bound, 0, above, rows + i % 2 * space, rows + 2 * space + 8, NULL, 0);
        }
}

/* x~ and p~ of the next iteration, which is not made: the answer. */
static void NAME(answer)(const Job *job, long c, const NAME(Plane) *plane, const Numbers *numbers)
{
    const long height = job->height, width = job->width, stride = job->stride, space = stride + LANES, size = height * width;
    REAL *rows = plane->rows, *answers = rows + 4 * DEPTH * space;
    for (long i = 0; i < height && !watch(job->meeting, width); i++) {
        const REAL *next = plane->x + (i + 1 < height ? i + 1 : i) * stride, *above = i ? rows + (i + 1) % 2 * space : plane->zeros;
        NAME(row)(plane, numbers, i, stride, next, (REAL)job->bound, job->isotropic, above, rows + i % 2 * space, rows + 2 * space + 8, answers, 1);
        IO *p = (IO *)job->p_out + 2 * c * size + i * width, *x = (IO *)job->x_out + c * size + i * width;
        for (long j = 0; j < width; j++) p[j] = (IO)answers[j], p[size + j] = (IO)answers[stride + j], x[j] = (IO)answers[2 * stride + j];
    }
}

/* A row of what was given out, in double precision. */
INLINE void NAME(widen)(const IO *from, long width, double *to)
{
    for (long j = 0; j < width; j++) to[j] = (double)from[j];
}

/* A row of p within the bound, where it was rounded on its way out. */
INLINE void NAME(confine)(const Job *job, double *restrict down, double *restrict right)
{
    const double bound = job->bound;
    for (long j = 0; j < job->width; j++) {
        double v = down[j], w = right[j], square = v * v + w * w, factor = square > bound * bound ? bound / sqrt(square) : 1;
        down[j] = job->isotropic ? factor * v : v > bound ? bound : v < -bound ? -bound : v;
        right[j] = job->isotropic ? factor * w : w > bound ? bound : w < -bound ? -bound : w;
    }
}

/* The sums of one row: length, slack, misfit and residual. `next` is the row of x after it, x[width] is x[width - 1],
   `above` is p along the columns in the row before, and right[-1] is 0. */
INLINE void NAME(sums_of)(const Job *job, double low, double high, const double *restrict x, const double *restrict next,
                          const double *restrict above, const double *restrict down, const double *restrict right,
                          const double *restrict y, const double *restrict known, const int isotropic, double *out)
{
    const double bound = job->bound, s = job->scale, half = 0.5 / s;
    double length = 0, slack = 0, misfit = 0, residual = 0;
#pragma omp simd reduction(+ : length, slack, misfit, residual)
    for (long j = 0; j < job->width; j++) {
        double along = next[j] - x[j], across = x[j + 1] - x[j], v = down[j], w = right[j];
        if (isotropic) {
            double size = sqrt(along * along + across * across), rest = bound * size - (along * v + across * w);
            length += size, slack += rest > 0 ? rest : 0;
        } else {
            length += fabs(along) + fabs(across);
            slack += fabs(along) * (along < 0 ? bound + v : bound - v) + fabs(across) * (across < 0 ? bound + w : bound - w);
        }
        double pushed = (v - above[j]) + (w - right[j - 1]), off = x[j] - y[j], free = half * pushed; /* pushed: -K'p */
        double nearest = free < low - y[j] ? low - y[j] : free;
        nearest = nearest > high - y[j] ? high - y[j] : nearest;
        double past = off - nearest, kept = past * (2 * s * (nearest - free) + s * past);
        double lost = pushed * ((pushed < 0 ? low : high) - x[j]);
        residual += known[j] > 0 ? kept : lost;
        misfit += known[j] > 0 ? off * off : 0;
    }
    out[0] += length, out[1] += slack, out[2] += misfit, out[3] += residual;
}

/* Those of one plane as it was given out: docs/guarantees.md, Theorem 3b. */
static int NAME(sums)(const Job *job, long c, double *sums)
{
    const long height = job->height, width = job->width, size = height * width, space = width + 16;
    const IO *x = (const IO *)job->x_out + c * size, *p = (const IO *)job->p_out + 2 * c * size;
    const IO *y = (const IO *)job->y + c * size, *mask = (const IO *)job->mask + (job->masks > 1 ? c : 0) * size;
    const double low = (double)((const IO *)job->low)[c], high = (double)((const IO *)job->high)[c];
    double *memory = calloc((size_t)(7 * space + 8), sizeof(double)), *line[7];
    if (!memory) return 0;
    for (int a = 0; a < 7; a++) line[a] = memory + 8 + a * space; /* x, next, above, down, right, y, known */
    NAME(widen)(x, width, line[0]);
    for (long i = 0; i < height && !watch(job->meeting, width); i++) {
        NAME(widen)(x + (i + 1 < height ? i + 1 : i) * width, width, line[1]);
        NAME(widen)(p + i * width, width, line[3]);
        NAME(widen)(p + size + i * width, width, line[4]);
        NAME(confine)(job, line[3], line[4]);
        NAME(widen)(y + i * width, width, line[5]);
        NAME(widen)(mask + i * width, width, line[6]);
        line[0][width] = line[0][width - 1];
        if (job->isotropic)
            NAME(sums_of)(job, low, high, line[0], line[1], line[2], line[3], line[4], line[5], line[6], 1, sums);
        else
            NAME(sums_of)(job, low, high, line[0], line[1], line[2], line[3], line[4], line[5], line[6], 0, sums);
        double *x_row = line[0], *above = line[2];
        line[0] = line[1], line[1] = x_row, line[2] = line[3], line[3] = above;
    }
    free(memory);
    return 1;
}

/* <x - x_then, x - x_then> and the same of p: what steps are balanced by. */
static void NAME(moved)(const Job *job, NAME(Plane) *plane, double *x, double *p)
{
    const long whole = job->height * job->stride;
    double first = 0, second = 0;
    for (long i = 0; i < job->height; i++)
        for (long j = 0; j < job->width; j++) {
            const long at = i * job->stride + j;
            double a = plane->x[at] - plane->then[at], b = plane->down[at] - plane->then_down[at], d = plane->right[at] - plane->then_right[at];
            first += a * a, second += b * b + d * d;
        }
    *x = first, *p = second;
    memcpy(plane->then, plane->x, 3 * (size_t)whole * sizeof(REAL));
}

/* All iterations of a plane up to the next meeting. */
static void NAME(advance)(const Job *job, const NAME(Plane) *plane, long until)
{
    for (long k = job->iteration; k < until;) {
        Numbers numbers[DEPTH];
        long count = until - k < DEPTH ? until - k : DEPTH;
        for (long s = 0; s < count; s++) numbers[s] = numbers_of(job, k + s);
        NAME(block)(job, plane, numbers, count);
        k += count;
    }
}

static int NAME(solve)(Job *job, int threads)
{
    const long channels = job->channels;
    NAME(Plane) *planes = calloc((size_t)channels, sizeof(NAME(Plane)));
    double *sums = calloc((size_t)channels * SUMS, sizeof(double));
    int failed = !planes || !sums, stopped = 0;
    for (long c = 0; c < channels && !failed; c++) failed |= !NAME(load)(job, c, planes + c);
    while (!failed && !stopped && job->status == GOING) {
        const long until = meeting(job);
        const int look = until + 1 >= job->next_look || until + 1 >= job->limit, balance = due(until);
        const Numbers ahead = numbers_of(job, until);
        int bad = 0, arrived = 0;
#pragma omp parallel num_threads(threads) reduction(| : bad) if (threads > 1)
        {
#pragma omp for schedule(dynamic) nowait
            for (long c = 0; c < channels; c++) {
                double *own = sums + c * SUMS;
                memset(own, 0, SUMS * sizeof(double));
                NAME(advance)(job, planes + c, until);
                if (!look || __atomic_load_n(&job->meeting->failed, __ATOMIC_RELAXED)) continue;
                NAME(answer)(job, c, planes + c, &ahead);
                if (job->tolerance >= 0 && !NAME(sums)(job, c, own)) bad = 1;
            }
            watch_others(job->meeting, &arrived);
        }
        job->iteration = until, failed |= bad, stopped = __atomic_load_n(&job->meeting->failed, __ATOMIC_RELAXED);
        if (look) {
            double all[SUMS] = {0};
            for (long c = 0; c < channels; c++)
                for (int a = 0; a < SUMS; a++) all[a] += sums[c * SUMS + a];
            if (job->tolerance >= 0) certify(job, all), decide(job);
            else job->status = FINISHED;
        }
        if (!balance || job->status != GOING) continue;
        double x = 0, p = 0;
        for (long c = 0; c < channels; c++) {
            double own_x, own_p;
            NAME(moved)(job, planes + c, &own_x, &own_p);
            x += own_x, p += own_p;
        }
        double wanted = sqrt(x / (p * job->squared_norm)) / job->tau;
        if (job->iteration < TRUSTED || !(x > 0) || !isfinite(wanted)) continue;
        wanted = wanted < 1.0 / 16 ? 1.0 / 16 : wanted > 16 ? 16 : wanted;
        job->tau *= sqrt(wanted);
    }
    for (long c = 0; c < channels && planes; c++) free(planes[c].memory);
    free(planes);
    free(sums);
    return !failed;
}
