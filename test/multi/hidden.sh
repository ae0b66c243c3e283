#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Each rank sees its own GPU only, and its slots lie all the same on the symmetric one, in memory that the rank there has made
# (p2p/loan.h): on a machine with four GPUs, of which each pair shares a switch.
#
#   rank                  0    1    2    3
#   GPU                   19   1a   9a   9b
#   slots on              1a   19   9b   9a
#   NICs reach the GPU by pcie dmabuf pcie pcie        (HOCCL_EMU_RDMA)
#   it orders writes for  own  all  own  nobody        (HOCCL_EMU_RDMA_ORDER): whose slots are there flushes, but rank 0
. "${top_srcdir:?}/test/multi/lib.sh"
hidden=$top_builddir/test/multi/hidden
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=4 HOCCL_TEST_NODE=2+2 HOCCL_LANES=1 HOCCL_DEBUG=info
export HOCCL_TOPO_FILE=$top_srcdir/test/topo-data/two-gpus-a-nic.xml
export HOCCL_EMU_PCI=0000:19:00.0,0000:1a:00.0,0000:9a:00.0,0000:9b:00.0
export HOCCL_EMU_RDMA=pcie,dmabuf,pcie,pcie HOCCL_EMU_RDMA_ORDER=owner,all,owner,none

# shellcheck disable=SC2016 # for the inner shells
own='CUDA_VISIBLE_DEVICES=$PMIX_RANK exec "$@"'

# says TEXT…: the last job has.
says() {
    local text
    for text; do
        grep -q -- "$text" "$work/output" || complain "it did not say: $text"
    done
}

# lacks TEXT: the last job has not said it.
lacks() {
    grep -q -- "$1" "$work/output" && complain "it said: $1"
}

# fault RANK FAULT JOB…: with that fault of the emulated GPU in that rank.
fault() {
    local rank=$1 fault=$2
    shift 2
    # shellcheck disable=SC2016
    "$@" sh -c '[ $PMIX_RANK = '"$rank"' ] && export HOCCL_EMU_FAULT='"$fault; $own" sh "$hidden"
}

echo "-- each for the other"
pass 60 4 sh -c "$own" sh "$hidden"
says 'rank 0.*slots on GPU 0000:1a:00.0 of rank 1 by dma-buf$' 'rank 1.*slots on GPU 0000:19:00.0 of rank 0 by dma-buf over PCIe, flushed' \
    'rank 2.*slots on GPU 0000:9b:00.0 of rank 3 by dma-buf over PCIe, flushed' 'rank 3.*slots on GPU 0000:9a:00.0 of rank 2'
says 'rank 0: right; [1-9][0-9]* chunks have come, 0 were flushed' 'rank 1: right; \([1-9][0-9]*\) chunks have come, \1 were' \
    'rank 2: right; \([1-9][0-9]*\) chunks have come, \1 were' 'rank 3: right; \([1-9][0-9]*\) chunks have come, \1 were'

echo "-- two ranks on one GPU: the lowest one on the other gives to both, and takes from the first"
# shellcheck disable=SC2016
HOCCL_TEST_NODE=3+1 pass 60 4 sh -c 'CUDA_VISIBLE_DEVICES=$((PMIX_RANK / 2)) exec "$@"' sh "$hidden"
says 'rank 0.*slots on GPU 0000:1a:00.0 of rank 2' 'rank 1.*slots on GPU 0000:1a:00.0 of rank 2' 'rank 2.*slots on GPU 0000:19:00.0 of rank 0' \
    'rank 3.*slots in host memory (the symmetric GPU 0000:19:00.0 is hidden from this process and no rank has it'

echo "-- the giver's process ends: the slots stay"
pass 60 4 sh -c "$own" sh "$hidden" leave 1
says 'rank 0.*slots on GPU 0000:1a:00.0 of rank 1'

echo "-- two ranks are threads of one process and share its pools"
timeout -k 10 60 "$hidden" threads >"$work/output" 2>&1 || complain "threads: $?"
sed 's/^/    /' "$work/output"
[ "$(grep -c '4 ranks by a unique id; .*slots on GPU 0000:1a:00.0 of rank 2' "$work/output")" = 2 ] || complain "not both have slots there"
says 'rank 2.*slots on GPU 0000:19:00.0 of rank 0'

