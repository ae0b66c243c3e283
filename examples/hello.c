/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank exchanges data with both neighbours in a ring, both ways at once, and checks every byte.
 *
 *         rank - 1  <──── left stream ────>  rank  <──── right stream ────>  rank + 1
 *
 * A round is one group of four operations on two streams. Behind it stands, on the same streams, the copy to the host
 * that is checked: it must see what was received. What is sent differs from round to round, so a byte that was left
 * over from the round before is noticed. With two ranks both neighbours are the same rank, with one it is the rank
 * itself: operations between a pair of ranks match in posting order, so what goes right is received from the left
 * first. */
#include "common.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] = "usage: mpirun -np N hello [options]\n"
                            "  -s, --size BYTES    how much goes to each neighbour (64M)\n"
                            "  -n, --rounds N      how often (3)\n"
                            "      --spoil OFFSET  rank 0 sends one wrong byte there, to see that it is noticed\n"
                            "  -h, --help\n";

struct options {
    size_t bytes, spoil;
    int rounds;
    bool spoiled;
};

/* Everything that goes to and comes from one neighbour. seen is pinned host memory for the check. */
struct neighbour {
    int rank;
    CUstream stream;
    CUevent done;
    CUdeviceptr out, in;
    unsigned char *seen;
};

static struct options options_parse(int argc, char **argv)
{
    static const struct option names[] = {{"size", 1, NULL, 's'},
                                          {"rounds", 1, NULL, 'n'},
                                          {"spoil", 1, NULL, 'x'},
                                          {"help", 0, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct options options = {.bytes = 64 << 20, .rounds = 3};
    int letter;

    while ((letter = getopt_long(argc, argv, "s:n:h", names, NULL)) != -1) {
        switch (letter) {
        case 's':
            options.bytes = size_parse(optarg);
            break;
        case 'n':
            options.rounds = atoi(optarg);
            break;
        case 'x':
            options.spoil = size_parse(optarg);
            options.spoiled = true;
            break;
        default:
            fputs(usage, letter == 'h' ? stdout : stderr);
            exit(letter == 'h' ? 0 : 2);
        }
    }
    return options;
}

static void neighbour_open(struct neighbour *neighbour, int rank, size_t bytes)
{
    neighbour->rank = rank;
    check_cuda(cuStreamCreate(&neighbour->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&neighbour->out, bytes ? bytes : 1), "cuMemAlloc");
    check_cuda(cuMemAlloc(&neighbour->in, bytes ? bytes : 1), "cuMemAlloc");
    check_cuda(cuMemAllocHost((void **)&neighbour->seen, bytes ? bytes : 1), "cuMemAllocHost");
    check_cuda(cuEventCreate(&neighbour->done, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

static void neighbour_close(struct neighbour *neighbour)
{
    check_cuda(cuStreamDestroy(neighbour->stream), "cuStreamDestroy");
    check_cuda(cuMemFree(neighbour->out), "cuMemFree");
    check_cuda(cuMemFree(neighbour->in), "cuMemFree");
    check_cuda(cuMemFreeHost(neighbour->seen), "cuMemFreeHost");
    check_cuda(cuEventDestroy(neighbour->done), "cuEventDestroy");
}

static void send_to(const struct neighbour *neighbour, size_t bytes)
{
    check_hoccl(HOCCL_Send((const void *)neighbour->out, bytes, HOCCL_BYTE, neighbour->rank, HOCCL_COMM_WORLD,
                           neighbour->stream),
                "HOCCL_Send");
}

static void receive_from(const struct neighbour *neighbour, size_t bytes)
{
    check_hoccl(
        HOCCL_Recv((void *)neighbour->in, bytes, HOCCL_BYTE, neighbour->rank, HOCCL_COMM_WORLD, neighbour->stream),
        "HOCCL_Recv");
}

static void spoil(CUdeviceptr at)
{
    unsigned char byte;

    check_cuda(cuMemcpyDtoH(&byte, at, 1), "cuMemcpyDtoH");
    byte ^= 1;
    copy_in(at, &byte, 1);
}

/* Mark where the exchange has completed, and look at what was received from there on. */
static void look_behind(const struct neighbour *neighbour, size_t bytes)
{
    check_cuda(cuEventRecord(neighbour->done, neighbour->stream), "cuEventRecord");
    check_cuda(cuMemcpyDtoHAsync(neighbour->seen, neighbour->in, bytes, neighbour->stream), "cuMemcpyDtoHAsync");
}

/* Wait until both neighbours have come, with messages of no bytes, so that the exchange is timed without them. */
static void meet(const struct neighbour *left, const struct neighbour *right)
{
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    send_to(right, 0);
    send_to(left, 0);
    receive_from(left, 0);
    receive_from(right, 0);
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    check_cuda(cuStreamSynchronize(left->stream), "cuStreamSynchronize");
    check_cuda(cuStreamSynchronize(right->stream), "cuStreamSynchronize");
}

/* One exchange; returns its seconds. */
static double exchange(const struct neighbour *left, const struct neighbour *right, size_t bytes)
{
    double start, seconds;

    meet(left, right);
    start = now();
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    send_to(right, bytes);
    send_to(left, bytes);
    receive_from(left, bytes);
    receive_from(right, bytes);
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    look_behind(right, bytes); /* what was posted last first */
    look_behind(left, bytes);
    check_cuda(cuEventSynchronize(left->done), "cuEventSynchronize");
    check_cuda(cuEventSynchronize(right->done), "cuEventSynchronize");
    seconds = now() - start;
    check_cuda(cuStreamSynchronize(left->stream), "cuStreamSynchronize");
    check_cuda(cuStreamSynchronize(right->stream), "cuStreamSynchronize");
    return seconds;
}

static void verify(const struct neighbour *neighbour, size_t bytes, struct message message)
{
    HOCCL_Result error;
    size_t wrong, offset;
    int right;

    /* A failed operation also releases its stream: what went wrong is in the communicator. */
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &error), "HOCCL_CommGetAsyncError");
    check_hoccl(error, "exchange");
    wrong = pattern_check(neighbour->seen, bytes, message, &offset, &right);
    if (wrong)
        fail("FAILED: %zu of %zu bytes from rank %d are wrong in message %u, first at offset %zu: 0x%02x, not 0x%02x",
             wrong, bytes, message.source, message.number, offset, neighbour->seen[offset], right);
}

int main(int argc, char **argv)
{
    struct options options = options_parse(argc, argv);
    struct neighbour left, right;
    double seconds, best = 0;
    long sm_work = 0;
    struct job job;

    job_open(&job);
    if (job.size == 1)
        printf("one rank only: it sends to itself; mpirun -np 2 %s is more of a test\n", argv[0]);
    neighbour_open(&left, (job.rank - 1 + job.size) % job.size, options.bytes);
    neighbour_open(&right, (job.rank + 1) % job.size, options.bytes);

    for (int round = 0; round < options.rounds; round++) {
        unsigned number = 2 * (unsigned)round; /* even ones go right, odd ones go left */
        pattern_fill(right.out, options.bytes, (struct message){job.rank, right.rank, number});
        pattern_fill(left.out, options.bytes, (struct message){job.rank, left.rank, number + 1});
        if (options.spoiled && job.rank == 0 && options.spoil < options.bytes)
            spoil(right.out + options.spoil);

        long before = job_sm_work();
        seconds = exchange(&left, &right, options.bytes);
        sm_work = before < 0 ? -1 : sm_work + job_sm_work() - before;
        best = round == 0 || seconds < best ? seconds : best;

        verify(&left, options.bytes, (struct message){left.rank, job.rank, number});
        verify(&right, options.bytes, (struct message){right.rank, job.rank, number + 1});
    }

    neighbour_close(&left);
    neighbour_close(&right);
    job_close();
    printf("rank %d of %d on %s (%s): %zu bytes to and from ranks %d and %d, %d times, every byte right; "
           "%.2f GB/s out and in, SM work %s\n",
           job.rank, job.size, job.gpu, job.driver, options.bytes, left.rank, right.rank, options.rounds,
           2e-9 * (double)options.bytes / best,
           sm_work < 0 ? "not measured"
           : sm_work   ? "NOT ZERO"
                       : "0");
    return sm_work > 0;
}
