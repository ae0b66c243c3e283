/* SPDX-License-Identifier: Apache-2.0 */
/* A world in which a pair of ranks on different nodes connects when it first has something to send: four processes, which are
 * four nodes, of 16 ranks each, as threads. It makes them itself, before there is any thread.
 *
 *   made            only the tree is connected, and exactly that
 *   ring            four pairs more, and their sockets; nothing else
 *   split           over the tree, into sparse parts, with ranks that take no part
 *   all to all      every pair, every byte
 *   failures        who first talks to a rank that has failed, or has left, hears why
 *   death           a process ends; who first talks to one of its ranks gets an error, others go on; a split fails everywhere
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <hoccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../conform/ranks.h"
#include "boot/gather.h"
#include "p2p/wire.h"

#define NODES 4
#define EACH 16
#define RANKS (NODES * EACH)
#define LIMIT 250 /* s, against hangs */

#define CHECK(condition, ...)                                                                                                \
    do {                                                                                                                     \
        if (!(condition)) {                                                                                                  \
            fprintf(stderr, "%s:%d: rank %d: not true: %s: ", __FILE__, __LINE__, me, #condition);                           \
            fprintf(stderr, __VA_ARGS__);                                                                                    \
            fprintf(stderr, "\n");                                                                                           \
            _exit(1);                                                                                                        \
        }                                                                                                                    \
    } while (0)
#define OK(call) CHECK(!(call), "%s", HOCCL_GetLastError())
#define CUDA(call) CHECK((call) == CUDA_SUCCESS, "the driver")

struct shared {
    HOCCL_UniqueId id;
    pthread_barrier_t all, living; /* of all ranks; of those of the first three processes */
    uint64_t begun[NODES];
};
static struct shared *shared;
static int node;                  /* this process */
static size_t most = 4096;        /* bytes of a message */

struct work {
    int me;
    HOCCL_Comm comm;
    CUstream stream;
    CUdeviceptr out, in; /* RANKS messages each */
    unsigned char *host;
};

static void meet(void)
{
    pthread_barrier_wait(&shared->all);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static unsigned char byte_of(int from, int to, unsigned key, size_t i)
{
    return (unsigned char)((unsigned)from * 31u + (unsigned)to * 57u + key * 101u + (unsigned)i * 7u + (unsigned)(i >> 8));
}

static HOCCL_Result end(const struct work *w, HOCCL_Comm comm)
{
    int me = w->me;
    HOCCL_Result e;
    CUDA(cuStreamSynchronize(w->stream));
    OK(HOCCL_CommGetAsyncError(comm, &e));
    return e;
}

/* To and from these ranks of a communicator, in one group. `me`: this rank there. */
static void exchange(struct work *w, HOCCL_Comm comm, int me, const int *to, int sends, const int *from, int receives, size_t n,
                     unsigned key)
{
    for (int k = 0; k < sends; k++)
        for (size_t i = 0; i < n; i++)
            w->host[(size_t)to[k] * n + i] = byte_of(me, to[k], key, i);
    CUDA(cuMemcpyHtoD(w->out, w->host, RANKS * n));
    CUDA(cuStreamSynchronize(NULL));
    OK(HOCCL_GroupStart());
    for (int k = 0; k < sends; k++)
        OK(HOCCL_Send((void *)(w->out + (size_t)to[k] * n), n, HOCCL_BYTE, to[k], comm, w->stream));
    for (int k = 0; k < receives; k++)
        OK(HOCCL_Recv((void *)(w->in + (size_t)from[k] * n), n, HOCCL_BYTE, from[k], comm, w->stream));
    OK(HOCCL_GroupEnd());
    OK(end(w, comm));
    CUDA(cuMemcpyDtoH(w->host, w->in, RANKS * n));
    for (int k = 0; k < receives; k++)
        for (size_t i = 0; i < n; i++)
            CHECK(w->host[(size_t)from[k] * n + i] == byte_of(from[k], me, key, i), "byte %zu of %zu from rank %d", i, n, from[k]);
}

static void ring(struct work *w, HOCCL_Comm comm, unsigned key)
{
    int me = w->me, size = 0, at = 0;
    OK(HOCCL_CommSize(comm, &size));
    OK(HOCCL_CommRank(comm, &at));
    int right = (at + 1) % size, left = (at + size - 1) % size;
    exchange(w, comm, at, &right, 1, &left, 1, most, key);
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

static bool apart(int a, int b)
{
    return a / EACH != b / EACH;
}

/* Ends of connections begun in all processes since the start: two for each pair. */
static void check_begun(const struct work *w, uint64_t pairs, const char *what)
{
    int me = w->me;
    uint64_t sum = 0;
    meet();
    if (me % EACH == 0)
        shared->begun[node] = __atomic_load_n(&hoccl_wire_counts.begun, __ATOMIC_RELAXED);
    meet();
    for (int n = 0; n < NODES; n++)
        sum += shared->begun[n];
    CHECK(sum == 2 * pairs, "%s: %llu ends of connections, not %llu", what, (unsigned long long)sum, 2ull * pairs);
}

static uint64_t tree_pairs(void)
{
    uint64_t n = 0;
    for (int b = 1; b < RANKS; b++)
        n += apart(b, (b - 1) / HOCCL_GATHER_FAN);
    return n;
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

static void good_weather(struct work *w)
{
    int me = w->me, others[RANKS], n = 0, descriptors = 0;
    uint64_t pairs = tree_pairs();
    check_begun(w, pairs, "made");
    if (me % EACH == 0)
        descriptors = ranks_descriptors();
    meet();
    ring(w, w->comm, 1);
    pairs += NODES;
    check_begun(w, pairs, "after a ring");
    if (me % EACH == 0) /* two neighbours on other nodes; a lane and a socket for messages each */
        CHECK(ranks_settle(descriptors + 2 * 2, 10000), "sockets");
    meet();
    ring(w, w->comm, 2);
    check_begun(w, pairs, "after another");
    for (int p = 0; p < RANKS; p++)
        if (p != me)
            others[n++] = p;
    exchange(w, w->comm, me, others, n, others, n, 1001, 3);
    check_begun(w, (uint64_t)RANKS * (RANKS - EACH) / 2, "after all to all");
}

static void splits(struct work *w)
{
    int me = w->me, at = -1, size = 0;
    HOCCL_Comm part = HOCCL_COMM_NULL;
    bool none = me % 16 == 7;
    OK(HOCCL_CommSplit(w->comm, none ? HOCCL_SPLIT_NOCOLOR : me % 2, -me, &part));
    CHECK(none == (part == HOCCL_COMM_NULL), "a part");
    if (!none) {
        OK(HOCCL_CommSize(part, &size));
        OK(HOCCL_CommRank(part, &at));
        CHECK(size == (me % 2 ? 28 : 32), "%d ranks", size);
        CHECK(me % 2 || at == 31 - me / 2, "place %d", at);
        ring(w, part, 4);
        OK(HOCCL_CommDestroy(part));
    }
    meet();
}

static void expect(HOCCL_Result e, HOCCL_Result wanted, const char *words, int me)
{
    CHECK(e == wanted && strstr(HOCCL_GetLastError(), words), "%s: %s", HOCCL_GetErrorString(e), HOCCL_GetLastError());
}

static HOCCL_Result one(struct work *w, HOCCL_Comm comm, bool sends, size_t n, int peer)
{
    HOCCL_Result e = sends ? HOCCL_Send((void *)w->out, n, HOCCL_BYTE, peer, comm, w->stream)
                           : HOCCL_Recv((void *)w->in, n, HOCCL_BYTE, peer, comm, w->stream);
    return e ? e : end(w, comm);
}

/* Ranks 20 and 37 fail by a mismatch, 33 leaves; 50, 3, 12 and 62 have had nothing to do with them and come later, lower and
 * higher ones, senders and receivers. */
static void failures(struct work *w)
{
    int me = w->me;
    HOCCL_Comm c = HOCCL_COMM_NULL;
    OK(HOCCL_CommSplit(w->comm, 0, me, &c));
    if (me == 20 || me == 37)
        expect(one(w, c, me == 20, me == 20 ? 8 : 12, 57 - me), HOCCL_ERR_MISMATCH, "12 bytes", me);
    if (me == 33) {
        OK(HOCCL_CommAbort(c));
        c = HOCCL_COMM_NULL;
    }
    meet();
    if (me == 50 || me == 3)
        expect(one(w, c, me == 3, 8, 20), HOCCL_ERR_PEER, "rank 20 has failed", me);
    if (me == 12 || me == 62)
        expect(one(w, c, me == 12, 8, 33), HOCCL_ERR_PEER, "no part in the communicator any more", me);
    if (me == 9 || me == 40) /* nobody else is troubled */
        OK(one(w, c, me == 9, 100, 49 - me));
    meet();
    if (c != HOCCL_COMM_NULL)
        OK(HOCCL_CommAbort(c));
    meet();
}

/* The last process ends. */
static void death(struct work *w)
{
    int me = w->me;
    HOCCL_Comm c = HOCCL_COMM_NULL, part = HOCCL_COMM_NULL;
    OK(HOCCL_CommSplit(w->comm, 0, me, &c));
    meet();
    if (node == NODES - 1) {
        if (me % EACH == 0)
            kill(getpid(), SIGKILL);
        pause();
    }
    usleep(500000);
    if (me == 1 || me == 45)
        expect(one(w, c, me == 1, 8, 60), HOCCL_ERR_PEER, "rank 60", me);
    if (me == 7 || me == 40)
        OK(one(w, c, me == 7, 100, 47 - me));
    pthread_barrier_wait(&shared->living);
    HOCCL_Result e = HOCCL_CommSplit(w->comm, 0, me, &part);
    CHECK(e == HOCCL_ERR_BOOTSTRAP && part == HOCCL_COMM_NULL, "%s: %s", HOCCL_GetErrorString(e), HOCCL_GetLastError());
    pthread_barrier_wait(&shared->living);
    OK(HOCCL_CommAbort(c));
    OK(HOCCL_CommAbort(w->comm));
    pthread_barrier_wait(&shared->living);
}

static void *run(void *arg)
{
    struct work w = {.me = (int)(intptr_t)arg};
    int me = w.me, devices = 0;
    CUcontext context;
    CUDA(cuInit(0));
    CUDA(cuDeviceGetCount(&devices));
    CUDA(cuDevicePrimaryCtxRetain(&context, me % devices));
    CUDA(cuCtxSetCurrent(context));
    CUDA(cuStreamCreate(&w.stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuMemAlloc(&w.out, RANKS * most));
    CUDA(cuMemAlloc(&w.in, RANKS * most));
    CHECK(w.host = calloc(RANKS, most), "memory");
    OK(HOCCL_CommInitRank(&w.comm, RANKS, shared->id, me));
    good_weather(&w);
    splits(&w);
    failures(&w);
    death(&w);
    free(w.host);
    return NULL;
}

static int be_node(int number)
{
    pthread_t thread[EACH];
    int me = number * EACH;
    alarm(LIMIT);
    node = number;
    for (int i = 0; i < EACH; i++)
        CHECK(!pthread_create(&thread[i], NULL, run, (void *)(intptr_t)(me + i)), "a thread");
    for (int i = 0; i < EACH; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

static void open_barrier(pthread_barrier_t *b, unsigned n)
{
    pthread_barrierattr_t a;
    pthread_barrierattr_init(&a);
    pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(b, &a, n);
}

int main(void)
{
    struct rlimit files;
    pid_t pid[NODES];
    int bad = 0, ready[2], me = -1;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    setenv("HOCCL_TEST_NODE", "16+16+16+16", 1);
    setenv("HOCCL_CONNECT_MAX", "16", 1);
    setenv("HOCCL_LANES", "1", 1);
    setenv("HOCCL_TIMEOUT", "10", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    ranks_environment(8);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED && !pipe(ready), "memory");
    open_barrier(&shared->all, RANKS);
    open_barrier(&shared->living, RANKS - EACH);
    for (int n = 0; n < NODES; n++) {
        char go;
        pid[n] = fork();
        if (!pid[n])
            _exit(read(ready[0], &go, 1) != 1 || be_node(n));
    }
    OK(HOCCL_GetUniqueId(&shared->id)); /* its listener is a thread of this process, which does nothing else */
    CHECK(write(ready[1], "gogo", NODES) == NODES, "a pipe");
    for (int n = 0; n < NODES; n++) {
        int status;
        waitpid(pid[n], &status, 0);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        bool good = n < NODES - 1 ? WIFEXITED(status) && !WEXITSTATUS(status) : killed;
        if (!good)
            fprintf(stderr, "process %d: status %#x\n", n, status);
        if (!good && !bad++) /* the others wait for it at a barrier */
            for (int k = 0; k < NODES; k++)
                if (k != n)
                    kill(pid[k], SIGTERM);
    }
    return bad != 0;
}
