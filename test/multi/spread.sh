#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Broadcast along trees (spread.c), on one node and on several of uneven size.
. "${top_srcdir:?}/test/multi/lib.sh"
spread=$top_builddir/test/multi/spread
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=16
limit=100
[ -z "${LONG_TESTS:-}" ] || limit=1500

# on NODES COMMAND…
on() {
    echo "-- nodes $1"
    if [ "$1" = 1 ]; then "${@:2}"; else HOCCL_TEST_NODE=$1 "${@:2}"; fi
}

echo "-- every byte"
on 1 pass $limit 2 "$spread" bytes
on 1 pass $limit 4 "$spread" bytes
on 2 pass $limit 4 "$spread" bytes
on 3+2 pass $limit 5 "$spread" bytes
on 1+4+3 pass $limit 8 "$spread" bytes
if [ -n "${LONG_TESTS:-}" ]; then
    for ranks in 3 6 16; do
        on 1 pass $limit $ranks "$spread" bytes
        on 3 pass $limit $ranks "$spread" bytes
    done
    on 7+1+5+3 pass $limit 16 "$spread" bytes
    HOCCL_EMU_DEVICES=1 on 1 pass $limit 3 "$spread" bytes
    HOCCL_EMU_DELAY_US=300 on 2+1 pass $limit 3 "$spread" bytes
fi

echo "-- ranks that differ: all hear of it, whoever it is"
for who in 0 2 3; do
    on 1 pass 60 4 "$spread" count $who
    on 2+2 pass 60 4 "$spread" count $who
done
for who in 1 3; do
    on 1 pass 60 4 "$spread" root $who
    on 1+3 pass 60 4 "$spread" root $who
done

echo "-- one dies: all who are left hear of it"
for nodes in 1 2+2 1+3; do
    for who in 0 1 2; do
        HOCCL_TIMEOUT=5 on $nodes job 60 4 --enable-recovery "$spread" die $who
        sed 's/^/    /' "$work/output"
        [ "$(grep -c 'has heard: ' "$work/output")" = 3 ] || complain "not every rank has heard of the death of $who on nodes $nodes"
    done
done
finish
