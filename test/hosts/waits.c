/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks of which each has posted a receive that the other will not match, and rests: nothing moves. Something must end it:
 * then the program says the error and succeeds. With an argument rank 0 waits in a split
 * instead. usage: mpirun -np 2 waits [split] */
#include "../../examples/common.h"

#include <stdio.h>
#include <stdlib.h>

/* Rank 1 never comes. */
static void split(void)
{
    HOCCL_Comm comm;
    fprintf(stderr, "rank 0 waits\n");
    HOCCL_Result error = HOCCL_CommSplit(HOCCL_COMM_WORLD, 0, 0, &comm);
    fprintf(stderr, "rank 0: %s: %s\n", HOCCL_GetErrorString(error), HOCCL_GetLastError());
    exit(!error);
}

int main(int argc, char **argv)
{
    (void)argv;
    struct job job;
    CUstream stream;
    CUdeviceptr p;
    HOCCL_Result error;
    job_open(&job);
    if (argc > 1 && !job.rank)
        split();
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&p, 64), "cuMemAlloc");
    check_hoccl(HOCCL_Recv((void *)p, 64, HOCCL_BYTE, 1 - job.rank, job.comm, stream), "HOCCL_Recv");
    fprintf(stderr, "rank %d waits\n", job.rank);
    check_cuda(cuStreamSynchronize(stream), "the released stream");
    check_hoccl(HOCCL_CommGetAsyncError(job.comm, &error), "HOCCL_CommGetAsyncError");
    if (!error)
        fail("the receive has ended well");
    fprintf(stderr, "rank %d: %s: %s\n", job.rank, HOCCL_GetErrorString(error), HOCCL_GetLastError());
    return 0;
}
