/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are started many times, beside what moves.c shows of them (every collective's bytes): starts that are under
 * way together, groups, streams, what a start asks the driver, and every misuse. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, PIECE = 40000, STREAMS = 3, ROUNDS = 6 };

static pthread_barrier_t settled;

struct work {
    CUdeviceptr out, in; /* RANKS pieces each */
    CUstream stream[STREAMS];
};

static bool work_open(struct rank *r, struct work *w)
{
    bool good = RANK_CUDA(r, cuMemAlloc(&w->out, RANKS * PIECE)) && RANK_CUDA(r, cuMemAlloc(&w->in, RANKS * PIECE));
    for (int i = 0; i < STREAMS && good; i++)
        good = RANK_CUDA(r, cuStreamCreate(&w->stream[i], CU_STREAM_NON_BLOCKING));
    return good;
}

/* cuMemFree waits for every parked stream of the process, so first all ranks are done. */
static void work_close(struct rank *r, struct work *w)
{
    pthread_barrier_wait(&settled);
    for (int i = 0; i < STREAMS; i++)
        RANK_CUDA(r, cuStreamDestroy(w->stream[i]));
    RANK_CUDA(r, cuMemFree(w->out));
    RANK_CUDA(r, cuMemFree(w->in));
    pthread_barrier_wait(&settled);
}

static unsigned char value(int source, int destination, int round)
{
    return (unsigned char)(1 + source * 16 + destination * 4 + round * 67);
}

/* On the stream: this round's pieces. */
static bool fill(struct rank *r, const struct work *w, CUstream stream, int round)
{
    bool good = true;
    for (int d = 0; d < RANKS && good; d++)
        good = RANK_CUDA(r, cuMemsetD8Async(w->out + (size_t)d * PIECE, value(r->rank, d, round), PIECE, stream));
    return good;
}

static bool received(struct rank *r, const struct work *w, CUstream stream, int round)
{
    static __thread unsigned char seen[RANKS * PIECE];
    bool good = RANK_CUDA(r, cuMemcpyDtoHAsync(seen, w->in, sizeof seen, stream)) && RANK_CUDA(r, cuStreamSynchronize(stream));
    for (int s = 0; s < RANKS && good; s++)
        for (size_t i = 0; i < PIECE && good; i++)
            good = RANK_TRUE(r, seen[(size_t)s * PIECE + i] == value(s, r->rank, round));
    return good;
}

static bool make(struct rank *r, const struct work *w, HOCCL_Request *q)
{
    size_t counts[RANKS], displs[RANKS];
    for (size_t i = 0; i < RANKS; i++) {
        counts[i] = PIECE;
        displs[i] = i * PIECE;
    }
    return RANK_OK(r, HOCCL_Alltoallv_init((void *)w->out, counts, displs, (void *)w->in, counts, displs, HOCCL_BYTE, r->comm, q));
}

/* Started again and again without a look in between, each round's pieces written by the stream itself; on one stream, then
 * with a start on one and the next on another, which is ordered behind by an event. */
static void again(struct rank *r)
{
    struct work w;
    HOCCL_Request q;
    CUevent event;
    if (!work_open(r, &w) || !make(r, &w, &q) || !RANK_CUDA(r, cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)))
        return;
    for (int round = 0; round < ROUNDS; round++)
        if (!fill(r, &w, w.stream[0], round) || !RANK_OK(r, HOCCL_Start(q, w.stream[0])))
            return;
    received(r, &w, w.stream[0], ROUNDS - 1);
    for (int round = 0; round < ROUNDS; round++) {
        CUstream s = w.stream[round % STREAMS], next = w.stream[(round + 1) % STREAMS];
        if (!fill(r, &w, s, round) || !RANK_OK(r, HOCCL_Start(q, s)) || !RANK_CUDA(r, cuEventRecord(event, s)) ||
            !RANK_CUDA(r, cuStreamWaitEvent(next, event, 0)))
            return;
    }
    RANK_OK(r, HOCCL_RequestFree(q)); /* its starts are under way */
    received(r, &w, w.stream[ROUNDS % STREAMS], ROUNDS - 1);
    RANK_CUDA(r, cuEventDestroy(event));
    work_close(r, &w);
}

static void test_again(void **state)
{
    (void)state;
    ranks_run(RANKS, again, NULL);
}

