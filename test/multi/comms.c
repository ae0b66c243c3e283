/* SPDX-License-Identifier: Apache-2.0 */
/* Several communicators in one process, one process a rank: at once, aborted in either order, made and freed again and
 * again (test/CASES.md).
 *
 * usage: mpirun -np N comms b39|b43|b45 [long] */
#include "kit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORLD HOCCL_COMM_WORLD

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true /* the sanitizer's allocator keeps what has been freed */
#else
#define SANITIZED false
#endif

static bool longer;
static CUstream stream;

static void start(void)
{
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
}

static void end(void)
{
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

/* ---- B39, B43, B45: several communicators -------------------------------------------------------------------------- */

static void two_comms(HOCCL_Comm c[2])
{
    for (int i = 0; i < 2; i++)
        check_hoccl(HOCCL_CommSplit(WORLD, 0, job.rank, &c[i]), "HOCCL_CommSplit");
}

struct loop {
    HOCCL_Comm comm;
    bool gather;
    CUcontext context;
    pthread_t thread;
};

static void *run_loop(void *arg)
{
    struct loop *l = arg;
    int rounds = longer ? 1000 : 200, to = (job.rank + 1) % job.size, from = (job.rank + job.size - 1) % job.size;
    enum { N = 5000 };
    check_cuda(cuCtxSetCurrent(l->context), "context");
    CUstream s = kit_stream();
    CUdeviceptr out = kit_memory(N), in = kit_guarded((size_t)N * (size_t)job.size);
    HOCCL_Result e;
    for (int round = 0; round < rounds; round++) {
        unsigned number = (unsigned)round;
        pattern_fill(out, N, (struct message){job.rank, l->gather ? -1 : to, number});
        start();
        if (l->gather) {
            check_hoccl(HOCCL_AllGather(kit_pointer(out), kit_pointer(in), N, HOCCL_BYTE, l->comm, s), "HOCCL_AllGather");
        } else {
            check_hoccl(HOCCL_Send(kit_pointer(out), N, HOCCL_BYTE, to, l->comm, s), "HOCCL_Send");
            check_hoccl(HOCCL_Recv(kit_pointer(in), N, HOCCL_BYTE, from, l->comm, s), "HOCCL_Recv");
        }
        end();
        check_cuda(cuStreamSynchronize(s), "b39");
        check_hoccl(HOCCL_CommGetAsyncError(l->comm, &e), "b39");
        check_hoccl(e, "b39");
        if (!l->gather)
            kit_verify(in, N, (struct message){from, job.rank, number}, "b39");
        for (int p = 0; p < job.size && l->gather; p++)
            kit_verify(in + (size_t)p * N, N, (struct message){p, -1, number}, "b39");
    }
    kit_guards(in, (size_t)N * (size_t)job.size, "b39");
    return NULL;
}

/* Many operations queued without waiting for any. */
static void queue_many(HOCCL_Comm comm)
{
    int n = longer ? 5000 : 2000, to = (job.rank + 1) % job.size, from = (job.rank + job.size - 1) % job.size;
    CUdeviceptr out = kit_memory((size_t)n * 8), in = kit_guarded((size_t)n * 8);
    HOCCL_Result e;
    pattern_fill(out, (size_t)n * 8, (struct message){job.rank, to, 5});
    for (int i = 0; i < n; i++) {
        start();
        check_hoccl(HOCCL_Send(kit_pointer(out + 8 * (size_t)i), 8, HOCCL_BYTE, to, comm, stream), "HOCCL_Send");
        check_hoccl(HOCCL_Recv(kit_pointer(in + 8 * (size_t)i), 8, HOCCL_BYTE, from, comm, stream), "HOCCL_Recv");
        end();
    }
    check_cuda(cuStreamSynchronize(stream), "many operations");
    check_hoccl(HOCCL_CommGetAsyncError(comm, &e), "many operations");
    check_hoccl(e, "many operations");
    kit_verify(in, (size_t)n * 8, (struct message){from, job.rank, 5}, "many operations");
    kit_guards(in, (size_t)n * 8, "many operations");
}

static void b39(void)
{
    HOCCL_Comm c[2];
    struct loop l[2];
    two_comms(c);
    for (int order = 0; order < 2; order++) {
        for (int i = 0; i < 2; i++) { /* the ranks start the two in different order */
            int k = (i + order + job.rank) % 2;
            l[k] = (struct loop){.comm = c[k], .gather = k};
            check_cuda(cuCtxGetCurrent(&l[k].context), "context");
            if (pthread_create(&l[k].thread, NULL, run_loop, &l[k]))
                fail("no thread");
        }
        for (int k = 0; k < 2; k++)
            pthread_join(l[k].thread, NULL);
    }
    queue_many(c[1]);
    for (int i = 0; i < 2; i++)
        check_hoccl(HOCCL_CommDestroy(c[i]), "HOCCL_CommDestroy");
}

static void b43(void)
{
    for (int order = 0; order < 2; order++) {
        HOCCL_Comm c[2];
        CUstream s[2] = {kit_stream(), kit_stream()};
        CUdeviceptr p = kit_memory(64);
        two_comms(c);
        for (int i = 0; i < 2; i++)
            check_hoccl(HOCCL_Recv(kit_pointer(p), 64, HOCCL_BYTE, (job.rank + 1) % job.size, c[i], s[i]), "HOCCL_Recv");
        usleep(50000);
        for (int i = 0; i < 2; i++) {
            int k = (i + order) % 2;
            double begun = now();
            check_hoccl(HOCCL_CommAbort(c[k]), "HOCCL_CommAbort");
            if (now() - begun > 2)
                fail("b43: the abort took %.1f s", now() - begun);
            check_cuda(cuStreamSynchronize(s[k]), "the aborted one's stream");
            if (!i && cuStreamQuery(s[1 - k]) != CUDA_ERROR_NOT_READY)
                fail("b43: the other communicator's stream has gone on");
            if (!i)
                kit_meet(order ? "looked again" : "looked"); /* a peer's abort would release it */
        }
    }
    kit_exchange("after the aborts");
}

static int entries(const char *folder)
{
    char command[128];
    int n = -1;
    snprintf(command, sizeof command, "ls /proc/%d/%s | wc -l", (int)getpid(), folder);
    FILE *f = popen(command, "r");
    if (!f || fscanf(f, "%d", &n) != 1)
        fail("%s", command);
    pclose(f);
    return n;
}

/* Lines of /proc/self/maps. */
static int mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    int n = 0, c;
    while (f && (c = fgetc(f)) != EOF)
        n += c == '\n';
    if (f)
        fclose(f);
    return n;
}

