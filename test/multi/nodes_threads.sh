#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks as threads that take themselves to be on several nodes, so that the sanitizers see both ends of every connection:
# random flows, collectives, and two nodes that share one GPU and so one endpoint.
. "${top_srcdir:?}/test/multi/lib.sh"
export HOCCL_DEVICE=emu
limit=250
[ -z "${LONG_TESTS:-}" ] || limit=1300

# threads NODES DEVICES COMMAND…
threads() {
    local which=$1 devices=$2
    shift 2
    echo "== nodes $which, $devices GPUs: $*"
    HOCCL_TEST_NODE=$which HOCCL_EMU_DEVICES=$devices timeout -k 10 "$limit" "$@" || complain "$* on nodes $which: status $?"
}

if [ -x "$top_builddir/test/conform/random_groups" ]; then
    # 500 messages between nodes at least, 10,000 by check-long; of random size, place and kind of memory.
    least=${LONG_TESTS:+10000}
    least=${least:-500}
    for which in 2 3; do
        threads $which 8 "$top_builddir/test/conform/random_groups" "${LONG_TESTS:+12}60" 51 >"$work/random"
        cat "$work/random"
        messages=$(sed -n 's/.*, \([0-9]*\) of them between nodes/\1/p' "$work/random")
        [ "${messages:-0}" -ge "$least" ] || complain "${messages:-no} messages between nodes"
    done
fi
threads 2 8 "$top_builddir/test/multi/moves" 10 2
threads 1+3 8 "$top_builddir/test/multi/moves" skewed 20 4
threads 1+3 8 "$top_builddir/test/multi/spread" bytes 4
threads 1+2 8 "$top_builddir/test/multi/moves" 10 3
threads 2 1 "$top_builddir/test/multi/moves" 10 3
finish
