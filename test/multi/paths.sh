#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every kind of memory at both ends, from every rank to every rank and to itself, odd sizes at odd offsets. Also with two
# ranks on each GPU, where some of it may use SMs.
. "${top_srcdir:?}/test/multi/lib.sh"

pass 120 1 "$top_builddir/test/multi/paths" --sm
pass 120 3 "$top_builddir/test/multi/paths" --sm
HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=2 pass 200 4 "$top_builddir/test/multi/paths"
finish
