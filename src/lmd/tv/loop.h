/* One instance of total variation denoising, in numbers of type REAL. loop.c includes this file
   once for each type; NAME(f) is the name of f for that type.

   p_{k+1} = P(q_k + t_k K x(q_k)), q_{k+1} = p_{k+1} + m_k (p_{k+1} - p_k), x(q) = y - K'q / 2s. */

/* Types that depend on REAL. */
#define Piece NAME(PieceOf)
#define Team NAME(TeamOf)
#define Stage NAME(StageOf)
#define Lines NAME(LinesOf)

/* Rows [top, end) of one plane that a thread works on, with copies of `above` and `below` rows of
 * its neighbours. A row has some zeros and five arrays of whole vectors, whose columns from `width`
 * on are 0. Coupled planes lie abreast: after a row of one plane comes that row of the next. */
typedef struct {
    long plane, top, end, above, below;
    long beside;          /* number of planes to the left of this one */
    long columns, across; /* padded width of one plane, and of all planes abreast */
    long stride, pitch;   /* distance between arrays of a row, and between rows */
    long turn;            /* capacity in rows, less one, if rows are reused; otherwise -1 */
    REAL *y, *down, *right, *ahead_down, *ahead_right; /* row `top` of y, p and q */
    long runs;                                         /* number of constant runs of pixels */
} Piece;

/* The offset of row i from row 0. */
INLINE long NAME(place)(const Piece *piece, long i) { return (i & piece->turn) * piece->pitch; }

/* Data of one thread. */
typedef struct {
    Piece *pieces;
    long count, abreast; /* how many pieces there are, and how many of them lie abreast */
    REAL *rows;          /* a row of x for each iteration of a block */
    REAL *zeros;         /* a row of zeros */
    REAL *bound;         /* the bound of the differences to the right, for each column */
    REAL inside;         /* the bound of all other differences */
    REAL *raised;        /* if channels are coupled: (C, 2, STRIP), q + t K x(q) of some columns */
    void *memory;
} Team; /* has the same size and layout for all types */

/* The bound. If there is a tolerance, it is rounded down such that dual points projected onto it in
 * REAL arithmetic are within the exact bound. */
static REAL NAME(inside)(const Job *job) {
    const double unit = sizeof(REAL) == 4 ? FLT_EPSILON : DBL_EPSILON;
    if (job->tolerance < 0) return (REAL)job->bound;
    if (job->coupled) return (REAL)(job->bound * (1 - (4 + (double)job->channels) * unit));
    if (job->isotropic) return (REAL)(job->bound * (1 - 4 * unit));
    return (REAL)job->bound > job->bound ? (REAL)nextafterf((float)job->bound, 0)
                                         : (REAL)job->bound;
}

/* Cuts the planes into runs of rows, one for each thread if there are enough rows, and fills the
 * pieces of run `thread`. Coupled planes lie abreast and count as one plane here. */
static int NAME(divide)(const Job *job, int thread, int threads, Team *team) {
    const long height = job->height, abreast = job->coupled ? job->channels : 1;
    const long all = job->channels / abreast * height, runs = runs_of(all, threads);
    const long from = cut_at(all, height, least(thread, runs), runs);
    const long to = cut_at(all, height, least(thread + 1, runs), runs);
    memset(team, 0, sizeof *team);
    team->pieces = calloc((size_t)job->channels, sizeof(Piece));
    team->abreast = abreast;
    for (long row = from; row < to && team->pieces; row += height - row % height)
        for (long n = 0; n < abreast; n++) {
            Piece *piece = team->pieces + team->count++;
            piece->plane = row / height * abreast + n, piece->beside = n;
            piece->top = row % height;
            piece->end = least(height, to - row / height * height);
        }
    return team->pieces != NULL;
}

/* Makes pieces, each with its own memory. In a solve in one pass they follow each other, so that
 * all use the same memory of few rows. */
static int NAME(cut)(const Job *job, int thread, int threads, Team *team) {
    const long lanes = 64 / (long)sizeof(REAL), width = job->width, height = job->height;
    if (!NAME(divide)(job, thread, threads, team)) return 0;
    const long columns = (width + lanes - 1) / lanes * lanes, across = team->abreast * columns;
    /* An odd number of cache lines, so that arrays do not share cache sets */
    const long stride = (across / lanes | 1) * lanes, pitch = 5 * stride + lanes;
    long depth = job->depth, total = 0;
    for (long n = 0; n < team->count; n++) {
        Piece *piece = team->pieces + n;
        piece->above = piece->top ? depth : 0;
        piece->below = piece->end < height ? depth : 0;
        piece->columns = columns, piece->across = across, piece->stride = stride,
        piece->pitch = pitch;
        piece->turn = job->once ? room_for(job->learned) - 1 : -1;
        if (!piece->beside)
            total += (piece->above + piece->end - piece->top + piece->below) * pitch;
    }
    if (job->once) total = room_for(job->learned) * pitch;
    long row = stride + lanes, raised = job->coupled ? 2 * job->channels * STRIP : 0,
         floats = total + (depth + 4) * row + lanes + raised;
    const size_t bytes = (size_t)(floats + lanes) * sizeof(REAL);
    const int written =
        job->p || job->pace.iteration < job->limit; /* by `load`, or by the first iteration */
    team->memory = job->coarse || !written ? calloc(1, bytes) : malloc(bytes);
    if (!team->memory) return 0;
    use_large_pages(team->memory, floats * (long)sizeof(REAL));
    REAL *first = (REAL *)(((uintptr_t)team->memory + 63) / 64 * 64) + lanes,
         *at = first; /* there are zeros before the first row */
    for (long n = 0; n < team->count; n++) {
        Piece *piece = team->pieces + n;
        REAL **arrays[5] = {
            &piece->ahead_right, &piece->right, &piece->y, &piece->down, &piece->ahead_down};
        for (int a = 0; a < 5; a++)
            *arrays[a] =
                at + (job->once ? 0 : piece->above * pitch) + a * stride + piece->beside * columns;
        if (!job->once && piece->beside + 1 == team->abreast)
            at += (piece->above + piece->end - piece->top + piece->below) * pitch;
    }
    at = first + total;
    team->rows = at, team->zeros = at + depth * row;
    team->bound = at + (depth + 2) * row, team->raised = at + (depth + 4) * row;
    memset(at - lanes, 0, (size_t)((depth + 4) * row + lanes) * sizeof(REAL));
    team->inside = NAME(inside)(job);
    for (long n = 0; n < team->abreast; n++)
        for (long j = 0; j < width - 1; j++) team->bound[n * columns + j] = team->inside;
    return 1;
}

