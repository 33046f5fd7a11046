/* Convolutions of few fields, and learned iterations for total variation, fused: lmd.solvers.learned.dual and
   learned_saddle have the formulas.

   Everything is float32 and contiguous: images (planes, H, W), dual fields (planes, 2, H, W); each plane is on its own.
   Planes are cut into tiles of at most BAND x TILE pixels, which the threads share. For a tile the fields that are
   convolved are written to scratch memory row by row, just before they are needed, with what lies around the tile and
   with zeros around the image: the convolution needs no test for borders, and its rows stay in the cache, however wide
   the image is. Convolutions work on ROWS x BLOCK outputs at a time, which stay in registers over all taps: a value
   that is loaded serves up to three rows of both outputs.

   Steps of both methods run on one scheduler, `run_steps`. A step reads fields around a pixel, so it does not write
   where it reads but in turns, such that the last step ends in NEW; NEW and LAST are the caller's memory, SPARE is not:

     step                        ... N-4     N-3     N-2     N-1
     LearnedDual    p                NEW     SPARE   LAST    NEW     each from the p of the last two steps
                    x                NEW     NEW     NEW     NEW     row by row, from p alone
     LearnedSaddle  p                NEW     NEW     NEW     NEW     pixel by pixel, as its move is kept apart
                    x, moves         SPARE   NEW     SPARE   NEW     each from those of the last step */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "threads.h"

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { VECTORS = 2, BLOCK = LANES * VECTORS, ROWS = 3, BAND = 24, TILE = 256 };

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef struct {
    long height, width;   /* of the image */
    long reach;           /* how far a kernel reaches */
    long stride, size;    /* floats from row to row, and from field to field */
    float *fields;
    float *out[2];        /* ROWS rows of each of the two outputs, `stride` apart */
    long top, left;       /* where the tile is in the image */
    long rows, columns;   /* its size */
} Band;

static int band_new(Band *band, long fields, long height, long width, long reach)
{
    long padded = ((width < TILE ? width : TILE) + BLOCK - 1) / BLOCK * BLOCK;
    band->height = height;
    band->width = width;
    band->reach = reach;
    band->stride = padded + 2 * reach;
    band->size = (BAND + ROWS - 1 + 2 * reach) * band->stride;
    band->fields = calloc((size_t)(fields * band->size + 2 * ROWS * band->stride), sizeof(float));
    if (!band->fields) return 0;
    band->out[0] = band->fields + fields * band->size;
    band->out[1] = band->out[0] + ROWS * band->stride;
    return 1;
}

/* Asks for large pages for memory that is about to be written for the first time: of large images, touching them
   page by page would take a fifth of the time. Changes nothing else, and nothing where it is refused. */
static void use_large_pages(void *memory, long floats)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 1 << 21;
    uintptr_t from = ((uintptr_t)memory + page - 1) / page * page, to = (uintptr_t)memory + 4 * (uintptr_t)floats;
    if (memory && to >= from + 4 * page) madvise((void *)from, (to - from) / page * page, MADV_HUGEPAGE);
#else
    (void)memory, (void)floats;
#endif
}

static long least(long a, long b) { return a < b ? a : b; }

static long parts(long length, long most) { return (length + most - 1) / most; }

/* How many tiles a plane has. */
static long tiles_of(long height, long width) { return parts(height, BAND) * parts(width, TILE); }

/* Tiles are cut so that none is much smaller than the others: bands of as many times ROWS rows as are needed. */
static void move_to(Band *band, long tile)
{
    long across = parts(band->width, TILE), down = parts(band->height, BAND);
    long high = parts(parts(band->height, down), ROWS) * ROWS;
    band->top = least(tile / across * high, band->height);
    band->left = tile % across * TILE;
    band->rows = least(high, band->height - band->top);
    band->columns = least(TILE, band->width - band->left);
}

/* Row i of a field, where 0 is the first row of the tile: its first pixel. */
static inline float *row_of(const Band *band, long field, long i)
{
    return band->fields + field * band->size + (i + band->reach) * band->stride + band->reach;
}

/* The columns of the image that lie in the tile or within reach of it: [*from, *to), in columns of the image. */
static inline void columns_of(const Band *band, long *from, long *to)
{
    *from = band->left < band->reach ? 0 : band->left - band->reach;
    *to = least(band->left + band->columns + band->reach, band->width);
}

/* Zeros in row i of all fields: where the image does not reach; all of it with `whole`. Beside an image that is one
   tile wide they are there from the start. */
