/* Convolutions of few fields and their derivatives.

   All arrays are float32 and contiguous. Planes are cut into bands of at most BAND rows, which the
   threads share. The fields of a band are copied to scratch memory with the rows around it and zero
   padding around the image. So the convolution needs no test for borders, and its input stays in
   the cache. Convolutions compute ROWS x BLOCK outputs at a time, which stay in registers over all
   taps, so each loaded value serves up to three rows of both outputs. */

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
enum {
    VECTORS = 2, /* vectors of a row of outputs that stay in registers */
    BLOCK = LANES * VECTORS,
    ROWS = 3, /* rows of outputs that stay in registers */
    BAND = 24 /* rows of a band, at most: a multiple of ROWS */
};

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define UNROLL _Pragma("GCC unroll 16")

typedef struct {
    long height, width; /* size of the image */
    long reach;         /* how far a kernel reaches */
    long stride, tall;  /* floats from row to row, and rows of a field */
    float *fields;
    float *out[2];  /* ROWS rows of each of the two outputs, `stride` apart */
    long top, rows; /* the first row of the band in the image, and how many there are */
} Band;

static int band_new(Band *band, long fields, long height, long width, long reach) {
    const long stride = (width + BLOCK - 1) / BLOCK * BLOCK + 2 * reach;
    const long tall = BAND + ROWS - 1 + 2 * reach;
    float *memory = calloc((size_t)((fields * tall + 2 * ROWS) * stride), sizeof(float));
    *band = (Band){.height = height, .width = width, .reach = reach, .stride = stride};
    band->tall = tall, band->fields = memory;
    if (!memory) return 0;
    band->out[0] = memory + fields * tall * stride;
    band->out[1] = band->out[0] + ROWS * stride;
    return 1;
}

static long bands_of(long height) { return (height + BAND - 1) / BAND; }

/* Copies the rows of band n of all fields of an image, and the rows around them. The columns beside
 * the image are 0 from the start. */
static void load(Band *band, const float *x, long n, long fields) {
    const long width = band->width;
    band->top = n * BAND, band->rows = least(BAND, band->height - band->top);
    for (long f = 0; f < fields; f++)
        for (long i = 0; i < band->tall; i++) {
            const long row = band->top + i - band->reach;
            float *to = band->fields + (f * band->tall + i) * band->stride + band->reach;
            if (row < 0 || row >= band->height) memset(to, 0, (size_t)width * sizeof(float));
            else memcpy(to, x + (f * band->height + row) * width, (size_t)width * sizeof(float));
        }
}

/* Computes two outputs for ROWS rows of the band from row i on: the sum over all fields and taps;
   kernel (2, fields, k, k). */
