/* SPDX-License-Identifier: Apache-2.0 */
/* The patterns of examples/NAME_perf through NCCL, as many processes with a GPU each as are asked for, so that both stand in one
 * run. NCCL is loaded at run time from $NCCL_LIB (else libnccl.so.2); without it the program says so and leaves with 77.
 *
 * usage: nccl_rate PATTERN[,PATTERN…] FIRST LAST FACTOR [RANKS [PREFIX]]
 *   PATTERN  sendrecv, allgather (out of place and in place), alltoall, alltoallv (Zipf, 1), incast
 *   FIRST …  sizes in bytes, as NAME_perf counts them: sendrecv, incast: what a rank sends; else the whole buffer of a rank
 *   PREFIX   takes PREFIXPATTERN.json, in the shape of NAME_perf -J
 *
 * NCCL_RATE_NODES=N: NCCL takes the ranks to be on N hosts, in blocks (NCCL_HOSTID).
 *
 * One line a size: time, rate; the slowest rank's time. As many operations are timed as take about 0.2 s, 2 to 100. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 1024 };

typedef struct {
    char internal[128];
} unique_id;
typedef void *comm_t;

static int (*get_id)(unique_id *), (*init_rank)(comm_t *, int, unique_id, int), (*start)(void), (*end)(void), (*destroy)(comm_t);
static int (*send)(const void *, size_t, int, int, comm_t, CUstream), (*recv)(void *, size_t, int, int, comm_t, CUstream);
static int (*allgather)(const void *, void *, size_t, int, comm_t, CUstream);

struct shared {
    unique_id id;
    unsigned arrived;
    bool failed; /* by any rank: the others end */
    double seconds[MOST_RANKS];
};

static struct shared *sh;
static int me, ranks = 2;
static comm_t comm;
static CUstream stream;
static CUdeviceptr out, in;

static void check(int r, const char *what)
{
    if (!r)
        return;
    fprintf(stderr, "rank %d: %s: %d\n", me, what, r);
    __atomic_store_n(&sh->failed, true, __ATOMIC_RELEASE);
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
    while (__atomic_load_n(&sh->arrived, __ATOMIC_ACQUIRE) < round) {
        check(__atomic_load_n(&sh->failed, __ATOMIC_ACQUIRE), "another rank has failed");
        sched_yield();
    }
}

static void load(void)
{
    const char *path = getenv("NCCL_LIB");
    void *h = dlopen(path ? path : "libnccl.so.2", RTLD_NOW);
    if (!h) {
        if (!me)
            printf("no NCCL: %s\n", dlerror());
        exit(77);
    }
    *(void **)&get_id = dlsym(h, "ncclGetUniqueId");
    *(void **)&init_rank = dlsym(h, "ncclCommInitRank");
    *(void **)&destroy = dlsym(h, "ncclCommDestroy");
    *(void **)&start = dlsym(h, "ncclGroupStart");
    *(void **)&end = dlsym(h, "ncclGroupEnd");
    *(void **)&send = dlsym(h, "ncclSend");
    *(void **)&recv = dlsym(h, "ncclRecv");
    *(void **)&allgather = dlsym(h, "ncclAllGather");
}

static void choose_host(void)
{
    const char *nodes = getenv("NCCL_RATE_NODES");
    char name[32];
    if (!nodes)
        return;
    snprintf(name, sizeof name, "node%d", me * atoi(nodes) / ranks);
    setenv("NCCL_HOSTID", name, 1);
}

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

static void post_send(size_t at, size_t bytes, int peer)
{
    if (bytes)
        check(send((void *)(out + at), bytes, 0, peer, comm, stream), "ncclSend");
}

static void post_recv(size_t at, size_t bytes, int peer)
{
    if (bytes)
        check(recv((void *)(in + at), bytes, 0, peer, comm, stream), "ncclRecv");
}

static void sendrecv(size_t bytes, bool in_place)
{
    (void)in_place;
    post_send(0, bytes, (me + 1) % ranks);
    post_recv(0, bytes, (me + ranks - 1) % ranks);
}

static void incast(size_t bytes, bool in_place)
{
    (void)in_place;
    if (me)
        post_send(0, bytes, 0);
    for (int peer = 1; peer < ranks && !me; peer++)
        post_recv((size_t)(peer - 1) * bytes, bytes, peer);
}

