#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bad weather: counts that differ, peers that never come, too many streams, aborts (test/multi/failures.c).
. "${top_srcdir:?}/test/multi/lib.sh"
failures=$top_builddir/test/multi/failures

for sizes in "1000 999" "10 20" "0 8" "8 0" "8388608 8388609"; do
    # shellcheck disable=SC2086 # two words
    pass 90 2 "$failures" mismatch $sizes
done
pass 90 3 "$failures" mismatch 1000 999
HOCCL_WAIT_TIMEOUT=2 pass 90 3 "$failures" patience
HOCCL_TIMEOUT=2 pass 90 2 "$failures" parked
for ranks in 1 2 3; do
    pass 90 $ranks "$failures" abort
done
pass 90 2 "$failures" alone
pass 90 2 "$failures" crowded
pass 90 2 "$failures" full
HOCCL_BLOCKING=on pass 90 2 "$failures" blocking
finish