/* Interpolates one row of p from the coarser grid, whose pixels are squares of 2 x 2 pixels of
   this grid: twice the value between two squares, and inside a square the mean of both sides of
   it. */
static void NAME(spread)(const Job *job, const REAL *above, const REAL *here, const REAL *beside,
    int last, REAL *restrict down, REAL *restrict right) {
    const long width = job->width, pairs = width / 2;
    for (long j = 0; j < pairs && !last; j++)
        down[2 * j] = down[2 * j + 1] = (REAL)here[j] + (above ? (REAL)above[j] : 0);
    if (width % 2 && !last) down[width - 1] = (REAL)here[pairs] + (above ? (REAL)above[pairs] : 0);
    right[0] = (REAL)beside[0];
    for (long j = 0; j < pairs; j++) right[2 * j + 1] = 2 * (REAL)beside[j];
    for (long j = 1; j < pairs; j++) right[2 * j] = (REAL)beside[j - 1] + (REAL)beside[j];
    right[width - 1] = 0;
}

/* The factors that bring p of n pixels, at most STRIP, within the bound. The bound limits the
   length over all coupled channels: of the differences along columns and along rows, or, in the
   isotropic form, of both together. v and w are p of the first channel; those of the next channel
   are `stride` numbers on. */
INLINE void NAME(factors)(long channels, long stride, long n, const int isotropic, REAL bound,
    const REAL *v, const REAL *w, REAL factors[2][STRIP]) {
    REAL *restrict down = factors[0], *restrict right = factors[1];
    const REAL limit = bound * bound;
    for (long c = 0; c < channels; c++, v += stride, w += stride)
#pragma omp simd
        for (long j = 0; j < n; j++) {
            const REAL along = isotropic ? v[j] * v[j] + w[j] * w[j] : v[j] * v[j];
            down[j] = c ? down[j] + along : along;
            if (!isotropic) right[j] = c ? right[j] + w[j] * w[j] : w[j] * w[j];
        }
#pragma omp simd
    for (long j = 0; j < n; j++) {
        const REAL along = down[j], across = isotropic ? along : right[j];
        down[j] = along > limit ? bound / SQRT(along) : 1;
        right[j] = isotropic ? down[j] : across > limit ? bound / SQRT(across) : 1;
    }
}

/* Projects p of `count` pixels onto the bound, in place. */
static void NAME(draw_in)(const Job *job, REAL bound, long stride, long count, REAL *v, REAL *w) {
    REAL factors[2][STRIP];
    const long channels = job->coupled ? job->channels : 1;
    for (long from = 0; from < count; from += STRIP) {
        const long n = least(STRIP, count - from);
        if (job->isotropic)
            NAME(factors)(channels, stride, n, 1, bound, v + from, w + from, factors);
        else NAME(factors)(channels, stride, n, 0, bound, v + from, w + from, factors);
        for (long c = 0; c < channels; c++)
            for (long j = 0; j < n; j++) {
                v[c * stride + from + j] *= factors[0][j];
                w[c * stride + from + j] *= factors[1][j];
            }
    }
}

/* Sets p and q of a piece to p interpolated from the coarser grid. */
static void NAME(refine)(const Job *job, const Piece *piece) {
    const long height = (job->height + 1) / 2, width = (job->width + 1) / 2,
               columns = piece->columns;
    const REAL *p = (const REAL *)job->coarse + 2 * piece->plane * height * width;
    for (long i = piece->top - piece->above; i < piece->end + piece->below; i++) {
        const long at = (i - piece->top) * piece->pitch;
        const REAL *here = p + i / 2 * width, *above = i % 2 ? here : i ? here - width : NULL;
        NAME(spread)
        (job, above, here, here + height * width, i + 1 == job->height, piece->down + at,
            piece->right + at);
        if (job->coupled && piece->beside + 1 < job->channels) continue; /* the last does all */
        const long first = at - piece->beside * columns;
        const size_t bytes = (size_t)piece->across * sizeof(REAL);
        if (job->isotropic || job->coupled) NAME(draw_in)
        (job, (REAL)job->bound, columns, job->width, piece->down + first, piece->right + first);
        memcpy(piece->ahead_down + first, piece->down + first, bytes);
        memcpy(piece->ahead_right + first, piece->right + first, bytes);
    }
}

