/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank sends to itself is pushed back by another rank, its mirror, whose application need not do anything for it: every
 * byte is right, the guards around the buffers too, the engines have moved what they should, and whatever happens to the mirror
 * on the way, the message arrives.
 *
 * usage: mpirun -np N mirror CASE */
#include "kit.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../src/emu/hooks.h"
#include "hoccl_cuda.h"

#define MIB ((size_t)1 << 20)
#define SMALL_CHANGE 65536 /* the engines also carry gates and trials */

static CUstream stream;
static const size_t bytes = 24 * MIB + 3;

/* ---- what this process has moved ---------------------------------------------------------------------------------- */

struct moved {
    uint64_t push, pull;
    long sm;
};

static struct moved moved(void)
{
    CUresult (*count)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    struct moved m = {.sm = job_sm_work()};
    uint64_t ops;
    *(void **)&count = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    if (!count)
        fail("this test needs the emulated GPU");
    check_cuda(count(job.device, HOCCL_EMU_PUSH, &ops, &m.push), "hocclEmuEngineCount");
    check_cuda(count(job.device, HOCCL_EMU_PULL, &ops, &m.pull), "hocclEmuEngineCount");
    return m;
}

static void expect_moved(const struct moved *before, uint64_t push, uint64_t pull, const char *what)
{
    struct moved m = moved();
    m.push -= before->push;
    m.pull -= before->pull;
    if (m.push < push || m.push >= push + SMALL_CHANGE || m.pull < pull || m.pull >= pull + SMALL_CHANGE)
        fail("%s: pushed %llu bytes and pulled %llu, not %llu and %llu", what, (unsigned long long)m.push, (unsigned long long)m.pull,
             (unsigned long long)push, (unsigned long long)pull);
    if (m.sm != before->sm)
        fail("%s: work was put on SMs", what);
}

/* ---- a message to oneself ------------------------------------------------------------------------------------------ */

struct self {
    CUdeviceptr from, to;
    size_t bytes;
    struct message message;
};

/* Memory with a legacy handle, or HOCCL's own, which travels as descriptors. */
static struct self self_open(size_t n, bool range)
{
    static unsigned number;
    struct self s = {.bytes = n, .message = {job.rank, job.rank, ++number}};
    void *p[2];
    if (range) {
        check_hoccl(HOCCL_MemAlloc(&p[0], n + GUARD), "HOCCL_MemAlloc");
        check_hoccl(HOCCL_MemAlloc(&p[1], n + 2 * GUARD), "HOCCL_MemAlloc");
        check_cuda(cuMemsetD8((CUdeviceptr)p[1], GUARD_BYTE, n + 2 * GUARD), "cuMemsetD8");
        check_cuda(cuStreamSynchronize(NULL), "cuMemsetD8");
        s.from = (CUdeviceptr)p[0];
        s.to = (CUdeviceptr)p[1] + GUARD;
    } else {
        s.from = kit_memory(n);
        s.to = kit_guarded(n);
    }
    pattern_fill(s.from, n, s.message);
    return s;
}

