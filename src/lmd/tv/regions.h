/* Connected regions of an image, put together of runs of pixels in a row: loop.c. */

#include <math.h>
#include <stdint.h>

/* The regions of an image on which x is flat, put together of runs of pixels in a row: a run has the number of its first
   pixel in these arrays, or a smaller one, and points to one of its region with a smaller number. */
typedef struct {
    int32_t *label, *parent, *count; /* of a pixel its run; of a run the one that it points to, how many pixels it has */
    double *sum;  /* of x, less some pixel of its plane, over a run; then the mean of x over its region, or a NaN where x is to
                     stay as it is */
    double *gain; /* what is won if all of x there were that pixel: its slack, less s times the squares of the same */
} Regions;

static int32_t root_of(int32_t *parent, int32_t run)
{
    while (parent[run] != run) run = parent[run] = parent[parent[run]];
    return run;
}

/* One region of the two of these runs. */
static void unite(int32_t *parent, int32_t one, int32_t other)
{
    int32_t a = root_of(parent, one), b = root_of(parent, other);
    if (a < b)
        parent[b] = a;
    else
        parent[a] = b;
}

/* Two rows of labels, the upper one and the lower one, and between which of their pixels there is no edge. */
static void unite_rows(const Regions *all, const int32_t *upper, const int32_t *lower, const unsigned char *flat, long width)
{
    int32_t one = -1, other = -1;
    for (long j = 0; j < width; j++) {
        if (!flat[j] || (upper[j] == one && lower[j] == other)) continue;
        one = upper[j], other = lower[j];
        unite(all->parent, one, other);
    }
}

/* Adds up what runs [from, to) have, in the order of their numbers, each to the first of its region; */
static void add_up(const Regions *all, long from, long to)
{
    for (long r = from; r < to; r++) {
        const int32_t first = all->parent[r] = all->parent[all->parent[r]];
        if (first == r) continue;
        all->sum[first] += all->sum[r];
        all->gain[first] += all->gain[r];
        all->count[first] += all->count[r];
    }
}

/* then the means, of each run that of its region: where drawing it flat takes more from the gap, by the slack between its
   pixels, than it adds, by s times their distances from the mean. Two regions that were taken for one are left alone by that.
   Planes that are coupled have the same regions, `size` numbers apart, and are drawn flat together. */
static void take_means(const Regions *all, long from, long to, double scale, const double *pixels, long planes, long size)
{
    for (long r = from; r < to; r++) {
        const int32_t first = all->parent[r];
        double gain = 0;
        for (long c = 0; c < planes; c++) {
            const double mean = all->sum[r + c * size] / all->count[r];
            gain += all->gain[r + c * size] + scale * all->count[r] * mean * mean;
        }
        for (long c = 0; c < planes; c++) {
            const long own = r + c * size;
            all->sum[own] = first != r ? all->sum[first + c * size] : gain >= 0 ? pixels[c] + all->sum[own] / all->count[r] : NAN;
        }
    }
}