[ -n "${FEW:-}" ] && finish

echo "-- the rank that could give comes when the pools are there: they stay where they are, and it takes, nevertheless"
timeout -k 10 60 "$hidden" later >"$work/output" 2>&1 || complain "later: $?"
sed 's/^/    /' "$work/output"
[ "$(grep -c '[34] ranks by a unique id; .*slots in host memory (the symmetric GPU 0000:1a:00.0 is hidden' "$work/output")" = 4 ] ||
    complain "not all four have slots in host memory"
says 'rank 2.*slots on GPU 0000:19:00.0 of rank 0'

echo "-- no rank on the symmetric GPU; one that sees both needs nobody"
# shellcheck disable=SC2016
HOCCL_TEST_NODE=1+1 pass 60 2 sh -c 'export CUDA_VISIBLE_DEVICES=0; [ $PMIX_RANK = 1 ] && CUDA_VISIBLE_DEVICES=2,3; exec "$@"' sh "$hidden"
says 'rank 0.*slots in host memory (the symmetric GPU 0000:1a:00.0 is hidden' 'rank 1.*slots on GPU 0 by dma-buf'

echo "-- one node: nobody needs slots"
HOCCL_TEST_NODE=1 pass 60 2 sh -c "$own" sh "$hidden"
lacks 'slots '

echo "-- a GPU that NICs do not reach; one that has no memory left; one that gives no descriptor: the reason, and host memory"
HOCCL_EMU_RDMA=off,pcie pass 60 4 sh -c "$own" sh "$hidden"
says 'rank 0.*slots on GPU 0000:1a:00.0 of rank 1' 'rank 1.*slots in host memory (the symmetric GPU 0000:19:00.0 of rank 0 gives no memory: .*no GPUDirect'
fault 1 cuMemCreate#3=CUDA_ERROR_OUT_OF_MEMORY pass 60 4
says 'rank 0.*slots in host memory (the symmetric GPU 0000:1a:00.0 of rank 1 gives no memory: .*OUT_OF_MEMORY' 'rank 1.*slots on GPU 0000:19:00.0 of rank 0'
fault 3 cuMemExportToShareableHandle#2=CUDA_ERROR_OPERATING_SYSTEM pass 60 4
says 'rank 2.*slots in host memory (the symmetric GPU 0000:9b:00.0 of rank 3 gives no memory: .*OPERATING_SYSTEM'

echo "-- memory that cannot be mapped, or registered, at the taker"
fault 0 cuMemImportFromShareableHandle#2=CUDA_ERROR_NOT_SUPPORTED pass 60 4
says 'rank 0.*slots on GPU 0000:1a:00.0 of rank 1: not by memory there: .*NOT_SUPPORTED' 'rank 0.*slots in host memory (GPU 0000:1a:00.0 of rank 1 will not do'
HOCCL_EMU_RDMA=pcie,address,pcie,pcie pass 60 4 sh -c "$own" sh "$hidden"
says 'rank 0.*slots on GPU 0000:1a:00.0 of rank 1: not by dma-buf: ' 'rank 0.*slots in host memory (GPU 0000:1a:00.0 of rank 1 will not do'

echo "-- the giver's driver gives no dma-buf, the taker's does"
fault 2 cuMemGetHandleForAddressRange#1+=CUDA_ERROR_NOT_SUPPORTED pass 60 4
says 'rank 3.*slots on GPU 0000:9a:00.0 of rank 2 by dma-buf over PCIe'

echo "-- a giver that is late; one that ends while it is waited for"
fault 1 cuMemCreate#3=late:1500000 pass 60 4
says 'rank 0.*slots on GPU 0000:1a:00.0 of rank 1'
# shellcheck disable=SC2016
HOCCL_INIT_TIMEOUT=20 must_fail "rank 1, which makes memory for this rank's slots, ended" 60 4 sh -c '
    [ $PMIX_RANK = 1 ] && export HOCCL_EMU_FAULT=cuMemCreate#3=late:90000000 CUDA_VISIBLE_DEVICES=1 &&
        { timeout -s ALRM 3 "$@"; sleep 5; exit 1; }
    '"$own" sh "$hidden"

finish
