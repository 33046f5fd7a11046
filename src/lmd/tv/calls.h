/* What loop.c has for module.c. */

enum { REPORT = 4 }; /* numbers for each instance: iterations, status, F(x), its gap */

typedef struct Schedules Schedules;

/* A batch of solves to a tolerance. Instances are shared between the threads, or, where there are few, the rows of each of
   them. Step sizes and momenta of the first iterations are chosen among `schedules`; p is where to start, where that is better
   than nothing, or NULL. Where channels are `coupled`, lengths are taken over all of them, 2 to 8. report (B, REPORT) has the
   iterations, the status (1: ran all of them, 2: within the tolerance, 3: the gap falls no further), F(x) and its gap. */
int lmd_fgp(const void *y, const void *p, const double *bound, const Schedules *schedules, double scale, double step,
            double tolerance, double norm, double roundings, long batch, long channels, long height, long width, long limit,
            long isotropic, long coupled, long doubles, int threads, void *p_out, void *q_out, void *x_out, double *report);
