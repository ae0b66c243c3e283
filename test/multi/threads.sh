#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The collectives with ranks as threads of one process, so that the thread sanitizer sees both ends.
. "${top_srcdir:?}/test/multi/lib.sh"
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=8

for ranks in 1 2 3 8; do
    echo "== $ranks threads"
    timeout -k 10 120 "$top_builddir/test/multi/moves" 20 $ranks || complain "status $?"
done
timeout -k 10 60 "$examples/alltoallv_perf" -g 4 -b 1 -e 64K -f 37 -n 5 || complain "status $?"
finish
