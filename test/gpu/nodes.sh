#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks on one machine with GPUs that take themselves to be on two nodes: TCP over loopback, beside NCCL over its
# sockets and beside bare sockets, in one run of about three minutes.
#
# usage: nodes.sh PROGRAMS OUT     as campaign.sh; also transport_rate, and far (with its libraries) where it is there
# shellcheck source=test/gpu/steps.sh
. "$(dirname "$0")/steps.sh"

# Between two nodes, as the ranks see it.
apart() {
    HOCCL_TEST_NODE=2 two "$@"
}

sockets() {
    NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket step "$@"
}

# Bare sockets whose host's memory is as busy as under messages of two GPUs: their copies run beside them, in memory of their own.
among_copies() {
    local seconds=8
    ./beside 0 14 $seconds & ./beside 1 14 $seconds & sleep 2
    step "$@"
    wait
}

{
    apart bytes 40 ./paths
    apart hold 30 ./coexist hold 64M
    for lanes in 2 8 12; do
        HOCCL_LANES=$lanes apart "sendrecv, $lanes lanes" 40 ./sendrecv_perf -b 16M -e 256M -f 4 -n 20 -w 5 -c 1 --launch \
            -J "$out/nodes-$lanes.json"
        step "bare sockets, $lanes" 20 ./transport_rate $lanes 1024 1
        step "bare sockets, $lanes, both ways" 20 ./transport_rate $lanes 1024 1 both
        for mib in 16 64 256; do
            step "bare sockets, $lanes, messages of $mib MiB one after the other" 20 ./transport_rate $lanes 1024 1 both $mib
        done
    done
    for turn in 1 2 3; do # like with like, by turns, for hosts are noisy
        HOCCL_LANES=8 apart "16 MiB, turn $turn" 20 ./sendrecv_perf -b 16M -e 16M -n 40 -w 5 -c 1
        HOCCL_LANES=8 HOCCL_TEST_BREAK=no-eager apart "16 MiB, not eager, turn $turn" 20 ./sendrecv_perf -b 16M -e 16M -n 40 -w 5 -c 1
        step "bare sockets, 8, messages of 16 MiB, turn $turn" 20 ./transport_rate 8 1024 1 both 16
        among_copies "bare sockets, 8, among copies, turn $turn" 20 ./transport_rate 8 1024 1 both 16
        HOCCL_LANES=8 apart "16 MiB, 8 in a group, turn $turn" 20 ./sendrecv_perf -b 16M -e 16M -m 8 -n 10 -w 1 -c 1
        step "bare sockets, 8, without a pause, turn $turn" 20 ./transport_rate 8 1024 1 both
    done
    apart "small" 20 ./sendrecv_perf -b 8 -e 1M -f 8 -n 200 -w 5 -c 1
    HOCCL_TEST_BREAK=no-eager apart "small, not eager" 20 ./sendrecv_perf -b 8 -e 1M -f 8 -n 200 -w 5 -c 1
    sockets "NCCL as it comes" 30 ./nccl_rate sendrecv 16777216 268435456 4
    NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=2 sockets "NCCL, 8 sockets" 30 ./nccl_rate sendrecv 16777216 268435456 4
    [ ! -x ./far ] || HOCCL_DEVICE=cuda step "slots on the other GPU" 40 ./far test_slots_on_gpus
} >"$out/nodes.txt" 2>&1