static void gather(size_t bytes, bool in_place)
{
    size_t n = bytes / (size_t)ranks;
    CUdeviceptr from = in_place ? in + (size_t)me * n : out;
    check(allgather((void *)from, (void *)in, n, 0, comm, stream), "ncclAllGather");
}

static void alltoall(size_t bytes, bool in_place)
{
    size_t n = bytes / (size_t)ranks;
    (void)in_place;
    for (int d = 0; d < ranks; d++) {
        int to = (me + d) % ranks, from = (me - d + ranks) % ranks;
        post_send((size_t)to * n, n, to);
        post_recv((size_t)from * n, n, from);
    }
}

/* What a rank sends to this one. */
static size_t zipf(size_t bytes, int rank)
{
    double sum = 0;
    for (int i = 0; i < ranks; i++)
        sum += 1.0 / (i + 1);
    return (size_t)((double)bytes / (rank + 1) / sum);
}

static void alltoallv(size_t bytes, bool in_place)
{
    size_t at = 0, mine = zipf(bytes, me);
    (void)in_place;
    for (int peer = 0; peer < ranks; peer++) {
        post_send(at, zipf(bytes, peer), peer);
        post_recv((size_t)peer * mine, mine, peer);
        at += zipf(bytes, peer);
    }
}

struct pattern {
    const char *name;
    void (*post)(size_t bytes, bool in_place);
    bool both;                         /* also in place */
    size_t (*receives)(size_t bytes);  /* of the rank that receives most: room */
    double (*busy)(void);              /* what the busiest rank moves in one direction, in sizes */
};

static size_t receives_once(size_t bytes)
{
    return bytes;
}

static size_t receives_all(size_t bytes)
{
    return bytes * (size_t)ranks;
}

static double busy_one(void)
{
    return 1;
}

static double busy_others(void)
{
    return (ranks - 1.0) / ranks;
}

static double busy_most(void)
{
    return ranks - 1.0;
}

/* Rank 0 receives most, ranks − 1 times its share; the last one sends most, all but its own share. */
static double busy_zipf(void)
{
    double sum = 0;
    for (int i = 0; i < ranks; i++)
        sum += 1.0 / (i + 1);
    double received = (ranks - 1) / sum, sent = 1 - 1 / (sum * ranks);
    return received > sent ? received : sent;
}

static const struct pattern patterns[] = {
    {"sendrecv", sendrecv, false, receives_once, busy_one},   {"allgather", gather, true, receives_once, busy_others},
    {"alltoall", alltoall, false, receives_once, busy_others}, {"alltoallv", alltoallv, false, receives_all, busy_zipf},
    {"incast", incast, false, receives_all, busy_most},
};

