/* Learned interior-point steps for support vector machines, all of them at once, one data set after the other: the
   numbers of lmd.solvers.LearnedInteriorPoint to rounding. Everything is computed in double from float rows. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

#define LEAST_CENTRING 1e-6
#define MOST_CENTRING 0.5

/* What is positive around a point: one array of each for the rows that take part. */
typedef struct {
    double *dual, *room, *slack, *surplus;
} Around;

/* One data set: rows (m, n), padded rows in use (count, ld), and room to work in. */
typedef struct {
    const float *rows;
    double C;
    long m, n, ld, count;
    double *used, *point, *margins, *weight, *shift, *matrix, *base, *move;
    long *places, *order, *slots;
    Around now, ahead, by, other;
    double *missing;
    Meeting *meeting;
} Problem;

static inline double larger(double a, double b) { return a > b ? a : b; }

static double dot(const double *a, const double *b, long n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < n; j++) sum += a[j] * b[j];
    return sum;
}

static void all_margins(Problem *p)
{
    for (long i = 0; i < p->m; i++) {
        const float *row = p->rows + i * p->n;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long j = 0; j < p->n; j++) sum += row[j] * p->point[j];
        p->margins[i] = sum;
    }
}

/* The places of the `count` rows with the least margins, to the front of `order`. */
static void least_margins(Problem *p, long count)
{
    const double *key = p->margins;
    long *order = p->order, low = 0, high = p->m - 1;
    for (long i = 0; i < p->m; i++) order[i] = i;
    while (low < high) {
        double middle = key[order[(low + high) / 2]];
        long i = low, j = high;
        while (i <= j) {
            while (key[order[i]] < middle) i++;
            while (key[order[j]] > middle) j--;
            if (i <= j) {
                long swapped = order[i];
                order[i++] = order[j];
                order[j--] = swapped;
            }
        }
        if (count - 1 <= j) high = j;
        else if (count - 1 >= i) low = i;
        else break;
    }
}

static void take_rows(Problem *p, long count)
{
    p->count = count;
    for (long i = 0; i < count; i++) {
        const float *row = p->rows + p->order[i] * p->n;
        double *used = p->used + i * p->ld;
        p->places[i] = p->order[i];
        for (long j = 0; j < p->n; j++) used[j] = row[j];
        for (long j = p->n; j < p->ld; j++) used[j] = 0;
    }
}

/* What has products of `mean`, and a slack and surplus that fit the margin. */
static void centre(Around *at, long i, double margin, double mean, double C)
{
    double lean = C / (2 * mean) * (1 - margin), root = 1 + sqrt(lean * lean + 1);
    at->dual[i] = C / 2 * (root + lean) / root;
    at->room[i] = C / 2 * (root - lean) / root;
    at->slack[i] = mean / at->room[i];
    at->surplus[i] = mean / at->dual[i];
}

static void copy_one(Around *to, long i, const Around *from, long j)
{
    to->dual[i] = from->dual[j];
    to->room[i] = from->room[j];
    to->slack[i] = from->slack[j];
    to->surplus[i] = from->surplus[j];
}

static double mean_product(const Problem *p, double length, const Around *by)
{
    const Around *now = &p->now;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < p->count; i++)
        sum += (now->dual[i] + length * by->dual[i]) * (now->surplus[i] + length * by->surplus[i]) +
               (now->room[i] + length * by->room[i]) * (now->slack[i] + length * by->slack[i]);
    return sum / (2 * p->count);
}

static double longest(const Problem *p, const Around *by)
{
    const Around *now = &p->now;
    double steepest = 1;
#pragma omp simd reduction(max : steepest)
    for (long i = 0; i < p->count; i++) {
        double a = larger(-by->dual[i] / now->dual[i], -by->room[i] / now->room[i]);
        double b = larger(-by->slack[i] / now->slack[i], -by->surplus[i] / now->surplus[i]);
        steepest = larger(steepest, larger(a, b));
    }
    return 1 / steepest;
}

/* The rows with the least margins now; those that are new begin with products of `mean`. */
static void choose(Problem *p, long count, double mean)
{
    all_margins(p);
    for (long i = 0; i < p->m; i++) p->slots[i] = -1;
    for (long i = 0; i < p->count; i++) p->slots[p->places[i]] = i;
    least_margins(p, count);
    take_rows(p, count);
    for (long i = 0; i < count; i++) {
        long place = p->places[i];
        if (p->slots[place] >= 0) copy_one(&p->other, i, &p->now, p->slots[place]);
        else centre(&p->other, i, p->margins[place], mean, p->C);
    }
    Around swapped = p->now;
    p->now = p->other;
    p->other = swapped;
}

