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
finish
