#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nccl-tests, unchanged, on libhoccl_nccl.so and on NCCL in turn, on two GPUs in one run.
#
# usage: nccl_tests.sh FOLDER [OUT]
#   FOLDER  built nccl-tests: sendrecv_perf, all_gather_perf, …, linked with libnccl.so.2 without a run path to it; those
#           built with MPI as sendrecv_perf_mpi, … Without the folder it skips. (How to build them: doc/nccl.md.)
#   OUT     takes nccl_tests.json, nccl_tests.txt and the output of what failed (default: .)
#           (free_elsewhere and nccl_cost of test/gpu/, if they lie in FOLDER too, run first)
# HOCCL_LIB  the folder of HOCCL's libnccl.so.2 and libhoccl.so.0 (default: build/.libs of this tree); what else they need
#            and the machine has not can lie there too
# NCCL_LIB   the folder of NCCL's libnccl.so.2; without it PyTorch's is looked for, then the system's
# LIMIT      seconds; what would begin later is not run, and that is a failure (150)
# JOBS       how many runs at a time where nothing is timed (3)
# PARTS      of: refusals types figures mpi threads ways large (all)
#
#   part      how            options                         what it shows
#   types     -g 2           -d all -R 2 -c 1                one thread, two GPUs; windows; every type, in and out of place
#   mpi       mpirun -np 2   -d all -R 0 -c 1                a process a GPU
#   threads   -t 2           -R 1 -c 1                       a thread a GPU; registered buffers
#   figures   -t 2           -R 0 -c 0, 8 B … 1 GiB          busbw, NCCL and HOCCL in turn
#   large     -t 2, -g 2     -c 1, 256 MiB                   bytes of long operations
#   ways      preloaded      g2 and mpi                      LD_PRELOAD with NCCL on the library path
#   refusals                 -G 1, all_reduce, -D 1          clear errors
#
# Every run on HOCCL must say at its end how many operations HOCCL has done, of the kind that the test is about, and no run
# on NCCL may; rows must be complete, "#wrong" 0 where nccl-tests checks it.
set -u
folder=${1:-} out=${2:-.}
here=$(cd "$(dirname "$0")" && pwd)
hoccl_lib=$(realpath -m "${HOCCL_LIB:-$here/../../build/.libs}")
limit=${LIMIT:-150} jobs=${JOBS:-3}
parts=${PARTS:-refusals types figures mpi threads ways large}
all_tests="sendrecv all_gather alltoall alltoallv gather scatter broadcast hypercube"

skip() {
    echo "SKIP: $*"
    exit 77
}

if [ -z "$folder" ] || [ ! -x "$folder/sendrecv_perf" ]; then
    skip "no folder with built nccl-tests (sendrecv_perf) was given"
fi
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "${NCCL_TESTS_GPUS:-$gpus}" -ge 2 ] || skip "nccl-tests needs two GPUs, here are $gpus"