static long resident_kib(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &pages, &resident) != 2)
        fail("/proc/self/statm");
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void b45(void)
{
    int rounds = longer ? 1000 : 60, fds = 0, threads = 0, maps = 0;
    CUdeviceptr p = kit_memory(64);
    size_t before = 0, later, total;
    long kib = 0;
    for (int i = 0; i < rounds; i++) {
        HOCCL_Comm c;
        check_hoccl(HOCCL_CommSplit(WORLD, 0, job.rank, &c), "HOCCL_CommSplit");
        start();
        check_hoccl(HOCCL_Send(kit_pointer(p), 8, HOCCL_BYTE, (job.rank + 1) % job.size, c, stream), "HOCCL_Send");
        check_hoccl(HOCCL_Recv(kit_pointer(p + 8), 8, HOCCL_BYTE, (job.rank + job.size - 1) % job.size, c, stream), "HOCCL_Recv");
        end();
        check_cuda(cuStreamSynchronize(stream), "b45");
        check_hoccl(HOCCL_CommDestroy(c), "HOCCL_CommDestroy");
        kit_exchange("b45");
        if (i != 10)
            continue;
        fds = entries("fd");
        threads = entries("task");
        maps = mappings();
        kib = resident_kib();
        check_cuda(cuMemGetInfo(&before, &total), "cuMemGetInfo");
    }
    check_cuda(cuMemGetInfo(&later, &total), "cuMemGetInfo");
    if (entries("fd") > fds + 2 || entries("task") > threads || mappings() > maps + (SANITIZED ? 200 : 5) || later < before)
        fail("b45: descriptors %d to %d, threads %d to %d, mappings %d to %d, GPU memory %zu to %zu", fds, entries("fd"), threads,
             entries("task"), maps, mappings(), before, later);
    if (resident_kib() > kib + (SANITIZED ? 200000 : 20000))
        fail("b45: resident memory %ld to %ld KiB in %d rounds", kib, resident_kib(), rounds);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    void (*run)(void) = !strcmp(name, "b39") ? b39 : !strcmp(name, "b43") ? b43 : !strcmp(name, "b45") ? b45 : NULL;
    if (!run) {
        fprintf(stderr, "usage: mpirun -np N comms b39|b43|b45 [long]\n");
        return 2;
    }
    longer = (argc > 2 && !strcmp(argv[2], "long")) || getenv("LONG_TESTS");
    kit_open(longer ? 280 : 100, name);
    stream = kit_stream();
    run();
    kit_exchange("at last");
    kit_close();
    if (!job.rank)
        printf("comms: %s on %d ranks: right\n", name, job.size);
    return 0;
}