/* The sum of scale_i times row i, added to `sum`. */
static void add_rows(const Problem *p, const double *scale, double *sum)
{
    for (long i = 0; i < p->count; i++) {
        const double *row = p->used + i * p->ld, by = scale[i];
#pragma omp simd
        for (long j = 0; j < p->ld; j++) sum[j] += by * row[j];
    }
}

/* The upper triangle of penalty + rows' diag(weight) rows, eight rows and two columns at a time, and its Cholesky factor in place.
   What is left of the diagonal is nothing. */
static void factorise(Problem *p)
{
    const long n = p->n, ld = p->ld;
    double *M = p->matrix;
    memset(M, 0, (size_t)((n + 1) * ld) * sizeof(double));
    const long whole = (p->count + 7) / 8 * 8;
    for (long i = p->count; i < whole; i++) memset(p->used + i * ld, 0, (size_t)ld * sizeof(double)), p->weight[i] = 0;
    for (long i = 0; i < whole && !watch(p->meeting, n * ld); i += 8) {
        const double *r = p->used + i * ld, *w = p->weight + i;
        for (long a = 0; a < n; a += 2) { /* in pairs; a last one beside an empty column has a row to spare */
            double c[8], d[8];
            for (long k = 0; k < 8; k++) c[k] = w[k] * r[k * ld + a], d[k] = w[k] * r[k * ld + a + 1];
            double *to = M + a * ld, *next = to + ld;
#pragma omp simd
            for (long b = a / 8 * 8; b < ld; b++) {
                const double r0 = r[b], r1 = r[ld + b], r2 = r[2 * ld + b], r3 = r[3 * ld + b];
                const double r4 = r[4 * ld + b], r5 = r[5 * ld + b], r6 = r[6 * ld + b], r7 = r[7 * ld + b];
                to[b] += c[0] * r0 + c[1] * r1 + c[2] * r2 + c[3] * r3 + c[4] * r4 + c[5] * r5 + c[6] * r6 + c[7] * r7;
                next[b] += d[0] * r0 + d[1] * r1 + d[2] * r2 + d[3] * r3 + d[4] * r4 + d[5] * r5 + d[6] * r6 + d[7] * r7;
            }
        }
    }
    for (long a = 0; a < n - 1; a++) M[a * ld + a] += 1; /* the bias, which comes last, is not penalised */
    for (long k = 0; k < n && !watch(p->meeting, (n - k) * ld); k++) {
        double *row = M + k * ld;
        const double by = 1 / sqrt(row[k]);
        for (long b = k; b < ld; b++) row[b] *= by;
        for (long a = k + 1; a < n; a++) {
            double *to = M + a * ld;
            const double times = row[a];
#pragma omp simd
            for (long b = a / 8 * 8; b < ld; b++) to[b] -= times * row[b];
        }
    }
}

static void solve(const Problem *p, double *x)
{
    const long n = p->n, ld = p->ld;
    for (long k = 0; k < n; k++) {
        const double *row = p->matrix + k * ld, by = x[k] /= row[k];
#pragma omp simd
        for (long b = k + 1; b < n; b++) x[b] -= by * row[b];
    }
    for (long k = n - 1; k >= 0; k--) {
        const double *row = p->matrix + k * ld;
        x[k] = (x[k] - dot(row + k + 1, x + k + 1, n - k - 1)) / row[k];
    }
}

/* The direction that changes both products by the given, and the residuals to 0, to first order: into `to` and `move`.
   The given are aim - product - corrected times the product of the direction before. */
static void direction(Problem *p, double aim, double corrected, const Around *before, Around *to)
{
    const double *dual = p->now.dual, *room = p->now.room, *slack = p->now.slack, *surplus = p->now.surplus;
    const double *weight = p->weight, *missing = p->missing;
    double *shift = p->shift, *more = to->surplus, *most = to->slack, *change = to->dual, *less = to->room;
#pragma omp simd
    for (long i = 0; i < p->count; i++) {
        more[i] = aim - dual[i] * surplus[i] - corrected * before->dual[i] * before->surplus[i];
        most[i] = aim - room[i] * slack[i] - corrected * before->room[i] * before->slack[i];
        shift[i] = weight[i] * (missing[i] - most[i] / room[i] + more[i] / dual[i]);
    }
    memcpy(p->move, p->base, (size_t)p->ld * sizeof(double));
    add_rows(p, shift, p->move);
    solve(p, p->move);
    for (long i = 0; i < p->count; i++) change[i] = shift[i] - weight[i] * dot(p->used + i * p->ld, p->move, p->n);
#pragma omp simd
    for (long i = 0; i < p->count; i++) {
        less[i] = -change[i];
        most[i] = (most[i] + slack[i] * change[i]) / room[i];
        more[i] = (more[i] - surplus[i] * change[i]) / dual[i];
    }
}

