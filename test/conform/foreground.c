/* SPDX-License-Identifier: Apache-2.0 */
/* Foreground phases: that no chunk is given to an engine during one is counted at the emulated GPU. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu/hooks.h"
#include "hoccl_cuda.h"

enum { RANKS = 2, MIB = 1 << 20, BYTES = 48 * MIB, MS = 1000 };

static pthread_barrier_t settled;

struct work {
    CUdeviceptr out, in;
    CUstream back, front;
    unsigned key;
};

static bool work_open(struct rank *r, struct work *w, unsigned key)
{
    w->key = key;
    return RANK_CUDA(r, cuMemAlloc(&w->out, BYTES)) && RANK_CUDA(r, cuMemAlloc(&w->in, BYTES)) &&
           RANK_CUDA(r, cuStreamCreate(&w->back, CU_STREAM_NON_BLOCKING)) &&
           RANK_CUDA(r, cuStreamCreate(&w->front, CU_STREAM_NON_BLOCKING)) &&
           RANK_CUDA(r, cuMemsetD32Async(w->out, key * 100 + (unsigned)r->rank, BYTES / 4, w->back)) &&
           RANK_CUDA(r, cuStreamSynchronize(w->back));
}

/* cuMemFree waits for every parked stream of the process, so first all ranks are done. */
static void work_close(struct rank *r, struct work *w)
{
    pthread_barrier_wait(&settled);
    RANK_CUDA(r, cuStreamDestroy(w->back));
    RANK_CUDA(r, cuStreamDestroy(w->front));
    RANK_CUDA(r, cuMemFree(w->out));
    RANK_CUDA(r, cuMemFree(w->in));
    pthread_barrier_wait(&settled);
}

static bool exchange(struct rank *r, struct work *w, size_t bytes, CUstream stream)
{
    return RANK_OK(r, HOCCL_GroupStart()) &&
           RANK_OK(r, HOCCL_Send((void *)w->out, bytes, HOCCL_BYTE, 1 - r->rank, r->comm, stream)) &&
           RANK_OK(r, HOCCL_Recv((void *)w->in, bytes, HOCCL_BYTE, 1 - r->rank, r->comm, stream)) && RANK_OK(r, HOCCL_GroupEnd());
}

static bool right(struct rank *r, struct work *w, size_t bytes, CUstream stream)
{
    HOCCL_Result error;
    unsigned *seen = malloc(bytes);
    bool good = RANK_CUDA(r, cuStreamSynchronize(stream)) && RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)) &&
                RANK_OK(r, error) && RANK_CUDA(r, cuMemcpyDtoHAsync(seen, w->in, bytes, stream)) &&
                RANK_CUDA(r, cuStreamSynchronize(stream));
    for (size_t i = 0; i < bytes / 4 && good; i++)
        good = RANK_TRUE(r, seen[i] == w->key * 100 + (unsigned)(1 - r->rank));
    free(seen);
    return good;
}

/* Copies that engines of all GPUs have begun for this process. */
static uint64_t copies(struct rank *r)
{
    CUresult (*count)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    uint64_t sum = 0, ops, bytes;
    *(void **)&count = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    for (int device = 0; device < RANKS; device++)
        for (int e = HOCCL_EMU_PUSH; e <= HOCCL_EMU_H2D; e++) {
            RANK_CUDA(r, count(device, (enum hoccl_emu_engine)e, &ops, &bytes));
            sum += ops;
        }
    return sum;
}

/* Wait until no copy has begun for a while: what had been given before has landed. */
static uint64_t still(struct rank *r)
{
    uint64_t before, now = copies(r);
    do {
        before = now;
        usleep(120 * MS);
        now = copies(r);
    } while (now != before);
    return now;
}

