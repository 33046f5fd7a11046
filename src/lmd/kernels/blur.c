/* Blurs of float images with a border, and their adjoints: lmd.operators.blur has the formulas.

   A pass has taps (h, w), of which only nonzero ones are stored. Forward, planes are copied with
   margins, (H + h - 1, W + w - 1), that wrap around or repeat the border; each entry is a sum over
   the taps. The adjoint copies planes with zero padding, (H + 2 (h - 1), W + 2 (w - 1)), computes
   the same sums with flipped taps on a plane with margins, and adds the margins to the entries from
   which they were copied. A few planes are processed at a time, so that they stay in the cache.
   Threads share the rows, and every entry is summed in the same order. */

#include <stdlib.h>
#include <string.h>

#include "shared.h"
#include "threads.h"

enum {
    LANES = 16,
    BLOCK = 64,
    NEAR = 1 << 16
}; /* NEAR: number of floats that stay in the cache of a thread */
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));

typedef struct {
    long planes, height, width, h, w, count; /* `count` is the number of taps */
    const long *places; /* (count, 2): row and column of each in the flipped kernel */
    const float *taps;
    int circular;
    Meeting *meeting;
} Pass;

/* The index of the entry that index `at`, which may be outside of [0, n), is copied from. */
static long source(long at, long n, int circular) {
    if (circular) return at < 0 ? at + n : at >= n ? at - n : at;
    return at < 0 ? 0 : at >= n ? n - 1 : at;
}

/* Copies a row with margins of `before` and `after` entries. */
static void widen(const float *from, long n, long before, long after, int circular, float *to) {
    memcpy(to + before, from, (size_t)n * sizeof(float));
    for (long k = 0; k < before; k++) to[k] = from[source(k - before, n, circular)];
    for (long k = 0; k < after; k++) to[before + n + k] = from[source(n + k, n, circular)];
}

/* The offset of the entry that a tap reads, in an array with rows of length `stride`. */
static long place(const Pass *pass, long t, long stride, int turned) {
    long a = pass->places[2 * t], b = pass->places[2 * t + 1];
    return turned ? (pass->h - 1 - a) * stride + pass->w - 1 - b : a * stride + b;
}

/* out[k] = sum of taps times their entries, for BLOCK entries, which stay in registers. */
static void sum_block(
    const Pass *pass, const float *from, long stride, int turned, float *restrict out) {
    Lanes sums[BLOCK / LANES] = {{0}};
    for (long t = 0; t < pass->count; t++) {
        const float *row = from + place(pass, t, stride, turned), tap = pass->taps[t];
        for (int part = 0; part < BLOCK / LANES; part++) {
            Lanes there;
            memcpy(&there, row + part * LANES, sizeof(Lanes));
            sums[part] += tap * there;
        }
    }
    memcpy(out, sums, sizeof(sums));
}

/* The same for a whole row; the last block may compute entries a second time. */
static void gather(
    const Pass *pass, const float *from, long stride, long n, int turned, float *out) {
    for (long k = 0; k < n && n >= BLOCK; k += BLOCK) {
        long at = k + BLOCK <= n ? k : n - BLOCK;
        sum_block(pass, from + at, stride, turned, out + at);
    }
    for (long k = 0; k < n && n < BLOCK; k++) {
        float sum = 0;
        for (long t = 0; t < pass->count; t++)
            sum += pass->taps[t] * from[k + place(pass, t, stride, turned)];
        out[k] = sum;
    }
}

/* One pass over all planes; `wide` holds them with margins. Called by all threads of a team. */
static void forward(const Pass *pass, const float *x, float *wide, float *out) {
    const long H = pass->height, W = pass->width, tall = H + pass->h - 1, stride = W + pass->w - 1;
    const long top = pass->h - 1 - pass->h / 2, left = pass->w - 1 - pass->w / 2;
#pragma omp for schedule(static)
    for (long r = 0; r < pass->planes * tall; r++) {
        long from = r / tall * H + source(r % tall - top, H, pass->circular);
        widen(x + from * W, W, left, pass->w / 2, pass->circular, wide + r * stride);
    }
#pragma omp for schedule(static)
    for (long r = 0; r < pass->planes * H; r++)
        if (!watch(pass->meeting, pass->count * W))
            gather(pass, wide + (r / H * tall + r % H) * stride, stride, W, 0, out + r * W);
}