/* Fills row i of a piece, if it exists, with y and with the zeros around it. */
static void NAME(load_row)(const Job *job, const Piece *piece, long i) {
    if (i < -piece->above || i >= piece->end - piece->top + piece->below) return;
    const long lanes = 64 / (long)sizeof(REAL), width = job->width;
    const REAL *restrict from =
        (const REAL *)job->y + (piece->plane * job->height + piece->top + i) * width;
    REAL *restrict row = piece->ahead_right + NAME(place)(piece, i),
                   *restrict y = piece->y + NAME(place)(piece, i);
    if (!piece->beside) {
        memset(row - lanes, 0, 64);
        row[piece->stride - 1] = 0;
    }
    row[piece->columns - 1] =
        0; /* the next plane abreast reads it before the first iteration has written it */
    memset(y + width, 0, (size_t)(piece->columns - width) * sizeof(REAL));
    for (long j = 0; j < width; j++) y[j] = (REAL)from[j];
}

/* Fills a piece: y, p and q. If the start is p = 0, the first iteration writes p. */
static void NAME(load)(const Job *job, const Piece *piece) {
    const long size = job->height * job->width, at = 2 * piece->plane * size,
               end = piece->end - piece->top + piece->below;
    const REAL *p = job->p;
    for (long i = -piece->above; i < end && !watch(job->meeting, job->width); i++)
        NAME(load_row)(job, piece, i);
    if (job->coarse) NAME(refine)(job, piece);
    if (job->coarse || !p) return;
    const long width = job->width;
    const size_t columns = (size_t)piece->columns * sizeof(REAL);
    for (long i = -piece->above; i < end && !watch(job->meeting, 2 * width); i++)
        for (int a = 0; a < 2; a++) {
            REAL *row = (a ? piece->right : piece->down) + i * piece->pitch;
            const REAL *from = p + at + a * size + (piece->top + i) * width;
            memset(row, 0, columns); /* differences across the border are 0 */
            if (a || piece->top + i + 1 < job->height)
                memcpy(row, from, (size_t)(width - a) * sizeof(REAL));
            memcpy((a ? piece->ahead_right : piece->ahead_down) + i * piece->pitch, row, columns);
        }
}

/* x(q) of one row; `above` is q along the columns in the previous row. */
INLINE void NAME(point)(long count, REAL inverse, const REAL *restrict y,
    const REAL *restrict above, const REAL *restrict down, const REAL *restrict right,
    REAL *restrict x) {
    for (long j = 0; j < count; j++)
        x[j] = y[j] - inverse * ((above[j] - down[j]) + (right[j - 1] - right[j]));
}

/* The state of one iteration of a block. */
typedef struct {
    REAL *x; /* x of the current row */
    REAL step, momentum;
    int fresh;      /* whether p and q are 0 and not in memory yet */
    int final;      /* whether neither q nor `uphill` is needed */
    double *uphill; /* <p_{k+1} - q_k, p_{k+1} - p_k> of each row, or NULL if it is not needed */
} Stage;

/* Row i of one iteration, in place. Unless it is the last row of the plane, `stage->x` becomes x of
   the next row. */
INLINE void NAME(row)(const Piece *piece, const Stage *stage, long i, const int last,
    const int isotropic, REAL inverse, REAL bound, const REAL *restrict bounds, const int with_sums,
    const int fresh, const int final, double *uphill) {
    const long at = NAME(place)(piece, i),
               on = last ? 0 : NAME(place)(piece, i + 1) - NAME(place)(piece, i);
    const REAL t = stage->step, m = stage->momentum;
    const REAL *restrict y = piece->y + at + on, *restrict after = piece->ahead_down + at + on;
    const REAL *restrict beside = piece->ahead_right + at + on;
    REAL *restrict x = stage->x, *restrict down = piece->down + at,
                   *restrict right = piece->right + at;
    REAL *restrict ahead_down = piece->ahead_down + at,
                   *restrict ahead_right = piece->ahead_right + at;
    REAL sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < piece->columns; j++) {
        REAL q = fresh ? 0 : ahead_down[j], r = fresh ? 0 : ahead_right[j], fall = 0;
        REAL v, here = x[j], w = r + t * (x[j + 1] - here);
        if (!last) {
            x[j] = fresh ? y[j] : y[j] - inverse * ((q - after[j]) + (beside[j - 1] - beside[j]));
            fall = x[j] - here;
        }
        v = q + t * fall;
        if (isotropic) {
            w = bounds[j] > 0 ? w : 0;
            REAL square = v * v + w * w, limit = bound * bound;
            REAL factor = square > limit ? bound / SQRT(square) : 1;
            v *= factor;
            w *= factor;
        } else {
            v = v > bound ? bound : v;
            v = v < -bound ? -bound : v;
            w = w > bounds[j] ? bounds[j] : w;
            w = w < -bounds[j] ? -bounds[j] : w;
        }
        REAL moved = fresh ? v : v - down[j], turned = fresh ? w : w - right[j];
        if (with_sums) sum += (v - q) * moved + (w - r) * turned;
        down[j] = v;
        right[j] = w;
        if (final) continue; /* q is not needed */
        ahead_down[j] = v + m * moved;
        ahead_right[j] = w + m * turned;
    }
    if (with_sums) *uphill += (double)sum;
}

