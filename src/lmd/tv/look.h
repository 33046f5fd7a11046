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
    double *squares; /* where channels are coupled, those of differences added up over them, along both axes: two rows for all lines */
    void *memory;
} NAME(Lines);

static long NAME(padded)(const Job *job) { return (job->width + 15) / 8 * 8 + 8; }

/* Lines for `count` planes. The memory of all is that of the first. */
static int NAME(lines)(const Job *job, int kind, long count, NAME(Lines) *lines)
{
    const long padded = NAME(padded)(job);
    double *at = lines->memory = calloc((size_t)((5 * count + 2) * padded + 8), sizeof(double));
    if (!at) return 0;
    at = (double *)(((uintptr_t)at + 63) / 64 * 64);
    for (long k = 0; k < count; k++, at += 5 * padded) {
        lines[k].kind = kind;
        lines[k].x = (IO *)at, lines[k].next = (IO *)(at + padded);
        for (int n = 0; n < 3; n++) lines[k].made[n] = (REAL *)(at + (2 + n) * padded) + 1;
    }
    for (long k = 0; k < count; k++) lines[k].squares = at;
    return 1;
}

/* p of row i as it is given out where channels are coupled, of all of them, to the rows that `turn` is about to take. */
static void NAME(coupled_outer)(const Job *job, const NAME(Piece) *piece, long i, NAME(Lines) *lines)
{
    for (long c = 0; c < job->channels; c++) {
        const REAL *restrict p = piece[c].down + i * piece->pitch, *restrict r = piece[c].right + i * piece->pitch;
        for (long j = 0; j < job->width; j++) lines[c].made[1][j] = (REAL)(IO)p[j], lines[c].made[2][j] = (REAL)(IO)r[j];
    }
    const long stride = (lines[1].made[2] - lines[0].made[2]);
    NAME(draw_in)(job, (REAL)job->bound, stride, job->width, lines->made[1], lines->made[2]);
}

/* The next row of p, which becomes the one above. */
static void NAME(turn)(const Job *job, const NAME(Piece) *piece, long i, NAME(Lines) *lines)
{
    REAL **made = lines->made, *above = made[0];
    if (sizeof(IO) == sizeof(REAL)) {
        lines->down = piece->down + NAME(place)(piece, i), lines->right = piece->right + NAME(place)(piece, i);
        return;
    }
    if (job->coupled && !piece->beside) NAME(coupled_outer)(job, piece, i, lines);
    made[0] = made[1], made[1] = above;
    if (!job->coupled) NAME(outer)(job, piece, i, made[0], made[2]);
    lines->down = made[0], lines->right = made[2];
}

/* The sums of a row: docs/guarantees.md, Theorem 3b. */
INLINE void NAME(sum)(const Job *job, const NAME(Lines) *lines, const REAL *restrict y, const int isotropic, const int coupled,
                      double *out)
{
    double *restrict squares = lines->squares, *restrict others = squares + NAME(padded)(job);
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
        if (coupled)
            squares[j] += along * along, others[j] += across * across;
        else
            length += isotropic ? sqrt(along * along + across * across) : fabs(along) + fabs(across);
        cross += along * v + across * w;
        misfit += off * off;
        square += away * away;
    }
    out[0] = length, out[1] = cross, out[2] = square, out[3] = misfit;
}

