/* Convolutions of few fields, and one learned iteration for total variation, fused: lmd.solvers.learned_dual and
   learned_saddle have the formulas.

   Everything is float32 and contiguous: images (planes, H, W), dual fields (planes, 2, H, W); each plane is on its own.
   Planes are cut into tiles of BAND x TILE pixels, which the threads share. For a tile the fields that are convolved
   are first written to scratch memory, with what lies around the tile and with zeros around the image, so that the
   convolution needs no test for borders and its rows stay in the cache, however wide the image is. Convolutions work
   on BLOCK outputs at a time, which stay in registers over all taps. */

#include <stdlib.h>
#include <string.h>

typedef float vector __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 8, VECTORS = 4, BLOCK = LANES * VECTORS, BAND = 32, TILE = 256 };

typedef struct {
    long height, width;   /* of the image */
    long reach;           /* how far a kernel reaches */
    long stride, size;    /* floats from row to row, and from field to field */
    float *fields;
    float *out[2];        /* one row of each of the two outputs */
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
    band->size = (BAND + 2 * reach) * band->stride;
    band->fields = calloc((size_t)(fields * band->size + 2 * padded), sizeof(float));
    if (!band->fields) return 0;
    band->out[0] = band->fields + fields * band->size;
    band->out[1] = band->out[0] + padded;
    return 1;
}

static long least(long a, long b) { return a < b ? a : b; }

/* How many tiles a plane has. */
static long tiles_of(long height, long width)
{
    return ((height + BAND - 1) / BAND) * ((width + TILE - 1) / TILE);
}

