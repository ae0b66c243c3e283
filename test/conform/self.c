/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's message to itself leaves its GPU and comes back by two routes at once, another GPU and host memory: every byte
 * arrives, none of them by SMs, and what each engine has moved adds up. A small one, and one where gates could stop copies
 * from host memory, goes by the other GPU alone; where gates stop pushes, by host memory alone. In a collective of several ranks
 * the next one pushes back what is large, and nobody pulls; one that has left does not, and then the rank pulls itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emu/hooks.h"
#include "hoccl_cuda.h"
#include "ranks.h"

#define LARGE (((size_t)130 << 20) + 3)
#define SMALL (((size_t)1 << 20) + 1)

static enum { BOTH, GPU_ONLY, HOST_ONLY } routes;

struct work {
    CUdeviceptr from, to;
    CUstream stream;
    unsigned char *host;
};

struct moved {
    uint64_t push, pull, d2h, h2d, sm;
};

static bool count(struct rank *r, struct moved *m)
{
    CUresult (*engine)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    CUresult (*sm)(uint64_t *);
    uint64_t ops;
    *(void **)&engine = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    *(void **)&sm = dlsym(hoccl_cuda_driver(), "hocclEmuSmWork");
    return RANK_CUDA(r, engine(0, HOCCL_EMU_PUSH, &ops, &m->push)) && RANK_CUDA(r, engine(0, HOCCL_EMU_PULL, &ops, &m->pull)) &&
           RANK_CUDA(r, engine(0, HOCCL_EMU_D2H, &ops, &m->d2h)) && RANK_CUDA(r, engine(0, HOCCL_EMU_H2D, &ops, &m->h2d)) &&
           RANK_CUDA(r, sm(&m->sm));
}

static unsigned char pattern(size_t i)
{
    return (unsigned char)((i * 2654435761u) >> 13);
}

static bool work_open(struct rank *r, struct work *w)
{
    w->host = malloc(LARGE);
    if (!RANK_TRUE(r, w->host) || !RANK_CUDA(r, cuMemAlloc(&w->from, LARGE)) || !RANK_CUDA(r, cuMemAlloc(&w->to, LARGE)) ||
        !RANK_CUDA(r, cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING)))
        return false;
    for (size_t i = 0; i < LARGE; i++)
        w->host[i] = pattern(i);
    return RANK_CUDA(r, cuMemcpyHtoD(w->from, w->host, LARGE)) && RANK_CUDA(r, cuMemsetD8(w->to, 0x5a, LARGE)) &&
           RANK_CUDA(r, cuCtxSynchronize());
}

static bool send_to_self(struct rank *r, struct work *w, size_t bytes)
{
    HOCCL_Result error;
    return RANK_OK(r, HOCCL_GroupStart()) &&
           RANK_OK(r, HOCCL_Send((const void *)w->from, bytes, HOCCL_BYTE, 0, r->comm, w->stream)) &&
           RANK_OK(r, HOCCL_Recv((void *)w->to, bytes, HOCCL_BYTE, 0, r->comm, w->stream)) && RANK_OK(r, HOCCL_GroupEnd()) &&
           RANK_CUDA(r, cuStreamSynchronize(w->stream)) && RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)) &&
           RANK_OK(r, error);
}

static bool right(struct rank *r, struct work *w, size_t bytes)
{
    size_t wrong = 0;
    if (!RANK_CUDA(r, cuMemcpyDtoH(w->host, w->to, LARGE)))
        return false;
    for (size_t i = 0; i < LARGE; i++)
        wrong += w->host[i] != (i < bytes ? pattern(i) : 0x5a);
    return RANK_TRUE(r, wrong == 0) && RANK_CUDA(r, cuMemsetD8(w->to, 0x5a, LARGE)) && RANK_CUDA(r, cuCtxSynchronize());
}

/* The engines also carry gates and trials, a few bytes at a time. */
static bool about(uint64_t moved, uint64_t wanted)
{
    return moved >= wanted && moved < wanted + 65536;
}

