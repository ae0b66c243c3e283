/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators made from a unique id, by threads: of several sizes, again and again, several at once, in groups. Nothing
 * may remain of those that have been destroyed: descriptors, threads, memory.
 */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GPUS = 8 };

static void body_exchange(struct rank *r)
{
    int size, rank, device;

    RANK_OK(r, HOCCL_CommSize(r->comm, &size));
    RANK_OK(r, HOCCL_CommRank(r->comm, &rank));
    RANK_OK(r, HOCCL_CommDevice(r->comm, &device));
    RANK_TRUE(r, size == r->size && rank == r->rank && device == r->rank);
    rank_exchange(r, r->comm, 100000, 1);
}

static void test_sizes(void **state)
{
    (void)state;
    ranks_run(1, body_exchange, NULL);
    ranks_run(2, body_exchange, NULL);
    ranks_run(4, body_exchange, NULL);
    ranks_run(8, body_exchange, NULL);
}

/* Between two looks the process holds the same, after the first few times, in which libraries fill their caches. */
static void test_again_and_again(void **state)
{
    int descriptors = 0, threads = 0;
    size_t bytes = 0;

    (void)state;
    for (int i = 0; i <= 100; i++) {
        ranks_run(2, body_exchange, NULL);
        if (i == 20) {
            ranks_hold(&descriptors, &threads);
            bytes = mallinfo2().uordblks;
        }
    }
    assert_true(ranks_settle(descriptors, threads));
    if (mallinfo2().uordblks > bytes + 80 * 256)
        fail_msg("%zu bytes more after 80 communicators", mallinfo2().uordblks - bytes);
}

static void body_after_the_end(struct rank *r)
{
    HOCCL_Comm comm = r->comm;
    HOCCL_Result error;
    int size;

    if (!rank_exchange(r, comm, 1000, 2))
        return;
    RANK_OK(r, HOCCL_CommFinalize(comm));
    RANK_OK(r, HOCCL_CommSize(comm, &size));
    RANK_OK(r, HOCCL_CommGetAsyncError(comm, &error));
    RANK_FAILS(r, HOCCL_CommFinalize(comm), HOCCL_ERR_USAGE, "finalized");
    RANK_FAILS(r, HOCCL_Send(NULL, 0, HOCCL_BYTE, 0, comm, NULL), HOCCL_ERR_USAGE, "finalized");
    RANK_FAILS(r, HOCCL_CommSplit(comm, 0, 0, &r->comm), HOCCL_ERR_USAGE, "finalized");
    RANK_OK(r, HOCCL_CommDestroy(comm));
    r->comm = HOCCL_COMM_NULL;
    RANK_FAILS(r, HOCCL_CommDestroy(comm), HOCCL_ERR_ARGUMENT, "does not exist");
    RANK_FAILS(r, HOCCL_CommFinalize(comm), HOCCL_ERR_ARGUMENT, "does not exist");
    RANK_FAILS(r, HOCCL_CommAbort(comm), HOCCL_ERR_ARGUMENT, "does not exist");
    RANK_FAILS(r, HOCCL_CommSize(comm, &size), HOCCL_ERR_ARGUMENT, "does not exist");
    RANK_FAILS(r, HOCCL_Recv(NULL, 0, HOCCL_BYTE, 0, comm, NULL), HOCCL_ERR_ARGUMENT, "does not exist");
    RANK_FAILS(r, HOCCL_CommSplit(comm, 0, 0, &comm), HOCCL_ERR_ARGUMENT, "does not exist");
    RANK_FAILS(r, HOCCL_CommDestroy(HOCCL_COMM_NULL), HOCCL_ERR_ARGUMENT, NULL);
    RANK_FAILS(r, HOCCL_CommDestroy(HOCCL_COMM_WORLD), HOCCL_ERR_USAGE, "HOCCL_Finalize");
}

static void test_after_the_end(void **state)
{
    (void)state;
    ranks_run(2, body_after_the_end, NULL);
}

