#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Alltoallvs that all ranks plan together (agree.c), on nodes of uneven size over TCP; and a rank that dies before it comes.
. "${top_srcdir:?}/test/multi/lib.sh"
agree=$top_builddir/test/multi/agree
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=16

# at NODES RANKS: the line at info says how it goes.
at() {
    echo "-- nodes $1"
    HOCCL_TEST_NODE=$1 HOCCL_DEBUG=info pass 100 "$2" "$agree" plan
    [ "$(grep -c 'an Alltoallv of .* ranks .*goes by' "$work/output")" = 1 ] || complain "not one line says how it goes"
}

at 2+1+3 6
at 1+5+4+6 16
HOCCL_CONNECT_MAX=1 at 1+4+2 7 # packets go by the tree

echo "-- one dies: all who are left hear of it"
for nodes in 1 1+3; do
    for who in 0 2; do
        HOCCL_TEST_NODE=$nodes HOCCL_TIMEOUT=5 job 60 4 --enable-recovery "$agree" die $who
        sed 's/^/    /' "$work/output"
        [ "$(grep -c 'has heard: HOCCL_Alltoallv_init' "$work/output")" = 3 ] || complain "not every rank has heard of the death of $who on nodes $nodes"
    done
done
finish
