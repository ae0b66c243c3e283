#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The script that measures on machines with several GPUs, on emulated ones: every part of it runs, with HOCCL's library in NCCL's
# place; it says what it could not do, and what failed. Its figures mean nothing here.
. "${top_srcdir:?}/test/multi/lib.sh"
export HOCCL_DEVICE=emu FIRST=64K LAST=128K ITERATIONS=2 HOLD=1
many=$top_srcdir/test/gpu/many.sh

mkdir "$work/programs" "$work/nccl-tests"
for program in examples/{allgather,alltoall,alltoallv,sendrecv,incast}_perf test/gpu/{coexist,path_rate,nccl_rate,compare} \
    test/multi/paths test/conform/far hoccl-plan; do
    ln -s "$(realpath "$top_builddir/$program")" "$work/programs/"
done
# All kinds of memory are for test/multi/paths.sh.
if [ -z "${LONG_TESTS:-}" ]; then
    rm "$work/programs/paths"
    printf '#!/bin/sh\nexec "%s" --no-staging "$@"\n' "$(realpath "$top_builddir/test/multi/paths")" >"$work/programs/paths"
    chmod +x "$work/programs/paths"
fi
# A row as nccl-tests prints it.
cat >"$work/nccl-tests/all_gather_perf" <<'END'
#!/bin/bash
echo "# nccl-tests $*"
echo '       65536          4096     float    none      -1    38.30   54.80   41.10      0    19.50  107.70   80.78      0'
END
chmod +x "$work/nccl-tests/all_gather_perf"

# run GPUS SETTING…: its status; what it prints is in $work/output, and in $work/out what it leaves.
run() {
    local gpus=$1 status
    shift
    echo "== $gpus GPUs: $*"
    rm -rf "$work/out"
    env HOCCL_EMU_DEVICES="$gpus" GPUS="$gpus" "$@" "$many" "$work/programs" "$work/out" >"$work/output" 2>&1 </dev/null
    status=$?
    sed 's/^/    /' "$work/output"
    return $status
}

whole() {
    local gpus=$1
    if ! run "$gpus" NCCL_LIB="$top_builddir/.libs/libhoccl_nccl.so" NCCL_TESTS="$work/nccl-tests"; then
        complain "the run with $gpus GPUs failed"
        grep -B 12 -E '^## .*(status [^0]|FAILED)' "$work/out/many.txt"
    fi
    grep -q "SKIPPED NCCL's copy engines, sendrecv" "$work/output" || complain "it does not say what it has skipped"
    [ "$(grep -c ' status 0' "$work/output")" = 30 ] || complain "$(grep -c ' status 0' "$work/output") steps, not 30"
    grep -qE "^allgather +$gpus +65536 in place .* 80\.8( |$)" "$work/out/compare.txt" ||
        complain "nccl-tests' row is not in the table"
    grep -qE '^alltoallv-random .* HOCCL ' "$work/out/compare.txt" || complain "Alltoallv by chance is not in the table"
    grep -q '"measured_to_simulated"' "$work/out/compare.json" || complain "nothing was simulated"
}
whole 4
[ -z "${LONG_TESTS:-}" ] || whole 8
[ -z "${LONG_TESTS:-}" ] || whole 5

PARTS='nccl ctas bounce' run 2 NCCL_LIB=/nowhere || complain "without NCCL it failed"
grep -q 'SKIPPED nccl: no NCCL' "$work/output" || complain "it does not say that there is no NCCL"
grep -q 'SKIPPED by way of a third GPU: there are 2' "$work/output" || complain "it does not say that there is no third GPU"
PARTS=patterns run 2 LIMIT=20 && complain "nothing was run, and that is no failure"
grep -q 'allgather: NOT RUN' "$work/output" || complain "it does not say what was not run"
PARTS=incast run 2 HOCCL_TEST_BREAK=local-copy && complain "the benchmarks fail, and the script does not"
run 1
[ $? = 77 ] || complain "one GPU is enough for it"

# Ten per cent: both sides of it.
plan=$top_builddir/hoccl-plan
echo '0,67108864
67108864,0' >"$work/matrix.csv"
simulated=$("$plan" -m h200 --method turns --simulate --json 1x2 "$work/matrix.csv" | sed -n 's/.*"simulated_ns": \([0-9]*\).*/\1/p' | head -n 1)
for percent in 108 112 92 88; do
    cat >"$work/row.json" <<END
{"program": "sendrecv_perf", "ranks": 2, "rows": [{"bytes": 67108864, "busbw_GBps": 1, "traffic": ["0,67108864", "67108864,0"],
 "time_us": $((simulated * percent / 100)).0e-3}]}
END
    "$top_builddir/test/gpu/compare" -p "$plan" HOCCL="$work/row.json" >"$work/output" 2>&1 || complain "compare failed"
    cat "$work/output"
    case $percent in
    108 | 92) grep -q '^# 0 of 1 differ' "$work/output" || complain "$percent % counts as far off" ;;
    *) grep -q 'MORE THAN 10 % OFF' "$work/output" || complain "$percent % does not count as far off" ;;
    esac
done
"$top_builddir/test/gpu/compare" -p "$plan" HOCCL=/nowhere >"$work/output" 2>&1 && complain "compare needs no file"
"$top_builddir/test/gpu/compare" -p /nowhere HOCCL="$work/row.json" >"$work/output" 2>&1 || complain "compare needs a plan"
grep -q 'there is no /nowhere' "$work/output" || complain "compare does not say that nothing is simulated"
finish