static inline void clear_row(const Band *band, long fields, long i, int whole)
{
    long from, to, end = band->columns + band->reach;
    if (!whole && band->width <= TILE) return;
    columns_of(band, &from, &to);
    for (long f = 0; f < fields; f++) {
        float *row = row_of(band, f, i);
        if (whole) from = to = band->left + end;
        for (long j = -band->reach; j < from - band->left; j++) row[j] = 0;
        for (long j = to - band->left; j < end; j++) row[j] = 0;
    }
}

/* The two outputs for ROWS rows of the band from row i on: the sum over the first `used` of the fields and over all
   taps; kernel (2, fields, k, k). */
INLINE void convolve_with(const Band *band, long i, long used, long fields, const float *kernel, const long k)
{
    const long taps = k * k, stride = band->stride;
    for (long j = 0; j < band->columns; j += BLOCK) {
        vector sums[ROWS][2][VECTORS] = {{{{0}}}};
        for (long f = 0; f < used; f++) {
            const float *from = row_of(band, f, i - band->reach) + j - band->reach;
            const float *one = kernel + f * taps, *two = one + fields * taps;
            UNROLL for (long a = 0; a < k + ROWS - 1; a++)
                UNROLL for (long b = 0; b < k; b++) {
                    vector x[VECTORS];
                    UNROLL for (int v = 0; v < VECTORS; v++) x[v] = *(const vector *)(from + a * stride + b + v * LANES);
                    UNROLL for (int r = 0; r < ROWS; r++) {
                        long tap = (a - r) * k + b;
                        if (a < r || a - r >= k) continue;
                        UNROLL for (int v = 0; v < VECTORS; v++) {
                            sums[r][0][v] += one[tap] * x[v];
                            sums[r][1][v] += two[tap] * x[v];
                        }
                    }
                }
        }
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < 2; c++)
                for (int v = 0; v < VECTORS; v++)
                    *(vector *)(band->out[c] + r * stride + j + v * LANES) = sums[r][c][v];
    }
}

static void convolve_rows(const Band *band, long i, long used, long fields, const float *kernel)
{
    long k = 2 * band->reach + 1;
    if (k == 3)
        convolve_with(band, i, used, fields, kernel, 3);
    else if (k == 5)
        convolve_with(band, i, used, fields, kernel, 5);
    else
        convolve_with(band, i, used, fields, kernel, k);
}

/* scale * Kx for image row i, columns [from, to), into two rows whose first entry is column `from`. */
INLINE void differences(const float *x, long i, const Band *band, long from, long to, float scale,
                        float *restrict down, float *restrict right)
{
    long width = band->width, count = to - from;
    const float *here = x + i * width + from;
    if (i + 1 < band->height) { /* there is a row below, so here[count] may be read */
        for (long j = 0; j < count; j++) {
            down[j] = scale * (here[j + width] - here[j]);
            right[j] = scale * (here[j + 1] - here[j]);
        }
    } else {
        memset(down, 0, (size_t)count * sizeof(float));
        for (long j = 0; j < least(to, width - 1) - from; j++) right[j] = scale * (here[j + 1] - here[j]);
    }
    if (to == width) right[count - 1] = 0;
}

/* y - inverse * K'p, or K'p where there is no y, for image row i, columns [from, to); p is (2, H, W). The last entries
   along each axis do not count. */
INLINE void adjoint_with(const float *p, long i, long height, long width, long from, long to, const int above,
                         const int below, const float *y, float inverse, float *restrict out)
{
    const float *down = p + i * width + from, *right = p + (height + i) * width + from;
    long count = to - from, last = count - 1;
#define TAKEN(j, across) \
    (y ? y[j] - inverse * (((above ? down[(j) - width] : 0) - (below ? down[j] : 0)) + (across)) \
       : ((above ? down[(j) - width] : 0) - (below ? down[j] : 0)) + (across))
    for (long j = 0; j < count; j++) out[j] = TAKEN(j, right[j - 1] - right[j]); /* right[-1] is in p, if not in the row */
    if (from == 0) out[0] = TAKEN(0, 0 - right[0]);
    if (to == width) out[last] = TAKEN(last, width > 1 ? right[last - 1] : 0);
#undef TAKEN
}

INLINE void adjoint(const float *p, long i, long height, long width, long from, long to, const float *y, float inverse,
                    float *restrict out)
{
    int above = i > 0, below = i + 1 < height;
    if (above && below)
        adjoint_with(p, i, height, width, from, to, 1, 1, y, inverse, out);
    else
        adjoint_with(p, i, height, width, from, to, above, below, y, inverse, out);
}

static inline float within(float x, float low, float high)
{
    x = x > high ? high : x; /* a NaN stays one */
    return x < low ? low : x;
}

/* What a dual step starts from, one plane of each. The move of p is p_moved, or p - p_before. NULL for p or p_before is
   0; the other two may be missing where their fields are not used. */
typedef struct {
    const float *x, *x_moved, *p, *p_before, *p_moved;
} Point;

