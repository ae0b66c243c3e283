/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on several nodes, as threads over a transport of the test's own (near.h): the pipeline of wire.h in good and in bad
 * weather. The counts are of the library itself: nothing is copied into a slot that was not granted, all three places are
 * busy at once, every lane carries, few large flows at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/setting.h"
#include "far.h"
#include "hoccl_cuda.h"
#include "near.h"
#include "p2p/wire.h"

/* ---- good and bad weather ---------------------------------------------------------------------------------------- */

static void test_sizes(void **state)
{
    (void)state;
    near = (struct near_weather){0};
    far_run(2, "2", all_sizes, NULL, false);
    far_run(4, "2", all_sizes, NULL, false);
    far_run(5, "2+3", all_sizes, NULL, false);
    far_run(4, "1+3", all_sizes, NULL, false);
}

static void test_weather(void **state)
{
    (void)state;
    near = (struct near_weather){.jitter = 2000};
    far_run(3, "3", all_sizes, NULL, false);
    near = (struct near_weather){.refuse = 70};
    far_run(3, "3", all_sizes, NULL, false);
    near = (struct near_weather){.delay = 100, .jitter = 500, .refuse = 30};
    far_run(4, "2", all_sizes, NULL, false);
    near = (struct near_weather){0};
}

/* Sequence numbers that wrap. */
static void test_wrap(void **state)
{
    (void)state;
    hoccl_settings.first_sequence = 4294967290u;
    far_run(2, "2", all_sizes, NULL, false);
    hoccl_settings.first_sequence = 0;
}

/* ---- counts ------------------------------------------------------------------------------------------------------- */

static void large(struct rank *r)
{
    struct work w;
    if (work_open(r, &w, (size_t)r->size * (34 * MIB)))
        exchange(r, &w, 33 * MIB + 5, 1);
    work_close(r, &w);
}

static void test_counts(void **state)
{
    uint64_t before[NEAR_LANES], after[NEAR_LANES], sm_before = 0, sm_after = 0;
    struct hoccl_pipe pipe = hoccl_pipe_make(false, &near_transport.cost, NEAR_LANES);
    (void)state;
    near = (struct near_weather){.delay = 200};
    near_lanes(before);
    memset(&hoccl_wire_counts, 0, sizeof hoccl_wire_counts);
    bool told = hoccl_cuda_sm_work(&sm_before);
    far_run(2, "2", large, NULL, false);
    if (told && hoccl_cuda_sm_work(&sm_after))
        assert_int_equal(sm_before, sm_after);
    near_lanes(after);
    for (int i = 0; i < NEAR_LANES; i++)
        assert_true(after[i] - before[i] >= 8 * MIB);
    uint64_t chunk = hoccl_pipe_chunk(&pipe, 33 * MIB + 5, HOCCL_POOL_SLOT, hoccl_pipe_depth(&pipe, HOCCL_POOL_SLOT));
    uint64_t chunks = 2 * ((33 * MIB + 5 + chunk - 1) / chunk);
    assert_int_equal(hoccl_wire_counts.granted, chunks);
    assert_int_equal(hoccl_wire_counts.allowed, chunks);
    assert_int_equal(hoccl_wire_counts.filled, chunks);
    assert_int_equal(hoccl_wire_counts.written, chunks);
    assert_int_equal(hoccl_wire_counts.arrived, chunks);
    assert_true(hoccl_wire_counts.deepest >= 3 && hoccl_wire_counts.deepest <= hoccl_pipe_depth(&pipe, HOCCL_POOL_SLOT));
    assert_true(hoccl_wire_counts.overlaps > 0);
    assert_true(hoccl_wire_counts.all_busy > 0);
    assert_int_equal(hoccl_wire_counts.emptying, 0);
    near = (struct near_weather){0};
}

/* Seven senders, one receiver: two large flows at most are granted at once, and that is reached. */
static void to_one(struct rank *r)
{
    struct work w;
    size_t n = 5 * MIB + 3;
    if (work_open(r, &w, 8 * n) && r->rank) {
        RANK_CUDA(r, cuMemcpyHtoD(w.out, message(r->rank, 0, 9), n));
        RANK_CUDA(r, cuStreamSynchronize(NULL));
        RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
        RANK_OK(r, stream_end(r, &w));
    } else if (!r->rank) {
        RANK_OK(r, HOCCL_GroupStart());
        for (int p = 1; p < r->size; p++)
            RANK_OK(r, HOCCL_Recv((void *)(w.in + (size_t)p * n), n, HOCCL_BYTE, p, r->comm, w.stream));
        RANK_OK(r, HOCCL_GroupEnd());
        RANK_OK(r, stream_end(r, &w));
        RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, 8 * n));
        for (int p = 1; p < r->size; p++)
            same(r, w.host + (size_t)p * n, message(p, 0, 9), n, p);
    }
    work_close(r, &w);
}

