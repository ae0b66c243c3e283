#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# HOCCL over Soft-RoCE beside perftest's ib_write_bw (package perftest), by turns in one guest: rate.sh [ROUNDS]. Not a test: for
# doc/performance.md. 128 MiB each time, 1, 2 and 4 queue pairs; MiB/s of
#
#   ib_write_bw            one way: one thread at each end, which never sleeps
#   both ways              the same with -b, each way
#   both ways, crowded     with as many threads spinning beside each end as a rank of HOCCL has more: its submitter
#   writes                 of the transport alone, one way, one thread at each end, which sleeps when there is nothing, or spins
#   staged                 Send and Recv both ways at once, each way; memory of emulated GPUs, through the slots
#   registered             the same with HOCCL_CommRegister
set -u
here=${top_srcdir:?}/test/rdma rate=${top_builddir:?}/test/rdma/write_rate perf=$top_builddir/examples/sendrecv_perf
export HOCCL_VERBS=timeout=18 TEST_NICS="rxe0 rxe1" port=18515

# perftest BYTES COUNT QUEUES [-b]: MiB/s of ib_write_bw, which with -b prints those of both ways together.
perftest() {
    local options=(-x 1 -F -s "$1" -n "$2" -q "$3" -u 18 -p $((port++)) "${@:4}")
    timeout 60 ib_write_bw -d rxe1 "${options[@]}" >/dev/null 2>&1 &
    local server=$!
    sleep 3
    timeout 60 ib_write_bw -d rxe0 "${options[@]}" 10.77.0.2 2>&1 | awk -v s="$1" -v ways=$(($# - 2)) '$1 == s { printf "%.1f\n", $4 / ways }'
    wait $server
}

# crowded COMMAND…: while two threads spin.
crowded() {
    local spinning=()
    for _ in 1 2; do
        (while :; do :; done) &
        spinning+=($!)
    done
    "$@"
    kill "${spinning[@]}"
    wait "${spinning[@]}" 2>/dev/null
}

# messages BYTES COUNT OPTION…: MiB/s of sendrecv_perf each way, both ways at once.
messages() {
    local bytes=$1 count=$2
    shift 2
    HOCCL_DEVICE=emu HOCCL_EMU_PEERMEM=1 HOCCL_NET=verbs HOCCL_TEST_NODE=2 timeout 100 mpirun -np 2 "$perf" -b "$bytes" -e "$bytes" -n "$count" -c 0 "$@" 2>&1 |
        awk -v s="$bytes" '$1 == s { printf "%.0f\n", $1 / $4 / 1.048576 }'
}

inside() {
    local round bytes lanes count
    for ((round = 0; round < ${1:-3}; round++)); do
        for bytes in 1048576 4194304; do
            count=$((134217728 / bytes))
            for lanes in 1 2 4; do
                export HOCCL_LANES=$lanes
                echo "== $bytes bytes, $lanes queue pairs"
                echo "ib_write_bw: $(perftest $bytes $((count / lanes)) $lanes)"
                echo "both ways: $(perftest $bytes $((count / lanes)) $lanes -b)"
                echo "both ways, crowded: $(crowded perftest $bytes $((count / lanes)) $lanes -b)"
                echo "writes: $(timeout 120 "$rate" verbs $bytes $count)"
                echo "writes, spinning: $(timeout 120 "$rate" verbs $bytes $count spin)"
                echo "staged: $(messages $bytes 8)"
                echo "registered: $(messages $bytes 8 -R 1)"
            done
        done
    done
}

if [ "${1:-}" = inside ]; then
    inside "${2:-3}"
    exit
fi
exec "$here/guest.sh" -t 580 "$here/rate.sh" inside "${1:-3}"
