/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that were found and mended, each as the situation that showed it.
 *
 *   stale  A stream of an aborted communicator still holds operations that it comes to only later (a kernel is in
 * between). The flags of those must not be given to a new communicator meanwhile: its receive would seem to have begun,
 * or an old wait would park for ever. 2 ranks. ring   More buffers have to be opened at once than the submitter's ring
 * takes: those that found it full must be tried again, pulled or pushed. 4 ranks: the others send to rank 0, into
 * memory that only a pull can reach. slow   HOCCL_WAIT_TIMEOUT is for peers that have not come, not for a transfer that
 * takes longer. 2 ranks, with an engine so slow that the transfer does. child  A child that the program forks can end
 * with exit(), and what it calls is refused without harm to its parent. 2 ranks. orphan A rank dies and leaves a forked child: the other is told all the same. 2 ranks, and
 * mpirun's recovery on. busy   HOCCL_Finalize beside a thread that still posts says so or ends; it does not wait for
 * ever. 1 rank.
 *
 * usage: mpirun -np N regress stale|ring|slow|child|orphan|busy */
#include "../gpu/kernels.h"
#include "kit.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)1 << 20)

static void stale(void)
{
    CUstream old = kit_stream(), fresh = kit_stream();
    CUdeviceptr p = kit_memory(BYTES);
    HOCCL_Comm comm, next;
    CUmodule module;
    CUfunction hold;
    uint64_t ns = 2000000000;
    void *arguments[] = {&ns};
    check_cuda(cuModuleLoadData(&module, kernels_ptx), "cuModuleLoadData");
    check_cuda(cuModuleGetFunction(&hold, module, "hold"), "hold");
    pattern_fill(p, BYTES, (struct message){job.rank, 1 - job.rank, 7});
    check_hoccl(HOCCL_CommSplit(HOCCL_COMM_WORLD, 0, 0, &comm), "HOCCL_CommSplit");
    if (!job.rank) {
        check_hoccl(HOCCL_Recv(kit_pointer(p), BYTES, HOCCL_BYTE, 1, comm, old), "HOCCL_Recv");
        check_cuda(cuLaunchKernel(hold, 1, 1, 1, 32, 1, 1, 0, old, arguments, NULL), "hold");
        check_hoccl(HOCCL_Recv(kit_pointer(p), BYTES, HOCCL_BYTE, 1, comm, old), "HOCCL_Recv");
    }
    kit_meet("posted");
    check_hoccl(HOCCL_CommAbort(comm), "HOCCL_CommAbort");
    check_hoccl(HOCCL_CommSplit(HOCCL_COMM_WORLD, 0, 0, &next), "HOCCL_CommSplit");
    if (job.rank) {
        sleep(4); /* the old stream has come to the second receive by then */
        check_hoccl(HOCCL_Send(kit_pointer(p), BYTES, HOCCL_BYTE, 0, next, fresh), "HOCCL_Send");
    } else {
        check_hoccl(HOCCL_Recv(kit_pointer(p), BYTES, HOCCL_BYTE, 1, next, fresh), "HOCCL_Recv");
    }
    kit_sync(fresh, "the new communicator");
    if (!job.rank)
        kit_verify(p, BYTES, (struct message){1, 0, 7}, "the new communicator");
    kit_sync(old, "the aborted one's stream");
    check_hoccl(HOCCL_CommDestroy(next), "HOCCL_CommDestroy");
}

static void ring(void)
{
    enum { EACH = 60, SIZE = 4096 };
    CUstream s = kit_stream();
    int count = job.rank ? EACH : EACH * (job.size - 1);
    CUdeviceptr *p = calloc((size_t)count, sizeof *p);
    if (!p)
        fail("no memory for %d buffers", count);
    for (int i = 0; i < count; i++) {
        if (job.rank)
            check_cuda(cuMemAlloc(&p[i], SIZE), "cuMemAlloc");
        else
            check_cuda(cuMemAllocAsync(&p[i], SIZE, s), "cuMemAllocAsync");
        if (job.rank)
            pattern_fill(p[i], SIZE, (struct message){job.rank, 0, (unsigned)i});
    }
    check_cuda(cuStreamSynchronize(s), "allocations");
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    for (int i = 0; i < count; i++)
        check_hoccl(job.rank ? kit_send(p[i], SIZE, 0, s) : kit_recv(p[i], SIZE, 1 + i / EACH, s), "operation");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    kit_sync(s, "many buffers at once");
    for (int i = 0; i < count && !job.rank; i++)
        kit_verify(p[i], SIZE, (struct message){1 + i / EACH, 0, (unsigned)(i % EACH)}, "many buffers at once");
    free(p);
}

