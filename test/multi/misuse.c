/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks make every mistake that a caller can make. Each must be reported by the right result and a text that names
 * the cause, must post nothing, and must leave the communicator good: a verified exchange follows. Last come counts that
 * differ between the ends: both ranks report both values, the error stays, and abort works. */
#include "../../examples/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 100000 };

static struct job job;
static CUstream stream;
static CUdeviceptr out, in;
static int peer, mistakes;

/* A call must have returned this, and the text must have this word in it. */
static void expect(const char *what, HOCCL_Result returned, HOCCL_Result right, const char *word)
{
    const char *text = returned == HOCCL_SUCCESS ? "" : HOCCL_GetLastError();
    bool good = returned == right && strstr(text, word);

    mistakes += !good;
    if (!good || job.rank == 0)
        printf("%s rank %d: %s: %s: \"%s\"%s%s%s\n", good ? "ok" : "FAIL:", job.rank, what, HOCCL_GetErrorString(returned),
               text, good ? "" : ", not ", good ? "" : HOCCL_GetErrorString(right), good ? "" : word);
}

static HOCCL_Result send_bytes(const void *buffer, size_t count, int to)
{
    return HOCCL_Send(buffer, count, HOCCL_BYTE, to, HOCCL_COMM_WORLD, stream);
}

static HOCCL_Result receive_bytes(void *buffer, size_t count, int from)
{
    return HOCCL_Recv(buffer, count, HOCCL_BYTE, from, HOCCL_COMM_WORLD, stream);
}

/* The communicator still moves the right bytes. */
static void exchange(const char *after)
{
    static unsigned char seen[BYTES];
    static unsigned number;
    struct message mine = {job.rank, peer, number}, theirs = {peer, job.rank, number++};
    size_t offset;
    int right;

    pattern_fill(out, BYTES, mine);
    check_hoccl(HOCCL_GroupStart(), after);
    check_hoccl(send_bytes((void *)out, BYTES, peer), after);
    check_hoccl(receive_bytes((void *)in, BYTES, peer), after);
    check_hoccl(HOCCL_GroupEnd(), after);
    check_cuda(cuStreamSynchronize(stream), after);
    check_cuda(cuMemcpyDtoH(seen, in, BYTES), after);
    if (pattern_check(seen, BYTES, theirs, &offset, &right))
        fail("wrong bytes after %s", after);
}

static void wrong_arguments(void)
{
    HOCCL_Comm nobody = (HOCCL_Comm)(uintptr_t)0x123456;
    void *pageable = malloc(BYTES), *device = (void *)out;
    size_t whole;
    CUdeviceptr base;
    int value;

    expect("NULL to send", send_bytes(NULL, 8, peer), HOCCL_ERR_ARGUMENT, "NULL");
    expect("NULL to receive into", receive_bytes(NULL, 8, peer), HOCCL_ERR_ARGUMENT, "NULL");
    expect("rank -1", send_bytes(device, 8, -1), HOCCL_ERR_ARGUMENT, "-1");
    expect("rank beyond the last", receive_bytes(device, 8, job.size), HOCCL_ERR_ARGUMENT, "rank");
    expect("type -1", HOCCL_Send(device, 8, (HOCCL_Datatype)-1, peer, HOCCL_COMM_WORLD, stream), HOCCL_ERR_ARGUMENT,
           "type");
    expect("type 1000", HOCCL_Recv(device, 8, (HOCCL_Datatype)1000, peer, HOCCL_COMM_WORLD, stream), HOCCL_ERR_ARGUMENT,
           "type");
    expect("more bytes than can be", HOCCL_Send(device, SIZE_MAX / 4, HOCCL_FP64, peer, HOCCL_COMM_WORLD, stream),
           HOCCL_ERR_ARGUMENT, "");
    expect("pageable host memory", send_bytes(pageable, 8, peer), HOCCL_ERR_ARGUMENT, "device memory");
    expect("host memory to receive into", receive_bytes(&value, sizeof value, peer), HOCCL_ERR_ARGUMENT,
           "device memory");
    check_cuda(cuMemGetAddressRange(&base, &whole, out), "cuMemGetAddressRange");
    expect("more than the allocation", send_bytes((void *)base, whole + 1, peer), HOCCL_ERR_ARGUMENT, "");
    expect("no communicator", HOCCL_Send(device, 8, HOCCL_BYTE, peer, HOCCL_COMM_NULL, stream), HOCCL_ERR_ARGUMENT,
           "communicator");
    expect("not a communicator", HOCCL_Send(device, 8, HOCCL_BYTE, peer, nobody, stream), HOCCL_ERR_ARGUMENT,
           "communicator");
    expect("NULL for the rank", HOCCL_CommRank(HOCCL_COMM_WORLD, NULL), HOCCL_ERR_ARGUMENT, "NULL");
    expect("NULL for the version", HOCCL_GetVersion(NULL), HOCCL_ERR_ARGUMENT, "NULL");
    free(pageable);
}

