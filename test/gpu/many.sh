#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What only machines with several GPUs can show, on as many as there are, from two on: patterns over all of them, beside NCCL and
# beside what hoccl-plan predicts. At most LIMIT seconds.
#
# usage: many.sh PROGRAMS OUT
#   PROGRAMS  a folder with some of what a build makes:
#             cp examples/*_perf test/gpu/{coexist,path_rate,nccl_rate,compare} test/multi/paths test/conform/far hoccl-plan PROGRAMS
#   OUT       takes many.txt (everything that was printed), compare.txt (the tables), JSON of each measurement and compare.json
# GPUS        how many to use (all that nvidia-smi lists)
# FIRST LAST  sizes of buffers (2M, 1G), ITERATIONS of each (20)
# HOLD        seconds for which SMs are held (4)
# LIMIT       seconds (460): what would begin later is not run, and that is a failure
# PARTS       of: patterns nccl ctas engines incast hold bounce nodes slots (all)
# NCCL_LIB    NCCL's library, a file (libnccl.so.2 where the loader finds it)
# NCCL_TESTS  a folder with built nccl-tests, for its copy-engine collectives
#
#   part      what
#   patterns  AllGather, Alltoall, Alltoallv by Zipf's law and by chance, rings of Send and Recv over all GPUs and over half of
#             them; every byte checked
#   nccl      the same by NCCL as it comes
#   ctas      … held to 1, 2, 4, 8 CTAs
#   engines   … by its copy engines, on registered windows (nccl-tests -R 2 -x 2)
#   incast    all push to one; Alltoall and AllGather with and without the turns that keep the others from that
#   hold      a ring, AllGather and Alltoall while a kernel holds every thread slot of every SM of every GPU
#   bounce    two ranks with memory that neither can open, by way of a third GPU
#   nodes     two halves that take themselves to be two nodes: TCP, slots in host memory; NCCL over its sockets
#   slots     the same with slots on the symmetric GPUs, carried by the tests' transport
#
# In the end every row of HOCCL's stands beside hoccl-plan's simulation; what is more than 10 % off is marked. Status 1: a step failed.
# shellcheck source=test/gpu/steps.sh
. "$(dirname "$0")/steps.sh"
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
half=$((gpus / 2))
limit=${LIMIT:-460} parts=${PARTS:-patterns nccl engines ctas incast hold bounce nodes slots} iterations=${ITERATIONS:-20}
deadline=$((limit - 20)) # the tables come after it
if [ -n "${GPUS:-}" ] && [ -z "${CUDA_VISIBLE_DEVICES:-}" ]; then # for what takes all that it sees
    CUDA_VISIBLE_DEVICES=$(seq -s , 0 $((gpus - 1)))
    export CUDA_VISIBLE_DEVICES
fi
failed=0 skipped=0
tables=() # what compare is given

bytes() {
    numfmt --from=iec "$1"
}

# The smaller one, in bytes.
least() {
    local a b
    a=$(bytes "$1") b=$(bytes "$2")
    echo $((a < b ? a : b))
}

first=$(bytes "${FIRST:-2M}") last=$(bytes "${LAST:-1G}")

skip() {
    echo "## SKIPPED $*"
    skipped=$((skipped + 1))
}

# judge STATUS: of a step that has been run.
judge() {
    [ "$1" = 0 ] || failed=$((failed + 1))
    return "$1"
}

# saved FILE STEP…: a step whose output is wanted again.
saved() {
    local file=$1
    shift
    "$@" | tee "$out/$file"
    return "${PIPESTATUS[0]}"
}

# says TEXT FILE: else the step has failed.
says() {
    grep -q -- "$1" "$out/$2" && return
    echo "## FAILED: $2 does not say: $1"
    judge 1
}

# table LABEL FILE: for the tables, if it has been written.
table() {
    [ ! -s "$out/$2" ] || tables+=("$1=$out/$2")
}