static void move_to(Band *band, long tile)
{
    long across = (band->width + TILE - 1) / TILE;
    band->top = tile / across * BAND;
    band->left = tile % across * TILE;
    band->rows = least(BAND, band->height - band->top);
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

/* Zeros in row i of all fields: where the image does not reach; all of it with `whole`. */
static inline void clear_row(const Band *band, long fields, long i, int whole)
{
    long from, to, end = band->columns + band->reach;
    columns_of(band, &from, &to);
    for (long f = 0; f < fields; f++) {
        float *row = row_of(band, f, i);
        if (whole) from = to = band->left + end;
        for (long j = -band->reach; j < from - band->left; j++) row[j] = 0;
        for (long j = to - band->left; j < end; j++) row[j] = 0;
    }
}

/* The two outputs for row i of the band: the sum over fields and taps, kernel (2, fields, k, k). */
static void convolve_row(const Band *band, long i, long fields, const float *kernel)
{
    long k = 2 * band->reach + 1, taps = k * k;
    for (long j = 0; j < band->columns; j += BLOCK) {
        vector first[VECTORS] = {{0}}, second[VECTORS] = {{0}};
        const float *one = kernel, *two = kernel + fields * taps;
        for (long f = 0; f < fields; f++)
            for (long a = 0; a < k; a++) {
                const float *from = row_of(band, f, i + a - band->reach) + j - band->reach;
                for (long b = 0; b < k; b++, one++, two++, from++)
                    for (int v = 0; v < VECTORS; v++) {
                        vector x = *(const vector *)(from + v * LANES);
                        first[v] += *one * x;
                        second[v] += *two * x;
                    }
            }
        for (int v = 0; v < VECTORS; v++) {
            *(vector *)(band->out[0] + j + v * LANES) = first[v];
            *(vector *)(band->out[1] + j + v * LANES) = second[v];
        }
    }
}

/* scale * Kx for image row i, columns [from, to), into two rows whose first entry is column `from`. */
static inline void differences(const float *x, long i, const Band *band, long from, long to, float scale, float *down,
                               float *right)
{
    long width = band->width, count = to - from, inside = least(to, width - 1) - from;
    const float *here = x + i * width + from;
    if (i + 1 < band->height)
        for (long j = 0; j < count; j++) down[j] = scale * (here[j + width] - here[j]);
    else
        memset(down, 0, (size_t)count * sizeof(float));
    for (long j = 0; j < inside; j++) right[j] = scale * (here[j + 1] - here[j]);
    if (to == width) right[count - 1] = 0;
}

/* K'p for image row i, columns [from, to); p is (2, H, W). The last entries along each axis do not count. */
static inline void adjoint(const float *p, long i, long height, long width, long from, long to, float *out)
{
    long count = to - from, inside = least(to, width - 1) - from, first = from > 0 ? 0 : 1;
    const float *down = p + i * width + from, *right = p + (height + i) * width + from;
    for (long j = 0; j < count; j++) out[j] = 0;
    if (i > 0)
        for (long j = 0; j < count; j++) out[j] += down[j - width];
    if (i + 1 < height)
        for (long j = 0; j < count; j++) out[j] -= down[j];
    for (long j = 0; j < inside; j++) out[j] -= right[j];
    for (long j = first; j < count; j++) out[j] += right[j - 1];
}

static inline float within(float x, float low, float high)
{
    x = x > high ? high : x; /* a NaN stays one */
    return x < low ? low : x;
}

/* p_new = clip(p + kernel * (L Kx, move of p, [L K(move of x)])), within +-bound; and its move, where it is asked for. */
static void dual_tile(const Band *band, long fields, const float *x, const float *x_moved, const float *p,
                      const float *p_other, int other_is_move, const float *kernel, float scale, float bound,
                      float *p_new, float *p_moved)
{
    long width = band->width, size = band->height * width, from, to;
    columns_of(band, &from, &to);
    long shift = from - band->left, count = to - from;
    for (long r = -band->reach; r < band->rows + band->reach; r++) {
        long i = band->top + r;
        int outside = i < 0 || i >= band->height;
        clear_row(band, fields, r, outside);
        if (outside) continue;
        differences(x, i, band, from, to, scale, row_of(band, 0, r) + shift, row_of(band, 1, r) + shift);
        for (int c = 0; c < 2; c++) {
            float *into = row_of(band, 2 + c, r) + shift;
            const float *now = p + c * size + i * width + from, *other = p_other + c * size + i * width + from;
            if (other_is_move)
                memcpy(into, other, (size_t)count * sizeof(float));
            else
                for (long j = 0; j < count; j++) into[j] = now[j] - other[j];
        }
        if (fields == 6)
            differences(x_moved, i, band, from, to, scale, row_of(band, 4, r) + shift, row_of(band, 5, r) + shift);
    }
    for (long r = 0; r < band->rows; r++) {
        convolve_row(band, r, fields, kernel);
        for (int c = 0; c < 2; c++) {
            long at = c * size + (band->top + r) * width + band->left;
            const float *step = band->out[c], *now = p + at;
            float *into = p_new + at;
            for (long j = 0; j < band->columns; j++) into[j] = within(now[j] + step[j], -bound, bound);
            if (p_moved)
                for (long j = 0; j < band->columns; j++) p_moved[at + j] = into[j] - now[j];
        }
    }
}

/* x_new = clip(x + kernel * (kept slope, lost slope, move)), slope = Z (x - y) + K'p / L; and its move. */
static void primal_tile(const Band *band, const float *x, const float *x_moved, const float *p, const float *y,
                        const float *mask, const float *kernel, float scale, float low, float high, float *x_new,
                        float *moved_new)
{
    long width = band->width, from, to;
    columns_of(band, &from, &to);
    long shift = from - band->left, count = to - from;
    for (long r = -band->reach; r < band->rows + band->reach; r++) {
        long i = band->top + r, at = i * width + from;
        int outside = i < 0 || i >= band->height;
        clear_row(band, 3, r, outside);
        if (outside) continue;
        float *kept = row_of(band, 0, r) + shift, *lost = row_of(band, 1, r) + shift;
        adjoint(p, i, band->height, width, from, to, lost);
        for (long j = 0; j < count; j++) {
            float slope = mask[at + j] * (x[at + j] - y[at + j]) + lost[j] / scale;
            kept[j] = slope * mask[at + j];
            lost[j] = slope - kept[j];
        }
        memcpy(row_of(band, 2, r) + shift, x_moved + at, (size_t)count * sizeof(float));
    }
    for (long r = 0; r < band->rows; r++) {
        convolve_row(band, r, 3, kernel);
        long at = (band->top + r) * width + band->left;
        for (long j = 0; j < band->columns; j++) {
            float step = mask[at + j] > 0 ? band->out[0][j] : band->out[1][j];
            x_new[at + j] = within(x[at + j] + step, low, high);
            moved_new[at + j] = x_new[at + j] - x[at + j];
        }
    }
}

/* One iteration of LearnedDual on TV denoising; returns 0, or 1 where there was no memory. bound is (planes). */
int lmd_dual_step(const float *x, const float *p, const float *p_before, const float *y, const float *kernel,
                  const float *bound, float gamma, long planes, long height, long width, long size, int threads,
                  float *p_new, float *x_new)
{
    long tiles = tiles_of(height, width), pixels = height * width;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        Band band = {0};
        failed = !band_new(&band, 4, height, width, size / 2);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < planes * tiles; task++) {
            long n = task / tiles, at = n * pixels;
            if (failed) continue;
            move_to(&band, task % tiles);
            dual_tile(&band, 4, x + at, NULL, p + 2 * at, p_before + 2 * at, 0, kernel, gamma, bound[n],
                      p_new + 2 * at, NULL);
        }
#pragma omp for schedule(static)
        for (long row = 0; row < planes * height; row++) {
            long n = row / height, i = row % height;
            float *to = x_new + n * pixels + i * width;
            const float *from = y + n * pixels + i * width;
            adjoint(p_new + 2 * n * pixels, i, height, width, 0, width, to);
            for (long j = 0; j < width; j++) to[j] = from[j] - to[j] / gamma;
        }
        free(band.fields);
    }
    return failed;
}