static const struct pattern *find(const char *name)
{
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (!strcmp(name, patterns[i].name))
            return &patterns[i];
    fprintf(stderr, "nccl_rate: there is no pattern %s\n", name);
    exit(2);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* The slowest rank's seconds for one of so many operations. */
static double slowest(const struct pattern *p, size_t bytes, bool in_place, int times)
{
    double worst = 0;
    meet();
    double t = now();
    for (int i = 0; i < times; i++) {
        check(start(), "ncclGroupStart");
        p->post(bytes, in_place);
        check(end(), "ncclGroupEnd");
    }
    check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    sh->seconds[me] = (now() - t) / times;
    meet();
    for (int i = 0; i < ranks; i++)
        worst = sh->seconds[i] > worst ? sh->seconds[i] : worst;
    meet();
    return worst;
}

static double measure(const struct pattern *p, size_t bytes, bool in_place)
{
    slowest(p, bytes, in_place, 2);
    double one = slowest(p, bytes, in_place, 3);
    int times = one > 0.1 ? 2 : one < 0.002 ? 100 : (int)(0.2 / one);
    return slowest(p, bytes, in_place, times);
}

static void say(const struct pattern *p, size_t bytes, bool in_place, double seconds, FILE *json)
{
    double algbw = 1e-9 * (double)bytes / seconds;
    printf("NCCL %-9s %-12s %11zu bytes %10.2f us %8.2f GB/s, busbw %8.2f\n", p->name,
           in_place ? "in place" : p->both ? "out of place" : "", bytes, 1e6 * seconds, algbw, algbw * p->busy());
    fflush(stdout);
    if (json)
        fprintf(json, "\"time_us\": %.3f, \"algbw_GBps\": %.3f, \"busbw_GBps\": %.3f", 1e6 * seconds, algbw, algbw * p->busy());
}

static void measure_size(const struct pattern *p, size_t bytes, FILE *json)
{
    size_t shown = p->busy == busy_others ? bytes / (size_t)ranks * (size_t)ranks : bytes;
    double seconds = measure(p, bytes, false), again = p->both ? measure(p, bytes, true) : 0;
    if (me)
        return;
    if (json)
        fprintf(json, "{\"bytes\": %zu, ", shown);
    say(p, shown, false, seconds, json);
    if (json && p->both)
        fprintf(json, ", \"in_place\": {");
    if (p->both)
        say(p, shown, true, again, json);
    if (json)
        fprintf(json, p->both ? "}}" : "}");
}

static FILE *json_open(const char *prefix, const struct pattern *p)
{
    char path[4096];
    FILE *json = NULL;
    if (me || !prefix)
        return NULL;
    snprintf(path, sizeof path, "%s%s.json", prefix, p->name);
    check(!(json = fopen(path, "w")), path);
    fprintf(json, "{\"program\": \"%s_perf\", \"library\": \"NCCL\", \"ranks\": %d, \"rows\": [\n", p->name, ranks);
    return json;
}

static void measure_pattern(const struct pattern *p, char **v, const char *prefix)
{
    size_t first = strtoull(v[2], NULL, 0), last = strtoull(v[3], NULL, 0), factor = strtoull(v[4], NULL, 0);
    FILE *json = json_open(prefix, p);
    size_t room = 2 << 20;
    check(cuMemAlloc(&out, (last + room - 1) / room * room), "cuMemAlloc");
    check(cuMemAlloc(&in, (p->receives(last) + room - 1) / room * room), "cuMemAlloc");
    for (size_t n = first; n <= last; n *= factor) {
        if (json && n != first)
            fprintf(json, ",\n");
        measure_size(p, n, json);
    }
    if (json)
        fprintf(json, "\n]}\n");
    check(json && fclose(json), "writing JSON");
    meet();
    check(cuMemFree(out), "cuMemFree");
    check(cuMemFree(in), "cuMemFree");
}

static void rank_main(int argc, char **v)
{
    CUcontext ctx;
    int devices;
    char *save = NULL;
    check(cuInit(0), "cuInit");
    check(cuDeviceGetCount(&devices), "cuDeviceGetCount");
    check(cuDevicePrimaryCtxRetain(&ctx, me % devices), "context");
    check(cuCtxSetCurrent(ctx), "context");
    choose_host();
    load();
    if (!me)
        check(get_id(&sh->id), "ncclGetUniqueId");
    meet();
    check(init_rank(&comm, ranks, sh->id, me), "ncclCommInitRank");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    for (char *name = strtok_r(v[1], ",", &save); name; name = strtok_r(NULL, ",", &save))
        measure_pattern(find(name), v, argc > 6 ? v[6] : NULL);
    check(destroy(comm), "ncclCommDestroy");
    meet();
}

/* 0 if every other rank has ended well. */
static int wait_all(void)
{
    int status, bad = 0;
    while (wait(&status) > 0)
        bad |= status;
    return bad != 0;
}

int main(int argc, char **argv)
{
    if (argc < 5 || strtoull(argv[2], NULL, 0) < 1 || strtoull(argv[4], NULL, 0) < 2) {
        fprintf(stderr, "usage: nccl_rate sendrecv|allgather|alltoall|alltoallv|incast[,…] FIRST LAST FACTOR [RANKS [PREFIX]]\n");
        return 2;
    }
    ranks = argc > 5 ? atoi(argv[5]) : 2;
    if (ranks < 2 || ranks > MOST_RANKS) {
        fprintf(stderr, "nccl_rate: 2 to %d ranks, not %s\n", MOST_RANKS, argv[5]);
        return 2;
    }
    sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 1; i < ranks; i++)
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            me = i;
            alarm(120);
            rank_main(argc, argv);
            _exit(0);
        }
    alarm(120);
    rank_main(argc, argv);
    return wait_all();
}