static void test_incast(void **state)
{
    (void)state;
    near = (struct near_weather){.jitter = 300};
    memset(&hoccl_wire_counts, 0, sizeof hoccl_wire_counts);
    far_run(8, "8", to_one, NULL, false);
    assert_int_equal(hoccl_wire_counts.receiving, 2);
    near = (struct near_weather){0};
}

enum { MESSAGES = 300 };

static void post_many(struct rank *r, const struct work *w, int to, int from)
{
    RANK_OK(r, HOCCL_GroupStart());
    for (size_t i = 0; i < MESSAGES; i++) {
        size_t n = i * 13 % 4096;
        RANK_OK(r, HOCCL_Send((void *)(w->out + i * 4096), n, HOCCL_BYTE, to, r->comm, w->stream));
        RANK_OK(r, HOCCL_Recv((void *)(w->in + i * 4096), n, HOCCL_BYTE, from, r->comm, w->stream));
    }
    RANK_OK(r, HOCCL_GroupEnd());
}

/* More messages at once than there are slots, and than run at once. */
static void many(struct rank *r)
{
    struct work w;
    int other = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    if (work_open(r, &w, (size_t)MESSAGES * 4096)) {
        RANK_CUDA(r, cuMemcpyHtoD(w.out, message(r->rank, other, 3), w.room));
        RANK_CUDA(r, cuStreamSynchronize(NULL));
        post_many(r, &w, other, before);
        RANK_OK(r, stream_end(r, &w));
        RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, w.room));
        for (size_t i = 0; i < MESSAGES; i++)
            same(r, w.host + i * 4096, message(before, r->rank, 3) + i * 4096, i * 13 % 4096, before);
    }
    work_close(r, &w);
}

/* One aborts while most of them have not begun; rank 2 posts nothing, so nobody can be through. */
static void many_in_vain(struct rank *r)
{
    struct work w;
    bool opened = work_open(r, &w, (size_t)MESSAGES * 4096);
    if (opened && r->rank < 2)
        post_many(r, &w, 1 - r->rank, 2);
    if (opened && !r->rank) {
        usleep(10000);
        RANK_OK(r, HOCCL_CommAbort(r->comm));
    } else if (opened && r->rank == 1) {
        RANK_TRUE(r, stream_end(r, &w) == HOCCL_ERR_PEER && strstr(HOCCL_GetLastError(), "rank 0"));
    }
    pthread_barrier_wait(&meeting);
    if (r->rank)
        RANK_OK(r, HOCCL_CommAbort(r->comm));
    r->comm = HOCCL_COMM_NULL;
    work_close(r, &w);
}

/* So many that not all of a line run at once, with pieces that are passed on within a node when they have come. */
static void many_gathers(struct rank *r)
{
    enum { EACH = 1000, GATHERS = MESSAGES / 3 };
    struct work w;
    size_t n = (size_t)r->size * EACH;
    if (work_open(r, &w, GATHERS * n)) {
        RANK_CUDA(r, cuMemcpyHtoD(w.out, message(r->rank, 0, 4), (size_t)GATHERS * EACH));
        RANK_CUDA(r, cuStreamSynchronize(NULL));
        RANK_OK(r, HOCCL_GroupStart());
        for (size_t i = 0; i < GATHERS; i++)
            RANK_OK(r, HOCCL_AllGather((void *)(w.out + i * EACH), (void *)(w.in + i * n), EACH, HOCCL_BYTE, r->comm, w.stream));
        RANK_OK(r, HOCCL_GroupEnd());
        RANK_OK(r, stream_end(r, &w));
        RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, GATHERS * n));
        for (size_t i = 0; i < GATHERS; i++)
            for (int p = 0; p < r->size; p++)
                same(r, w.host + i * n + (size_t)p * EACH, message(p, 0, 4) + i * EACH, EACH, p);
    }
    work_close(r, &w);
}

static void test_many(void **state)
{
    (void)state;
    near = (struct near_weather){.jitter = 100, .refuse = 20};
    far_run(3, "3", many, NULL, false);
    far_run(3, "1+2", many, NULL, false);
    far_run(4, "2+2", many_gathers, NULL, false);
    near = (struct near_weather){.jitter = 1000};
    far_run(3, "3", many_in_vain, NULL, false);
    far_run(3, "1+2", many_in_vain, NULL, false);
    near = (struct near_weather){0};
}

/* ---- faults ------------------------------------------------------------------------------------------------------- */

static int outcomes[2]; /* ranks that succeeded, that failed */