/* The fields of a dual step in row r of the tile: L Kx, the move of p, L K(move of x). */
INLINE void dual_row(const Band *band, const Point *point, long r, long fields, float scale)
{
    long i = band->top + r, from, to, size = band->height * band->width;
    int outside = i < 0 || i >= band->height;
    clear_row(band, fields, r, outside);
    if (outside) return;
    columns_of(band, &from, &to);
    long shift = from - band->left, count = to - from;
    differences(point->x, i, band, from, to, scale, row_of(band, 0, r) + shift, row_of(band, 1, r) + shift);
    for (int c = 0; c < 2 && fields > 2; c++) {
        long at = c * size + i * band->width + from;
        float *restrict into = row_of(band, 2 + c, r) + shift;
        const float *moved = point->p_moved ? point->p_moved : point->p_before ? NULL : point->p;
        if (moved) {
            memcpy(into, moved + at, (size_t)count * sizeof(float));
        } else {
            const float *now = point->p + at, *before = point->p_before + at;
            for (long j = 0; j < count; j++) into[j] = now[j] - before[j];
        }
    }
    if (fields > 4)
        differences(point->x_moved, i, band, from, to, scale, row_of(band, 4, r) + shift, row_of(band, 5, r) + shift);
}

/* p_new = clip(p + kernel * fields) within +-bound, kernel (2, fields, k, k) of which the first `used` fields are not
   all zero; and its move, where it is asked for. p_new may be p, if the move of p is given. */
static void dual_tile(const Band *band, const Point *point, long used, long fields, const float *kernel, float scale,
                      float bound, float *p_new, float *p_moved)
{
    long ready = -band->reach;
    for (long r = 0; r < band->rows; r += ROWS) {
        for (; ready < r + ROWS + band->reach; ready++) dual_row(band, point, ready, used, scale);
        convolve_rows(band, r, used, fields, kernel);
        for (long row = r; row < least(r + ROWS, band->rows); row++)
            for (int c = 0; c < 2; c++) {
                long at = (c * band->height + band->top + row) * band->width + band->left;
                const float *step = band->out[c] + (row - r) * band->stride;
                float *into = p_new + at;
                const float *now = point->p ? point->p + at : NULL;
                if (!now) {
                    for (long j = 0; j < band->columns; j++) into[j] = within(step[j], -bound, bound);
                    if (p_moved) memcpy(p_moved + at, into, (size_t)band->columns * sizeof(float));
                } else if (p_moved) {
                    float *restrict moved = p_moved + at;
#pragma omp simd
                    for (long j = 0; j < band->columns; j++) {
                        float next = within(now[j] + step[j], -bound, bound);
                        moved[j] = next - now[j];
                        into[j] = next;
                    }
                } else {
#pragma omp simd
                    for (long j = 0; j < band->columns; j++) into[j] = within(now[j] + step[j], -bound, bound);
                }
            }
    }
}

/* What a primal step starts from, one plane of each. */
typedef struct {
    const float *x, *x_moved, *p, *y, *mask;
    float low, high;
} Picture;

/* The fields of a primal step in row r of the tile: slope where pixels are kept, slope where they are lost, and the
   move, unless that is NULL. */
INLINE void primal_row(const Band *band, const Picture *picture, long r, float inverse)
{
    long i = band->top + r, from, to;
    int outside = i < 0 || i >= band->height;
    clear_row(band, picture->x_moved ? 3 : 2, r, outside);
    if (outside) return;
    columns_of(band, &from, &to);
    long shift = from - band->left, count = to - from, at = i * band->width + from;
    float *restrict kept = row_of(band, 0, r) + shift, *restrict lost = row_of(band, 1, r) + shift;
    const float *mask = picture->mask + at, *x = picture->x + at, *y = picture->y + at;
    adjoint(picture->p, i, band->height, band->width, from, to, NULL, 0, lost);
    for (long j = 0; j < count; j++) {
        float slope = mask[j] * (x[j] - y[j]) + lost[j] * inverse;
        kept[j] = slope * mask[j];
        lost[j] = slope - kept[j];
    }
    if (picture->x_moved)
        memcpy(row_of(band, 2, r) + shift, picture->x_moved + at, (size_t)count * sizeof(float));
}

