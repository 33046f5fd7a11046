/* Gap evaluations: x(p) of each row, and the sums from which the gap is computed. This file is a
   part of loop.h.

   Sums are exact up to the rounding of double precision. */

/* x(p) of `count` columns of row i of a piece, as in the output. */
static void NAME(answer)(
    const Job *job, const Team *team, const Piece *piece, long i, long count, REAL *restrict x) {
    const long at = NAME(place)(piece, i);
    const REAL *above = piece->top + i ? piece->down + NAME(place)(piece, i - 1) : team->zeros;
    NAME(point)
    (count, (REAL)job->inverse, piece->y + at, above, piece->down + at, piece->right + at, x);
}

/* Rows of a gap evaluation: x of this row and of the next one, p of this row and, along the
 * columns, of the previous row. */
typedef struct {
    int kind; /* EXACT, or FLAT: x is in the output already */
    REAL *x, *next;
    const REAL *above, *down, *right;
    double *squares; /* if channels are coupled: sums over channels of squares of differences, along
                        both axes; two rows for all lines */
    void *memory;
} Lines;

static long NAME(padded)(const Job *job) { return (job->width + 15) / 8 * 8 + 8; }

/* Makes lines for `count` planes. The first owns the memory of all. */
static int NAME(lines)(const Job *job, int kind, long count, Lines *lines) {
    const long padded = NAME(padded)(job);
    double *at = lines->memory = calloc((size_t)((2 * count + 2) * padded + 8), sizeof(double));
    if (!at) return 0;
    at = (double *)(((uintptr_t)at + 63) / 64 * 64);
    for (long k = 0; k < count; k++, at += 2 * padded) {
        lines[k].kind = kind;
        lines[k].x = (REAL *)at, lines[k].next = (REAL *)(at + padded);
    }
    for (long k = 0; k < count; k++) lines[k].squares = at;
    return 1;
}

/* Computes the sums of a row: docs/guarantees.md, Theorem 7. */
INLINE void NAME(sum)(const Job *job, const Lines *lines, const REAL *restrict y,
    const int isotropic, const int coupled, double *out) {
    double *restrict squares = lines->squares, *restrict others = squares + NAME(padded)(job);
    const REAL *restrict x = lines->x, *restrict next = lines->next;
    const REAL *restrict above = lines->above, *restrict down = lines->down,
                         *restrict right = lines->right;
    const double inverse = job->inverse;
    double length = 0, cross = 0, square = 0, misfit = 0;
#pragma omp simd reduction(+ : length, cross, square, misfit)
    for (long j = 0; j < job->width; j++) {
        double here = (double)x[j], v = (double)down[j], w = (double)right[j];
        double along = (double)next[j] - here, across = (double)x[j + 1] - here;
        double off = here - (double)y[j];
        double away = off + inverse * (((double)above[j] - v) + ((double)right[j - 1] - w));
        if (coupled) squares[j] += along * along, others[j] += across * across;
        else
            length +=
                isotropic ? sqrt(along * along + across * across) : fabs(along) + fabs(across);
        cross += along * v + across * w;
        misfit += off * off;
        square += away * away;
    }
    out[0] = length, out[1] = cross, out[2] = square, out[3] = misfit;
}

/* The sum of lengths of a row of coupled channels; resets their sums of squares. */
static double NAME(coupled_lengths)(const Job *job, const Lines *lines) {
    double *restrict squares = lines->squares, *restrict others = squares + NAME(padded)(job),
                     length = 0;
    const int isotropic = job->isotropic;
#pragma omp simd reduction(+ : length)
    for (long j = 0; j < job->width; j++) {
        length += isotropic ? sqrt(squares[j] + others[j]) : sqrt(squares[j]) + sqrt(others[j]);
        squares[j] = others[j] = 0;
    }
    return length;
}

/* Reads row i of x from the output if `kind` is FLAT, or else computes x(p) and writes it there. */
static void NAME(next_row)(
    const Job *job, const Team *team, const Piece *piece, long i, int kind, REAL *x) {
    const size_t bytes = (size_t)job->width * sizeof(REAL);
    REAL *given = job->x_out
        ? (REAL *)job->x_out + (piece->plane * job->height + piece->top + i) * job->width
        : NULL;
    if (kind == FLAT) {
        memcpy(x, given, bytes);
        return;
    }
    NAME(answer)(job, team, piece, i, job->width, x);
    if (given && piece->top + i < piece->end) memcpy(given, x, bytes);
}

/* Evaluates row i - 1 of a piece, as soon as p of row i is known; the last row of a plane has no
 * row i after it. */
static void NAME(look_at)(
    const Job *job, const Team *team, const Piece *piece, long i, Lines *lines, double *sums) {
    const long width = job->width;
    const REAL *y = piece->y + NAME(place)(piece, i - 1);
    double *out = sums + SUMS * (piece->plane * job->height + piece->top + i - 1);
    REAL *x = lines->x;
    if (i == 0) {
        lines->down = piece->top ? piece->down + NAME(place)(piece, -1) : team->zeros;
        NAME(next_row)(job, team, piece, 0, lines->kind, x);
        return;
    }
    if (piece->top + i == job->height)
        memcpy(lines->next, x, (size_t)width * sizeof(REAL)); /* no difference */
    else NAME(next_row)(job, team, piece, i, lines->kind, lines->next);
    lines->above = lines->down;
    lines->down = piece->down + NAME(place)(piece, i - 1),
    lines->right = piece->right + NAME(place)(piece, i - 1);
    x[width] = x[width - 1];
    if (job->coupled) NAME(sum)(job, lines, y, 0, 1, out);
    else if (job->isotropic) NAME(sum)(job, lines, y, 1, 0, out);
    else NAME(sum)(job, lines, y, 0, 0, out);
    if (job->coupled && piece->beside + 1 == job->channels)
        out[0] = NAME(coupled_lengths)(job, lines);
    lines->x = lines->next, lines->next = x;
}

/* Computes the sums of all rows of the pieces of a thread. Returns 0 without memory. */
static int NAME(sums)(const Job *job, const Team *team, int kind, double *sums) {
    Lines lines[MAX_COUPLED];
    const long abreast = job->coupled ? job->channels : 1;
    if (!NAME(lines)(job, kind, abreast, lines)) return 0;
    for (long n = 0; n < team->count; n += abreast) {
        const Piece *piece = team->pieces + n;
        for (long i = 0; i <= piece->end - piece->top && !watch(job->meeting, abreast * job->width);
             i++)
            for (long k = 0; k < abreast; k++)
                NAME(look_at)(job, team, piece + k, i, lines + k, sums);
    }
    free(lines->memory);
    return 1;
}

/* Evaluates the gap; every thread does this for itself. x goes to the output, the sums to copy
 * `place` of them. */
static void NAME(look)(
    const Job *job, Shared *shared, const Team *team, long place, int threads, Pace *pace) {
    double *sums = shared->sums + SUMS * job->channels * job->height * place;
    if (!NAME(sums)(job, team, EXACT, sums)) fail_with(&shared->meeting, NO_MEMORY);
    meet(&shared->meeting, threads);
    if (!shared->meeting.stop) certify(job, sums, pace);
}
