/* From dual points of a frame before: moved along with the picture, mended along its border, and gone on from where that is
   better than nothing. A part of loop.h, for the types that a solve begins in.

   Where a picture has moved by a few pixels, what is left to do is along its border: on one side pixels without dual points
   have moved in, on the other those that pulled at the outermost pixels have moved out. The learned iterations are made
   there first, on strips of some pixels along both sides, for a small part of what they cost on all pixels. A strip is an
   image of its own: what the rest pulls at its innermost pixels is taken off y. */

/* The middle of an image, its channels added up. */
static void NAME(middle)(const Job *job, const IO *image, long height, long width, float *out)
{
    const long top = (job->height - height) / 2, left = (job->width - width) / 2;
    memset(out, 0, (size_t)(height * width) * sizeof(float));
    for (long c = 0; c < job->channels; c++)
        for (long i = 0; i < height; i++) {
            const IO *restrict from = image + (c * job->height + top + i) * job->width + left;
            for (long j = 0; j < width; j++) out[i * width + j] += (float)from[j];
        }
}

/* How far the picture has moved since p was its own: 0 where that is not known. Returns whether the two are alike at all,
   judged by their middles. */
static int NAME(find_motion)(Job *job, Shared *shared)
{
    const long height = least(job->height, WINDOW), width = least(job->width, WINDOW), size = height * width;
    if (!job->before || least(height, width) < NARROW) return 1;
    float *room = malloc((size_t)(4 * size) * sizeof(float));
    if (!room) fail_with(&shared->meeting, NO_MEMORY);
    if (!room) return 0;
    Windows two = {room, room + size, height, width};
    Motion best[TRIED] = {{0, 0, 0}};
    NAME(middle)(job, job->y, height, width, room);
    NAME(middle)(job, job->before, height, width, room + size);
    if (apart_at(two, 0, 0) > 0) find_motions(two, room + 2 * size, best);
    job->lower = best->lower, job->further = best->further;
    const int found = best->apart < INFINITY && alike(two, *best);
    free(room);
    return found;
}

/* p within the bound, one pixel after the other. */
INLINE void NAME(clip)(const Job *job, REAL bound, REAL a, REAL b, IO *down, IO *across)
{
    if (job->isotropic) {
        const REAL square = a * a + b * b, factor = square > bound * bound ? bound / SQRT(square) : 1;
        *down = (IO)(a * factor), *across = (IO)(b * factor);
        return;
    }
    a = a > bound ? bound : a, b = b > bound ? bound : b;
    *down = (IO)(a < -bound ? -bound : a), *across = (IO)(b < -bound ? -bound : b);
}

/* p as it is where the picture has moved to since, within the bound, to where p is given out; 0 where nothing was. */
static void NAME(move)(const Job *job, int thread, int threads)
{
    const long height = job->height, width = job->width, rows = job->channels * height;
    const long left = most(job->further, 0), right = width + least(job->further, 0);
    const REAL bound = NAME(inside)(job);
    for (long n = rows * thread / threads; n < rows * (thread + 1) / threads; n++) {
        const long i = n % height, from = i - job->lower, plane = 2 * (n / height) * height * width;
        const int there = from >= 0 && from < height && right > left;
        const IO *restrict v = (const IO *)job->p + plane + from * width - job->further, *restrict w = v + height * width;
        IO *restrict down = (IO *)job->p_out + plane + i * width, *restrict across = down + height * width;
        memset(down, 0, (size_t)width * sizeof(IO));
        memset(across, 0, (size_t)width * sizeof(IO));
        for (long j = left; j < right && there && job->coupled; j++) down[j] = v[j], across[j] = w[j];
        for (long j = left; j < right && there && !job->coupled; j++) NAME(clip)(job, bound, (REAL)v[j], (REAL)w[j], down + j, across + j);
        across[width - 1] = 0; /* what lies across the border does not count */
        if (i + 1 == height) memset(down, 0, (size_t)width * sizeof(IO));
    }
}

/* p_out within the bound where channels are coupled. */
static void NAME(draw_in_all)(const Job *job, int thread, int threads)
{
    const long width = job->width, size = job->height * width;
    for (long i = job->height * thread / threads; i < job->height * (thread + 1) / threads; i++) {
        IO *down = (IO *)job->p_out + i * width;
        NAME(draw_in)(job, NAME(inside)(job), 2 * size, width, down, down + size);
    }
}

/* Where the pixels of plane n of two strips are, as counted from a plane's first: row by row of the strip, which is parallel
   to the border, and along it. */
typedef struct {
    long plane, first; /* of the picture; its first pixel in the strip */
    long on, along;    /* from one row of the strip, and from one pixel of it, to the next */
    int last;          /* whether the strip is at the end of the picture */
} NAME(Place);

