#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The transport verbs over Soft-RoCE: in a guest (guest.sh) with two devices as two nodes, the suite of all transports and what only
# verbs can be asked. With LONG_TESTS=1 every case with all rounds.
set -u
here=${top_srcdir:?}/test/rdma programs=${top_builddir:?}/test/conform
# The packages' emulation answers late: a queue pair has to wait longer than it would for a card.
export HOCCL_VERBS=timeout=18 TEST_NICS="rxe0 rxe1"
suite="describe before_join other_transport join_timeout join_nobody close_any cookie messages backpressure sizes many threads lanes
connections regions region_threads close_busy both_close bell quiet summon summon_nobody"
own="device parts mtu credits lanes lane_faults memlock registration stale_key flush sleep quiet no_srq peer_killed_busy peer_killed_idle gid_change
link_down_idle link_down_busy"
limit=280
if grep -q __asan_init "$programs/verbs"; then # slower by half; the long copies say nothing more there
    suite=${suite/ sizes many/}
    suite=${suite/ lanes/}
fi
if [ -n "${LONG_TESTS:-}" ]; then
    suite="$suite close_idle cycles"
    own="$own sizes crowd again"
    limit=2900
fi

# in_guest: what runs there; the first fault ends it.
in_guest() {
    # shellcheck disable=SC2086 # lists of words
    timeout -k 5 "$limit" "$programs/transport" verbs $suite && timeout -k 5 "$limit" "$programs/verbs" rxe0 rxe1 $own &&
        in_host_memory && on_gpus && registered && memlock_of_a_job && informed
}

# Soft-RoCE takes no dma-buf, and memory of an emulated GPU has no address that can be registered:
in_host_memory() {
    ranks "slots in host memory (GPU [01] will not do" "$top_builddir/examples/hello" --size 700001 --rounds 1 &&
        grep -q 'slots on GPU 1: not by dma-buf: the RDMA card.s driver cannot register GPU memory by dma-buf' /tmp/ranks &&
        grep -q 'slots on GPU 1: not by peer memory: .*modprobe nvidia-peermem' /tmp/ranks
}

# but it can have one, as nvidia-peermem gives it.
on_gpus() {
    HOCCL_EMU_PEERMEM=1 ranks "slots on GPU [01] by peer memory, flushed" "$top_builddir/test/multi/random" 10 31
}

# Registered buffers take no slots: the program counts, for no end, either end and both, and with flushes where a GPU orders
# no writes.
registered() {
    local way
    export HOCCL_EMU_PEERMEM=1
    ranks "this rank's buffer is registered" "$top_builddir/test/multi/registered" gpu || return 1
    HOCCL_EMU_RDMA_ORDER=none ranks "this rank's buffer is registered" "$top_builddir/test/multi/registered" own flushed || return 1
    for way in 1 2; do
        ranks "this rank's buffer is registered" "$top_builddir/examples/sendrecv_perf" -b 8 -e 4M -f 64 -n 3 -R $way || return 1
        ! grep 'cannot be registered' /tmp/ranks || return 1
    done
    unset HOCCL_EMU_PEERMEM
}

# With LONG_TESTS: an ordinary user who may lock 64 KiB; both ranks say what is wrong and what to do.
memlock_of_a_job() {
    [ -n "${LONG_TESTS:-}" ] || return 0
    ! HOCCL_TEST_NODE=2 machine setpriv --reuid=65534 --regid=65534 --clear-groups prlimit --memlock=65536 \
        timeout -k 5 100 mpirun -np 2 "$top_builddir/examples/hello" >/tmp/ranks 2>&1 || return 1
    cat /tmp/ranks
    [ "$(grep -c "HOCCL_Init.*64 KiB.*the launcher's may differ.*HOCCL_NET=tcp" /tmp/ranks)" = 2 ]
}

# What hoccl-info expects.
informed() {
    machine "$top_builddir/hoccl-info" | grep 'slots for other nodes (verbs): on GPU 1, flushed; NIC rxe0 (locality unknown'
}

# machine COMMAND…: with two emulated GPUs below one switch.
machine() {
    HOCCL_TOPO_FILE=$top_srcdir/test/topo-data/two-gpus-a-nic.xml HOCCL_EMU_PCI=0000:19:00.0,0000:1a:00.0 HOCCL_DEVICE=emu \
        HOCCL_EMU_DEVICES=2 HOCCL_NET=verbs "$@"
}

# ranks SLOTS COMMAND…: a job of two ranks there, which take themselves to be on two nodes. Each has a NIC of its own, and says that
# its slots are in that place.
ranks() {
    local slots=$1
    shift
    HOCCL_TEST_NODE=2 HOCCL_DEBUG=info machine timeout -k 5 100 mpirun -np 2 "$@" >/tmp/ranks 2>&1
    local status=$?
    grep -v 'ranks by' /tmp/ranks
    grep -q "over the network: it is on another node (.*): verbs.*$slots" /tmp/ranks || return 1
    grep -q 'ranks by.*NIC rxe0 for this GPU' /tmp/ranks && grep -q 'ranks by.*NIC rxe1 for this GPU' /tmp/ranks || return 1
    return $status
}

if [ "${1:-}" = inside ]; then
    in_guest
    exit
fi
# The guest sees this folder read-only and is told the builds' place by the environment.
exec "$here/guest.sh" -t $limit "$here/verbs.sh" inside
