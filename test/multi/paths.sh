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
HOCCL_EMU_DEVICES=1 HOCCL_DEVICE=emu CUDA_DEVICE_MAX_CONNECTIONS=8 pass 120 2 "$top_builddir/test/multi/random" 10 3
HOCCL_EMU_DEVICES=1 HOCCL_DEVICE=emu CUDA_DEVICE_MAX_CONNECTIONS=1 HOCCL_TIMEOUT=2 must_fail 'one byte.*MAX_CONNECTIONS=32' 60 2 "$paths"
HOCCL_EMU_DEVICES=2 HOCCL_DEVICE=emu pass 120 4 "$paths" --sm
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
