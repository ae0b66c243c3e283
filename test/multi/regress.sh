#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Faults that were found and mended (test/multi/regress.c).
. "${top_srcdir:?}/test/multi/lib.sh"
regress=$top_builddir/test/multi/regress
export HOCCL_DEVICE=emu

pass 90 2 "$regress" stale
pass 90 4 "$regress" ring
HOCCL_WAIT_TIMEOUT=1 HOCCL_EMU_RATE=push=1 pass 90 2 "$regress" slow
pass 90 2 "$regress" child
pass 90 1 "$regress" busy
echo "== a rank dies and leaves a child"
job 90 2 --enable-recovery "$regress" orphan
grep -q 'orphan: right' "$work/output" || {
    sed 's/^/    /' "$work/output"
    complain "the death was not noticed"
}
finish
