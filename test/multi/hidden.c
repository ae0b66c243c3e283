/* SPDX-License-Identifier: Apache-2.0 */
/* Slots on symmetric GPUs that are hidden from their ranks (hidden.sh shows each rank its own GPU only). The network is TCP,
 * to which is added what it lacks: it takes a dma-buf of an emulated GPU by mapping it, and says that a flush is done at the next
 * poll.
 *
 * usage: mpirun -np N hidden [leave RANK], or hidden threads|later
 *   leave    that rank's process ends before the others send to each other, in a communicator that they have made meanwhile
 *   threads  four ranks in three processes, which it makes: 0 and 1 are threads and share GPU 0, 2 has GPU 1, 3 has GPU 2
 *   later    the same, but 0, 1 and 3 have made a communicator before, without the rank that could give memory
 *
 * A rank prints how many chunks have come to its slots, and how many of them were flushed. */
#define _GNU_SOURCE
#include "rank.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "hoccl_cuda.h"
#include "p2p/wire.h"

#define MOST ((size_t)5 << 20)
#define GUARD 64u

/* ---- the network ------------------------------------------------------------------------------------------------- */

#define REGIONS 64
#define FLUSHES 256

static struct hoccl_transport network;

static struct mapped {
    const struct hoccl_region *region; /* NULL: unused */
    void *at;
    size_t bytes;
} mapped[REGIONS]; /* one communicator at a time changes them */

static struct mapped *find(const struct hoccl_region *region)
{
    for (int i = 0; i < REGIONS; i++)
        if (mapped[i].region == region)
            return &mapped[i];
    return NULL;
}

static HOCCL_Result add(struct hoccl_endpoint *e, const struct hoccl_region_source *source, struct hoccl_region *region)
{
    struct hoccl_region_source host = *source;
    struct mapped *m = source->gpu ? find(NULL) : NULL;
    if (!source->gpu)
        return hoccl_transport_tcp.region_add(e, source, region);
    if (!m || source->dmabuf < 0)
        return hoccl_fail(HOCCL_ERR_DEVICE, "the test's network takes GPU memory as a dma-buf only");
    void *at = mmap(NULL, source->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, source->dmabuf, (off_t)source->offset);
    if (at == MAP_FAILED)
        return hoccl_fail(HOCCL_ERR_DEVICE, "mapping a dma-buf: %m");
    host.address = at;
    host.gpu = false;
    host.dmabuf = -1;
    HOCCL_Result r = hoccl_transport_tcp.region_add(e, &host, region);
    if (r)
        munmap(at, source->bytes);
    else
        *m = (struct mapped){region, at, source->bytes};
    return r;
}

static void withdraw(struct hoccl_endpoint *e, struct hoccl_region *region)
{
    struct mapped *m = find(region);
    hoccl_transport_tcp.region_remove(e, region);
    if (!m)
        return;
    munmap(m->at, m->bytes);
    *m = (struct mapped){.region = NULL};
}

static uint64_t flush_tag[FLUSHES];
static unsigned flushes_begun, flushes_ended; /* progress thread: a process has one */

static bool flush(struct hoccl_endpoint *e, const struct hoccl_region *region, size_t offset, uint64_t tag)
{
    (void)e;
    (void)region;
    (void)offset;
    if (flushes_begun - flushes_ended == FLUSHES)
        return false;
    flush_tag[flushes_begun++ % FLUSHES] = tag;
    return true;
}

static int poll_news(struct hoccl_endpoint *e, struct hoccl_transport_event *events, int most)
{
    int n = 0;
    while (n < most && flushes_ended < flushes_begun)
        events[n++] = (struct hoccl_transport_event){.kind = HOCCL_TRANSPORT_FLUSHED, .tag = flush_tag[flushes_ended++ % FLUSHES]};
    return n ? n : hoccl_transport_tcp.poll(e, events, most);
}

static bool arm(struct hoccl_endpoint *e)
{
    return flushes_ended < flushes_begun || hoccl_transport_tcp.arm(e);
}

