/* One instance of total variation denoising, in numbers of type REAL: what loop.c includes once for each type. NAME(f) is the
   name of f for it.

   p_{k+1} = P(q_k + t_k K x(q_k)), q_{k+1} = p_{k+1} + m_k (p_{k+1} - p_k), x(q) = y - inverse K'q. */

/* Rows [top, end) of one plane that a thread works on, and `above` and `below` rows of its neighbours, of which it has
   copies: of each row some zeros and five arrays of whole vectors, where columns from `width` on are 0. Narrow planes lie
   abreast: the rows of one continue in those of the next, so that an iteration goes through all of them at once. */
typedef struct {
    long plane, top, end, above, below;
    long beside; /* how many planes are left of it */
    long columns, across;  /* whole vectors of a row, and of those of all planes abreast */
    long stride, pitch;    /* from one array of a row, and from one row, to the next */
    long turn; /* -1; or, where rows are done with soon, how many there is room for, less one: a power of 2, less one */
    REAL *y, *down, *right, *ahead_down, *ahead_right; /* row `top` of y, p and q */
    long runs; /* of pixels in a row where x is flat: how many there are */
} NAME(Piece);

/* Where row i is, as counted from row 0. */
INLINE long NAME(place)(const NAME(Piece) *piece, long i) { return (i & piece->turn) * piece->pitch; }

/* What a thread has to itself. */
typedef struct {
    NAME(Piece) *pieces;
    long count, abreast; /* how many pieces there are, and how many of them lie abreast */
    REAL *rows;  /* a row of x for each iteration of a block */
    REAL *zeros; /* a row of them */
    REAL *bound; /* the bound of the differences to the right, for each column */
    REAL inside; /* that of all others */
    REAL *raised; /* where channels are coupled: (C, 2, STRIP), q + t K x(q) of some columns */
    void *memory;
} NAME(Team); /* of the same size and layout for all types */

/* The bound; on the way to a tolerance rounded such that what is projected onto it in these numbers is within it. */
static REAL NAME(inside)(const Job *job)
{
    const double unit = sizeof(REAL) == 4 ? FLT_EPSILON : DBL_EPSILON;
    if (job->tolerance < 0) return (REAL)job->bound;
    if (job->coupled) return (REAL)(job->bound * (1 - (4 + (double)job->channels) * unit));
    if (job->isotropic) return (REAL)(job->bound * (1 - 4 * unit));
    return (REAL)job->bound > job->bound ? (REAL)nextafterf((float)job->bound, 0) : (REAL)job->bound;
}

/* The planes cut into runs of rows, for as many threads as there are enough rows for: run `thread`, piece by piece. Those that
   lie abreast are one run, unless they are done with at once or coupled. */
static int NAME(divide)(const Job *job, int thread, int threads, NAME(Team) *team)
{
    const long height = job->height, abreast = abreast_of(job, threads, sizeof(REAL)), all = job->channels / abreast * height;
    const long runs = abreast > 1 && !job->once && !job->coupled ? 1 : runs_of(all, threads);
    const long from = cut_at(all, height, least(thread, runs), runs), to = cut_at(all, height, least(thread + 1, runs), runs);
    memset(team, 0, sizeof *team);
    team->pieces = calloc((size_t)job->channels, sizeof(NAME(Piece)));
    team->abreast = abreast;
    for (long row = from; row < to && team->pieces; row += height - row % height)
        for (long n = 0; n < abreast; n++) {
            NAME(Piece) *piece = team->pieces + team->count++;
            piece->plane = row / height * abreast + n, piece->beside = n;
            piece->top = row % height;
            piece->end = least(height, to - row / height * height);
        }
    return team->pieces != NULL;
}

