#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test/gpu/nccl_tests.sh gets few runs on real GPUs, so here it runs over programs that print what nccl-tests prints: it
# passes what is right, finds what is wrong, and skips without a folder.
. "${top_srcdir:?}/test/multi/lib.sh"
script=$top_srcdir/test/gpu/nccl_tests.sh
fake=$work/fake
mkdir "$fake"
cat >"$fake/perf" <<'END'
#!/bin/bash
# FAKE says what is wrong: elements, silence, rows, status.
name=${0##*/}
test=${name%_perf*}
from=0 to=0 factor=2 type=float graphs=0 check=0 device=0
while [ $# -gt 0 ]; do
    case $1 in
    -b) from=$(numfmt --from=iec "$2") ;;
    -e) to=$(numfmt --from=iec "$2") ;;
    -f) factor=$2 ;;
    -d) type=$2 ;;
    -G) graphs=$2 ;;
    -c) check=$2 ;;
    -D) device=$2 ;;
    esac
    shift
done
case ${LD_LIBRARY_PATH%%:*}:${LD_PRELOAD:-} in */hoccl:* | */hoccl/*) ours=1 ;; *) ours=0 ;; esac
refuse() { echo "host: Test NCCL failure common.cu:1 'invalid usage / $*'"; exit 3; }
[ $ours$test != 1all_reduce ] || refuse "ncclAllReduce needs SMs; reductions go to NCCL in a later part"
[ "$graphs" = 0 ] || refuse "the stream is capturing: HOCCL operations cannot be captured yet"
[ "$device" = 0 ] || refuse "it belongs to the device interface"
types=$type
[ "$type" != all ] || types="int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2"
wrong=0
[ "$check" != 0 ] || wrong=N/A
[ "${FAKE:-}" != elements ] || wrong=7
[ "${FAKE:-}" != rows ] || to=$from
main=$((${OMPI_COMM_WORLD_RANK:-0} == 0)) # the others print nothing
[ $main = 0 ] || echo "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong"
for t in $types; do
    for ((size = from; size <= to; size *= factor)); do
        [ $main = 0 ] || printf '%12i  %12i  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s    N/A\n' \
            "$size" "$size" "$t" "" -1 10.5 1.2 3.4 $wrong 10.5 1.2 3.4
        [ "$factor" -gt 1 ] && [ "$from" != "$to" ] || break
    done
done
case $test in all_gather) kind=allgather ;; sendrecv | hypercube | alltoallv) kind=send ;; *) kind=$test ;; esac
[ $ours = 0 ] || [ "${FAKE:-}" = silence ] || echo "HOCCL pid 1: info: NCCL operations done by HOCCL: 12, $kind 12; refused 0" >&2
[ "${FAKE:-}" != status ] || exit 2
exit 0
END
chmod +x "$fake/perf"
for test in sendrecv all_gather alltoall alltoallv gather scatter broadcast hypercube all_reduce; do
    ln -s perf "$fake/${test}_perf"
    ln -s perf "$fake/${test}_perf_mpi"
done
mkdir "$work/nccl"
: >"$work/nccl/libnccl.so.2"
export NCCL_TESTS_GPUS=2 NCCL_LIB=$work/nccl HOCCL_LIB=$top_builddir/.libs

# runs STATUS TEXT PARTS: the script must end with this status and say this.
runs() {
    PARTS=$3 timeout -k 10 100 "$script" "$fake" "$work/out" >"$work/output" 2>&1 </dev/null
    local status=$?
    if [ $status != "$1" ]; then
        grep -A 8 -E '^(FAIL|NOT RUN)' "$work/output" | cut -c1-200
        complain "status $status instead of $1: FAKE=${FAKE:-} $3"
    fi
    grep -q -- "$2" "$work/output" || complain "it did not say: $2"
}

runs 0 '53 passed, 0 failed' 'refusals types figures mpi threads ways large'
grep -q '^sendrecv  *1073741824 yes  *3.4  *3.4  *1.00' "$work/out/nccl_tests.txt" || complain "the table has no last row"
grep -q '"library": "nccl", "how": "t2", "test": "hypercube", .*"bytes": 1073741824, "in_place": false, "time_us": 10.5' \
    "$work/out/nccl_tests.json" || complain "the JSON has no last row"
FAKE=elements runs 1 'wrong elements (size/type:number): 8/int8:7' types
FAKE=silence runs 1 'HOCCL says that it has done 0 operations' threads
FAKE=rows runs 1 '1 rows of 10' figures
FAKE=status runs 1 'status 2' large
LIMIT=0 runs 1 'NOT RUN' mpi
rm "$fake/gather_perf"
runs 1 'the program is not in the folder' types
"$script" >"$work/output" 2>&1
[ $? = 77 ] || complain "it does not skip without a folder"
finish
