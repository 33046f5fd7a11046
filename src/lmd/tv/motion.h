/* How far a picture has moved: the inner half of a window of one frame is looked for in that of another, on smaller windows
   first. What loop.c includes; lmd.problems.motion has the same. */

/* Where a picture may have moved to, and how far it is then from what it was. */
typedef struct {
    long lower, further;
    double apart;
} Motion;

/* Two windows, of which the inner half of one is compared with as large a part of the other. */
typedef struct {
    const float *now, *before;
    long height, width;
} Windows;

static double apart_at(Windows two, long lower, long further)
{
    enum { LANES = 16 };
    const long left = two.width / 4, right = two.width - left, whole = left + (right - left) / LANES * LANES;
    float sums[LANES] = {0}, rest = 0;
    double sum = 0;
    for (long i = two.height / 4; i < two.height - two.height / 4; i++) {
        const float *restrict a = two.now + i * two.width, *restrict b = two.before + (i - lower) * two.width - further;
        for (long j = left; j < whole; j += LANES)
#pragma omp simd
            for (long l = 0; l < LANES; l++) sums[l] += fabsf(a[j + l] - b[j + l]);
        for (long j = whole; j < right; j++) rest += fabsf(a[j] - b[j]);
    }
    for (long l = 0; l < LANES; l++) sum += (double)sums[l];
    return sum + (double)rest;
}

/* Whether what is left between two windows, one of them moved, has few differences of neighbours. */
static int alike(Windows two, Motion by)
{
    const long left = two.width / 4, right = two.width - left, on = two.width;
    double own = 0, others = 0;
    for (long i = two.height / 4; i < two.height - two.height / 4; i++) {
        const float *restrict a = two.now + i * on, *restrict b = two.before + (i - by.lower) * on - by.further;
        float steps = 0, left_over = 0;
#pragma omp simd reduction(+ : steps, left_over)
        for (long j = left; j < right; j++) {
            const float down = a[j + on] - a[j], across = a[j + 1] - a[j];
            steps += fabsf(down) + fabsf(across);
            left_over += fabsf(down - (b[j + on] - b[j])) + fabsf(across - (b[j + 1] - b[j]));
        }
        own += (double)steps, others += (double)left_over;
    }
    return others <= ALIKE * own;
}

/* The motions within `reach` of one, among the nearest `TRIED` that are known. */
static void try_motions(Windows two, long lower, long further, long reach, Motion *best)
{
    for (long r = lower - reach; r <= lower + reach; r++)
        for (long c = further - reach; c <= further + reach; c++) {
            int known = 4 * labs(r) > two.height - 4 || 4 * labs(c) > two.width - 4;
            for (int n = 0; n < TRIED; n++) known |= best[n].lower == r && best[n].further == c;
            if (known) continue;
            Motion at = {r, c, apart_at(two, r, c)};
            for (int n = 0; n < TRIED; n++)
                if (at.apart < best[n].apart) {
                    Motion worse = best[n];
                    best[n] = at, at = worse;
                }
        }
}

/* Means over 2 x 2 pixels. */
static void halve(const float *restrict from, long height, long width, float *restrict to)
{
    for (long i = 0; i < height / 2; i++)
        for (long j = 0; j < width / 2; j++) {
            const float *at = from + 2 * i * width + 2 * j;
            to[i * (width / 2) + j] = 0.25f * ((at[0] + at[1]) + (at[width] + at[width + 1]));
        }
}

/* The motion between two windows: on those of half the size, which begin likewise, the nearest few are found, and tried on
   these. `room` is for the smaller windows. */
static void find_motions(Windows two, float *room, Motion *best)
{
    const long height = two.height / 2, width = two.width / 2, size = height * width;
    Motion found[TRIED];
    for (int n = 0; n < TRIED; n++) best[n] = (Motion){1 << 20, 0, INFINITY};
    try_motions(two, 0, 0, 0, best); /* of equals the first one stays, and that is none */
    if (least(height, width) < SMALLEST) {
        try_motions(two, 0, 0, most(two.height, two.width) / 4, best);
        return;
    }
    halve(two.now, two.height, two.width, room);
    halve(two.before, two.height, two.width, room + size);
    find_motions((Windows){room, room + size, height, width}, room + 2 * size, found);
    for (int n = 0; n < TRIED; n++)
        if (found[n].apart < INFINITY) try_motions(two, 2 * found[n].lower, 2 * found[n].further, 1, best);
}