/* Pieces with memory of their own; in the same memory, of few rows, where they are solved at once, one after the other. */
static int NAME(cut)(const Job *job, int thread, int threads, NAME(Team) *team)
{
    const long lanes = 64 / (long)sizeof(REAL), width = job->width, height = job->height;
    if (!NAME(divide)(job, thread, threads, team)) return 0;
    const long columns = (width + lanes - 1) / lanes * lanes, across = team->abreast * columns;
    const long stride = lines_for(across / lanes) * lanes, pitch = 5 * stride + lanes;
    long depth = job->depth, total = 0;
    for (long n = 0; n < team->count; n++) {
        NAME(Piece) *piece = team->pieces + n;
        piece->above = piece->top ? depth : 0;
        piece->below = piece->end < height ? depth : 0;
        piece->columns = columns, piece->across = across, piece->stride = stride, piece->pitch = pitch;
        piece->turn = job->once ? room_for(job->learned) - 1 : -1;
        if (!piece->beside) total += (piece->above + piece->end - piece->top + piece->below) * pitch;
    }
    if (job->once) total = room_for(job->learned) * pitch;
    long row = stride + lanes, raised = job->coupled ? 2 * job->channels * STRIP : 0, floats = total + (depth + 4) * row + lanes + raised;
    const size_t bytes = (size_t)(floats + lanes) * sizeof(REAL);
    const int written = job->p || job->pace.iteration < job->limit; /* by `load`, or by the first iteration */
    team->memory = job->coarse || !written ? calloc(1, bytes) : malloc(bytes);
    if (!team->memory) return 0;
    use_large_pages(team->memory, floats * (long)sizeof(REAL));
    REAL *first = (REAL *)(((uintptr_t)team->memory + 63) / 64 * 64) + lanes, *at = first; /* zeros stand before the first row */
    for (long n = 0; n < team->count; n++) {
        NAME(Piece) *piece = team->pieces + n;
        REAL **arrays[5] = {&piece->ahead_right, &piece->right, &piece->y, &piece->down, &piece->ahead_down};
        for (int a = 0; a < 5; a++)
            *arrays[a] = at + (job->once ? 0 : piece->above * pitch) + a * stride + piece->beside * columns;
        if (!job->once && piece->beside + 1 == team->abreast) at += (piece->above + piece->end - piece->top + piece->below) * pitch;
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

static void NAME(drop)(NAME(Team) *team)
{
    free(team->memory);
    free(team->pieces);
}

/* One row of p and q from those of the coarser grid, whose pixels are squares of 2 x 2 pixels of this one: twice as
   large on the edges between two squares, the mean of what is on both sides inside of them. */
static void NAME(spread)(const Job *job, const REAL *above, const REAL *here, const REAL *beside, int last, REAL *restrict down,
                         REAL *restrict right)
{
    const long width = job->width, pairs = width / 2;
    const REAL bound = (REAL)job->bound;
    for (long j = 0; j < pairs && !last; j++) down[2 * j] = down[2 * j + 1] = (REAL)here[j] + (above ? (REAL)above[j] : 0);
    if (width % 2 && !last) down[width - 1] = (REAL)here[pairs] + (above ? (REAL)above[pairs] : 0);
    right[0] = (REAL)beside[0];
    for (long j = 0; j < pairs; j++) right[2 * j + 1] = 2 * (REAL)beside[j];
    for (long j = 1; j < pairs; j++) right[2 * j] = (REAL)beside[j - 1] + (REAL)beside[j];
    right[width - 1] = 0;
    for (long j = 0; j < width && job->isotropic && !job->coupled; j++) {
        REAL square = down[j] * down[j] + right[j] * right[j], factor = square > bound * bound ? bound / SQRT(square) : 1;
        down[j] *= factor;
        right[j] *= factor;
    }
}

/* Where channels are coupled: by what p of n pixels, at most STRIP, is multiplied to be within the bound, which is one of its
   length over all channels: along the columns and along the rows, or, in the isotropic form, of both together. v and w are
   those of the first channel, the next ones `stride` numbers on. */
INLINE void NAME(factors)(long channels, long stride, long n, const int isotropic, REAL bound, const REAL *v, const REAL *w,
                          REAL factors[2][STRIP])
{
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

/* p of so many pixels within the bound, in place. */
static void NAME(draw_in)(const Job *job, REAL bound, long stride, long count, REAL *v, REAL *w)
{
    REAL factors[2][STRIP];
    for (long from = 0; from < count; from += STRIP) {
        const long n = least(STRIP, count - from);
        if (job->isotropic)
            NAME(factors)(job->channels, stride, n, 1, bound, v + from, w + from, factors);
        else
            NAME(factors)(job->channels, stride, n, 0, bound, v + from, w + from, factors);
        for (long c = 0; c < job->channels; c++)
            for (long j = 0; j < n; j++) {
                v[c * stride + from + j] *= factors[0][j];
                w[c * stride + from + j] *= factors[1][j];
            }
    }
}

/* p and q of a piece from those of the coarser grid. */
static void NAME(refine)(const Job *job, const NAME(Piece) *piece)
{
    const long height = (job->height + 1) / 2, width = (job->width + 1) / 2, columns = piece->columns;
    const REAL *p = (const REAL *)job->coarse + 2 * piece->plane * height * width;
    for (long i = piece->top - piece->above; i < piece->end + piece->below; i++) {
        const long at = (i - piece->top) * piece->pitch;
        const REAL *here = p + i / 2 * width, *above = i % 2 ? here : i ? here - width : NULL;
        NAME(spread)(job, above, here, here + height * width, i + 1 == job->height, piece->down + at, piece->right + at);
        if (!job->coupled) {
            memcpy(piece->ahead_down + at, piece->down + at, (size_t)columns * sizeof(REAL));
            memcpy(piece->ahead_right + at, piece->right + at, (size_t)columns * sizeof(REAL));
        } else if (piece->beside + 1 == job->channels) { /* all of them are there */
            const long first = at - piece->beside * columns;
            NAME(draw_in)(job, (REAL)job->bound, columns, job->width, piece->down + first, piece->right + first);
            memcpy(piece->ahead_down + first, piece->down + first, (size_t)piece->across * sizeof(REAL));
            memcpy(piece->ahead_right + first, piece->right + first, (size_t)piece->across * sizeof(REAL));
        }
    }
}

/* Fills row i of a piece with y, if there is one, and with the zeros that stand around it. */
static void NAME(load_row)(const Job *job, const NAME(Piece) *piece, long i)
{
    if (i < -piece->above || i >= piece->end - piece->top + piece->below) return;
    const long lanes = 64 / (long)sizeof(REAL), width = job->width;
    const REAL *restrict from = (const REAL *)job->y + (piece->plane * job->height + piece->top + i) * width;
    REAL *restrict row = piece->ahead_right + NAME(place)(piece, i), *restrict y = piece->y + NAME(place)(piece, i);
    if (!piece->beside) {
        memset(row - lanes, 0, 64);
        row[piece->stride - 1] = 0;
    }
    row[piece->columns - 1] = 0; /* the next plane abreast reads it before the first iteration has come there */
    memset(y + width, 0, (size_t)(piece->columns - width) * sizeof(REAL));
    for (long j = 0; j < width; j++) y[j] = (REAL)from[j];
}

/* Fills a piece: y, p and q. Where p is 0 the first iteration writes it. */
static void NAME(load)(const Job *job, const NAME(Piece) *piece)
{
    const long size = job->height * job->width, at = 2 * piece->plane * size, end = piece->end - piece->top + piece->below;
    const REAL *p = job->p;
    for (long i = -piece->above; i < end && !watch(job->meeting, job->width); i++) NAME(load_row)(job, piece, i);
    if (job->coarse) NAME(refine)(job, piece);
    if (job->coarse || !p) return;
    const long width = job->width;
    const size_t columns = (size_t)piece->columns * sizeof(REAL);
    for (long i = -piece->above; i < end && !watch(job->meeting, 2 * width); i++)
        for (int a = 0; a < 2; a++) {
            REAL *row = (a ? piece->right : piece->down) + i * piece->pitch;
            const REAL *from = p + at + a * size + (piece->top + i) * width;
            memset(row, 0, columns); /* what lies across the border does not count */
            if (a || piece->top + i + 1 < job->height) memcpy(row, from, (size_t)(width - a) * sizeof(REAL));
            memcpy((a ? piece->ahead_right : piece->ahead_down) + i * piece->pitch, row, columns);
        }
}

/* x(q) of one row: `above` is q along the columns in the row before. */
INLINE void NAME(point)(long count, REAL inverse, const REAL *restrict y, const REAL *restrict above,
                        const REAL *restrict down, const REAL *restrict right, REAL *restrict x)
{
    for (long j = 0; j < count; j++) x[j] = y[j] - inverse * ((above[j] - down[j]) + (right[j - 1] - right[j]));
}

/* Where an iteration of a block stands. */
typedef struct {
    REAL *x; /* of the row that it works on */
    REAL step, momentum;
    int fresh;      /* whether p and q are 0, and not to be read */
    int final;      /* whether q is not asked for, nor `uphill` */
    double *uphill; /* <p_{k+1} - q_k, p_{k+1} - p_k> of each row, where it is asked for */
} NAME(Stage);

/* `count` columns from `from` on of row i of one iteration, whole vectors, in place; there is a row after it unless it is
   the last one, and x becomes that of it. */
INLINE void NAME(row)(const NAME(Piece) *piece, const NAME(Stage) *stage, long i, long from, long count, const int last,
                      const int isotropic, REAL inverse, REAL bound, const REAL *restrict bounds, const int with_sums,
                      const int fresh, const int final, double *uphill)
{
    const long at = NAME(place)(piece, i) + from, on = last ? 0 : NAME(place)(piece, i + 1) - NAME(place)(piece, i);
    const REAL t = stage->step, m = stage->momentum;
    const REAL *restrict y = piece->y + at + on, *restrict after = piece->ahead_down + at + on;
    const REAL *restrict beside = piece->ahead_right + at + on;
    REAL *restrict x = stage->x + from, *restrict down = piece->down + at, *restrict right = piece->right + at;
    REAL *restrict ahead_down = piece->ahead_down + at, *restrict ahead_right = piece->ahead_right + at;
    REAL sum = 0;
    bounds += from;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < count; j++) {
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
        if (final) continue; /* nobody reads q */
        ahead_down[j] = v + m * moved;
        ahead_right[j] = w + m * turned;
    }
    if (with_sums) *uphill += (double)sum;
}

/* v = q + t K x(q) of `count` columns of one channel from `from` on, where channels are coupled, and x becomes that of the row
   after, as in `row`. */
INLINE void NAME(raise)(const NAME(Piece) *piece, const NAME(Stage) *stage, long i, long from, long count, const int last,
                        const int fresh, REAL inverse, const REAL *restrict bounds, REAL *restrict v, REAL *restrict w)
{
    const long at = NAME(place)(piece, i) + from, on = last ? 0 : NAME(place)(piece, i + 1) - NAME(place)(piece, i);
    const REAL t = stage->step;
    const REAL *restrict y = piece->y + at + on, *restrict after = piece->ahead_down + at + on;
    const REAL *restrict beside = piece->ahead_right + at + on;
    const REAL *restrict ahead_down = piece->ahead_down + at, *restrict ahead_right = piece->ahead_right + at;
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

/* p and q of these columns, from v and its factors. */
INLINE REAL NAME(settle)(const NAME(Piece) *piece, const NAME(Stage) *stage, long i, long from, long count, const int with_sums,
                         const int fresh, const int final, const REAL *restrict v, const REAL *restrict w,
                         REAL factors[2][STRIP])
{
    const long at = NAME(place)(piece, i) + from;
    const REAL m = stage->momentum;
    REAL *restrict down = piece->down + at, *restrict right = piece->right + at;
    REAL *restrict ahead_down = piece->ahead_down + at, *restrict ahead_right = piece->ahead_right + at, sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < count; j++) {
        REAL a = v[j] * factors[0][j], b = w[j] * factors[1][j];
        REAL moved = fresh ? a : a - down[j], turned = fresh ? b : b - right[j];
        if (with_sums) sum += (a - (fresh ? 0 : ahead_down[j])) * moved + (b - (fresh ? 0 : ahead_right[j])) * turned;
        down[j] = a;
        right[j] = b;
        if (final) continue; /* nobody reads q */
        ahead_down[j] = a + m * moved;
        ahead_right[j] = b + m * turned;
    }
    return sum;
}

/* The same as `row` where channels are coupled, of all of them: columns from `from` on of the first, and of each other one. */
INLINE void NAME(coupled_row)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, const NAME(Stage) *stage, long i,
                              long from, long count, const int last, const int with_sums, const int fresh, const int final,
                              double *uphill)
{
    REAL factors[2][STRIP];
    const REAL inverse = (REAL)job->inverse;
    for (long end = from + count; from < end; from += STRIP) {
        const long n = least(STRIP, end - from);
        for (long c = 0; c < job->channels; c++) {
            REAL *v = team->raised + 2 * c * STRIP;
            NAME(raise)(piece, stage, i, c * piece->columns + from, n, last, fresh, inverse, team->bound, v, v + STRIP);
        }
        if (job->isotropic)
            NAME(factors)(job->channels, 2 * STRIP, n, 1, team->inside, team->raised, team->raised + STRIP, factors);
        else
            NAME(factors)(job->channels, 2 * STRIP, n, 0, team->inside, team->raised, team->raised + STRIP, factors);
        for (long c = 0; c < job->channels; c++) {
            const REAL *v = team->raised + 2 * c * STRIP;
            const REAL sum = NAME(settle)(piece, stage, i, c * piece->columns + from, n, with_sums, fresh, final, v, v + STRIP, factors);
            if (with_sums) *uphill += (double)sum;
        }
    }
}

static void __attribute__((noinline)) NAME(row_of)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece,
                                                   const NAME(Stage) *stage, long i, long from, long count)
{
    const int last = piece->top + i + 1 == job->height, sums = stage->uphill && i >= 0 && piece->top + i < piece->end;
    double *uphill = sums ? stage->uphill + from / piece->columns * job->height + i : NULL;
    for (long c = 0; c < (job->coupled ? job->channels : 1) && sums && from % piece->columns == 0; c++) uphill[c * job->height] = 0;
#define ROW(l, iso, s, f, e) NAME(row)(piece, stage, i, from, count, l, iso, (REAL)job->inverse, team->inside, team->bound, s, f, e, uphill)
#define COUPLED(l, s, f, e) NAME(coupled_row)(job, team, piece, stage, i, from, count, l, s, f, e, uphill)
#define EITHER(l, s, f, e) if (job->coupled) COUPLED(l, s, f, e); else if (job->isotropic) ROW(l, 1, s, f, e); else ROW(l, 0, s, f, e)
    if (last && stage->fresh)
        EITHER(1, sums, 1, 0);
    else if (last)
        EITHER(1, sums, 0, 0);
    else if (stage->final && stage->fresh)
        EITHER(0, 0, 1, 1);
    else if (stage->final)
        EITHER(0, 0, 0, 1);
    else if (stage->fresh)
        EITHER(0, sums, 1, 0);
    else if (sums)
        EITHER(0, 1, 0, 0);
    else
        EITHER(0, 0, 0, 0);
#undef EITHER
#undef COUPLED
#undef ROW
}

