#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# README's first program builds against the installed library and runs, as README says.
. "${top_srcdir:?}/test/multi/lib.sh"

unset MAKEFLAGS MFLAGS MAKELEVEL
make -s -C "$top_builddir" install DESTDIR="$work/root" >"$work/output" 2>&1 </dev/null || {
    cat "$work/output"
    complain "make install"
    finish
}
for page in man3/HOCCL_Send.3 man7/hoccl.7; do
    find "$work/root" -path "*/$page" | grep -q . || complain "$page is not installed"
done
# The two names of NCCL's stand-in find libhoccl beside them, wherever they have been moved to.
for name in libhoccl_nccl.so hoccl/nccl/libnccl.so.2; do
    file=$(find "$work/root" -path "*/lib*/$name")
    [ -n "$file" ] || complain "$name is not installed"
    ldd "$file" >"$work/output" 2>&1 || complain "$name does not load"
    grep -q 'libhoccl.so.0 => ' "$work/output" || complain "$name does not ask for libhoccl"
    grep -q 'libhoccl.so.0 => not found' "$work/output" && complain "$name does not find libhoccl"
done
pc=$(find "$work/root" -name hoccl.pc)
export PKG_CONFIG_PATH=${pc%/*}
LD_LIBRARY_PATH=$(pkg-config --define-prefix --variable=libdir hoccl)
export LD_LIBRARY_PATH

awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$top_srcdir/README.md" >"$work/first.c"
# Beside the installed library, so that the emulated driver is found there and not where it was configured to be.
first=$LD_LIBRARY_PATH/../bin/first
mkdir -p "${first%/*}"
cd "$work" || exit 1
# shellcheck disable=SC2046 # a list of words
cc -Wall -Wextra -Werror first.c -o "$first" $(pkg-config --define-prefix --cflags --libs hoccl) ||
    complain "the first program does not build"
pass 60 2 "$first"
grep -q 'rank 0 received 1048576' output || complain "rank 0 received something else"
# shellcheck disable=SC2046
c++ -Wall -Wextra -Werror -x c++ - -fsyntax-only $(pkg-config --define-prefix --cflags hoccl) <<<'#include <hoccl.h>' ||
    complain "hoccl.h does not compile as C++"
finish
