/* SPDX-License-Identifier: Apache-2.0 */
/* HOCCL_CommSplit: who is in which communicator, what it may not disturb, and what ends it. HOCCL_INIT_TIMEOUT is 4 s. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool is(struct rank *r, HOCCL_Comm comm, int size, int rank)
{
    int s = -1, k = -1, device = -1;

    return RANK_OK(r, HOCCL_CommSize(comm, &s)) && RANK_OK(r, HOCCL_CommRank(comm, &k)) &&
           RANK_OK(r, HOCCL_CommDevice(comm, &device)) && RANK_TRUE(r, s == size) && RANK_TRUE(r, k == rank) &&
           RANK_TRUE(r, device == r->rank);
}

/* Odd and even; equal keys keep the order of the ranks, reversed ones turn it round. */
static void body_halves(struct rank *r)
{
    int half = r->size / 2, mine = r->rank / 2;
    HOCCL_Comm same = HOCCL_COMM_NULL, turned = HOCCL_COMM_NULL, all = HOCCL_COMM_NULL;

    if (RANK_OK(r, HOCCL_CommSplit(r->comm, r->rank % 2, 7, &same)) && is(r, same, half, mine))
        rank_exchange(r, same, 20000, 1);
    if (RANK_OK(r, HOCCL_CommSplit(r->comm, r->rank % 2, -r->rank, &turned)) && is(r, turned, half, half - 1 - mine))
        rank_exchange(r, turned, 20000, 2);
    if (RANK_OK(r, HOCCL_CommSplit(r->comm, 0, 0, &all)) && is(r, all, r->size, r->rank))
        rank_exchange(r, all, 20000, 3);
    rank_exchange(r, r->comm, 20000, 4);
    RANK_OK(r, HOCCL_CommDestroy(all));
    RANK_OK(r, HOCCL_CommDestroy(same));
    rank_exchange(r, turned, 20000, 5);
    RANK_OK(r, HOCCL_CommDestroy(turned));
}

static void test_halves(void **state)
{
    (void)state;
    ranks_run(2, body_halves, NULL);
    ranks_run(4, body_halves, NULL);
    ranks_run(8, body_halves, NULL);
}

/* 8 → 4 → 2 → 1, each parent destroyed before its child is used. */
static void body_again(struct rank *r)
{
    HOCCL_Comm comm = r->comm;

    r->comm = HOCCL_COMM_NULL;
    for (int size = r->size / 2; size; size /= 2) {
        HOCCL_Comm child = HOCCL_COMM_NULL;
        if (!RANK_OK(r, HOCCL_CommSplit(comm, r->rank % (r->size / size), 0, &child)))
            break;
        RANK_OK(r, HOCCL_CommDestroy(comm));
        comm = child;
        if (!is(r, comm, size, r->rank / (r->size / size)))
            break;
        rank_exchange(r, comm, 10000, (unsigned)size);
    }
    RANK_OK(r, HOCCL_CommDestroy(comm));
}

static void test_again(void **state)
{
    (void)state;
    ranks_run(8, body_again, NULL);
}

static void body_no_color(struct rank *r)
{
    HOCCL_Comm some = (HOCCL_Comm)(uintptr_t)123, none = (HOCCL_Comm)(uintptr_t)123;

    if (!RANK_OK(r, HOCCL_CommSplit(r->comm, r->rank < 2 ? HOCCL_SPLIT_NOCOLOR : 5, 0, &some)))
        return;
    RANK_OK(r, HOCCL_CommSplit(r->comm, HOCCL_SPLIT_NOCOLOR, 0, &none));
    RANK_TRUE(r, none == HOCCL_COMM_NULL);
    if (r->rank < 2) {
        RANK_TRUE(r, some == HOCCL_COMM_NULL);
        return;
    }
    if (is(r, some, r->size - 2, r->rank - 2))
        rank_exchange(r, some, 30000, 1);
    RANK_OK(r, HOCCL_CommDestroy(some));
}

static void test_no_color(void **state)
{
    (void)state;
    ranks_run(4, body_no_color, NULL);
}

/* Rank 1 receives what rank 0 sends only after the split: the operation waits through it and arrives all the same. */
static void body_busy(struct rank *r)
{
    CUdeviceptr buffer = 0;
    CUstream stream = NULL;
    uint32_t value = 77;
    HOCCL_Comm child = HOCCL_COMM_NULL;

    if (!RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) || !RANK_CUDA(r, cuMemAlloc(&buffer, 4)))
        return;
    if (r->rank)
        RANK_OK(r, HOCCL_Recv((void *)buffer, 1, HOCCL_INT32, 0, r->comm, stream));
    RANK_OK(r, HOCCL_CommSplit(r->comm, 0, 0, &child));
    if (!r->rank) {
        RANK_CUDA(r, cuMemcpyHtoD(buffer, &value, 4));
        RANK_CUDA(r, cuStreamSynchronize(NULL));
        RANK_OK(r, HOCCL_Send((void *)buffer, 1, HOCCL_INT32, 1, r->comm, stream));
    }
    RANK_CUDA(r, cuStreamSynchronize(stream));
    value = 0;
    RANK_CUDA(r, cuMemcpyDtoH(&value, buffer, 4));
    RANK_TRUE(r, value == 77);
    if (child) {
        rank_exchange(r, child, 40000, 1);
        RANK_OK(r, HOCCL_CommDestroy(child));
    }
    cuMemFree(buffer);
    cuStreamDestroy(stream);
}