/* Send to the next and Recv from the one before, started in a group as they must be, beside plain calls, on two streams; the
 * requests are freed before the group ends. A group with a start that fails posts nothing. */
static void groups(struct rank *r)
{
    struct work w;
    HOCCL_Request send, receive;
    int next = (r->rank + 1) % RANKS, last = (r->rank + RANKS - 1) % RANKS;
    if (!work_open(r, &w))
        return;
    CUdeviceptr from = w.out + (size_t)next * PIECE, to = w.in + (size_t)last * PIECE, other = w.in + (size_t)r->rank * PIECE;
    if (!RANK_OK(r, HOCCL_Send_init((void *)from, PIECE, HOCCL_BYTE, next, r->comm, &send)) ||
        !RANK_OK(r, HOCCL_Recv_init((void *)to, PIECE, HOCCL_BYTE, last, r->comm, &receive)) ||
        !fill(r, &w, w.stream[0], 0) || !RANK_CUDA(r, cuStreamSynchronize(w.stream[0])))
        return;
    RANK_OK(r, HOCCL_GroupStart());
    RANK_OK(r, HOCCL_Start(send, w.stream[0]));
    RANK_FAILS(r, HOCCL_Start(HOCCL_REQUEST_NULL, w.stream[0]), HOCCL_ERR_ARGUMENT, "request");
    RANK_FAILS(r, HOCCL_GroupEnd(), HOCCL_ERR_ARGUMENT, "HOCCL_Start: request");
    RANK_OK(r, HOCCL_GroupStart());
    RANK_OK(r, HOCCL_Start(send, w.stream[0]));
    RANK_OK(r, HOCCL_Start(receive, w.stream[1]));
    RANK_OK(r, HOCCL_Send((void *)from, 100, HOCCL_BYTE, next, r->comm, w.stream[0]));
    RANK_OK(r, HOCCL_Recv((void *)other, 100, HOCCL_BYTE, last, r->comm, w.stream[0]));
    RANK_OK(r, HOCCL_RequestFree(send));
    RANK_OK(r, HOCCL_RequestFree(receive));
    RANK_OK(r, HOCCL_GroupEnd());
    unsigned char seen[PIECE] = {0};
    RANK_CUDA(r, cuStreamSynchronize(w.stream[0]));
    RANK_CUDA(r, cuMemcpyDtoHAsync(seen, to, PIECE, w.stream[1]));
    RANK_CUDA(r, cuStreamSynchronize(w.stream[1]));
    for (size_t i = 0; i < PIECE; i++)
        if (!RANK_TRUE(r, seen[i] == value(last, r->rank, 0)))
            break;
    work_close(r, &w);
}

static void test_groups(void **state)
{
    (void)state;
    ranks_run(RANKS, groups, NULL);
}

/* An init makes its request at once whatever group is open, and posts nothing of it; one that fails fails the group. */
static void init_in_group(struct rank *r)
{
    struct work w;
    HOCCL_Request q = HOCCL_REQUEST_NULL;
    if (!work_open(r, &w))
        return;
    RANK_OK(r, HOCCL_GroupStart());
    make(r, &w, &q);
    RANK_OK(r, HOCCL_GroupEnd());
    RANK_TRUE(r, q != HOCCL_REQUEST_NULL);
    RANK_OK(r, HOCCL_GroupStart());
    RANK_OK(r, HOCCL_Start(q, w.stream[0]));
    RANK_FAILS(r, HOCCL_Send_init(NULL, 1, HOCCL_BYTE, 0, r->comm, &q), HOCCL_ERR_ARGUMENT, "HOCCL_Send_init: the buffer is NULL");
    RANK_FAILS(r, HOCCL_GroupEnd(), HOCCL_ERR_ARGUMENT, "HOCCL_Send_init");
    fill(r, &w, w.stream[0], 3);
    RANK_OK(r, HOCCL_Start(q, w.stream[0]));
    received(r, &w, w.stream[0], 3);
    RANK_OK(r, HOCCL_RequestFree(q));
    work_close(r, &w);
}

static void test_init_in_group(void **state)
{
    (void)state;
    ranks_run(RANKS, init_in_group, NULL);
}

