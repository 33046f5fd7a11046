/* Convolutions of few fields, and one learned iteration for total variation, fused: see lmd.solvers.learned_dual and learned_saddle for the formulas.

   Everything is float32 and contiguous: images (planes, H, W), dual fields (planes, 2, H, W); each plane is on its own.
   Planes are cut into bands of rows, which the threads share. A band first writes the fields that are convolved to
   scratch memory, with zeros around them so that the convolution needs no test for borders, then convolves row by row.
   Convolutions work on BLOCK outputs at a time, which stay in registers over all taps. */

#include <stdlib.h>
#include <string.h>

typedef float vector __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 8, VECTORS = 4, BLOCK = LANES * VECTORS, BAND = 32 };

typedef struct {
    long rows, width;     /* of the band's fields without the border of `reach` */
    long reach;           /* how far a kernel reaches */
    long stride, size;    /* floats from row to row, and from field to field */
    float *fields;
    float *out[2];        /* one row of each of the two outputs */
} Band;

static int band_new(Band *band, long fields, long width, long reach)
{
    long padded = (width + BLOCK - 1) / BLOCK * BLOCK;
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

/* Row i of a field, where 0 is the first row of the band: its first pixel. */
static inline float *row_of(const Band *band, long field, long i)
{
    return band->fields + field * band->size + (i + band->reach) * band->stride + band->reach;
}

/* The two outputs for row i of the band: the sum over fields and taps, kernel (2, fields, k, k). */
static void convolve_row(const Band *band, long i, long fields, const float *kernel)
{
    long k = 2 * band->reach + 1, taps = k * k;
    for (long j = 0; j < band->width; j += BLOCK) {
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

/* scale * Kx for image row i into two rows. */
static inline void differences(const float *x, long i, long height, long width, float scale, float *down, float *right)
{
    const float *here = x + i * width;
    if (i + 1 < height)
        for (long j = 0; j < width; j++) down[j] = scale * (here[j + width] - here[j]);
    else
        memset(down, 0, (size_t)width * sizeof(float));
    for (long j = 0; j + 1 < width; j++) right[j] = scale * (here[j + 1] - here[j]);
    right[width - 1] = 0;
}

/* K'p for image row i; p is (2, H, W). The last entries along each axis do not count. */
static inline void adjoint(const float *p, long i, long height, long width, float *out)
{
    const float *down = p + i * width, *right = p + (height + i) * width;
    for (long j = 0; j < width; j++) out[j] = 0;
    if (i > 0)
        for (long j = 0; j < width; j++) out[j] += down[j - width];
    if (i + 1 < height)
        for (long j = 0; j < width; j++) out[j] -= down[j];
    for (long j = 0; j + 1 < width; j++) out[j] -= right[j];
    for (long j = 1; j < width; j++) out[j] += right[j - 1];
}

static inline float within(float x, float low, float high)
{
    x = x > high ? high : x; /* a NaN stays one */
    return x < low ? low : x;
}

static inline void clear_row(const Band *band, long fields, long i)
{
    for (long f = 0; f < fields; f++) memset(row_of(band, f, i), 0, (size_t)band->width * sizeof(float));
}

/* p_new = clip(p + kernel * (L Kx, moved of p, [L K(moved of x)])), within +-bound; and its move, where it is asked for. */
static void dual_band(const Band *band, long fields, long first, long height, const float *x, const float *x_moved,
                      const float *p, const float *p_other, int other_is_move, const float *kernel, float scale,
                      float bound, float *p_new, float *p_moved)
{
    long width = band->width, reach = band->reach, size = height * width;
    long rows = height - first < BAND ? height - first : BAND;
    for (long r = -reach; r < rows + reach; r++) {
        long i = first + r;
        if (i < 0 || i >= height) {
            clear_row(band, fields, r);
            continue;
        }
        differences(x, i, height, width, scale, row_of(band, 0, r), row_of(band, 1, r));
        for (int c = 0; c < 2; c++) {
            float *to = row_of(band, 2 + c, r);
            const float *now = p + c * size + i * width, *other = p_other + c * size + i * width;
            if (other_is_move)
                memcpy(to, other, (size_t)width * sizeof(float));
            else
                for (long j = 0; j < width; j++) to[j] = now[j] - other[j];
        }
        if (fields == 6) differences(x_moved, i, height, width, scale, row_of(band, 4, r), row_of(band, 5, r));
    }
    for (long r = 0; r < rows; r++) {
        convolve_row(band, r, fields, kernel);
        for (int c = 0; c < 2; c++) {
            const float *step = band->out[c], *now = p + c * size + (first + r) * width;
            float *to = p_new + c * size + (first + r) * width;
            for (long j = 0; j < width; j++) to[j] = within(now[j] + step[j], -bound, bound);
            if (p_moved) {
                float *move = p_moved + c * size + (first + r) * width;
                for (long j = 0; j < width; j++) move[j] = to[j] - now[j];
            }
        }
    }
}

/* x_new = clip(x + kernel * (kept slope, lost slope, moved)), slope = Z (x - y) + K'p / L; and its move. */
static void primal_band(const Band *band, long first, long height, const float *x, const float *x_moved,
                        const float *p, const float *y, const float *mask, const float *kernel, float scale, float low,
                        float high, float *x_new, float *moved_new)
{
    long width = band->width, reach = band->reach;
    long rows = height - first < BAND ? height - first : BAND;
    for (long r = -reach; r < rows + reach; r++) {
        long i = first + r;
        if (i < 0 || i >= height) {
            clear_row(band, 3, r);
            continue;
        }
        float *kept = row_of(band, 0, r), *lost = row_of(band, 1, r), *moved = row_of(band, 2, r);
        adjoint(p, i, height, width, lost);
        const float *here = x + i * width, *there = y + i * width, *z = mask + i * width;
        for (long j = 0; j < width; j++) {
            float slope = z[j] * (here[j] - there[j]) + lost[j] / scale;
            kept[j] = slope * z[j];
            lost[j] = slope - kept[j];
        }
        memcpy(moved, x_moved + i * width, (size_t)width * sizeof(float));
    }
    for (long r = 0; r < rows; r++) {
        convolve_row(band, r, 3, kernel);
        long at = (first + r) * width;
        for (long j = 0; j < width; j++) {
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
    long bands = (height + BAND - 1) / BAND, pixels = height * width;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        Band band = {0};
        failed = !band_new(&band, 4, width, size / 2);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < planes * bands; task++) {
            long n = task / bands;
            if (!failed)
                dual_band(&band, 4, task % bands * BAND, height, x + n * pixels, NULL, p + 2 * n * pixels,
                          p_before + 2 * n * pixels, 0, kernel, gamma, bound[n], p_new + 2 * n * pixels, NULL);
        }
#pragma omp for schedule(static)
        for (long row = 0; row < planes * height; row++) {
            long n = row / height, i = row % height;
            float *to = x_new + n * pixels + i * width;
            const float *from = y + n * pixels + i * width;
            adjoint(p_new + 2 * n * pixels, i, height, width, to);
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
    long bands = (height + BAND - 1) / BAND, pixels = height * width;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        Band dual = {0}, primal = {0};
        int one = band_new(&dual, 6, width, dual_size / 2), two = band_new(&primal, 3, width, primal_size / 2);
        failed = !(one && two);
#pragma omp for schedule(dynamic)
        for (long task = 0; task < planes * bands; task++) {
            long n = task / bands, at = n * pixels;
            if (!failed)
                dual_band(&dual, 6, task % bands * BAND, height, x + at, x_moved + at, p + 2 * at, p_moved + 2 * at, 1,
                          dual_kernel, scale, bound[n], p_new + 2 * at, p_moved_new + 2 * at);
        }
#pragma omp for schedule(dynamic)
        for (long task = 0; task < planes * bands; task++) {
            long n = task / bands, at = n * pixels;
            if (!failed)
                primal_band(&primal, task % bands * BAND, height, x + at, x_moved + at, p_new + 2 * at, y + at,
                            mask + n / channels_per_mask * pixels, primal_kernel, scale, low[n], high[n], x_new + at,
                            x_moved_new + at);
        }
        free(dual.fields);
        free(primal.fields);
    }
    return failed;
}

/* The fields of image n from row `first` - reach on, with zeros around. */
static long load_fields(const Band *band, const float *x, long n, long fields, long first, long height)
{
    long width = band->width, rows = height - first < BAND ? height - first : BAND;
    for (long r = -band->reach; r < rows + band->reach; r++) {
        long i = first + r;
        if (i < 0 || i >= height) {
            clear_row(band, fields, r);
            continue;
        }
        for (long f = 0; f < fields; f++)
            memcpy(row_of(band, f, r), x + ((n * fields + f) * height + i) * width, (size_t)width * sizeof(float));
    }
    return rows;
}

/* out (images, outputs, H, W) = kernel (outputs, fields, k, k) * x (images, fields, H, W); outputs is even. */
int lmd_convolve(const float *x, const float *kernel, float unused, long images, long fields, long outputs, long height,
                 long width, long size, int threads, float *out)
{
    long bands = (height + BAND - 1) / BAND;
    int failed = 0;
    (void)unused;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        Band band = {0};
        failed = !band_new(&band, fields, width, size / 2);
#pragma omp for schedule(static)
        for (long task = 0; task < images * bands; task++) {
            if (failed) continue;
            long n = task / bands, first = task % bands * BAND;
            long rows = load_fields(&band, x, n, fields, first, height);
            for (long r = 0; r < rows; r++)
                for (long o = 0; o < outputs; o += 2) {
                    convolve_row(&band, r, fields, kernel + o * fields * size * size);
                    for (int c = 0; c < 2; c++)
                        memcpy(out + ((n * outputs + o + c) * height + first + r) * width, band.out[c],
                               (size_t)width * sizeof(float));
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
            for (long j = 0; j < band->width; j += LANES) {
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
int lmd_convolve_backward(const float *x, const float *gradient, float unused, long images, long fields, long outputs,
                          long height, long width, long size, int threads, float *out)
{
    long bands = (height + BAND - 1) / BAND, stride = fields * size * size, count = outputs * stride;
    vector *all = calloc((size_t)(count * threads), sizeof(vector));
    int failed = all == NULL;
    (void)unused;
    if (failed) return 1;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : failed)
    for (int thread = 0; thread < threads; thread++) {
        Band band = {0};
        vector *sums = all + thread * count;
        failed |= !band_new(&band, fields, width, size / 2);
        for (long task = thread; task < images * bands && !failed; task += threads) {
            long n = task / bands, first = task % bands * BAND;
            long rows = load_fields(&band, x, n, fields, first, height);
            for (long r = 0; r < rows; r++)
                for (long o = 0; o < outputs; o += 2) {
                    for (int c = 0; c < 2; c++)
                        memcpy(band.out[c], gradient + ((n * outputs + o + c) * height + first + r) * width,
                               (size_t)width * sizeof(float));
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