static void wrong_order(void)
{
    expect("Init twice", HOCCL_Init(), HOCCL_ERR_USAGE, "");
    expect("End without Start", HOCCL_GroupEnd(), HOCCL_ERR_USAGE, "Start");
    exchange("End without Start");

    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(send_bytes((void *)out, 8, peer), "HOCCL_Send");
    expect("NULL in a group", receive_bytes(NULL, 8, peer), HOCCL_ERR_ARGUMENT, "NULL");
    expect("End of a group with a mistake", HOCCL_GroupEnd(), HOCCL_ERR_ARGUMENT, "NULL");
    exchange("a group with a mistake");

    check_cuda(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    expect("a stream that is capturing", send_bytes((void *)out, 8, peer), HOCCL_ERR_UNSUPPORTED, "captur");
    CUgraph graph;
    check_cuda(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    check_cuda(cuGraphDestroy(graph), "cuGraphDestroy");
    exchange("a capture");
}

/* Rank 0 sends 5 bytes, rank 1 expects 7. */
static void different_counts(void)
{
    HOCCL_Result error = HOCCL_SUCCESS;
    const char *text;

    check_hoccl(job.rank ? receive_bytes((void *)in, 7, peer) : send_bytes((void *)out, 5, peer), "the first half");
    check_cuda(cuStreamSynchronize(stream), "cuStreamSynchronize"); /* released, not waiting for ever */
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &error), "HOCCL_CommGetAsyncError");
    expect("counts that differ", send_bytes((void *)out, 8, peer), HOCCL_ERR_MISMATCH, " 5 bytes");
    expect("the same again", receive_bytes((void *)in, 8, peer), HOCCL_ERR_MISMATCH, " 7 bytes");
    text = HOCCL_GetErrorString(error);
    if (error != HOCCL_ERR_MISMATCH) {
        printf("FAIL: rank %d: the communicator's error is %s\n", job.rank, text);
        mistakes++;
    }
    check_hoccl(HOCCL_CommAbort(HOCCL_COMM_WORLD), "HOCCL_CommAbort");
    expect("an aborted communicator", send_bytes((void *)out, 8, peer), HOCCL_ERR_ARGUMENT, "aborted");
    expect("aborted twice", HOCCL_CommAbort(HOCCL_COMM_WORLD), HOCCL_ERR_ARGUMENT, "aborted");
}

int main(void)
{
    expect("a call before Init", HOCCL_GroupEnd(), HOCCL_ERR_USAGE, "");
    job_open(&job);
    peer = 1 - job.rank;
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&out, BYTES), "cuMemAlloc");
    check_cuda(cuMemAlloc(&in, BYTES), "cuMemAlloc");

    exchange("the start");
    wrong_arguments();
    exchange("wrong arguments");
    wrong_order();
    different_counts();
    HOCCL_Finalize();
    printf("rank %d: %d mistakes were not reported as they should be\n", job.rank, mistakes);
    return mistakes != 0;
}
