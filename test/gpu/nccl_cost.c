/* SPDX-License-Identifier: Apache-2.0 */
/* What a call through NCCL's interface costs the CPU beyond the same call of HOCCL: handle, type, count.
 *
 * Both are called in turn on the same communicator, one rank, in calls that post nothing or 0 bytes, so that what HOCCL
 * does itself is as small as can be; the best of many rounds counts, as others use the machine. Runs on any driver.
 *
 * usage: nccl_cost    status 1 if a difference is more than 0.5 us */
#include "nccl/nccl_abi.h"

#include <cuda.h>
#include <hoccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 400, CALLS = 100 };

static ncclComm_t nccl;
static HOCCL_Comm hoccl;
static CUstream stream;
static void *buffer;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void check(int bad, const char *what)
{
    if (!bad)
        return;
    fprintf(stderr, "%s: %s / %s\n", what, ncclGetLastError(NULL), HOCCL_GetLastError());
    exit(1);
}

/* ---- the calls, each by either interface ------------------------------------------------------------------------------ */

static void group(int by_nccl)
{
    if (by_nccl)
        check(ncclGroupStart() || ncclGroupEnd(), "ncclGroupStart, ncclGroupEnd");
    else
        check(HOCCL_GroupStart() || HOCCL_GroupEnd(), "HOCCL_GroupStart, HOCCL_GroupEnd");
}

static void all_gather(int by_nccl)
{
    if (by_nccl)
        check(ncclAllGather(buffer, buffer, 1, ncclInt8, nccl, stream), "ncclAllGather");
    else
        check(HOCCL_AllGather(buffer, buffer, 1, HOCCL_INT8, hoccl, stream), "HOCCL_AllGather");
}

static void async_error(int by_nccl)
{
    ncclResult_t n;
    HOCCL_Result h;
    if (by_nccl)
        check(ncclCommGetAsyncError(nccl, &n), "ncclCommGetAsyncError");
    else
        check(HOCCL_CommGetAsyncError(hoccl, &h), "HOCCL_CommGetAsyncError");
}

static void rank(int by_nccl)
{
    int r;
    if (by_nccl)
        check(ncclCommUserRank(nccl, &r), "ncclCommUserRank");
    else
        check(HOCCL_CommRank(hoccl, &r), "HOCCL_CommRank");
}

/* In an open group. */
static void message(int by_nccl)
{
    if (by_nccl)
        check(ncclSend(NULL, 0, ncclInt8, 0, nccl, stream) || ncclRecv(NULL, 0, ncclInt8, 0, nccl, stream), "ncclSend, ncclRecv");
    else
        check(HOCCL_Send(NULL, 0, HOCCL_INT8, 0, hoccl, stream) || HOCCL_Recv(NULL, 0, HOCCL_INT8, 0, hoccl, stream),
              "HOCCL_Send, HOCCL_Recv");
}

/* ---- measuring --------------------------------------------------------------------------------------------------------- */

struct kind {
    const char *name;
    void (*call)(int);
    int in_group, calls; /* of the interface in one go */
};

static double once(const struct kind *k, int by_nccl)
{
    if (k->in_group)
        check(by_nccl ? (int)ncclGroupStart() : (int)HOCCL_GroupStart(), "start");
    double begun = now();
    for (int i = 0; i < CALLS; i++)
        k->call(by_nccl);
    double each = (now() - begun) / (CALLS * k->calls);
    if (k->in_group) {
        check(by_nccl ? (int)ncclGroupEnd() : (int)HOCCL_GroupEnd(), "end");
        check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
    return each;
}

static int measure(const struct kind *k)
{
    double best[2] = {1e18, 1e18};
    for (int round = 0; round < 2 * ROUNDS; round++) {
        double t = once(k, round % 2);
        if (t < best[round % 2])
            best[round % 2] = t;
    }
    printf("%-28s %8.0f %8.0f %8.0f\n", k->name, best[0], best[1], best[1] - best[0]);
    return best[1] - best[0] > 500;
}

int main(void)
{
    static const struct kind kinds[] = {{"Send, Recv in a group", message, 1, 2},
                                        {"AllGather, nothing to move", all_gather, 0, 1},
                                        {"GroupStart, GroupEnd", group, 0, 2},
                                        {"CommGetAsyncError", async_error, 0, 1},
                                        {"CommUserRank", rank, 0, 1}};
    HOCCL_UniqueId id;
    CUcontext context;
    int bad = 0;

    check(cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
          "the GPU");
    check(HOCCL_GetUniqueId(&id) || HOCCL_CommInitRank(&hoccl, 1, id, 0), "HOCCL_CommInitRank");
    check(ncclCommInitAll(&nccl, 1, NULL), "ncclCommInitAll");
    check(ncclMemAlloc(&buffer, 1), "ncclMemAlloc");
    printf("%-28s %8s %8s %8s\n", "ns a call", "HOCCL", "NCCL", "more");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        bad |= measure(&kinds[i]);
    check(ncclCommDestroy(nccl) || HOCCL_CommDestroy(hoccl) || ncclMemFree(buffer), "the end");
    return bad;
}
