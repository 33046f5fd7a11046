/* What loop.c has for module.c. */

enum { REPORT = 6 }; /* numbers for each instance: m of FGP, the iterations, the status, F(x), its gap, its room */

typedef struct Schedules Schedules;

/* A batch of solves. Instances are shared between the threads, or, where there are few, the rows of each of them.
   Step-sizes and momenta of the first `learned` iterations are given for each instance, `numbers` (B, 2, learned), or
   chosen among `schedules` for solves to a tolerance: from nothing, or from p, where that is better, moved along with the
   picture that was `before` when it was what y is now. Where channels are `coupled`, lengths are taken over all of them, of which
   there are 2 to 8. report (B, REPORT) has m of FGP to begin with, and in
   the end m, the iterations, the status, F(x), its gap, and how far F(x) may be above what is told. */
int lmd_fgp(const void *y, const void *p, const void *q, const void *before, const double *bound, const double *numbers,
            const Schedules *schedules, double scale, double step, double tolerance, double norm, double roundings, long batch,
            long channels, long height, long width, long learned, long begin, long limit, long first_look, long isotropic,
            long coupled, long restart, long doubles, int threads, void *p_out, void *q_out, void *x_out, double *report);