static NAME(Place) NAME(place_of)(const Job *job, const Job *strip, long n, int across)
{
    const int last = n >= job->channels;
    const long on = across ? 1 : job->width, along = across ? job->width : 1, size = across ? job->width : job->height;
    return (NAME(Place)){n % job->channels, last ? (size - strip->height) * on : 0, on, along, last};
}

/* The strips of both ends, parts of p_out and y: `across` has the columns at the left and at the right, as rows. Or back. */
static void NAME(gather)(const Job *job, const Job *strip, int across, int thread, int threads)
{
    const long rows = strip->channels * strip->height, size = job->height * job->width, part = strip->height * strip->width;
    const IO inverse = (IO)job->inverse;
    for (long n = rows * thread / threads; n < rows * (thread + 1) / threads; n++) {
        const long plane = n / strip->height, i = n % strip->height;
        const NAME(Place) at = NAME(place_of)(job, strip, plane, across);
        const IO *y = (const IO *)job->y + at.plane * size + at.first + i * at.on, *p = (const IO *)job->p_out + 2 * at.plane * size;
        const IO *on = p + (across ? size : 0) + at.first + i * at.on, *beside = p + (across ? 0 : size) + at.first + i * at.on;
        IO *restrict into = (IO *)strip->y + plane * part + i * strip->width;
        IO *restrict down = (IO *)strip->p_out + 2 * plane * part + i * strip->width, *restrict right = down + part;
        const int inner = at.last ? i == 0 : i + 1 == strip->height, end = i + 1 == strip->height;
        for (long j = 0; j < strip->width; j++) {
            const long k = j * at.along;
            into[j] = inner ? y[k] + (at.last ? -inverse * on[k - at.on] : inverse * on[k]) : y[k];
            down[j] = end ? 0 : on[k];
            right[j] = beside[k];
        }
    }
}

static void NAME(scatter)(const Job *job, const Job *strip, int across, int thread, int threads)
{
    const long rows = strip->channels * strip->height, size = job->height * job->width, part = strip->height * strip->width;
    const REAL bound = NAME(inside)(job);
    for (long n = rows * thread / threads; n < rows * (thread + 1) / threads; n++) {
        const long plane = n / strip->height, i = n % strip->height;
        const NAME(Place) at = NAME(place_of)(job, strip, plane, across);
        IO *p = (IO *)job->p_out + 2 * at.plane * size;
        IO *on = p + (across ? size : 0) + at.first + i * at.on, *beside = p + (across ? 0 : size) + at.first + i * at.on;
        const IO *restrict down = (const IO *)strip->p_out + 2 * plane * part + i * strip->width, *restrict right = down + part;
        const int end = i + 1 == strip->height;
        for (long j = 0; j < strip->width; j++) {
            const long k = j * at.along;
            NAME(clip)(job, bound, (REAL)(end ? on[k] : down[j]), (REAL)right[j], on + k, beside + k);
        }
    }
}

/* A strip along both ends of the picture, of so many rows, and its iterations: what is not known yet are y and p. */
static Job NAME(strip_of)(const Job *job, long thickness, long length, long iterations)
{
    Job strip = *job;
    strip.q = strip.coarse = strip.before = NULL, strip.q_out = strip.x_out = NULL;
    strip.channels = 2 * job->channels, strip.height = thickness, strip.width = length;
    strip.depth = depth_for(thickness, length), strip.tolerance = -1;
    strip.learned = strip.limit = iterations;
    strip.frozen = job->isotropic ? job->channels : 0; /* lengths of the innermost row are also of what lies outside */
    strip.bound = (double)NAME(inside)(job);
    strip.pace = (Pace){.m = 1, .next_look = iterations, .mark = INFINITY};
    return strip;
}

/* Which strips are to be mended, and room for them: those of rows, those of columns. Returns their memory. */
static void *NAME(plan_strips)(Job *job, Shared *shared)
{
    const long height = job->height, width = job->width, tall = labs(job->lower), wide = labs(job->further);
    const long iterations = iterations_along(job, shared, tall, wide);
    const long reach = reach_along(iterations), pixels = job->channels * (tall ? 2 * (tall + reach) * width : 0);
    const long others = job->channels * (wide ? 2 * (wide + reach) * height : 0);
    if (!iterations || job->coupled) return NULL;
    IO *memory = malloc((size_t)(3 * (pixels + others)) * sizeof(IO));
    if (!memory) fail_with(&shared->meeting, NO_MEMORY);
    if (!memory) return NULL;
    Job *rows = shared->levels, *columns = rows + 1;
    *rows = NAME(strip_of)(job, tall + reach, width, iterations);
    *columns = NAME(strip_of)(job, wide + reach, height, iterations);
    rows->y = memory, rows->p = rows->p_out = memory + pixels;
    columns->y = memory + 3 * pixels, columns->p = columns->p_out = memory + 3 * pixels + others;
    return memory;
}

