/* SPDX-License-Identifier: Apache-2.0 */
/* What must go on beside HOCCL, and beside what HOCCL must go on. Two or more ranks, each with a GPU; the same binary on real
 * and on emulated ones. Every rank sends to the next and receives from the one before. Every case ends under an alarm: a hang
 * is a failure.
 *
 *   streams  Send on one stream and Recv on another on all ranks, ROUNDS times without a host synchronisation between
 *            them; all but rank 0 come late, and while rank 0's streams are parked a kernel and a D2H copy on other streams of
 *            rank 0 must end. Prints whether they did before the others came.
 *   hold     a kernel holds every thread slot of every SM; sizes 8 B … 1 GiB are exchanged meanwhile: right bytes, and
 *            the rate beside the rate on the idle GPU. Zero SM, or it would hang until the kernel ends.
 *   collectives  the same with AllGather and Alltoall out of place, of whole buffers of these sizes.
 *   small    many small allocations that share the driver's blocks: each view's own bytes must arrive (offsets).
 *   order    Send, then the buffer is overwritten on the same stream; Recv, then it is read on the same stream.
 *   oneway   rank 0 sends, rank 1 receives: the rate of one direction.
 *   free     cuMemFree behind a parked receive: the text of the failure, and the process goes on.
 *   default  a copy into pageable memory on the default stream, which waits for a parked receive: the same.
 *   pageable such a copy on the receive's own stream, which must do no harm.
 *   read     received and read at once into pageable memory on the default stream; needs HOCCL_BLOCKING=on.
 *   first    a kernel's first launch behind a parked receive, which must do no harm unless kernels are loaded lazily.
 *
 * usage: mpirun -np N coexist CASE [BYTES [SECONDS]]     free, default and oneway: two ranks; SECONDS: of hold, 4 */
#include "../../examples/common.h"
#include "kernels.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 5
#define LATE_US 400000

static struct job job;
static CUmodule module;
static const char *the_case;
static int hold_seconds = 4;

static void on_alarm(int sig)
{
    (void)sig;
    char line[128];
    int n = snprintf(line, sizeof line, "rank %d: %s: HUNG\n", job.rank, the_case);
    if (write(2, line, (size_t)n) < 0)
        _exit(4);
    _exit(3);
}

