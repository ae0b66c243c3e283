/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of each path and what its first use costs: kinds of memory at the sending and the receiving end.
 * usage: mpirun -np 2 path_rate [BYTES] */
#include "../../examples/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { LEGACY, DESCRIPTOR, CLOSED, PINNED };
static const char *const names[] = {"cuMemAlloc", "cuMemCreate, descriptor", "cuMemAllocAsync", "pinned host"};

static struct job job;
static CUstream stream;

static CUdeviceptr vmm_alloc(size_t n)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, job.device}};
    CUmemAccessDesc a = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    CUdeviceptr va;
    n = (n + ((size_t)2 << 20) - 1) >> 21 << 21;
    check_cuda(cuMemCreate(&h, n, &p, 0), "cuMemCreate");
    check_cuda(cuMemAddressReserve(&va, n, 0, 0, 0), "reserve");
    check_cuda(cuMemMap(va, n, 0, h, 0), "map");
    check_cuda(cuMemSetAccess(va, n, &a, 1), "access");
    return va;
}

static CUdeviceptr new_memory(enum kind kind, size_t n)
{
    CUdeviceptr p = 0;
    void *h;
    if (kind == LEGACY)
        check_cuda(cuMemAlloc(&p, n), "cuMemAlloc");
    else if (kind == DESCRIPTOR)
        p = vmm_alloc(n);
    else if (kind == CLOSED)
        check_cuda(cuMemAllocAsync(&p, n, stream), "cuMemAllocAsync");
    else {
        check_cuda(cuMemHostAlloc(&h, n, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
        p = (CUdeviceptr)(uintptr_t)h;
    }
    check_cuda(cuStreamSynchronize(stream), "allocation");
    return p;
}

/* Once: to the right, from the left; with one_way only rank 0 sends. peer_is_self: every rank to itself. */
static double once(CUdeviceptr out, CUdeviceptr in, size_t n, bool one_way, bool self)
{
    int to = self ? job.rank : (job.rank + 1) % job.size, from = self ? job.rank : (job.rank + job.size - 1) % job.size;
    HOCCL_Result e;
    double t = now();
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    if (!one_way || job.rank == 0)
        check_hoccl(HOCCL_Send((void *)out, n, HOCCL_BYTE, to, HOCCL_COMM_WORLD, stream), "HOCCL_Send");
    if (!one_way || from == 0)
        check_hoccl(HOCCL_Recv((void *)in, n, HOCCL_BYTE, from, HOCCL_COMM_WORLD, stream), "HOCCL_Recv");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    check_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &e), "HOCCL_CommGetAsyncError");
    check_hoccl(e, "exchange");
    return now() - t;
}

static void measure(enum kind a, enum kind b, size_t n, bool self)
{
    CUdeviceptr out = new_memory(a, n), in = new_memory(b, n);
    double first = once(out, in, n, false, self), both = 1e9, one = 1e9;
    for (int i = 0; i < 5; i++) {
        double t = once(out, in, n, false, self);
        both = t < both ? t : both;
    }
    for (int i = 0; i < 5 && !self && job.size == 2; i++) {
        double t = once(out, in, n, true, self);
        one = t < one ? t : one;
    }
    if (job.rank == 0)
        printf("%-24s -> %-24s %s both ways %7.2f GB/s, one way %7.2f GB/s, first use %.2f ms more\n", names[a], names[b],
               self ? "to itself," : "to the peer,", 1e-9 * (double)n / both, one < 1e8 ? 1e-9 * (double)n / one : 0.0,
               1e3 * (first - both));
}

int main(int argc, char **argv)
{
    size_t n = argc > 1 ? size_parse(argv[1]) : (size_t)1 << 30;
    job_open(&job);
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if (job.size > 1) {
        measure(LEGACY, LEGACY, n, false);
        measure(LEGACY, DESCRIPTOR, n, false);
        measure(LEGACY, CLOSED, n, false);
        measure(CLOSED, LEGACY, n, false);
        measure(CLOSED, CLOSED, n, false);
        measure(LEGACY, PINNED, n, false);
        measure(PINNED, LEGACY, n, false);
    }
    measure(LEGACY, LEGACY, n, true);
    measure(PINNED, LEGACY, n, true);
    job_close();
    return 0;
}