# pattern LABEL[:NAME] NAME RANKS FACTOR PROGRAM OPTIONS…: sizes and JSON are added. `most` may cut the sizes.
pattern() {
    local label=$1 name=$2 n=$3 factor=$4 program=$5
    shift 5
    if [ ! -x "./$program" ]; then
        skip "$name: no $program"
        return
    fi
    ranks "$n" "$name" 90 "./$program" -b "$first" -e "$(least "$last" "${most:-$last}")" -f "$factor" -n "$iterations" -w 3 -c 1 \
        -J "$out/$name.json" "$@"
    judge $?
    table "$label" "$name.json"
}

# ---- The parts ---------------------------------------------------------------------------------------------------

part_patterns() {
    pattern HOCCL allgather "$gpus" 2 allgather_perf
    pattern HOCCL alltoall "$gpus" 2 alltoall_perf
    pattern HOCCL alltoallv "$gpus" 2 alltoallv_perf --zipf 1
    pattern HOCCL:alltoallv-random alltoallv-random "$gpus" 8 alltoallv_perf --random 1
    pattern HOCCL ring "$gpus" 2 sendrecv_perf
    if [ "$half" -gt 1 ]; then
        pattern HOCCL ring-half "$half" 2 sendrecv_perf
    else
        skip "ring over half of the GPUs: that is one"
    fi
}

