#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# libhoccl_nccl.so exports what libnccl 2.28 exports, all of it and nothing else, without versions, under its SONAME: a
# program that misses a symbol would not load. test/nccl/symbols.txt is the list; where NCCL 2.28 is installed, it is
# compared with that, too.
set -u
library=${top_builddir:?}/.libs/libhoccl_nccl.so
list=${top_srcdir:?}/test/nccl/symbols.txt
bad=0

complain() {
    echo "FAIL: $*"
    bad=1
}

exported() {
    nm -D --defined-only "$1" | awk '{ print $NF }' | sort
}

difference=$(diff <(sort "$list") <(exported "$library"))
[ -z "$difference" ] || complain "the symbols of the list (<) and of $library (>) differ:
$difference"
[ "$(wc -l <"$list")" = 105 ] || complain "the list has $(wc -l <"$list") names, NCCL 2.28 has 105"
exported "$library" | grep '@' && complain "symbols have versions"
readelf -d "$library" | grep -q 'SONAME.*\[libnccl\.so\.2\]' || complain "its SONAME is not libnccl.so.2"
readelf -d "$library" | grep 'NEEDED' | grep -E 'libcuda|libnccl' && complain "it links the driver or NCCL"
# The table of doc/nccl.md has every function.
while read -r name; do
    grep -q "\`$name\`" "$top_srcdir/doc/nccl.md" || complain "doc/nccl.md does not say what $name does"
done < <(grep -v '^p' "$list")

for real in ${NCCL_LIB:+"$NCCL_LIB/libnccl.so.2"} /usr/lib/x86_64-linux-gnu/libnccl.so.2 /usr/local/cuda/lib64/libnccl.so.2 \
    /usr/local/cuda/lib/libnccl.so.2; do
    if [ ! -e "$real" ] || ! grep -aq 'NCCL version 2\.28\.' "$real"; then
        continue
    fi
    difference=$(diff <(sort "$list") <(exported "$real"))
    [ -z "$difference" ] || complain "the symbols of the list (<) and of $real (>) differ:
$difference"
    echo "compared with $real"
    break
done
[ $bad = 0 ] && echo "105 symbols"
exit $bad
