/* SPDX-License-Identifier: Apache-2.0 */
/* The tail of a large push goes through host memory: every byte arrives, whatever the two ways are worth, and what each engine
 * has moved adds up. Where the detour is slow the push takes over; where gates may stop copies from host memory it is not
 * begun, and one that is under way when such a gate comes ends before it, also where a foreground phase keeps back what has
 * been begun. An abort in its middle ends both ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "emu/hooks.h"
#include "hoccl_cuda.h"
#include "ranks.h"

#define MIB ((size_t)1 << 20)
#define LARGE (64 * MIB + 3)
#define LATE 12 /* receives that come while the message is under way: so many streams wait behind gates */

struct work {
    CUdeviceptr from, to, word;
    CUstream stream, late[LATE + 1]; /* the last one for phases */
};

struct moved {
    uint64_t push, pull, d2h, h2d, sm;
};

static bool count(struct rank *r, int gpu, struct moved *m)
{
    CUresult (*engine)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    CUresult (*sm)(uint64_t *);
    uint64_t ops;
    *(void **)&engine = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    *(void **)&sm = dlsym(hoccl_cuda_driver(), "hocclEmuSmWork");
    return RANK_CUDA(r, engine(gpu, HOCCL_EMU_PUSH, &ops, &m->push)) && RANK_CUDA(r, engine(gpu, HOCCL_EMU_PULL, &ops, &m->pull)) &&
           RANK_CUDA(r, engine(gpu, HOCCL_EMU_D2H, &ops, &m->d2h)) && RANK_CUDA(r, engine(gpu, HOCCL_EMU_H2D, &ops, &m->h2d)) &&
           RANK_CUDA(r, sm(&m->sm));
}

#define PERIOD ((size_t)1000003) /* of what a rank sends: no multiple of it is a chunk's length */

static unsigned char sent[2][LARGE];

static void fill(int rank)
{
    for (size_t i = 0; i < PERIOD; i++)
        sent[rank][i] = (unsigned char)(((i + 77u * (unsigned)rank) * 2654435761u) >> 13);
    for (size_t i = PERIOD, n; i < LARGE; i += n) {
        n = LARGE - i < i ? LARGE - i : i;
        memcpy(sent[rank] + i, sent[rank], n);
    }
}

/* HOCCL_EMU_PEERMEM: copies by the engines, which are slow here, would take most of the time. */
static unsigned char *bytes(CUdeviceptr p)
{
    return (unsigned char *)(uintptr_t)p;
}

static bool work_open(struct rank *r, struct work *w)
{
    if (!RANK_CUDA(r, cuMemAlloc(&w->from, LARGE)) || !RANK_CUDA(r, cuMemAlloc(&w->to, LARGE)) ||
        !RANK_CUDA(r, cuMemAlloc(&w->word, 64)) || !RANK_CUDA(r, cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING)))
        return false;
    for (int i = 0; i <= LATE; i++)
        if (!RANK_CUDA(r, cuStreamCreate(&w->late[i], CU_STREAM_NON_BLOCKING)))
            return false;
    memcpy(bytes(w->from), sent[r->rank], LARGE);
    memset(bytes(w->to), 0x5a, LARGE);
    return true;
}

static void work_close(struct work *w)
{
    cuCtxSynchronize();
    cuMemFree(w->from);
    cuMemFree(w->to);
    cuMemFree(w->word);
}

static bool healthy(struct rank *r)
{
    HOCCL_Result error;
    return RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)) && RANK_OK(r, error);
}

static bool right(struct rank *r, struct work *w)
{
    bool same = !memcmp(bytes(w->to), sent[1 - r->rank], LARGE);
    memset(bytes(w->to), 0x5a, LARGE);
    return RANK_TRUE(r, same);
}

/* Both ranks are here. */
static bool meet(struct rank *r, struct work *w)
{
    return RANK_OK(r, HOCCL_GroupStart()) && RANK_OK(r, HOCCL_Send((void *)w->word, 1, HOCCL_BYTE, 1 - r->rank, r->comm, w->stream)) &&
           RANK_OK(r, HOCCL_Recv((void *)(w->word + 1), 1, HOCCL_BYTE, 1 - r->rank, r->comm, w->stream)) &&
           RANK_OK(r, HOCCL_GroupEnd()) && RANK_CUDA(r, cuStreamSynchronize(w->stream)) && healthy(r);
}

static bool swap(struct rank *r, struct work *w)
{
    return RANK_OK(r, HOCCL_GroupStart()) &&
           RANK_OK(r, HOCCL_Send((void *)w->from, LARGE, HOCCL_BYTE, 1 - r->rank, r->comm, w->stream)) &&
           RANK_OK(r, HOCCL_Recv((void *)w->to, LARGE, HOCCL_BYTE, 1 - r->rank, r->comm, w->stream)) &&
           RANK_OK(r, HOCCL_GroupEnd()) && RANK_CUDA(r, cuStreamSynchronize(w->stream)) && healthy(r);
}

static bool near(uint64_t moved, uint64_t wanted)
{
    return moved >= wanted && moved < wanted + 65536; /* the engines also carry gates, signals, trials */
}