/* Asks for part n of `parts` of row i, which is needed soon. */
static void NAME(ask)(const NAME(Piece) *piece, long i, long n, long parts)
{
    const long lanes = 64 / (long)sizeof(REAL), lines = 5 * piece->stride / lanes;
    const REAL *row = piece->ahead_right + i * piece->pitch;
    for (long k = lines * n / parts; k < lines * (n + 1) / parts; k++) __builtin_prefetch(row + k * lanes, 1, 2);
}

/* x of a row that an iteration begins with. */
static void NAME(enter)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, NAME(Stage) *stage, long i)
{
    const long at = NAME(place)(piece, i);
    const REAL *above = piece->top + i ? piece->ahead_down + NAME(place)(piece, i - 1) : team->zeros;
    if (stage->fresh)
        memcpy(stage->x, piece->y + at, (size_t)piece->across * sizeof(REAL));
    else
        NAME(point)(piece->across, (REAL)job->inverse, piece->y + at, above, piece->ahead_down + at,
                    piece->ahead_right + at, stage->x);
}

#include "look.h"

/* Writes p of row i of a piece to where it is asked for. */
static void NAME(store_row)(const Job *job, const NAME(Piece) *piece, long i)
{
    const long width = job->width, size = job->height * width, at = 2 * piece->plane * size + (piece->top + i) * width;
    REAL *down = (REAL *)job->p_out + at, *right = down + size;
    memcpy(down, piece->down + NAME(place)(piece, i), (size_t)width * sizeof(REAL));
    memcpy(right, piece->right + NAME(place)(piece, i), (size_t)width * sizeof(REAL));
    right[width - 1] = 0; /* which it is, of either sign: by what lies next to it */
}

