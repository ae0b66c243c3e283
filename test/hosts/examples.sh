#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# mpirun over two fake hosts (hosts.sh): ranks of both, in blocks, uneven and round robin; every example verifies its bytes;
# a killed rank is an error on the other that names it.
# shellcheck disable=SC2317 # the case is called by its name
set -u
: "${top_builddir:?}" "${top_srcdir:?}"
# shellcheck source=test/hosts/hosts.sh
. "$top_srcdir/test/hosts/hosts.sh"
hosts_needed
programs=$(cd "$top_builddir" && pwd)
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=8

# over HOSTS RANKS COMMAND…: the job must succeed.
over() {
    local hosts=$1 ranks=$2
    shift 2
    echo "== $hosts, $ranks ranks: $*"
    hosts_mpirun 100 "$hosts" -x HOCCL_DEVICE -x HOCCL_EMU_DEVICES -x HOCCL_DEBUG -np "$ranks" "$@" >"$HOSTS_DIR/output" 2>&1
    local status=$?
    sed 's/^/    /' "$HOSTS_DIR/output"
    [ $status = 0 ] || complain "status $status"
}

hosts_up 2 || exit 1
HOCCL_DEBUG=info over node1:2,node2:2 4 "$programs/examples/hello" --size 2M
[ "$(grep -c '2 ranks on other nodes: tcp' "$HOSTS_DIR/output")" = 4 ] || complain "not every rank has two others elsewhere"
grep -q 'SM work 0' "$HOSTS_DIR/output" || complain "SM work"
over node1:3,node2:5 8 "$programs/examples/hello" --size 1M
over node1:2,node2:2 4 --map-by node "$programs/examples/hello" --size 1M
for example in sendrecv_perf allgather_perf alltoall_perf alltoallv_perf; do
    over node1:2,node2:2 4 "$programs/examples/$example" -b 8 -e 1M -f 16 -n 3
done
over node1:3,node2:5 8 "$programs/examples/alltoall_perf" -b 8 -e 64K -f 64 -n 2
over node1:2,node2:2 4 "$programs/examples/halo3d"
over node1:1,node2:1 2 "$programs/examples/launch_cost" -n 20

# fails CASE TEXT: a job of one rank a host is under way; the case does it harm; one of them must say TEXT.
fails() {
    local what=$1 text=$2 runner
    echo "== $what"
    hosts_mpirun 80 node1:1,node2:1 -x HOCCL_DEVICE -x HOCCL_TIMEOUT=6 --enable-recovery -np 2 \
        "$programs/examples/hello" --size 8M --rounds 1000000 >"$HOSTS_DIR/output" 2>&1 {hosts_alive}>&- &
    runner=$!
    sleep 4
    "$what"
    for _ in $(seq 60); do
        grep -q "$text" "$HOSTS_DIR/output" && break
        sleep 0.5
    done
    sed 's/^/    /' "$HOSTS_DIR/output"
    grep -q "$text" "$HOSTS_DIR/output" || complain "nobody said: $text"
    hosts_processes | xargs -r kill -9 2>/dev/null
    wait $runner
}

# Rank 1's process, by its environment.
kill_rank() {
    local process
    for process in $(hosts_processes); do
        [ "$(cat "/proc/$process/comm" 2>/dev/null)" = hello ] || continue
        tr '\0' '\n' <"/proc/$process/environ" | grep -qx PMIX_RANK=1 && kill -9 "$process"
    done
}

fails kill_rank '^rank 0: .*rank 1 (node2, pid'
hosts_finish
