#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Third GPUs as a place between two others, memory that turns out not to open, and GPUs that do not reach one another whatever
# the driver says: every kind of memory, every byte right, and the log says which way it went.
. "${top_srcdir:?}/test/multi/lib.sh"
paths=$top_builddir/test/multi/paths
export HOCCL_DEVICE=emu

# Slots on a GPU that is neither end's, where there is one; whatever fails of it, at either end, host memory does it.
third="on a GPU that is neither end's"
HOCCL_EMU_DEVICES=3 HOCCL_DEBUG=info pass 120 2 "$paths" --sm
[ "$(grep -c "$third" "$work/output")" = 2 ] || complain "no staging on the third GPU"
HOCCL_EMU_DEVICES=2 HOCCL_DEBUG=info pass 120 2 "$paths" --sm
! grep "$third" "$work/output" || complain "two GPUs, and staging on a third"
HOCCL_EMU_DEVICES=2 HOCCL_DEBUG=info pass 120 4 "$paths" --sm
grep -q "$third" "$work/output" || complain "two ranks on a GPU do not use the other one"
HOCCL_EMU_DEVICES=2 pass 60 4 "$examples/alltoall_perf" -b 160000004 -e 160000004 -n 1 -w 1 -c 1 # chunks of several slots
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
# A trial that does not end in time is no verdict, and what it uses is not freed under it.
HOCCL_EMU_FAULT=push@0#1=late:7000000 HOCCL_DEBUG=info pass 120 2 "$paths" --sm
grep -q 'has not ended within 5 s' "$work/output" || complain "a late trial: no word of it"
! grep -q 'gets lost' "$work/output" || complain "a late trial counts as lost bytes"
HOCCL_EMU_FAULT=push@0#1=void HOCCL_DEBUG=info pass 120 1 "$paths" --sm
grep -q 'writes to GPU 1 does not come back' "$work/output" || complain "the other GPU was believed"
finish
