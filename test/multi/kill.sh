#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One of four ranks is killed in the middle of its work. The others end with an error within the limit, and no process,
# file or socket is left. First under the launcher's care, which ends the job itself; then with the launcher told to let
# the others live, so that HOCCL has to notice.
. "${top_srcdir:?}/test/multi/lib.sh"
limit=60

# kill_one OPTION…: run, kill the last rank, wait, look what is left.
kill_one() {
    local before after victim left runner status i
    before=$(named_files)
    echo "== mpirun $* -np 4, one rank killed"
    timeout -k 10 $((limit + 5)) mpirun "$@" -np 4 "$examples/hello" --size 8M --rounds 1000000 >"$work/output" 2>&1 </dev/null &
    runner=$!
    for ((i = 0; i < 200; i++)); do
        [ "$(processes | grep -c hello)" = 4 ] && break
        sleep 0.1
    done
    victim=$(processes | awk '$2 == "hello" { print $1 }' | sort -n | tail -n 1)
    sleep 2 # past the first rounds
    sockets >"$work/sockets"
    echo "    before: $(processes | wc -l) processes, $(wc -l <"$work/sockets") named sockets"
    kill -9 "$victim" || complain "there was no rank to kill"
    SECONDS=0
    wait $runner
    status=$?
    sed 's/^/    /' "$work/output"
    echo "    status $status after $SECONDS s"
    [ $# != 0 ] || [ $status != 0 ] || complain "the job succeeded"
    [ $SECONDS -lt $limit ] || complain "the job did not end within $limit s"
    for ((i = 0; i < 50; i++)); do
        left=$(processes)
        [ -n "$left" ] || break
        sleep 0.1
    done
    [ -z "$left" ] || complain "processes are left: $left"
    after=$(named_files)
    [ "$before" = "$after" ] || complain "files are left: $after"
    [ -z "$(find "$TMPDIR" -type f)" ] || complain "files are left: $(find "$TMPDIR" -type f)"
    left=$(awk 'NR == FNR { old[$7]; next } $7 in old' "$work/sockets" /proc/net/unix)
    [ -z "$left" ] || complain "sockets are left: $left"
}

# Every other rank has failed, and names the one that is gone. (mpirun's own status says nothing then.)
all_name_it() {
    [ "$(grep -c '^rank [0-2]: .*rank 3' "$work/output")" = 3 ] || complain "not every rank names the one that is gone"
}

kill_one
HOCCL_TIMEOUT=5 kill_one --enable-recovery
all_name_it
# Across nodes, the killed one with a rank beside it and then alone on its node.
HOCCL_TEST_NODE=2+2 HOCCL_TIMEOUT=5 kill_one --enable-recovery
all_name_it
HOCCL_TEST_NODE=3+1 HOCCL_TIMEOUT=5 kill_one --enable-recovery
all_name_it
finish
