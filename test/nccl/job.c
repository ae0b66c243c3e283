/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program against NCCL's interface as an application has it: one process a GPU, or (with a number as its argument) one
 * process with so many threads and GPUs each. It knows nothing of HOCCL. The id goes from rank 0 to the others through the
 * file $TMPDIR/id. Every operation's bytes are checked. It is linked with a libnccl.so.2 that is chosen when it is started.
 */
#include "nccl/nccl_abi.h"

#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 3000, MAX = 16 };

static int ranks, threads = 1, process;

static void fail(int rank, const char *what, const char *why)
{
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, why);
    _exit(1);
}

#define NCCL(rank, call)                                                                                                   \
    do {                                                                                                                   \
        if ((call) != ncclSuccess)                                                                                         \
            fail(rank, #call, ncclGetLastError(NULL));                                                                     \
    } while (0)

#define CUDA(rank, call)                                                                                                   \
    do {                                                                                                                   \
        if ((call) != CUDA_SUCCESS)                                                                                        \
            fail(rank, #call, "CUDA error");                                                                               \
    } while (0)

static int environment(const char *name, int without)
{
    const char *s = getenv(name);
    return s ? atoi(s) : without;
}

static ncclUniqueId get_id(void)
{
    char path[512], temporary[600];
    ncclUniqueId id;
    FILE *f;

    snprintf(path, sizeof path, "%s/id", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (process == 0) {
        NCCL(0, ncclGetUniqueId(&id));
        if (ranks == threads)
            return id;
        snprintf(temporary, sizeof temporary, "%s.new", path);
        f = fopen(temporary, "w");
        if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename(temporary, path))
            fail(0, "writing the id", path);
        return id;
    }
    for (int i = 0; i < 6000; i++) {
        f = fopen(path, "r");
        if (f && fread(&id, sizeof id, 1, f) == 1) {
            fclose(f);
            return id;
        }
        if (f)
            fclose(f);
        usleep(10000);
    }
    fail(process, "reading the id", path);
    return id;
}

/* What one rank has: a value of each rank travels, so a word says who sent it to whom. */
struct rank {
    int rank;
    ncclUniqueId id;
    ncclComm_t comm;
    CUstream stream;
    int32_t *out, *in; /* COUNT for each rank */
    int32_t *host;
    pthread_t thread;
};

static void fill(struct rank *r, int32_t *buf, int pieces, int key)
{
    for (int i = 0; i < pieces * COUNT; i++)
        r->host[i] = key * 1000000 + r->rank * 1000 + i / COUNT * 10 + i % 10;
    CUDA(r->rank, cuMemcpyHtoD((CUdeviceptr)buf, r->host, (size_t)(pieces * COUNT) * 4));
    CUDA(r->rank, cuStreamSynchronize(NULL));
}

/* `to`: the piece that the sender meant. */
static void verify(struct rank *r, const int32_t *buf, int from, int to, int key, const char *what)
{
    ncclResult_t error;
    CUDA(r->rank, cuStreamSynchronize(r->stream));
    NCCL(r->rank, ncclCommGetAsyncError(r->comm, &error));
    NCCL(r->rank, error);
    CUDA(r->rank, cuMemcpyDtoH(r->host, (CUdeviceptr)buf, COUNT * 4));
    for (int i = 0; i < COUNT; i++)
        if (r->host[i] != key * 1000000 + from * 1000 + to * 10 + i % 10)
            fail(r->rank, what, "a word is wrong");
}

static void exchange(struct rank *r)
{
    int n = ranks, me = r->rank, right = (me + 1) % n, left = (me + n - 1) % n;

    fill(r, r->out, 1, 1);
    NCCL(me, ncclGroupStart());
    NCCL(me, ncclSend(r->out, COUNT, ncclFloat32, right, r->comm, r->stream));
    NCCL(me, ncclRecv(r->in, COUNT, ncclFloat32, left, r->comm, r->stream));
    NCCL(me, ncclGroupEnd());
    verify(r, r->in, left, 0, 1, "sendrecv");
    NCCL(me, ncclAllGather(r->out, r->in, COUNT, ncclInt32, r->comm, r->stream));
    for (int i = 0; i < n; i++)
        verify(r, r->in + i * COUNT, i, 0, 1, "allgather");
    fill(r, r->out, n, 2);
    NCCL(me, ncclAlltoAll(r->out, r->in, COUNT, ncclUint32, r->comm, r->stream));
    for (int i = 0; i < n; i++)
        verify(r, r->in + i * COUNT, i, me, 2, "alltoall");
    NCCL(me, ncclAlltoAll(r->out, r->out, COUNT, ncclUint32, r->comm, r->stream));
    for (int i = 0; i < n; i++)
        verify(r, r->out + i * COUNT, i, me, 2, "alltoall in place");
    fill(r, r->out, n, 3);
    NCCL(me, ncclScatter(r->out, r->in, COUNT, ncclInt32, n - 1, r->comm, r->stream));
    verify(r, r->in, n - 1, me, 3, "scatter");
    NCCL(me, ncclGather(r->out, r->in, COUNT, ncclInt32, 0, r->comm, r->stream));
    for (int i = 0; i < n && me == 0; i++)
        verify(r, r->in + i * COUNT, i, 0, 3, "gather");
    NCCL(me, ncclBroadcast(r->out, r->in, COUNT, ncclInt32, 0, r->comm, r->stream));
    verify(r, r->in, 0, 0, 3, "broadcast");
}

static void *run(void *argument)
{
    struct rank *r = argument;
    size_t bytes = (size_t)(ranks * COUNT) * 4;
    CUcontext context;
    CUdevice device;
    ncclComm_t half;
    void *registered;
    int count, size;

    CUDA(r->rank, cuInit(0));
    CUDA(r->rank, cuDeviceGetCount(&count));
    CUDA(r->rank, cuDeviceGet(&device, r->rank % count));
    CUDA(r->rank, cuDevicePrimaryCtxRetain(&context, device));
    CUDA(r->rank, cuCtxSetCurrent(context));
    CUDA(r->rank, cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
    r->host = malloc(bytes);
    NCCL(r->rank, ncclMemAlloc((void **)&r->out, bytes));
    CUDA(r->rank, cuMemAlloc((CUdeviceptr *)&r->in, bytes));
    NCCL(r->rank, ncclCommInitRank(&r->comm, ranks, r->id, r->rank));
    NCCL(r->rank, ncclCommRegister(r->comm, r->out, bytes, &registered));
    exchange(r);
    NCCL(r->rank, ncclCommSplit(r->comm, r->rank % 2, r->rank, &half, NULL));
    NCCL(r->rank, ncclCommCount(half, &size));
    if (size != (ranks + 1 - r->rank % 2) / 2)
        fail(r->rank, "split", "its size is wrong");
    NCCL(r->rank, ncclAllGather(r->out, r->in, COUNT, ncclInt32, half, r->stream));
    CUDA(r->rank, cuStreamSynchronize(r->stream));
    NCCL(r->rank, ncclCommDestroy(half));
    NCCL(r->rank, ncclCommDeregister(r->comm, registered));
    NCCL(r->rank, ncclCommFinalize(r->comm));
    NCCL(r->rank, ncclCommDestroy(r->comm));
    NCCL(r->rank, ncclMemFree(r->out));
    CUDA(r->rank, cuStreamDestroy(r->stream));
    free(r->host);
    return NULL;
}

int main(int argc, char **argv)
{
    struct rank rank[MAX];
    ncclUniqueId id;

    alarm(120);
    threads = argc > 1 ? atoi(argv[1]) : 1;
    process = environment("OMPI_COMM_WORLD_RANK", 0);
    ranks = environment("OMPI_COMM_WORLD_SIZE", 1) * threads;
    id = get_id();
    for (int i = 0; i < threads; i++) {
        rank[i] = (struct rank){.rank = process * threads + i, .id = id};
        if (pthread_create(&rank[i].thread, NULL, run, &rank[i]))
            fail(i, "pthread_create", "no thread");
    }
    for (int i = 0; i < threads; i++)
        pthread_join(rank[i].thread, NULL);
    printf("process %d of %d ranks: every word is right\n", process, ranks);
    return 0;
}
