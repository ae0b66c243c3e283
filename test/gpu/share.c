/* SPDX-License-Identifier: Apache-2.0 */
/* What a small message waits for beside a huge one, and what a foreground phase is worth.
 *
 *   mpirun -np 2 share [SMALL [HUGE [ROUNDS]]]
 *
 *   alone     the small one, both ways, on a stream of its own
 *   together  right behind a huge one, both ways, that is posted on another stream
 *   later     300 µs after it
 *   marked    the same, the huge one's communicator giving way in a foreground phase of the small one's stream
 *
 * Microseconds of rank 0, from the call until its stream has passed; the huge one is waited for in each round. */
#include "../../examples/common.h"

#include <stdio.h>
#include <stdlib.h>

enum how { ALONE, TOGETHER, LATER, MARKED, HOWS };
static const char *const names[] = {"alone", "together", "later", "marked"};

static struct job job;
static HOCCL_Comm front;
static CUstream back_stream, front_stream;
static CUdeviceptr out, in, small_out, small_in;

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

static double round_of(enum how how, size_t small, size_t huge)
{
    exchange(front, small_out, small_in, 8, front_stream); /* both ranks begin together */
    passed(front_stream);
    if (how != ALONE)
        exchange(job.comm, out, in, huge, back_stream);
    for (double until = now() + 300e-6; how >= LATER && now() < until;)
        ;
    double begun = now();
    if (how == MARKED)
        check_hoccl(HOCCL_ForegroundBegin(job.comm, front_stream), "HOCCL_ForegroundBegin");
    exchange(front, small_out, small_in, small, front_stream);
    if (how == MARKED)
        check_hoccl(HOCCL_ForegroundEnd(job.comm, front_stream), "HOCCL_ForegroundEnd");
    passed(front_stream);
    double seconds = now() - begun;
    passed(back_stream);
    return seconds;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    size_t small = size_parse(argc > 1 ? argv[1] : "1M"), huge = size_parse(argc > 2 ? argv[2] : "1G");
    int rounds = argc > 3 ? atoi(argv[3]) : 50;
    double *seconds = calloc((size_t)rounds, sizeof *seconds);

    job_open(&job);
    if (job.size != 2 || rounds < 1 || small < 8 || !seconds)
        fail("usage: mpirun -np 2 share [SMALL [HUGE [ROUNDS]]]");
    check_hoccl(HOCCL_CommSplit(job.comm, 0, job.rank, &front), "HOCCL_CommSplit");
    check_cuda(cuStreamCreate(&back_stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuStreamCreate(&front_stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&out, huge), "cuMemAlloc");
    check_cuda(cuMemAlloc(&in, huge), "cuMemAlloc");
    check_cuda(cuMemAlloc(&small_out, small), "cuMemAlloc");
    check_cuda(cuMemAlloc(&small_in, small), "cuMemAlloc");
    if (job.rank == 0)
        printf("# %zu bytes beside %zu on %s (%s), %d rounds, µs\n#%9s %10s %10s %10s %10s\n", small, huge, job.gpu, job.driver,
               rounds, "", "first", "median", "p90", "largest");
    for (int how = ALONE; how < HOWS; how++) {
        round_of((enum how)how, small, huge); /* first use of buffers and streams */
        for (int i = 0; i < rounds; i++)
            seconds[i] = round_of((enum how)how, small, huge);
        double first = seconds[0];
        qsort(seconds, (size_t)rounds, sizeof *seconds, ascending);
        if (job.rank == 0)
            printf("%-10s %10.1f %10.1f %10.1f %10.1f\n", names[how], 1e6 * first, 1e6 * seconds[rounds / 2],
                   1e6 * seconds[rounds * 9 / 10], 1e6 * seconds[rounds - 1]);
    }
    check_cuda(cuMemFree(out), "cuMemFree");
    check_cuda(cuMemFree(in), "cuMemFree");
    check_cuda(cuMemFree(small_out), "cuMemFree");
    check_cuda(cuMemFree(small_in), "cuMemFree");
    check_hoccl(HOCCL_CommDestroy(front), "HOCCL_CommDestroy");
    job_close();
    free(seconds);
    return 0;
}
