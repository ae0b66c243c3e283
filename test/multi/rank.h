/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs of one rank a process share. A check that fails says so with the rank and ends the job. */
#ifndef TEST_MULTI_RANK_H
#define TEST_MULTI_RANK_H

#include <cuda.h>
#include <hoccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank = -1, size;
static CUstream stream;

static inline void need(bool good, const char *what, int line)
{
    if (good)
        return;
    fprintf(stderr, "rank %d: line %d: %s (last error: %s)\n", rank, line, what, HOCCL_GetLastError());
    exit(1);
}

#define NEED(condition) need((condition), #condition, __LINE__)
#define OK(call) need((call) == 0, #call, __LINE__)

/* Join the world, with a stream of our own. */
static inline void rank_open(void)
{
    OK(HOCCL_Init());
    OK(HOCCL_CommRank(HOCCL_COMM_WORLD, &rank));
    OK(HOCCL_CommSize(HOCCL_COMM_WORLD, &size));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static inline int rank_device(void)
{
    int device;
    OK(HOCCL_CommDevice(HOCCL_COMM_WORLD, &device));
    return device;
}

static inline void rank_close(void)
{
    OK(HOCCL_Finalize());
}

/* Wait for the stream; the communicator's error, for a failed operation releases its stream too. */
static inline HOCCL_Result rank_wait(void)
{
    HOCCL_Result error;
    OK(cuStreamSynchronize(stream));
    OK(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &error));
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