/* x_new = clip(x + kernel * (kept slope, lost slope, move)), slope = Z (x - y) + K'p / L; and its move. */
static void primal_tile(const Band *band, const Picture *picture, const float *kernel, float inverse, float *x_new,
                        float *x_moved)
{
    long ready = -band->reach;
    for (long r = 0; r < band->rows; r += ROWS) {
        for (; ready < r + ROWS + band->reach; ready++) primal_row(band, picture, ready, inverse);
        convolve_rows(band, r, picture->x_moved ? 3 : 2, 3, kernel);
        for (long row = r; row < least(r + ROWS, band->rows); row++) {
            long at = (band->top + row) * band->width + band->left;
            const float *mask = picture->mask + at, *x = picture->x + at;
            const float *kept = band->out[0] + (row - r) * band->stride, *lost = band->out[1] + (row - r) * band->stride;
            float *restrict into = x_new + at, *restrict moved = x_moved + at;
            for (long j = 0; j < band->columns; j++) {
                float next = within(x[j] + (mask[j] > 0 ? kept[j] : lost[j]), picture->low, picture->high);
                into[j] = next;
                moved[j] = next - x[j];
            }
        }
    }
}

/* The fields of one plane at one time, or of all planes, one after the other. NULL is 0, or stands for NEW's. */
typedef struct {
    float *x, *x_moved, *p, *p_moved;
} Fields;

/* Where fields are, see the head of this file. BEFORE and START are given and only read. What LAST or SPARE do not have
   is replaced in NEW, pixel by pixel. */
enum { BEFORE, START, NEW, LAST, SPARE, PLACES };

/* Steps of a method, each of two phases, p and then x, with what all of them share. */
typedef struct Steps {
    Fields fields[PLACES];
    const float *y, *mask;                      /* mask (planes / channels_per_mask, H, W) */
    const float *dual_kernels, *primal_kernels; /* (count, 2, dual_fields, k, k), (count, 2, 3, k, k) */
    const float *bound, *low, *high;            /* (planes) */
    float scale;
    long planes, channels_per_mask, height, width, pixels, dual_size, primal_size, dual_fields;
    long count;        /* of steps */
    int turns[3];      /* the places that steps write to, from the last step backwards, again and again */
    long turn_count;
    long primal_tasks; /* how many parts the second phase of a plane has; the first has its tiles */
    void (*primal)(const struct Steps *steps, Band *band, long s, long n, long task);
    long own;          /* the plane of SPARE that belongs to this thread; -1 where each plane has its own */
} Steps;

/* The fields of plane n after step s; -1 is where the steps start, -2 the time before. */
static Fields fields_after(const Steps *steps, long s, long n)
{
    int place = s < -1 ? BEFORE : s < 0 ? START : steps->turns[(steps->count - 1 - s) % steps->turn_count];
    long at = n * steps->pixels, here = (place == SPARE && steps->own >= 0 ? steps->own : n) * steps->pixels;
    Fields fields = steps->fields[place];
    if (fields.x) fields.x += here;
    if (fields.x_moved) fields.x_moved += here;
    if (fields.p) fields.p += 2 * here;
    if (fields.p_moved) fields.p_moved += 2 * here;
    if (s >= 0 && !fields.x) fields.x = steps->fields[NEW].x + at;
    if (s >= 0 && !fields.p) fields.p = steps->fields[NEW].p + 2 * at;
    return fields;
}

/* One tile of p in step s of plane n. */
static void dual_phase(const Steps *steps, Band *band, long s, long n, long tile)
{
    Fields before = fields_after(steps, s - 2, n), now = fields_after(steps, s - 1, n);
    Fields next = fields_after(steps, s, n);
    Point point = {now.x, now.x_moved, now.p, before.p, now.p_moved};
    long fields = steps->dual_fields, taps = steps->dual_size * steps->dual_size;
    move_to(band, tile);
    dual_tile(band, &point, now.p ? fields : 2, fields, steps->dual_kernels + 2 * fields * taps * s, steps->scale,
              steps->bound[n], next.p, next.p_moved);
}

/* Some rows of x = y - K'p / gamma after step s of plane n. */
static void primal_rows(const Steps *steps, Band *band, long s, long n, long task)
{
    Fields next = fields_after(steps, s, n);
    long height = steps->height, width = steps->width;
    const float *y = steps->y + n * steps->pixels;
    (void)band;
    for (long i = task * BAND; i < least((task + 1) * BAND, height); i++)
        adjoint(next.p, i, height, width, 0, width, y + i * width, 1 / steps->scale, next.x + i * width);
}

/* One tile of x in step s of plane n. */
static void primal_phase(const Steps *steps, Band *band, long s, long n, long tile)
{
    Fields now = fields_after(steps, s - 1, n), next = fields_after(steps, s, n);
    long at = n * steps->pixels, taps = steps->primal_size * steps->primal_size;
    const float *mask = steps->mask + n / steps->channels_per_mask * steps->pixels;
    Picture picture = {now.x, now.x_moved, next.p, steps->y + at, mask, steps->low[n], steps->high[n]};
    move_to(band, tile);
    primal_tile(band, &picture, steps->primal_kernels + 6 * taps * s, 1 / steps->scale, next.x, next.x_moved);
}