static void iterate(Problem *p, double centring, double share)
{
    const double mean = mean_product(p, 0, &p->now), *used = p->used;
    double *dual = p->now.dual, *room = p->now.room, *slack = p->now.slack, *surplus = p->now.surplus;
    double *weight = p->weight, *missing = p->missing;
    for (long i = 0; i < p->count; i++) missing[i] = 1 - dot(used + i * p->ld, p->point, p->n);
#pragma omp simd
    for (long i = 0; i < p->count; i++) {
        weight[i] = dual[i] * room[i] / (slack[i] * dual[i] + surplus[i] * room[i]);
        missing[i] += surplus[i] - slack[i];
    }
    factorise(p);
    for (long j = 0; j < p->ld; j++) p->base[j] = j < p->n - 1 ? -p->point[j] : 0;
    add_rows(p, dual, p->base);
    direction(p, 0, 0, &p->now, &p->ahead);
    double ratio = mean_product(p, longest(p, &p->ahead), &p->ahead) / mean;
    double sigma = fmin(fmax(centring * ratio * ratio * ratio, LEAST_CENTRING), MOST_CENTRING);
    direction(p, sigma * mean, 1, &p->ahead, &p->by);
    const double far = share * longest(p, &p->by);
    for (long j = 0; j < p->n; j++) p->point[j] += far * p->move[j];
#pragma omp simd
    for (long i = 0; i < p->count; i++) {
        dual[i] += far * p->by.dual[i], room[i] += far * p->by.room[i];
        slack[i] += far * p->by.slack[i], surplus[i] += far * p->by.surplus[i];
    }
}

static double *around(Around *at, double *memory, long m)
{
    at->dual = memory, at->room = memory + m, at->slack = memory + 2 * m, at->surplus = memory + 3 * m;
    return memory + 4 * m;
}

/* From the start: points (S, n), then the places, dual numbers, rooms, slacks and surpluses of the rows in use
   (S, 5, k). numbers are mu_0, and for each iteration the multiple of sigma, the share of the way to the boundary, and
   how many rows to choose before it, or 0; `kept` is the last of these. */
int lmd_interior(const float *rows, const float *guess, const float *numbers, float C, long sets, long m, long n,
                 long kept, long iterations, int threads, double *points, double *found)
{
    const long ld = (n + 8) / 8 * 8, size = m + 8;
    const long doubles = size * (ld + 20) + ld * (n + 5), longs = 3 * m;
    double *memory = calloc((size_t)(threads * doubles), sizeof(double));
    long *whole = calloc((size_t)(threads * longs), sizeof(long));
    if (!memory || !whole) return free(memory), free(whole), NO_MEMORY;
    int arrived = 0;
    Meeting meeting = {0};
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic) nowait
        for (long s = 0; s < sets; s++) {
            Problem p = {.rows = rows + s * m * n, .C = C, .m = m, .n = n, .ld = ld, .meeting = &meeting};
            p.places = whole + omp_get_thread_num() * longs, p.order = p.places + m, p.slots = p.order + m;
            p.used = memory + omp_get_thread_num() * doubles, p.matrix = p.used + size * ld;
            p.point = p.matrix + (n + 1) * ld, p.base = p.point + ld, p.move = p.base + ld, p.margins = p.move + ld;
            p.weight = p.margins + size, p.shift = p.weight + size, p.missing = p.shift + size;
            around(&p.other, around(&p.by, around(&p.ahead, around(&p.now, p.missing + size, size), size), size), size);
            for (long j = 0; j < ld; j++) p.point[j] = j < n ? guess[j] : 0;
            for (long k = 0; k < iterations && !watch(&meeting, m * n); k++) {
                const float *own = numbers + 1 + 3 * k;
                if (own[2] > 0) choose(&p, (long)own[2], k ? mean_product(&p, 0, &p.now) : numbers[0]);
                iterate(&p, own[0], own[1]);
            }
            memcpy(points + s * n, p.point, (size_t)n * sizeof(double));
            double *out = found + s * 5 * kept;
            const double *parts[] = {p.now.dual, p.now.room, p.now.slack, p.now.surplus};
            for (long i = 0; i < kept; i++) out[i] = (double)p.places[i];
            for (long j = 0; j < 4; j++) memcpy(out + (j + 1) * kept, parts[j], (size_t)kept * sizeof(double));
        }
        watch_others(&meeting, &arrived);
    }
    free(memory);
    free(whole);
    return meeting.failed;
}
