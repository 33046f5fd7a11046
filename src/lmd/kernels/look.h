/* Looks at where a solve stands: x(p) of each row, and the sums that its gap is made of. A part of loop.h.

   A look is exact to the rounding of double precision, or, on the way to tolerances that leave room for it, brief: sums of
   float numbers, in a third of the time (docs/guarantees.md, Theorem 3c, has the room). */

/* p of one row as it is given out, within the bound, where that is another type. */
static void NAME(outer)(const Job *job, const NAME(Piece) *piece, long i, REAL *restrict down, REAL *restrict right)
{
    const REAL *restrict p = piece->down + i * piece->pitch, *restrict r = piece->right + i * piece->pitch;
    const REAL bound = (REAL)job->bound, limit = bound * bound;
    for (long j = 0; j < job->width && !job->isotropic; j++) {
        REAL v = (REAL)(IO)p[j], w = (REAL)(IO)r[j];
        v = v > bound ? bound : v;
        w = w > bound ? bound : w;
        down[j] = v < -bound ? -bound : v;
        right[j] = w < -bound ? -bound : w;
    }
    for (long j = 0; j < job->width && job->isotropic; j++) {
        REAL v = (REAL)(IO)p[j], w = (REAL)(IO)r[j], square = v * v + w * w;
        REAL factor = square > limit ? bound / SQRT(square) : 1;
        down[j] = v * factor;
        right[j] = w * factor;
    }
}

/* x(p) of `count` columns of row i of a piece, as it is given out. */
static void NAME(answer)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, long i, long count, IO *restrict x)
{
    const long at = NAME(place)(piece, i);
    const REAL *restrict above = piece->top + i ? piece->down + NAME(place)(piece, i - 1) : team->zeros;
    const REAL *restrict y = piece->y + at, *restrict down = piece->down + at, *restrict right = piece->right + at;
    const REAL inverse = (REAL)job->inverse;
    for (long j = 0; j < count; j++) x[j] = (IO)(y[j] - inverse * ((above[j] - down[j]) + (right[j - 1] - right[j])));
}

/* Rows that a look goes through: x of this row and of the next one, p of this row and, along the columns, of the last. */
typedef struct {
    int kind; /* EXACT, BRIEF, or FLAT: x is there already */
    IO *x, *next;
    const REAL *above, *down, *right;
    REAL *made[3]; /* room for p, where it is not given out as it is */
    void *memory;
} NAME(Lines);

static int NAME(lines)(const Job *job, int kind, NAME(Lines) *lines)
{
    const long padded = (job->width + 15) / 8 * 8 + 8;
    double *at = lines->memory = calloc((size_t)(5 * padded + 8), sizeof(double));
    lines->kind = kind;
    if (!at) return 0;
    at = (double *)(((uintptr_t)at + 63) / 64 * 64);
    lines->x = (IO *)at, lines->next = (IO *)(at + padded);
    for (int n = 0; n < 3; n++) lines->made[n] = (REAL *)(at + (2 + n) * padded) + 1;
    return 1;
}

/* The next row of p, which becomes the one above. */
static void NAME(turn)(const Job *job, const NAME(Piece) *piece, long i, NAME(Lines) *lines)
{
    REAL **made = lines->made, *above = made[0];
    if (sizeof(IO) == sizeof(REAL)) {
        lines->down = piece->down + NAME(place)(piece, i), lines->right = piece->right + NAME(place)(piece, i);
        return;
    }
    made[0] = made[1], made[1] = above;
    NAME(outer)(job, piece, i, made[0], made[2]);
    lines->down = made[0], lines->right = made[2];
}

/* The sums of a row: docs/guarantees.md, Theorem 3b. */
INLINE void NAME(sum)(const Job *job, const NAME(Lines) *lines, const REAL *restrict y, const int isotropic, double *out)
{
    const IO *restrict x = lines->x, *restrict next = lines->next;
    const REAL *restrict above = lines->above, *restrict down = lines->down, *restrict right = lines->right;
    const double inverse = job->inverse;
    double length = 0, cross = 0, square = 0, misfit = 0;
#pragma omp simd reduction(+ : length, cross, square, misfit)
    for (long j = 0; j < job->width; j++) {
        double here = (double)x[j], v = (double)down[j], w = (double)right[j];
        double along = (double)next[j] - here, across = (double)x[j + 1] - here;
        double off = here - (double)(IO)y[j];
        double away = off + inverse * (((double)above[j] - v) + ((double)right[j - 1] - w));
        length += isotropic ? sqrt(along * along + across * across) : fabs(along) + fabs(across);
        cross += along * v + across * w;
        misfit += off * off;
        square += away * away;
    }
    out[0] = length, out[1] = cross, out[2] = square, out[3] = misfit;
}

#ifdef FIRST
typedef REAL NAME(Vector) __attribute__((vector_size(VECTOR), aligned(sizeof(REAL)), may_alias));
typedef WHOLE NAME(Mask) __attribute__((vector_size(VECTOR)));
enum { NAME(LANES) = VECTOR / sizeof(REAL) };

INLINE NAME(Vector) NAME(at)(const REAL *array) { return *(const NAME(Vector) *)array; }

INLINE NAME(Mask) NAME(counted)(void)
{
    NAME(Mask) places;
    for (int l = 0; l < NAME(LANES); l++) places[l] = l;
    return places;
}

/* v where the mask is set, otherwise 0. */
INLINE NAME(Vector) NAME(where)(NAME(Mask) mask, NAME(Vector) v) { return (NAME(Vector))(mask & (NAME(Mask))v); }

INLINE NAME(Vector) NAME(absolute)(NAME(Vector) v)
{
    const NAME(Vector) sign = -(NAME(Vector)){0};
    return (NAME(Vector))((NAME(Mask))v & ~(NAME(Mask))sign);
}

