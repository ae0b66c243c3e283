/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces of a collective go one after another, each in one chunk while it is no larger than that: counted at the
 * emulated GPU's push engine. (Independent messages share an engine in smaller chunks.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
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

static bool pushes(struct rank *r, uint64_t *ops)
{
    CUresult (*count)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    uint64_t bytes;
    *(void **)&count = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    return RANK_CUDA(r, count(r->rank, HOCCL_EMU_PUSH, ops, &bytes));
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
    uint64_t before, after;
    if (!work_open(r, &w) || !pushes(r, &before))
        return;
    const void *own = (const void *)(w.in + (size_t)r->rank * PIECE);
    if (RANK_OK(r, HOCCL_AllGather(own, (void *)w.in, PIECE, HOCCL_BYTE, r->comm, w.stream)) && work_done(r, &w) &&
        pushes(r, &after))
        RANK_TRUE(r, after - before == RANKS - 1);
    work_close(r, &w);
}

static void test_collective(void **state)
{
    (void)state;
    ranks_run(RANKS, gather, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collective)};
    setenv("HOCCL_DEVICE", "emu", 1);
    ranks_environment(RANKS);
    pthread_barrier_init(&settled, NULL, RANKS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
