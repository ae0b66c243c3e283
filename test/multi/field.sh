#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Cases that the field has met, between processes (test/multi/field.c; test/CASES.md is the table).
. "${top_srcdir:?}/test/multi/lib.sh"
field=$top_builddir/test/multi/field
comms=$top_builddir/test/multi/comms
limit=${LONG_TESTS:+290}
limit=${limit:-110}

pass "$limit" 2 "$field" b01
pass "$limit" 3 "$field" b02
pass "$limit" 4 "$field" b04
pass "$limit" 1 "$field" b05
pass "$limit" 3 "$field" b05
pass "$limit" 2 "$field" b19
pass "$limit" 2 "$field" b21
HOCCL_EMU_REUSE=1 pass "$limit" 2 "$field" b25
grep -qE 'b25: [1-9]' "$work/output" || complain "no address came again"
pass "$limit" 2 "$field" b26
pass "$limit" 2 "$field" b29
HOCCL_EMU_DELAY_US=5000 pass "$limit" 2 "$field" b31
# CUDA is in use before HOCCL_Init, which can no longer have it load all kernels at once: one rank says so, unless it was asked for.
HOCCL_DEVICE=emu HOCCL_EMU_LAZY=1 pass "$limit" 2 "$field" b29
[ "$(grep -c 'loads kernels at their first launch' "$work/output")" = 1 ] || complain "not one warning of kernels that are loaded lazily"
HOCCL_DEVICE=emu HOCCL_EMU_LAZY=1 CUDA_MODULE_LOADING=LAZY pass "$limit" 2 "$field" b29
! grep -q 'loads kernels' "$work/output" || complain "a warning of what was asked for"
pass "$limit" 2 "$field" b32
pass "$limit" 2 "$field" b34
pass "$limit" 2 "$comms" b39
pass "$limit" 2 "$comms" b43
pass "$limit" 2 "$comms" b45
if [ -n "${LONG_TESTS:-}" ]; then
    pass 290 2 "$field" b16
fi
finish
