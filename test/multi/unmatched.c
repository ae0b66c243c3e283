/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank has posted a receive that nobody will ever match, and finalises: an error that says so at every rank, and
 * nobody waits for ever. usage: mpirun -np N unmatched */
#include "../../examples/common.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    struct job job;
    CUstream stream;
    CUdeviceptr p;
    job_open(&job);
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&p, 64), "cuMemAlloc");
    check_hoccl(HOCCL_Recv((void *)p, 64, HOCCL_BYTE, (job.rank + 1) % job.size, HOCCL_COMM_WORLD, stream), "HOCCL_Recv");
    HOCCL_Result r = HOCCL_Finalize();
    printf("rank %d: %s: %s\n", job.rank, HOCCL_GetErrorString(r), HOCCL_GetLastError());
    if (r != HOCCL_ERR_PEER || !strstr(HOCCL_GetLastError(), "without posting its side"))
        fail("HOCCL_Finalize did not say that the receive can never be matched");
    check_cuda(cuStreamSynchronize(stream), "the released stream");
    return 0;
}
