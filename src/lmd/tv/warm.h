/* From a dual point that is given: within the bound, evaluated once, and gone on from where that is better than nothing. A part
   of loop.h, for the types that a solve begins in. */

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

/* p within the bound, to where p is given out; what lies across the border does not count. */
static void NAME(take)(const Job *job, int thread, int threads)
{
    const long height = job->height, width = job->width, rows = job->channels * height;
    const REAL bound = NAME(inside)(job);
    for (long n = rows * thread / threads; n < rows * (thread + 1) / threads; n++) {
        const long i = n % height, at = 2 * (n / height) * height * width + i * width;
        const IO *restrict v = (const IO *)job->p + at, *restrict w = v + height * width;
        IO *restrict down = (IO *)job->p_out + at, *restrict across = down + height * width;
        for (long j = 0; j < width && job->coupled; j++) down[j] = v[j], across[j] = w[j];
        for (long j = 0; j < width && !job->coupled; j++)
            NAME(clip)(job, bound, (REAL)v[j], (REAL)w[j], down + j, across + j);
        across[width - 1] = 0;
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
        certify(job, shared->sums, &pace);
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
static int NAME(warm_start)(Job *job, Shared *shared, const Schedules *schedules, NAME(Team) *teams, int thread, int threads)
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
        shared->cold = !shared->memory || shared->most <= WARM_COST;
    }
    wait_for(shared, threads);
    if (!shared->cold) {
        NAME(take)(job, thread, threads);
        wait_for(shared, threads);
        if (job->coupled) NAME(draw_in_all)(job, thread, threads);
        wait_for(shared, threads);
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
