/* SPDX-License-Identifier: Apache-2.0 */
/* The same patterns through NCCL, two or more processes with a GPU each, so that both stand in one run. NCCL is loaded at
 * run time from $NCCL_LIB (else libnccl.so.2); without it the program says so and leaves with 77.
 *
 * usage: nccl_rate PATTERN FIRST LAST FACTOR [RANKS]     PATTERN: sendrecv, allgather (in place), alltoall
 * One line a size: bytes a rank sends to each peer (allgather: contributes), time, rate; the slowest rank's time. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    char internal[128];
} unique_id;
typedef void *comm_t;

static int (*get_id)(unique_id *), (*init_rank)(comm_t *, int, unique_id, int), (*start)(void), (*end)(void);
static int (*send)(const void *, size_t, int, int, comm_t, CUstream), (*recv)(void *, size_t, int, int, comm_t, CUstream);
static int (*allgather)(const void *, void *, size_t, int, comm_t, CUstream);

struct shared {
    unique_id id;
    unsigned arrived;
    double seconds[64];
};

static struct shared *sh;
static int me, ranks = 2;

static void check(int r, const char *what)
{
    if (!r)
        return;
    fprintf(stderr, "rank %d: %s: %d\n", me, what, r);
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
    static unsigned round;
    round += (unsigned)ranks;
    __atomic_add_fetch(&sh->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&sh->arrived, __ATOMIC_ACQUIRE) < round)
        ;
}

static void load(void)
{
    const char *path = getenv("NCCL_LIB");
    void *h = dlopen(path ? path : "libnccl.so.2", RTLD_NOW);
    if (!h) {
        printf("no NCCL: %s\n", dlerror());
        exit(77);
    }
    *(void **)&get_id = dlsym(h, "ncclGetUniqueId");
    *(void **)&init_rank = dlsym(h, "ncclCommInitRank");
    *(void **)&start = dlsym(h, "ncclGroupStart");
    *(void **)&end = dlsym(h, "ncclGroupEnd");
    *(void **)&send = dlsym(h, "ncclSend");
    *(void **)&recv = dlsym(h, "ncclRecv");
    *(void **)&allgather = dlsym(h, "ncclAllGather");
}

static void once(const char *pattern, char *out, char *in, size_t n, comm_t c, CUstream s)
{
    if (!strcmp(pattern, "allgather")) {
        check(allgather(in + (size_t)me * n, in, n, 0, c, s), "ncclAllGather");
        return;
    }
    int all = !strcmp(pattern, "alltoall");
    check(start(), "ncclGroupStart");
    for (int d = all ? 0 : 1; d < (all ? ranks : 2); d++) {
        int to = (me + d) % ranks, from = (me - d + ranks) % ranks;
        check(send(out + (all ? (size_t)to * n : 0), n, 0, to, c, s), "ncclSend");
        check(recv(in + (all ? (size_t)from * n : 0), n, 0, from, c, s), "ncclRecv");
    }
    check(end(), "ncclGroupEnd");
}

static void rank_main(char **v)
{
    size_t first = strtoull(v[2], NULL, 0), last = strtoull(v[3], NULL, 0), factor = strtoull(v[4], NULL, 0);
    CUcontext ctx;
    CUstream s;
    CUdeviceptr out, in;
    comm_t c;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&ctx, me), "context");
    check(cuCtxSetCurrent(ctx), "context");
    load();
    if (!me)
        check(get_id(&sh->id), "ncclGetUniqueId");
    meet();
    check(init_rank(&c, ranks, sh->id, me), "ncclCommInitRank");
    check(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
    check(cuMemAlloc(&out, last * (size_t)ranks), "alloc");
    check(cuMemAlloc(&in, last * (size_t)ranks), "alloc");
    for (size_t n = first; n <= last; n *= factor) {
        int times = n > (64u << 20) ? 20 : 100;
        for (int i = 0; i < 5; i++)
            once(v[1], (char *)out, (char *)in, n, c, s);
        check(cuStreamSynchronize(s), "sync");
        meet();
        double t = now();
        for (int i = 0; i < times; i++)
            once(v[1], (char *)out, (char *)in, n, c, s);
        check(cuStreamSynchronize(s), "sync");
        sh->seconds[me] = (now() - t) / times;
        meet();
        if (!me) {
            double worst = 0;
            for (int i = 0; i < ranks; i++)
                worst = sh->seconds[i] > worst ? sh->seconds[i] : worst;
            printf("NCCL %-9s %11zu bytes %10.2f us %8.2f GB/s\n", v[1], n, 1e6 * worst, 1e-9 * (double)n / worst);
            fflush(stdout);
        }
        meet();
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: nccl_rate sendrecv|allgather|alltoall FIRST LAST FACTOR [RANKS]\n");
        return 2;
    }
    ranks = argc > 5 ? atoi(argv[5]) : 2;
    sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 1; i < ranks; i++)
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            me = i;
            alarm(120);
            rank_main(argv);
            _exit(0);
        }
    alarm(120);
    rank_main(argv);
    while (wait(NULL) > 0)
        ;
    return 0;
}
