/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcast from rank 0, as nccl-tests' broadcast_perf does it. */
#include "bench.h"

enum { ROOT = 0 };

static void lay_out(const struct bench *bench, size_t bytes, struct layout *layout)
{
    for (int peer = 0; peer < bench->job.size; peer++)
        layout->send[peer] = bench->job.rank == ROOT ? bytes : 0;
    layout->receive[ROOT] = bytes;
    layout->shown = layout->count = layout->bus_bytes = bytes;
}

static void enqueue(const struct bench *bench, const struct layout *layout, const void *out, void *in)
{
    check_hoccl(HOCCL_Broadcast(out, in, layout->count, HOCCL_BYTE, ROOT, bench->job.comm, bench->stream),
                "HOCCL_Broadcast");
}

int main(int argc, char **argv)
{
    static const struct bench_program program = {
        .name = "broadcast_perf",
        .what = "rank 0 gives count elements to all; size = count",
        .formula = "algbw = busbw = size / time",
        .same_for_all = true,
        .in_place = true,
        .lay_out = lay_out,
        .enqueue = enqueue,
    };
    return bench_main(&program, argc, argv);
}