/* The adjoint; `wide` holds planes with zero padding, `spread` the sums over the taps. */
static void backward(const Pass *pass, const float *z, float *wide, float *spread, float *out) {
    const long H = pass->height, W = pass->width, h = pass->h, w = pass->w, tall = H + h - 1,
               across = W + w - 1;
    const long top = h - 1 - h / 2, left = w - 1 - w / 2, stride = W + 2 * (w - 1),
               rows = H + 2 * (h - 1);
#pragma omp for schedule(static)
    for (long r = 0; r < pass->planes * rows; r++) {
        float *to = wide + r * stride;
        long i = r % rows - (h - 1);
        memset(to, 0, (size_t)stride * sizeof(float));
        if (i >= 0 && i < H)
            memcpy(to + w - 1, z + (r / rows * H + i) * W, (size_t)W * sizeof(float));
    }
#pragma omp for schedule(static)
    for (long r = 0; r < pass->planes * tall; r++)
        if (!watch(pass->meeting, pass->count * across))
            gather(pass, wide + (r / tall * rows + r % tall) * stride, stride, across, 1,
                spread + r * across);
#pragma omp for schedule(static)
    for (long r = 0; r < pass->planes * H; r++) {
        const float *plane = spread + r / H * tall * across;
        float *sum = (float *)plane + (top + r % H) * across,
              *to = out + r * W; /* no other thread reads this row */
        for (long m = 0; m < h - 1; m++) {
            long i = m < top ? m - top : H + m - top;
            if (source(i, H, pass->circular) != r % H) continue;
            const float *more = plane + (i + top) * across;
#pragma omp simd
            for (long k = 0; k < across; k++) sum[k] += more[k];
        }
        memcpy(to, sum + left, (size_t)W * sizeof(float));
        for (long m = 0; m < w - 1; m++) {
            long j = m < left ? m - left : W + m - left;
            to[source(j, W, pass->circular)] += sum[j + left];
        }
    }
}

/* Blurs by one or two passes; the adjoint takes them in reverse order. `arrays`: x and out (planes,
 * H, W), taps and places of the first pass, then of the second. `sizes`: planes, H, W, circular,
 * adjoint, passes, and h, w, count of each. */
int lmd_blur(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report) {
    const float *x = arrays[0], *taps = arrays[1];
    const long *places = arrays[2];
    float *out = arrays[3];
    const long passes = sizes[5], adjoint = sizes[4], planes = sizes[0];
    Pass own[2] = {{0}, {0}};
    long most = 0;
    Meeting meeting = {0};
    (void)reals, (void)report;
    for (long n = 0; n < passes; n++) {
        const long *size = sizes + 6 + 3 * n, skipped = n ? sizes[8] : 0;
        own[n] = (Pass){planes, sizes[1], sizes[2], size[0], size[1], size[2], places + 2 * skipped,
            taps + skipped, (int)sizes[3], &meeting};
        long margins = adjoint ? 2 : 1,
             area = (sizes[1] + margins * (size[0] - 1)) * (sizes[2] + margins * (size[1] - 1));
        most = area > most ? area : most;
    }
    const long plane = sizes[1] * sizes[2], fit = NEAR * threads / most,
               chunk = fit < 1 ? 1
        : fit < planes         ? fit
                               : planes;
    float *wide = malloc((size_t)(chunk * most) * sizeof(float));
    float *spread = malloc((size_t)(adjoint ? chunk * most : 1) * sizeof(float));
    float *between = malloc((size_t)(passes > 1 ? chunk * plane : 1) * sizeof(float));
    if (!wide || !spread || !between) fail_with(&meeting, NO_MEMORY);
    else
#pragma omp parallel num_threads(threads)
        for (long first = 0; first < planes && !meeting.stop; first += chunk) {
            for (long n = 0; n < passes; n++) {
                Pass pass = own[adjoint ? passes - 1 - n : n];
                const float *from = n ? between : x + first * plane;
                float *to = n + 1 < passes ? between : out + first * plane;
                pass.planes = first + chunk < planes ? chunk : planes - first;
                if (adjoint) backward(&pass, from, wide, spread, to);
                else forward(&pass, from, wide, to);
            }
            meet(&meeting, omp_get_num_threads());
        }
    free(wide), free(spread), free(between);
    return meeting.failed;
}
