/* SPDX-License-Identifier: Apache-2.0 */
/* What a collective asks of the engines, counted at the emulated GPUs' push engines: its pieces go one after another, each
 * in one chunk while it is no larger than that (independent messages share an engine in smaller chunks); and a long
 * broadcast leaves no GPU more than once. And ranks do not all turn to the same
 * one (with HOCCL_TEST_BREAK=no-rotation they do, and this fails: test/multi/broken.sh). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "emu/hooks.h"
#include "hoccl_cuda.h"
#include "ranks.h"

enum { RANKS = 4 };
#define PIECE ((size_t)24 << 20)

static pthread_barrier_t settled;

struct work {
    CUdeviceptr in;
    CUstream stream;
};

static bool pushes(struct rank *r, uint64_t *ops, uint64_t *bytes)
{
    CUresult (*count)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    *(void **)&count = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    return RANK_CUDA(r, count(r->rank, HOCCL_EMU_PUSH, ops, bytes));
}

static bool work_open(struct rank *r, struct work *w)
{
    return RANK_CUDA(r, cuMemAlloc(&w->in, RANKS * PIECE)) &&
           RANK_CUDA(r, cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
}

/* cuMemFree waits for every parked stream of the process, so first all ranks are done. */
static void work_close(struct rank *r, struct work *w)
{
    pthread_barrier_wait(&settled);
    RANK_CUDA(r, cuStreamDestroy(w->stream));
    RANK_CUDA(r, cuMemFree(w->in));
    pthread_barrier_wait(&settled);
}

static bool work_done(struct rank *r, const struct work *w)
{
    HOCCL_Result error;
    return RANK_CUDA(r, cuStreamSynchronize(w->stream)) && RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)) &&
           RANK_OK(r, error);
}

static void gather(struct rank *r)
{
    struct work w;
    uint64_t before, after, bytes;
    if (!work_open(r, &w) || !pushes(r, &before, &bytes))
        return;
    const void *own = (const void *)(w.in + (size_t)r->rank * PIECE);
    if (RANK_OK(r, HOCCL_AllGather(own, (void *)w.in, PIECE, HOCCL_BYTE, r->comm, w.stream)) && work_done(r, &w) &&
        pushes(r, &after, &bytes))
        RANK_TRUE(r, after - before == RANKS - 1);
    work_close(r, &w);
}

/* What each rank's engine has pushed for a broadcast from rank 1. */
static uint64_t pushed[RANKS];

static bool spread(struct rank *r, const struct work *w, size_t bytes)
{
    uint64_t ops, before, after;
    if (!pushes(r, &ops, &before) ||
        !RANK_OK(r, HOCCL_Broadcast((void *)w->in, (void *)w->in, bytes, HOCCL_BYTE, 1, r->comm, w->stream)) || !work_done(r, w) ||
        !pushes(r, &ops, &after))
        return false;
    pushed[r->rank] = after - before;
    pthread_barrier_wait(&settled);
    return true;
}

static void broadcast(struct rank *r)
{
    struct work w;
    if (!work_open(r, &w))
        return;
    if (spread(r, &w, 4096)) /* a short one is root's alone */
        RANK_TRUE(r, pushed[r->rank] == (r->rank == 1 ? (RANKS - 1) * 4096 : 0));
    pthread_barrier_wait(&settled);
    if (spread(r, &w, RANKS * PIECE)) { /* a long one goes along a chain */
        uint64_t sum = 0;
        for (int i = 0; i < RANKS; i++)
            sum += pushed[i];
        RANK_TRUE(r, sum == (RANKS - 1) * RANKS * PIECE);
        RANK_TRUE(r, pushed[r->rank] <= RANKS * PIECE);
    }
    work_close(r, &w);
}

/* ---- turns -------------------------------------------------------------------------------------------------------- */

static CUdeviceptr received[RANKS];

static bool has_landed(struct rank *r, int receiver, int source)
{
    unsigned char last = 0;
    RANK_CUDA(r, cuMemcpyDtoH(&last, received[receiver] + (size_t)(source + 1) * PIECE - 1, 1));
    return last;
}

/* Of rank 2's pieces, is that for rank 3 the last to land? Its engine begins with whichever is offered first, and all are while
 * that one is on its way. So in turn (3, 0, 1) it is not. */
static bool three_lands_last(struct rank *r)
{
    while (!r->failed && !has_landed(r, 3, 2))
        if (has_landed(r, 0, 2) && has_landed(r, 1, 2) && !has_landed(r, 3, 2))
            return true;
    return false;
}

static void turns(struct rank *r)
{
    struct work w;
    CUdeviceptr out;
    if (!work_open(r, &w) || !RANK_CUDA(r, cuMemAlloc(&out, RANKS * PIECE)) ||
        !RANK_CUDA(r, cuMemsetD8Async(out, 0x55, RANKS * PIECE, w.stream)))
        return;
    for (int i = 0; i < 5; i++) { /* the first opens everything, and the engine does not know its rate */
        RANK_CUDA(r, cuMemsetD8Async(w.in, 0, RANKS * PIECE, w.stream));
        RANK_CUDA(r, cuStreamSynchronize(w.stream));
        received[r->rank] = w.in;
        pthread_barrier_wait(&settled);
        RANK_OK(r, HOCCL_Alltoall((void *)out, (void *)w.in, PIECE, HOCCL_BYTE, r->comm, w.stream));
        if (r->rank == 2 && i && !RANK_TRUE(r, !three_lands_last(r)))
            printf("rank 2 does not begin with the rank behind it\n");
        work_done(r, &w);
        pthread_barrier_wait(&settled);
    }
    work_close(r, &w);
    RANK_CUDA(r, cuMemFree(out));
}

static void test_turns(void **state)
{
    (void)state;
    ranks_run(RANKS, turns, NULL);
}

/* ---- */

static void test_broadcast(void **state)
{
    (void)state;
    ranks_run(RANKS, broadcast, NULL);
}

static void test_collective(void **state)
{
    (void)state;
    ranks_run(RANKS, gather, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collective), cmocka_unit_test(test_broadcast),
                                       cmocka_unit_test(test_turns)};
    setenv("HOCCL_DEVICE", "emu", 1);
    setenv("HOCCL_EMU_RATE", "push=300", 1); /* while one piece is on its way, all others are offered */
    ranks_environment(RANKS);
    pthread_barrier_init(&settled, NULL, RANKS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
