#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that is measured on real GPUs, in one run of a few minutes, beside NCCL where it can be had.
#
# usage: campaign.sh PROGRAMS OUT     PROGRAMS: the folder with the built programs; OUT: takes text and JSON
# NCCL_LIB names NCCL's library for nccl_rate. Any number of GPUs; pairs use the first two.
# shellcheck source=test/gpu/steps.sh
. "$(dirname "$0")/steps.sh"
gpus=$(nvidia-smi -L | grep -c '^GPU')

{
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    step info 10 ./hoccl-info
    two bytes 30 ./paths
    two small 20 ./coexist small
    two order 20 ./coexist order
    for connections in 1 2 8 32; do
        CUDA_DEVICE_MAX_CONNECTIONS=$connections two "streams, $connections connections" 20 ./coexist streams
        CUDA_DEVICE_MAX_CONNECTIONS=$connections two "bytes, $connections connections" 30 ./paths --no-staging
    done
    CUDA_DEVICE_MAX_CONNECTIONS=1 HOCCL_GATE=push two 'bytes, 1 connection, gate push' 30 ./paths
    HOCCL_TIMEOUT=3 two free 20 ./coexist free
    two hold 40 ./coexist hold 1G
    CUDA_VISIBLE_DEVICES=0 two "bytes, one GPU" 30 ./paths
    two sendrecv 60 ./sendrecv_perf -b 8 -e 1G -f 2 -n 50 -w 5 --raw --launch -c 1 -J "$out/sendrecv.json"
    step nccl-sendrecv 60 ./nccl_rate sendrecv 8 1073741824 2
    two allgather 60 ./allgather_perf -b 8 -e 1G -f 8 -n 50 -w 5 -J "$out/allgather.json"
    step nccl-allgather 60 ./nccl_rate allgather 8 1073741824 8
    two alltoall 60 ./alltoall_perf -b 8 -e 1G -f 8 -n 50 -w 5 -J "$out/alltoall.json"
    step nccl-alltoall 60 ./nccl_rate alltoall 8 1073741824 8
    two launch 40 ./launch_cost -J "$out/launch.json"
    two "launch, started" 40 ./launch_cost -p -J "$out/start.json"
    two share 60 ./share
    two paths 40 ./path_rate
    CUDA_VISIBLE_DEVICES=0 two "paths, one GPU" 40 ./path_rate 256M
    two memory 30 ./memory 160M
    two halo3d 40 ./halo3d
    for case in pageable first; do
        two "$case" 20 ./coexist $case
    done
    HOCCL_TIMEOUT=3 two default 20 ./coexist default
    HOCCL_BLOCKING=on two read 20 ./coexist read
    if [ -e libhoccl_nccl.so ] && [ -n "${PYTHON:-}" ]; then
        for blocking in off on; do
            HOCCL_BLOCKING=$blocking two "torch, blocking $blocking" 90 -x LD_PRELOAD="$PWD/libhoccl_nccl.so" -x MASTER_ADDR=127.0.0.1 \
                -x MASTER_PORT=29417 "$PYTHON" ./torch_dist.py "$([ $blocking = off ] || echo default)"
        done
    fi
    if [ -e libhoccl.so.0 ] && [ -n "${PYTHON:-}" ]; then
        two product 90 "$PYTHON" ./product.py ./libhoccl.so.0
    fi
    [ "$gpus" -lt 3 ] || step "hello, all GPUs" 60 mpirun --bind-to none -np "$gpus" ./hello
    for gate in none push h2d d2h; do
        CUDA_DEVICE_MAX_CONNECTIONS=1 step "gate $gate" 30 ./gates "$gate"
    done
    for case in '1 1' '8 1' '8 4' '8 7'; do # connections, streams with a D2H copy queued behind a wait
        CUDA_DEVICE_MAX_CONNECTIONS=${case% *} step "queued behind gates, connections and streams $case" 30 ./gates push "${case#* }" d2h
    done
    step engines 60 ./engines
    step turnaround 60 ./turnaround 200
    step raw 60 ./raw_pairs
    step "raw, odd allocations" 60 ./raw_pairs 64
} >"$out/campaign.txt" 2>&1
