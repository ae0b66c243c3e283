#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Messages to oneself that another rank pushes back (test/multi/mirror.c): counts, and everything that can happen to that rank on
# the way. With the executor's fault switched on that believes chunks to have landed too early, the test fails.
. "${top_srcdir:?}/test/multi/lib.sh"
mirror=$top_builddir/test/multi/mirror
export HOCCL_DEVICE=emu HOCCL_TEST_MIRROR=wait

pass 100 2 "$mirror" idle
pass 100 2 "$mirror" alltoall
HOCCL_EMU_DEVICES=3 pass 100 3 "$mirror" alltoall
pass 100 1 -x CUDA_VISIBLE_DEVICES=0 "$mirror" idle : -np 1 -x CUDA_VISIBLE_DEVICES=1 "$mirror" idle
HOCCL_TEST_MIRROR=auto pass 100 2 "$mirror" small
HOCCL_TEST_MIRROR=auto pass 100 2 "$mirror" freeing
slow=push=40,pull=2000
HOCCL_EMU_RATE=$slow pass 100 2 "$mirror" leave
HOCCL_EMU_RATE=$slow pass 100 2 "$mirror" abort
HOCCL_EMU_RATE=$slow pass 100 2 "$mirror" abandon
HOCCL_EMU_RATE=$slow HOCCL_TEST_MIRROR=auto pass 100 2 "$mirror" stopped
echo "== 2 ranks: killed"
HOCCL_EMU_RATE=$slow job 100 2 --enable-recovery "$mirror" killed
grep -q 'killed: right' "$work/output" || complain "the message of a rank whose mirror was killed did not arrive"
HOCCL_TEST_BREAK=early-reuse HOCCL_EMU_RATE=push=200 must_fail 'wrong' 100 2 "$mirror" idle
finish
