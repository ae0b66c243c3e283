#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks as threads that take themselves to be on several nodes, so that the sanitizers see both ends of every connection:
# random flows, collectives, and two nodes that share one GPU and so one endpoint.
. "${top_srcdir:?}/test/multi/lib.sh"
export HOCCL_DEVICE=emu

# threads NODES DEVICES COMMAND…
threads() {
    local which=$1 devices=$2
    shift 2
    echo "== nodes $which, $devices GPUs: $*"
    HOCCL_TEST_NODE=$which HOCCL_EMU_DEVICES=$devices timeout -k 10 250 "$@" || complain "$* on nodes $which: status $?"
}

if [ -x "$top_builddir/test/conform/random_groups" ]; then
    threads 2 8 "$top_builddir/test/conform/random_groups" "${LONG_TESTS:+10}40" 51
fi
threads 2 8 "$top_builddir/test/multi/moves" 10 2
threads 1+3 8 "$top_builddir/test/multi/moves" skewed 20 4
threads 1+3 8 "$top_builddir/test/multi/spread" bytes 4
threads 1+2 8 "$top_builddir/test/multi/moves" 10 3
threads 2 1 "$top_builddir/test/multi/moves" 10 3
finish