INLINE NAME(Vector) NAME(root)(NAME(Vector) v)
{
    for (int l = 0; l < NAME(LANES); l++) v[l] = SQRT(v[l]);
    return v;
}

/* The sum of all lanes, in pairs. */
INLINE REAL NAME(in_all)(NAME(Vector) v)
{
    for (int half = NAME(LANES) / 2; half; half /= 2)
        for (int l = 0; l < half; l++) v[l] += v[l + half];
    return v[0];
}

/* The same of a row in whole vectors, where x is 0 past its end, in REAL numbers for RUN vectors at a time; in place of the
   square of x - x(p), that of x: Theorem 3c. */
INLINE void NAME(brief_sum)(const NAME(Lines) *lines, const NAME(Team) *team, long columns, const REAL *y, const int isotropic,
                            double *out)
{
    const REAL *x = (const REAL *)lines->x, *next = (const REAL *)lines->next;
    for (int c = 0; c < SUMS; c++) out[c] = 0;
    for (long from = 0; from < columns; from += RUN * NAME(LANES)) {
        NAME(Vector) length = {0}, cross = {0}, square = {0}, misfit = {0};
        for (long j = from; j < least(columns, from + RUN * NAME(LANES)); j += NAME(LANES)) {
            const NAME(Vector) here = NAME(at)(x + j), along = NAME(at)(next + j) - here, off = here - NAME(at)(y + j);
            const NAME(Mask) inner = NAME(at)(team->bound + j) > 0; /* to the right of the last pixel is nothing */
            const NAME(Vector) across = NAME(where)(inner, NAME(at)(x + j + 1) - here);
            if (isotropic)
                length += NAME(root)(along * along + across * across);
            else
                length += NAME(absolute)(along) + NAME(absolute)(across);
            cross += along * NAME(at)(lines->down + j) + across * NAME(at)(lines->right + j);
            square += here * here;
            misfit += off * off;
        }
        out[0] += (double)NAME(in_all)(length), out[1] += (double)NAME(in_all)(cross);
        out[2] += (double)NAME(in_all)(square), out[3] += (double)NAME(in_all)(misfit);
    }
}
#endif

/* Row i of x, as it is given out: what is there already, or else x(p), which goes there. */
static void NAME(next_row)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, long i, int kind, IO *x)
{
    const size_t bytes = (size_t)job->width * sizeof(IO);
    IO *given = job->x_out ? (IO *)job->x_out + (piece->plane * job->height + piece->top + i) * job->width : NULL;
    if (kind == FLAT) {
        memcpy(x, given, bytes);
        return;
    }
    NAME(answer)(job, team, piece, i, kind == BRIEF ? piece->columns : job->width, x);
    if (given && piece->top + i < piece->end) memcpy(given, x, bytes);
}

/* A look at row i - 1 of a piece, as soon as p of row i is known; there is none after the last row of all. */
static void NAME(look_at)(const Job *job, const NAME(Team) *team, const NAME(Piece) *piece, long i, NAME(Lines) *lines, double *sums)
{
    const long width = job->width;
    const REAL *y = piece->y + NAME(place)(piece, i - 1);
    double *out = sums + SUMS * (piece->plane * job->height + piece->top + i - 1);
    IO *x = lines->x;
    if (i == 0) {
        lines->down = team->zeros;
        if (piece->top) NAME(turn)(job, piece, -1, lines);
        NAME(next_row)(job, team, piece, 0, lines->kind, x);
        return;
    }
    if (piece->top + i == job->height)
        memcpy(lines->next, x, (size_t)width * sizeof(IO)); /* no difference */
    else
        NAME(next_row)(job, team, piece, i, lines->kind, lines->next);
    lines->above = lines->down;
    NAME(turn)(job, piece, i - 1, lines);
#ifdef FIRST
    if (lines->kind == BRIEF && job->isotropic)
        NAME(brief_sum)(lines, team, piece->columns, y, 1, out);
    else if (lines->kind == BRIEF)
        NAME(brief_sum)(lines, team, piece->columns, y, 0, out);
#endif
    if (lines->kind != BRIEF) {
        x[width] = x[width - 1];
        if (job->isotropic)
            NAME(sum)(job, lines, y, 1, out);
        else
            NAME(sum)(job, lines, y, 0, out);
    }
    lines->x = lines->next, lines->next = x;
}

/* The sums of all rows of the pieces of a thread. */
static int NAME(sums)(const Job *job, const NAME(Team) *team, int kind, double *sums)
{
    NAME(Lines) lines;
    if (!NAME(lines)(job, kind, &lines)) return 0;
    for (long n = 0; n < team->count; n++) {
        const NAME(Piece) *piece = team->pieces + n;
        for (long i = 0; i <= piece->end - piece->top; i++) NAME(look_at)(job, team, piece, i, &lines, sums);
    }
    free(lines.memory);
    return 1;
}

/* What is proven where it stands, by all threads, each for itself; x goes to where it is asked for. The sums go to `place`, or
   where the room of a brief look is too much to the last of three. */
static void NAME(look)(const Job *job, Shared *shared, const NAME(Team) *team, int brief, long place, int threads, Pace *pace)
{
    const long rows = job->channels * job->height;
    double *sums = shared->sums + SUMS * rows * place;
    if (!NAME(sums)(job, team, brief ? BRIEF : EXACT, sums)) shared->failed = 1;
    wait_for(shared, threads);
    if (shared->stop || certify(job, sums, brief, pace)) return;
    sums = shared->sums + SUMS * rows * 2;
    if (!NAME(sums)(job, team, EXACT, sums)) shared->failed = 1;
    wait_for(shared, threads);
    certify(job, sums, 0, pace);
}