/* For coupled channels: v = q + t K x(q) of `count` columns of one channel, from column `from` on.
   `stage->x` becomes x of the next row, as in `row`. */
INLINE void NAME(raise)(const Piece *piece, const Stage *stage, long i, long from, long count,
    const int last, const int fresh, REAL inverse, const REAL *restrict bounds, REAL *restrict v,
    REAL *restrict w) {
    const long at = NAME(place)(piece, i) + from,
               on = last ? 0 : NAME(place)(piece, i + 1) - NAME(place)(piece, i);
    const REAL t = stage->step;
    const REAL *restrict y = piece->y + at + on, *restrict after = piece->ahead_down + at + on;
    const REAL *restrict beside = piece->ahead_right + at + on;
    const REAL *restrict ahead_down = piece->ahead_down + at,
                         *restrict ahead_right = piece->ahead_right + at;
    REAL *restrict x = stage->x + from;
#pragma omp simd
    for (long j = 0; j < count; j++) {
        REAL q = fresh ? 0 : ahead_down[j], r = fresh ? 0 : ahead_right[j], fall = 0, here = x[j];
        REAL across = r + t * (x[j + 1] - here);
        if (!last) {
            x[j] = fresh ? y[j] : y[j] - inverse * ((q - after[j]) + (beside[j - 1] - beside[j]));
            fall = x[j] - here;
        }
        v[j] = q + t * fall;
        w[j] = bounds[from + j] > 0 ? across : 0;
    }
}

/* p and q of these columns, from v, w and their factors. */
INLINE REAL NAME(settle)(const Piece *piece, const Stage *stage, long i, long from, long count,
    const int with_sums, const int fresh, const int final, const REAL *restrict v,
    const REAL *restrict w, REAL factors[2][STRIP]) {
    const long at = NAME(place)(piece, i) + from;
    const REAL m = stage->momentum;
    REAL *restrict down = piece->down + at, *restrict right = piece->right + at;
    REAL *restrict ahead_down = piece->ahead_down + at,
                   *restrict ahead_right = piece->ahead_right + at, sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < count; j++) {
        REAL a = v[j] * factors[0][j], b = w[j] * factors[1][j];
        REAL moved = fresh ? a : a - down[j], turned = fresh ? b : b - right[j];
        if (with_sums)
            sum += (a - (fresh ? 0 : ahead_down[j])) * moved +
                (b - (fresh ? 0 : ahead_right[j])) * turned;
        down[j] = a;
        right[j] = b;
        if (final) continue; /* q is not needed */
        ahead_down[j] = a + m * moved;
        ahead_right[j] = b + m * turned;
    }
    return sum;
}

/* Like `row`, for all channels together if they are coupled. */
INLINE void NAME(coupled_row)(const Job *job, const Team *team, const Piece *piece,
    const Stage *stage, long i, const int last, const int with_sums, const int fresh,
    const int final, double *uphill) {
    REAL factors[2][STRIP];
    const REAL inverse = (REAL)job->inverse;
    for (long from = 0; from < piece->columns; from += STRIP) {
        const long n = least(STRIP, piece->columns - from);
        for (long c = 0; c < job->channels; c++) {
            REAL *v = team->raised + 2 * c * STRIP;
            NAME(raise)
            (piece, stage, i, c * piece->columns + from, n, last, fresh, inverse, team->bound, v,
                v + STRIP);
        }
        if (job->isotropic) NAME(factors)
        (job->channels, 2 * STRIP, n, 1, team->inside, team->raised, team->raised + STRIP, factors);
        else NAME(factors)(job->channels, 2 * STRIP, n, 0, team->inside, team->raised,
            team->raised + STRIP, factors);
        for (long c = 0; c < job->channels; c++) {
            const REAL *v = team->raised + 2 * c * STRIP;
            const REAL sum = NAME(settle)(piece, stage, i, c * piece->columns + from, n, with_sums,
                fresh, final, v, v + STRIP, factors);
            if (with_sums) *uphill += (double)sum;
        }
    }
}

static void __attribute__((noinline))
NAME(row_of)(const Job *job, const Team *team, const Piece *piece, const Stage *stage, long i) {
    const int last = piece->top + i + 1 == job->height;
    const int sums = stage->uphill && i >= 0 && piece->top + i < piece->end;
    double *uphill = sums ? stage->uphill + i : NULL; /* coupled planes share one sum */
    if (sums) *uphill = 0;
#define ROW(l, iso, s, f, e)                                                                       \
    NAME(row)                                                                                      \
    (piece, stage, i, l, iso, (REAL)job->inverse, team->inside, team->bound, s, f, e, uphill)
#define COUPLED(l, s, f, e) NAME(coupled_row)(job, team, piece, stage, i, l, s, f, e, uphill)
#define EITHER(l, s, f, e)                                                                         \
    if (job->coupled) COUPLED(l, s, f, e);                                                         \
    else if (job->isotropic) ROW(l, 1, s, f, e);                                                   \
    else ROW(l, 0, s, f, e)
    if (last && stage->fresh) EITHER(1, sums, 1, 0);
    else if (last) EITHER(1, sums, 0, 0);
    else if (stage->fresh) EITHER(0, sums, 1, 0);
    else if (stage->final) EITHER(0, 0, 0, 1);
    else if (sums) EITHER(0, 1, 0, 0);
    else EITHER(0, 0, 0, 0);
#undef EITHER
#undef COUPLED
#undef ROW
}

