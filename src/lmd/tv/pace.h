/* The progress of a compiled solve, and the decisions that all models share. */

#ifndef LMD_PACE
#define LMD_PACE

#include <math.h>

#include "shared.h"
#include "threads.h"

enum {
    PATIENT = 400, /* iterations after which a solve may count as stuck, */
    STALE = 4      /* if its gap has not fallen by a tenth since a quarter of them */
};

/* Every thread computes its own copy, with equal numbers. */
typedef struct {
    long iteration, blocks, mark_at, next_look;
    long begun, learned;      /* the iterations at which the learned numbers begin and end */
    const double *numbers;    /* step sizes and momenta (2, learned - begun) */
    double step, momentum, m; /* of the next iteration; m sets that of FGP */
    double value, gap, mark;  /* mark: the gap when it last fell by a tenth */
    double flatter; /* gap of the averaged x is about this times the power 3/2 of that of x */
    double entry;   /* gap at the last start of learned numbers; 0: no further start */
    int status;
} Pace;

/* Sets the step size and momentum of the next iteration: learned ones first, then those of FGP. The
 * last learned iteration has no momentum, because the next iteration starts at p. */
static inline void next_numbers(Pace *pace, double step) {
    const long k = pace->iteration++, count = pace->learned - pace->begun;
    if (k < pace->learned) {
        const double *own = pace->numbers + k - pace->begun;
        pace->step = step * own[0];
        pace->momentum = k + 1 < pace->learned ? own[count] : 0;
        return;
    }
    const double after = (1 + sqrt(1 + 4 * pace->m * pace->m)) / 2;
    pace->step = step;
    pace->momentum = (pace->m - 1) / after;
    pace->m = after;
}

/* Whether the momentum is checked now: after every `every` iterations since the learned ones. */
static inline int restarts(const Pace *pace, long every) {
    const long k = pace->iteration - pace->learned;
    return k > 0 && k % every == 0;
}

static inline int looks(const Pace *pace, double tolerance, long limit) {
    return tolerance >= 0 && (pace->iteration >= pace->next_look || pace->iteration >= limit);
}

/* Sets the status after a gap evaluation at iteration k, and schedules the next one at k + wait. */
static inline void judge(Pace *pace, long k, long wait, double tolerance) {
    if (pace->gap < 0.9 * pace->mark) pace->mark = pace->gap, pace->mark_at = k;
    pace->next_look = k + wait;
    if (pace->gap <= tolerance * (pace->value - pace->gap)) pace->status = REACHED;
    else if (k >= STALE * pace->mark_at && k >= PATIENT) pace->status = STUCK;
}

#endif