static void slow(void)
{
    const size_t bytes = 4 * BYTES;
    CUstream s = kit_stream();
    CUdeviceptr p = kit_memory(bytes);
    pattern_fill(p, bytes, (struct message){job.rank, 1 - job.rank, 1});
    kit_meet("filled");
    double begun = now();
    check_hoccl(job.rank ? kit_recv(p, bytes, 0, s) : kit_send(p, bytes, 1, s), "operation");
    kit_sync(s, "a slow transfer");
    if (now() - begun < 2)
        fail("the transfer took %.1f s: too fast to tell", now() - begun);
    if (job.rank)
        kit_verify(p, bytes, (struct message){0, 1, 1}, "a slow transfer");
}

/* What a child calls, at the latest when its exit runs what its parent has registered: refused, and nobody else hears of it. */
static void calls_of_a_child(void)
{
    HOCCL_UniqueId id;
    HOCCL_Comm comm;
    int n;
    alarm(20);
    kit_expect(HOCCL_CommSize(HOCCL_COMM_WORLD, &n), HOCCL_ERR_USAGE, "child (fork)", "HOCCL_CommSize in a child");
    kit_expect(HOCCL_Send(NULL, 0, HOCCL_BYTE, 1 - job.rank, HOCCL_COMM_WORLD, NULL), HOCCL_ERR_USAGE, "child (fork)",
               "HOCCL_Send in a child");
    kit_expect(HOCCL_CommAbort(HOCCL_COMM_WORLD), HOCCL_ERR_USAGE, "child (fork)", "HOCCL_CommAbort in a child");
    kit_expect(HOCCL_Finalize(), HOCCL_ERR_USAGE, "child (fork)", "HOCCL_Finalize in a child");
    kit_expect(HOCCL_Init(), HOCCL_ERR_USAGE, "child (fork)", "HOCCL_Init in a child");
    check_hoccl(HOCCL_GetUniqueId(&id), "HOCCL_GetUniqueId in a child");
    kit_expect(HOCCL_CommInitRank(&comm, 1, id, 0), HOCCL_ERR_USAGE, "child (fork)", "HOCCL_CommInitRank in a child");
}

static void child(void)
{
    int status = -1;
    pid_t pid = fork();
    if (!pid) {
        calls_of_a_child();
        exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status)
        fail("the child ended with status %d", status);
    kit_exchange("after the child");
}

static void orphan(void)
{
    CUstream s = kit_stream();
    CUdeviceptr p = kit_memory(BYTES);
    if (job.rank) {
        if (!fork()) {
            for (int i = 0; i < 300 && !kit_heard("told"); i++)
                usleep(100000);
            _exit(0);
        }
        kit_hear("posted");
        raise(SIGKILL);
    }
    check_hoccl(kit_recv(p, BYTES, 1, s), "HOCCL_Recv");
    kit_tell("posted");
    check_cuda(cuStreamSynchronize(s), "the stream of the failed receive");
    if (kit_async_error() != HOCCL_ERR_PEER)
        fail("no peer error: %s", HOCCL_GetLastError());
    kit_tell("told");
    printf("regress: orphan: right\n");
    fflush(stdout);
    _exit(0); /* what is left of the job does not matter here */
}

static void *post_until_refused(void *arg)
{
    CUcontext context = arg;
    check_cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    CUdeviceptr p = kit_memory(2 * BYTES);
    CUstream s = kit_stream();
    HOCCL_Result r = HOCCL_SUCCESS;
    kit_tell("begun");
    while (!r) {
        check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
        r = kit_send(p, BYTES, 0, s);
        if (!r)
            r = kit_recv(p + BYTES, BYTES, 0, s);
        HOCCL_Result end = HOCCL_GroupEnd();
        r = r ? r : end;
    }
    return NULL;
}

static void busy(void)
{
    pthread_t thread;
    CUcontext context;
    HOCCL_Result r;
    check_cuda(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    pthread_create(&thread, NULL, post_until_refused, context);
    kit_hear("begun");
    usleep(20000);
    do
        r = HOCCL_Finalize();
    while (r == HOCCL_ERR_USAGE);
    check_hoccl(r, "HOCCL_Finalize");
    pthread_join(thread, NULL);
    printf("regress: busy: right\n");
    exit(0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
        int ranks;
    } cases[] = {{"stale", stale, 2}, {"ring", ring, 4},     {"slow", slow, 2},
                 {"child", child, 2}, {"orphan", orphan, 2}, {"busy", busy, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases && argc > 1; i++) {
        if (strcmp(argv[1], cases[i].name))
            continue;
        kit_open(60, cases[i].name);
        if (job.size != cases[i].ranks)
            fail("%d ranks are needed", cases[i].ranks);
        cases[i].run();
        kit_close();
        if (!job.rank)
            printf("regress: %s: right\n", cases[i].name);
        return 0;
    }
    fprintf(stderr, "usage: mpirun -np N regress stale|ring|slow|child|orphan|busy\n");
    return 2;
}
