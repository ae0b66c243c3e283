#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bad input: wrong arguments, wrong states, two threads at once (test/multi/errors.c).
. "${top_srcdir:?}/test/multi/lib.sh"
errors=$top_builddir/test/multi/errors

pass 200 2 "$errors"
pass 200 1 "$errors"
for ranks in 1 2 3; do
    pass 60 $ranks "$top_builddir/test/multi/unmatched"
done

# Where descriptors end at start-up (with how many is the launcher's affair), each rank that says so says what to do.
said=
for most in 14 15 16 17; do
    job 60 2 bash -c "ulimit -n $most; exec '$top_builddir/examples/hello'"
    said+=$(grep 'HOCCL.*Too many open files' "$work/output")
    grep 'HOCCL.*Too many open files' "$work/output" | grep -v 'ulimit -n' && complain "no word of ulimit"
done
[ -n "$said" ] || complain "no rank has run out of descriptors"
# So it does for sockets to another node, and blames nobody there.
said=
for most in 16 17 18; do
    HOCCL_TEST_NODE=1+1 HOCCL_TIMEOUT=2 HOCCL_INIT_TIMEOUT=4 \
        job 60 2 bash -c "[ \$PMIX_RANK = 1 ] || ulimit -n $most; exec '$top_builddir/examples/hello'"
    said+=$(grep 'a socket to rank 1 .*Too many open files.*ulimit -n' "$work/output")
    grep 'firewall.*Too many open files' "$work/output" && complain "the peer and the network are blamed for a lack of descriptors"
done
[ -n "$said" ] || complain "no rank has run out of sockets"
finish