/* x of the first row of an iteration. */
static void NAME(enter)(
    const Job *job, const Team *team, const Piece *piece, Stage *stage, long i) {
    const long at = NAME(place)(piece, i);
    const REAL *above =
        piece->top + i ? piece->ahead_down + NAME(place)(piece, i - 1) : team->zeros;
    if (stage->fresh) memcpy(stage->x, piece->y + at, (size_t)piece->across * sizeof(REAL));
    else NAME(point)
    (piece->across, (REAL)job->inverse, piece->y + at, above, piece->ahead_down + at,
        piece->ahead_right + at, stage->x);
}

#include "look.h"

/* Writes p of row i of a piece to the output. */
static void NAME(store_row)(const Job *job, const Piece *piece, long i) {
    const long width = job->width, size = job->height * width,
               at = 2 * piece->plane * size + (piece->top + i) * width;
    REAL *down = (REAL *)job->p_out + at, *right = down + size;
    memcpy(down, piece->down + NAME(place)(piece, i), (size_t)width * sizeof(REAL));
    memcpy(right, piece->right + NAME(place)(piece, i), (size_t)width * sizeof(REAL));
    right[width - 1] = 0; /* it is 0 or -0, depending on its neighbour */
}

/* Writes p of a piece to the output, and x unless a gap evaluation has just written it. */
static void NAME(store)(const Job *job, const Team *team, const Piece *piece, int looked) {
    for (long i = 0; i < piece->end - piece->top && !watch(job->meeting, 4 * job->width); i++) {
        NAME(store_row)(job, piece, i);
        if (!job->x_out || looked) continue;
        REAL *x = (REAL *)job->x_out + (piece->plane * job->height + piece->top + i) * job->width;
        NAME(answer)(job, team, piece, i, job->width, x);
    }
}

/* `count` iterations on one piece, or on pieces that lie abreast. Each iteration is one row behind
   the previous one, so that rows stay in the cache for all. Rows of neighbours are computed if
   later iterations need them, and `rim` of them after the last one. With `lines`, each row is also
   loaded, evaluated for the gap and stored on the way. */
static void NAME(block)(const Job *job, const Team *team, const Piece *piece, Stage *stages,
    long count, long rim, Lines *lines, double *sums) {
    const long row = piece->stride + 64 / (long)sizeof(REAL), rows = piece->end - piece->top;
    for (long n = 0; n < team->abreast && lines; n++) NAME(load_row)(job, piece + n, -piece->above);
    for (long front = -piece->above; front < rows + piece->below + count; front++) {
        if (watch(job->meeting, piece->across * count)) return;
        for (long n = 0; n < team->abreast && lines; n++) NAME(load_row)(job, piece + n, front + 1);
        for (long s = 0; s < count; s++) {
            const long i = front - s, margin = rim + count - 1 - s;
            const long first = piece->above ? -margin : 0,
                       end = piece->below ? rows + margin : rows;
            if (i < first || i >= end) continue;
            stages[s].x = team->rows + s * row;
            if (i == first) NAME(enter)(job, team, piece, stages + s, i);
            NAME(row_of)(job, team, piece, stages + s, i);
        }
        const long done = front - count + 1;
        for (long n = 0; n < team->abreast && lines && done >= 0 && done <= rows; n++) {
            NAME(look_at)(job, team, piece + n, done, lines + n, sums);
            if (done) NAME(store_row)(job, piece + n, done - 1);
        }
    }
}

/* Copies the rows next to this thread's own from the threads that computed them. */
static void NAME(share)(const Team *teams, int thread, int threads) {
    const Team *team = teams + thread;
    for (long n = 0; n < team->count;
         n += team->abreast) { /* pieces abreast are copied with the first of them */
        Piece *piece = team->pieces + n;
        const long rows = piece->end - piece->top, pitch = piece->pitch;
        for (int side = 0; side < 2; side++) {
            long depth = side ? piece->below : piece->above;
            if (!depth || (side ? thread + 1 >= threads : thread == 0)) continue;
            const Team *other = team + (side ? 1 : -1);
            const Piece *near = side ? other->pieces : other->pieces + other->count - team->abreast;
            long theirs = side ? 0 : near->end - near->top - depth, mine = side ? rows : -depth;
            size_t bytes = (size_t)(depth * pitch) * sizeof(REAL);
            memcpy(piece->ahead_right + mine * pitch, near->ahead_right + theirs * pitch, bytes);
        }
    }
}

/* Marks where x is constant in row i: there is no edge between neighbours, to the right and below,
 * whose p is strictly within the bound. */
static void NAME(flat_at)(const Job *job, const Team *team, const Piece *piece, long i,
    unsigned char *restrict right, unsigned char *restrict down) {
    const REAL *restrict v = piece->down + i * piece->pitch,
                         *restrict w = piece->right + i * piece->pitch;
    const REAL bound = team->inside, limit = bound * bound * (REAL)(1 - 1e-5);
    if (job->coupled) { /* the lengths are over all channels */
        for (long j = 0; j < job->width; j++) {
            REAL along = 0, across = 0;
            for (long c = -piece->beside; c < job->channels - piece->beside; c++) {
                const REAL a = v[c * piece->columns + j], b = w[c * piece->columns + j];
                along += a * a, across += b * b;
            }
            right[j] = (job->isotropic ? along + across : across) < limit;
            down[j] = (job->isotropic ? along + across : along) < limit;
        }
        return;
    }
    for (long j = 0; j < job->width && !job->isotropic; j++) {
        right[j] = w[j] < bound && w[j] > -bound;
        down[j] = v[j] < bound && v[j] > -bound;
    }
    for (long j = 0; j < job->width && job->isotropic; j++)
        right[j] = down[j] = v[j] * v[j] + w[j] * w[j] < limit;
}

