#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that take themselves to be on several nodes (HOCCL_TEST_NODE), joined by TCP over loopback: everything that works
# within a node works across, whatever the placement. "2": ranks placed round robin; "3+5": blocks.
. "${top_srcdir:?}/test/multi/lib.sh"
multi=$top_builddir/test/multi
export HOCCL_DEVICE=emu

# nodes WHICH COMMAND…: with ranks on these nodes.
nodes() {
    local which=$1
    shift
    echo "-- nodes $which"
    HOCCL_TEST_NODE=$which "$@"
}

echo "-- the line of what was chosen, and of the path"
HOCCL_DEBUG=info nodes 2 pass 60 2 "$examples/hello" --size 8M
grep -q '1 ranks on other nodes: tcp' "$work/output" || complain "no line says what was chosen"
grep -q 'data to rank 1 is sent over the network: it is on another node' "$work/output" || complain "no line names the path"
[ "$(grep -c 'SM work 0' "$work/output")" = 2 ] || complain "SM work"

echo "-- every kind of memory, odd sizes and offsets"
nodes 2 pass 120 2 "$multi/paths" --sm
nodes 1+2 pass 120 3 "$multi/paths" --sm
HOCCL_EMU_DEVICES=1 nodes 2 pass 120 3 "$multi/paths" --sm
HOCCL_TEST_SEQUENCE=2147483640 nodes 2 pass 120 2 "$multi/paths"
HOCCL_TEST_SEQUENCE=4294967290 nodes 2 pass 120 2 "$multi/paths"

echo "-- registered buffers: those in host memory take no slots (counted); TCP does not reach a GPU's, which are staged"
nodes 2 pass 60 2 "$multi/registered" host
for way in 1 2; do
    HOCCL_DEBUG=info nodes 2 pass 60 2 "$examples/sendrecv_perf" -b 8 -e 4M -f 64 -n 3 -R $way
    grep -q 'cannot be registered for other nodes and is staged: the transport tcp reaches host memory only' "$work/output" ||
        complain "-R $way: no line says that the buffers are staged"
done

echo "-- with the executor broken, the same is noticed"
for engine in d2h h2d; do
    HOCCL_TEST_BREAK=early-reuse HOCCL_EMU_RATE=$engine=500 nodes 2 must_fail ' not 0x' 120 2 "$multi/paths" --no-staging
done

echo "-- gates: copies from host memory are needed"
CUDA_DEVICE_MAX_CONNECTIONS=1 nodes 2 pass 120 2 "$multi/paths" --sm
CUDA_DEVICE_MAX_CONNECTIONS=8 HOCCL_DEBUG=info nodes 1+2 pass 120 3 "$multi/random" 10 3
grep -q 'gates are pushes' "$work/output" || complain "no line says that the gate has changed"
HOCCL_GATE=h2d nodes 2 must_fail 'HOCCL_GATE=push' 60 2 "$examples/hello"
CUDA_DEVICE_MAX_CONNECTIONS=1 nodes 2 pass 60 2 "$examples/sendrecv_perf" -b 64K -e 64K -n 20 -c 0
# The program's own copies, queued behind operations, take the one channel of such copies: the error says the way out.
CUDA_DEVICE_MAX_CONNECTIONS=1 HOCCL_TIMEOUT=2 nodes 2 must_fail 'copies to host memory.*CUDA_DEVICE_MAX_CONNECTIONS=32' 60 2 \
    "$examples/hello" --size 1M

echo "-- collectives, splits, disagreements"
nodes 2 pass 120 2 "$multi/moves" 20
nodes 1+2 pass 120 3 "$multi/moves" 20
nodes 3+5 pass 250 8 "$multi/moves" 100
nodes 1+7 pass 250 8 "$multi/moves" 30
nodes 4 pass 250 8 "$multi/moves" 30
for which in 2 1+5 3; do
    rm -f "$TMPDIR/id"
    nodes $which pass 100 6 "$multi/split"
done
for case in message-999 message-20 message-none row allgather-count broadcast-root order; do
    nodes 2 pass 60 2 "$multi/differ" $case
done
nodes 1+2 pass 60 3 "$multi/differ" message-999

echo "-- bad weather"
for sizes in "1000 999" "0 8" "8388608 8388609"; do
    # shellcheck disable=SC2086 # two words
    nodes 2 pass 90 2 "$multi/failures" mismatch $sizes
done
HOCCL_WAIT_TIMEOUT=2 nodes 3 pass 90 3 "$multi/failures" patience
nodes 3 pass 90 3 "$multi/failures" abort
nodes 2 pass 90 2 "$multi/failures" alone
nodes 2 pass 90 2 "$multi/failures" crowded
echo "-- an engine that takes longer than the peer's patience with who is silent: this rank says that it lives"
nodes 2 pass 60 1 env HOCCL_EMU_FAULT=d2h#1=late:2500000 "$examples/sendrecv_perf" -b 4M -e 4M -n 1 : -np 1 env HOCCL_TIMEOUT=1 \
    "$examples/sendrecv_perf" -b 4M -e 4M -n 1
HOCCL_TEST_NODE=3+x must_fail 'HOCCL_TEST_NODE=3+x cannot be read' 60 2 "$examples/hello"

echo "-- cases of the field (test/CASES.md) that are of several nodes too"
nodes 2 pass 60 3 "$multi/field" b02
nodes 2 pass 60 4 "$multi/field" b04
HOCCL_EMU_DELAY_US=5000 nodes 2 pass 200 2 "$multi/field" b31
nodes 2 pass 60 2 "$multi/field" b32
for case in b39 b43 b45; do
    rm -rf "${TMPDIR:?}"/*
    nodes 2 pass 280 2 "$multi/comms" $case
done

echo "-- the same where a pair connects at first use (sparse.c has what only that can do wrong)"
export HOCCL_CONNECT_MAX=1
nodes 1+2 pass 120 3 "$multi/paths" --no-staging
nodes 3+5 pass 250 8 "$multi/moves" 30
for which in 2 1+5; do
    rm -f "$TMPDIR/id"
    nodes $which pass 100 6 "$multi/split"
done
nodes 2 pass 60 2 "$multi/differ" message-999
HOCCL_WAIT_TIMEOUT=2 nodes 3 pass 90 3 "$multi/failures" patience
nodes 3 pass 90 3 "$multi/failures" abort
nodes 2 pass 90 2 "$multi/failures" alone
nodes 4 pass 250 4 "$multi/random" 20 34
unset HOCCL_CONNECT_MAX
if [ "$(HOCCL_TEST_NODE=2 job 60 1 env HOCCL_CONNECT_MAX=1 "$examples/hello" : -np 1 "$examples/hello"; grep -c 'HOCCL_CONNECT_MAX is' "$work/output")" = 0 ]; then
    complain "ranks with different HOCCL_CONNECT_MAX do not say so"
fi

echo "-- a setting that cannot be read, also where nothing reads it"
HOCCL_VERBS=gid=zz HOCCL_NET=tcp nodes 2 must_fail 'HOCCL_VERBS: "gid=zz"' 60 2 "$examples/hello"

echo "-- random flows"
nodes 2 pass 250 2 "$multi/random" 60 31
nodes 1+2 pass 250 3 "$multi/random" 60 32
HOCCL_CHUNK=64K HOCCL_EMU_DELAY_US=300 nodes 2 pass 250 4 "$multi/random" 40 33
finish
