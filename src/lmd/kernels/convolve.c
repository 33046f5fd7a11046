/* Convolutions of few fields and their derivatives.

   Everything is float32 and contiguous. Planes are cut into tiles of at most BAND x TILE pixels, which the threads share.
   The fields of a tile are written to scratch memory row by row, just before they are needed, with what lies around the
   tile and with zeros around the image: the convolution needs no test for borders, and its rows stay in the cache, however
   wide the image is. Convolutions compute ROWS x BLOCK outputs at a time, which stay in registers over all taps: a value
   that is loaded serves up to three rows of both outputs. */

#include <stdlib.h>
#include <string.h>

#include "shared.h"
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