/* Every way to be wrong; the communicator stays good. */
static void misuse(struct rank *r)
{
    struct work w;
    HOCCL_Request q = HOCCL_REQUEST_NULL, second;
    CUgraph graph;
    if (!work_open(r, &w))
        return;
    RANK_FAILS(r, HOCCL_Start(HOCCL_REQUEST_NULL, w.stream[0]), HOCCL_ERR_ARGUMENT, "never made");
    RANK_FAILS(r, HOCCL_RequestFree(HOCCL_REQUEST_NULL), HOCCL_ERR_ARGUMENT, "HOCCL_RequestFree");
    RANK_FAILS(r, HOCCL_Start((HOCCL_Request)(uintptr_t)12345678, w.stream[0]), HOCCL_ERR_ARGUMENT, "freed");
    RANK_FAILS(r, HOCCL_Alltoall_init((void *)w.out, (void *)w.in, PIECE, HOCCL_BYTE, r->comm, NULL), HOCCL_ERR_ARGUMENT,
               "HOCCL_Alltoall_init: the request's address");
    RANK_FAILS(r, HOCCL_Send_init((void *)w.out, 1, HOCCL_BYTE, RANKS, r->comm, &q), HOCCL_ERR_ARGUMENT, "HOCCL_Send_init: peer 3");
    RANK_FAILS(r, HOCCL_Broadcast_init((void *)w.out, (void *)w.in, 1, HOCCL_BYTE, -1, r->comm, &q), HOCCL_ERR_ARGUMENT, "root -1");
    RANK_FAILS(r, HOCCL_AllGather_init((void *)w.out, &w, 1, HOCCL_BYTE, r->comm, &q), HOCCL_ERR_ARGUMENT, "buffer");
    RANK_FAILS(r, HOCCL_AllGather_init((void *)w.out, (void *)w.in, 1, HOCCL_BYTE, HOCCL_COMM_NULL, &q), HOCCL_ERR_ARGUMENT, "communicator");
    RANK_TRUE(r, q == HOCCL_REQUEST_NULL);
    if (!make(r, &w, &q))
        return;
    RANK_CUDA(r, cuStreamBeginCapture(w.stream[1], CU_STREAM_CAPTURE_MODE_RELAXED));
    RANK_FAILS(r, HOCCL_Start(q, w.stream[1]), HOCCL_ERR_UNSUPPORTED, "capturing");
    RANK_CUDA(r, cuStreamEndCapture(w.stream[1], &graph));
    RANK_OK(r, HOCCL_RequestFree(q));
    RANK_FAILS(r, HOCCL_Start(q, w.stream[0]), HOCCL_ERR_ARGUMENT, "freed");
    RANK_FAILS(r, HOCCL_RequestFree(q), HOCCL_ERR_ARGUMENT, "freed");
    if (!make(r, &w, &second)) /* most likely at the same place of the table */
        return;
    RANK_FAILS(r, HOCCL_Start(q, w.stream[0]), HOCCL_ERR_ARGUMENT, "freed");
    fill(r, &w, w.stream[0], 1);
    RANK_OK(r, HOCCL_Start(second, w.stream[0]));
    received(r, &w, w.stream[0], 1);
    pthread_barrier_wait(&settled);
    RANK_OK(r, HOCCL_CommDestroy(r->comm));
    r->comm = HOCCL_COMM_NULL;
    RANK_FAILS(r, HOCCL_Start(second, w.stream[0]), HOCCL_ERR_ARGUMENT, "communicator");
    RANK_OK(r, HOCCL_RequestFree(second));
    work_close(r, &w);
}

static void test_misuse(void **state)
{
    (void)state;
    ranks_run(RANKS, misuse, NULL);
}

static pthread_mutex_t reuse = PTHREAD_MUTEX_INITIALIZER;

/* Memory that was freed is found, nothing being there or something else at the same address (HOCCL_EMU_REUSE); for a range of
 * cuMemCreate too. Nothing is posted, and a new request works. */
