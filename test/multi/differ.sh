#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Arguments of collectives that are refused, and ranks that disagree: an error at both ends with both values.
. "${top_srcdir:?}/test/multi/lib.sh"

for ranks in 1 2 3; do
    pass 60 $ranks "$top_builddir/test/multi/differ" arguments
done
for case in message-999 message-20 message-none row row-none allgather-count broadcast-count broadcast-root \
    broadcast-root-none gather-root scatter-root order one-more gather-scatter; do
    pass 60 2 "$top_builddir/test/multi/differ" $case
done
for case in message-999 row allgather-count broadcast-root order; do
    pass 60 3 "$top_builddir/test/multi/differ" $case
done
finish
