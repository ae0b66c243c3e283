/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU memory that HOCCL takes: what each step leaves taken on this rank's GPU, whoever took it (a peer may stage there),
 * with the caller's own buffers left out.
 * usage: mpirun -np N memory [MOST]     MOST (64M): status 1 if HOCCL ever holds more */
#include "../../examples/common.h"

#include <stdio.h>
#include <stdlib.h>

#define N ((size_t)64 << 20)

static struct job job;
static CUstream stream;
static size_t at_first, worst;

static size_t taken(void)
{
    size_t free_now, all;
    check_cuda(cuMemGetInfo(&free_now, &all), "cuMemGetInfo");
    return all - free_now;
}

static void step(const char *name)
{
    size_t now_taken = taken(), more = now_taken > at_first ? now_taken - at_first : 0;
    worst = more > worst ? more : worst;
    printf("rank %d: %-48s %6.1f MiB\n", job.rank, name, (double)more / (1 << 20));
    fflush(stdout);
}

static void exchange(CUdeviceptr out, CUdeviceptr in, int distance)
{
    HOCCL_Result e;
    int to = (job.rank + distance) % job.size, from = (job.rank - distance + job.size) % job.size;
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(HOCCL_Send((void *)out, N, HOCCL_BYTE, to, HOCCL_COMM_WORLD, stream), "HOCCL_Send");
    check_hoccl(HOCCL_Recv((void *)in, N, HOCCL_BYTE, from, HOCCL_COMM_WORLD, stream), "HOCCL_Recv");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    check_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &e), "HOCCL_CommGetAsyncError");
    check_hoccl(e, "exchange");
}

/* Before HOCCL_Init, so that its memory is not counted as HOCCL's. */
static void own_context(void)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    CUcontext context;
    int n;
    check_cuda(cuInit(0), "cuInit");
    check_cuda(cuDeviceGetCount(&n), "cuDeviceGetCount");
    check_cuda(cuDevicePrimaryCtxRetain(&context, local ? atoi(local) % n : 0), "cuDevicePrimaryCtxRetain");
    check_cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

int main(int argc, char **argv)
{
    size_t most = size_parse(argc > 1 ? argv[1] : "64M");
    CUdeviceptr out, in, pool_out, pool_in;
    own_context();
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&out, N), "cuMemAlloc");
    check_cuda(cuMemAlloc(&in, N), "cuMemAlloc");
    check_cuda(cuMemAllocAsync(&pool_out, N, stream), "cuMemAllocAsync");
    check_cuda(cuMemAllocAsync(&pool_in, N, stream), "cuMemAllocAsync");
    check_cuda(cuStreamSynchronize(stream), "cuMemAllocAsync");
    at_first = taken();
    job_open(&job);
    step("after HOCCL_Init");
    exchange(out, in, 1);
    step("after an exchange of cuMemAlloc memory");
    exchange(pool_out, pool_in, 1);
    step("after one of cuMemAllocAsync memory");
    exchange(out, in, 0);
    step("after a copy to itself");
    exchange(out, in, 1); /* nobody looks while another still works */
    job_close();
    if (worst > most)
        fail("HOCCL has held %.1f MiB of GPU memory", (double)worst / (1 << 20));
    return 0;
}