static void freed(struct rank *r)
{
    struct work w;
    HOCCL_Request q;
    if (!work_open(r, &w) || !make(r, &w, &q))
        return;
    fill(r, &w, w.stream[0], 0);
    RANK_OK(r, HOCCL_Start(q, w.stream[0]));
    received(r, &w, w.stream[0], 0);
    pthread_barrier_wait(&settled);
    CUdeviceptr old = w.in;
    pthread_mutex_lock(&reuse); /* else one rank may be given the address that another has freed */
    RANK_CUDA(r, cuMemFree(w.in));
    RANK_FAILS(r, HOCCL_Start(q, w.stream[0]), HOCCL_ERR_ARGUMENT, "make a new one");
    RANK_CUDA(r, cuMemAlloc(&w.in, RANKS * PIECE));
    pthread_mutex_unlock(&reuse);
    RANK_TRUE(r, w.in == old);
    RANK_FAILS(r, HOCCL_Start(q, w.stream[0]), HOCCL_ERR_ARGUMENT, "make a new one");
    RANK_OK(r, HOCCL_RequestFree(q));
    pthread_barrier_wait(&settled);
    if (!make(r, &w, &q))
        return;
    fill(r, &w, w.stream[0], 2);
    RANK_OK(r, HOCCL_Start(q, w.stream[0]));
    received(r, &w, w.stream[0], 2);
    RANK_OK(r, HOCCL_RequestFree(q));
    work_close(r, &w);
}

static void freed_range(struct rank *r)
{
    HOCCL_Request q;
    CUstream stream;
    void *p = NULL;
    int next = (r->rank + 1) % RANKS;
    if (!RANK_OK(r, HOCCL_MemAlloc(&p, PIECE)) || !RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) ||
        !RANK_OK(r, HOCCL_Send_init(p, PIECE, HOCCL_BYTE, next, r->comm, &q)))
        return;
    pthread_barrier_wait(&settled);
    RANK_OK(r, HOCCL_MemFree(p));
    RANK_FAILS(r, HOCCL_Start(q, stream), HOCCL_ERR_ARGUMENT, "buffer");
    RANK_OK(r, HOCCL_RequestFree(q));
    RANK_CUDA(r, cuStreamDestroy(stream));
    pthread_barrier_wait(&settled);
}

static void test_freed(void **state)
{
    (void)state;
    ranks_run(RANKS, freed, NULL);
    ranks_run(RANKS, freed_range, NULL);
}

/* Started, and given up before its peers have come: the stream goes on, the request can be freed, its communicator is gone. */
static void aborted(struct rank *r)
{
    struct work w;
    HOCCL_Request q;
    if (!work_open(r, &w) || !make(r, &w, &q))
        return;
    if (r->rank == 0)
        RANK_OK(r, HOCCL_Start(q, w.stream[0]));
    RANK_OK(r, HOCCL_CommAbort(r->comm));
    r->comm = HOCCL_COMM_NULL;
    RANK_CUDA(r, cuStreamSynchronize(w.stream[0]));
    RANK_FAILS(r, HOCCL_Start(q, w.stream[0]), HOCCL_ERR_ARGUMENT, "communicator");
    RANK_OK(r, HOCCL_RequestFree(q));
    work_close(r, &w);
}

static void test_aborted(void **state)
{
    (void)state;
    ranks_run(RANKS, aborted, NULL);
}

/* Many at a time: the table grows, and gives places out again. */
static void many(struct rank *r)
{
    enum { MANY = 500 };
    static HOCCL_Request all[RANKS][MANY];
    struct work w;
    if (!work_open(r, &w))
        return;
    for (int i = 0; i < MANY; i++)
        make(r, &w, &all[r->rank][i]);
    for (int i = 0; i < MANY; i += 2)
        RANK_OK(r, HOCCL_RequestFree(all[r->rank][i]));
    for (int i = 0; i < MANY; i += 2)
        make(r, &w, &all[r->rank][i]);
    fill(r, &w, w.stream[0], 4);
    for (int i = 0; i < MANY; i += 100)
        RANK_OK(r, HOCCL_Start(all[r->rank][i], w.stream[0]));
    received(r, &w, w.stream[0], 4);
    for (int i = 0; i < MANY; i++)
        RANK_OK(r, HOCCL_RequestFree(all[r->rank][i]));
    work_close(r, &w);
}

static void test_many(void **state)
{
    (void)state;
    ranks_run(RANKS, many, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again), cmocka_unit_test(test_groups),  cmocka_unit_test(test_init_in_group), cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_freed), cmocka_unit_test(test_aborted), cmocka_unit_test(test_many),
    };
    setenv("HOCCL_DEVICE", "emu", 1);
    setenv("HOCCL_EMU_REUSE", "1", 1);
    ranks_environment(RANKS);
    pthread_barrier_init(&settled, NULL, RANKS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
