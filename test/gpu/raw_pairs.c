/* SPDX-License-Identifier: Apache-2.0 */
/* What plain copies between two processes reach: the ceiling that HOCCL's figures are held against.
 *
 * Two processes, a GPU each; each opens the other's buffer by a legacy handle. A case says what each of them does
 * (push to the other, pull from it, nothing), in which pieces, and whether a flag is written behind each piece; both
 * begin together and report their own rate. usage: raw_pairs [EXTRA [PARKED]]
 *   EXTRA bytes more in each allocation; PARKED streams of each process wait meanwhile. */
#define _GNU_SOURCE
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TOTAL ((size_t)1 << 30)

struct shared {
    CUipcMemHandle handle[2];
    uint32_t arrived;
    double rate[2];
};

static struct shared *sh;
static int me, parked;
static size_t extra;

static void check(CUresult r, const char *what)
{
    const char *s = "?";
    if (!r)
        return;
    cuGetErrorName(r, &s);
    fprintf(stderr, "%d: %s: %s\n", me, what, s);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void meet(void)
{
    static uint32_t round;
    round += 2;
    __atomic_add_fetch(&sh->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&sh->arrived, __ATOMIC_ACQUIRE) < round)
        ;
}

static double run(CUstream s, CUdeviceptr to, CUdeviceptr from, size_t piece, int flags, CUdeviceptr flag, int times)
{
    double t = now();
    for (int i = 0; i < times; i++)
        for (size_t at = 0; at < TOTAL; at += piece) {
            check(cuMemcpyDtoDAsync(to + at, from + at, piece, s), "copy");
            if (flags)
                check(cuStreamWriteValue32(s, flag, (uint32_t)i, 0), "flag");
        }
    check(cuStreamSynchronize(s), "sync");
    return 1e-9 * (double)TOTAL * times / (now() - t);
}

static void child(void)
{
    static const struct {
        char what[2]; /* of process 0 and 1: p push, l pull, - nothing */
        size_t mib;
        int flags;
    } cases[] = {{"p-", 1024, 0}, {"-p", 1024, 0}, {"pp", 1024, 0}, {"pp", 128, 0}, {"pp", 128, 1}, {"pp", 32, 1},
                 {"l-", 1024, 0}, {"ll", 1024, 0}, {"pl", 1024, 0}, {"pp", 1024, 0}};
    CUcontext c;
    CUdeviceptr own[2], peer, flag;
    CUstream s;
    void *host;
    check(cuInit(0), "init");
    check(cuDevicePrimaryCtxRetain(&c, me), "context");
    check(cuCtxSetCurrent(c), "context");
    check(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
    check(cuMemAlloc(&own[0], TOTAL + extra), "alloc");
    check(cuMemAlloc(&own[1], TOTAL + extra), "alloc");
    check(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP), "host");
    check(cuMemHostGetDevicePointer(&flag, host, 0), "host");
    check(cuIpcGetMemHandle(&sh->handle[me], own[1]), "handle");
    meet();
    check(cuIpcOpenMemHandle(&peer, sh->handle[1 - me], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open");
    for (int i = 0; i < parked; i++) {
        CUstream w;
        check(cuStreamCreate(&w, CU_STREAM_NON_BLOCKING), "stream");
        check(cuStreamWaitValue32(w, flag + 2048, 1, CU_STREAM_WAIT_VALUE_GEQ), "park");
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char w = cases[i].what[me];
        sh->rate[me] = 0;
        for (int rep = 0; rep < 2; rep++) {
            meet();
            if (w != '-')
                sh->rate[me] = run(s, w == 'p' ? peer : own[0], w == 'p' ? own[0] : peer, cases[i].mib << 20, cases[i].flags, flag, 10);
        }
        meet();
        if (!me)
            printf("process 0 %c, process 1 %c, pieces of %4zu MiB, flags %d: %6.1f %6.1f GB/s\n", cases[i].what[0],
                   cases[i].what[1], cases[i].mib, cases[i].flags, sh->rate[0], sh->rate[1]);
        fflush(stdout);
        meet();
    }
    ((uint32_t *)host)[512] = 1;
}

int main(int argc, char **argv)
{
    extra = argc > 1 ? strtoul(argv[1], NULL, 0) : 0;
    parked = argc > 2 ? atoi(argv[2]) : 0;
    sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = fork();
    me = pid ? 1 : 0;
    if (!pid)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    child();
    if (pid)
        waitpid(pid, NULL, 0);
    return 0;
}
