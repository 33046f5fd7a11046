/* Declarations that Python and several C files share. */

#ifndef LMD_SHARED
#define LMD_SHARED

#define INLINE static inline __attribute__((always_inline))

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most(long a, long b) { return a > b ? a : b; }

/* A function that Python calls. Returns 0, or the sum of the reasons NO_MEMORY and INTERRUPTED that
 * ended it (threads.h). */
typedef int Function(
    void *const *arrays, const double *reals, const long *sizes, int threads, double *report);

#define FUNCTIONS(each)                                                                            \
    each(blur) each(convolve) each(convolve_backward) each(fgp) each(interior) each(model)         \
        each(relaxed) each(saddle) each(second)

#define DECLARE(name) Function lmd_##name;
FUNCTIONS(DECLARE)

enum {
    REPORT = 4,      /* numbers reported for each instance: iterations, end, F(x), its gap */
    FORMS = 4,       /* forms of total variation: isotropic or not, coupled or not */
    MAX_COUPLED = 8, /* largest number of coupled channels */
    LARGEST = 9      /* side of the largest kernel of compiled convolutions */
};

/* How a solve ended; the last three have the numbers of lmd.tv.plans.End. */
enum { GOING, FINISHED, REACHED, STUCK };

enum {
    MISFIT_SQUARES,
    MISFIT_COUNTS,    /* with backgrounds */
    MISFIT_DISTANCES, /* absolute differences */
    MISFIT_LINEAR     /* <y, x>: a term behind another operator, linearised */
};

#endif
