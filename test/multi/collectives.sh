#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The collectives that only move data, every byte against a model: odd counts, guard bytes, in place, empty rows.
. "${top_srcdir:?}/test/multi/lib.sh"

for ranks in 1 2 3 4; do
    pass 120 $ranks "$top_builddir/test/multi/moves" 50
done
pass 250 8 "$top_builddir/test/multi/moves" 1000
HOCCL_TEST_SEQUENCE=4294967290 pass 120 3 "$top_builddir/test/multi/moves" 100
# One hardware channel, and the program's copies to host memory are queued behind each operation.
HOCCL_DEVICE=emu CUDA_DEVICE_MAX_CONNECTIONS=1 HOCCL_TIMEOUT=2 pass 120 2 "$top_builddir/test/multi/moves" 20
HOCCL_EMU_DELAY_US=200 pass 120 4 "$top_builddir/test/multi/moves" 20
finish