/* Both ranks in a phase: nothing moves of what is posted then, nor more of what is under way; after it everything is right. */
static void holds(struct rank *r)
{
    struct work w;
    if (!work_open(r, &w, 1))
        return;
    RANK_OK(r, HOCCL_ForegroundBegin(r->comm, w.front));
    RANK_CUDA(r, cuStreamSynchronize(w.front));
    pthread_barrier_wait(&settled);
    uint64_t before = copies(r);
    pthread_barrier_wait(&settled);
    exchange(r, &w, MIB, w.back);
    usleep(60 * MS);
    RANK_TRUE(r, copies(r) == before);
    RANK_TRUE(r, cuStreamQuery(w.back) == CUDA_ERROR_NOT_READY);
    pthread_barrier_wait(&settled);
    RANK_OK(r, HOCCL_ForegroundEnd(r->comm, w.front));
    right(r, &w, MIB, w.back);
    pthread_barrier_wait(&settled);
    before = copies(r);
    pthread_barrier_wait(&settled);
    exchange(r, &w, BYTES, w.back);
    while (copies(r) == before)
        usleep(MS);
    RANK_OK(r, HOCCL_ForegroundBegin(r->comm, w.front));
    RANK_CUDA(r, cuStreamSynchronize(w.front));
    before = still(r);
    usleep(60 * MS);
    RANK_TRUE(r, copies(r) == before);
    RANK_TRUE(r, cuStreamQuery(w.back) == CUDA_ERROR_NOT_READY);
    pthread_barrier_wait(&settled);
    RANK_OK(r, HOCCL_ForegroundEnd(r->comm, w.front));
    right(r, &w, BYTES, w.back);
    work_close(r, &w);
}

static void test_holds(void **state)
{
    (void)state;
    ranks_run(RANKS, holds, NULL);
}

/* What is posted within a phase on its stream goes on, and so does another communicator. */
static void within(struct rank *r)
{
    struct work w;
    HOCCL_Comm other, own = r->comm;
    if (!work_open(r, &w, 2) || !RANK_OK(r, HOCCL_CommSplit(own, 0, r->rank, &other)))
        return;
    RANK_OK(r, HOCCL_ForegroundBegin(own, w.front));
    RANK_OK(r, HOCCL_ForegroundBegin(own, w.front));
    exchange(r, &w, MIB, w.front);
    right(r, &w, MIB, w.front);
    RANK_OK(r, HOCCL_ForegroundEnd(own, w.front));
    RANK_CUDA(r, cuMemsetD8Async(w.in, 0, MIB, w.front));
    RANK_CUDA(r, cuStreamSynchronize(w.front));
    r->comm = other;
    exchange(r, &w, MIB, w.back);
    right(r, &w, MIB, w.back);
    r->comm = own;
    exchange(r, &w, MIB, w.back); /* the outer phase has not ended */
    usleep(30 * MS);
    RANK_TRUE(r, cuStreamQuery(w.back) == CUDA_ERROR_NOT_READY);
    pthread_barrier_wait(&settled);
    RANK_OK(r, HOCCL_ForegroundEnd(own, w.front));
    right(r, &w, MIB, w.back);
    RANK_OK(r, HOCCL_CommDestroy(other));
    work_close(r, &w);
}

static void test_within(void **state)
{
    (void)state;
    ranks_run(RANKS, within, NULL);
}

/* Rank 0's phase ends only behind an operation that the phase holds up, at both ends; and another phase never ends. After
 * HOCCL_PAUSE everything goes on, also what is posted later. */
static void waits_for_itself(struct rank *r)
{
    struct work w;
    CUevent done;
    if (!work_open(r, &w, 3) || !RANK_CUDA(r, cuEventCreate(&done, CU_EVENT_DISABLE_TIMING)))
        return;
    RANK_OK(r, HOCCL_ForegroundBegin(r->comm, w.front));
    RANK_CUDA(r, cuStreamSynchronize(w.front));
    exchange(r, &w, MIB, w.back);
    RANK_CUDA(r, cuEventRecord(done, w.back));
    RANK_CUDA(r, cuStreamWaitEvent(w.front, done, 0));
    if (r->rank)
        RANK_OK(r, HOCCL_ForegroundEnd(r->comm, w.front));
    right(r, &w, MIB, w.back);
    exchange(r, &w, MIB, w.back);
    right(r, &w, MIB, w.back);
    RANK_CUDA(r, cuStreamSynchronize(w.front));
    RANK_CUDA(r, cuEventDestroy(done));
    work_close(r, &w);
}

static void test_waits_for_itself(void **state)
{
    (void)state;
    ranks_run(RANKS, waits_for_itself, NULL);
}

/* The end of the communicator ends its phases; an abort needs nothing of them. */
static void ends(struct rank *r)
{
    struct work w;
    if (!work_open(r, &w, 4))
        return;
    RANK_OK(r, HOCCL_ForegroundBegin(r->comm, w.front));
    RANK_CUDA(r, cuStreamSynchronize(w.front));
    exchange(r, &w, MIB, w.back);
    RANK_OK(r, HOCCL_CommFinalize(r->comm));
    right(r, &w, MIB, w.back);
    work_close(r, &w);
}

