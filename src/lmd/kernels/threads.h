/* What compiled solves share: threads that wait for each other, and signals that are answered on the way. */

#ifndef LMD_THREADS
#define LMD_THREADS

#include <omp.h>
#include <sched.h>
#include <time.h>

enum {
    NO_MEMORY = 1,   /* what solves return, added up; */
    INTERRUPTED = 2, /* a signal came, and Python has something to raise */
    PATIENCE = 1000, /* turns of a loop before a waiting thread lets others have the processor, */
    UNWATCHED = 1 << 22 /* pixels that an iteration goes through, between two looks for signals */
};

/* Asks Python whether to stop; module.c sets it, and sanitizers run without. */
__attribute__((weak)) int (*lmd_interrupted)(void);

/* Where the threads of a solve meet. `failed` is set by any of them; `stop` is the same as it was when they met last, and
   alike for all of them until they meet again. */
typedef struct {
    int waiting, round, failed, stop;
    int *ended; /* what ended another solve of the same batch, if not NULL */
} Meeting;

static inline void rest(long spins)
{
    if (spins > PATIENCE) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Waits until all threads are here: some microseconds on their way, or for as long as others keep the processor. */
static inline void meet(Meeting *here, int threads)
{
    int round = __atomic_load_n(&here->round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&here->waiting, 1, __ATOMIC_ACQ_REL) == threads) {
        here->stop = __atomic_load_n(&here->failed, __ATOMIC_ACQUIRE);
        __atomic_store_n(&here->waiting, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&here->round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (long spins = 0; __atomic_load_n(&here->round, __ATOMIC_ACQUIRE) == round; spins++) rest(spins);
}

static inline void fail_with(Meeting *here, int reason) { __atomic_fetch_or(&here->failed, reason, __ATOMIC_ACQ_REL); }

/* Whether this is the thread that called the solve, in nested parallel regions too: Python's main thread, as a rule. */
static inline int is_caller(void) { return omp_get_ancestor_thread_num(1) <= 0; }

static inline void look_for_signals(Meeting *here)
{
    if (lmd_interrupted && lmd_interrupted()) fail_with(here, INTERRUPTED);
}

/* Before a thread goes through so many pixels: the caller looks for signals now and then. Returns whether anything failed. */
static inline int watch(Meeting *here, long pixels)
{
    static _Thread_local long gone; /* since the last look */
    gone += pixels;
    if (gone > UNWATCHED && is_caller()) {
        gone = 0;
        look_for_signals(here);
    }
    if (here->ended && __atomic_load_n(here->ended, __ATOMIC_RELAXED)) fail_with(here, INTERRUPTED);
    return __atomic_load_n(&here->failed, __ATOMIC_RELAXED);
}

/* In place of the barrier after a loop whose iterations threads share (`nowait`): a caller that has run out of them looks for
   signals until the others have. `arrived` counts the threads that are here. */
static inline void watch_others(Meeting *here, int *arrived)
{
    __atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL);
    if (omp_get_thread_num()) return;
    for (long spins = 0; __atomic_load_n(arrived, __ATOMIC_ACQUIRE) < omp_get_num_threads(); spins++) {
        rest(0);
        if (spins < PATIENCE) continue;
        const long microseconds = spins < 2 * PATIENCE ? spins - PATIENCE + 1 : PATIENCE;
        nanosleep(&(struct timespec){0, 1000 * microseconds}, NULL); /* not sched_yield, which may take long */
        if (is_caller()) look_for_signals(here);
    }
}

#endif