/* Destroying waits: what is still on its way arrives, and the rank that receives may come later. */
static void body_destroy_waits(struct rank *r)
{
    CUdeviceptr buffer = 0;
    CUstream stream = NULL;
    unsigned char got[4096], sent[4096];

    memset(sent, 0x5a, sizeof sent);
    if (!RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) || !RANK_CUDA(r, cuMemAlloc(&buffer, sizeof got)))
        return;
    RANK_CUDA(r, cuMemcpyHtoD(buffer, sent, sizeof sent));
    if (r->rank)
        RANK_CUDA(r, cuMemsetD8(buffer, 0, sizeof got));
    RANK_CUDA(r, cuStreamSynchronize(NULL)); /* both may land after the call */
    if (r->rank) {
        usleep(200000);
        RANK_OK(r, HOCCL_Recv((void *)buffer, sizeof got, HOCCL_BYTE, 0, r->comm, stream));
    } else {
        RANK_OK(r, HOCCL_Send((void *)buffer, sizeof got, HOCCL_BYTE, 1, r->comm, stream));
    }
    RANK_OK(r, HOCCL_CommDestroy(r->comm));
    r->comm = HOCCL_COMM_NULL;
    RANK_CUDA(r, cuStreamSynchronize(stream));
    RANK_CUDA(r, cuMemcpyDtoH(got, buffer, sizeof got));
    RANK_TRUE(r, !memcmp(got, sent, sizeof got));
    cuMemFree(buffer);
    cuStreamDestroy(stream);
}

static void test_destroy_waits(void **state)
{
    (void)state;
    ranks_run(2, body_destroy_waits, NULL);
}

/* ---- two at once ------------------------------------------------------------------------------------------------- */

struct second {
    HOCCL_UniqueId id;
    int last; /* rank 0 there is the last one here: the ranks are numbered the other way round */
};

static void body_two(struct rank *r)
{
    const struct second *second = r->arg;
    HOCCL_Comm other = HOCCL_COMM_NULL;
    int rank;

    if (!RANK_OK(r, HOCCL_CommInitRank(&other, r->size, second->id, second->last - r->rank)))
        return;
    RANK_OK(r, HOCCL_CommRank(other, &rank));
    RANK_TRUE(r, rank == second->last - r->rank);
    for (unsigned i = 0; i < 5; i++) {
        rank_exchange(r, r->comm, 5000, i);
        rank_exchange(r, other, 7000, i + 50);
    }
    RANK_OK(r, HOCCL_CommDestroy(other));
    rank_exchange(r, r->comm, 3000, 99);
}

static void test_two(void **state)
{
    struct second second = {.last = 3};

    (void)state;
    assert_int_equal(HOCCL_GetUniqueId(&second.id), HOCCL_SUCCESS);
    ranks_run(4, body_two, &second);
}

/* Operations of both wait on two streams at once, in the opposite order on the two ranks, and neither waits for the other
 * communicator's. Freed is only what no stream of the GPU still waits behind: cuMemFree would hold up the copies. */
static void body_two_streams(struct rank *r)
{
    const struct second *second = r->arg;
    HOCCL_Comm comm[2] = {r->comm, HOCCL_COMM_NULL};
    CUstream stream[2] = {NULL};
    CUdeviceptr buffer[2] = {0};
    bool good = RANK_OK(r, HOCCL_CommInitRank(&comm[1], 2, second->id, r->rank));

    for (int i = 0; i < 2; i++)
        good = good && RANK_CUDA(r, cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING)) &&
               RANK_CUDA(r, cuMemAlloc(&buffer[i], 4096));
    for (int i = 0; i < 2 && good; i++) {
        int which = r->rank ? 1 - i : i;
        good = r->rank ? RANK_OK(r, HOCCL_Recv((void *)buffer[which], 4096, HOCCL_BYTE, 0, comm[which], stream[which]))
                       : RANK_OK(r, HOCCL_Send((void *)buffer[which], 4096, HOCCL_BYTE, 1, comm[which], stream[which]));
    }
    for (int i = 0; i < 2 && good; i++)
        good = RANK_CUDA(r, cuStreamSynchronize(stream[i]));
    for (int i = 0; i < 2 && good; i++)
        good = RANK_CUDA(r, cuMemFree(buffer[i])) && RANK_CUDA(r, cuStreamDestroy(stream[i]));
    if (comm[1])
        RANK_OK(r, HOCCL_CommDestroy(comm[1]));
}