static CUstream new_stream(void)
{
    CUstream s;
    check_cuda(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return s;
}

static CUdeviceptr new_memory(size_t bytes)
{
    CUdeviceptr p;
    check_cuda(cuMemAlloc(&p, bytes), "cuMemAlloc");
    return p;
}

static int before(void)
{
    return (job.rank + job.size - 1) % job.size;
}

/* Message `number` that this rank sends. */
static struct message mine(unsigned number)
{
    return (struct message){job.rank, (job.rank + 1) % job.size, number};
}

static void send_on(CUstream s, CUdeviceptr p, size_t n)
{
    check_hoccl(HOCCL_Send((void *)p, n, HOCCL_BYTE, (job.rank + 1) % job.size, HOCCL_COMM_WORLD, s), "HOCCL_Send");
}

static void recv_on(CUstream s, CUdeviceptr p, size_t n)
{
    check_hoccl(HOCCL_Recv((void *)p, n, HOCCL_BYTE, before(), HOCCL_COMM_WORLD, s), "HOCCL_Recv");
}

static void sync_on(CUstream s)
{
    HOCCL_Result e;
    check_cuda(cuStreamSynchronize(s), "cuStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &e), "HOCCL_CommGetAsyncError");
    check_hoccl(e, "operation");
}

/* Both neighbours have arrived. */
static void meet(CUstream s, CUdeviceptr p)
{
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    send_on(s, p, 8);
    recv_on(s, p + 8, 8);
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    sync_on(s);
}

static void verify_message(CUdeviceptr p, size_t n, struct message message)
{
    size_t at;
    int right;
    unsigned char *seen = malloc(n);
    if (!seen)
        fail("no memory for %zu bytes", n);
    check_cuda(cuMemcpyDtoH(seen, p, n), "cuMemcpyDtoH");
    size_t wrong = pattern_check(seen, n, message, &at, &right);
    if (wrong)
        fail("%s: %zu of %zu bytes of message %u from rank %d are wrong, the first at %zu: 0x%02x, not 0x%02x", the_case, wrong, n,
             message.number, message.source, at, seen[at], right);
    free(seen);
}

static void verify(CUdeviceptr p, size_t n, unsigned number)
{
    verify_message(p, n, (struct message){before(), job.rank, number});
}

static void exchange(CUstream s, CUdeviceptr out, CUdeviceptr in, size_t n)
{
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    send_on(s, out, n);
    recv_on(s, in, n);
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

static CUfunction kernel(const char *name)
{
    CUfunction f;
    check_cuda(cuModuleGetFunction(&f, module, name), name);
    return f;
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static void case_streams(size_t n)
{
    CUstream a = new_stream(), b = new_stream(), k = new_stream(), d = new_stream(), m = new_stream();
    CUdeviceptr out[ROUNDS], in[ROUNDS], other = new_memory(4096);
    CUfunction nop = kernel("nop");
    void *host;
    check_cuda(cuMemHostAlloc(&host, 4096, 0), "cuMemHostAlloc");
    check_cuda(cuLaunchKernel(nop, 1, 1, 1, 32, 1, 1, 0, k, NULL, NULL), "nop");
    check_cuda(cuStreamSynchronize(k), "nop");
    for (int r = 0; r < ROUNDS; r++) {
        out[r] = new_memory(n);
        in[r] = new_memory(n);
        pattern_fill(out[r], n, mine((unsigned)r));
    }
    meet(m, other);
    if (job.rank != 0)
        usleep(LATE_US);
    double begun = now();
    for (int r = 0; r < ROUNDS; r++) {
        send_on(a, out[r], n);
        recv_on(b, in[r], n);
        if (r == 0) {
            check_cuda(cuLaunchKernel(nop, 1, 1, 1, 32, 1, 1, 0, k, NULL, NULL), "nop");
            check_cuda(cuMemcpyDtoHAsync(host, other, 4096, d), "D2H");
        }
    }
    check_cuda(cuStreamSynchronize(k), "nop");
    double ran = now() - begun;
    check_cuda(cuStreamSynchronize(d), "D2H");
    double copied = now() - begun;
    sync_on(a);
    sync_on(b);
    for (int r = 0; r < ROUNDS; r++)
        verify(in[r], n, (unsigned)r);
    if (job.rank == 0)
        printf("streams: kernel after %.0f us, D2H copy after %.0f us, all after %.0f us (the peer came after %d us): %s\n",
               1e6 * ran, 1e6 * copied, 1e6 * (now() - begun), LATE_US, copied < 0.5e-6 * LATE_US ? "independent" : "STOPPED");
}

typedef void (*operation)(CUstream s, CUdeviceptr out, CUdeviceptr in, size_t n);

static double rate_of(operation post, CUstream s, CUdeviceptr out, CUdeviceptr in, size_t n, int times)
{
    double best = 1e9;
    for (int i = 0; i < times; i++) {
        double t = now();
        post(s, out, in, n);
        sync_on(s);
        t = now() - t;
        best = t < best ? t : best;
    }
    return best;
}

/* Rank 0 sends and rank 1 receives. */
static void case_oneway(size_t n)
{
    CUstream s = new_stream();
    CUdeviceptr p = new_memory(n);
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        double t = now();
        if (job.rank == 0)
            send_on(s, p, n);
        else
            recv_on(s, p, n);
        sync_on(s);
        t = now() - t;
        best = t < best ? t : best;
    }
    if (job.rank == 0)
        printf("oneway: %zu bytes in %.1f us, %.1f GB/s\n", n, 1e6 * best, 1e-9 * (double)n / best);
}

static void hold_all_sms(CUstream s)
{
    uint64_t ns = (uint64_t)hold_seconds * 1000000000u;
    void *args[] = {&ns};
    int sms;
    CUfunction f = kernel("hold");
    check_cuda(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, job.device), "SM count");
    check_cuda(cuLaunchKernel(f, (unsigned)sms * 2, 1, 1, 1024, 1, 1, 0, s, args, NULL), "hold");
    usleep(50000);
}

/* Out of place, so that each rank's own piece moves too. */
static void gather(CUstream s, CUdeviceptr out, CUdeviceptr in, size_t n)
{
    check_hoccl(HOCCL_AllGather((void *)out, (void *)in, n / (size_t)job.size, HOCCL_BYTE, HOCCL_COMM_WORLD, s), "HOCCL_AllGather");
}

static void alltoall(CUstream s, CUdeviceptr out, CUdeviceptr in, size_t n)
{
    check_hoccl(HOCCL_Alltoall((void *)out, (void *)in, n / (size_t)job.size, HOCCL_BYTE, HOCCL_COMM_WORLD, s), "HOCCL_Alltoall");
}

/* What rank `from` gives to rank `to` in operations of this kind. */
static struct message piece_of(operation post, int from, int to)
{
    return (struct message){from, post == gather ? -1 : to, 1};
}

static void fill(operation post, CUdeviceptr out, size_t n)
{
    size_t piece = n / (size_t)job.size;
    if (post == exchange)
        pattern_fill(out, n, mine(1));
    for (int peer = 0; peer < job.size && post != exchange; peer++)
        pattern_fill(out + (post == gather ? 0 : (size_t)peer * piece), piece, piece_of(post, job.rank, peer));
}

static void verify_all(operation post, CUdeviceptr in, size_t n)
{
    size_t piece = n / (size_t)job.size;
    if (post == exchange)
        verify(in, n, 1);
    for (int peer = 0; peer < job.size && post != exchange; peer++)
        verify_message(in + (size_t)peer * piece, piece, piece_of(post, peer, job.rank));
}

static void hold_while(const char *what, operation post, size_t most)
{
    static const size_t sizes[] = {8, 64 << 10, 1 << 20, 16 << 20, 128 << 20, 1 << 30};
    CUstream s = new_stream(), k = new_stream();
    CUdeviceptr out = new_memory(most + 64), in = new_memory(most + 64);
    double idle[6];
    int n = 0;
    while (n < 6 && sizes[n] <= most) {
        idle[n] = rate_of(post, s, out, in, sizes[n], 5);
        n++;
    }
    fill(post, out, sizes[n - 1]);
    meet(s, in);
    hold_all_sms(k);
    bool held = true;
    for (int i = 0; i < n; i++) {
        double t = rate_of(post, s, out, in, sizes[i], 5);
        held = cuStreamQuery(k) == CUDA_ERROR_NOT_READY;
        if (job.rank == 0)
            printf("%s: %10zu bytes: %9.1f us with every SM held (%s), %9.1f idle, ratio %.3f, %.1f GB/s\n", what, sizes[i], 1e6 * t,
                   held ? "still held" : "NOT HELD", 1e6 * idle[i], idle[i] / t, 1e-9 * (double)sizes[i] / t);
    }
    check_cuda(cuStreamSynchronize(k), "hold");
    verify_all(post, in, sizes[n - 1]);
    if (job.rank == 0 || !held)
        printf("%s: rank %d: %s\n", what, job.rank,
               held ? "every transfer ended while the kernel ran" : "NOT EVERY TRANSFER ENDED WHILE THE KERNEL RAN");
    check_cuda(cuMemFree(out), "cuMemFree");
    check_cuda(cuMemFree(in), "cuMemFree");
}

static void case_hold(size_t most)
{
    hold_while("hold", exchange, most);
}

static void case_collectives(size_t most)
{
    hold_while("AllGather", gather, most);
    hold_while("Alltoall", alltoall, most);
}

static void case_small(size_t n)
{
    enum { VIEWS = 64 };
    CUstream s = new_stream();
    CUdeviceptr out[VIEWS], in[VIEWS];
    for (int i = 0; i < VIEWS; i++) {
        out[i] = new_memory(n + (size_t)i);
        in[i] = new_memory(n + (size_t)i);
        pattern_fill(out[i], n + (size_t)i, mine((unsigned)i));
    }
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    for (int i = 0; i < VIEWS; i++) {
        send_on(s, out[i], n + (size_t)i);
        recv_on(s, in[i], n + (size_t)i);
    }
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    sync_on(s);
    for (int i = 0; i < VIEWS; i++)
        verify(in[i], n + (size_t)i, (unsigned)i);
    if (job.rank == 0)
        printf("small: %d allocations of about %zu bytes, each message in its own: right\n", VIEWS, n);
}

static void case_order(size_t n)
{
    CUstream s = new_stream();
    CUdeviceptr out = new_memory(n), in = new_memory(n);
    void *host;
    check_cuda(cuMemHostAlloc(&host, n, 0), "cuMemHostAlloc");
    for (unsigned r = 0; r < 20; r++) {
        pattern_fill(out, n, mine(r));
        exchange(s, out, in, n);
        check_cuda(cuMemcpyDtoHAsync(host, in, n, s), "read behind the receive");
        check_cuda(cuMemsetD8Async(out, 0xff, n, s), "overwrite behind the send");
        check_cuda(cuMemsetD8Async(in, 0xee, n, s), "overwrite behind the read");
        sync_on(s);
        check_cuda(cuMemcpyHtoD(in, host, n), "put back");
        verify(in, n, r);
    }
    if (job.rank == 0)
        printf("order: 20 rounds of %zu bytes, buffers overwritten and read right behind: right\n", n);
}

/* What another thread does meanwhile. */
struct aside {
    CUcontext context;
    CUdeviceptr memory;
    void *host;
    size_t bytes;
    CUstream stream;
};

static void *free_it(void *p)
{
    struct aside *a = p;
    check_cuda(cuCtxSetCurrent(a->context), "context");
    cuMemFree(a->memory);
    return NULL;
}

static void *copy_it(void *p)
{
    struct aside *a = p;
    check_cuda(cuCtxSetCurrent(a->context), "context");
    check_cuda(cuMemcpyDtoHAsync(a->host, a->memory, a->bytes, a->stream), "copy to pageable memory");
    return NULL;
}

static void *launch_it(void *p)
{
    struct aside *a = p;
    check_cuda(cuCtxSetCurrent(a->context), "context");
    check_cuda(cuLaunchKernel(kernel("nop"), 1, 1, 1, 1, 1, 1, 0, a->stream, NULL, NULL), "first launch");
    return NULL;
}

/* A receive is parked, another thread of each rank makes a call behind it, and only then come the sends. */
static void harmless(size_t n, void *(*call)(void *))
{
    CUstream s = new_stream();
    struct aside a = {.memory = new_memory(n), .host = malloc(n), .bytes = n, .stream = new_stream()};
    CUdeviceptr out = new_memory(n);
    size_t at;
    int right;
    pthread_t t;
    check_cuda(cuCtxGetCurrent(&a.context), "context");
    pattern_fill(out, n, mine(0));
    meet(s, a.memory);
    recv_on(a.stream, a.memory, n);
    if (!a.host || pthread_create(&t, NULL, call, &a))
        fail("no memory or thread");
    usleep(100000);
    send_on(s, out, n);
    pthread_join(t, NULL);
    sync_on(a.stream);
    sync_on(s);
    if (call == copy_it && pattern_check(a.host, n, (struct message){before(), job.rank, 0}, &at, &right))
        fail("%s: the byte at %zu is wrong", the_case, at);
    verify(a.memory, n, 0);
    if (job.rank == 0)
        printf("%s: behind a receive of %zu bytes: right\n", the_case, n);
    free(a.host);
}

/* What a program on the default stream does: it reads what it has received into memory of malloc, at once. */
static void case_read(size_t n)
{
    CUstream s = new_stream();
    CUdeviceptr out = new_memory(n), in = new_memory(n);
    CUevent received;
    unsigned char *host = malloc(n);
    size_t at;
    int right;
    if (!host)
        fail("no memory");
    check_cuda(cuEventCreate(&received, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    meet(s, in);
    for (unsigned i = 0; i < ROUNDS; i++) {
        pattern_fill(out, n, mine(i));
        exchange(s, out, in, n);
        check_cuda(cuEventRecord(received, s), "cuEventRecord");
        check_cuda(cuStreamWaitEvent(NULL, received, 0), "cuStreamWaitEvent");
        check_cuda(cuMemcpyDtoHAsync(host, in, n, NULL), "read");
        sync_on(s);
        if (pattern_check(host, n, (struct message){before(), job.rank, i}, &at, &right))
            fail("read: the byte at %zu of message %u is wrong", at, i);
    }
    if (job.rank == 0)
        printf("read: %d messages of %zu bytes, each read at once on the default stream: right\n", ROUNDS, n);
    free(host);
}

static void case_pageable(size_t n)
{
    harmless(n, copy_it);
}

static void case_first(size_t n)
{
    harmless(n, launch_it);
}

/* Rank 0's receive is parked and will never be matched; its other thread sits in a call behind it, holding the lock
 * that the copy of the send needs. Within HOCCL_TIMEOUT both ranks must be told, and every stream and that call go on. */
static void locked(size_t n, void *(*call)(void *), struct aside a)
{
    CUstream s = new_stream(), r = new_stream();
    CUdeviceptr out = new_memory(n), in = new_memory(n);
    CUevent received;
    HOCCL_Result e;
    pthread_t t;
    check_cuda(cuCtxGetCurrent(&a.context), "context");
    check_cuda(cuEventCreate(&received, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    meet(s, in);
    recv_on(r, in, n);
    double begun = now();
    if (job.rank == 0) {
        usleep(100000);
        check_cuda(cuEventRecord(received, r), "cuEventRecord");
        check_cuda(cuStreamWaitEvent(a.stream, received, 0), "cuStreamWaitEvent");
        pthread_create(&t, NULL, call, &a);
        usleep(300000);
        send_on(s, out, n);
        check_cuda(cuStreamSynchronize(s), "send");
    }
    check_cuda(cuStreamSynchronize(r), "receive");
    if (job.rank == 0)
        pthread_join(t, NULL);
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &e), "HOCCL_CommGetAsyncError");
    printf("%s: rank %d: after %.1f s: %s: %s\n", the_case, job.rank, now() - begun, HOCCL_GetErrorString(e),
           e ? HOCCL_GetLastError() : "");
    begun = now();
    HOCCL_Result x = HOCCL_CommAbort(HOCCL_COMM_WORLD);
    printf("%s: rank %d: abort took %.3f s: %s\n", the_case, job.rank, now() - begun, x ? HOCCL_GetLastError() : "success");
}

static void case_free(size_t n)
{
    locked(n, free_it, (struct aside){.memory = new_memory(1 << 20)});
}

static void case_default(size_t n)
{
    static char host[64];
    locked(n, copy_it, (struct aside){.memory = new_memory(1 << 20), .host = host, .bytes = sizeof host});
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(size_t);
        size_t bytes;
        bool pair; /* of two ranks only */
    } cases[] = {{"streams", case_streams, 1 << 20, false}, {"hold", case_hold, 16 << 20, false}, {"small", case_small, 1000, false},
                 {"order", case_order, 4 << 20, false},     {"free", case_free, 1 << 20, true},
                 {"pageable", case_pageable, 1 << 20, false}, {"first", case_first, 1 << 20, false},
                 {"default", case_default, 1 << 20, true},    {"read", case_read, 1 << 20, false},
                 {"oneway", case_oneway, 1 << 30, true},    {"collectives", case_collectives, 16 << 20, false}};
    the_case = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(the_case, cases[i].name))
            continue;
        signal(SIGALRM, on_alarm);
        alarm(60);
        job_open(&job);
        if (job.size < 2 || (cases[i].pair && job.size != 2))
            fail("%s ranks are needed", cases[i].pair ? "two" : "two or more");
        check_cuda(cuModuleLoadData(&module, kernels_ptx), "cuModuleLoadData");
        hold_seconds = argc > 3 ? atoi(argv[3]) : hold_seconds;
        cases[i].run(argc > 2 ? size_parse(argv[2]) : cases[i].bytes);
        job_close();
        return 0;
    }
    fprintf(stderr, "usage: mpirun -np N coexist streams|hold|collectives|small|order|free|default|pageable|read|first|oneway [BYTES [SECONDS]]\n");
    return 2;
}
