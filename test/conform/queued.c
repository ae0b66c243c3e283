/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on two nodes with one hardware channel of each class: the start signal of an operation that is queued behind another one
 * must not hold the channel that the slots' copies need. With compute gates it would, so there whoever queues on a stream waits in
 * the call, which an abort ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/setting.h"
#include "far.h"
#include "near.h"
#include "p2p/wire.h"

enum { QUEUE = 12, BYTES = 100000, EACH = BYTES + 64 };

/* Messages both ways, one behind the other on two streams: nobody synchronises between them. By events: each behind the one before it,
 * on the other stream. */
static void in_a_row(struct rank *r, bool by_events)
{
    struct work w;
    CUstream stream[2];
    CUevent event;
    int other = 1 - r->rank;
    if (work_open(r, &w, QUEUE * (size_t)EACH)) {
        stream[0] = w.stream;
        RANK_CUDA(r, cuStreamCreate(&stream[1], CU_STREAM_NON_BLOCKING));
        RANK_CUDA(r, cuMemcpyHtoD(w.out, message(r->rank, other, 5), w.room));
        RANK_CUDA(r, cuStreamSynchronize(NULL));
        RANK_CUDA(r, cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        for (size_t i = 0; i < QUEUE; i++) {
            if (by_events && i)
                RANK_CUDA(r, cuStreamWaitEvent(stream[i % 2], event, 0));
            RANK_OK(r, HOCCL_GroupStart());
            RANK_OK(r, HOCCL_Send((void *)(w.out + i * EACH), BYTES, HOCCL_BYTE, other, r->comm, stream[i % 2]));
            RANK_OK(r, HOCCL_Recv((void *)(w.in + i * EACH), BYTES, HOCCL_BYTE, other, r->comm, stream[i % 2]));
            RANK_OK(r, HOCCL_GroupEnd());
            RANK_CUDA(r, cuEventRecord(event, stream[i % 2]));
        }
        RANK_CUDA(r, cuStreamSynchronize(stream[1]));
        RANK_OK(r, stream_end(r, &w));
        RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, w.room));
        for (size_t i = 0; i < QUEUE; i++)
            same(r, w.host + i * EACH, message(other, r->rank, 5) + i * EACH, BYTES, other);
        RANK_CUDA(r, cuStreamDestroy(stream[1]));
        RANK_CUDA(r, cuEventDestroy(event));
    }
    work_close(r, &w);
}

static void on_streams(struct rank *r)
{
    in_a_row(r, false);
}

static void by_events(struct rank *r)
{
    in_a_row(r, true);
}

struct caller {
    struct rank *rank;
    struct work *work;
    CUcontext context;
    HOCCL_Result result;
    uint32_t back;
};

static void *call(void *arg)
{
    struct caller *c = arg;
    RANK_CUDA(c->rank, cuCtxSetCurrent(c->context));
    c->result = HOCCL_Recv((void *)c->work->in, BYTES, HOCCL_BYTE, 1, c->rank->comm, c->work->stream);
    hoccl_publish(&c->back, 1u);
    return NULL;
}

/* Rank 1 sends once and no more: the third receive's call stands behind the second, which waits for ever. */
static void give_up(struct rank *r)
{
    struct work w;
    struct caller c = {.rank = r, .work = &w};
    pthread_t thread;
    if (work_open(r, &w, EACH) && r->rank) {
        RANK_OK(r, HOCCL_Send((void *)w.out, BYTES, HOCCL_BYTE, 0, r->comm, w.stream));
        RANK_OK(r, stream_end(r, &w));
    } else if (!r->failed) {
        RANK_OK(r, HOCCL_Recv((void *)w.in, BYTES, HOCCL_BYTE, 1, r->comm, w.stream));
        RANK_OK(r, HOCCL_Recv((void *)w.in, BYTES, HOCCL_BYTE, 1, r->comm, w.stream));
        RANK_CUDA(r, cuCtxGetCurrent(&c.context));
        RANK_TRUE(r, !pthread_create(&thread, NULL, call, &c));
        usleep(100000);
        RANK_TRUE(r, !hoccl_observe(&c.back));
        RANK_OK(r, HOCCL_CommAbort(r->comm));
        pthread_join(thread, NULL);
        RANK_TRUE(r, c.result != HOCCL_SUCCESS);
    }
    pthread_barrier_wait(&meeting);
    if (r->rank)
        RANK_OK(r, HOCCL_CommAbort(r->comm));
    r->comm = HOCCL_COMM_NULL;
    work_close(r, &w);
}

static void test_queued(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        far_run(2, "2", on_streams, NULL, false);
        if (hoccl_settings.gate == HOCCL_GATE_COMPUTE)
            far_run(2, "2", give_up, NULL, false);
        else
            far_run(2, "2", by_events, NULL, false);
    }
}

/* With push gates, and in a process of its own with those of a process that sees one GPU. */
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_queued)};
    int status = 0;
    pid_t child = fork();
    if (!child)
        setenv("HOCCL_GATE", "compute", 1);
    else if (waitpid(child, &status, 0) != child || status)
        return 1;
    far_noise();
    ranks_environment(8);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    if (hoccl_settings_load_once())
        return 1;
    hoccl_wire_transport = &near_transport;
    return cmocka_run_group_tests_name("one hardware channel", tests, NULL, NULL);
}