/* What the case expects of the detour. */
static enum { USED, UNUSED, SLOW } expected;

/* The first message finds the places in host memory not ready, or no rate measured: it is not counted. */
static void exchange(struct rank *r)
{
    struct work w = {0};
    struct moved a, b;
    uint64_t aside = 0;
    if (!work_open(r, &w) || !swap(r, &w) || !right(r, &w))
        return;
    for (int i = 0; i < 2; i++) {
        if (!meet(r, &w) || !count(r, r->rank, &a) || !meet(r, &w) || !swap(r, &w) || !meet(r, &w) || !count(r, r->rank, &b) ||
            !right(r, &w))
            return;
        uint64_t d2h = b.d2h - a.d2h, h2d = b.h2d - a.h2d;
        RANK_TRUE(r, b.sm == a.sm && near(b.pull - a.pull, 0));
        RANK_TRUE(r, near(b.push - a.push + d2h, LARGE));
        RANK_TRUE(r, expected != UNUSED || (d2h < 65536 && h2d < 65536));
        RANK_TRUE(r, expected != SLOW || d2h < LARGE / 4);
        aside += d2h;
    }
    RANK_TRUE(r, expected == UNUSED || aside > MIB);
    work_close(&w);
}

static void test_exchange(void **state)
{
    (void)state;
    ranks_run(2, exchange, NULL);
}

/* Until bytes of a message go aside from rank 0's GPU. */
static bool await_detour(struct rank *r, uint64_t before)
{
    struct moved m;
    for (int i = 0; i < 20000; i++) {
        if (!count(r, 0, &m))
            return false;
        if (m.d2h > before + MIB)
            return true;
        usleep(1000);
    }
    return RANK_TRUE(r, !"bytes go aside");
}

/* The first message finds the places not ready; what rank 0's GPU has moved by then. */
static bool ready(struct rank *r, struct work *w, struct moved *before)
{
    return work_open(r, w) && swap(r, w) && right(r, w) && count(r, 0, before) && meet(r, w);
}

/* From rank 0 to 1. While it is under way rank 1 waits on many more streams for what is sent behind it. */
static void gates(struct rank *r)
{
    struct work w = {0};
    struct moved a;
    if (!ready(r, &w, &a))
        return;
    if (r->rank == 0) {
        if (!RANK_OK(r, HOCCL_Send((void *)w.from, LARGE, HOCCL_BYTE, 1, r->comm, w.stream)) ||
            !RANK_CUDA(r, cuStreamSynchronize(w.stream)))
            return;
        for (int i = 0; i < LATE; i++)
            RANK_OK(r, HOCCL_Send((void *)w.word, 4, HOCCL_BYTE, 1, r->comm, w.stream));
    } else {
        if (!RANK_OK(r, HOCCL_Recv((void *)w.to, LARGE, HOCCL_BYTE, 0, r->comm, w.stream)) || !await_detour(r, a.d2h))
            return;
        for (int i = 0; i < LATE; i++)
            RANK_OK(r, HOCCL_Recv((void *)(w.word + 4 * i), 4, HOCCL_BYTE, 0, r->comm, w.late[i]));
    }
    if (RANK_CUDA(r, cuStreamSynchronize(w.stream)) && RANK_CUDA(r, cuCtxSynchronize()) && healthy(r) && r->rank == 1)
        right(r, &w);
    work_close(&w);
}

static void test_gates(void **state)
{
    (void)state;
    ranks_run(2, gates, NULL);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The same within a foreground phase of rank 1: the receives are posted while chunks that have passed the gate are kept back. */
static void phases(struct rank *r)
{
    struct work w = {0};
    struct moved a;
    if (!ready(r, &w, &a))
        return;
    if (r->rank == 0) {
        RANK_OK(r, HOCCL_Send((void *)w.from, LARGE, HOCCL_BYTE, 1, r->comm, w.stream));
        for (int i = 0; i < LATE; i++)
            RANK_OK(r, HOCCL_Send((void *)w.word, 4, HOCCL_BYTE, 1, r->comm, w.stream));
    } else {
        if (!RANK_OK(r, HOCCL_Recv((void *)w.to, LARGE, HOCCL_BYTE, 0, r->comm, w.stream)) || !await_detour(r, a.d2h) ||
            !RANK_OK(r, HOCCL_ForegroundBegin(r->comm, w.late[LATE])))
            return;
        usleep(150000);
        double begun = seconds();
        for (int i = 0; i < LATE; i++)
            RANK_OK(r, HOCCL_Recv((void *)(w.word + 4 * i), 4, HOCCL_BYTE, 0, r->comm, w.late[i]));
        RANK_TRUE(r, seconds() - begun < 1);
        RANK_OK(r, HOCCL_ForegroundEnd(r->comm, w.late[LATE]));
    }
    if (RANK_CUDA(r, cuStreamSynchronize(w.stream)) && RANK_CUDA(r, cuCtxSynchronize()) && healthy(r) && r->rank == 1)
        right(r, &w);
    work_close(&w);
}

static void test_phases(void **state)
{
    (void)state;
    ranks_run(2, phases, NULL);
}

/* Rank `arg` aborts in the middle. */
static void aborted(struct rank *r)
{
    struct work w = {0};
    struct moved a;
    HOCCL_Result error = HOCCL_SUCCESS;
    if (!ready(r, &w, &a))
        return;
    if (!RANK_OK(r, r->rank ? HOCCL_Recv((void *)w.to, LARGE, HOCCL_BYTE, 0, r->comm, w.stream)
                            : HOCCL_Send((void *)w.from, LARGE, HOCCL_BYTE, 1, r->comm, w.stream)) ||
        !await_detour(r, a.d2h))
        return;
    if (r->rank == *(int *)r->arg) {
        RANK_OK(r, HOCCL_CommAbort(r->comm));
        r->comm = HOCCL_COMM_NULL;
    } else {
        for (int i = 0; i < 20000 && !error; i++) {
            RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error));
            usleep(1000);
        }
        RANK_TRUE(r, error == HOCCL_ERR_PEER);
    }
    RANK_CUDA(r, cuStreamSynchronize(w.stream));
    if (r->comm) {
        HOCCL_CommAbort(r->comm);
        r->comm = HOCCL_COMM_NULL;
    }
    work_close(&w);
}

