#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What must go on beside HOCCL, and beside what HOCCL must go on (test/gpu/coexist.c has the cases).
. "${top_srcdir:?}/test/multi/lib.sh"
coexist=$top_builddir/test/gpu/coexist

for connections in 1 2 8 32; do
    CUDA_DEVICE_MAX_CONNECTIONS=$connections pass 60 2 "$coexist" streams
    grep -q independent "$work/output" || complain "the application's kernel or copy was stopped"
done
pass 60 2 "$coexist" small
pass 60 2 "$coexist" order
pass 90 2 "$coexist" hold
grep -q 'every transfer ended while the kernel ran' "$work/output" || complain "a transfer needed an SM"
HOCCL_TIMEOUT=3 pass 60 2 "$coexist" free
grep -q 'rank 0: after .*cudaFree' "$work/output" || complain "the error does not name the cause"
grep -q 'rank 1: after .*rank 0 has failed' "$work/output" || complain "the peer was not told"
[ "$(grep -c 'abort took 0.*success' "$work/output")" = 2 ] || complain "an abort failed"
finish
