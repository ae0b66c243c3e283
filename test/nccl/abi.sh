#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Our description of NCCL's interface (src/nccl/nccl_abi.h) says what NCCL's own header says: test/nccl/abi.c is compiled
# with either, and all it holds are static assertions.
. "${top_srcdir:?}/test/multi/lib.sh"
compile() {
    $CC -std=gnu11 -Wall -Wextra -Werror -Wno-deprecated-declarations -fsyntax-only -I "$top_srcdir/src" "$@" "$top_srcdir/test/nccl/abi.c"
}

compile || complain "with ours"
$CC -std=gnu11 -fsyntax-only -I "$top_srcdir/src" -DTWIST "$top_srcdir/test/nccl/abi.c" 2>"$work/output" &&
    complain "an assertion that is false passes"
header=
for folder in ${NCCL_HOME:+"$NCCL_HOME/include"} /usr/include /usr/local/include /usr/local/cuda/include; do
    if [ -f "$folder/nccl.h" ] && grep -q 'define NCCL_MINOR 28$' "$folder/nccl.h"; then
        header=$folder
        break
    fi
done
if [ -z "$header" ] && [ $bad = 0 ]; then
    rm -rf "$work"
    echo "SKIP: no nccl.h of version 2.28 to compare with"
    exit 77
fi
if [ -n "$header" ]; then
    echo "with $header/nccl.h"
    compile -DNCCL_HEADER -I "$header" -I /usr/local/cuda/include || complain "with NCCL's header"
fi
finish