/* Whatever happens, every rank ends, with the right bytes or with an error that names a peer. */
static void survive(struct rank *r)
{
    struct work w;
    HOCCL_Comm comm;
    HOCCL_Result e = HOCCL_CommInitRank(&comm, r->size, r->id, r->rank);
    bool opened = !e;
    r->comm = comm;
    if (opened && work_open(r, &w, (size_t)r->size * (4 * MIB))) {
        e = all_to_all(r, &w, 3 * MIB + 11, 5);
        if (!e)
            check_all(r, &w, 3 * MIB + 11, 5);
    }
    HOCCL_GetLastError();
    if (e)
        RANK_TRUE(r, (e == HOCCL_ERR_PEER || (!opened && e == HOCCL_ERR_BOOTSTRAP)) && strstr(HOCCL_GetLastError(), "rank "));
    __atomic_add_fetch(&outcomes[e != 0], 1, __ATOMIC_RELAXED);
    if (opened) {
        RANK_OK(r, HOCCL_CommAbort(comm));
        work_close(r, &w);
    } else {
        pthread_barrier_wait(&meeting);
        pthread_barrier_wait(&meeting);
    }
    r->comm = HOCCL_COMM_NULL;
}

static void test_breaks(void **state)
{
    int most = getenv("LONG_TESTS") ? 200 : 40;
    (void)state;
    outcomes[0] = outcomes[1] = 0;
    for (int n = 1; n < most; n += 1 + n / 12) {
        near_break((unsigned)n);
        far_run(3, n % 2 ? "3" : "1+2", survive, NULL, true);
    }
    assert_true(outcomes[1] > 0);
    near_break(0);
    far_run(3, "3", survive, NULL, true);
}

/* One aborts in the middle, the others hear of it. */
static void abort_one(struct rank *r)
{
    struct work w;
    if (work_open(r, &w, (size_t)r->size * (17 * MIB))) {
        size_t n = 16 * MIB;
        RANK_OK(r, HOCCL_GroupStart());
        for (int p = 0; p < r->size; p++) {
            if (p == r->rank)
                continue;
            RANK_OK(r, HOCCL_Send((void *)(w.out + (size_t)p * n), n, HOCCL_BYTE, p, r->comm, w.stream));
            RANK_OK(r, HOCCL_Recv((void *)(w.in + (size_t)p * n), n, HOCCL_BYTE, p, r->comm, w.stream));
        }
        RANK_OK(r, HOCCL_GroupEnd());
        if (!r->rank) {
            usleep(3000);
            RANK_OK(r, HOCCL_CommAbort(r->comm));
            /* nothing is written after that */
            RANK_CUDA(r, cuStreamSynchronize(w.stream));
            RANK_CUDA(r, cuMemsetD8(w.in, 0x5a, w.room));
            RANK_CUDA(r, cuStreamSynchronize(NULL));
            usleep(30000);
            RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, w.room));
            filled_with(r, w.host, 0x5a, w.room);
        } else {
            HOCCL_Result e = stream_end(r, &w);
            RANK_TRUE(r, e == HOCCL_ERR_PEER);
            RANK_TRUE(r, strstr(HOCCL_GetLastError(), "rank 0") || strstr(HOCCL_GetLastError(), "aborted"));
            RANK_OK(r, HOCCL_CommAbort(r->comm));
        }
        r->comm = HOCCL_COMM_NULL;
    }
    work_close(r, &w);
}

static void test_abort(void **state)
{
    (void)state;
    near = (struct near_weather){.delay = 300, .jitter = 300};
    far_run(3, "3", abort_one, NULL, false);
    far_run(3, "1+2", abort_one, NULL, false);
    near = (struct near_weather){0};
}

/* The network stands still in the middle: within HOCCL_TIMEOUT both ends have an error that names the other. */
static void stall(struct rank *r)
{
    struct work w;
    if (work_open(r, &w, 70 * MIB)) {
        size_t n = 32 * MIB;
        RANK_OK(r, HOCCL_GroupStart());
        RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 1 - r->rank, r->comm, w.stream));
        RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1 - r->rank, r->comm, w.stream));
        RANK_OK(r, HOCCL_GroupEnd());
        if (!r->rank) {
            uint64_t seen = __atomic_load_n(&hoccl_wire_counts.arrived, __ATOMIC_RELAXED);
            while (__atomic_load_n(&hoccl_wire_counts.arrived, __ATOMIC_RELAXED) < seen + 8)
                usleep(100);
            near_stall(true);
        }
        HOCCL_Result e = stream_end(r, &w);
        RANK_TRUE(r, e == HOCCL_ERR_TIMEOUT || e == HOCCL_ERR_PEER);
        RANK_TRUE(r, strstr(HOCCL_GetLastError(), r->rank ? "rank 0" : "rank 1") && strstr(HOCCL_GetLastError(), "HOCCL_TIMEOUT"));
        pthread_barrier_wait(&meeting); /* whose peer has aborted already would be told of that */
        RANK_OK(r, HOCCL_CommAbort(r->comm));
        r->comm = HOCCL_COMM_NULL;
    }
    work_close(r, &w);
}