/* All of a piece, and x unless a look has just done so. */
static void NAME(store)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, int looked)
{
    for (long i = 0; i < piece->end - piece->top && !watch(job->meeting, 4 * job->width); i++) {
        NAME(store_row)(job, piece, i);
        if (!job->x_out || looked) continue;
        REAL *x = (REAL *)job->x_out + (piece->plane * job->height + piece->top + i) * job->width;
        NAME(answer)(job, team, piece, i, job->width, x);
    }
}

/* `count` iterations on one piece, or those that lie abreast, each one row behind the one before it, so that rows are in the cache for all of
   them, and long rows a part at a time, each iteration one vector further left, so that what one writes is near for the
   next. Rows of neighbours are computed as far as they are needed: by later iterations, and in the end, `rim` of them.
   With `lines`, rows are loaded, looked at and stored on the way. */
static void NAME(block)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, NAME(Stage) *stages, long count,
                        long rim, NAME(Lines) *lines, double *sums)
{
    const long lanes = 64 / (long)sizeof(REAL), row = piece->stride + lanes, rows = piece->end - piece->top;
    const long columns = job->coupled ? piece->columns : piece->across, most_of = PART / (long)sizeof(REAL) / (job->coupled ? 2 : 1);
    const long part = piece->across * (long)sizeof(REAL) > LONG_ROW ? most_of : columns;
    const int far = !lines && rows * piece->pitch * (long)sizeof(REAL) > NEAR;
    for (long n = 0; n < team->abreast && lines; n++) NAME(load_row)(job, piece + n, -piece->above);
    for (long front = -piece->above; front < rows + piece->below + count; front++) {
        if (watch(job->meeting, piece->across * count)) return;
        for (long n = 0; n < team->abreast && lines; n++) NAME(load_row)(job, piece + n, front + 1);
        for (long begin = 0; begin < columns; begin += part)
            for (long s = 0; s < count; s++) {
                long i = front - s, margin = rim + count - 1 - s;
                long first = piece->above ? -margin : 0, end = piece->below ? rows + margin : rows;
                long from = most(0, begin - s * lanes), to = begin + part < columns ? begin + part - s * lanes : columns;
                if (far && !begin && front + SOON < rows + piece->below) NAME(ask)(piece, front + SOON, s, count);
                if (i < first || i >= end) continue;
                stages[s].x = team->rows + s * row;
                if (!begin && i == first) NAME(enter)(job, team, piece, stages + s, i);
                if (stages[s].uphill && team->abreast > 1 && !job->coupled) /* planes have sums of their own */
                    for (; from + piece->columns < to; from += piece->columns)
                        NAME(row_of)(job, team, piece, stages + s, i, from, piece->columns);
                NAME(row_of)(job, team, piece, stages + s, i, from, to - from);
            }
        const long done = front - count + 1;
        for (long n = 0; n < team->abreast && lines && done >= 0 && done <= rows; n++) {
            NAME(look_at)(job, team, piece + n, done, lines + n, sums);
            if (done) NAME(store_row)(job, piece + n, done - 1);
        }
    }
}

