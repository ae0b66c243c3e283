#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Communicators from the world and from a unique id, over processes (test/multi/split.c).
. "${top_srcdir:?}/test/multi/lib.sh"
export HOCCL_DEVICE=emu
for ranks in 1 2 3 6; do
    rm -f "$TMPDIR/id"
    pass 100 $ranks "$top_builddir/test/multi/split"
done
finish
