#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every kind of memory at both ends, to every peer and to the rank itself, on GPUs of one's own and on shared ones; none
# of it runs on an SM. With each of the executor's faults switched on, the same test must fail.
. "${top_srcdir:?}/test/multi/lib.sh"
paths=$top_builddir/test/multi/paths

for ranks in 1 2 3; do
    pass 120 $ranks "$paths" --sm
done
HOCCL_EMU_DEVICES=1 HOCCL_DEVICE=emu pass 120 3 "$paths" --sm
HOCCL_EMU_DEVICES=2 HOCCL_DEVICE=emu pass 120 4 "$paths" --sm
# Slots on a GPU that is neither end's, where there is one; whatever fails of it, at either end, host memory does it.
third="on a GPU that is neither end's"
export HOCCL_DEVICE=emu
HOCCL_EMU_DEVICES=3 HOCCL_DEBUG=info pass 120 2 "$paths" --sm
[ "$(grep -c "$third" "$work/output")" = 2 ] || complain "no staging on the third GPU"
HOCCL_EMU_DEVICES=2 HOCCL_DEBUG=info pass 120 2 "$paths" --sm
! grep "$third" "$work/output" || complain "two GPUs, and staging on a third"
HOCCL_EMU_DEVICES=2 HOCCL_DEBUG=info pass 120 4 "$paths" --sm
grep -q "$third" "$work/output" || complain "two ranks on a GPU do not use the other one"
# (The first descriptor of each is of the trial at start-up.)
for fault in cuMemImportFromShareableHandle#2 cuMemImportFromShareableHandle#1+ cuMemExportToShareableHandle#2 \
    cuMemExportToShareableHandle#1+; do
    HOCCL_EMU_FAULT=$fault=CUDA_ERROR_NOT_SUPPORTED HOCCL_DEBUG=info pass 120 2 "$paths" --sm
    grep -q 'third GPU.*host memory instead' "$work/output" || complain "$fault: no word of it"
done
HOCCL_EMU_FAULT=cuIpcOpenMemHandle#1+=CUDA_ERROR_NOT_SUPPORTED HOCCL_DEBUG=info pass 120 2 "$paths" --sm
grep -q 'the receiver could not open' "$work/output" || complain "no pull that failed"
# GPUs between which bytes get lost, whatever the driver says of them: seen before anything is moved that way.
for fault in push@0#1+=void push@1#1+=void,push@0#1+=void pull@1#1+=void; do
    HOCCL_EMU_FAULT=$fault HOCCL_DEBUG=info pass 120 2 "$paths" --sm
    grep -q 'exchange directly gets lost' "$work/output" || complain "$fault: no word of it"
    ! grep -qE 'is (pushed|pulled)' "$work/output" || complain "$fault: data is moved that way"
done
HOCCL_EMU_FAULT=push@0#1=void HOCCL_DEBUG=info pass 120 1 "$paths" --sm
grep -q 'writes to GPU 1 does not come back' "$work/output" || complain "the other GPU was believed"
unset HOCCL_DEVICE
# Sequence numbers that wrap: every counter begins near 2^31, then near 2^32 (B17).
HOCCL_TEST_SEQUENCE=2147483640 pass 120 2 "$paths"
HOCCL_TEST_SEQUENCE=4294967290 pass 120 2 "$paths"
HOCCL_GATE=h2d pass 120 2 "$paths" --no-staging
# Few channels, so every wait is gated: by H2D copies what needs no staging moves, by pushes everything does.
for connections in 1 2; do
    CUDA_DEVICE_MAX_CONNECTIONS=$connections pass 120 2 "$paths" --no-staging
done
CUDA_DEVICE_MAX_CONNECTIONS=8 pass 120 2 "$paths" --sm
CUDA_DEVICE_MAX_CONNECTIONS=1 HOCCL_GATE=push pass 120 2 "$paths" --sm
CUDA_DEVICE_MAX_CONNECTIONS=1 HOCCL_TIMEOUT=2 must_fail 'HOCCL_GATE=push' 60 2 "$paths"
HOCCL_GATE=push pass 120 3 "$paths" --sm

HOCCL_TEST_BREAK=local-copy HOCCL_DEVICE=emu must_fail 'put on SMs' 120 2 "$paths" --sm
HOCCL_TEST_BREAK=early-flag HOCCL_DEVICE=emu HOCCL_EMU_RATE=d2h=500 must_fail ' not 0x' 120 2 "$paths"
HOCCL_TEST_BREAK=early-reuse HOCCL_DEVICE=emu HOCCL_EMU_RATE=h2d=500 must_fail ' not 0x' 120 2 "$paths"
finish
