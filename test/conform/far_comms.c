/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators over several nodes: split, made again and again, not made; and their slots in another place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../gpu/kernels.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/setting.h"
#include "far.h"
#include "hoccl_cuda.h"
#include "near.h"
#include "p2p/wire.h"

static int failures[2]; /* ranks that failed with another's error, with their own */

/* Even and odd ranks, then in reverse order; each part has ranks of both nodes. */
static void split(struct rank *r)
{
    HOCCL_Comm whole = r->comm, part = HOCCL_COMM_NULL;
    struct work w;
    if (work_open(r, &w, 4 * (2 * MIB))) {
        RANK_OK(r, HOCCL_CommSplit(whole, r->rank % 2, -r->rank, &part));
        struct rank half = *r;
        half.comm = part;
        RANK_OK(r, HOCCL_CommRank(part, &half.rank));
        RANK_OK(r, HOCCL_CommSize(part, &half.size));
        RANK_TRUE(r, half.size == 2 && half.rank == 1 - r->rank / 2);
        exchange(&half, &w, MIB + 5, 4);
        RANK_TRUE(r, !half.failed);
        exchange(r, &w, 70001, 8);
        RANK_OK(r, HOCCL_CommDestroy(part));
    }
    work_close(r, &w);
}

void test_split(void **state)
{
    (void)state;
    far_run(4, "2+2", split, NULL, false);
}

static void split_nothing(struct rank *r)
{
    HOCCL_Comm part = HOCCL_COMM_NULL;
    RANK_OK(r, HOCCL_CommSplit(r->comm, HOCCL_SPLIT_NOCOLOR, 0, &part));
    RANK_TRUE(r, part == HOCCL_COMM_NULL);
}

/* Made and unmade again and again, nothing is kept. */
static void come_and_go(struct rank *r)
{
    HOCCL_UniqueId *ids = r->arg;
    for (int i = 0; i < (getenv("LONG_TESTS") ? 1000 : 30) && !r->failed; i++) {
        HOCCL_Comm comm;
        if (!r->rank && !i)
            *ids = r->id;
        else if (!r->rank)
            RANK_OK(r, HOCCL_GetUniqueId(ids));
        pthread_barrier_wait(&meeting);
        HOCCL_UniqueId id = *ids;
        pthread_barrier_wait(&meeting);
        if (RANK_OK(r, HOCCL_CommInitRank(&comm, r->size, id, r->rank)))
            RANK_OK(r, HOCCL_CommDestroy(comm));
    }
}

void test_come_and_go(void **state)
{
    HOCCL_UniqueId id;
    int descriptors = 0, threads = 0;
    (void)state;
    far_run(3, "3", come_and_go, &id, true);
    ranks_hold(&descriptors, &threads);
    far_run(3, "3", come_and_go, &id, true);
    assert_true(ranks_settle(descriptors, threads));
}

/* ---- failed, and not aborted ------------------------------------------------------------------------------------- */

#define FAILED_COMMS 8
#define LARGE (24 * MIB)

static uint64_t places_granted(void)
{
    return hoccl_peek(&hoccl_wire_counts.into) + hoccl_peek(&hoccl_wire_counts.granted);
}

/* Rank 0 lets rank 2, on the other node, write, which that one does not for the moment, and at once ranks 0 and 1 fail with one
 * another. Nothing is aborted. */