/* All steps of all planes; returns 0, or what ended them. Where there are planes enough for all threads,
   each thread takes a plane through all steps, so that it stays in the cache; elsewhere they share each phase. */
static int run_steps(Steps *steps, int threads)
{
    long tiles = tiles_of(steps->height, steps->width), tasks = steps->primal_tasks, planes = steps->planes;
    int alone = planes >= 2 * threads, arrived = 0, both = steps->dual_fields > 4;
    long size = (alone ? threads : planes) * steps->pixels, floats = (both ? 4 : 2) * size;
    float *memory = NULL;
    Meeting meeting = {0};
    if (steps->count >= steps->turn_count) {
        memory = malloc((size_t)floats * sizeof(float));
        if (!memory) return NO_MEMORY;
        use_large_pages(memory, floats);
        if (both)
            steps->fields[SPARE] = (Fields){memory, memory + size, NULL, memory + 2 * size};
        else
            steps->fields[SPARE] = (Fields){NULL, NULL, memory, NULL};
    }
    for (int place = NEW; place <= LAST; place++) {
        use_large_pages(steps->fields[place].x, planes * steps->pixels);
        use_large_pages(steps->fields[place].x_moved, planes * steps->pixels);
        use_large_pages(steps->fields[place].p, 2 * planes * steps->pixels);
        use_large_pages(steps->fields[place].p_moved, 2 * planes * steps->pixels);
    }
#pragma omp parallel num_threads(threads)
    {
        Steps mine = *steps;
        Band dual = {0}, primal = {0};
        const long work = BAND * TILE * mine.dual_fields;
        if (!band_new(&dual, mine.dual_fields, mine.height, mine.width, mine.dual_size / 2)) fail_with(&meeting, NO_MEMORY);
        if (both && !band_new(&primal, 3, mine.height, mine.width, mine.primal_size / 2)) fail_with(&meeting, NO_MEMORY);
        mine.own = alone ? omp_get_thread_num() : -1;
        if (alone) {
#pragma omp for schedule(dynamic) nowait
            for (long n = 0; n < planes; n++)
                for (long s = 0; s < mine.count; s++) {
                    for (long tile = 0; tile < tiles && !watch(&meeting, work); tile++) dual_phase(&mine, &dual, s, n, tile);
                    for (long task = 0; task < tasks && !watch(&meeting, work); task++)
                        mine.primal(&mine, &primal, s, n, task);
                }
            watch_others(&meeting, &arrived);
        } else {
            const int members = omp_get_num_threads();
            for (long s = 0; s < mine.count && !meeting.stop; s++) {
#pragma omp for schedule(dynamic) nowait
                for (long task = 0; task < planes * tiles; task++)
                    if (!watch(&meeting, work)) dual_phase(&mine, &dual, s, task / tiles, task % tiles);
                meet(&meeting, members);
#pragma omp for schedule(dynamic) nowait
                for (long task = 0; task < planes * tasks; task++)
                    if (!watch(&meeting, work)) mine.primal(&mine, &primal, s, task / tasks, task % tasks);
                meet(&meeting, members);
            }
        }
        free(dual.fields);
        free(primal.fields);
    }
    free(memory);
    return meeting.failed;
}

/* Iterations of LearnedDual on TV denoising: p and x after the last step, p after the one before it. */
int lmd_dual_steps(const float *x, const float *p, const float *p_before, const float *y, const float *kernels,
                   const float *bound, float gamma, long planes, long height, long width, long size, long steps,
                   int threads, float *p_new, float *p_last, float *x_new)
{
    Steps all = {
        .fields = {[BEFORE] = {.p = (float *)p_before}, [START] = {.x = (float *)x, .p = (float *)p},
                   [NEW] = {.x = x_new, .p = p_new}, [LAST] = {.p = p_last}},
        .y = y, .dual_kernels = kernels, .bound = bound, .scale = gamma, .planes = planes, .height = height,
        .width = width, .pixels = height * width, .dual_size = size, .dual_fields = 4, .count = steps,
        .turns = {NEW, LAST, SPARE}, .turn_count = 3, .primal_tasks = parts(height, BAND), .primal = primal_rows,
    };
    return run_steps(&all, threads);
}

/* The same, with x after every step: x_all (steps, planes, height, width). */
int lmd_dual_trace(const float *x, const float *p, const float *p_before, const float *y, const float *kernels,
                   const float *bound, float gamma, long planes, long height, long width, long size, long steps,
                   int threads, float *p_new, float *p_last, float *x_all)
{
    const long pixels = planes * height * width;
    float *spare = malloc((size_t)(2 * pixels) * sizeof(float)), *fields[3] = {p_new, p_last, spare};
    int failed = spare ? 0 : NO_MEMORY;
    for (long k = 0; k < steps && !failed; k++) {
        float *next = fields[(steps - 1 - k) % 3];
        failed = lmd_dual_steps(x, p, p_before, y, kernels + 8 * size * size * k, bound, gamma, planes, height, width, size,
                                1, threads, next, NULL, x_all + k * pixels);
        p_before = p, p = next, x = x_all + k * pixels;
    }
    free(spare);
    return failed;
}

