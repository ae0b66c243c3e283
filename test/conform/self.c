/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's message to itself leaves its GPU and comes back by two routes at once, another GPU and host memory: every byte
 * arrives, none of them by SMs, and what each engine has moved adds up. A small one, and one where gates could stop copies
 * from host memory, goes by the other GPU alone; where gates stop pushes, by host memory alone. */
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
#define PIECE ((size_t)32 << 20)

static enum { BOTH, GPU_ONLY, HOST_ONLY, DEAD } routes;

struct work {
    CUdeviceptr from, to;
    CUstream stream;
    unsigned char *host;
    size_t size; /* of each */
};

struct moved {
    uint64_t push, pull, d2h, h2d, sm;
    uint64_t pushes, pulls; /* copies */
};

static bool count(struct rank *r, struct moved *m)
{
    CUresult (*engine)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    CUresult (*sm)(uint64_t *);
    uint64_t ops;
    *(void **)&engine = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    *(void **)&sm = dlsym(hoccl_cuda_driver(), "hocclEmuSmWork");
    return RANK_CUDA(r, engine(0, HOCCL_EMU_PUSH, &m->pushes, &m->push)) &&
           RANK_CUDA(r, engine(0, HOCCL_EMU_PULL, &m->pulls, &m->pull)) &&
           RANK_CUDA(r, engine(0, HOCCL_EMU_D2H, &ops, &m->d2h)) && RANK_CUDA(r, engine(0, HOCCL_EMU_H2D, &ops, &m->h2d)) &&
           RANK_CUDA(r, sm(&m->sm));
}

static unsigned char pattern(size_t i)
{
    return (unsigned char)((i * 2654435761u) >> 13);
}

static bool work_open(struct rank *r, struct work *w, size_t size)
{
    w->size = size;
    w->host = malloc(size);
    if (!RANK_TRUE(r, w->host) || !RANK_CUDA(r, cuMemAlloc(&w->from, size)) || !RANK_CUDA(r, cuMemAlloc(&w->to, size)) ||
        !RANK_CUDA(r, cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING)))
        return false;
    for (size_t i = 0; i < size; i++)
        w->host[i] = pattern(i);
    return RANK_CUDA(r, cuMemcpyHtoD(w->from, w->host, size)) && RANK_CUDA(r, cuMemsetD8(w->to, 0x5a, size)) &&
           RANK_CUDA(r, cuCtxSynchronize());
}

static bool post(struct rank *r, struct work *w, size_t bytes)
{
    return RANK_OK(r, HOCCL_GroupStart()) &&
           RANK_OK(r, HOCCL_Send((const void *)w->from, bytes, HOCCL_BYTE, 0, r->comm, w->stream)) &&
           RANK_OK(r, HOCCL_Recv((void *)w->to, bytes, HOCCL_BYTE, 0, r->comm, w->stream)) && RANK_OK(r, HOCCL_GroupEnd());
}

static bool send_to_self(struct rank *r, struct work *w, size_t bytes)
{
    HOCCL_Result error;
    return post(r, w, bytes) && RANK_CUDA(r, cuStreamSynchronize(w->stream)) &&
           RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)) && RANK_OK(r, error);
}

static bool right(struct rank *r, struct work *w, size_t bytes)
{
    size_t wrong = 0;
    if (!RANK_CUDA(r, cuMemcpyDtoH(w->host, w->to, w->size)))
        return false;
    for (size_t i = 0; i < w->size; i++)
        wrong += w->host[i] != (i < bytes ? pattern(i) : 0x5a);
    return RANK_TRUE(r, wrong == 0) && RANK_CUDA(r, cuMemsetD8(w->to, 0x5a, w->size)) && RANK_CUDA(r, cuCtxSynchronize());
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
    if (routes == GPU_ONLY) /* a large one in turns, by pieces as large as the slots together; a small one is one piece */
        RANK_TRUE(r, b.pushes - a.pushes == (bytes + PIECE - 1) / PIECE && b.pulls - a.pulls == b.pushes - a.pushes);
    RANK_TRUE(r, routes != HOST_ONLY || push < 65536);
}

static void work_close(struct work *w)
{
    free(w->host);
    cuStreamDestroy(w->stream);
    cuMemFree(w->from);
    cuMemFree(w->to);
}

