#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks on one machine with GPUs that take themselves to be on two nodes: TCP over loopback, beside NCCL over its
# sockets and beside bare sockets, in one run of about a minute.
#
# usage: nodes.sh PROGRAMS OUT     as campaign.sh; also transport_rate, and far (with its libraries) where it is there
set -u
programs=${1:?the folder with the built programs} out=${2:?a folder for the results}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$out"
cd "$programs" || exit 1

# step NAME LIMIT COMMAND…
step() {
    local name=$1 limit=$2
    shift 2
    echo "## $name: $*"
    timeout -k 2 "$limit" "$@" 2>&1 | grep -v '^#$'
    echo "## $name: status ${PIPESTATUS[0]}"
}

two() {
    local name=$1 limit=$2
    shift 2
    HOCCL_TEST_NODE=2 step "$name" "$limit" mpirun --bind-to none -np 2 "$@"
}

sockets() {
    NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket step "$@"
}

{
    two bytes 40 ./paths
    two hold 30 ./coexist hold 64M
    for lanes in 2 8; do
        HOCCL_LANES=$lanes two "sendrecv, $lanes lanes" 40 ./sendrecv_perf -b 16M -e 256M -f 4 -n 5 -w 1 -c 1 --launch \
            -J "$out/nodes-$lanes.json"
        step "bare sockets, $lanes" 20 ./transport_rate $lanes 512 1
    done
    two "small" 20 ./sendrecv_perf -b 8 -e 1M -f 8 -n 20 -w 2 -c 1
    sockets "NCCL as it comes" 30 ./nccl_rate sendrecv 16777216 268435456 4
    NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=2 sockets "NCCL, 8 sockets" 30 ./nccl_rate sendrecv 16777216 268435456 4
    [ ! -x ./far ] || HOCCL_DEVICE=cuda step "slots on the other GPU" 40 ./far test_slots_on_gpus
} >"$out/nodes.txt" 2>&1