static void test_two_streams(void **state)
{
    struct second second = {.last = 1};

    (void)state;
    assert_int_equal(HOCCL_GetUniqueId(&second.id), HOCCL_SUCCESS);
    ranks_run(2, body_two_streams, &second);
}

/* ---- groups: one thread makes those of several GPUs -------------------------------------------------------------------- */

static CUcontext context[GPUS];

static int retain_contexts(void **state)
{
    (void)state;
    if (cuInit(0))
        return -1;
    for (int i = 0; i < GPUS; i++)
        if (cuDevicePrimaryCtxRetain(&context[i], i))
            return -1;
    return 0;
}

static void ok(HOCCL_Result result)
{
    if (result)
        fail_msg("%s: %s", HOCCL_GetErrorString(result), HOCCL_GetLastError());
}

/* A ring over all of them, posted by this thread in one group. */
static void ring(HOCCL_Comm *comm, int n)
{
    CUdeviceptr out[GPUS], in[GPUS];
    CUstream stream[GPUS];

    for (int i = 0; i < n; i++) {
        uint32_t value = 1000u + (unsigned)i;
        assert_int_equal(cuCtxSetCurrent(context[i]), CUDA_SUCCESS);
        assert_int_equal(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        assert_int_equal(cuMemAlloc(&out[i], 4), CUDA_SUCCESS);
        assert_int_equal(cuMemAlloc(&in[i], 4), CUDA_SUCCESS);
        assert_int_equal(cuMemcpyHtoD(out[i], &value, 4), CUDA_SUCCESS);
        assert_int_equal(cuStreamSynchronize(NULL), CUDA_SUCCESS);
    }
    ok(HOCCL_GroupStart());
    for (int i = 0; i < n; i++) {
        ok(HOCCL_Send((void *)out[i], 1, HOCCL_INT32, (i + 1) % n, comm[i], stream[i]));
        ok(HOCCL_Recv((void *)in[i], 1, HOCCL_INT32, (i + n - 1) % n, comm[i], stream[i]));
    }
    ok(HOCCL_GroupEnd());
    for (int i = 0; i < n; i++) {
        uint32_t value = 0;
        assert_int_equal(cuCtxSetCurrent(context[i]), CUDA_SUCCESS);
        assert_int_equal(cuStreamSynchronize(stream[i]), CUDA_SUCCESS);
        assert_int_equal(cuMemcpyDtoH(&value, in[i], 4), CUDA_SUCCESS);
        assert_int_equal(value, 1000 + (i + n - 1) % n);
        cuMemFree(out[i]);
        cuMemFree(in[i]);
        cuStreamDestroy(stream[i]);
    }
    cuCtxSetCurrent(NULL);
}

static void make_group(HOCCL_Comm *comm, int n)
{
    HOCCL_UniqueId id;

    ok(HOCCL_GetUniqueId(&id));
    ok(HOCCL_GroupStart());
    for (int i = 0; i < n; i++) {
        comm[i] = HOCCL_COMM_NULL;
        cuCtxSetCurrent(context[i]);
        ok(HOCCL_CommInitRank(&comm[i], n, id, i));
        assert_null(comm[i]);
    }
    cuCtxSetCurrent(NULL);
    ok(HOCCL_GroupEnd());
}

static void test_group(void **state)
{
    HOCCL_Comm comm[4];

    (void)state;
    make_group(comm, 4);
    ring(comm, 4);
    for (int i = 0; i < 4; i++)
        ok(HOCCL_CommDestroy(comm[i]));
}

/* One alone in a group belongs to the GPU that was current at its call, not to the one at the group's end. */
static void test_group_of_one(void **state)
{
    HOCCL_UniqueId id;
    HOCCL_Comm comm = HOCCL_COMM_NULL;
    CUcontext now;
    int device = -1;

    (void)state;
    ok(HOCCL_GetUniqueId(&id));
    cuCtxSetCurrent(context[3]);
    ok(HOCCL_GroupStart());
    ok(HOCCL_CommInitRank(&comm, 1, id, 0));
    cuCtxSetCurrent(context[1]);
    ok(HOCCL_GroupEnd());
    ok(HOCCL_CommDevice(comm, &device));
    assert_int_equal(device, 3);
    assert_int_equal(cuCtxGetCurrent(&now), CUDA_SUCCESS);
    assert_ptr_equal(now, context[1]);
    ok(HOCCL_CommDestroy(comm));
    cuCtxSetCurrent(NULL);
}

static void test_group_without_contexts(void **state)
{
    HOCCL_Comm comm[3] = {HOCCL_COMM_NULL};
    HOCCL_UniqueId id;

    (void)state;
    ok(HOCCL_GetUniqueId(&id));
    ok(HOCCL_GroupStart());
    for (int i = 0; i < 3; i++)
        ok(HOCCL_CommInitRank(&comm[i], 3, id, i));
    ok(HOCCL_GroupEnd());
    for (int i = 0; i < 3; i++) {
        int device;
        ok(HOCCL_CommDevice(comm[i], &device));
        assert_int_equal(device, i);
    }
    ring(comm, 3);
    for (int i = 0; i < 3; i++)
        ok(HOCCL_CommDestroy(comm[i]));
}

/* A wrong call makes the whole group's end fail; nothing is made, and the next group works. */
static void test_group_fails(void **state)
{
    HOCCL_Comm comm[2] = {HOCCL_COMM_NULL};
    HOCCL_UniqueId id;

    (void)state;
    ok(HOCCL_GetUniqueId(&id));
    ok(HOCCL_GroupStart());
    ok(HOCCL_CommInitRank(&comm[0], 2, id, 0));
    assert_int_equal(HOCCL_CommInitRank(&comm[1], 2, id, 2), HOCCL_ERR_ARGUMENT);
    assert_int_equal(HOCCL_CommDestroy(HOCCL_COMM_NULL), HOCCL_ERR_USAGE);
    assert_int_equal(HOCCL_GroupEnd(), HOCCL_ERR_ARGUMENT);
    assert_non_null(strstr(HOCCL_GetLastError(), "rank 2"));
    assert_null(comm[0]);
    assert_null(comm[1]);
    test_group(NULL);
}

/* Two communicators in one group, of which one cannot be made: the other is taken back. */
static void test_group_half(void **state)
{
    HOCCL_Comm comm[4] = {HOCCL_COMM_NULL};
    HOCCL_UniqueId good, bad;
    int descriptors = 0, threads = 0;

    (void)state;
    ranks_hold(&descriptors, &threads);
    ok(HOCCL_GetUniqueId(&good));
    ok(HOCCL_GetUniqueId(&bad));
    ok(HOCCL_GroupStart());
    for (int i = 0; i < 4; i++) {
        cuCtxSetCurrent(context[i]);
        ok(HOCCL_CommInitRank(&comm[i], 2, i < 2 ? good : bad, i == 3 ? 0 : i % 2));
    }
    cuCtxSetCurrent(NULL);
    assert_int_equal(HOCCL_GroupEnd(), HOCCL_ERR_BOOTSTRAP);
    assert_non_null(strstr(HOCCL_GetLastError(), "rank 0 has come twice"));
    for (int i = 0; i < 4; i++)
        assert_null(comm[i]);
    assert_true(ranks_settle(descriptors, threads));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_again_and_again),
        cmocka_unit_test(test_after_the_end),
        cmocka_unit_test(test_destroy_waits),
        cmocka_unit_test(test_two),
        cmocka_unit_test(test_two_streams),
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_group_of_one),
        cmocka_unit_test(test_group_without_contexts),
        cmocka_unit_test(test_group_fails),
        cmocka_unit_test(test_group_half),
    };

    ranks_environment(GPUS);
    return cmocka_run_group_tests_name("communicators by unique id", tests, retain_contexts, NULL);
}