static void one(struct rank *r, struct work *w, size_t bytes, bool two)
{
    struct moved a, b;
    if (!count(r, &a) || !send_to_self(r, w, bytes) || !count(r, &b) || !right(r, w, bytes))
        return;
    uint64_t push = b.push - a.push, d2h = b.d2h - a.d2h;
    RANK_TRUE(r, b.sm == a.sm);
    RANK_TRUE(r, about(push + d2h, bytes) && about(b.pull - a.pull + b.h2d - a.h2d, bytes));
    RANK_TRUE(r, !two || (push > bytes / 8 && d2h > (1 << 20)));
    RANK_TRUE(r, routes != GPU_ONLY || d2h < 65536);
    RANK_TRUE(r, routes != HOST_ONLY || push < 65536);
}

static void exchange(struct rank *r)
{
    struct work w = {0};
    if (work_open(r, &w) && send_to_self(r, &w, 1)) { /* what happens once has happened */
        one(r, &w, SMALL, false);
        for (int i = 0; i < 2; i++)
            one(r, &w, LARGE, routes == BOTH);
    }
    free(w.host);
    cuStreamDestroy(w.stream);
    cuMemFree(w.from);
    cuMemFree(w.to);
}

static void test_exchange(void **state)
{
    (void)state;
    ranks_run(1, exchange, NULL);
}

/* ---- several ranks ------------------------------------------------------------------------------------------------ */

enum { RANKS = 3 };
#define PIECE (((size_t)17 << 20) + 5)
#define CANARY 64

static pthread_barrier_t all;

static bool engine_bytes(struct rank *r, enum hoccl_emu_engine engine, uint64_t *bytes)
{
    CUresult (*call)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    uint64_t ops;
    *(void **)&call = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    return RANK_CUDA(r, call(r->rank, engine, &ops, bytes));
}

/* Where rank `from`'s piece for rank `to` has its pattern. */
static size_t shift(int from, int to)
{
    return (size_t)(from * RANKS + to + 1) * 7919;
}

/* Pieces of bytes[to] to each rank, at multiples of PIECE, into the same places; every byte of the buffer is checked. */
static void move_all(struct rank *r, struct work *w, const size_t bytes[RANKS], const size_t back[RANKS])
{
    size_t at[RANKS], wrong = 0;
    HOCCL_Result error;
    for (int p = 0; p < RANKS; p++)
        at[p] = (size_t)p * PIECE;
    for (int p = 0; p < RANKS; p++)
        for (size_t i = 0; i < PIECE; i++)
            w->host[at[p] + i] = pattern(i + shift(r->rank, p));
    if (!RANK_CUDA(r, cuMemcpyHtoD(w->from, w->host, RANKS * PIECE)) ||
        !RANK_CUDA(r, cuMemsetD8(w->to, 0x5a, RANKS * PIECE + CANARY)) || !RANK_CUDA(r, cuCtxSynchronize()))
        return;
    pthread_barrier_wait(&all);
    if (!RANK_OK(r, HOCCL_Alltoallv((const void *)w->from, bytes, at, (void *)(w->to + CANARY / 2), back, at, HOCCL_BYTE, r->comm,
                                    w->stream)) ||
        !RANK_CUDA(r, cuStreamSynchronize(w->stream)) || !RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)) || !RANK_OK(r, error))
        return;
    if (back[(r->rank + 1) % RANKS] < 100) { /* small: the others may be at work still */
        RANK_OK(r, HOCCL_CommDestroy(r->comm));
        r->comm = HOCCL_COMM_NULL;
    }
    if (!RANK_CUDA(r, cuMemcpyDtoH(w->host, w->to, RANKS * PIECE + CANARY)))
        return;
    for (size_t i = 0; i < RANKS * PIECE + CANARY; i++) {
        size_t n = i - CANARY / 2, p = n / PIECE;
        bool inside = i >= CANARY / 2 && p < RANKS && n % PIECE < back[p];
        wrong += w->host[i] != (inside ? pattern(n % PIECE + shift((int)p, r->rank)) : 0x5a);
    }
    RANK_TRUE(r, wrong == 0);
}