folder=$(cd "$folder" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scratch=$work # of one run: stdout, stderr
: >"$work/verdicts"

# ---- The two libraries -------------------------------------------------------------------------------------------

# One folder with the names that programs ask for, whatever links got lost on the way here.
gather_hoccl() {
    local name file
    mkdir "$work/hoccl"
    for name in libnccl.so.2 libhoccl.so.0; do
        file=$(find "$hoccl_lib" -maxdepth 1 -name "$name*" | sort | tail -n 1)
        [ -n "$file" ] || { echo "FAIL: no $name in $hoccl_lib: build HOCCL, or set HOCCL_LIB"; exit 1; }
        ln -s "$(realpath "$file")" "$work/hoccl/$name"
    done
}

find_nccl() {
    local folder
    for folder in "${NCCL_LIB:-}" \
        "$("${PYTHON:-python3}" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2>/dev/null)" \
        /usr/local/lib/python3*/*-packages/nvidia/nccl/lib /usr/lib/python3*/*-packages/nvidia/nccl/lib \
        /opt/*/lib/python3*/site-packages/nvidia/nccl/lib "$HOME"/.local/lib/python3*/site-packages/nvidia/nccl/lib \
        "$(dirname "$(ldconfig -p 2>/dev/null | awk '/libnccl\.so\.2/ { print $NF; exit }')")" /usr/local/cuda/lib64; do
        if [ -n "$folder" ] && [ -e "$folder/libnccl.so.2" ]; then
            echo "$folder"
            return
        fi
    done
}

gather_hoccl
nccl_lib=$(find_nccl)
missing=$(LD_LIBRARY_PATH=$work/hoccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:$hoccl_lib ldd "$work/hoccl/libnccl.so.2" "$folder/sendrecv_perf" 2>/dev/null |
    awk '/not found/ { print $1 }' | sort -u | tr '\n' ' ')
[ -z "$missing" ] || { echo "FAIL: this machine has no $missing, which HOCCL or nccl-tests needs"; exit 1; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export HOCCL_TIMEOUT=${HOCCL_TIMEOUT:-6} HOCCL_WAIT_TIMEOUT=${HOCCL_WAIT_TIMEOUT:-20} HOCCL_INIT_TIMEOUT=${HOCCL_INIT_TIMEOUT:-30}

# ---- Running -----------------------------------------------------------------------------------------------------

# run LIBRARY HOW TEST OPTIONS…: stdout to $scratch/stdout, stderr to $scratch/stderr; its status. LIBRARY is nccl, hoccl
# (by the library path) or preloaded; HOW is g2, t2 or mpi.
run() {
    local library=$1 how=$2 test=$3 path
    local command=() preload=()
    shift 3
    if [ "$library" = hoccl ]; then path=$work/hoccl; else path=$nccl_lib; fi
    path=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:$hoccl_lib
    if [ "$library" = preloaded ]; then
        preload=(env "LD_PRELOAD=$work/hoccl/libnccl.so.2")
        [ "$how" != mpi ] || preload=(-x "LD_PRELOAD=$work/hoccl/libnccl.so.2")
    fi
    case $how in
    g2) command=("${preload[@]}" "$folder/${test}_perf" -t 1 -g 2) ;;
    t2) command=("${preload[@]}" "$folder/${test}_perf" -t 2 -g 1) ;;
    mpi) command=(mpirun --bind-to none -np 2 -x "LD_LIBRARY_PATH=$path" -x HOCCL_DEBUG -x HOCCL_TIMEOUT "${preload[@]}" "$folder/${test}_perf_mpi" -g 1) ;;
    esac
    HOCCL_DEBUG=info LD_LIBRARY_PATH=$path timeout -k 2 45 "${command[@]}" "$@" >"$scratch/stdout" 2>"$scratch/stderr" </dev/null
}

# The operations that HOCCL has done in the last run, all processes together; of a kind, or of all without one.
operations() {
    sed -n 's/.*NCCL operations done by HOCCL: /all /p' "$scratch/stderr" "$scratch/stdout" | tr -s ',;' '\n' |
        awk -v kind="${1:-all}" '$1 == kind { sum += $2 } END { print sum + 0 }'
}

kind_of() {
    case $1 in
    sendrecv | alltoallv | hypercube) echo send ;;
    all_gather) echo allgather ;;
    *) echo "$1" ;;
    esac
}

# The rows of the last run.
rows() {
    awk '/^ +[0-9]+ +[0-9]+ / && NF >= 11' "$scratch/stdout"
}

# judge STATUS LIBRARY TEST ROWS CHECKED: what is wrong with the last run, a line each.
judge() {
    local status=$1 library=$2 test=$3 wanted=$4 checked=$5 kind
    kind=$(kind_of "$test")
    [ "$status" = 0 ] || echo "status $status$([ "$status" != 124 ] || echo ": it did not end within 45 s")"
    [ "$(rows | wc -l)" = "$wanted" ] || echo "$(rows | wc -l) rows of $wanted"
    rows | awk -v checked="$checked" '
        { n++; for (i = 0; i < 2; i++) { w = $(NF - 4 * i); if (w != "N/A" && w + 0 != 0) bad = bad " " $1 "/" $3 ":" w; if (w == "0") good++ } }
        END { if (bad != "") print "wrong elements (size/type:number):" bad
              if (checked && n && good < n) print "only " good + 0 " results of " n " rows were checked" }'
    if [ "$library" != nccl ]; then
        [ "$(operations "$kind")" -gt 0 ] || echo "HOCCL says that it has done $(operations "$kind") operations of kind $kind"
    elif [ "$(operations)" != 0 ]; then
        echo "this was to be NCCL, and HOCCL has done $(operations) operations"
    fi
}

