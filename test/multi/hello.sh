#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks in a ring exchange verified data, and what is verified can fail.
. "${top_srcdir:?}/test/multi/lib.sh"

pass 120 2 "$examples/hello" --size 16M
pass 120 4 "$examples/hello" --size 4M
pass 60 2 "$examples/hello" --size 0
pass 60 3 "$examples/hello" --size 1
must_fail 'wrong' 60 2 "$examples/hello" --size 1M --spoil 65537
pass 60 1 "$examples/hello" --size 1M
finish