static void test_stall(void **state)
{
    (void)state;
    near = (struct near_weather){.delay = 200};
    hoccl_settings.timeout = 1000000000;
    far_run(2, "2", stall, NULL, false);
    hoccl_settings.timeout = 30000000000;
    near_stall(false);
    far_run(2, "2", all_sizes, NULL, false);
}

/* Different counts: both ends say so, with both values. */
static void differ(struct rank *r)
{
    struct work w;
    if (work_open(r, &w, MIB)) {
        HOCCL_Result e;
        if (r->rank)
            RANK_OK(r, HOCCL_Send((void *)w.out, 1000, HOCCL_BYTE, 0, r->comm, w.stream));
        else
            RANK_OK(r, HOCCL_Recv((void *)w.in, 1004, HOCCL_BYTE, 1, r->comm, w.stream));
        e = stream_end(r, &w);
        RANK_TRUE(r, e == HOCCL_ERR_MISMATCH);
        RANK_TRUE(r, strstr(HOCCL_GetLastError(), "1000 bytes") && strstr(HOCCL_GetLastError(), "1004 bytes"));
        RANK_OK(r, HOCCL_CommAbort(r->comm));
        r->comm = HOCCL_COMM_NULL;
    }
    work_close(r, &w);
}

static void test_mismatch(void **state)
{
    (void)state;
    far_run(2, "2", differ, NULL, false);
}

/* A peer that leaves without posting: an error, not a hang; and what it has sent before still comes. */
static void leave_early(struct rank *r)
{
    struct work w;
    if (work_open(r, &w, 4 * MIB)) {
        size_t n = 2 * MIB + 1;
        if (r->rank) {
            RANK_CUDA(r, cuMemsetD8(w.out, 0x77, n));
            RANK_CUDA(r, cuStreamSynchronize(NULL));
            RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
            RANK_OK(r, HOCCL_CommDestroy(r->comm));
        } else {
            RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
            RANK_OK(r, stream_end(r, &w));
            RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, n));
            filled_with(r, w.host, 0x77, n);
            RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
            RANK_TRUE(r, stream_end(r, &w) == HOCCL_ERR_PEER);
            RANK_TRUE(r, strstr(HOCCL_GetLastError(), "rank 1 has"));
            RANK_OK(r, HOCCL_CommAbort(r->comm));
        }
        r->comm = HOCCL_COMM_NULL;
    }
    work_close(r, &w);
}

static void test_leave(void **state)
{
    (void)state;
    far_run(2, "2", leave_early, NULL, false);
    near = (struct near_weather){.delay = 2000};
    far_run(2, "2", leave_early, NULL, false);
    near = (struct near_weather){0};
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),    cmocka_unit_test(test_weather), cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_counts),   cmocka_unit_test(test_incast),  cmocka_unit_test(test_many),
        cmocka_unit_test(test_breaks),   cmocka_unit_test(test_abort),   cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_stall),    cmocka_unit_test(test_leave),    cmocka_unit_test(test_first_use), cmocka_unit_test(test_split),   cmocka_unit_test(test_no_endpoint), cmocka_unit_test(test_one_cannot),
        cmocka_unit_test(test_come_and_go), cmocka_unit_test(test_failed_left), cmocka_unit_test(test_cross_once), cmocka_unit_test(test_slots_on_gpus), cmocka_unit_test(test_slots_on_all_gpus),
        cmocka_unit_test(test_registered_ends), cmocka_unit_test(test_registered_weather), cmocka_unit_test(test_registered_segments),
        cmocka_unit_test(test_registered_allocated), cmocka_unit_test(test_registered_reallocated),
        cmocka_unit_test(test_registered_handles), cmocka_unit_test(test_registered_taken_back),
        cmocka_unit_test(test_registered_abort), cmocka_unit_test(test_registered_breaks),
    };
    if (argc > 1) /* one case, for a machine with GPUs */
        cmocka_set_test_filter(argv[1]);
    far_noise();
    ranks_environment(8);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("HOCCL_EMU_RATE", "d2h=3000,h2d=3000", 0); /* slow enough that copies and writes are seen side by side */
    if (hoccl_settings_load_once())
        return 1;
    hoccl_wire_transport = &near_transport;
    return cmocka_run_group_tests_name("ranks on several nodes", tests, NULL, NULL);
}