/* Takes the rows of its neighbours over from those who computed them. */
static void NAME(share)(const NAME(Team) *teams, int thread, int threads)
{
    const NAME(Team) *team = teams + thread;
    for (long n = 0; n < team->count; n += team->abreast) { /* those abreast are copied with the first of them */
        NAME(Piece) *piece = team->pieces + n;
        const long rows = piece->end - piece->top, pitch = piece->pitch;
        for (int side = 0; side < 2; side++) {
            long depth = side ? piece->below : piece->above;
            if (!depth || (side ? thread + 1 >= threads : thread == 0)) continue;
            const NAME(Team) *other = team + (side ? 1 : -1);
            const NAME(Piece) *near = side ? other->pieces : other->pieces + other->count - team->abreast;
            long theirs = side ? 0 : near->end - near->top - depth, mine = side ? rows : -depth;
            size_t bytes = (size_t)(depth * pitch) * sizeof(REAL);
            memcpy(piece->ahead_right + mine * pitch, near->ahead_right + theirs * pitch, bytes);
        }
    }
}

/* Where x is flat: no edge is between two neighbours of which p is within the bound. Of row i: to the right, and down. */
static void NAME(flat_at)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, long i, unsigned char *restrict right,
                          unsigned char *restrict down)
{
    const REAL *restrict v = piece->down + i * piece->pitch, *restrict w = piece->right + i * piece->pitch;
    const REAL bound = team->inside, limit = bound * bound * (REAL)(1 - 1e-5);
    if (job->coupled) { /* of all channels together */
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
    for (long j = 0; j < job->width && job->isotropic; j++) right[j] = down[j] = v[j] * v[j] + w[j] * w[j] < limit;
}

/* What x is counted from in a plane, so that squares of what is left are small. */
static double NAME(pixel_of)(const Job *job, const NAME(Piece) *piece)
{
    return (double)((const REAL *)job->y)[piece->plane * job->height * job->width];
}

/* What is won on each pixel of row i of a piece if x were `pixel` there: the slack between it and the next ones,
   b |Kx| - <p, Kx>, less s times the square of x less that. */
INLINE void NAME(gains)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, long i, const int isotropic,
                        double *restrict out)
{
    const long width = job->width, last = piece->top + i + 1 == job->height;
    const REAL *restrict x = (const REAL *)job->x_out + (piece->plane * job->height + piece->top + i) * width;
    const REAL *restrict next = last ? x : x + width;
    const REAL *restrict v = piece->down + i * piece->pitch, *restrict w = piece->right + i * piece->pitch;
    const double bound = (double)team->inside, scale = job->scale, pixel = NAME(pixel_of)(job, piece);
#pragma omp simd
    for (long j = 0; j < width - 1; j++) {
        const double here = (double)x[j], along = (double)next[j] - here, across = (double)x[j + 1] - here;
        const double length = isotropic ? sqrt(along * along + across * across) : fabs(along) + fabs(across);
        out[j] = bound * length - (along * (double)v[j] + across * (double)w[j]) - scale * (here - pixel) * (here - pixel);
    }
    const double here = (double)x[width - 1], along = (double)next[width - 1] - here;
    out[width - 1] = bound * fabs(along) - along * (double)v[width - 1] - scale * (here - pixel) * (here - pixel);
}