static void fail_in_the_middle(struct rank *r, HOCCL_Comm comm, struct work *w, CUstream other)
{
    const HOCCL_Result wanted[] = {HOCCL_ERR_MISMATCH, HOCCL_ERR_MISMATCH, HOCCL_ERR_PEER};
    HOCCL_Result e = HOCCL_SUCCESS;
    uint64_t granted = places_granted();
    pthread_barrier_wait(&meeting);
    if (r->rank == 2) {
        RANK_OK(r, HOCCL_ForegroundBegin(comm, other));
        RANK_CUDA(r, cuStreamSynchronize(other));
        RANK_OK(r, HOCCL_Send((void *)w->out, LARGE, HOCCL_BYTE, 0, comm, w->stream));
    }
    if (!r->rank)
        RANK_OK(r, HOCCL_Recv((void *)w->in, LARGE, HOCCL_BYTE, 2, comm, w->stream));
    while (!r->rank && places_granted() == granted && !HOCCL_CommGetAsyncError(comm, &e) && !e)
        usleep(100);
    if (!r->rank)
        RANK_OK(r, HOCCL_Recv((void *)(w->in + LARGE), 8, HOCCL_BYTE, 1, comm, other));
    if (r->rank == 1)
        RANK_OK(r, HOCCL_Send((void *)(w->out + LARGE), 4, HOCCL_BYTE, 0, comm, other));
    RANK_CUDA(r, cuStreamSynchronize(other));
    RANK_CUDA(r, cuStreamSynchronize(w->stream));
    RANK_OK(r, HOCCL_CommGetAsyncError(comm, &e));
    RANK_TRUE(r, e == wanted[r->rank]);
    pthread_barrier_wait(&meeting);
}

static void fail_often(struct rank *r)
{
    struct work w, good; /* the buffers of failed operations are not the rank's until the abort */
    HOCCL_Comm comm[FAILED_COMMS];
    CUstream other;
    bool *registered = r->arg, (*open)(struct rank *, struct work *, size_t) = *registered ? work_open_registered : work_open;
    if (open(r, &w, LARGE + 2 * MIB) && open(r, &good, LARGE + MIB) &&
        RANK_CUDA(r, cuStreamCreate(&other, CU_STREAM_NON_BLOCKING))) {
        for (int i = 0; i < FAILED_COMMS; i++)
            RANK_OK(r, HOCCL_CommSplit(r->comm, 0, r->rank, &comm[i]));
        for (int i = 0; i < FAILED_COMMS; i++)
            fail_in_the_middle(r, comm[i], &w, other);
        exchange(r, &good, 8 * MIB + 1, 3);
        for (int i = 0; i < FAILED_COMMS; i++)
            RANK_OK(r, HOCCL_CommAbort(comm[i]));
        RANK_CUDA(r, cuStreamDestroy(other));
    }
    work_close(r, &w);
    work_close(r, &good);
}

/* Places that were granted in communicators that have failed come back although nobody aborts these: other communicators of
 * the GPU need them. */
void test_failed_left(void **state)
{
    uint64_t timeout = hoccl_settings.timeout;
    (void)state;
    near = (struct near_weather){.on_gpu = true, .delay = 20000};
    hoccl_settings.timeout = 2000000000;
    hoccl_settings.wait_timeout = 20000000000; /* else a fault would be a hang */
    for (int i = 0; i < 2; i++) {
        bool registered = i;
        far_run(3, "2+1", fail_often, &registered, false);
    }
    hoccl_settings.wait_timeout = 0;
    hoccl_settings.timeout = timeout;
    near = (struct near_weather){0};
}

/* The same where only a tree is connected at the start: rank 0 to all up to rank 4, nobody else. */
void test_first_use(void **state)
{
    uint64_t normal = hoccl_settings.connect_max, before = hoccl_wire_counts.begun;
    (void)state;
    hoccl_settings.connect_max = 1;
    far_run(5, "1+4", split_nothing, NULL, false);
    assert_int_equal(hoccl_wire_counts.begun - before, 2 * 4);
    before = hoccl_wire_counts.begun;
    far_run(5, "5", split_nothing, NULL, false);
    assert_int_equal(hoccl_wire_counts.begun - before, 2 * 4);
    before = hoccl_wire_counts.begun;
    far_run(5, "5", all_sizes, NULL, false);
    assert_int_equal(hoccl_wire_counts.begun - before, 2 * 10);
    far_run(4, "2+2", split, NULL, false);
    near = (struct near_weather){.delay = 100, .jitter = 500, .refuse = 30};
    far_run(5, "2+3", all_sizes, NULL, false);
    near = (struct near_weather){0};
    hoccl_settings.connect_max = normal;
}