# rate LABEL NAME PATTERNS FACTOR RANKS: of NCCL; status 77 without it.
rate() {
    local label=$1 name=$2 patterns=$3 factor=$4 n=$5 status one
    step "$name" 100 ./nccl_rate "$patterns" "$first" "$(least "$last" "${most:-$last}")" "$factor" "$n" "$out/$name-"
    status=$?
    if [ "$status" = 77 ]; then
        skip "$name: no NCCL"
        return 77
    fi
    judge "$status"
    for one in ${patterns//,/ }; do
        table "$label" "$name-$one.json"
    done
}

part_nccl() {
    rate NCCL nccl sendrecv,allgather,alltoall,alltoallv,incast 2 "$gpus" || return
    [ "$half" -lt 2 ] || rate NCCL nccl-half sendrecv 2 "$half"
}

part_ctas() {
    local ctas
    for ctas in 1 2 4 8; do
        NCCL_MIN_CTAS=$ctas NCCL_MAX_CTAS=$ctas rate "$ctas CTA" "nccl-$ctas" sendrecv,allgather,alltoall 8 "$gpus" || return
    done
}

# The rows of nccl-tests as JSON; in place only where HOCCL's program measures it too.
rows_to_json() {
    awk -v program="$1" -v ranks="$gpus" '
        function times(e) { return sprintf("\"time_us\": %s, \"algbw_GBps\": %s, \"busbw_GBps\": %s, \"wrong\": %d", $(e - 3), $(e - 2), $(e - 1), $e) }
        BEGIN { printf "{\"program\": \"%s_perf\", \"library\": \"NCCL\", \"ranks\": %d, \"rows\": [", program, ranks }
        /^ +[0-9]+ +[0-9]+ / && NF >= 11 {
            printf "%s\n{\"bytes\": %s, %s", n++ ? "," : "", $1, times(NF - 4)
            if (program == "allgather") printf ", \"in_place\": {%s}", times(NF)
            printf "}"
        }
        END { print "\n]}" }'
}

part_engines() {
    local test program path
    path=$(dirname "${NCCL_LIB:-/nowhere/}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    for test in all_gather alltoall sendrecv; do
        program=${NCCL_TESTS:-/nowhere}/${test}_perf
        if [ ! -x "$program" ]; then
            skip "NCCL's copy engines, $test: NCCL_TESTS names no folder with ${test}_perf"
            continue
        fi
        saved "nccl-tests-$test.txt" step "NCCL's copy engines, $test" 60 env "LD_LIBRARY_PATH=$path" "$program" -t "$gpus" -g 1 \
            -b "$first" -e "$last" -f 8 -n "$iterations" -w 3 -c 1 -R 2 -x 2
        judge $?
        rows_to_json "${test/_/}" <"$out/nccl-tests-$test.txt" >"$out/nccl-tests-$test.json"
        table 'NCCL engines' "nccl-tests-$test.json"
    done
}

part_incast() {
    pattern HOCCL incast "$gpus" 2 incast_perf
    [ "$half" -lt 2 ] || pattern HOCCL incast-half "$half" 8 incast_perf
    HOCCL_TEST_BREAK=no-rotation pattern 'no turns' alltoall-no-rotation "$gpus" 8 alltoall_perf
    HOCCL_TEST_BREAK=no-rotation pattern 'no turns' allgather-no-rotation "$gpus" 8 allgather_perf
}

# held FILE NAME CASE MOST: transfers while SMs are held.
held() {
    saved "$1" ranks "$gpus" "$2" 60 ./coexist "$3" "$(least "$last" "$4")" "${HOLD:-4}"
    judge $?
    says 'every transfer ended while the kernel ran' "$1"
    ! grep -E 'NOT HELD|NOT EVERY' "$out/$1" || judge 1
}

part_hold() {
    held hold.txt hold hold 1G
    held hold-collectives.txt "hold, collectives" collectives 1G
}

part_bounce() {
    if [ "$gpus" -lt 3 ]; then
        skip "by way of a third GPU: there are $gpus"
        return
    fi
    two "bytes by way of a third GPU" 40 ./paths
    judge $?
    HOCCL_DEBUG=info saved bounce.txt two "by way of a third GPU" 40 ./path_rate "$(least "$last" 256M)"
    judge $?
    says 'on a GPU that is neither end' bounce.txt
    HOCCL_DEBUG=info saved bounce-all.txt ranks "$gpus" "all by way of others" 60 ./path_rate "$(least "$last" 64M)"
    judge $?
}

part_nodes() {
    local most=256M
    HOCCL_TEST_NODE=1+1 two "two nodes, bytes" 60 ./paths
    judge $?
    export HOCCL_TEST_NODE=$half+$((gpus - half))
    pattern 'two nodes' nodes-allgather "$gpus" 4 allgather_perf
    pattern 'two nodes' nodes-alltoall "$gpus" 4 alltoall_perf
    pattern 'two nodes' nodes-ring "$gpus" 4 sendrecv_perf
    held nodes-hold.txt "two nodes, hold" hold 16M
    unset HOCCL_TEST_NODE
    NCCL_RATE_NODES=2 NCCL_NET=Socket rate 'NCCL two nodes' nccl-nodes sendrecv,allgather,alltoall 4 "$gpus"
}

part_slots() {
    if [ ! -x ./far ]; then
        skip "slots on the symmetric GPUs: no far"
        return
    fi
    FAR_MIB=$((($(least "$last" 32M) + 1048575) / 1048576)) HOCCL_DEVICE=${HOCCL_DEVICE:-cuda} step "slots on the symmetric GPUs" 60 \
        ./far test_slots_on_all_gpus
    judge $?
}

compare() {
    deadline=
    saved compare.txt step tables 60 ./compare -p ./hoccl-plan -J "$out/compare.json" "${tables[@]}"
    judge $?
}

run_parts() {
    local part
    echo "## $gpus GPUs, $first to $last bytes"
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
    for part in $parts; do
        "part_$part"
    done
    if [ ${#tables[@]} != 0 ]; then
        compare
    fi
}

if [ "$gpus" -lt 2 ]; then
    echo "SKIP: two GPUs at least, and here are $gpus"
    exit 77
fi
run_parts >"$out/many.txt" 2>&1
grep -E '^## .*(status|NOT RUN|SKIPPED|FAILED)' "$out/many.txt"
[ ! -e "$out/compare.txt" ] || grep -v '^##' "$out/compare.txt"
echo "$failed failed, $skipped skipped, $SECONDS s"
[ "$failed" = 0 ]
