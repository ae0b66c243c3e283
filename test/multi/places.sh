#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Where ranks find themselves: one GPU for all, GPUs apart, no /dev/shm, other host names, other nodes, launchers that are
# none or broken, few cores. (test/CASES.md: B52, B53, B55, B59, B72, B73, B75, B79, B80.)
. "${top_srcdir:?}/test/multi/lib.sh"
multi=$top_builddir/test/multi
limit=${LONG_TESTS:+280}
limit=${limit:-120}
export HOCCL_DEVICE=emu

# namespaces WHAT…: can this user make them?
namespaces() {
    unshare "$@" true 2>/dev/null && return
    echo "-- not tried: this user cannot unshare $*"
    return 1
}

echo "-- B52: four ranks on one GPU"
HOCCL_EMU_DEVICES=1 pass 100 4 "$multi/random" 40 52

echo "-- the GPU memory that HOCCL holds, with everything that it stages on GPUs"
HOCCL_EMU_MACHINE=places.$$ HOCCL_EMU_DEVICES=2 pass 60 2 "$top_builddir/test/gpu/memory" 64M
HOCCL_EMU_MACHINE=places.$$ HOCCL_EMU_DEVICES=3 pass 60 3 "$top_builddir/test/gpu/memory" 96M

echo "-- B53: GPUs that cannot access one another, nor open one another's memory"
HOCCL_EMU_P2P=0 HOCCL_DEBUG=info pass 100 2 "$multi/random" 40 53
grep -q 'staged: the two GPUs cannot access one another' "$work/output" || complain "no line says that data is staged, and why"

echo "-- B53: slices of one GPU: one address on the bus, two UUIDs, nothing that can be opened"
HOCCL_EMU_DEVICES=2 HOCCL_EMU_PCI=0000:18:00,0000:18:00 HOCCL_EMU_P2P=0 HOCCL_DEBUG=info pass 100 2 "$multi/random" 40 54
grep -q 'staged: the two GPUs cannot access one another' "$work/output" || complain "two slices are taken for one GPU"

echo "-- B46: a rank whose first piece of GPU memory cannot be had"
must_fail 'rank 2 on .* cannot start: .*OUT_OF_MEMORY' 60 2 "$examples/hello" --size 1M : -np 1 \
    env HOCCL_EMU_FAULT=cuMemCreate#1=CUDA_ERROR_OUT_OF_MEMORY "$examples/hello" --size 1M
[ "$(grep -c 'rank 2 on .* cannot start\|rank 2: .*OUT_OF_MEMORY' "$work/output")" -ge 1 ] || complain "nobody names rank 2"

echo "-- B55: /dev/shm of 1 MiB"
if namespaces -m; then
    # shellcheck disable=SC2016 # for the inner shell
    pass 100 8 unshare -m sh -c 'mount -t tmpfs -o size=1M none /dev/shm && exec "$@"' sh "$examples/hello" --size 2M
fi

echo "-- B59: one node under several names, each rank with a /dev/shm of its own"
if namespaces -m -u; then
    # shellcheck disable=SC2016
    HOCCL_DEBUG=info pass 60 3 unshare -m -u sh -c 'hostname node$PMIX_RANK && mount -t tmpfs none /dev/shm && exec "$@"' \
        sh "$examples/hello" --size 1M
    grep -q 'rank 2 on node2' "$work/output" || complain "the names were not different"
    echo "-- B59: one name, two boot ids: two nodes"
    # shellcheck disable=SC2016
    HOCCL_DEBUG=info pass 60 2 unshare -m sh -c '
        echo 00000000-0000-4000-8000-00000000000$PMIX_RANK >"$TMPDIR/boot$PMIX_RANK" &&
            mount --bind "$TMPDIR/boot$PMIX_RANK" /proc/sys/kernel/random/boot_id && exec "$@"' sh "$examples/hello" --size 1M
    grep -q 'is sent over the network' "$work/output" || complain "no line says that the ranks are on two nodes"
fi
if namespaces -n; then
    echo "-- B59: one boot id, and no descriptor arrives, nor anything else"
    pass 90 2 "$multi/elsewhere"
fi

echo "-- B72: srun without PMIx, mpiexec without it, and no launcher at all"
if env -u PMIX_NAMESPACE -u PMIX_RANK SLURM_NTASKS=4 SLURM_PROCID=0 timeout 20 "$examples/hello" >"$work/output" 2>&1; then
    complain "four tasks of srun without PMIx started"
fi
grep -q 'srun --mpi=pmix' "$work/output" || complain "no hint: $(cat "$work/output")"
if env -u PMIX_NAMESPACE -u PMIX_RANK PMI_SIZE=4 PMI_RANK=0 timeout 20 "$examples/hello" >"$work/output" 2>&1; then
    complain "four processes of an mpiexec without PMIx started"
fi
grep -q '4 processes with PMI and not PMIx.*HOCCL_CommInitRank' "$work/output" || complain "no hint: $(cat "$work/output")"
timeout 60 "$examples/hello" --size 1M >"$work/output" 2>&1 || complain "a world of one: $(cat "$work/output")"

echo "-- B73: a PMIx component that is not here"
must_fail 'HOCCL_Init: PMIx_Init: .*client OpenPMIx.*PMIX_MCA' 60 2 -x PMIX_MCA_psec=munge "$examples/hello" --size 1M

echo "-- B75: a rank that ends before HOCCL_Init, and one that comes too late"
# The launcher may be faster than the limit and end the job itself.
HOCCL_INIT_TIMEOUT=3 must_fail 'start-up\|before exiting, but others' 60 1 "$examples/hello" --size 1M : -np 1 sh -c 'sleep 1'
HOCCL_INIT_TIMEOUT=2 must_fail 'within 2 s (HOCCL_INIT_TIMEOUT)' 60 1 "$examples/hello" --size 1M : -np 1 sleep 6
echo "-- B75: a rank that ends within HOCCL_Init"
job 60 2 --enable-recovery "$examples/hello" --size 1M : -np 1 "$multi/halfway"
sed 's/^/    /' "$work/output"
grep -q 'nothing has come from rank 2: a rank has ended within HOCCL_Init' "$work/output" || complain "nobody names the rank that has ended"

echo "-- B79: threads stay where the launcher has put them"
pass 60 2 --bind-to core "$multi/crowd" b79
pass 60 2 --bind-to none "$multi/crowd" b79

echo "-- B80: sixteen ranks"
HOCCL_EMU_DEVICES=16 pass "$limit" 16 "$multi/crowd" b80
finish