static void test_aborted(void **state)
{
    (void)state;
    for (int who = 0; who < 2; who++)
        ranks_run(2, aborted, &who);
}

/* The receiver's places are still being made when a message has been pushed whole, and the communicator ends; with an argument, by an
 * abort, which has two seconds. */
static void late(struct rank *r)
{
    struct work w = {0};
    if (!work_open(r, &w))
        return;
    for (int i = 0; i < 2; i++) {
        if (r->rank == 0)
            RANK_OK(r, HOCCL_Send((void *)w.from, LARGE, HOCCL_BYTE, 1, r->comm, w.stream));
        else
            RANK_OK(r, HOCCL_Recv((void *)w.to, LARGE, HOCCL_BYTE, 0, r->comm, w.stream));
        if (!RANK_CUDA(r, cuStreamSynchronize(w.stream)) || !healthy(r))
            return;
    }
    if (r->rank == 1)
        right(r, &w);
    double begun = seconds();
    if (r->arg && r->rank == 1)
        RANK_TRUE(r, HOCCL_CommAbort(r->comm) == HOCCL_ERR_TIMEOUT && seconds() - begun < 2);
    else
        RANK_OK(r, HOCCL_CommDestroy(r->comm));
    r->comm = HOCCL_COMM_NULL;
    work_close(&w);
}

static void test_late(void **state)
{
    (void)state;
    ranks_run(2, late, NULL);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* what the driver still has stays when the abort returns */
static void test_late_abort(void **state)
{
    int yes = 1;
    (void)state;
    ranks_run(2, late, &yes);
}
#endif

/* Settings are read once in a process. */
static int child(const char *name, int mode, const char *rates, const char *connections, void (*test)(void **))
{
    const struct CMUnitTest tests[] = {{.name = name, .test_func = test}};
    int status;
    pid_t pid = fork();
    if (!pid) {
        expected = mode;
        setenv("HOCCL_EMU_RATE", rates, 1);
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
        setenv("HOCCL_DETOUR", strcmp(name, "off") ? "on" : "off", 1);
        exit(cmocka_run_group_tests_name(name, tests, NULL, NULL));
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status ? 1 : 0;
}

int main(void)
{
    fill(0);
    fill(1);
    setenv("HOCCL_DEVICE", "emu", 1);
    setenv("HOCCL_EMU_PEERMEM", "1", 1);
    ranks_environment(2);
    int failed = child("on", USED, "push=400,d2h=200,h2d=200", "8", test_exchange);
#ifndef __SANITIZE_THREAD__ /* they say nothing of threads that the others do not */
    failed |= child("one rate", USED, "push=400,d2h=400,h2d=400", "32", test_exchange);
    failed |= child("off", UNUSED, "push=1000", "8", test_exchange);
    failed |= child("one connection", UNUSED, "push=1000", "1", test_exchange);
#endif
    failed |= child("slow to host memory", SLOW, "push=400,d2h=20", "8", test_exchange);
    failed |= child("slow from host memory", SLOW, "push=400,h2d=20", "8", test_exchange);
    failed |= child("gates", USED, "push=100,h2d=100", "8", test_gates);
    setenv("HOCCL_EMU_FAULT", "cuMemHostRegister#1+=late:700000", 1);
    failed |= child("late places", UNUSED, "push=1000", "32", test_late);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    setenv("HOCCL_EMU_FAULT", "cuMemHostRegister#4=late:4000000", 1); /* two pools of flags, the sender's view of the places, the places */
    failed |= child("late places and an abort", UNUSED, "push=1000", "32", test_late_abort);
#endif
    unsetenv("HOCCL_EMU_FAULT");
    setenv("HOCCL_PAUSE", "5000", 1);
    failed |= child("phases", USED, "push=100,h2d=100", "8", test_phases);
    failed |= child("aborted", USED, "push=100,d2h=100", "8", test_aborted);
    return failed;
}