/* The same where channels are coupled: their lengths are those of all of them, of which each channel gets an equal part. */
static void NAME(coupled_gains)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, long i, double *restrict out)
{
    const long width = job->width, size = job->height * width, last = piece->top + i + 1 == job->height;
    const REAL *x = (const REAL *)job->x_out + (piece->top + i) * width, *own = x + piece->plane * size;
    const REAL *restrict v = piece->down + i * piece->pitch, *restrict w = piece->right + i * piece->pitch;
    const double part = (double)team->inside / (double)job->channels, pixel = NAME(pixel_of)(job, piece);
    for (long j = 0; j < width; j++) {
        const long down = last ? j : j + width, right = j + 1 < width ? j + 1 : j;
        const double here = (double)own[j], off = here - pixel;
        const double dot = ((double)own[down] - here) * (double)v[j] + ((double)own[right] - here) * (double)w[j];
        double along = 0, across = 0;
        for (long c = 0; c < job->channels; c++) {
            const REAL *of = x + c * size;
            const double a = (double)of[down] - (double)of[j], b = (double)of[right] - (double)of[j];
            along += a * a, across += b * b;
        }
        const double length = job->isotropic ? sqrt(along + across) : sqrt(along) + sqrt(across);
        out[j] = part * length - dot - job->scale * off * off;
    }
}

/* The runs of a piece, and regions of them within it; x has just been looked at, and lies where it is asked for. */
static void NAME(label)(const Job *job, const NAME(Team) *team, NAME(Piece) *piece, const Regions *all, double *gains,
                        unsigned char *right, unsigned char *down)
{
    const long width = job->width, first = (piece->plane * job->height + piece->top) * width;
    const double pixel = NAME(pixel_of)(job, piece);
    long run = first - 1;
    for (long i = 0; i < piece->end - piece->top && !watch(job->meeting, width); i++) {
        int32_t *label = all->label + first + i * width;
        const REAL *x = (const REAL *)job->x_out + first + i * width;
        double sum = 0, gain = 0;
        int32_t count = 0;
        NAME(flat_at)(job, team, piece, i, right, down + (i % 2) * width);
        if (job->coupled)
            NAME(coupled_gains)(job, team, piece, i, gains);
        else if (job->isotropic)
            NAME(gains)(job, team, piece, i, 1, gains);
        else
            NAME(gains)(job, team, piece, i, 0, gains);
        for (long j = 0; j < width; j++) {
            const int on = j && right[j - 1];
            run += !on;
            sum = (on ? sum : 0) + ((double)x[j] - pixel), gain = (on ? gain : 0) + gains[j], count = (on ? count : 0) + 1;
            label[j] = all->parent[run] = (int32_t)run;
            all->sum[run] = sum, all->gain[run] = gain, all->count[run] = count;
        }
        if (i) unite_rows(all, label - width, label, down + (1 - i % 2) * width, width);
    }
    piece->runs = run + 1 - first;
}

/* The regions of all planes from those of the pieces, and what they have: what one thread does for the others. */
static void NAME(join)(const Job *job, const NAME(Team) *teams, int threads, const Regions *all, unsigned char *flags)
{
    const long width = job->width;
    for (int pass = 0; pass < 3; pass++)
        for (int t = 0; t < threads; t++)
            for (long n = 0; n < teams[t].count; n++) {
                const NAME(Piece) *piece = teams[t].pieces + n;
                const long first = (piece->plane * job->height + piece->top) * width, end = first + piece->runs;
                for (long r = first; pass == 1 && r < end && !watch(job->meeting, width); r += width)
                    add_up(all, r, least(r + width, end));
                if (pass == 2 && !(job->coupled && piece->beside)) {
                    const long together = job->coupled ? job->channels : 1;
                    double pixels[MAX_COUPLED];
                    for (long c = 0; c < together; c++) pixels[c] = NAME(pixel_of)(job, piece + c);
                    for (long r = first; r < end && !watch(job->meeting, together * width); r += width)
                        take_means(all, r, least(r + width, end), job->scale, pixels, together, job->height * width);
                }
                if (pass == 0 && piece->top) {
                    NAME(flat_at)(job, teams + t, piece, -1, flags, flags + width);
                    unite_rows(all, all->label + first - width, all->label + first, flags + width, width);
                }
            }
}

/* x(p) drawn flat: on each of its regions its mean, which solves the problem where all regions are right. The edges between
   them have p at the bound, so that the mean of x(p) is that of y and of what its border pulls. */
