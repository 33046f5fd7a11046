/* What the drivers share: choices, memory that runs out now and then, arrays of exactly the size
   they need, and `DRIVE`.

   A driver defines DRIVER, its name, before it includes this, and ends with DRIVE(check), where
   `check` makes one call with random arguments and fails if the answer is wrong. There are two ways
   to run it:

   - random calls for some seconds (sanitize.sh): `driver SECONDS SEED`;
   - libFuzzer (with -DFUZZER, see tests/fuzz/run.py): the choices are read from the fuzzer's bytes,
   so that coverage guides them. Numbers in arrays are random in both. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define UNUSED __attribute__((unused))

static uint64_t random_state;
static const uint8_t
    *choices; /* the bytes of the fuzzer that are left; NULL or at their end: random numbers */
static size_t choices_left;

static int random_number(void) /* from 0 to 2^31 - 1, by xorshift */
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7,
        random_state ^= random_state << 17;
    return (int)(random_state >> 33);
}

/* A choice from 0 to `count` - 1. */
static UNUSED long below(long count) {
    long drawn = random_number();
    if (choices_left >= 2) {
        drawn = choices[0] + 256L * choices[1];
        choices += 2, choices_left -= 2;
    }
    return drawn % count;
}

static int scarce; /* whether the code under test may find no memory */

/* A number for each allocation; threads allocate too, so that it has a state of its own. */
static UNUSED uint32_t allocation_number(void) {
    static _Atomic uint32_t allocations;
    return (++allocations * 2654435761u) >> 8;
}

/* Memory is filled with a new byte each time, so that reading it before it is written shows. */
static UNUSED void *scarce_malloc(size_t bytes) {
    void *found = scarce && allocation_number() % 3 == 0 ? NULL : malloc(bytes);
    return found ? memset(found, (int)(allocation_number() % 256), bytes) : NULL;
}
static UNUSED void *scarce_calloc(size_t n, size_t bytes) {
    return scarce && allocation_number() % 3 == 0 ? NULL : calloc(n, bytes);
}
static UNUSED void *scarce_aligned(size_t to, size_t bytes) {
    return scarce && allocation_number() % 3 == 0 ? NULL : aligned_alloc(to, bytes);
}

static UNUSED void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", DRIVER, what);
    abort();
}

/* Random numbers from `low` to `high`, double or float. */
static UNUSED void *random_between(long count, int doubles, double low, double high) {
    void *x = malloc((size_t)count * (doubles ? 8 : 4));
    if (!x) fail("no memory");
    for (long i = 0; i < count; i++) {
        double drawn = low + (high - low) * random_number() / 0x7fffffff;
        if (doubles) ((double *)x)[i] = drawn;
        else ((float *)x)[i] = (float)drawn;
    }
    return x;
}

static UNUSED void *random_array(long count, int doubles) {
    return random_between(count, doubles, 0, 1);
}

static void call_once(void (*check)(void)) {
    scarce = below(8) == 0;
    check();
    scarce = 0;
}

/* Calls `check` for as many seconds as the first word says, with the seed of the second. */
static UNUSED int random_calls(int count, char **words, void (*check)(void)) {
    double seconds = count > 1 ? atof(words[1]) : 10;
    random_state = 88172645463325252u + (count > 2 ? (uint64_t)atol(words[2]) : 1);
    time_t end = time(NULL) + (time_t)seconds;
    long calls = 0;
    for (; time(NULL) <= end; calls++) call_once(check);
    printf("%s: %ld calls\n", DRIVER, calls);
    return 0;
}

/* Calls `check` once, with the choices that the fuzzer's bytes say. */
static UNUSED int fuzzed_call(const uint8_t *bytes, size_t count, void (*check)(void)) {
    random_state = 88172645463325252u;
    choices = bytes, choices_left = count;
    call_once(check);
    return 0;
}

#ifdef FUZZER
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
#define DRIVE(check)                                                                               \
    int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {                               \
        return fuzzed_call(bytes, count, check);                                                   \
    }
#else
#define DRIVE(check)                                                                               \
    int main(int count, char **words) { return random_calls(count, words, check); }
#endif