/* The offset that is subtracted from x of a plane, so that squares stay small. */
static double NAME(pixel_of)(const Job *job, const Piece *piece) {
    return (double)((const REAL *)job->y)[piece->plane * job->height * job->width];
}

/* How much the gap falls at pixel j of a row of x if x becomes `pixel` there: the slack between it
   and the next pixels, b |Kx| - <p, Kx>, minus s (x - pixel)^2. The next pixels are `down` and
   `right` numbers on, with v and w as p. If a length is over several `planes`, which are `size`
   numbers apart and of which `beside` lie before this one, each plane gets an equal part. */
INLINE double NAME(gain)(const Job *job, double bound, double pixel, const REAL *restrict x, long j,
    long down, long right, REAL v, REAL w, const int isotropic, const long planes, long beside) {
    const long size = job->height * job->width;
    const double off = (double)x[j] - pixel;
    const double dot = ((double)x[j + down] - (double)x[j]) * (double)v +
        ((double)x[j + right] - (double)x[j]) * (double)w;
    double along = 0, across = 0;
    for (long c = 0; c < planes; c++) {
        const REAL *of = x + (c - beside) * size + j;
        const double a = (double)of[down] - (double)of[0], b = (double)of[right] - (double)of[0];
        along += a * a, across += b * b;
    }
    const double length = isotropic ? sqrt(along + across) : sqrt(along) + sqrt(across);
    return bound / (double)planes * length - dot - job->scale * off * off;
}

/* `gain` for all pixels of row i of a piece. */
INLINE void NAME(gains)(const Job *job, const Team *team, const Piece *piece, long i,
    const int isotropic, const long planes, double *restrict out) {
    const long last = job->width - 1, down = piece->top + i + 1 < job->height ? job->width : 0;
    const REAL *restrict x =
        (const REAL *)job->x_out + (piece->plane * job->height + piece->top + i) * job->width;
    const REAL *restrict v = piece->down + i * piece->pitch,
                         *restrict w = piece->right + i * piece->pitch;
    const double bound = (double)team->inside, pixel = NAME(pixel_of)(job, piece);
#pragma omp simd
    for (long j = 0; j < last; j++)
        out[j] = NAME(gain)(
            job, bound, pixel, x, j, down, 1, v[j], w[j], isotropic, planes, piece->beside);
    out[last] = NAME(gain)(
        job, bound, pixel, x, last, down, 0, v[last], 0, isotropic, planes, piece->beside);
}

/* Finds the runs of a piece and unites them to regions within it. A gap evaluation has just written
 * x to the output. */
static void NAME(label)(const Job *job, const Team *team, Piece *piece, const Regions *all,
    double *gains, unsigned char *right, unsigned char *down) {
    const long width = job->width, first = (piece->plane * job->height + piece->top) * width;
    const double pixel = NAME(pixel_of)(job, piece);
    long run = first - 1;
    for (long i = 0; i < piece->end - piece->top && !watch(job->meeting, width); i++) {
        int32_t *label = all->label + first + i * width;
        const REAL *x = (const REAL *)job->x_out + first + i * width;
        double sum = 0, gain = 0;
        int32_t count = 0;
        NAME(flat_at)(job, team, piece, i, right, down + (i % 2) * width);
        if (job->coupled) NAME(gains)(job, team, piece, i, job->isotropic, job->channels, gains);
        else if (job->isotropic) NAME(gains)(job, team, piece, i, 1, 1, gains);
        else NAME(gains)(job, team, piece, i, 0, 1, gains);
        for (long j = 0; j < width; j++) {
            const int on = j && right[j - 1];
            run += !on;
            sum = (on ? sum : 0) + ((double)x[j] - pixel), gain = (on ? gain : 0) + gains[j],
            count = (on ? count : 0) + 1;
            label[j] = all->parent[run] = (int32_t)run;
            all->sum[run] = sum, all->gain[run] = gain, all->count[run] = count;
        }
        if (i) unite_rows(all, label - width, label, down + (1 - i % 2) * width, width);
    }
    piece->runs = run + 1 - first;
}

/* Joins the regions of the pieces to regions of whole planes, with their sums and means. One thread
 * does this for all. */
static void NAME(join)(
    const Job *job, const Team *teams, int threads, const Regions *all, unsigned char *flags) {
    const long width = job->width;
    for (int pass = 0; pass < 3; pass++)
        for (int t = 0; t < threads; t++)
            for (long n = 0; n < teams[t].count; n++) {
                const Piece *piece = teams[t].pieces + n;
                const long first = (piece->plane * job->height + piece->top) * width,
                           end = first + piece->runs;
                for (long r = first; pass == 1 && r < end && !watch(job->meeting, width);
                     r += width)
                    add_up(all, r, least(r + width, end));
                if (pass == 2 && !(job->coupled && piece->beside)) {
                    const long together = job->coupled ? job->channels : 1;
                    double pixels[MAX_COUPLED];
                    for (long c = 0; c < together; c++) pixels[c] = NAME(pixel_of)(job, piece + c);
                    for (long r = first; r < end && !watch(job->meeting, together * width);
                         r += width)
                        take_means(all, r, least(r + width, end), job->scale, pixels, together,
                            job->height * width);
                }
                if (pass == 0 && piece->top) {
                    NAME(flat_at)(job, teams + t, piece, -1, flags, flags + width);
                    unite_rows(
                        all, all->label + first - width, all->label + first, flags + width, width);
                }
            }
}