static void NAME(draw_flat)(const Job *job, Shared *shared, NAME(Team) *teams, int thread, int threads)
{
    const Regions *all = &shared->regions;
    const NAME(Team) *team = teams + thread;
    const long width = job->width;
    double *gains = malloc((size_t)width * (sizeof(double) + 3));
    unsigned char *flags = (unsigned char *)(gains + width);
    if (!gains) fail_with(&shared->meeting, NO_MEMORY);
    for (long n = 0; n < team->count && gains; n++)
        NAME(label)(job, team, team->pieces + n, all, gains, flags, flags + width);
    wait_for(shared, threads);
    if (thread == 0 && !shared->meeting.stop) NAME(join)(job, teams, threads, all, flags);
    wait_for(shared, threads);
    for (long n = 0; n < team->count && !shared->meeting.stop; n++) {
        const NAME(Piece) *piece = team->pieces + n;
        const long first = (piece->plane * job->height + piece->top) * width, rows = piece->end - piece->top;
        REAL *restrict x = (REAL *)job->x_out + first;
        for (long k = 0; k < rows * width; k++) {
            if (k % width == 0 && watch(job->meeting, width)) break;
            const double mean = all->sum[all->label[first + k]];
            x[k] = mean == mean ? (REAL)mean : x[k];
        }
    }
    free(gains);
    wait_for(shared, threads);
}

/* Where a solve begins: with the job's own numbers, unless it goes on from where it was. */
static Pace NAME(entered)(const Job *job)
{
    Pace pace = job->pace;
    if (pace.begun == 0) pace.numbers = job->numbers, pace.learned = job->learned;
    return pace;
}

/* The numbers of the next iterations. */
static void NAME(prepare)(const Job *job, Pace *pace, NAME(Stage) *stages, long count, int fresh)
{
    for (long s = 0; s < count; s++) {
        next_numbers(job, pace);
        stages[s].step = (REAL)pace->step, stages[s].momentum = (REAL)pace->momentum;
        stages[s].uphill = NULL, stages[s].fresh = fresh && s == 0, stages[s].final = job->once && s + 1 == count;
    }
}

/* A look at x drawn flat. Returns whether it is where x is asked for, and the answer if the solve ends here. */
static int NAME(look_flat)(const Job *job, Shared *shared, NAME(Team) *teams, int thread, int threads, Pace *pace)
{
    const long rows = job->channels * job->height;
    if (thread == 0) make_room(job, shared);
    wait_for(shared, threads);
    if (shared->meeting.stop) pace->status = FINISHED;
    if (!shared->flat || shared->meeting.stop) return 1;
    NAME(draw_flat)(job, shared, teams, thread, threads);
    if (!NAME(sums)(job, teams + thread, FLAT, shared->sums + SUMS * 2 * rows)) fail_with(&shared->meeting, NO_MEMORY);
    wait_for(shared, threads);
    if (shared->meeting.stop) pace->status = FINISHED;
    return !shared->meeting.stop && decide_flat(job, shared, pace);
}

/* All of a solve by one thread of those that share it. `teams` has room for all of them. */
static void NAME(solve)(Job *job, Shared *shared, NAME(Team) *teams, int thread, int threads)
{
    NAME(Team) *team = teams + thread;
    NAME(Stage) stages[DEPTH];
    Pace pace = NAME(entered)(job);
    double room[2 * ROOM];
    int looked = 0;
    if (pace.iteration >= job->limit) pace.status = FINISHED;
    int fresh = !job->p && !job->coarse && pace.status == GOING;
    if (!NAME(cut)(job, thread, threads, team)) fail_with(&shared->meeting, NO_MEMORY);
    wait_for(shared, threads);
    if (!shared->meeting.stop) {
        for (long n = 0; n < team->count; n++) NAME(load)(job, team->pieces + n);
        if (pace.status == GOING && pace.gap > 0 && pace.iteration >= pace.learned) go_on(job, shared, &pace, room);
        while (pace.status == GOING) {
            long count = plan(job, &pace), side = pace.blocks % 2 * job->channels * job->height;
            NAME(prepare)(job, &pace, stages, count, fresh);
            if (count) fresh = 0;
            for (long n = 0; n < team->count; n += team->abreast) {
                const NAME(Piece) *piece = team->pieces + n;
                if (restarts(job, &pace)) stages[count - 1].uphill = shared->uphill + side + piece->plane * job->height + piece->top;
                NAME(block)(job, team, piece, stages, count, 0, NULL, NULL);
            }
            if (threads > 1) {
                wait_for(shared, threads);
                NAME(share)(teams, thread, threads);
            }
            looked = looks(job, &pace);
            if (looked)
                NAME(look)(job, shared, team, pace.blocks % 2, threads, &pace);
            else
                wait_for(shared, threads);
            decide(job, shared, &pace);
            const int ends = looked && pace.iteration >= pace.learned;
            if (looked && may_be_flat(job, &pace)) looked = NAME(look_flat)(job, shared, teams, thread, threads, &pace);
            if (ends && pace.status == GOING) go_on(job, shared, &pace, room);
        }
        for (long n = 0; n < team->count && !shared->meeting.stop; n++) NAME(store)(job, team, team->pieces + n, looked);
    }
    wait_for(shared, threads);
    pace.numbers = NULL, pace.learned = least(pace.learned, pace.iteration); /* `room` is gone */
    if (thread == 0) job->pace = pace;
    NAME(drop)(team);
}

/* Few iterations from nothing, the gap and the answer, one piece after the other and each in one pass over its rows: what they
   work on stays in the cache, and threads wait for each other once. Where it was not enough, the solve goes on from p. */
