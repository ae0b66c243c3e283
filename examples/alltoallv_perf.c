/* SPDX-License-Identifier: Apache-2.0 */
/* Alltoallv of unequal rows, as in expert parallelism: every rank sends size bytes in all, most of them to the ranks
 * that are popular. Rank r's share goes by Zipf's law, 1 / (r + 1)^s, so with s = 0 it is an Alltoall and the larger s
 * is, the more goes to rank 0. With --random N the shares are by chance instead, others in each row, always the same
 * for the same N. With --zero N the last N ranks send nothing.
 *
 * What bounds such an exchange is the rank that sends or receives most, so busbw is the rate there. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>

static double zipf = 1;
static int zero_rows;
static uint64_t seed; /* 0: by Zipf's law */

/* Above 0 and up to 1: a mixing function (SplitMix64's) of the seed and the place. */
static double chance(int source, int destination)
{
    uint64_t word = seed * 0x9e3779b97f4a7c15u + ((uint64_t)source << 32 | (uint64_t)destination);

    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return (double)(((word ^ (word >> 31)) >> 11) + 1) * 0x1p-53;
}

static double weight(int source, int destination)
{
    return seed ? chance(source, destination) : pow(destination + 1, -zipf);
}

static size_t row(const struct job *job, int source, int destination, size_t bytes)
{
    double sum = 0;

    if (source >= job->size - zero_rows)
        return 0;
    for (int rank = 0; rank < job->size; rank++)
        sum += weight(source, rank);
    return (size_t)((double)bytes * weight(source, destination) / sum);
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
    if (letter == 258)
        seed = strtoull(value, NULL, 10);
    return letter >= 256 && letter <= 258;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"zipf", 1, NULL, 256}, {"zero", 1, NULL, 257}, {"random", 1, NULL, 258}, {NULL, 0, NULL, 0}};
    static const struct bench_program program = {
        .name = "alltoallv_perf",
        .what = "every rank sends size bytes in all, to rank r a part in proportion to 1 / (r + 1)^zipf, or by chance",
        .formula = "algbw = size / time; busbw = the most that one rank sends to or receives from others / time",
        .lay_out = lay_out,
        .enqueue = enqueue,
        .names = names,
        .usage = "      --zipf S           how unequal the rows are, 0: equal (1)\n"
                 "      --random N         parts by chance instead, the same ones for the same N (0: not)\n"
                 "      --zero N           the last N ranks send nothing (0)\n",
        .take = take,
    };
    return bench_main(&program, argc, argv);
}
