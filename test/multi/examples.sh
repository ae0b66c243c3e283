#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The examples that use collectives run, check themselves, and notice what is wrong.
. "${top_srcdir:?}/test/multi/lib.sh"

pass 60 3 "$examples/allgather_perf" -b 1 -e 1M -f 37 -n 5 -c 2 -J "$work/table.json"
grep -q '"in_place"' "$work/table.json" || complain "the table in JSON has no in-place columns"
pass 60 4 "$examples/alltoall_perf" -b 1 -e 1M -f 37 -n 5 -c 2
pass 60 2 "$examples/sendrecv_perf" -b 64K -e 4M -f 8 -n 3 -m 4 -c 1
pass 60 4 "$examples/alltoallv_perf" -b 1 -e 1M -f 37 -n 5 -c 2 --zipf 1.5 --zero 2
pass 60 4 "$examples/alltoallv_perf" -b 1 -e 1M -f 37 -n 5 -c 2 --random 7
pass 60 2 "$examples/allgather_perf" -b 70000001 -e 70000001 -n 2 -c 1 # chunks of several staging slots
pass 60 4 "$examples/broadcast_perf" -b 1 -e 32M -f 97 -n 5 -c 2
pass 60 4 "$examples/incast_perf" -b 1 -e 1M -f 37 -n 5 -c 2
pass 60 4 "$examples/incast_perf" -b 1 -e 1K -f 37 -n 5 -c 2 --to 3 -J "$work/table.json"
grep -A 4 '"traffic"' "$work/table.json" | head -n 5 | tr -d ' \n' | grep -qF '"traffic":["0,0,0,1","0,0,0,1","0,0,0,1","0,0,0,0"' ||
    complain "the table in JSON does not say who has sent to whom"
must_fail 'there are ranks 0 to 1' 60 2 "$examples/incast_perf" -b 1 -e 1 --to 2
pass 60 1 "$examples/alltoall_perf" -b 64K -e 64K -n 2
pass 60 2 "$examples/launch_cost" -e 64K -f 64 -n 20 -J "$work/table.json"
grep -q '"AllGather"' "$work/table.json" || complain "the table in JSON has no line for AllGather"
pass 60 2 "$top_builddir/test/gpu/share" 64K 8M 5
pass 60 2 "$examples/launch_cost" -p -e 64K -f 64 -n 20
for ranks in 1 2 3 8; do
    pass 60 $ranks "$examples/halo3d" --size 30 --steps 10
done
must_fail 'cells are wrong' 60 2 "$examples/halo3d" --size 16 --spoil 3
finish
