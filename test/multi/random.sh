#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Random groups between processes; with copies that start late, with small chunks, with every wait gated, with GPUs that are
# shared and with addresses that are used again.
. "${top_srcdir:?}/test/multi/lib.sh"
random=$top_builddir/test/multi/random

pass 250 2 "$random" 150 11
HOCCL_EMU_DELAY_US=2000 pass 250 3 "$random" 60 12
HOCCL_CHUNK=64K HOCCL_EMU_REUSE=1 pass 250 4 "$random" 60 13
HOCCL_GATE=h2d pass 250 3 "$random" 60 14
HOCCL_EMU_DEVICES=1 HOCCL_DEVICE=emu pass 250 2 "$random" 60 15
CUDA_DEVICE_MAX_CONNECTIONS=32 HOCCL_EMU_DEVICES=2 HOCCL_DEVICE=emu pass 250 4 "$random" 60 16
# Counters that wrap in mid-run (B17), and GPUs that are hidden or in another order (B50).
HOCCL_TEST_SEQUENCE=2147483600 pass 250 2 "$random" 40 17
HOCCL_TEST_SEQUENCE=4294967250 pass 250 2 "$random" 40 18
HOCCL_DEVICE=emu pass 250 1 env CUDA_VISIBLE_DEVICES=0 "$random" 40 19 : -np 1 env CUDA_VISIBLE_DEVICES=1 "$random" 40 19
HOCCL_DEVICE=emu pass 250 1 env CUDA_VISIBLE_DEVICES=1,0 "$random" 40 20 : -np 1 env CUDA_VISIBLE_DEVICES=0,1 "$random" 40 20 \
    : -np 1 env CUDA_VISIBLE_DEVICES=2 "$random" 40 20
finish
