#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests notice what they are there for: with each of the executor's faults switched on, they fail.
. "${top_srcdir:?}/test/multi/lib.sh"

HOCCL_TEST_BREAK=local-copy must_fail 'NOT ZERO' 60 2 "$examples/hello" --size 1M
HOCCL_TEST_BREAK=early-flag must_fail 'wrong' 60 2 "$examples/hello" --size 16M
HOCCL_TEST_BREAK=early-flag must_fail 'wrong' 60 2 "$examples/sendrecv_perf" -b 16M -e 16M -n 5 -c 10
HOCCL_TEST_BREAK=early-reuse must_fail 'wrong' 60 2 "$examples/sendrecv_perf" -b 16M -e 16M -n 5 -c 10
finish
