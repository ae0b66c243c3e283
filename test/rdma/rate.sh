#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Writes over Soft-RoCE beside perftest's ib_write_bw (package perftest), by turns in one guest: rate.sh [ROUNDS]. Not a test: for
# doc/performance.md.
set -u
here=${top_srcdir:?}/test/rdma rate=${top_builddir:?}/test/rdma/write_rate
export HOCCL_VERBS=timeout=18 TEST_NICS="rxe0 rxe1"

# perftest BYTES COUNT QUEUES: MiB/s of ib_write_bw.
perftest() {
    local options=(-x 1 -F -s "$1" -n "$2" -q "$3" -u 18 -p $((port++)))
    timeout 60 ib_write_bw -d rxe1 "${options[@]}" >/dev/null 2>&1 &
    sleep 3
    timeout 60 ib_write_bw -d rxe0 "${options[@]}" 10.77.0.2 2>&1 | awk -v s="$1" '$1 == s { print $4 }'
    wait
}

inside() {
    local round bytes lanes count port=18515
    for ((round = 0; round < ${1:-3}; round++)); do
        for bytes in 1048576 4194304; do
            count=$((134217728 / bytes))
            for lanes in 1 2 4; do
                echo "ib_write_bw $bytes bytes, $lanes queue pairs: $(perftest $bytes $((count / lanes)) $lanes) MiB/s"
                HOCCL_LANES=$lanes timeout 120 "$rate" verbs $bytes $count
                echo "  spinning: $(HOCCL_LANES=$lanes timeout 120 "$rate" verbs $bytes $count spin)"
            done
        done
    done
}

if [ "${1:-}" = inside ]; then
    inside "${2:-3}"
    exit
fi
exec "$here/guest.sh" -t 580 "$here/rate.sh" inside "${1:-3}"
