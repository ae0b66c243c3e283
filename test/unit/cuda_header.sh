#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Holds src/cuda/cuda.h against the toolkit's own header: every constant, every structure's size and offsets, every
# prototype. Constants and prototypes are pasted behind the toolkit's header as assertions and redeclarations, so
# that the compiler does the comparing; layouts are printed by one program built twice. Skipped without a toolkit.
set -eu
src=${srcdir:-$(dirname "$0")/../..}
cc=${CC:-cc}
toolkit=
for d in "${CUDA_HOME:-/nowhere}/include" /usr/local/cuda/include /usr/include; do
    if [ -f "$d/cuda.h" ] && ! grep -q 'HOCCL' "$d/cuda.h"; then
        toolkit=$d
        break
    fi
done
if [ -z "$toolkit" ]; then
    echo "no toolkit's cuda.h to compare with"
    exit 77
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM

version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$toolkit/cuda.h")
ours=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$src/src/cuda/cuda_abi.h")
if [ "$version" != "$ours" ]; then
    echo "the toolkit's header is of CUDA $version, ours of $ours"
    exit 77
fi

constants()
{
    grep -o '\<CU[A-Z0-9_]* = [0-9a-fx-]*' "$src/src/cuda/cuda_abi.h" | sed 's/\(.*\) = \(.*\)/_Static_assert(\1 == \2, "\1");/'
    sed -n 's/^#define \(CU_[A-Z_]*\) \(0x[0-9]*\|[0-9]*\)$/_Static_assert(\1 == \2, "\1");/p' "$src/src/cuda/cuda_abi.h"
}

prototypes()
{
    awk '/^CUresult CUDAAPI/ { on = 1 } on { print } /;/ { on = 0 }' "$src/src/cuda/cuda.h"
}

{
    echo '#include <cuda.h>'
    constants
    prototypes
} >"$tmp/same.c"
"$cc" -std=gnu11 -Werror -Wno-deprecated-declarations -I"$toolkit" -c "$tmp/same.c" -o "$tmp/same.o"
"$cc" -std=gnu11 -Werror -Wno-deprecated-declarations -DCUDA_API_PER_THREAD_DEFAULT_STREAM -I"$toolkit" \
    -c "$tmp/same.c" -o "$tmp/same.o"

# The exported names: what the macros of either header make of each function.
for stream in LEGACY CUDA_API_PER_THREAD_DEFAULT_STREAM; do
    for which in "$toolkit" "$src/src/cuda"; do
        {
            echo '#include <cuda.h>'
            sed -n 's/^CUresult CUDAAPI \([A-Za-z0-9_]*\)(.*/EXPORT \1/p' "$src/src/cuda/cuda.h"
        } | "$cc" -D$stream -I"$which" -E -P - | grep '^EXPORT'
    done | sort | uniq -c | awk '$1 != 2 { print; bad = 1 } END { exit bad }'
done

"$cc" -I"$src/src/cuda" "$src/test/unit/cuda_layout.c" -o "$tmp/ours"
"$cc" -I"$toolkit" "$src/test/unit/cuda_layout.c" -o "$tmp/theirs"
"$tmp/ours" >"$tmp/ours.txt"
"$tmp/theirs" >"$tmp/theirs.txt"
diff "$tmp/ours.txt" "$tmp/theirs.txt"
echo "$(constants | wc -l) constants, $(wc -l <"$tmp/ours.txt") layouts and $(prototypes | grep -c CUDAAPI) prototypes agree with $toolkit/cuda.h"