/* Replaces x(p) by its mean on each region; this solves the problem if all regions are correct. On
   the edges between regions p is at the bound, so the mean of x(p) is the mean of y plus the pull
   of the border of the region. */
static void NAME(draw_flat)(const Job *job, Shared *shared, Team *teams, int thread, int threads) {
    const Regions *all = &shared->regions;
    const Team *team = teams + thread;
    const long width = job->width;
    double *gains = malloc((size_t)width * (sizeof(double) + 3));
    unsigned char *flags = (unsigned char *)(gains + width);
    if (!gains) fail_with(&shared->meeting, NO_MEMORY);
    for (long n = 0; n < team->count && gains; n++)
        NAME(label)(job, team, team->pieces + n, all, gains, flags, flags + width);
    meet(&shared->meeting, threads);
    if (thread == 0 && !shared->meeting.stop) NAME(join)(job, teams, threads, all, flags);
    meet(&shared->meeting, threads);
    for (long n = 0; n < team->count && !shared->meeting.stop; n++) {
        const Piece *piece = team->pieces + n;
        const long first = (piece->plane * job->height + piece->top) * width,
                   rows = piece->end - piece->top;
        REAL *restrict x = (REAL *)job->x_out + first;
        for (long k = 0; k < rows * width; k++) {
            if (k % width == 0 && watch(job->meeting, width)) break;
            const double mean = all->sum[all->label[first + k]];
            x[k] = mean == mean ? (REAL)mean : x[k];
        }
    }
    free(gains);
    meet(&shared->meeting, threads);
}

/* The pace at the start of a solve: with the numbers of the job, unless the solve is continued. */
static Pace NAME(entered)(const Job *job) {
    Pace pace = job->pace;
    if (pace.begun == 0) pace.numbers = job->numbers, pace.learned = job->learned;
    return pace;
}

/* Sets the step sizes and momenta of the next iterations. */
static void NAME(prepare)(const Job *job, Pace *pace, Stage *stages, long count, int fresh) {
    for (long s = 0; s < count; s++) {
        next_numbers(pace, job->step);
        stages[s].step = (REAL)pace->step, stages[s].momentum = (REAL)pace->momentum;
        stages[s].uphill = NULL, stages[s].fresh = fresh && s == 0,
        stages[s].final = job->once && s + 1 == count;
    }
}

/* Averages x over its regions and evaluates its gap. Returns whether the averaged x is the answer,
 * if the solve ends here. */
static int NAME(look_flat)(
    const Job *job, Shared *shared, Team *teams, int thread, int threads, Pace *pace) {
    const long rows = job->channels * job->height;
    if (thread == 0) make_room(job, shared);
    meet(&shared->meeting, threads);
    if (shared->meeting.stop) pace->status = FINISHED;
    if (!shared->flat || shared->meeting.stop) return 1;
    NAME(draw_flat)(job, shared, teams, thread, threads);
    if (!NAME(sums)(job, teams + thread, FLAT, shared->sums + SUMS * 2 * rows))
        fail_with(&shared->meeting, NO_MEMORY);
    meet(&shared->meeting, threads);
    if (shared->meeting.stop) pace->status = FINISHED;
    return !shared->meeting.stop && decide_flat(job, shared, pace);
}

/* The part of one thread in a solve. `teams` has room for all threads. */
static void NAME(solve)(Job *job, Shared *shared, Team *teams, int thread, int threads) {
    Team *team = teams + thread;
    Stage stages[DEPTH];
    Pace pace = NAME(entered)(job);
    double room[2 * ROOM];
    int looked = 0;
    if (pace.iteration >= job->limit) pace.status = FINISHED;
    int fresh = !job->p && !job->coarse && pace.status == GOING;
    if (!NAME(cut)(job, thread, threads, team)) fail_with(&shared->meeting, NO_MEMORY);
    meet(&shared->meeting, threads);
    if (!shared->meeting.stop) {
        for (long n = 0; n < team->count; n++) NAME(load)(job, team->pieces + n);
        if (pace.status == GOING && pace.gap > 0 && pace.iteration >= pace.learned)
            go_on(job, shared, &pace, room);
        while (pace.status == GOING) {
            long count = plan(job, &pace), side = pace.blocks % 2 * job->channels * job->height;
            NAME(prepare)(job, &pace, stages, count, fresh);
            if (count) fresh = 0;
            for (long n = 0; n < team->count; n += team->abreast) {
                const Piece *piece = team->pieces + n;
                if (restarts(&pace, job->restart))
                    stages[count - 1].uphill =
                        shared->uphill + side + piece->plane * job->height + piece->top;
                NAME(block)(job, team, piece, stages, count, 0, NULL, NULL);
            }
            if (threads > 1) {
                meet(&shared->meeting, threads);
                NAME(share)(teams, thread, threads);
            }
            looked = looks(&pace, job->tolerance, job->limit);
            if (looked) NAME(look)(job, shared, team, pace.blocks % 2, threads, &pace);
            else meet(&shared->meeting, threads);
            decide(job, shared, &pace);
            const int ends = looked && pace.iteration >= pace.learned;
            if (looked && may_be_flat(job, &pace))
                looked = NAME(look_flat)(job, shared, teams, thread, threads, &pace);
            if (ends && pace.status == GOING) go_on(job, shared, &pace, room);
        }
        for (long n = 0; n < team->count && !shared->meeting.stop; n++)
            NAME(store)(job, team, team->pieces + n, looked);
    }
    meet(&shared->meeting, threads);
    pace.numbers = NULL, pace.learned = least(pace.learned, pace.iteration); /* `room` is gone */
    if (thread == 0) job->pace = pace;
    free(team->memory), free(team->pieces);
}