static void test_busy(void **state)
{
    (void)state;
    ranks_run(2, body_busy, NULL);
}

/* Rank 2 does not come; the others say so within the time, and a later call that all make works. */
static void body_missing(struct rank *r)
{
    HOCCL_Comm child = HOCCL_COMM_NULL;
    double begun = now();

    if (r->rank == 2) {
        sleep(5);
        RANK_FAILS(r, HOCCL_CommSplit(r->comm, 0, 0, &child), HOCCL_ERR_BOOTSTRAP, "given up");
    } else {
        RANK_FAILS(r, HOCCL_CommSplit(r->comm, 0, 0, &child), HOCCL_ERR_BOOTSTRAP, "rank 2 did not come within 4 s");
        RANK_TRUE(r, now() - begun < 7);
    }
    RANK_TRUE(r, child == HOCCL_COMM_NULL);
    if (RANK_OK(r, HOCCL_CommSplit(r->comm, 0, -r->rank, &child))) {
        rank_exchange(r, child, 1000, 1);
        RANK_OK(r, HOCCL_CommDestroy(child));
    }
    rank_exchange(r, r->comm, 1000, 2);
}

static void test_missing(void **state)
{
    (void)state;
    ranks_run(4, body_missing, NULL);
}

/* A wrong argument of one rank is heard by all at once. */
static void body_wrong(struct rank *r)
{
    HOCCL_Comm child = HOCCL_COMM_NULL;
    double begun = now();

    if (r->rank == 1)
        RANK_FAILS(r, HOCCL_CommSplit(r->comm, -2, 0, &child), HOCCL_ERR_ARGUMENT, "color -2");
    else
        RANK_FAILS(r, HOCCL_CommSplit(r->comm, 0, 0, &child), HOCCL_ERR_BOOTSTRAP, "rank 1 has given up: color -2");
    if (r->rank == 0)
        RANK_FAILS(r, HOCCL_CommSplit(r->comm, 0, 0, NULL), HOCCL_ERR_ARGUMENT, "NULL");
    else
        RANK_FAILS(r, HOCCL_CommSplit(r->comm, 0, 0, &child), HOCCL_ERR_BOOTSTRAP, "rank 0 has given up");
    RANK_TRUE(r, now() - begun < 3);
    RANK_TRUE(r, child == HOCCL_COMM_NULL);
    if (RANK_OK(r, HOCCL_CommSplit(r->comm, 0, 0, &child)))
        RANK_OK(r, HOCCL_CommDestroy(child));
    rank_exchange(r, r->comm, 1000, 2);
}

static void test_wrong(void **state)
{
    (void)state;
    ranks_run(4, body_wrong, NULL);
}

static void *abort_soon(void *comm)
{
    usleep(300000);
    return HOCCL_CommAbort(comm) ? comm : NULL;
}

/* Rank 0 waits in a split that rank 1 does not join, while another thread aborts the parent. */
static void body_abort(struct rank *r)
{
    HOCCL_Comm child = HOCCL_COMM_NULL, comm = r->comm;
    void *bad = NULL;
    pthread_t thread;
    double begun = now();

    r->comm = HOCCL_COMM_NULL;
    if (r->rank == 1) {
        sleep(1);
        RANK_OK(r, HOCCL_CommDestroy(comm));
        return;
    }
    if (r->rank == 0) {
        pthread_create(&thread, NULL, abort_soon, comm);
        RANK_FAILS(r, HOCCL_CommSplit(comm, 0, 0, &child), HOCCL_ERR_BOOTSTRAP, "aborted");
        RANK_TRUE(r, now() - begun < 3);
        pthread_join(thread, &bad);
        RANK_TRUE(r, !bad);
        return;
    }
    RANK_FAILS(r, HOCCL_CommSplit(comm, 0, 0, &child), HOCCL_ERR_BOOTSTRAP, "rank 0 has given up");
    RANK_TRUE(r, now() - begun < 3);
    RANK_OK(r, HOCCL_CommDestroy(comm));
}

static void test_abort(void **state)
{
    (void)state;
    ranks_run(3, body_abort, NULL);
}

/* A rank that has left is named at once. */
static void body_left(struct rank *r)
{
    HOCCL_Comm child = HOCCL_COMM_NULL;
    double begun = now();

    if (r->rank == 1)
        return;
    RANK_FAILS(r, HOCCL_CommSplit(r->comm, 0, 0, &child), HOCCL_ERR_BOOTSTRAP, "rank 1");
    RANK_TRUE(r, now() - begun < 3);
}

