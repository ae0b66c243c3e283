#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sends and receives of odd sizes, every byte of several rounds checked, between 2 and 4 ranks; no SM does any of it.
. "${top_srcdir:?}/test/multi/lib.sh"

pass 120 2 "$examples/sendrecv_perf" -b 1 -e 4M -f 7 -n 5 -c 3 --launch --raw
pass 120 4 "$examples/sendrecv_perf" -b 3 -e 1M -f 11 -n 5 -c 3
pass 120 2 "$examples/sendrecv_perf" -b 65535 -e 65537 -i 1 -n 50 -c 2 -J "$work/table.json"
grep -q '"bytes": 65536' "$work/table.json" || complain "the table in JSON has no line for 65536 bytes"
pass 120 3 "$examples/sendrecv_perf" -b 0 -e 0 -n 5 -c 1
HOCCL_SHARE=30 pass 120 2 "$examples/sendrecv_perf" -b 5000003 -e 5000003 -n 5 -c 3
HOCCL_CHUNK=64K pass 120 2 "$examples/sendrecv_perf" -b 1000003 -e 1000003 -n 5 -c 3
finish
