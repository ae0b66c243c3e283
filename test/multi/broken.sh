#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests notice what they are there for: with each of the executor's faults switched on, they fail.
. "${top_srcdir:?}/test/multi/lib.sh"

# With a slow push engine what comes too early is surely seen.
export HOCCL_EMU_RATE=push=500 HOCCL_DEVICE=emu

HOCCL_TEST_BREAK=local-copy must_fail 'NOT ZERO' 60 2 "$examples/hello" --size 1M
echo "== copies that need an SM, while a kernel holds them all"
HOCCL_TEST_BREAK=local-copy job 60 2 "$top_builddir/test/gpu/coexist" hold 64K 1
sed 's/^/    /' "$work/output"
grep -q 'NOT EVERY TRANSFER' "$work/output" || complain "no word of transfers that have waited for the kernel"
HOCCL_TEST_BREAK=early-flag must_fail 'wrong' 60 2 "$examples/hello" --size 4M
HOCCL_TEST_BREAK=early-flag must_fail 'wrong' 60 2 "$examples/sendrecv_perf" -b 4M -e 4M -n 5 -c 5
HOCCL_TEST_BREAK=early-reuse must_fail 'wrong' 60 2 "$examples/sendrecv_perf" -b 4M -e 4M -n 5 -c 5
HOCCL_TEST_BREAK=nothing pass 60 2 "$examples/sendrecv_perf" -b 4M -e 4M -n 5 -c 5
HOCCL_TEST_BREAK=no-rotation must_fail 'does not begin with the rank behind it' 60 1 "$top_builddir/test/conform/rotation"
HOCCL_TEST_BREAK=no-rotation pass 60 4 "$examples/alltoall_perf" -b 1 -e 1M -f 37 -n 2 -c 2

# A GPU that looks at a stream's flag only when something else happens there: each release has to see to that.
HOCCL_EMU_LOOK_MS=1000000 HOCCL_TEST_BREAK=nothing pass 60 2 "$examples/sendrecv_perf" -b 1K -e 1K -n 100 -c 1
echo "== without a nudge, not to end"
HOCCL_EMU_LOOK_MS=1000000 HOCCL_TEST_BREAK=no-nudge job 5 2 "$examples/sendrecv_perf" -b 1K -e 1K -n 100 -c 1
[ $? = 124 ] || complain "it ended without anything that made the GPU look"
processes | while read -r pid _; do # mpirun, asked to end, may leave a rank that hangs
    kill -9 "$pid"
done
finish
