/* SPDX-License-Identifier: Apache-2.0 */
/* Send and receive in a ring, as nccl-tests' sendrecv_perf does it, between processes: every rank sends to rank + 1 and
 * receives from rank - 1 at the same time, in one group on one stream. */
#include "bench.h"

#include <string.h>

static void lay_out(const struct bench *bench, size_t bytes, struct layout *layout)
{
    const struct job *job = &bench->job;

    memset(layout->send, 0, (size_t)job->size * sizeof *layout->send);
    memset(layout->receive, 0, (size_t)job->size * sizeof *layout->receive);
    layout->send[(job->rank + 1) % job->size] = bytes;
    layout->receive[(job->rank - 1 + job->size) % job->size] = bytes;
    layout->shown = layout->count = layout->bus_bytes = bytes;
}

static void enqueue(const struct bench *bench, const struct layout *layout, const void *out, void *in)
{
    const struct job *job = &bench->job;
    int right = (job->rank + 1) % job->size, left = (job->rank - 1 + job->size) % job->size;

    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(HOCCL_Send(out, layout->count, HOCCL_BYTE, right, job->comm, bench->stream), "HOCCL_Send");
    check_hoccl(HOCCL_Recv(in, layout->count, HOCCL_BYTE, left, job->comm, bench->stream), "HOCCL_Recv");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

int main(int argc, char **argv)
{
    static const struct bench_program program = {
        .name = "sendrecv_perf",
        .what = "every rank sends to rank + 1 and receives from rank - 1",
        .formula = "algbw = size / time; busbw = algbw",
        .lay_out = lay_out,
        .enqueue = enqueue,
    };
    return bench_main(&program, argc, argv);
}