/* Iterations of LearnedSaddle on TV inpainting. Moves and p are all given or all NULL. */
int lmd_saddle_steps(const float *x, const float *x_moved, const float *p, const float *p_moved, const float *y,
                     const float *mask, const float *dual_kernels, const float *primal_kernels, const float *bound,
                     const float *low, const float *high, float scale, long planes, long channels_per_mask, long height,
                     long width, long dual_size, long primal_size, long steps, int threads, float *x_new,
                     float *x_moved_new, float *p_new, float *p_moved_new)
{
    Steps all = {
        .fields = {[START] = {(float *)x, (float *)x_moved, (float *)p, (float *)p_moved},
                   [NEW] = {x_new, x_moved_new, p_new, p_moved_new}},
        .y = y, .mask = mask, .dual_kernels = dual_kernels, .primal_kernels = primal_kernels, .bound = bound,
        .low = low, .high = high, .scale = scale, .planes = planes, .channels_per_mask = channels_per_mask,
        .height = height, .width = width, .pixels = height * width, .dual_size = dual_size,
        .primal_size = primal_size, .dual_fields = 6, .count = steps, .turns = {NEW, SPARE}, .turn_count = 2,
        .primal_tasks = tiles_of(height, width), .primal = primal_phase,
    };
    return run_steps(&all, threads);
}

/* What is summed up over a plane, in this order: |Kx|; bound |Kx| - <Kx, p>; (x - y + inverse K'p)^2; (x - y)^2; p^2. */
enum { SUMS = 5 };
typedef struct {
    double length, slack, square, misfit, dual;
} Sums;

/* What one pixel adds to the sums, p taken within the bound, all in double precision: proofs stand on them. The flags
   say which neighbours there are, and whether there are p and y. Pointers are to the pixel. */
INLINE Sums sums_of_pixel(const float *x, const float *down, const float *right, const float *y, float bound,
                          double inverse, long width, const int left, const int next, const int above, const int below,
                          const int with_p, const int with_y)
{
    double across = next ? (double)x[1] - x[0] : 0, along = below ? (double)x[width] - x[0] : 0, pull = 0;
    Sums sums = {fabs(across) + fabs(along), 0, 0, 0, 0};
    if (with_p) {
        double here = next ? within(right[0], -bound, bound) : 0, there = below ? within(down[0], -bound, bound) : 0;
        /* bound |a| - p a, as a product of two factors that are never negative */
        sums.slack = fabs(across) * (across < 0 ? bound + here : bound - here);
        sums.slack += fabs(along) * (along < 0 ? bound + there : bound - there);
        sums.dual = here * here + there * there;
        pull = (left ? (double)within(right[-1], -bound, bound) : 0) - here;
        pull += (above ? (double)within(down[-width], -bound, bound) : 0) - there;
    }
    if (with_y) {
        double off = (double)x[0] - y[0], away = off + inverse * pull;
        sums.misfit = off * off;
        sums.square = away * away;
    }
    return sums;
}

/* The sums over image row i. */
INLINE void sums_of_row(const float *x, const float *down, const float *right, const float *y, float bound,
                        double inverse, long width, const int above, const int below, const int with_p,
                        const int with_y, double *out)
{
    double length = 0, slack = 0, square = 0, misfit = 0, dual = 0;
#define PIXEL(j, left, next) \
    sums_of_pixel(x + (j), with_p ? down + (j) : NULL, with_p ? right + (j) : NULL, with_y ? y + (j) : NULL, bound, \
                  inverse, width, left, next, above, below, with_p, with_y)
#pragma omp simd reduction(+ : length, slack, square, misfit, dual)
    for (long j = 1; j < width - 1; j++) {
        Sums sums = PIXEL(j, 1, 1);
        length += sums.length, slack += sums.slack, square += sums.square, misfit += sums.misfit, dual += sums.dual;
    }
    Sums first = PIXEL(0, 0, width > 1), last = {0, 0, 0, 0, 0};
    if (width > 1) last = PIXEL(width - 1, 1, 0);
#undef PIXEL
    out[0] = length + first.length + last.length;
    out[1] = slack + first.slack + last.slack;
    out[2] = square + first.square + last.square;
    out[3] = misfit + first.misfit + last.misfit;
    out[4] = dual + first.dual + last.dual;
}

