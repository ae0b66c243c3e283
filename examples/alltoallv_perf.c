/* SPDX-License-Identifier: Apache-2.0 */
/* Alltoallv of unequal rows, as in expert parallelism: every rank sends size bytes in all, most of them to the ranks
 * that are popular. Rank r's share goes by Zipf's law, 1 / (r + 1)^s, so with s = 0 it is an Alltoall and the larger s
 * is, the more goes to rank 0. With --zero N the last N ranks send nothing.
 *
 * What bounds such an exchange is the rank that sends or receives most, so busbw is the rate there. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>

static double zipf = 1;
static int zero_rows;

static size_t row(const struct job *job, int source, int destination, size_t bytes)
{
    double sum = 0;

    if (source >= job->size - zero_rows)
        return 0;
    for (int rank = 0; rank < job->size; rank++)
        sum += pow(rank + 1, -zipf);
    return (size_t)((double)bytes * pow(destination + 1, -zipf) / sum);
}

static void lay_out(const struct bench *bench, size_t bytes, struct layout *layout)
{
    const struct job *job = &bench->job;
    size_t send_at = 0, receive_at = 0;

    layout->bus_bytes = 0;
    for (int peer = 0; peer < job->size; peer++) {
        size_t out = 0, in = 0; /* what this peer exchanges with others */
        layout->send[peer] = row(job, job->rank, peer, bytes);
        layout->receive[peer] = row(job, peer, job->rank, bytes);
        layout->send_at[peer] = send_at;
        layout->receive_at[peer] = receive_at;
        send_at += layout->send[peer];
        receive_at += layout->receive[peer];
        for (int other = 0; other < job->size; other++) {
            out += other == peer ? 0 : row(job, peer, other, bytes);
            in += other == peer ? 0 : row(job, other, peer, bytes);
        }
        out = out > in ? out : in;
        layout->bus_bytes = out > layout->bus_bytes ? out : layout->bus_bytes;
    }
    layout->shown = layout->count = bytes;
}

static void enqueue(const struct bench *bench, const struct layout *layout, const void *out, void *in)
{
    check_hoccl(HOCCL_Alltoallv(out, layout->send, layout->send_at, in, layout->receive, layout->receive_at, HOCCL_BYTE,
                                bench->job.comm, bench->stream),
                "HOCCL_Alltoallv");
}

static bool take(int letter, const char *value)
{
    if (letter == 256)
        zipf = atof(value);
    if (letter == 257)
        zero_rows = atoi(value);
    return letter == 256 || letter == 257;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {{"zipf", 1, NULL, 256}, {"zero", 1, NULL, 257}, {NULL, 0, NULL, 0}};
    static const struct bench_program program = {
        .name = "alltoallv_perf",
        .what = "every rank sends size bytes in all, to rank r a part in proportion to 1 / (r + 1)^zipf",
        .formula = "algbw = size / time; busbw = the most that one rank sends to or receives from others / time",
        .lay_out = lay_out,
        .enqueue = enqueue,
        .names = names,
        .usage = "      --zipf S           how unequal the rows are, 0: equal (1)\n"
                 "      --zero N           the last N ranks send nothing (0)\n",
        .take = take,
    };
    return bench_main(&program, argc, argv);
}
