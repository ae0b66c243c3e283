#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The transport between processes of this host: test/hosts/traffic.c has the ranks. Between hosts: test/hosts/transport.sh.
# shellcheck source=test/multi/lib.sh
. "${top_srcdir:?}/test/multi/lib.sh"
traffic=$top_builddir/test/hosts/traffic

mkdir "$work/pair" "$work/four" "$work/killed"
pass 60 2 "$traffic" tcp "$work/pair" - - suite
HOCCL_LANES=5 pass 60 4 "$traffic" tcp "$work/four" - - suite

# One dies in the middle of a write: the other one hears of it.
echo "== killed"
timeout -k 10 60 "$traffic" tcp "$work/killed" 0 2 busy >"$work/output" 2>&1 &
survivor=$!
timeout -k 10 60 "$traffic" tcp "$work/killed" 1 2 busy >/dev/null 2>&1 &
for _ in $(seq 300); do
    [ -e "$work/killed/busy.0" ] && [ -e "$work/killed/busy.1" ] && break
    sleep 0.1
done
kill -9 "$(cat "$work/killed/pid.1")"
wait $survivor || complain "the survivor: status $?"
sed 's/^/    /' "$work/output"
grep -q 'rank 1 (there).*its process has ended' "$work/output" || complain "it does not say that the peer has ended"
finish
