/* SPDX-License-Identifier: Apache-2.0 */
/* What a small transfer waits for beside a huge message, and what a foreground phase saves it, and costs the huge one.
 *
 *   mpirun -np 2 share [SMALL [HUGE [ROUNDS]]]
 *
 *   message   the small one is a message both ways, on a stream and a communicator of its own
 *   copy      the small one is the application's own copy into the peer's memory (opened by IPC), on the engine that the huge
 *             message uses
 *
 *   alone     nothing else
 *   together  right behind a huge message, both ways, that is posted on another stream
 *   later     300 µs after it
 *   marked    the same, the huge one's communicator giving way in a foreground phase of the small one's stream
 *
 * Microseconds of rank 0, from the call until its stream has passed; behind them the huge message's time in the same rounds, which is
 * waited for in each. HOCCL_DEBUG=info says at the end how often and how long it was held up. */
#include "../../examples/common.h"

#include <stdio.h>
#include <stdlib.h>

enum how { ALONE, TOGETHER, LATER, MARKED, HOWS };
static const char *const names[] = {"alone", "together", "later", "marked"};

static struct job job;
static HOCCL_Comm front;
static CUstream back_stream, front_stream;
static CUdeviceptr out, in, small_out, small_in, theirs; /* theirs: small_in of the peer */
static size_t small, huge;
static int rounds;

static void exchange(HOCCL_Comm comm, CUdeviceptr from, CUdeviceptr to, size_t bytes, CUstream stream)
{
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(HOCCL_Send((void *)from, bytes, HOCCL_BYTE, 1 - job.rank, comm, stream), "HOCCL_Send");
    check_hoccl(HOCCL_Recv((void *)to, bytes, HOCCL_BYTE, 1 - job.rank, comm, stream), "HOCCL_Recv");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

static void passed(CUstream stream)
{
    HOCCL_Result error;
    check_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(job.comm, &error), "HOCCL_CommGetAsyncError");
    check_hoccl(error, "exchange");
}

static void move_small(bool copy)
{
    if (copy)
        check_cuda(cuMemcpyDtoDAsync(theirs, small_out, small, front_stream), "cuMemcpyDtoDAsync");
    else
        exchange(front, small_out, small_in, small, front_stream);
}

/* Seconds of the small one; *other: of the huge one. */
static double round_of(bool copy, enum how how, double *other)
{
    exchange(front, small_out, small_in, 8, front_stream); /* both ranks begin together */
    passed(front_stream);
    double posted = now();
    if (how != ALONE)
        exchange(job.comm, out, in, huge, back_stream);
    for (double until = now() + 300e-6; how >= LATER && now() < until;)
        ;
    double begun = now();
    if (how == MARKED)
        check_hoccl(HOCCL_ForegroundBegin(job.comm, front_stream), "HOCCL_ForegroundBegin");
    move_small(copy);
    if (how == MARKED)
        check_hoccl(HOCCL_ForegroundEnd(job.comm, front_stream), "HOCCL_ForegroundEnd");
    passed(front_stream);
    double seconds = now() - begun;
    passed(back_stream);
    *other = how == ALONE ? 0 : now() - posted;
    return seconds;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(const double *sorted, int percent)
{
    return 1e6 * sorted[(rounds - 1) * percent / 100];
}

static void measure(bool copy, enum how how, double *seconds, double *other)
{
    round_of(copy, how, other); /* first use of buffers and streams */
    for (int i = 0; i < rounds; i++)
        seconds[i] = round_of(copy, how, &other[i]);
    double first = 1e6 * seconds[0];
    qsort(seconds, (size_t)rounds, sizeof *seconds, ascending);
    qsort(other, (size_t)rounds, sizeof *other, ascending);
    if (job.rank == 0)
        printf("%-8s %-9s %10.1f %10.1f %10.1f %10.1f %10.1f %12.1f\n", copy ? "copy" : "message", names[how], first, at(seconds, 50),
               at(seconds, 90), at(seconds, 99), at(seconds, 100), at(other, 50));
}

/* The peer tells where its small buffer is, as any application would. */
static void open_theirs(void)
{
    CUipcMemHandle mine, its;
    check_cuda(cuIpcGetMemHandle(&mine, small_in), "cuIpcGetMemHandle");
    check_cuda(cuMemcpyHtoD(small_out, &mine, sizeof mine), "cuMemcpyHtoD");
    check_cuda(cuStreamSynchronize(NULL), "cuStreamSynchronize");
    exchange(front, small_out, small_in, sizeof mine, front_stream);
    passed(front_stream);
    check_cuda(cuMemcpyDtoH(&its, small_in, sizeof its), "cuMemcpyDtoH");
    check_cuda(cuIpcOpenMemHandle(&theirs, its, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
}

static void open_all(void)
{
    check_hoccl(HOCCL_CommSplit(job.comm, 0, job.rank, &front), "HOCCL_CommSplit");
    check_cuda(cuStreamCreate(&back_stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuStreamCreate(&front_stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&out, huge), "cuMemAlloc");
    check_cuda(cuMemAlloc(&in, huge), "cuMemAlloc");
    check_cuda(cuMemAlloc(&small_out, small), "cuMemAlloc");
    check_cuda(cuMemAlloc(&small_in, small), "cuMemAlloc");
    open_theirs();
}

/* The peer's memory is closed by both before either frees it. */
static void close_all(void)
{
    check_cuda(cuIpcCloseMemHandle(theirs), "cuIpcCloseMemHandle");
    exchange(front, small_out, small_in, 8, front_stream);
    passed(front_stream);
    check_cuda(cuMemFree(out), "cuMemFree");
    check_cuda(cuMemFree(in), "cuMemFree");
    check_cuda(cuMemFree(small_out), "cuMemFree");
    check_cuda(cuMemFree(small_in), "cuMemFree");
    check_hoccl(HOCCL_CommDestroy(front), "HOCCL_CommDestroy");
}

int main(int argc, char **argv)
{
    small = size_parse(argc > 1 ? argv[1] : "1M");
    huge = size_parse(argc > 2 ? argv[2] : "1G");
    rounds = argc > 3 ? atoi(argv[3]) : 200;
    double *seconds = calloc(2 * (size_t)(rounds > 0 ? rounds : 1), sizeof *seconds);

    job_open(&job);
    if (job.size != 2 || rounds < 1 || small < sizeof(CUipcMemHandle) || !seconds)
        fail("usage: mpirun -np 2 share [SMALL [HUGE [ROUNDS]]], SMALL at least 64");
    open_all();
    if (job.rank == 0)
        printf("# %zu bytes beside %zu on %s (%s), %d rounds, µs\n#%8s %-9s %10s %10s %10s %10s %10s %12s\n", small, huge, job.gpu,
               job.driver, rounds, "small", "", "first", "median", "p90", "p99", "largest", "huge, median");
    for (int how = ALONE; how < HOWS; how++)
        measure(false, (enum how)how, seconds, seconds + rounds);
    for (int how = ALONE; how < HOWS; how++)
        if (how != TOGETHER) /* a copy of the application stands in no queue of HOCCL's */
            measure(true, (enum how)how, seconds, seconds + rounds);
    close_all();
    job_close();
    free(seconds);
    return 0;
}