static bool pieces_open(struct rank *r, struct work *w)
{
    w->host = malloc(RANKS * PIECE + CANARY);
    return RANK_TRUE(r, w->host) && RANK_CUDA(r, cuMemAlloc(&w->from, RANKS * PIECE)) &&
           RANK_CUDA(r, cuMemAlloc(&w->to, RANKS * PIECE + CANARY)) && RANK_CUDA(r, cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
}

/* cuMemFree waits for every parked stream of the process, so first all ranks are done. */
static void pieces_close(struct rank *r, struct work *w)
{
    pthread_barrier_wait(&all);
    RANK_CUDA(r, cuStreamDestroy(w->stream));
    RANK_CUDA(r, cuMemFree(w->from));
    RANK_CUDA(r, cuMemFree(w->to));
    free(w->host);
}

/* To each other rank, the own piece out, the neighbour's back. */
static void reflected(struct rank *r)
{
    static const size_t bytes[RANKS] = {PIECE, PIECE, PIECE};
    struct work w = {0};
    uint64_t push[2], pull[2];
    if (!pieces_open(r, &w))
        return;
    for (int i = 0; i < 3; i++) {
        if (!engine_bytes(r, HOCCL_EMU_PUSH, &push[0]) || !engine_bytes(r, HOCCL_EMU_PULL, &pull[0]))
            return;
        move_all(r, &w, bytes, bytes);
        pthread_barrier_wait(&all);
        if (!engine_bytes(r, HOCCL_EMU_PUSH, &push[1]) || !engine_bytes(r, HOCCL_EMU_PULL, &pull[1]))
            return;
        RANK_TRUE(r, about(push[1] - push[0], (RANKS + 1) * PIECE));
        RANK_TRUE(r, about(pull[1] - pull[0], 0));
        pthread_barrier_wait(&all);
    }
    pieces_close(r, &w);
}

/* Only the first rank has something large for itself; the others have left before that is done. */
static void uneven(struct rank *r)
{
    static const size_t large[RANKS] = {PIECE, 60, 60}, small[RANKS] = {60, 60, 60};
    struct work w = {0};
    if (!pieces_open(r, &w))
        return;
    move_all(r, &w, r->rank ? small : large, r->rank ? small : large);
    pieces_close(r, &w);
}

static void test_reflected(void **state)
{
    (void)state;
    ranks_run(RANKS, reflected, NULL);
}

static void test_uneven(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        ranks_run(RANKS, uneven, NULL);
}

static int child_of_several(const char *mirror, void (*test)(void **))
{
    const struct CMUnitTest tests[] = {{mirror, test, NULL, NULL, NULL}};
    int status;
    pid_t pid = fork();
    if (!pid) {
        setenv("HOCCL_TEST_MIRROR", mirror, 1);
        pthread_barrier_init(&all, NULL, RANKS);
        exit(cmocka_run_group_tests_name(mirror, tests, NULL, NULL));
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status ? 1 : 0;
}

/* Settings are read once in a process. */
static int child(int mode, const char *gate, const char *connections)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exchange)};
    int status;
    pid_t pid = fork();
    if (!pid) {
        routes = mode;
        setenv("HOCCL_GATE", gate, 1);
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
        exit(cmocka_run_group_tests_name(gate, tests, NULL, NULL));
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status ? 1 : 0;
}

int main(void)
{
    setenv("HOCCL_DEVICE", "emu", 1);
    ranks_environment(RANKS);
    int failed = child(BOTH, "auto", "32");
    failed |= child(GPU_ONLY, "h2d", "1");
    failed |= child(HOST_ONLY, "push", "1");
    failed |= child_of_several("wait", test_reflected);
    failed |= child_of_several("auto", test_uneven);
    return failed;
}