/* The sums over each plane: out (planes, SUMS). NULL for p is 0, for y no squares but the last. Rows are added in
   order, whatever the number of threads. */
int lmd_tv_sums(const float *x, const float *p, const float *y, const float *bound, float inverse, long planes,
                long height, long width, int threads, double *out)
{
    double *rows = malloc((size_t)(SUMS * planes * height) * sizeof(double));
    if (!rows) return 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < planes * height; row++) {
        long n = row / height, i = row % height, at = n * height * width + i * width;
        const float *down = p ? p + n * height * width + at : NULL, *right = p ? down + height * width : NULL;
#define ROW(above, below, with_p, with_y) \
    sums_of_row(x + at, down, right, with_y ? y + at : NULL, bound[n], inverse, width, above, below, with_p, with_y, \
                rows + SUMS * row)
        int inside = i > 0 && i + 1 < height;
        if (inside && p && y)
            ROW(1, 1, 1, 1);
        else if (inside && !p && y)
            ROW(1, 1, 0, 1);
        else if (inside && !p && !y)
            ROW(1, 1, 0, 0);
        else
            ROW(i > 0, i + 1 < height, p != NULL, y != NULL);
#undef ROW
    }
    for (long n = 0; n < planes; n++)
        for (int c = 0; c < SUMS; c++) {
            double sum = 0;
            for (long i = 0; i < height; i++) sum += rows[SUMS * (n * height + i) + c];
            out[SUMS * n + c] = sum;
        }
    free(rows);
    return 0;
}

/* p = sum_j shares_j clip(inverses_j z, -b, b) of one row: z are the differences of `next` to x, 0 from `count` on. */
static void smoothed_row(const float *x, const float *next, float bound, const float *inverses, const float *shares,
                         long terms, long count, long width, float *p)
{
    memset(p, 0, (size_t)width * sizeof(float));
    for (long t = 0; t < terms; t++) {
        float inverse = inverses[t], share = shares[t];
#pragma omp simd
        for (long j = 0; j < count; j++) p[j] += share * within(inverse * (next[j] - x[j]), -bound, bound);
    }
}

/* The gradient L Z(x - y) + K'p of smoothed total variation, and p; NULL for the mask Z is 1, each mask serves `alike`
   planes. lmd.problems.composite has the formula. */
int lmd_smoothed_gradient(const float *x, const float *y, const float *mask, const float *bound, const float *inverses,
                          const float *shares, float smoothness, long planes, long alike, long height, long width,
                          long terms, int threads, float *gradient, float *p)
{
    long size = height * width;
    Meeting meeting = {0};
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long row = 0; row < planes * height; row++) {
            if (watch(&meeting, terms * width)) continue;
            long n = row / height, i = row % height, at = row * width;
            float *down = p + n * size + at, *right = down + size;
            const float *below = i + 1 < height ? x + at + width : x + at;
            smoothed_row(x + at, below, bound[n], inverses, shares, terms, i + 1 < height ? width : 0, width, down);
            smoothed_row(x + at, x + at + 1, bound[n], inverses, shares, terms, width - 1, width, right);
        }
#pragma omp for schedule(static)
        for (long row = 0; row < planes * height; row++) {
            long n = row / height, i = row % height, at = row * width;
            const float *down = p + n * size + at, *right = down + size, *above = i ? down - width : NULL;
            const float *kept = mask ? mask + (n / alike) * size + i * width : NULL;
            float *out = gradient + at;
#pragma omp simd
            for (long j = 0; j < width; j++) out[j] = smoothness * (x[at + j] - y[at + j]);
            if (kept)
#pragma omp simd
                for (long j = 0; j < width; j++) out[j] *= kept[j];
#pragma omp simd
            for (long j = 0; j < width; j++) out[j] -= down[j] + right[j];
            if (above)
#pragma omp simd
                for (long j = 0; j < width; j++) out[j] += above[j];
#pragma omp simd
            for (long j = 1; j < width; j++) out[j] += right[j - 1];
        }
    }
    return meeting.failed;
}

/* Row r of the tile of all fields of image n. */
static void load_row(const Band *band, const float *x, long n, long fields, long r)
{
    long from, to, i = band->top + r;
    int outside = i < 0 || i >= band->height;
    columns_of(band, &from, &to);
    clear_row(band, fields, r, outside);
    for (long f = 0; f < fields && !outside; f++)
        memcpy(row_of(band, f, r) + from - band->left, x + ((n * fields + f) * band->height + i) * band->width + from,
               (size_t)(to - from) * sizeof(float));
}