/* Slots on another GPU, carried by copy engines, while every thread slot of every SM is held: push, write, pull. */
static void with_sms_held(struct rank *r)
{
    struct work w;
    CUmodule module;
    CUfunction hold;
    CUstream k;
    int sms = 0;
    unsigned long long ns = 10000000000;
    void *args[] = {&ns};
    bool held = work_open(r, &w, (size_t)r->size * (4 * MIB)) && RANK_CUDA(r, cuModuleLoadData(&module, kernels_ptx)) &&
                RANK_CUDA(r, cuModuleGetFunction(&hold, module, "hold")) &&
                RANK_CUDA(r, cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, r->rank)) &&
                RANK_CUDA(r, cuStreamCreate(&k, CU_STREAM_NON_BLOCKING));
    size_t n = far_sizes_count, last = far_sizes[n - 1], row = last + 67;
    memset(w.host, 0, w.room);
    for (int p = 0; p < r->size; p++)
        memcpy(w.host + (size_t)p * row + 1, message(r->rank, p, 7), last);
    RANK_CUDA(r, cuMemcpyHtoD(w.out, w.host, w.room));
    RANK_CUDA(r, cuStreamSynchronize(NULL));
    pthread_barrier_wait(&meeting);
    if (held)
        RANK_CUDA(r, cuLaunchKernel(hold, (unsigned)sms * 2, 1, 1, 1024, 1, 1, 0, k, args, NULL));
    pthread_barrier_wait(&meeting);
    for (size_t i = 0; i < n && !r->failed; i++) {
        RANK_OK(r, HOCCL_GroupStart());
        for (int d = 1; d < r->size; d++) {
            int to = (r->rank + d) % r->size, from = (r->rank - d + r->size) % r->size;
            RANK_OK(r, HOCCL_Send((void *)(w.out + (size_t)to * row + 1), far_sizes[i], HOCCL_BYTE, to, r->comm, w.stream));
            RANK_OK(r, HOCCL_Recv((void *)(w.in + (size_t)from * row + 1), far_sizes[i], HOCCL_BYTE, from, r->comm, w.stream));
        }
        RANK_OK(r, HOCCL_GroupEnd());
        RANK_OK(r, stream_end(r, &w));
    }
    RANK_TRUE(r, cuStreamQuery(k) == CUDA_ERROR_NOT_READY); /* else it has proved nothing */
    RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, w.room));
    for (int p = 0; p < r->size; p++)
        if (p != r->rank)
            same(r, w.host + (size_t)p * row + 1, message(p, r->rank, 7), last, p);
    RANK_CUDA(r, cuStreamSynchronize(k));
    work_close(r, &w);
}

void test_slots_on_gpus(void **state)
{
    uint64_t before = 0, after = 0;
    int gpus = 0;
    (void)state;
    near = (struct near_weather){.on_gpu = true};
    hoccl_wire_place = HOCCL_WIRE_ON_GPU;
    bool told = hoccl_cuda_sm_work(&before);
    far_run(2, "2", all_sizes, NULL, false);
    assert_int_equal(cuDeviceGetCount(&gpus), CUDA_SUCCESS);
    if (gpus > 2) /* real machines may have two */
        far_run(3, "1+2", all_sizes, NULL, false);
    if (told && hoccl_cuda_sm_work(&after))
        assert_int_equal(before, after);
    far_run(2, "2", with_sms_held, NULL, false);
    near = (struct near_weather){0};
    hoccl_wire_place = HOCCL_WIRE_CHOOSE;
}

/* Every byte right, and how long it takes with nothing else in between. */
static void timed(struct rank *r)
{
    struct work w;
    size_t n = *(size_t *)r->arg;
    uint64_t best = UINT64_MAX;
    if (work_open(r, &w, (size_t)r->size * (n + 67))) {
        exchange(r, &w, n, 11);
        for (int i = 0; i < 3 && !r->failed; i++) {
            pthread_barrier_wait(&meeting);
            uint64_t begun = hoccl_now();
            RANK_OK(r, all_to_all_again(r, &w, n));
            pthread_barrier_wait(&meeting);
            uint64_t took = hoccl_now() - begun;
            best = took < best ? took : best;
        }
        check_all(r, &w, n, 11);
    }
    if (!r->rank && !r->failed)
        printf("%d ranks, two nodes, slots on GPUs: %zu bytes to each of the others in %.3f ms, %.2f GB/s out of a rank\n", r->size, n,
               1e-6 * (double)best, (double)(n * (size_t)(r->size - 1)) / (double)best);
    work_close(r, &w);
}