static void exchange(struct rank *r)
{
    struct work w = {0};
    if (work_open(r, &w, LARGE) && send_to_self(r, &w, 1)) { /* what happens once has happened */
        one(r, &w, SMALL, false);
        for (int i = 0; i < 2; i++)
            one(r, &w, LARGE, routes == BOTH);
    }
    work_close(&w);
}

static void test_exchange(void **state)
{
    (void)state;
    ranks_run(1, exchange, NULL);
}

/* A message that a phase holds up has all slots on the other GPU; those of another communicator, which may be what the phase
 * is about, do not wait for its end. Not where copies from host memory may stand behind gates. */
static void beside_held(struct rank *r)
{
    struct work held = {0}, w = {0};
    HOCCL_Comm other = HOCCL_COMM_NULL, own = r->comm;
    if (work_open(r, &held, PIECE) && work_open(r, &w, PIECE) && RANK_OK(r, HOCCL_CommSplit(own, 0, 0, &other)) &&
        RANK_OK(r, HOCCL_ForegroundBegin(own, w.stream)) && RANK_CUDA(r, cuStreamSynchronize(w.stream)) &&
        post(r, &held, PIECE)) {
        usleep(50000);
        r->comm = other;
        send_to_self(r, &w, SMALL);
        send_to_self(r, &w, PIECE);
        r->comm = own;
        RANK_TRUE(r, cuStreamQuery(held.stream) == CUDA_ERROR_NOT_READY);
        RANK_OK(r, HOCCL_ForegroundEnd(own, w.stream));
        RANK_CUDA(r, cuStreamSynchronize(held.stream));
        right(r, &w, PIECE);
        right(r, &held, PIECE);
        RANK_OK(r, HOCCL_CommDestroy(other));
    }
    work_close(&w);
    work_close(&held);
}

static void test_beside_held(void **state)
{
    (void)state;
    if (routes == BOTH)
        ranks_run(1, beside_held, NULL);
}

/* An engine dies, in the middle of one communicator's message. Another communicator of the process, which has nothing on the
 * way, can be ended all the same, although its staging area cannot be unregistered any more: the driver would wait. */
static void dead_engine(struct rank *r)
{
    struct work w = {0};
    HOCCL_Comm other = HOCCL_COMM_NULL, own = r->comm;
    HOCCL_Result error = HOCCL_SUCCESS;
    if (work_open(r, &w, PIECE / 16) && RANK_OK(r, HOCCL_CommSplit(own, 0, 0, &other)) && send_to_self(r, &w, PIECE / 16)) {
        r->comm = other;
        post(r, &w, PIECE / 16);
        RANK_CUDA(r, cuStreamSynchronize(w.stream));
        RANK_OK(r, HOCCL_CommGetAsyncError(other, &error));
        RANK_TRUE(r, error == HOCCL_ERR_TIMEOUT);
        RANK_FAILS(r, HOCCL_CommAbort(other), HOCCL_ERR_TIMEOUT, "copy engine");
        RANK_OK(r, HOCCL_CommDestroy(own));
    }
    if (r->failed)
        print_error("%s\n", r->text);
    _exit(r->failed); /* what frees memory waits for the engine */
}

static void test_dead_engine(void **state)
{
    (void)state;
    ranks_run(1, dead_engine, NULL);
}

/* Settings are read once in a process. */
static int child(int mode, const char *gate, const char *connections)
{
    const struct CMUnitTest alive[] = {cmocka_unit_test(test_exchange), cmocka_unit_test(test_beside_held)};
    const struct CMUnitTest dead[] = {cmocka_unit_test(test_dead_engine)};
    int status;
    pid_t pid = fork();
    if (!pid) {
        routes = mode;
        setenv("HOCCL_GATE", gate, 1);
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
        if (mode == DEAD) {
            setenv("HOCCL_EMU_FAULT", "h2d#5+=stuck", 1); /* two are of the beginning, one for each MiB is of a message */
            setenv("HOCCL_TIMEOUT", "3", 1);
            exit(cmocka_run_group_tests_name(gate, dead, NULL, NULL));
        }
        exit(cmocka_run_group_tests_name(gate, alive, NULL, NULL));
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status ? 1 : 0;
}

int main(void)
{
    setenv("HOCCL_DEVICE", "emu", 1);
    setenv("HOCCL_PAUSE", "7000", 1);
    ranks_environment(2);
    int failed = child(BOTH, "auto", "32");
    failed |= child(GPU_ONLY, "h2d", "1");
    failed |= child(HOST_ONLY, "push", "1");
    failed |= child(DEAD, "push", "32");
    return failed;
}