/* One iteration of LearnedSaddle on TV inpainting. The mask is (planes / channels_per_mask, H, W); low, high (planes). */
int lmd_saddle_step(const float *x, const float *x_moved, const float *p, const float *p_moved, const float *y,
                    const float *mask, const float *dual_kernel, const float *primal_kernel, const float *bound,
                    const float *low, const float *high, float scale, long planes, long channels_per_mask, long height,
                    long width, long dual_size, long primal_size, int threads, float *x_new, float *x_moved_new,
                    float *p_new, float *p_moved_new)
{
    long tiles = tiles_of(height, width), pixels = height * width;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        Band dual = {0}, primal = {0};
        int one = band_new(&dual, 6, height, width, dual_size / 2);
        int two = band_new(&primal, 3, height, width, primal_size / 2);
        failed = !(one && two);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < planes * tiles; task++) {
            long n = task / tiles, at = n * pixels;
            if (failed) continue;
            move_to(&dual, task % tiles);
            dual_tile(&dual, 6, x + at, x_moved + at, p + 2 * at, p_moved + 2 * at, 1, dual_kernel, scale, bound[n],
                      p_new + 2 * at, p_moved_new + 2 * at);
        }
#pragma omp for schedule(dynamic)
        for (long task = 0; task < planes * tiles; task++) {
            long n = task / tiles, at = n * pixels;
            if (failed) continue;
            move_to(&primal, task % tiles);
            primal_tile(&primal, x + at, x_moved + at, p_new + 2 * at, y + at, mask + n / channels_per_mask * pixels,
                        primal_kernel, scale, low[n], high[n], x_new + at, x_moved_new + at);
        }
        free(dual.fields);
        free(primal.fields);
    }
    return failed;
}

