#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What must go on beside HOCCL, and beside what HOCCL must go on (test/gpu/coexist.c has the cases).
. "${top_srcdir:?}/test/multi/lib.sh"
coexist=$top_builddir/test/gpu/coexist

for connections in 1 2 8 32; do
    CUDA_DEVICE_MAX_CONNECTIONS=$connections pass 60 2 "$coexist" streams
    grep -q independent "$work/output" || complain "the application's kernel or copy was stopped"
done
# One GPU in sight and one channel: kernels wait for the peer (400 ms), operations for no other one.
for nodes in '' 2; do
    HOCCL_EMU_DEVICES=1 HOCCL_DEVICE=emu HOCCL_TIMEOUT=2 HOCCL_TEST_NODE=$nodes CUDA_DEVICE_MAX_CONNECTIONS=1 pass 60 2 \
        "$coexist" streams
    grep -q 'all after 4.*STOPPED' "$work/output" || complain "kernels ran, or the operations did not end with the peer's coming"
    grep -q 'sees no other GPU' "$work/output" || complain "no warning"
done

# What stops what behind a gate, as measured on H200s, with two GPUs in sight and with one: the emulated GPU must answer the same.
# gates GPUS EXPECTED GATE [BEHIND]: what else is queued behind the parked wait
gates() {
    local gpus=$1 expected=$2 gate=$3 behind=${4:-none} found
    found=$(HOCCL_EMU_DEVICES=$gpus CUDA_DEVICE_MAX_CONNECTIONS=1 timeout -k 5 60 "$top_builddir/test/gpu/gates" "$gate" 1 "$behind" |
        sed 's/.*fresh streams: //')
    echo "== $gpus GPUs, behind a gate of $gate, $behind queued: $found"
    [ "$found" = "$expected" ] || complain "not as measured: $expected"
}
gates 2 'kernel STOPPED; d2h runs; h2d runs; push runs; pushipc runs; pull runs; pullipc runs;' none
gates 2 'kernel runs; d2h runs; h2d runs; push STOPPED; pushipc STOPPED; pull STOPPED; pullipc STOPPED;' push
gates 2 'kernel runs; d2h runs; h2d STOPPED; push runs; pushipc runs; pull runs; pullipc runs;' h2d
gates 2 'kernel runs; d2h STOPPED; h2d runs; push runs; pushipc runs; pull runs; pullipc runs;' d2h
gates 1 'kernel STOPPED; d2h runs; h2d runs;' none
gates 1 'kernel STOPPED; d2h runs; h2d runs;' compute
gates 1 'kernel runs; d2h runs; h2d STOPPED;' h2d
gates 1 'kernel runs; d2h STOPPED; h2d STOPPED;' h2d d2h
gates 1 'kernel STOPPED; d2h runs; h2d STOPPED;' h2d kernel
gates 1 'kernel runs; d2h STOPPED; h2d STOPPED;' d2h h2d

pass 60 2 "$coexist" small
pass 60 2 "$coexist" order
pass 90 2 "$coexist" hold
grep -q 'every transfer ended while the kernel ran' "$work/output" || complain "a transfer needed an SM"
HOCCL_DEBUG=info HOCCL_CHUNK=1M HOCCL_EMU_RATE=push=400 pass 60 2 "$top_builddir/test/gpu/share" 64K 8M 5
grep -q 'foreground phases: .* held up [1-9]' "$work/output" || complain "nothing was held up in foreground phases, or no line says so"
[ "$(grep -c '^copy ' "$work/output")" = 3 ] || complain "the application's own copies were not measured"
pass 60 2 "$coexist" pageable
# A copy on the default stream, made before the operation has begun: harmless only where calls return when operations have ended.
export HOCCL_EMU_DELAY_US=20000
for nodes in '' 2; do
    HOCCL_DEVICE=emu HOCCL_TEST_NODE=$nodes HOCCL_BLOCKING=on pass 60 2 "$coexist" read
done
HOCCL_DEVICE=emu HOCCL_TIMEOUT=2 must_fail 'pageable memory on the default stream' 60 2 "$coexist" read
unset HOCCL_EMU_DELAY_US
# HOCCL_Init has all kernels loaded at once, unless told otherwise.
HOCCL_EMU_LAZY=1 HOCCL_TIMEOUT=3 pass 60 2 "$coexist" first
HOCCL_EMU_LAZY=1 HOCCL_TIMEOUT=3 CUDA_MODULE_LOADING=LAZY must_fail 'module load' 60 2 "$coexist" first
for case in free default; do
    HOCCL_TIMEOUT=3 pass 60 2 "$coexist" $case
    grep -q 'rank 0: after .*cudaFree.*pageable memory on the default stream' "$work/output" || complain "the error does not name the cause"
    grep -q 'rank 1: after .*rank 0 has failed' "$work/output" || complain "the peer was not told"
    [ "$(grep -c 'abort took 0.*success' "$work/output")" = 2 ] || complain "an abort failed"
done
finish
