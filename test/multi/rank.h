/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs share whose ranks are processes, or threads of one. A check that fails says so with the rank and
 * ends the job. */
#ifndef TEST_MULTI_RANK_H
#define TEST_MULTI_RANK_H

#include <cuda.h>
#include <hoccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread int rank = -1, size;
static __thread HOCCL_Comm comm;
static __thread CUstream stream;

static inline void need(bool good, const char *what, int line)
{
    if (good)
        return;
    fprintf(stderr, "rank %d: line %d: %s (last error: %s)\n", rank, line, what, HOCCL_GetLastError());
    exit(1);
}

#define NEED(condition) need((condition), #condition, __LINE__)
#define OK(call) need((call) == 0, #call, __LINE__)

/* A process: join the world, with a stream of our own. */
static inline void rank_open(void)
{
    OK(HOCCL_Init());
    comm = HOCCL_COMM_WORLD;
    OK(HOCCL_CommRank(comm, &rank));
    OK(HOCCL_CommSize(comm, &size));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

/* Among threads: wait for all. Before memory is freed, for cuMemFree waits for every parked stream of the process. */
static pthread_barrier_t ranks_barrier;
static bool ranks_are_threads;

static inline void rank_settle(void)
{
    if (ranks_are_threads)
        pthread_barrier_wait(&ranks_barrier);
}

static inline int rank_device(void)
{
    int device;
    OK(HOCCL_CommDevice(comm, &device));
    return device;
}

static inline void rank_close(void)
{
    OK(cuStreamDestroy(stream));
    OK(comm == HOCCL_COMM_WORLD ? HOCCL_Finalize() : HOCCL_CommDestroy(comm));
}

/* Threads of one process, GPU r for rank r. */
struct rank_thread {
    pthread_t thread;
    HOCCL_UniqueId id;
    int rank, size;
    void (*body)(void);
};

static inline void *rank_thread(void *argument)
{
    const struct rank_thread *t = argument;
    CUcontext context;
    int devices;
    OK(cuDeviceGetCount(&devices));
    OK(cuDevicePrimaryCtxRetain(&context, t->rank % devices));
    OK(cuCtxSetCurrent(context));
    OK(HOCCL_CommInitRank(&comm, t->size, t->id, t->rank));
    rank = t->rank;
    size = t->size;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    t->body();
    rank_close();
    OK(cuDevicePrimaryCtxRelease(t->rank % devices));
    return NULL;
}

static inline void ranks_as_threads(int count, void (*body)(void))
{
    struct rank_thread t[16];
    HOCCL_UniqueId id;
    NEED(count <= 16);
    OK(cuInit(0));
    OK(HOCCL_GetUniqueId(&id));
    OK(pthread_barrier_init(&ranks_barrier, NULL, (unsigned)count));
    ranks_are_threads = true;
    for (int r = 0; r < count; r++) {
        t[r] = (struct rank_thread){.id = id, .rank = r, .size = count, .body = body};
        OK(pthread_create(&t[r].thread, NULL, rank_thread, &t[r]));
    }
    for (int r = 0; r < count; r++)
        OK(pthread_join(t[r].thread, NULL));
}

/* Into device memory, and there when the call returns: a synchronous copy alone may land later. */
static inline void rank_put(void *to, const void *from, size_t bytes)
{
    OK(cuMemcpyHtoD((CUdeviceptr)to, from, bytes));
    OK(cuStreamSynchronize(NULL));
}

/* Wait for the stream; the communicator's error, for a failed operation releases its stream too. */
static inline HOCCL_Result rank_wait(void)
{
    HOCCL_Result error;
    OK(cuStreamSynchronize(stream));
    OK(HOCCL_CommGetAsyncError(comm, &error));
    return error;
}

/* A mixing function of 64 bits (SplitMix64's): pseudo-random and the same everywhere. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t mix3(uint64_t a, uint64_t b, uint64_t c)
{
    return mix(mix(mix(a) + b) + c);
}

#endif
