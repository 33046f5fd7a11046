#!/bin/sh
# The C code under the address and undefined-behaviour sanitizers, for so many seconds: `make sanitize SECONDS=60`.
# The thread sanitizer is of no use here: it does not see the barriers of gcc's OpenMP, and reports what they order.
set -eu
cd "$(dirname "$0")/../.."
CC=${CC:-cc}
FLAGS="-O1 -g -fno-omit-frame-pointer -fno-math-errno -fno-trapping-math -fopenmp"
FLAGS="$FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all"
export OMP_WAIT_POLICY=passive # as there may be more threads than processors
SEED=${SEED:-$(date +%s)}
OUT=build/sanitize
mkdir -p $OUT

printf '#include <omp.h>\n#include <stdlib.h>\nint main(void) { free(malloc(omp_get_max_threads() > 0)); return 0; }\n' > $OUT/probe.c
if ! { $CC $FLAGS $OUT/probe.c -o $OUT/probe && $OUT/probe; } > $OUT/probe.log 2>&1; then
    echo "sanitize: skipped, as $CC cannot build or run sanitized code here (see $OUT/probe.log)"
    exit 0
fi

native=$($CC -march=native -dM -E -x c /dev/null 2> /dev/null || true)
has() { echo "$native" | grep -q "__$1__"; }
builds=plain
if has AVX2 && has FMA; then builds="$builds avx2"; fi
if has AVX512F && has AVX512VL && has AVX512BW && has AVX512DQ; then builds="$builds avx512"; fi

share=$(($1 / $(echo "$builds" | wc -w) / 7))
for build in $builds; do
    case $build in
    plain) options="" ;;
    avx2) options="-mavx2 -mfma" ;;
    avx512) options="-mavx512f -mavx512vl -mavx512bw -mavx512dq -mfma -mprefer-vector-width=512" ;;
    esac
    for driver in sanitize sanitize_loop sanitize_interior sanitize_saddle sanitize_volume sanitize_second sanitize_blur; do
        $CC $FLAGS $options -Wall -Wextra -Isrc/lmd/kernels tests/kernels/$driver.c -o "$OUT/$build" -lm
        echo "$driver: $build, seed $SEED"
        "$OUT/$build" "$share" "$SEED"
    done
done