INLINE void convolve_with(
    const Band *band, long i, long fields, const float *kernel, const long k) {
    const long taps = k * k, stride = band->stride;
    for (long j = 0; j < band->width; j += BLOCK) {
        vector sums[ROWS][2][VECTORS] = {{{{0}}}};
        for (long f = 0; f < fields; f++) {
            const float *from = band->fields + (f * band->tall + i) * stride + j;
            const float *one = kernel + f * taps, *two = one + fields * taps;
            UNROLL for (long a = 0; a < k + ROWS - 1; a++) UNROLL for (long b = 0; b < k; b++) {
                vector x[VECTORS];
                UNROLL for (int v = 0; v < VECTORS; v++) x[v] =
                    *(const vector *)(from + a * stride + b + v * LANES);
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

static void convolve_rows(const Band *band, long i, long fields, const float *kernel) {
    long k = 2 * band->reach + 1;
    if (k == 3) convolve_with(band, i, fields, kernel, 3);
    else if (k == 5) convolve_with(band, i, fields, kernel, 5);
    else convolve_with(band, i, fields, kernel, k);
}

/* Convolves: x (images, fields, H, W), kernel (outputs, fields, k, k), out (images, outputs, H, W);
 * outputs is even. `arrays`: x, kernel, out; `sizes`: images, fields, outputs, H, W, k. */
int lmd_convolve(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    const float *x = arrays[0], *kernel = arrays[1];
    const long images = sizes[0], fields = sizes[1], outputs = sizes[2], height = sizes[3];
    const long width = sizes[4], size = sizes[5], bands = bands_of(height);
    float *out = arrays[2];
    Meeting meeting = {0};
    (void)reals, (void)report;
#pragma omp parallel num_threads(threads)
    {
        Band band;
        if (!band_new(&band, fields, height, width, size / 2)) fail_with(&meeting, NO_MEMORY);
#pragma omp for schedule(static)
        for (long task = 0; task < images * bands; task++) {
            const long n = task / bands;
            if (watch(&meeting, BAND * width * fields * outputs)) continue;
            load(&band, x + n * fields * height * width, task % bands, fields);
            for (long r = 0; r < band.rows; r += ROWS)
                for (long o = 0; o < outputs; o++) {
                    if (o % 2 == 0)
                        convolve_rows(&band, r, fields, kernel + o * fields * size * size);
                    for (long row = r; row < least(r + ROWS, band.rows); row++)
                        memcpy(out + ((n * outputs + o) * height + band.top + row) * width,
                            band.out[o % 2] + (row - r) * band.stride,
                            (size_t)width * sizeof(float));
                }
        }
        free(band.fields);
    }
    return meeting.failed;
}

/* Adds to sums (2, fields, k, k, LANES): row r of two gradients, in band->out, times the fields
 * around it. */
INLINE void correlate_with(
    const Band *band, long r, long fields, long stride, vector *sums, const long k) {
    for (long f = 0; f < fields; f++)
        for (long a = 0; a < k; a++) {
            const float *from = band->fields + (f * band->tall + r + a) * band->stride;
            vector *one = sums + (f * k + a) * k, *two = one + stride;
            vector first[LARGEST], second[LARGEST];
            for (long b = 0; b < k; b++) first[b] = one[b], second[b] = two[b];
            for (long j = 0; j < band->width; j += LANES) {
                vector g = *(const vector *)(band->out[0] + j),
                       h = *(const vector *)(band->out[1] + j);
                UNROLL for (long b = 0; b < k; b++) {
                    vector v = *(const vector *)(from + j + b);
                    first[b] += g * v;
                    second[b] += h * v;
                }
            }
            for (long b = 0; b < k; b++) one[b] = first[b], two[b] = second[b];
        }
}

static void correlate_row(const Band *band, long r, long fields, long stride, vector *sums) {
    long k = 2 * band->reach + 1;
    if (k == 3) correlate_with(band, r, fields, stride, sums, 3);
    else if (k == 5) correlate_with(band, r, fields, stride, sums, 5);
    else correlate_with(band, r, fields, stride, sums, k);
}

/* The derivative of <gradient, kernel * x> by the kernel: `arrays`: x, gradient (images, outputs,
 * H, W), out (outputs, fields, k, k); `sizes` as above, k at most LARGEST. Each thread sums over
 * its own bands, and these sums are added in order, so that the answer depends only on the number
 * of threads. */
int lmd_convolve_backward(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    const float *x = arrays[0], *gradient = arrays[1];
    const long images = sizes[0], fields = sizes[1], outputs = sizes[2], height = sizes[3];
    const long width = sizes[4], size = sizes[5], bands = bands_of(height);
    const long stride = fields * size * size, count = outputs * stride;
    float *out = arrays[2];
    vector *all = calloc((size_t)(count * threads), sizeof(vector));
    Meeting meeting = {0};
    (void)reals, (void)report;
    if (!all) return NO_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int thread = 0; thread < threads; thread++) {
        Band band;
        vector *sums = all + thread * count;
        if (!band_new(&band, fields, height, width, size / 2)) fail_with(&meeting, NO_MEMORY);
        for (long task = thread;
             task < images * bands && !watch(&meeting, BAND * width * fields * outputs);
             task += threads) {
            const long n = task / bands;
            load(&band, x + n * fields * height * width, task % bands, fields);
            for (long r = 0; r < band.rows; r++)
                for (long o = 0; o < outputs; o++) {
                    memcpy(band.out[o % 2],
                        gradient + ((n * outputs + o) * height + band.top + r) * width,
                        (size_t)width * sizeof(float)); /* the rest of the row is 0 */
                    if (o % 2) correlate_row(&band, r, fields, stride, sums + (o - 1) * stride);
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