/* Few iterations from p = 0, the gap and the answer, piece by piece, each in one pass over its
   rows: the data stay in the cache, and threads wait for each other only once. If the tolerance is
   not reached, the solve goes on from p. */
static void NAME(at_once)(Job *job, Shared *shared, Team *teams, int thread, int threads) {
    Team *team = teams + thread;
    Stage stages[DEPTH];
    Lines lines[MAX_COUPLED] = {{0}};
    Pace pace = NAME(entered)(job);
    NAME(prepare)(job, &pace, stages, job->learned, 1);
    int able = NAME(cut)(job, thread, threads, team);
    able = able && NAME(lines)(job, EXACT, team->abreast, lines);
    if (!able) fail_with(&shared->meeting, NO_MEMORY);
    for (long n = 0; n < team->count && able; n += team->abreast)
        NAME(block)(job, team, team->pieces + n, stages, job->learned, 1, lines, shared->sums);
    free(lines->memory);
    free(team->memory), free(team->pieces);
    meet(&shared->meeting, threads);
    if (!shared->meeting.stop) certify(job, shared->sums, &pace);
    decide(job, shared, &pace);
    meet(&shared->meeting, threads);
    if (thread) return;
    job->pace = pace;
    job->p = job->p_out, job->once = 0, job->depth = depth_for(job->height, job->width);
}

/* For each row of y, the sum of absolute differences to the row below and to the next pixels. */
static void NAME(lengths)(const Job *job, double *out, int thread, int threads) {
    const long rows = job->channels * job->height, width = job->width;
    for (long n = rows * thread / threads; n < rows * (thread + 1) / threads; n++) {
        const REAL *here = (const REAL *)job->y + n * width;
        const REAL *below = (n + 1) % job->height ? here + width : here;
        REAL sum = ABSOLUTE(below[0] - here[0]);
#pragma omp simd reduction(+ : sum)
        for (long j = 1; j < width; j++)
            sum += ABSOLUTE(below[j] - here[j]) + ABSOLUTE(here[j] - here[j - 1]);
        out[n] = (double)sum;
    }
}

/* y of a coarser grid: means over squares of 2 x 2 pixels, cut at the border. */
static void NAME(average)(const Job *fine, const Job *coarse, int thread, int threads) {
    const long rows = coarse->channels * coarse->height, width = coarse->width,
               pairs = fine->width / 2;
    for (long n = rows * thread / threads; n < rows * (thread + 1) / threads; n++) {
        const long i = n % coarse->height * 2;
        const REAL *here =
            (const REAL *)fine->y + (n / coarse->height * fine->height + i) * fine->width;
        const REAL *below = i + 1 < fine->height ? here + fine->width : here;
        REAL *restrict out = (REAL *)coarse->y + n * width;
        for (long j = 0; j < pairs; j++)
            out[j] =
                (REAL)0.25 * ((here[2 * j] + here[2 * j + 1]) + (below[2 * j] + below[2 * j + 1]));
        if (pairs < width) out[pairs] = (REAL)0.5 * (here[2 * pairs] + below[2 * pairs]);
    }
}

/* The roughness of y; all threads get the same number. */
static double NAME(roughness)(const Job *job, Shared *shared, int thread, int threads) {
    NAME(lengths)(job, shared->sums, thread, threads);
    meet(&shared->meeting, threads);
    return roughness_of(job, total_of(shared->sums, job->channels * job->height));
}

/* Chooses a schedule by the gap that p proves, or by the roughness, and solves on the coarser
 * grids. */
static void NAME(begin)(Job *job, Shared *shared, Team *teams, int thread, int threads) {
    const double rough = NAME(roughness)(job, shared, thread, threads);
    meet(&shared->meeting, threads);
    if (thread == 0) choose_plan(job, shared, rough, sizeof(REAL));
    meet(&shared->meeting, threads);
    if (shared->chosen < 0) return; /* not `failed`, which the first thread can set again */
    if (job->once) NAME(at_once)(job, shared, teams, thread, threads);
    for (long n = 0; n < shared->coarser; n++) {
        Job *level = shared->levels + n;
        NAME(average)(n ? level - 1 : job, level, thread, threads);
        meet(&shared->meeting, threads);
        const double own = NAME(roughness)(level, shared, thread, threads);
        if (thread == 0) interpolate(job->schedules, shared->chosen, own, (double *)level->numbers);
        meet(&shared->meeting, threads);
    }
    for (long n = shared->coarser - 1; n >= 0; n--)
        NAME(solve)(shared->levels + n, shared, teams, thread, threads);
}