/* Iterations along the border, where the picture has moved. */
static void NAME(mend)(Job *job, Shared *shared, NAME(Team) *teams, int thread, int threads)
{
    void *memory = NULL;
    if (thread == 0) memory = NAME(plan_strips)(job, shared), shared->mended = memory != NULL;
    wait_for(shared, threads);
    for (int across = 0; across < 2 && shared->mended && !shared->meeting.stop; across++) {
        Job *strip = shared->levels + across;
        if (!(across ? job->further : job->lower)) continue;
        NAME(gather)(job, strip, across, thread, threads);
        wait_for(shared, threads);
        NAME(solve)(strip, shared, teams, thread, threads);
        NAME(scatter)(job, strip, across, thread, threads);
        wait_for(shared, threads);
    }
    wait_for(shared, threads);
    free(memory);
}

/* A look at p_out, and which schedule to go on with from there: none where its gap is small enough, or where there is
   nothing to go on from. */
static void NAME(weigh)(Job *job, Shared *shared, NAME(Team) *teams, int thread, int threads)
{
    NAME(Team) *team = teams + thread;
    Pace pace = job->pace;
    if (!NAME(lay_out)(job, thread, threads, team) || !NAME(sums)(job, team, EXACT, shared->sums)) fail_with(&shared->meeting, NO_MEMORY);
    wait_for(shared, threads);
    NAME(drop)(team);
    if (thread == 0) {
        const Schedules *all = job->schedules;
        certify(job, shared->sums, 0, &pace);
        if (pace.gap <= job->tolerance * (pace.value - pace.gap)) pace.status = REACHED;
        const long chosen = choose_from(all, job, shared, relative(&pace));
        if (chosen >= 0) interpolate(all, chosen, shared->rough, (double *)job->numbers), job->learned = all->horizons[chosen];
        if (shared->meeting.stop) pace.status = FINISHED;
        shared->cold = pace.status == GOING && chosen < 0;
        pace.next_look = job->learned, pace.ahead = shared->most;
        job->pace = pace;
    }
    wait_for(shared, threads);
}

/* Of all p. */
static size_t NAME(bytes_of)(const Job *job)
{
    return (size_t)(2 * job->channels * job->height * job->width) * sizeof(IO);
}

/* From p that is given, where it is better than nothing. Returns whether it was. */
static int NAME(follow)(Job *job, Shared *shared, const Schedules *schedules, NAME(Team) *teams, int thread, int threads)
{
    const Pace begun = job->pace;
    const double floor = least_in_float(job->isotropic || job->coupled);
    const double tolerance = job->tolerance, rough = NAME(roughness)(job, shared, thread, threads);
    if (thread == 0) {
        long longest = 0;
        for (long n = 0; n < schedules->count; n++) longest = most(longest, schedules->horizons[n]);
        shared->rough = rough;
        shared->most = cost_of(schedules, job, choose(schedules, job, rough, least(job->height, job->width) >= SMALLEST));
        shared->memory = malloc((size_t)(2 * longest) * sizeof(double));
        job->numbers = shared->memory, job->schedules = schedules;
        if (sizeof(REAL) == 4 && tolerance < floor) job->tolerance = floor;
        if (!shared->memory) fail_with(&shared->meeting, NO_MEMORY);
        shared->cold = !shared->memory || shared->most <= cost_to_follow(job) || !NAME(find_motion)(job, shared);
    }
    wait_for(shared, threads);
    if (!shared->cold) {
        NAME(move)(job, thread, threads);
        wait_for(shared, threads);
        if (job->coupled) NAME(draw_in_all)(job, thread, threads);
        wait_for(shared, threads);
        NAME(mend)(job, shared, teams, thread, threads);
        NAME(weigh)(job, shared, teams, thread, threads);
        const int going = job->pace.status == GOING;
        if (thread == 0) job->p = job->p_out, job->q = NULL;
        if (thread == 0 && !going && job->q_out) memcpy(job->q_out, job->p_out, NAME(bytes_of)(job));
        wait_for(shared, threads);
        if (!shared->cold && going) NAME(solve)(job, shared, teams, thread, threads);
    }
    wait_for(shared, threads);
    const int cold = shared->cold;
    wait_for(shared, threads);
    if (thread == 0) {
        shared->cold = 0;
        if (cold) {
            free(shared->memory);
            shared->memory = NULL, job->numbers = NULL, job->p = job->q = NULL, job->tolerance = tolerance;
            job->learned = 0, job->pace = begun;
        }
    }
    wait_for(shared, threads);
    return !cold;
}
