/* Connected regions of an image, built from runs of pixels in a row: loop.c. */

#include <math.h>
#include <stdint.h>

/* The regions of an image on which x is constant, built from runs of pixels in a row. The number of
   a run is at most the index of its first pixel; a run points to itself, or to a run of its region
   with a smaller number. */
typedef struct {
    int32_t *label, *parent,
        *count;   /* the run of a pixel; the run that a run points to; the number of its pixels */
    double *sum;  /* the sum over a run of x less one pixel of its plane; then the mean of x over
                     the region, or NaN if x is not to be averaged */
    double *gain; /* how much the gap falls if all x of a run become that pixel: the slack, less
                     s times the squares of x less that pixel */
} Regions;

static int32_t root_of(int32_t *parent, int32_t run) {
    while (parent[run] != run) run = parent[run] = parent[parent[run]];
    return run;
}

/* Unites the regions of two runs. */
static void unite(int32_t *parent, int32_t one, int32_t other) {
    int32_t a = root_of(parent, one), b = root_of(parent, other);
    if (a < b) parent[b] = a;
    else parent[a] = b;
}

/* Unites regions of two rows of labels; `flat` marks columns without an edge between the upper and
 * the lower row. */
static void unite_rows(const Regions *all, const int32_t *upper, const int32_t *lower,
    const unsigned char *flat, long width) {
    int32_t one = -1, other = -1;
    for (long j = 0; j < width; j++) {
        if (!flat[j] || (upper[j] == one && lower[j] == other)) continue;
        one = upper[j], other = lower[j];
        unite(all->parent, one, other);
    }
}

/* Adds the sums of runs [from, to), in the order of their numbers, each to the first run of its
 * region. */
static void add_up(const Regions *all, long from, long to) {
    for (long r = from; r < to; r++) {
        const int32_t first = all->parent[r] = all->parent[all->parent[r]];
        if (first == r) continue;
        all->sum[first] += all->sum[r];
        all->gain[first] += all->gain[r];
        all->count[first] += all->count[r];
    }
}

/* Sets the mean of each run to the mean of its region, if averaging lowers the gap more, by the
   slack between pixels, than it raises it, by s times squared distances from the mean. So two
   regions that were mistaken for one stay unchanged. Coupled planes have the same regions, `size`
   numbers apart, and are averaged together. */
static void take_means(const Regions *all, long from, long to, double scale, const double *pixels,
    long planes, long size) {
    for (long r = from; r < to; r++) {
        const int32_t first = all->parent[r];
        double gain = 0;
        for (long c = 0; c < planes; c++) {
            const double mean = all->sum[r + c * size] / all->count[r];
            gain += all->gain[r + c * size] + scale * all->count[r] * mean * mean;
        }
        for (long c = 0; c < planes; c++) {
            const long own = r + c * size;
            all->sum[own] = first != r ? all->sum[first + c * size]
                : gain >= 0            ? pixels[c] + all->sum[own] / all->count[r]
                                       : NAN;
        }
    }
}
