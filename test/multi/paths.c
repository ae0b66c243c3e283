/* SPDX-License-Identifier: Apache-2.0 */
/* Every kind of memory at both ends, every peer including the rank itself, odd sizes and offsets: each message must
 * arrive in its own buffer with its own bytes, and nothing before or behind it may be touched.
 *
 * usage: mpirun -np N paths [--sm | --no-staging]
 *   --sm          fail if any of it put work on SMs (emulated GPUs can tell)
 *   --no-staging  only what needs no copy from host memory, for runs in which every wait is gated by one */
#include "../../examples/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64
#define ROOM (((size_t)6 << 20) + 4096)

enum kind { LEGACY, POOL, VMM, RANGE, PINNED, KINDS };
static const char *const names[] = {"cuMemAlloc", "cuMemAllocAsync", "cuMemCreate", "cuMemCreate with descriptors", "pinned host"};
static const size_t sizes[] = {0, 1, 2, 3, 8, 1000, 65535, 65536, 1048577, 5242883};
static const size_t offsets[] = {0, 1, 256, 4097};

static struct job job;
static CUstream stream;

/* One allocation, or, exportable, one for each smallest unit, mapped side by side. */
static CUdeviceptr vmm_alloc(size_t n, bool exportable)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, job.device}};
    CUmemAccessDesc a = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    CUdeviceptr va;
    size_t grain;
    check_cuda(cuMemGetAllocationGranularity(&grain, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity");
    n = (n + grain - 1) / grain * grain;
    check_cuda(cuMemAddressReserve(&va, 2 * n, 0, 0, 0), "reserve");
    for (size_t at = 0, step = exportable ? grain : n; at < n; at += step) {
        check_cuda(cuMemCreate(&h, step, &p, 0), "cuMemCreate");
        check_cuda(cuMemMap(va + at, step, 0, h, 0), "map");
    }
    check_cuda(cuMemSetAccess(va, n, &a, 1), "access");
    return va;
}

static CUdeviceptr new_memory(enum kind kind, size_t n)
{
    CUdeviceptr p = 0;
    void *h;
    switch (kind) {
    case LEGACY:
        check_cuda(cuMemAlloc(&p, n), "cuMemAlloc");
        break;
    case POOL:
        check_cuda(cuMemAllocAsync(&p, n, stream), "cuMemAllocAsync");
        check_cuda(cuStreamSynchronize(stream), "cuMemAllocAsync");
        break;
    case VMM:
    case RANGE:
        p = vmm_alloc(n, kind == RANGE);
        break;
    case PINNED:
        check_cuda(cuMemHostAlloc(&h, n, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
        p = (CUdeviceptr)(uintptr_t)h;
        break;
    case KINDS:
        break;
    }
    return p;
}

static void put(enum kind kind, CUdeviceptr to, const void *from, size_t n)
{
    if (kind == PINNED)
        memcpy((void *)(uintptr_t)to, from, n);
    else
        copy_in(to, from, n);
}

static void get(enum kind kind, void *to, CUdeviceptr from, size_t n)
{
    if (kind == PINNED)
        memcpy(to, (void *)(uintptr_t)from, n);
    else if (n)
        check_cuda(cuMemcpyDtoH(to, from, n), "cuMemcpyDtoH");
}

static unsigned char expected(int source, int destination, unsigned round, size_t at)
{
    uint64_t x = (uint64_t)source * 1000003 + (uint64_t)destination * 10007 + round * 101 + at * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return (unsigned char)(x ^ (x >> 8) ^ (x >> 17));
}

struct end {
    enum kind kind;
    CUdeviceptr memory, view;
};

/* Fill, exchange in a ring at distance d, check. */
static void round_of(struct end *out, struct end *in, size_t n, int d, unsigned round)
{
    static unsigned char buffer[ROOM], check[ROOM];
    int to = (job.rank + d) % job.size, from = (job.rank - d + job.size) % job.size;
    HOCCL_Result e;
    for (size_t i = 0; i < n; i++)
        buffer[i] = expected(job.rank, to, round, i);
    put(out->kind, out->view, buffer, n);
    memset(buffer, 0xa5, n + 2 * GUARD);
    put(in->kind, in->view - GUARD, buffer, n + 2 * GUARD);
    /* A copy from pageable memory may land after its call has returned, and no other stream waits for it. */
    check_cuda(cuStreamSynchronize(NULL), "cuStreamSynchronize");
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(HOCCL_Send((void *)(uintptr_t)out->view, n, HOCCL_BYTE, to, HOCCL_COMM_WORLD, stream), "HOCCL_Send");
    check_hoccl(HOCCL_Recv((void *)(uintptr_t)in->view, n, HOCCL_BYTE, from, HOCCL_COMM_WORLD, stream), "HOCCL_Recv");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    check_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &e), "HOCCL_CommGetAsyncError");
    check_hoccl(e, "exchange");
    get(in->kind, check, in->view - GUARD, n + 2 * GUARD);
    for (size_t i = 0; i < n + 2 * GUARD; i++) {
        unsigned char right = i < GUARD || i >= GUARD + n ? 0xa5 : expected(from, job.rank, round, i - GUARD);
        if (check[i] != right)
            fail("%s to %s, %zu bytes at distance %d: byte %zd is 0x%02x, not 0x%02x", names[out->kind], names[in->kind], n, d,
                 (ssize_t)i - GUARD, check[i], right);
    }
}

int main(int argc, char **argv)
{
    struct end out[KINDS], in[KINDS];
    unsigned round = 0;
    bool sm = argc > 1 && !strcmp(argv[1], "--sm"), direct = argc > 1 && !strcmp(argv[1], "--no-staging");
    int kinds = direct ? 1 : KINDS;
    job_open(&job);
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (int k = 0; k < KINDS; k++) {
        out[k] = (struct end){.kind = (enum kind)k, .memory = new_memory((enum kind)k, ROOM)};
        in[k] = (struct end){.kind = (enum kind)k, .memory = new_memory((enum kind)k, ROOM)};
    }
    long work = job_sm_work();
    for (int d = direct; d < job.size; d++)
        for (int a = 0; a < kinds; a++)
            for (int b = 0; b < kinds; b++)
                for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++, round++) {
                    /* kinds differ between the ranks too: an odd rank takes them in another order */
                    struct end *o = &out[(a + job.rank) % kinds], *i = &in[(b + 2 * job.rank) % kinds];
                    o->view = o->memory + offsets[round % 4];
                    i->view = i->memory + GUARD + offsets[(round + 1) % 4];
                    round_of(o, i, sizes[s], d, round);
                }
    work = job_sm_work() - work;
    if (sm && work > 0)
        fail("%ld pieces of work were put on SMs", work);
    job_close();
    if (!job.rank)
        printf("paths: %u exchanges on each of %d ranks: right; SM work %s\n", round, job.size,
               job_sm_work() < 0 ? "not measured" : work ? "NOT ZERO" : "0");
    return 0;
}