static void NAME(at_once)(Job *job, Shared *shared, NAME(Team) *teams, int thread, int threads)
{
    NAME(Team) *team = teams + thread;
    NAME(Stage) stages[DEPTH];
    NAME(Lines) lines[MAX_COUPLED] = {{0}};
    Pace pace = NAME(entered)(job);
    NAME(prepare)(job, &pace, stages, job->learned, 1);
    int able = NAME(cut)(job, thread, threads, team);
    able = able && NAME(lines)(job, EXACT, team->abreast, lines);
    if (!able) fail_with(&shared->meeting, NO_MEMORY);
    for (long n = 0; n < team->count && able; n += team->abreast)
        NAME(block)(job, team, team->pieces + n, stages, job->learned, 1, lines, shared->sums);
    free(lines->memory);
    NAME(drop)(team);
    wait_for(shared, threads);
    if (!shared->meeting.stop) certify(job, shared->sums, &pace);
    decide(job, shared, &pace);
    wait_for(shared, threads);
    if (thread) return;
    job->pace = pace;
    job->p = job->p_out, job->once = 0, job->depth = depth_for(job->height, job->width);
}

/* The sum of absolute differences of a row, to the row below and from one pixel to the next. */
static REAL NAME(length)(const REAL *here, const REAL *below, long width)
{
    REAL sums[PARTS] = {ABSOLUTE(below[0] - here[0])};
    long j = 1;
#define LENGTH(j) (ABSOLUTE(below[j] - here[j]) + ABSOLUTE(here[j] - here[(j) - 1]))
    for (; j + PARTS <= width; j += PARTS)
#pragma omp simd
        for (long l = 0; l < PARTS; l++) sums[l] += LENGTH(j + l);
    for (; j < width; j++) sums[0] += LENGTH(j);
#undef LENGTH
    for (long l = 1; l < PARTS; l++) sums[0] += sums[l];
    return sums[0];
}

/* Those of each row of y. */
static void NAME(lengths)(const Job *job, double *out, int thread, int threads)
{
    const long rows = job->channels * job->height, width = job->width;
    for (long n = rows * thread / threads; n < rows * (thread + 1) / threads; n++) {
        const REAL *here = (const REAL *)job->y + n * width;
        out[n] = (double)NAME(length)(here, (n + 1) % job->height ? here + width : here, width);
    }
}

/* y of a coarser grid: means over 2 x 2 pixels, or those of them that there are. */
static void NAME(average)(const Job *fine, const Job *coarse, int thread, int threads)
{
    const long rows = coarse->channels * coarse->height, width = coarse->width, pairs = fine->width / 2;
    for (long n = rows * thread / threads; n < rows * (thread + 1) / threads; n++) {
        const long i = n % coarse->height * 2;
        const REAL *here = (const REAL *)fine->y + (n / coarse->height * fine->height + i) * fine->width;
        const REAL *below = i + 1 < fine->height ? here + fine->width : here;
        REAL *restrict out = (REAL *)coarse->y + n * width;
        for (long j = 0; j < pairs; j++)
            out[j] = (REAL)0.25 * ((here[2 * j] + here[2 * j + 1]) + (below[2 * j] + below[2 * j + 1]));
        if (pairs < width) out[pairs] = (REAL)0.5 * (here[2 * pairs] + below[2 * pairs]);
    }
}

/* The roughness of y, on the first thread. */
static double NAME(roughness)(const Job *job, Shared *shared, int thread, int threads)
{
    NAME(lengths)(job, shared->sums, thread, threads);
    wait_for(shared, threads);
    return thread ? 0 : roughness_of(job, total_of(shared->sums, job->channels * job->height));
}

/* Chooses among the schedules by the gap that p proves, or by the roughness, and goes through the coarser grids. */
static void NAME(begin)(Job *job, Shared *shared, const Schedules *schedules, NAME(Team) *teams, int thread, int threads)
{
    if (!schedules || job->tolerance < 0) return;
    const double rough = NAME(roughness)(job, shared, thread, threads);
    if (thread == 0) {
        shared->rough = rough, job->schedules = schedules;
        long chosen = choose(schedules, job, rough, least(job->height, job->width) >= SMALLEST);
        if (job->p) {
            const long warm = choose_from(schedules, job, shared, cost_of(schedules, job, chosen));
            if (warm < 0) job->p = NULL;
            else chosen = warm;
        }
        shared->chosen = chosen;
        if (chosen >= 0 && !plan_levels(job, shared, schedules, chosen, sizeof(REAL))) fail_with(&shared->meeting, NO_MEMORY), shared->chosen = -1;
        if (shared->chosen >= 0) {
            interpolate(schedules, chosen, rough, (double *)job->numbers);
            job->pace.next_look = job->learned;
            job->once = job->learned < least(DEPTH, job->limit + 1) && !schedules->coarse[chosen] && !job->p;
            if (job->once) job->depth = job->learned + 1;
        }
    }
    wait_for(shared, threads);
    if (shared->chosen < 0) return; /* not `failed`, which the first thread may set again on its way from here */
    if (job->once) NAME(at_once)(job, shared, teams, thread, threads);
    for (long n = 0; n < shared->coarser; n++) {
        Job *level = shared->levels + n;
        NAME(average)(n ? level - 1 : job, level, thread, threads);
        wait_for(shared, threads);
        NAME(lengths)(level, shared->sums, thread, threads);
        wait_for(shared, threads);
        if (thread == 0) {
            double length = total_of(shared->sums, level->channels * level->height);
            interpolate(schedules, shared->chosen, roughness_of(level, length), (double *)level->numbers);
        }
    }
    wait_for(shared, threads);
    for (long n = shared->coarser - 1; n >= 0; n--)
        NAME(solve)(shared->levels + n, shared, teams, thread, threads);
}