/* All GPUs that there are, in two halves; for machines whose number of them is not known beforehand. FAR_MIB: so much to each. */
void test_slots_on_all_gpus(void **state)
{
    char halves[32];
    int gpus = 0;
    const char *most = getenv("FAR_MIB");
    size_t bytes = (size_t)(most ? atoi(most) : 1) * MIB;
    (void)state;
    assert_int_equal(cuDeviceGetCount(&gpus), CUDA_SUCCESS);
    snprintf(halves, sizeof halves, "%d+%d", gpus / 2, gpus - gpus / 2);
    near = (struct near_weather){.on_gpu = true};
    hoccl_wire_place = HOCCL_WIRE_ON_GPU;
    far_run(gpus, halves, timed, &bytes, false);
    near = (struct near_weather){0};
    hoccl_wire_place = HOCCL_WIRE_CHOOSE;
}

/* Registration fails on one rank: every rank fails, at once and with its text. */
static void one_cannot(struct rank *r)
{
    HOCCL_Comm comm;
    HOCCL_Result e = HOCCL_CommInitRank(&comm, r->size, r->id, r->rank);
    RANK_TRUE(r, e == HOCCL_ERR_MEMORY || e == HOCCL_ERR_BOOTSTRAP);
    if (!RANK_TRUE(r, strstr(HOCCL_GetLastError(), "the test lets this region not be registered")))
        printf("rank %d: %s\n", r->rank, HOCCL_GetLastError());
    __atomic_add_fetch(&failures[e == HOCCL_ERR_MEMORY], 1, __ATOMIC_RELAXED);
}

void test_one_cannot(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 6; n++) {
        failures[0] = failures[1] = 0;
        near = (struct near_weather){.fail_region = n};
        far_run(3, "3", one_cannot, NULL, true);
        assert_int_equal(failures[0], 2);
        assert_int_equal(failures[1], 1);
    }
    near = (struct near_weather){0};
    far_run(3, "3", all_sizes, NULL, false);
}

/* A piece of an AllGather, which is the same for all, and of a broadcast: to each other node once. Pieces of one chunk, so
 * that chunks count them. */
static void cross(struct rank *r)
{
    const size_t n = 60000;
    struct work w;
    if (work_open(r, &w, n * (size_t)r->size)) {
        uint64_t before = hoccl_observe(&hoccl_wire_counts.arrived);
        pthread_barrier_wait(&meeting);
        if (RANK_OK(r, HOCCL_AllGather((void *)w.out, (void *)w.in, n, HOCCL_BYTE, r->comm, w.stream)))
            RANK_OK(r, stream_end(r, &w));
        pthread_barrier_wait(&meeting);
        RANK_TRUE(r, hoccl_observe(&hoccl_wire_counts.arrived) - before == 7 * 2);
        pthread_barrier_wait(&meeting);
        if (RANK_OK(r, HOCCL_Broadcast((void *)w.out, (void *)w.in, n, HOCCL_BYTE, 4, r->comm, w.stream)))
            RANK_OK(r, stream_end(r, &w));
        pthread_barrier_wait(&meeting);
        RANK_TRUE(r, hoccl_observe(&hoccl_wire_counts.arrived) - before == 7 * 2 + 2);
    }
    work_close(r, &w);
}

void test_cross_once(void **state)
{
    (void)state;
    far_run(7, "3+1+3", cross, NULL, false);
}

static void cannot_start(struct rank *r)
{
    HOCCL_Comm comm;
    RANK_FAILS(r, HOCCL_CommInitRank(&comm, r->size, r->id, r->rank), HOCCL_ERR_BOOTSTRAP, "the test lets no endpoint open");
}

void test_no_endpoint(void **state)
{
    (void)state;
    near = (struct near_weather){.fail_open = true};
    far_run(2, "2", cannot_start, NULL, true);
    far_run(2, "", all_sizes, NULL, false); /* within a node none is needed */
    near = (struct near_weather){0};
}

