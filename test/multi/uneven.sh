#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Collectives of very unequal pieces, with ranks that have nothing to send or to receive, on 2 to 16 ranks on one to four
# nodes of other sizes; with LONG_TESTS everything that moves.c has, in all these places.
. "${top_srcdir:?}/test/multi/lib.sh"
moves=$top_builddir/test/multi/moves
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=16

# at NODES RANKS
at() {
    echo "-- nodes $1"
    if [ -n "${LONG_TESTS:-}" ]; then
        HOCCL_TEST_NODE=$1 pass 900 "$2" "$moves" 200
    else
        HOCCL_TEST_NODE=$1 pass 120 "$2" "$moves" skewed 100
    fi
}

at 1+1 2
at 3+1 4
at 1+4+2 7
at 1+5+4+6 16
if [ -n "${LONG_TESTS:-}" ]; then
    at 2+1 3
    at 2 5
    at 5+1 6
    at 3+3+3 9
    at 4+8 12
    at 4 16
    at 13+1+1+1 16
    HOCCL_CHUNK=64K HOCCL_EMU_DELAY_US=200 at 2+3+1 6
    HOCCL_EMU_DEVICES=2 at 2+3 5
fi
finish