static void test_left(void **state)
{
    (void)state;
    ranks_run(3, body_left, NULL);
}

/* Many splits leave nothing behind, and ranks that run ahead of others do not disturb them. */
static void body_many(struct rank *r)
{
    for (int i = 0; i < 50; i++) {
        HOCCL_Comm child = HOCCL_COMM_NULL;
        if (!RANK_OK(r, HOCCL_CommSplit(r->comm, r->rank % 2, i % 2 ? r->rank : -r->rank, &child)))
            return;
        if (i % 10 == r->rank)
            usleep(10000);
        RANK_OK(r, HOCCL_CommDestroy(child));
    }
    rank_exchange(r, r->comm, 1000, 3);
}

static void test_many(void **state)
{
    int descriptors = 0, threads = 0;

    (void)state;
    ranks_hold(&descriptors, &threads);
    ranks_run(4, body_many, NULL);
    assert_true(ranks_settle(descriptors, threads));
}

static void ok(HOCCL_Result result)
{
    if (result)
        fail_msg("%s: %s", HOCCL_GetErrorString(result), HOCCL_GetLastError());
}

/* One thread, all ranks: init and split in groups. */
static void test_group(void **state)
{
    enum { N = 4 };
    HOCCL_Comm comm[N] = {HOCCL_COMM_NULL}, half[N] = {HOCCL_COMM_NULL};
    HOCCL_UniqueId id;

    (void)state;
    ok(HOCCL_GetUniqueId(&id));
    ok(HOCCL_GroupStart());
    for (int i = 0; i < N; i++)
        ok(HOCCL_CommInitRank(&comm[i], N, id, i));
    ok(HOCCL_GroupEnd());
    ok(HOCCL_GroupStart());
    for (int i = 0; i < N; i++)
        ok(HOCCL_CommSplit(comm[i], i / 2, 0, &half[i]));
    ok(HOCCL_GroupEnd());
    for (int i = 0; i < N; i++) {
        int rank, device;
        ok(HOCCL_CommRank(half[i], &rank));
        ok(HOCCL_CommDevice(half[i], &device));
        assert_int_equal(rank, i % 2);
        assert_int_equal(device, i);
        ok(HOCCL_CommDestroy(half[i]));
    }
    ok(HOCCL_GroupStart());
    for (int i = 0; i < N; i++)
        HOCCL_CommSplit(comm[i], 0, 0, i == 2 ? NULL : &half[i]);
    assert_int_not_equal(HOCCL_GroupEnd(), HOCCL_SUCCESS);
    for (int i = 0; i < N; i++)
        ok(HOCCL_CommDestroy(comm[i]));
}

/* Rows and columns of a grid in one group: splits of one communicator, in the order of the calls. */
static void body_rows(struct rank *r)
{
    HOCCL_Comm row = HOCCL_COMM_NULL, column = HOCCL_COMM_NULL, all = HOCCL_COMM_NULL;
    int size = 0, rank = -1;

    for (int i = 0; i < 5 && !r->failed; i++) {
        RANK_OK(r, HOCCL_GroupStart());
        RANK_OK(r, HOCCL_CommSplit(r->comm, r->rank / 3, 0, &row));
        RANK_OK(r, HOCCL_CommSplit(r->comm, r->rank % 3, 0, &column));
        RANK_OK(r, HOCCL_CommSplit(r->comm, 0, -r->rank, &all));
        if (!RANK_OK(r, HOCCL_GroupEnd()))
            return;
        RANK_OK(r, HOCCL_CommSize(row, &size));
        RANK_TRUE(r, size == 3);
        RANK_OK(r, HOCCL_CommSize(column, &size));
        RANK_TRUE(r, size == 2);
        RANK_OK(r, HOCCL_CommRank(all, &rank));
        RANK_TRUE(r, rank == r->size - 1 - r->rank);
        rank_exchange(r, i % 3 == 0 ? row : i % 3 == 1 ? column : all, 1000, 4);
        RANK_OK(r, HOCCL_CommDestroy(row));
        RANK_OK(r, HOCCL_CommDestroy(column));
        RANK_OK(r, HOCCL_CommDestroy(all));
    }
}

static void test_rows(void **state)
{
    (void)state;
    ranks_run(6, body_rows, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves), cmocka_unit_test(test_again),   cmocka_unit_test(test_no_color),
        cmocka_unit_test(test_busy),   cmocka_unit_test(test_missing), cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_abort),  cmocka_unit_test(test_left),    cmocka_unit_test(test_many),
        cmocka_unit_test(test_group),  cmocka_unit_test(test_rows),
    };

    ranks_environment(8);
    setenv("HOCCL_INIT_TIMEOUT", "4", 1);
    return cmocka_run_group_tests_name("splitting", tests, NULL, NULL);
}
