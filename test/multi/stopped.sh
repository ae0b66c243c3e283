#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A rank that is stopped (SIGSTOP, a debugger) for longer than HOCCL_TIMEOUT while its copies are under way goes on when it is
# continued: time that a process did not run is no fault, of its own or of its peer.
. "${top_srcdir:?}/test/multi/lib.sh"

HOCCL_DEVICE=emu HOCCL_TIMEOUT=2 HOCCL_CHUNK=1M HOCCL_EMU_RATE=push=8 HOCCL_DEBUG=info timeout -k 10 100 \
    mpirun -np 2 "$examples/hello" --size 32M --rounds 1 >"$work/output" 2>&1 </dev/null &
runner=$!
for ((i = 0; i < 200; i++)); do
    [ "$(grep -c 'ranks by' "$work/output")" = 2 ] && break
    sleep 0.1
done
sleep 1
victim=$(processes | awk '$2 == "hello" { print $1 }' | sort -n | tail -n 1)
kill -STOP "$victim" || complain "there was no rank to stop"
sleep 5
kill -CONT "$victim" || complain "the job has ended while one of its ranks was stopped"
wait $runner
status=$?
sed 's/^/    /' "$work/output"
[ $status = 0 ] || complain "status $status"
grep -q 'has not run for' "$work/output" || complain "nobody noticed"
finish