/* The lengths of a row where channels are coupled, of the squares of all of them, which become 0. */
static double NAME(coupled_lengths)(const Job *job, const NAME(Lines) *lines)
{
    double *restrict squares = lines->squares, *restrict others = squares + NAME(padded)(job), length = 0;
    const int isotropic = job->isotropic;
#pragma omp simd reduction(+ : length)
    for (long j = 0; j < job->width; j++) {
        length += isotropic ? sqrt(squares[j] + others[j]) : sqrt(squares[j]) + sqrt(others[j]);
        squares[j] = others[j] = 0;
    }
    return length;
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
INLINE void NAME(brief_sum)(const Job *job, const NAME(Lines) *lines, const NAME(Team) *team, long columns, const REAL *y,
                            const int isotropic, const int coupled, double *out)
{
    REAL *squares = (REAL *)lines->squares, *others = (REAL *)(lines->squares + NAME(padded)(job));
    const REAL *x = (const REAL *)lines->x, *next = (const REAL *)lines->next;
    for (int c = 0; c < SUMS; c++) out[c] = 0;
    for (long from = 0; from < columns; from += RUN * NAME(LANES)) {
        NAME(Vector) length = {0}, cross = {0}, square = {0}, misfit = {0};
        for (long j = from; j < least(columns, from + RUN * NAME(LANES)); j += NAME(LANES)) {
            const NAME(Vector) here = NAME(at)(x + j), along = NAME(at)(next + j) - here, off = here - NAME(at)(y + j);
            const NAME(Mask) inner = NAME(at)(team->bound + j) > 0; /* to the right of the last pixel is nothing */
            const NAME(Vector) across = NAME(where)(inner, NAME(at)(x + j + 1) - here);
            if (coupled) {
                *(NAME(Vector) *)(squares + j) += along * along;
                *(NAME(Vector) *)(others + j) += across * across;
            } else if (isotropic)
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

/* As `coupled_lengths`. */
static double NAME(brief_lengths)(const Job *job, const NAME(Lines) *lines, long columns)
{
    REAL *squares = (REAL *)lines->squares, *others = (REAL *)(lines->squares + NAME(padded)(job));
    double total = 0;
    for (long from = 0; from < columns; from += RUN * NAME(LANES)) {
        NAME(Vector) length = {0};
        for (long j = from; j < least(columns, from + RUN * NAME(LANES)); j += NAME(LANES)) {
            const NAME(Vector) along = NAME(at)(squares + j), across = NAME(at)(others + j);
            if (job->isotropic)
                length += NAME(root)(along + across);
            else
                length += NAME(root)(along) + NAME(root)(across);
            *(NAME(Vector) *)(squares + j) = *(NAME(Vector) *)(others + j) = (NAME(Vector)){0};
        }
        total += (double)NAME(in_all)(length);
    }
    return total;
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
    if (lines->kind == BRIEF && job->coupled)
        NAME(brief_sum)(job, lines, team, piece->columns, y, 0, 1, out);
    else if (lines->kind == BRIEF && job->isotropic)
        NAME(brief_sum)(job, lines, team, piece->columns, y, 1, 0, out);
    else if (lines->kind == BRIEF)
        NAME(brief_sum)(job, lines, team, piece->columns, y, 0, 0, out);
    if (lines->kind == BRIEF && job->coupled && piece->beside + 1 == job->channels)
        out[0] = NAME(brief_lengths)(job, lines, piece->columns);
#endif
    if (lines->kind != BRIEF) {
        x[width] = x[width - 1];
        if (job->coupled)
            NAME(sum)(job, lines, y, 0, 1, out);
        else if (job->isotropic)
            NAME(sum)(job, lines, y, 1, 0, out);
        else
            NAME(sum)(job, lines, y, 0, 0, out);
    }
    if (job->coupled && lines->kind != BRIEF && piece->beside + 1 == job->channels) out[0] = NAME(coupled_lengths)(job, lines);
    lines->x = lines->next, lines->next = x;
}

/* The sums of all rows of the pieces of a thread. */
static int NAME(sums)(const Job *job, const NAME(Team) *team, int kind, double *sums)
{
    NAME(Lines) lines[ABREAST];
    const long abreast = job->coupled ? job->channels : 1;
    if (!NAME(lines)(job, kind, abreast, lines)) return 0;
    for (long n = 0; n < team->count; n += abreast) {
        const NAME(Piece) *piece = team->pieces + n;
        for (long i = 0; i <= piece->end - piece->top && !watch(job->meeting, abreast * job->width); i++)
            for (long k = 0; k < abreast; k++) NAME(look_at)(job, team, piece + k, i, lines + k, sums);
    }
    free(lines->memory);
    return 1;
}

/* What is proven where it stands, by all threads, each for itself; x goes to where it is asked for. The sums go to `place`, or
   where the room of a brief look is too much to the last of three. */
static void NAME(look)(const Job *job, Shared *shared, const NAME(Team) *team, int brief, long place, int threads, Pace *pace)
{
    const long rows = job->channels * job->height;
    double *sums = shared->sums + SUMS * rows * place;
    if (!NAME(sums)(job, team, brief ? BRIEF : EXACT, sums)) fail_with(&shared->meeting, NO_MEMORY);
    wait_for(shared, threads);
    if (shared->meeting.stop || certify(job, sums, brief, pace)) return;
    sums = shared->sums + SUMS * rows * 2;
    if (!NAME(sums)(job, team, EXACT, sums)) fail_with(&shared->meeting, NO_MEMORY);
    wait_for(shared, threads);
    certify(job, sums, 0, pace);
}
