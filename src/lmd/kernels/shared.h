/* What several files of C share, and what Python asks for: module.c. */

#ifndef LMD_SHARED
#define LMD_SHARED

enum { GOING, FINISHED, REACHED, STUCK }; /* where a solve stands; the last three as in lmd.tv.solved.End */

enum {
    REPORT = 4,      /* numbers for each instance: iterations, status, F(x), its gap */
    FORMS = 4,       /* forms of total variation that reaches of schedules are known for */
    MAX_COUPLED = 8, /* channels that are coupled, at most, and planes that lie abreast */
    LARGEST = 9      /* the widest kernel that is compiled for */
};

enum {
    MISFIT_SQUARES,
    MISFIT_COUNTS,    /* with backgrounds */
    MISFIT_DISTANCES, /* absolute */
    MISFIT_LINEAR     /* <y, x>: terms behind other operators, at what they are linear in */
};

typedef struct Schedules Schedules;

/* A batch of solves to a tolerance. Instances are shared between the threads, or, where there are few, the rows of each of
   them. Step sizes and momenta of the first iterations are chosen among `schedules`; p is where to start, where that is better
   than nothing, or NULL, and `gaps` the relative gaps that it proves. Where channels are `coupled`, lengths are taken over all
   of them, 2 to 8. report (B, REPORT) has the iterations, the status, F(x) and its gap. */
int lmd_fgp(const void *y, const void *p, const double *gaps, const double *bound, const Schedules *schedules, double scale,
            double step, double tolerance, double norm, double roundings, long batch, long channels, long height, long width,
            long limit, long isotropic, long coupled, long doubles, int threads, void *p_out, void *x_out, double *report);

#endif
