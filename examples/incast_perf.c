/* SPDX-License-Identifier: Apache-2.0 */
/* Incast: all ranks but one send to the same rank at once, and nothing else moves: what several engines that push to
 * one GPU do to one another. Size is what each sends. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

static int target;

static void lay_out(const struct bench *bench, size_t bytes, struct layout *layout)
{
    const struct job *job = &bench->job;
    size_t at = 0;

    if (target < 0 || target >= job->size)
        fail("--to %d: there are ranks 0 to %d", target, job->size - 1);
    memset(layout->send, 0, (size_t)job->size * sizeof *layout->send);
    memset(layout->receive, 0, (size_t)job->size * sizeof *layout->receive);
    for (int source = 0; source < job->size; source++) {
        if (source == target)
            continue;
        if (job->rank == source)
            layout->send[target] = bytes;
        if (job->rank == target)
            layout->receive[source] = bytes;
        layout->receive_at[source] = at;
        at += bytes;
    }
    layout->shown = layout->count = bytes;
    layout->bus_bytes = at;
}

static void enqueue(const struct bench *bench, const struct layout *layout, const void *out, void *in)
{
    const struct job *job = &bench->job;

    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    if (job->rank != target)
        check_hoccl(HOCCL_Send(out, layout->count, HOCCL_BYTE, target, job->comm, bench->stream), "HOCCL_Send");
    for (int source = 0; source < job->size && job->rank == target; source++)
        if (source != target)
            check_hoccl(HOCCL_Recv((char *)in + layout->receive_at[source], layout->count, HOCCL_BYTE, source,
                                   job->comm, bench->stream),
                        "HOCCL_Recv");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

static bool take(int letter, const char *value)
{
    if (letter == 256)
        target = atoi(value);
    return letter == 256;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {{"to", 1, NULL, 256}, {NULL, 0, NULL, 0}};
    static const struct bench_program program = {
        .name = "incast_perf",
        .what = "all ranks but one send size bytes to that one",
        .formula = "algbw = size / time; busbw = algbw x (ranks - 1), what the one receives",
        .lay_out = lay_out,
        .enqueue = enqueue,
        .names = names,
        .usage = "      --to RANK          who receives (0)\n",
        .take = take,
    };
    return bench_main(&program, argc, argv);
}