# record PART LIBRARY HOW TEST OPTIONS: the rows as JSON lines.
record() {
    rows | awk -v part="$1" -v library="$2" -v how="$3" -v test="$4" -v options="$5" '
        function number(x) { return x ~ /^[0-9.e+-]+$/ ? x : "null" }
        { for (i = 1; i >= 0; i--) { e = NF - 4 * i
            printf "{\"part\": \"%s\", \"library\": \"%s\", \"how\": \"%s\", \"test\": \"%s\", \"options\": \"%s\", \"type\": \"%s\", \"bytes\": %s, \"in_place\": %s, \"time_us\": %s, \"algbw\": %s, \"busbw\": %s, \"wrong\": %s}\n",
                part, library, how, test, options, $3, $1, i ? "false" : "true", number($(e - 3)), number($(e - 2)), number($(e - 1)), number($e) } }' \
        >>"$work/json"
}

say() {
    echo "$*" | tee -a "$out/nccl_tests.txt"
}

verdict() {
    echo "$1" >>"$work/verdicts"
}

late() {
    if [ $SECONDS -ge "$limit" ]; then
        say "NOT RUN  $*: $limit s are over"
        verdict failed
        return 0
    fi
    return 1
}

# attempt PART LIBRARY HOW TEST ROWS CHECKED OPTIONS…: run, judge, record, say.
attempt() {
    local part=$1 library=$2 how=$3 test=$4 wanted=$5 checked=$6 begin status faults name
    shift 6
    name="$part: $library, $how, ${test}_perf $*"
    ! late "$name" || return 0
    if [ ! -x "$folder/${test}_perf$([ "$how" != mpi ] || echo _mpi)" ]; then
        say "FAIL     $name: the program is not in the folder"
        verdict failed
        return 0
    fi
    begin=$SECONDS
    run "$library" "$how" "$test" "$@"
    status=$?
    faults=$(judge $status "$library" "$test" "$wanted" "$checked")
    record "$part" "$library" "$how" "$test" "$*"
    if [ -z "$faults" ]; then
        verdict passed
        say "pass     $name: $(operations) operations by HOCCL, $((SECONDS - begin)) s"
        return 0
    fi
    verdict failed
    say "FAIL     $name: $(tr '\n' ';' <<<"$faults") $((SECONDS - begin)) s"
    { grep -hE 'NCCL failure|CUDA failure|error|HOCCL.*(error|warning)' "$scratch/stdout" "$scratch/stderr"; tail -q -n 5 "$scratch/stdout" "$scratch/stderr"; } |
        grep -v ': info: ' | awk '!seen[$0]++' | head -n 12 | sed 's/^/         /' | tee -a "$out/nccl_tests.txt"
    cat "$scratch/stdout" "$scratch/stderr" >"$out/failed-$part-$library-$how-$test.txt"
    return 1
}

# refused TEXT HOW TEST OPTIONS…: on HOCCL it must fail of itself and say TEXT.
refused() {
    local text=$1 how=$2 test=$3 status
    shift 3
    ! late "refusals: $test $*" || return 0
    run hoccl "$how" "$test" "$@"
    status=$?
    if [ $status != 0 ] && [ $status != 124 ] && grep -q -- "$text" "$scratch/stdout" "$scratch/stderr"; then
        verdict passed
        say "pass     refusals: $how, ${test}_perf $*: $(grep -h -- "$text" "$scratch/stdout" "$scratch/stderr" | head -n 1)"
        return 0
    fi
    verdict failed
    say "FAIL     refusals: $how, ${test}_perf $*: status $status, without the text: $text"
    tail -q -n 5 "$scratch/stdout" "$scratch/stderr" | sed 's/^/         /' | tee -a "$out/nccl_tests.txt"
    cat "$scratch/stdout" "$scratch/stderr" >"$out/failed-refusals-$test.txt"
}

# beside COMMAND…: in the background, at most so many at a time. Nothing is timed there.
beside() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
    (
        scratch=$(mktemp -d "$work/run.XXXXXX")
        trap - EXIT
        "$@"
    ) &
}

# ---- The parts ---------------------------------------------------------------------------------------------------

part_refusals() {
    beside refused 'cannot be captured' g2 sendrecv -b 1K -e 1K -n 2 -G 1
    beside refused 'needs SMs; reductions go to NCCL in a later part' g2 all_reduce -b 1K -e 1K -n 2
    beside refused 'device interface' g2 alltoall -b 1K -e 1K -n 2 -R 2 -D 1
    wait
}

# 8 B, 8 KiB, 8 MiB of 12 types.
part_types() {
    local test
    for test in $all_tests; do
        beside attempt types hoccl g2 "$test" 36 1 -b 8 -e 8M -f 1024 -n 2 -w 1 -c 1 -d all -R 2
    done
    wait
}

