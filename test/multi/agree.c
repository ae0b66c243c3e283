/* SPDX-License-Identifier: Apache-2.0 */
/* HOCCL_Alltoallv_init among processes (planned.c has the rest, among threads).
 *
 *   agree plan      one long flow from each rank to each other node's, started often, every byte; with TCP's real costs
 *   agree die WHO   rank WHO kills itself before it comes to the call (mpirun --enable-recovery): all others hear of it, and soon
 */
#include "rank.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16, STARTS = 3 };

static size_t counts[MOST], displs[MOST], rcounts[MOST], rdispls[MOST], all, rall;
static CUdeviceptr out, in;
static unsigned char *host;

/* Few flows, and not the same for all. */
static size_t bytes_of(int from, int to)
{
    return (from * 7 + to * 3) % 5 < 2 ? ((size_t)1 << 20) * (size_t)(1 + (from + 2 * to) % 4) + (size_t)from : 0;
}

static void lay_out(void)
{
    for (int p = 0; p < size; p++) {
        counts[p] = bytes_of(rank, p);
        rcounts[p] = bytes_of(p, rank);
        displs[p] = all;
        rdispls[p] = rall;
        all += counts[p];
        rall += rcounts[p];
    }
    OK(cuMemAlloc(&out, all + 1));
    OK(cuMemAlloc(&in, rall + MOST));
    NEED(host = malloc(all + rall + 1));
}

static unsigned char byte_of(int from, int to, int round, size_t i)
{
    return (unsigned char)mix3((uint64_t)from * 64 + (uint64_t)to, (uint64_t)round, i / 512);
}

static void fill(int round)
{
    for (int p = 0; p < size; p++)
        for (size_t i = 0; i < counts[p]; i++)
            host[displs[p] + i] = byte_of(rank, p, round, i);
    OK(cuMemcpyHtoD(out, host, all));
    OK(cuMemsetD8(in, 0, rall));
    OK(cuStreamSynchronize(NULL));
}

static void check(int round)
{
    OK(cuMemcpyDtoH(host, in, rall));
    for (int p = 0; p < size; p++)
        for (size_t i = 0; i < rcounts[p]; i++)
            NEED(host[rdispls[p] + i] == byte_of(p, rank, round, i));
}

static HOCCL_Result init(HOCCL_Request *q)
{
    return HOCCL_Alltoallv_init((void *)out, counts, displs, (void *)in, rcounts, rdispls, HOCCL_BYTE, comm, q);
}

static void plan(void)
{
    HOCCL_Request q;
    OK(init(&q));
    for (int round = 0; round < STARTS; round++) {
        fill(round);
        OK(HOCCL_Start(q, stream));
        OK(rank_wait());
        check(round);
    }
    OK(HOCCL_RequestFree(q));
    if (!rank)
        printf("%d ranks: every byte of every start right\n", size);
}

static void survive(int who)
{
    HOCCL_Request q;
    struct timespec begun, now;
    OK(init(&q));
    OK(HOCCL_AllGather((void *)out, (void *)in, 1, HOCCL_BYTE, comm, stream));
    HOCCL_Result started = rank_wait(); /* who has a byte from all knows that all have come so far */
    if (rank == who) {
        OK(started);
        usleep(300000);
        kill(getpid(), SIGKILL);
    }
    clock_gettime(CLOCK_MONOTONIC, &begun);
    NEED(init(&q) != HOCCL_SUCCESS);
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("rank %d has heard: %s\n", rank, HOCCL_GetLastError());
    NEED(now.tv_sec - begun.tv_sec < 20);
    fflush(stdout);
    HOCCL_CommAbort(comm);
}

int main(int argc, char **argv)
{
    CUcontext context;
    NEED(argc > 1);
    alarm(100);
    rank_open();
    NEED(size <= MOST);
    OK(cuDevicePrimaryCtxRetain(&context, rank_device())); /* HOCCL_CommAbort gives up what HOCCL_Init has made */
    lay_out();
    if (!strcmp(argv[1], "die")) {
        survive(argc > 2 ? atoi(argv[2]) : 0);
        return 0;
    }
    plan();
    OK(cuMemFree(out));
    OK(cuMemFree(in));
    free(host);
    rank_close();
    return 0;
}