/* out (images, outputs, H, W) = kernel (outputs, fields, k, k) * x (images, fields, H, W); outputs is even. */
int lmd_convolve(const float *x, const float *kernel, long images, long fields, long outputs, long height,
                 long width, long size, int threads, float *out)
{
    long tiles = tiles_of(height, width);
    Meeting meeting = {0};
#pragma omp parallel num_threads(threads)
    {
        Band band = {0};
        if (!band_new(&band, fields, height, width, size / 2)) fail_with(&meeting, NO_MEMORY);
#pragma omp for schedule(static)
        for (long task = 0; task < images * tiles; task++) {
            long n = task / tiles, ready = -band.reach;
            if (watch(&meeting, BAND * TILE * fields * outputs)) continue;
            move_to(&band, task % tiles);
            for (long r = 0; r < band.rows; r += ROWS) {
                for (; ready < r + ROWS + band.reach; ready++) load_row(&band, x, n, fields, ready);
                for (long o = 0; o < outputs; o += 2) {
                    convolve_rows(&band, r, fields, fields, kernel + o * fields * size * size);
                    for (long row = r; row < least(r + ROWS, band.rows); row++)
                        for (int c = 0; c < 2; c++)
                            memcpy(out + ((n * outputs + o + c) * height + band.top + row) * width + band.left,
                                   band.out[c] + (row - r) * band.stride, (size_t)band.columns * sizeof(float));
                }
            }
        }
        free(band.fields);
    }
    return meeting.failed;
}

enum { LARGEST = 9 };

/* Adds to sums (2, fields, k, k, LANES): row r of two gradients, in band->out, times the fields around it. */
INLINE void correlate_with(const Band *band, long r, long fields, long stride, vector *sums, const long k)
{
    for (long f = 0; f < fields; f++)
        for (long a = 0; a < k; a++) {
            const float *from = row_of(band, f, r + a - band->reach) - band->reach;
            vector *one = sums + (f * k + a) * k, *two = one + stride;
            vector first[LARGEST], second[LARGEST];
            for (long b = 0; b < k; b++) first[b] = one[b], second[b] = two[b];
            for (long j = 0; j < band->columns; j += LANES) {
                vector g = *(const vector *)(band->out[0] + j), h = *(const vector *)(band->out[1] + j);
                UNROLL for (long b = 0; b < k; b++) {
                    vector v = *(const vector *)(from + j + b);
                    first[b] += g * v;
                    second[b] += h * v;
                }
            }
            for (long b = 0; b < k; b++) one[b] = first[b], two[b] = second[b];
        }
}

static void correlate_row(const Band *band, long r, long fields, long stride, vector *sums)
{
    long k = 2 * band->reach + 1;
    if (k == 3)
        correlate_with(band, r, fields, stride, sums, 3);
    else if (k == 5)
        correlate_with(band, r, fields, stride, sums, 5);
    else
        correlate_with(band, r, fields, stride, sums, k);
}

/* The derivative of <gradient, kernel * x> by the kernel: out (outputs, fields, k, k), outputs even, k at most LARGEST.
   Each thread adds up its own images; their sums are added in order, so that the answer depends on their number alone. */
int lmd_convolve_backward(const float *x, const float *gradient, long images, long fields, long outputs,
                          long height, long width, long size, int threads, float *out)
{
    long tiles = tiles_of(height, width), stride = fields * size * size, count = outputs * stride;
    vector *all = calloc((size_t)(count * threads), sizeof(vector));
    Meeting meeting = {0};
    if (!all) return NO_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int thread = 0; thread < threads; thread++) {
        Band band = {0};
        vector *sums = all + thread * count;
        if (!band_new(&band, fields, height, width, size / 2)) fail_with(&meeting, NO_MEMORY);
        for (long task = thread; task < images * tiles && !watch(&meeting, BAND * TILE * fields * outputs); task += threads) {
            long n = task / tiles, ready = -band.reach;
            move_to(&band, task % tiles);
            for (long r = 0; r < band.rows; r++) {
                for (; ready <= r + band.reach; ready++) load_row(&band, x, n, fields, ready);
                for (long o = 0; o < outputs; o += 2) {
                    for (int c = 0; c < 2; c++) {
                        const float *from = gradient + (n * outputs + o + c) * height * width;
                        memcpy(band.out[c], from + (band.top + r) * width + band.left,
                               (size_t)band.columns * sizeof(float));
                        for (long j = band.columns; j % LANES; j++) band.out[c][j] = 0;
                    }
                    correlate_row(&band, r, fields, stride, sums + o * stride);
                }
            }
        }
        free(band.fields);
    }
    for (long e = 0; e < count; e++) {
        float sum = 0;
        for (int thread = 0; thread < threads; thread++)
            for (int lane = 0; lane < LANES; lane++) sum += all[thread * count + e][lane];
        out[e] = sum;
    }
    free(all);
    return meeting.failed;
}
