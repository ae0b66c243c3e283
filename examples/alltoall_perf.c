/* SPDX-License-Identifier: Apache-2.0 */
/* Alltoall, as nccl-tests' alltoall_perf does it: size is what a rank sends, a count to each rank, itself included. */
#include "bench.h"

static void lay_out(const struct bench *bench, size_t bytes, struct layout *layout)
{
    size_t ranks = (size_t)bench->job.size, count = bytes / ranks;

    for (size_t peer = 0; peer < ranks; peer++) {
        layout->send[peer] = layout->receive[peer] = count;
        layout->send_at[peer] = layout->receive_at[peer] = peer * count;
    }
    layout->count = count;
    layout->shown = count * ranks;
    layout->bus_bytes = count * (ranks - 1);
}

static void enqueue(const struct bench *bench, const struct layout *layout, const void *out, void *in)
{
    check_hoccl(HOCCL_Alltoall(out, in, layout->count, HOCCL_BYTE, bench->job.comm, bench->stream), "HOCCL_Alltoall");
}

int main(int argc, char **argv)
{
    static const struct bench_program program = {
        .name = "alltoall_perf",
        .what = "every rank has count elements for each; size = count x ranks",
        .formula = "algbw = size / time; busbw = algbw x (ranks - 1) / ranks",
        .lay_out = lay_out,
        .enqueue = enqueue,
    };
    return bench_main(&program, argc, argv);
}
