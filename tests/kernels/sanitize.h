/* What the drivers for the sanitizers share: memory that runs out now and then, arrays of random numbers that are
   malloc'ed to their exact size, and the loop of random calls. A driver defines DRIVER, its name, before. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define UNUSED __attribute__((unused))

static int scarce; /* whether the code that is tried may find no memory */

/* What is in it is never the same, lest what is read before it is written goes unseen. */
static UNUSED void *scarce_malloc(size_t bytes)
{
    void *found = scarce && rand() % 3 == 0 ? NULL : malloc(bytes);
    return found ? memset(found, rand() % 256, bytes) : NULL;
}
static UNUSED void *scarce_calloc(size_t n, size_t bytes) { return scarce && rand() % 3 == 0 ? NULL : calloc(n, bytes); }
static UNUSED void *scarce_aligned(size_t to, size_t bytes)
{
    return scarce && rand() % 3 == 0 ? NULL : aligned_alloc(to, bytes);
}

static UNUSED void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", DRIVER, what);
    exit(1);
}

/* Numbers from `low` to `high`, double or float. */
static UNUSED void *random_between(long count, int doubles, double low, double high)
{
    void *x = malloc((size_t)count * (doubles ? 8 : 4));
    if (!x) fail("no memory");
    for (long i = 0; i < count; i++) {
        double drawn = low + (high - low) * rand() / RAND_MAX;
        if (doubles)
            ((double *)x)[i] = drawn;
        else
            ((float *)x)[i] = (float)drawn;
    }
    return x;
}

static UNUSED void *random_array(long count, int doubles) { return random_between(count, doubles, 0, 1); }

/* Calls `check` for as many seconds as the first word says, with the seed of the second; memory is scarce in some. */
static UNUSED int random_calls(int count, char **words, void (*check)(void))
{
    double seconds = count > 1 ? atof(words[1]) : 10;
    srand(count > 2 ? (unsigned)atol(words[2]) : 1);
    time_t end = time(NULL) + (time_t)seconds;
    long calls = 0;
    for (; time(NULL) <= end; calls++) {
        scarce = rand() % 8 == 0;
        check();
        scarce = 0;
    }
    printf("%s: %ld calls\n", DRIVER, calls);
    return 0;
}
