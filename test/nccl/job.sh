#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An application's program, one process a GPU and one process with several, linked with the library.
. "${top_srcdir:?}/test/multi/lib.sh"
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=8 HOCCL_DEBUG=info

for arguments in "1 8" "2 1" "4 1" "3 2"; do
    rm -f "$TMPDIR/id"
    # shellcheck disable=SC2086 # processes, threads of each
    set -- $arguments
    pass 120 "$1" "$top_builddir/test/nccl/job" "$2"
    lines=$(grep -c "NCCL operations done by HOCCL: $((9 * $2)), " "$work/output")
    [ "$lines" = "$1" ] || complain "$lines of $1 processes have counted $((9 * $2)) operations"
done
# Ranks on several nodes, found by one id.
rm -f "$TMPDIR/id"
HOCCL_TEST_NODE=2 pass 120 4 "$top_builddir/test/nccl/job" 1
grep -q 'is sent over the network' "$work/output" || complain "nothing went between the nodes"
finish