part_mpi() {
    local test
    if ! command -v mpirun >/dev/null || ldd "$folder/sendrecv_perf_mpi" 2>/dev/null | grep -q 'libmpi.*not found'; then
        say "NOT RUN  mpi: no mpirun, or no libmpi.so for $folder/sendrecv_perf_mpi"
        verdict failed
        return
    fi
    for test in $all_tests; do
        beside attempt mpi hoccl mpi "$test" 36 1 -b 8 -e 8M -f 1024 -n 2 -w 1 -c 1 -d all -R 0
    done
    wait
}

# Once more with every kernel loaded at the start, should the loading of one have been what failed.
in_threads() {
    attempt threads hoccl t2 "$1" 5 1 -b 8 -e 4M -f 26 -n 5 -w 1 -c 1 -R 1 ||
        CUDA_MODULE_LOADING=EAGER attempt threads-eager hoccl t2 "$1" 5 1 -b 8 -e 4M -f 26 -n 5 -w 1 -c 1 -R 1
}

part_threads() {
    local test
    for test in $all_tests; do
        beside in_threads "$test"
    done
    wait
}

part_figures() {
    local test library
    for test in $all_tests; do
        for library in nccl hoccl; do
            if [ "$library" = hoccl ] || [ -n "$nccl_lib" ]; then
                attempt figures $library t2 "$test" 10 0 -b 8 -e 1G -f 8 -n 20 -w 2 -c 0 -R 0
            fi
        done
    done
}

part_ways() {
    beside attempt ways preloaded g2 all_gather 36 1 -b 8 -e 8M -f 1024 -n 2 -w 1 -c 1 -d all
    [ ! -x "$folder/sendrecv_perf_mpi" ] || beside attempt ways preloaded mpi sendrecv 36 1 -b 8 -e 8M -f 1024 -n 2 -w 1 -c 1 -d all
    wait
}

part_large() {
    local test how
    for how in g2 t2; do
        for test in all_gather broadcast alltoall gather; do
            beside attempt large hoccl $how "$test" 1 1 -b 256M -e 256M -n 3 -w 1 -c 1
        done
    done
    wait
}

# ---- The tables --------------------------------------------------------------------------------------------------

tables() {
    awk '
        function field(name,   s) { s = $0; if (!sub(".*\"" name "\": \"?", "", s)) return ""; sub("[\",}].*", "", s); return s }
        field("part") == "figures" {
            k = field("test") SUBSEP field("bytes") SUBSEP field("in_place")
            bus[k, field("library")] = field("busbw"); time[k, field("library")] = field("time_us")
            if (!(k in seen)) { seen[k] = 1; order[++n] = k }
        }
        function show(v) { return v == "" ? "-" : v }
        END {
            printf "%-11s %12s %-9s %9s %9s %7s %10s %10s\n", "test", "bytes", "in place", "NCCL", "HOCCL", "ratio", "NCCL us", "HOCCL us"
            for (i = 1; i <= n; i++) {
                k = order[i]; split(k, p, SUBSEP); a = bus[k, "nccl"]; b = bus[k, "hoccl"]
                printf "%-11s %12s %-9s %9s %9s %7s %10s %10s\n", p[1], p[2], p[3] == "true" ? "yes" : "no", show(a), show(b),
                    (a + 0 > 0 ? sprintf("%.2f", b / a) : "-"), show(time[k, "nccl"]), show(time[k, "hoccl"])
            }
        }' "$work/json"
}

: >"$work/json"
: >"$out/nccl_tests.txt"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | tee -a "$out/nccl_tests.txt"
say "HOCCL: $(realpath "$work/hoccl/libnccl.so.2"); NCCL: ${nccl_lib:-none found}"
for tool in free_elsewhere nccl_cost; do
    [ ! -x "$folder/$tool" ] || LD_LIBRARY_PATH=$work/hoccl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:$hoccl_lib \
        timeout -k 2 30 "$folder/$tool" 2>&1 | tee -a "$out/nccl_tests.txt"
done
for part in $parts; do
    "part_$part"
done
{
    echo '['
    sed '$!s/$/,/' "$work/json"
    echo ']'
} >"$out/nccl_tests.json"
[ ! -s "$work/json" ] || say "$(echo "busbw in GB/s"; tables)"
say "$(grep -c passed "$work/verdicts") passed, $(grep -c failed "$work/verdicts") failed or not run, $SECONDS s"
[ -s "$work/verdicts" ] && ! grep -q failed "$work/verdicts"
