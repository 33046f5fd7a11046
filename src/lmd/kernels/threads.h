/* Functions that compiled solves share: threads wait for each other, and signals are handled during
 * a solve. */

#ifndef LMD_THREADS
#define LMD_THREADS

#include <omp.h>
#include <sched.h>
#include <time.h>

enum {
    NO_MEMORY = 1,      /* there is not enough memory */
    INTERRUPTED = 2,    /* a signal handler raised an exception */
    PATIENCE = 1000,    /* turns of a loop after which a waiting thread yields the processor */
    UNWATCHED = 1 << 22 /* pixels that a thread processes between two checks for signals */
};

/* Asks Python whether to stop; module.c sets it, and sanitizers run without. */
__attribute__((weak)) int (*lmd_interrupted)(void);

/* A barrier for the threads of a solve. Any thread can set `failed`; `stop` is the value of
   `failed` at the last meeting, so that all threads read the same until they meet again. */
typedef struct {
    int waiting, round, failed, stop;
    int *ended; /* why another solve of the same batch failed, or NULL */
} Meeting;

static inline void rest(long spins) {
    if (spins > PATIENCE) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Waits until all threads are here. This takes some microseconds, or longer if other programs keep
 * the processor. */
static inline void meet(Meeting *here, int threads) {
    int round = __atomic_load_n(&here->round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&here->waiting, 1, __ATOMIC_ACQ_REL) == threads) {
        here->stop = __atomic_load_n(&here->failed, __ATOMIC_ACQUIRE);
        __atomic_store_n(&here->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&here->round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (long spins = 0; __atomic_load_n(&here->round, __ATOMIC_ACQUIRE) == round; spins++)
        rest(spins);
}

static inline void fail_with(Meeting *here, int reason) {
    __atomic_fetch_or(&here->failed, reason, __ATOMIC_ACQ_REL);
}

static inline int has_failed(const Meeting *here) {
    return __atomic_load_n(&here->failed, __ATOMIC_RELAXED);
}

/* Whether this is the thread that called the solve, usually the main thread of Python. */
static inline int is_caller(void) {
    for (int level = omp_get_level(); level > 0; level--)
        if (omp_get_ancestor_thread_num(level)) return 0;
    return 1;
}

static inline void look_for_signals(Meeting *here) {
    if (lmd_interrupted && lmd_interrupted()) fail_with(here, INTERRUPTED);
}

/* Called before a thread processes `pixels` pixels. The caller of the solve checks for signals now
 * and then. Returns whether anything failed. */
static inline int watch(Meeting *here, long pixels) {
    static _Thread_local long gone; /* pixels since the last check */
    gone += pixels;
    if (gone > UNWATCHED && is_caller()) {
        gone = 0;
        look_for_signals(here);
    }
    const int reason = here->ended ? __atomic_load_n(here->ended, __ATOMIC_RELAXED) : 0;
    if (reason) fail_with(here, reason);
    return has_failed(here);
}

/* Replaces the barrier after a loop that threads share (`nowait`): when the caller has finished, it
   checks for signals until the other threads have finished. `arrived` counts the threads that
   have. */
static inline void watch_others(Meeting *here, int *arrived) {
    __atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL);
    if (omp_get_thread_num()) return;
    for (long spins = 0; __atomic_load_n(arrived, __ATOMIC_ACQUIRE) < omp_get_num_threads();
         spins++) {
        rest(0);
        if (spins < PATIENCE) continue;
        const long microseconds = spins < 2 * PATIENCE ? spins - PATIENCE + 1 : PATIENCE;
        nanosleep(&(struct timespec){0, 1000 * microseconds}, NULL); /* sched_yield may take long */
        if (is_caller()) look_for_signals(here);
    }
}

/* Calls `solve` for each instance of a batch; several threads share the instances. With one thread
 * this is not a parallel region, because regions inside of one start their threads each time. */
static inline void solve_each(
    Meeting *here, long count, int threads, void (*solve)(void *, long), void *batch) {
    int arrived = 0;
    if (threads <= 1)
        for (long n = 0; n < count && !has_failed(here); n++) solve(batch, n);
    else
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic) nowait
        for (long n = 0; n < count; n++)
            if (!has_failed(here)) solve(batch, n);
        watch_others(here, &arrived);
    }
}

#endif