static void self_post(const struct self *s)
{
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(kit_send(s->from, s->bytes, job.rank, stream), "HOCCL_Send");
    check_hoccl(kit_recv(s->to, s->bytes, job.rank, stream), "HOCCL_Recv");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

static void self_check(const struct self *s, const char *what)
{
    check_cuda(cuStreamSynchronize(stream), what);
    kit_verify(s->to, s->bytes, s->message, what);
    kit_guards(s->to, s->bytes, what);
}

/* Some of it has been pushed back by the mirror, not all. */
static void half_way(void)
{
    usleep(400000);
    if (cuStreamQuery(stream) != CUDA_ERROR_NOT_READY)
        fail("the message was too fast for this test");
}

/* ---- the mirror is idle, asleep, or in the same collective ---------------------------------------------------------- */

static void case_idle(void)
{
    static const size_t sizes[] = {16 << 20, (16 << 20) + 1, (33 << 20) + 4097, (70 << 20) + 13};
    for (unsigned i = 0; i < 8; i++) {
        size_t n = sizes[i % 4];
        struct self s;
        char mark[32];
        if (job.rank == 0)
            s = self_open(n, i >= 4);
        snprintf(mark, sizeof mark, "before %u", i);
        struct moved before = moved();
        kit_meet(mark);
        usleep(20000); /* the mirror sleeps */
        if (job.rank == 0) {
            self_post(&s);
            self_check(&s, "a message to oneself");
        }
        snprintf(mark, sizeof mark, "after %u", i);
        kit_meet(mark);
        expect_moved(&before, job.rank < 2 ? n : 0, 0, "a message to oneself");
    }
}

/* A size that is too small goes as ever. */
static void case_small(void)
{
    struct self s = self_open(15 * MIB, false);
    struct moved before = moved();
    if (job.rank == 0) {
        self_post(&s);
        self_check(&s, "a small message to oneself");
    }
    kit_meet("done");
    expect_moved(&before, job.rank ? 0 : 15 * MIB, job.rank ? 0 : 15 * MIB, "a small message to oneself");
}

static void alltoall(size_t n, unsigned round)
{
    size_t whole = n * (size_t)job.size;
    CUdeviceptr out = kit_memory(whole), in = kit_guarded(whole);
    char mark[32];
    for (int p = 0; p < job.size; p++)
        pattern_fill(out + (size_t)p * n, n, (struct message){job.rank, p, round});
    snprintf(mark, sizeof mark, "ready %u", round);
    struct moved before = moved();
    kit_meet(mark);
    check_hoccl(HOCCL_Alltoall(kit_pointer(out), kit_pointer(in), n, HOCCL_BYTE, HOCCL_COMM_WORLD, stream), "HOCCL_Alltoall");
    kit_sync(stream, "HOCCL_Alltoall");
    for (int p = 0; p < job.size; p++)
        kit_verify(in + (size_t)p * n, n, (struct message){p, job.rank, round}, "HOCCL_Alltoall");
    kit_guards(in, whole, "HOCCL_Alltoall");
    snprintf(mark, sizeof mark, "over %u", round);
    kit_meet(mark);
    /* to each other rank, its own out, its neighbour's back */
    expect_moved(&before, (size_t)(job.size + 1) * n, 0, "HOCCL_Alltoall");
    check_cuda(cuMemFree(out), "cuMemFree");
    check_cuda(cuMemFree(in - GUARD), "cuMemFree");
}

static void case_alltoall(void)
{
    uint64_t x = 88172645463325252u;
    for (unsigned i = 0; i < 5; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        alltoall(16 * MIB + x % (12 * MIB), i);
    }
}

/* ---- what happens to it on the way: the engines are slow then -------------------------------------------------------- */

/* The mirror leaves in good order. What it has not pushed back, the rank pulls. */
static void case_leave(void)
{
    struct moved before = moved();
    if (job.rank == 0) {
        struct self s = self_open(bytes, false);
        kit_meet("go");
        self_post(&s);
        half_way();
        kit_tell("half");
        self_check(&s, "a message whose mirror leaves");
        struct moved after = moved();
        if (after.pull - before.pull < MIB || after.pull - before.pull >= bytes)
            fail("pulled %llu bytes of %zu", (unsigned long long)(after.pull - before.pull), bytes);
        check_hoccl(kit_async_error(), "a message whose mirror leaves");
        return;
    }
    kit_meet("go");
    kit_hear("half");
    double begun = now();
    check_hoccl(HOCCL_Finalize(), "HOCCL_Finalize");
    if (now() - begun > 5)
        fail("HOCCL_Finalize took %.1f s", now() - begun);
}

static void case_abort(void)
{
    if (job.rank == 0) {
        struct self s = self_open(bytes, false);
        kit_meet("go");
        self_post(&s);
        half_way();
        kit_tell("half");
        self_check(&s, "a message whose mirror aborts");
    } else {
        kit_meet("go");
        kit_hear("half");
        check_hoccl(HOCCL_CommAbort(HOCCL_COMM_WORLD), "HOCCL_CommAbort");
    }
}

/* The rank itself gives up: nothing is written after that. */
static void case_abandon(void)
{
    kit_meet("go");
    if (job.rank == 0) {
        struct self s = self_open(bytes, false);
        self_post(&s);
        half_way();
        check_hoccl(HOCCL_CommAbort(HOCCL_COMM_WORLD), "HOCCL_CommAbort");
        check_cuda(cuStreamSynchronize(stream), "the stream");
        s.message.number += 1000;
        pattern_fill(s.to, s.bytes, s.message);
        usleep(700000);
        self_check(&s, "a buffer after HOCCL_CommAbort");
        kit_tell("over");
    } else {
        kit_hear("over");
        check_hoccl(kit_async_error(), "the mirror");
    }
}

static void tell_pid(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/pid", getenv("TMPDIR"));
    FILE *f = fopen(path, "w");
    if (!f || fprintf(f, "%d\n", (int)getpid()) < 0 || fclose(f))
        fail("%s: %m", path);
    kit_tell("pid");
}

static pid_t hear_pid(void)
{
    char path[512];
    int pid = 0;
    kit_hear("pid");
    snprintf(path, sizeof path, "%s/pid", getenv("TMPDIR"));
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%d", &pid) != 1 || fclose(f))
        fail("%s: %m", path);
    return pid;
}

static void signal_mirror(pid_t pid, int number)
{
    if (kill(pid, number))
        fail("kill: %m");
}

static void case_killed(void)
{
    if (job.rank == 1) {
        tell_pid();
        kit_hear("never");
    }
    pid_t pid = hear_pid();
    struct self s = self_open(bytes, false);
    self_post(&s);
    half_way();
    signal_mirror(pid, SIGKILL);
    self_check(&s, "a message whose mirror is killed");
    printf("mirror: killed: right\n");
    fflush(stdout);
    _exit(0);
}

/* Stopped on the way it is waited for, stopped before it is not; once it runs again it is asked again. */
static void case_stopped(void)
{
    if (job.rank == 1) {
        tell_pid();
        kit_hear("over");
        return;
    }
    pid_t pid = hear_pid();
    struct self s = self_open(bytes, false), t = self_open(20 * MIB, false), u = self_open(20 * MIB, true);
    self_post(&s);
    half_way();
    signal_mirror(pid, SIGSTOP);
    usleep(1500000);
    signal_mirror(pid, SIGCONT);
    self_check(&s, "a message whose mirror is stopped");
    usleep(300000);
    signal_mirror(pid, SIGSTOP);
    struct moved before = moved();
    for (int i = 0; i < 2; i++) {
        self_post(&t);
        self_check(&t, "a message while the mirror is stopped");
    }
    expect_moved(&before, 2 * t.bytes, 2 * t.bytes, "while the mirror is stopped");
    signal_mirror(pid, SIGCONT);
    bool again = false;
    for (int i = 0; i < 50 && !again; i++) {
        usleep(100000);
        before = moved();
        self_post(&u);
        self_check(&u, "a message once the mirror runs again");
        again = moved().pull - before.pull < u.bytes;
    }
    if (!again)
        fail("the mirror is not asked any more");
    kit_tell("over");
}

/* ---- the mirror's application sits in cuMemFree behind a receive that comes only after the message -------------------- */

static void *free_memory(void *arg)
{
    check_cuda(cuCtxSetCurrent(((CUcontext *)arg)[0]), "cuCtxSetCurrent");
    check_cuda(cuMemFree(((CUdeviceptr *)arg)[1]), "cuMemFree");
    return NULL;
}

static void case_freeing(void)
{
    CUdeviceptr p = kit_guarded(1000);
    struct message m = {0, 1, 77};
    if (job.rank == 0) {
        struct self s = self_open(bytes, false);
        pattern_fill(p, 1000, m);
        kit_hear("freeing");
        usleep(200000);
        struct moved before = moved();
        self_post(&s);
        check_hoccl(kit_send(p, 1000, 1, stream), "HOCCL_Send");
        self_check(&s, "a message whose mirror is stuck");
        expect_moved(&before, bytes + 1000, bytes, "a message whose mirror is stuck");
    } else {
        uintptr_t arg[2] = {0, kit_memory(4096)};
        pthread_t thread;
        check_cuda(cuCtxGetCurrent((CUcontext *)arg), "cuCtxGetCurrent");
        check_hoccl(kit_recv(p, 1000, 0, stream), "HOCCL_Recv");
        if (pthread_create(&thread, NULL, free_memory, arg))
            fail("no thread");
        kit_tell("freeing");
        kit_sync(stream, "the mirror's receive");
        pthread_join(thread, NULL);
        kit_verify(p, 1000, m, "the mirror's receive");
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
        int leavers; /* ranks from here on have left */
    } cases[] = {{"idle", case_idle, 99},       {"small", case_small, 99},     {"alltoall", case_alltoall, 99},
                 {"leave", case_leave, 1},      {"abort", case_abort, 0},      {"abandon", case_abandon, 0},
                 {"killed", case_killed, 99},   {"stopped", case_stopped, 99}, {"freeing", case_freeing, 99}};
    const char *name = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(name, cases[i].name))
            continue;
        kit_open(100, name);
        stream = kit_stream();
        cases[i].run();
        if (!job.rank)
            printf("mirror: %s: right\n", name);
        if (job.rank < cases[i].leavers)
            kit_close();
        return 0;
    }
    fprintf(stderr, "usage: mpirun -np N mirror idle|small|alltoall|leave|abort|abandon|killed|stopped|freeing\n");
    return 2;
}