/* The tile's part of the fields of image n. */
static void load_fields(const Band *band, const float *x, long n, long fields)
{
    long from, to;
    columns_of(band, &from, &to);
    for (long r = -band->reach; r < band->rows + band->reach; r++) {
        long i = band->top + r;
        int outside = i < 0 || i >= band->height;
        clear_row(band, fields, r, outside);
        for (long f = 0; f < fields && !outside; f++)
            memcpy(row_of(band, f, r) + from - band->left, x + ((n * fields + f) * band->height + i) * band->width + from,
                   (size_t)(to - from) * sizeof(float));
    }
}

/* out (images, outputs, H, W) = kernel (outputs, fields, k, k) * x (images, fields, H, W); outputs is even. */
int lmd_convolve(const float *x, const float *kernel, long images, long fields, long outputs, long height,
                 long width, long size, int threads, float *out)
{
    long tiles = tiles_of(height, width);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        Band band = {0};
        failed = !band_new(&band, fields, height, width, size / 2);
#pragma omp for schedule(static)
        for (long task = 0; task < images * tiles; task++) {
            if (failed) continue;
            move_to(&band, task % tiles);
            load_fields(&band, x, task / tiles, fields);
            for (long r = 0; r < band.rows; r++)
                for (long o = 0; o < outputs; o += 2) {
                    convolve_row(&band, r, fields, kernel + o * fields * size * size);
                    for (int c = 0; c < 2; c++)
                        memcpy(out + ((task / tiles * outputs + o + c) * height + band.top + r) * width + band.left,
                               band.out[c], (size_t)band.columns * sizeof(float));
                }
        }
        free(band.fields);
    }
    return failed;
}

enum { LARGEST = 9 };

/* Adds to sums (2, fields, k, k, LANES): row r of two gradients, in band->out, times the fields around it. */
static void correlate_row(const Band *band, long r, long fields, long stride, vector *sums)
{
    long k = 2 * band->reach + 1;
    for (long f = 0; f < fields; f++)
        for (long a = 0; a < k; a++) {
            const float *from = row_of(band, f, r + a - band->reach) - band->reach;
            vector *one = sums + (f * k + a) * k, *two = one + stride;
            vector first[LARGEST], second[LARGEST];
            for (long b = 0; b < k; b++) first[b] = one[b], second[b] = two[b];
            for (long j = 0; j < band->columns; j += LANES) {
                vector g = *(const vector *)(band->out[0] + j), h = *(const vector *)(band->out[1] + j);
                for (long b = 0; b < k; b++) {
                    vector v = *(const vector *)(from + j + b);
                    first[b] += g * v;
                    second[b] += h * v;
                }
            }
            for (long b = 0; b < k; b++) one[b] = first[b], two[b] = second[b];
        }
}

/* The derivative of <gradient, kernel * x> by the kernel: out (outputs, fields, k, k), outputs even, k at most LARGEST.
   Each thread adds up its own images; their sums are added in order, so that the answer depends on their number alone. */
int lmd_convolve_backward(const float *x, const float *gradient, long images, long fields, long outputs,
                          long height, long width, long size, int threads, float *out)
{
    long tiles = tiles_of(height, width), stride = fields * size * size, count = outputs * stride;
    vector *all = calloc((size_t)(count * threads), sizeof(vector));
    int failed = all == NULL;
    if (failed) return 1;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : failed)
    for (int thread = 0; thread < threads; thread++) {
        Band band = {0};
        vector *sums = all + thread * count;
        failed |= !band_new(&band, fields, height, width, size / 2);
        for (long task = thread; task < images * tiles && !failed; task += threads) {
            move_to(&band, task % tiles);
            load_fields(&band, x, task / tiles, fields);
            for (long r = 0; r < band.rows; r++)
                for (long o = 0; o < outputs; o += 2) {
                    for (int c = 0; c < 2; c++) {
                        const float *from = gradient + (task / tiles * outputs + o + c) * height * width;
                        memcpy(band.out[c], from + (band.top + r) * width + band.left,
                               (size_t)band.columns * sizeof(float));
                        for (long j = band.columns; j % LANES; j++) band.out[c][j] = 0;
                    }
                    correlate_row(&band, r, fields, stride, sums + o * stride);
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
    return failed;
}
