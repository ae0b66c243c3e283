/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one process leave a collective together. When a thread's stream has got past it, the thread may free pinned
 * memory: that waits for every parked stream of the process and stops its copies, so no rank may need one any more for this
 * collective. As nccl-tests -t does after each operation.
 */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <unistd.h>

enum { GPUS = 4, ROUNDS = 20 };

static pthread_barrier_t barrier;

/* Root, and only root, has a piece of its own to move, which takes it longer than the others need. */
static HOCCL_Result post(struct rank *r, int which, char *out, char *in, size_t bytes, CUstream stream)
{
    switch (which) {
    case 0:
        return HOCCL_Gather(out, in, bytes, HOCCL_BYTE, 0, r->comm, stream);
    case 1:
        return HOCCL_Broadcast(out, in, bytes, HOCCL_BYTE, 0, r->comm, stream);
    case 2:
        return HOCCL_Scatter(out, in, bytes, HOCCL_BYTE, 0, r->comm, stream);
    default:
        return HOCCL_AllGather(out, in, bytes, HOCCL_BYTE, r->comm, stream);
    }
}

static void body_free(struct rank *r)
{
    const size_t *bytes = r->arg;
    void *out = NULL, *in = NULL, *pinned = NULL;
    HOCCL_Result error = HOCCL_SUCCESS;
    CUstream stream = NULL;
    bool good = RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) && RANK_OK(r, HOCCL_MemAlloc(&out, *bytes * GPUS)) &&
                RANK_OK(r, HOCCL_MemAlloc(&in, *bytes * GPUS));

    for (int i = 0; i < ROUNDS; i++) {
        good = good && RANK_OK(r, post(r, i % 4, out, in, *bytes, stream)) && RANK_CUDA(r, cuStreamSynchronize(stream)) &&
               RANK_CUDA(r, cuMemHostAlloc(&pinned, 64, 0)) && RANK_CUDA(r, cuMemFreeHost(pinned)) &&
               RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)) && RANK_OK(r, error);
        pthread_barrier_wait(&barrier); /* as nccl-tests has one: the next operation is posted when all have freed */
    }
    HOCCL_MemFree(out);
    HOCCL_MemFree(in);
    cuStreamDestroy(stream);
}

static void free_with(int ranks, size_t bytes)
{
    assert_int_equal(pthread_barrier_init(&barrier, NULL, (unsigned)ranks), 0);
    ranks_run(ranks, body_free, &bytes);
    pthread_barrier_destroy(&barrier);
}

static void test_freeing(void **state)
{
    (void)state;
    free_with(2, 100);
    free_with(2, 5000000);
    free_with(GPUS, 100000);
}

/* A rank that has only sent stays until the last of them has come. */
static void body_late(struct rank *r)
{
    void *out = NULL, *in = NULL;
    CUstream stream = NULL;

    RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    RANK_OK(r, HOCCL_MemAlloc(&out, 1000));
    RANK_OK(r, HOCCL_MemAlloc(&in, 3000));
    if (r->rank == 2) {
        pthread_barrier_wait(&barrier);
        usleep(100000);
        pthread_barrier_wait(&barrier);
    }
    RANK_OK(r, HOCCL_Gather(out, in, 1000, HOCCL_BYTE, 0, r->comm, stream));
    if (r->rank != 2) {
        pthread_barrier_wait(&barrier);
        usleep(50000);
        RANK_TRUE(r, cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
        pthread_barrier_wait(&barrier);
    }
    RANK_CUDA(r, cuStreamSynchronize(stream));
    HOCCL_MemFree(out);
    HOCCL_MemFree(in);
    cuStreamDestroy(stream);
}

static void test_late(void **state)
{
    (void)state;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, 3), 0);
    ranks_run(3, body_late, NULL);
    pthread_barrier_destroy(&barrier);
}

/* One that never comes: the others' streams are let go when it aborts, and hear why. */
static void body_never(struct rank *r)
{
    HOCCL_Result error = HOCCL_SUCCESS;
    void *out = NULL, *in = NULL;
    CUstream stream = NULL;

    RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    RANK_OK(r, HOCCL_MemAlloc(&out, 1000));
    RANK_OK(r, HOCCL_MemAlloc(&in, 3000));
    if (r->rank == 2) {
        usleep(50000);
        RANK_OK(r, HOCCL_CommAbort(r->comm));
        r->comm = HOCCL_COMM_NULL;
    } else {
        RANK_OK(r, HOCCL_Gather(out, in, 1000, HOCCL_BYTE, 0, r->comm, stream));
        RANK_CUDA(r, cuStreamSynchronize(stream));
        if (r->rank == 0) {
            RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error));
            RANK_TRUE(r, error == HOCCL_ERR_PEER);
        }
        RANK_OK(r, HOCCL_CommAbort(r->comm));
        r->comm = HOCCL_COMM_NULL;
    }
    HOCCL_MemFree(out);
    HOCCL_MemFree(in);
    cuStreamDestroy(stream);
}

static void test_never(void **state)
{
    (void)state;
    ranks_run(3, body_never, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_freeing),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_never),
    };

    ranks_environment(GPUS);
    setenv("HOCCL_TIMEOUT", "5", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