static void aborts(struct rank *r)
{
    struct work w;
    if (!work_open(r, &w, 5))
        return;
    RANK_OK(r, HOCCL_ForegroundBegin(r->comm, w.front));
    RANK_CUDA(r, cuStreamSynchronize(w.front));
    pthread_barrier_wait(&settled);
    exchange(r, &w, BYTES, w.back);
    RANK_OK(r, HOCCL_CommAbort(r->comm));
    r->comm = HOCCL_COMM_NULL;
    RANK_CUDA(r, cuStreamSynchronize(w.back));
    work_close(r, &w);
}

static void test_ends(void **state)
{
    (void)state;
    ranks_run(RANKS, ends, NULL);
    ranks_run(RANKS, aborts, NULL);
}

/* The communicator goes while the stream has not written its words yet: they stay the stream's. */
static void leaves_late(struct rank *r)
{
    struct work w;
    void *host;
    if (!work_open(r, &w, 6) || !RANK_CUDA(r, cuMemAllocHost(&host, BYTES)))
        return;
    RANK_CUDA(r, cuMemcpyDtoHAsync(host, w.out, BYTES, w.front)); /* takes 100 ms */
    RANK_OK(r, HOCCL_ForegroundBegin(r->comm, w.front));
    RANK_OK(r, HOCCL_ForegroundEnd(r->comm, w.front));
    RANK_OK(r, HOCCL_CommDestroy(r->comm));
    r->comm = HOCCL_COMM_NULL;
    RANK_CUDA(r, cuStreamSynchronize(w.front));
    work_close(r, &w);
    RANK_CUDA(r, cuMemFreeHost(host));
}

static void test_leaves_late(void **state)
{
    (void)state;
    ranks_run(RANKS, leaves_late, NULL);
}

static void misuse(struct rank *r)
{
    enum { MOST = 16 };
    CUstream stream[MOST + 1];
    CUgraph graph;
    for (int i = 0; i <= MOST; i++)
        RANK_CUDA(r, cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    RANK_FAILS(r, HOCCL_ForegroundBegin(HOCCL_COMM_NULL, stream[0]), HOCCL_ERR_ARGUMENT, "HOCCL_ForegroundBegin: communicator");
    RANK_FAILS(r, HOCCL_ForegroundEnd(r->comm, stream[0]), HOCCL_ERR_USAGE, "HOCCL_ForegroundBegin comes first");
    RANK_CUDA(r, cuStreamBeginCapture(stream[0], CU_STREAM_CAPTURE_MODE_RELAXED));
    RANK_FAILS(r, HOCCL_ForegroundBegin(r->comm, stream[0]), HOCCL_ERR_UNSUPPORTED, "capturing");
    RANK_CUDA(r, cuStreamEndCapture(stream[0], &graph));
    for (int i = 0; i < MOST; i++)
        RANK_OK(r, HOCCL_ForegroundBegin(r->comm, stream[i]));
    RANK_FAILS(r, HOCCL_ForegroundBegin(r->comm, stream[MOST]), HOCCL_ERR_USAGE, "16 streams");
    RANK_OK(r, HOCCL_ForegroundEnd(r->comm, stream[3]));
    RANK_FAILS(r, HOCCL_ForegroundEnd(r->comm, stream[3]), HOCCL_ERR_USAGE, "comes first");
    RANK_CUDA(r, cuStreamSynchronize(stream[3]));
    RANK_OK(r, HOCCL_ForegroundBegin(r->comm, stream[MOST])); /* in the place of that one */
    for (int i = 0; i <= MOST; i++) {
        if (i != 3)
            RANK_OK(r, HOCCL_ForegroundEnd(r->comm, stream[i]));
        RANK_CUDA(r, cuStreamDestroy(stream[i]));
    }
}

static void test_misuse(void **state)
{
    (void)state;
    ranks_run(RANKS, misuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holds),       cmocka_unit_test(test_within), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_leaves_late), cmocka_unit_test(test_misuse), cmocka_unit_test(test_waits_for_itself),
    };
    setenv("HOCCL_DEVICE", "emu", 1);
    setenv("HOCCL_EMU_RATE", "push=400,d2h=400,h2d=400", 1);
    setenv("HOCCL_CHUNK", "1M", 1);
    setenv("HOCCL_PAUSE", "4000", 1);
    ranks_environment(RANKS);
    pthread_barrier_init(&settled, NULL, RANKS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