static void make_network(void)
{
    network = hoccl_transport_tcp;
    network.takes_gpu = true;
    network.region_add = add;
    network.region_remove = withdraw;
    network.flush = flush;
    network.poll = poll_news;
    network.arm = arm;
    hoccl_wire_transport = &network;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static const size_t sizes[] = {0, 1, 65537, MOST - 3, MOST};
#define SIZES (sizeof sizes / sizeof *sizes)

static unsigned char byte_of(int from, int to, size_t i)
{
    return (unsigned char)((unsigned)from * 31u + (unsigned)to * 57u + (unsigned)i * 7u + (unsigned)(i >> 8) + (unsigned)(i >> 16));
}

static void check(const unsigned char *got, int from, size_t n)
{
    for (size_t i = 0; i < MOST + GUARD; i++) {
        unsigned char right = i < n ? byte_of(from, rank, i) : 0xee;
        if (got[i] != right) {
            fprintf(stderr, "rank %d: byte %zu of %zu from rank %d is 0x%x, not 0x%x\n", rank, i, n, from, got[i], right);
            exit(1);
        }
    }
}

/* To and from everybody, with nothing written behind a message. */
static void exchange(size_t n)
{
    size_t room = MOST + GUARD;
    CUdeviceptr out, in;
    unsigned char *host = malloc((size_t)size * room);
    NEED(host);
    OK(cuMemAlloc(&out, (size_t)size * room));
    OK(cuMemAlloc(&in, (size_t)size * room));
    for (int p = 0; p < size; p++)
        for (size_t i = 0; i < n; i++)
            host[(size_t)p * room + i] = byte_of(rank, p, i);
    rank_put((void *)out, host, (size_t)size * room);
    memset(host, 0xee, (size_t)size * room);
    rank_put((void *)in, host, (size_t)size * room);
    OK(HOCCL_GroupStart());
    for (int p = 0; p < size; p++) {
        if (p == rank)
            continue;
        OK(HOCCL_Send((void *)(out + (size_t)p * room), n, HOCCL_BYTE, p, comm, stream));
        OK(HOCCL_Recv((void *)(in + (size_t)p * room), n, HOCCL_BYTE, p, comm, stream));
    }
    OK(HOCCL_GroupEnd());
    OK(rank_wait());
    OK(cuMemcpyDtoH(host, in, (size_t)size * room));
    for (int p = 0; p < size; p++)
        if (p != rank)
            check(host + (size_t)p * room, p, n);
    rank_settle();
    OK(cuMemFree(out));
    OK(cuMemFree(in));
    free(host);
}

static void exchange_all(void)
{
    for (size_t i = 0; i < SIZES; i++)
        exchange(sizes[i]);
}

/* ---- one leaves -------------------------------------------------------------------------------------------------- */

/* The process of that rank, told to all while it lives. */
static pid_t process_of(int who)
{
    int32_t own = (int32_t)getpid(), its = 0;
    CUdeviceptr word;
    OK(cuMemAlloc(&word, sizeof own));
    rank_put((void *)word, &own, sizeof own);
    OK(HOCCL_Broadcast((void *)word, (void *)word, sizeof own, HOCCL_BYTE, who, comm, stream));
    OK(rank_wait());
    OK(cuMemcpyDtoH(&its, word, sizeof its));
    OK(cuMemFree(word));
    return its;
}

static void go_on_without(int who)
{
    HOCCL_Comm rest;
    pid_t pid = process_of(who);
    OK(HOCCL_CommSplit(HOCCL_COMM_WORLD, rank == who ? HOCCL_SPLIT_NOCOLOR : 0, rank, &rest));
    if (rank == who) {
        OK(HOCCL_Finalize());
        exit(0);
    }
    while (!kill(pid, 0) || errno != ESRCH)
        usleep(1000);
    comm = rest;
    OK(HOCCL_CommRank(comm, &rank));
    OK(HOCCL_CommSize(comm, &size));
    exchange_all();
    OK(HOCCL_CommDestroy(comm));
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

#define PROCESSES 3

static const struct {
    const char *gpu;
    int first, ranks;
} processes[PROCESSES] = {{"0", 0, 2}, {"1", 2, 1}, {"2", 3, 1}};

static HOCCL_UniqueId *id; /* shared by the processes: of all ranks, of all but 2 */
static bool later;

static void *be_rank(void *arg)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    int me = (int)(intptr_t)arg;
    HOCCL_Comm first = HOCCL_COMM_NULL;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (later && me != 2) {
        rank = me == 3 ? 2 : me;
        size = 3;
        OK(HOCCL_CommInitRank(&first, size, id[1], rank));
        comm = first;
        exchange(sizes[SIZES - 1]);
    }
    rank = me;
    size = 4;
    OK(HOCCL_CommInitRank(&comm, size, id[0], rank));
    exchange_all();
    rank_settle();
    OK(cuStreamDestroy(stream));
    OK(HOCCL_CommDestroy(comm));
    if (first != HOCCL_COMM_NULL)
        OK(HOCCL_CommDestroy(first));
    return NULL;
}

static int be_process(int n)
{
    pthread_t thread[2];
    alarm(100);
    setenv("CUDA_VISIBLE_DEVICES", processes[n].gpu, 1);
    setenv("HOCCL_TEST_NODE", n == 2 ? "1+3" : "3+1", 1); /* the last process's rank, whatever its number, is on the second node */
    OK(pthread_barrier_init(&ranks_barrier, NULL, (unsigned)processes[n].ranks));
    ranks_are_threads = true;
    for (int i = 0; i < processes[n].ranks; i++)
        OK(pthread_create(&thread[i], NULL, be_rank, (void *)(intptr_t)(processes[n].first + i)));
    for (int i = 0; i < processes[n].ranks; i++)
        OK(pthread_join(thread[i], NULL));
    exit(0);
}

static int be_processes(void)
{
    int ready[2], bad = 0, status;
    id = mmap(NULL, 2 * sizeof *id, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(id != MAP_FAILED && !pipe(ready));
    for (int n = 0; n < PROCESSES; n++) {
        char go;
        if (!fork())
            _exit(read(ready[0], &go, 1) != 1 || be_process(n));
    }
    OK(HOCCL_GetUniqueId(&id[0])); /* its listener is a thread of this process */
    OK(HOCCL_GetUniqueId(&id[1]));
    NEED(write(ready[1], "gogogo", PROCESSES) == PROCESSES);
    for (int n = 0; n < PROCESSES; n++) {
        NEED(wait(&status) > 0);
        bad |= status;
    }
    return bad != 0;
}

int main(int argc, char **argv)
{
    uint64_t work = 0;
    alarm(100);
    make_network();
    later = argc > 1 && !strcmp(argv[1], "later");
    if (later || (argc > 1 && !strcmp(argv[1], "threads")))
        return be_processes();
    rank_open();
    exchange_all();
    if (argc > 2 && !strcmp(argv[1], "leave"))
        go_on_without(atoi(argv[2]));
    NEED(!hoccl_cuda_sm_work(&work) || work == 0);
    printf("rank %d: right; %llu chunks have come, %llu were flushed\n", rank, (unsigned long long)hoccl_wire_counts.arrived,
           (unsigned long long)hoccl_wire_counts.flushed);
    OK(cuStreamDestroy(stream));
    OK(HOCCL_Finalize());
    return 0;
}
