#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A program that was linked with another libnccl.so.2 runs on HOCCL, unchanged: by LD_PRELOAD of libhoccl_nccl.so, or with
# the folder of our libnccl.so.2 first on the library path. The other library here is a decoy that fails in every call, so
# that what passes has been done by HOCCL; HOCCL's own count of operations must say so too.
#
#   job ──linked with──▶ decoy/libnccl.so.2          every call: ncclInternalError
#    └──started with───▶ libhoccl_nccl.so            105 functions, on libhoccl
. "${top_srcdir:?}/test/multi/lib.sh"
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=8 HOCCL_DEBUG=info
ours=$(realpath "$top_builddir/.libs")

# counted PROCESSES EACH: so many processes of the last job have said at their end that HOCCL did so many operations.
counted() {
    local processes=$1 each=$2 lines
    lines=$(grep -c "NCCL operations done by HOCCL: $each," "$work/output")
    [ "$lines" = "$processes" ] || complain "$lines of $processes processes say that HOCCL has done $each operations"
}

# The decoy has every symbol and does nothing.
mkdir "$work/decoy"
{
    while read -r symbol; do
        echo "int $symbol(void); int $symbol(void) { return 3; }"
    done <"$top_srcdir/test/nccl/symbols.txt"
} | sed 's/^int \(p*ncclGet\(LastError\|ErrorString\)\)(void); int [A-Za-z]*(void) { return 3; }/const char *\1(void); const char *\1(void) { return "decoy"; }/' >"$work/decoy.c"
$CC -shared -fPIC "$work/decoy.c" -Wl,-soname,libnccl.so.2 -o "$work/decoy/libnccl.so.2" ||
    complain "the decoy does not build"
# Linked with the decoy, without a run path: what an application's own build does with NCCL. It lies where the emulated
# driver can be found.
job=$top_builddir/test/nccl/job-decoy
$CC -std=gnu11 -I "$top_srcdir/src" -I "$top_srcdir/src/cuda" -pthread "$top_srcdir/test/nccl/job.c" -o "$job" \
    "$work/decoy/libnccl.so.2" -Wl,-u,hoccl_cuda_driver "$top_builddir/src/cuda/libhoccl_cuda.a" -ldl \
    -Wl,--export-dynamic-symbol=hoccl_cuda_driver -Wl,--export-dynamic-symbol=hoccl_cuda_driver_name \
    -Wl,--export-dynamic-symbol=hoccl_cuda_driver_kind -Wl,--export-dynamic-symbol=hoccl_cuda_driver_chosen ||
    complain "the program does not build"
[ $bad = 0 ] || finish

# The operations of one rank: send, recv, two allgathers, two alltoalls, scatter, gather, broadcast.
each=9

export LD_LIBRARY_PATH=$work/decoy
must_fail decoy 60 1 "$job" 1

echo "== the library path"
export LD_LIBRARY_PATH=$ours:$work/decoy
pass 120 1 "$job" 4
counted 1 $((4 * each))
for ranks in 1 2 3 8; do
    rm -f "$TMPDIR/id"
    pass 120 $ranks "$job"
    counted $ranks $each
done
rm -f "$TMPDIR/id"
pass 120 2 "$job" 2
counted 2 $((2 * each))

echo "== LD_PRELOAD"
export LD_LIBRARY_PATH=$work/decoy
rm -f "$TMPDIR/id"
pass 120 1 env LD_PRELOAD="$ours/libhoccl_nccl.so" "$job" 4
counted 1 $((4 * each))
rm -f "$TMPDIR/id"
# As doc/nccl.md has it: -x gives it to the ranks and not to mpirun itself.
echo "== 4 ranks: mpirun -x LD_PRELOAD=…"
timeout -k 10 120 mpirun -np 4 -x "LD_PRELOAD=$ours/libhoccl_nccl.so" "$job" >"$work/output" 2>&1 </dev/null || complain "status $?"
sed 's/^/    /' "$work/output"
counted 4 $each
rm -f "$job"
finish
