#!/bin/sh
# The C code under sanitizers, for so many seconds: `make sanitize SECONDS=60`. Addresses and undefined behaviour are checked
# in every build that this processor runs; threads in one, with clang and the OpenMP runtime that tells the thread sanitizer
# about its barriers (libarcher): gcc's does not, and every barrier would be reported as a race.
set -eu
cd "$(dirname "$0")/../.."
CC=${CC:-cc}
COMMON="-O1 -g -fno-omit-frame-pointer -fno-math-errno -fno-trapping-math -fopenmp -Wall -Wextra -Wno-unused-parameter -Isrc/lmd/kernels -Isrc/lmd/tv"
ADDRESSES="-fsanitize=address,undefined -fno-sanitize-recover=all"
export OMP_WAIT_POLICY=passive # as there may be more threads than processors
SEED=${SEED:-$(date +%s)}
OUT=build/sanitize
DRIVERS="sanitize sanitize_loop sanitize_interior sanitize_saddle sanitize_volume sanitize_second sanitize_blur"
mkdir -p $OUT

printf '#include <omp.h>\n#include <stdlib.h>\nint main(void) { free(malloc(omp_get_max_threads() > 0)); return 0; }\n' > $OUT/probe.c
if ! { $CC $COMMON $ADDRESSES $OUT/probe.c -o $OUT/probe && $OUT/probe; } > $OUT/probe.log 2>&1; then
    echo "sanitize: skipped, as $CC cannot build or run sanitized code here (see $OUT/probe.log)"
    exit 0
fi

native=$($CC -march=native -dM -E -x c /dev/null 2> /dev/null || true)
has() { echo "$native" | grep -q "__$1__"; }
builds=plain
if has AVX2 && has FMA; then builds="$builds avx2"; fi
if has AVX512F && has AVX512VL && has AVX512BW && has AVX512DQ; then builds="$builds avx512"; fi
archer=$(find /usr/lib -name libarcher.so 2> /dev/null | head -n 1)
if [ -n "$archer" ] && clang $COMMON -fsanitize=thread $OUT/probe.c -o $OUT/probe > $OUT/thread.log 2>&1; then
    builds="$builds thread"
else
    echo "sanitize: no thread sanitizer, which needs clang, its runtime and libomp (Debian: clang libclang-rt-14-dev libomp-dev)"
fi

share=$(($1 / $(echo "$builds" | wc -w) / 7))
for build in $builds; do
    compiler=$CC
    case $build in
    plain) options="$ADDRESSES" ;;
    avx2) options="$ADDRESSES -mavx2 -mfma" ;;
    avx512) options="$ADDRESSES -mavx512f -mavx512vl -mavx512bw -mavx512dq -mfma -mprefer-vector-width=512" ;;
    thread)
        compiler=clang
        options="-fsanitize=thread -Wno-pass-failed"
        export OMP_TOOL_LIBRARIES="$archer" TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1"
        ;;
    esac
    for driver in $DRIVERS; do
        $compiler $COMMON $options tests/kernels/$driver.c -o "$OUT/$build" -lm
        echo "$driver: $build, seed $SEED"
        "$OUT/$build" "$share" "$SEED"
    done
done
