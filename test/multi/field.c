/* SPDX-License-Identifier: Apache-2.0 */
/* Cases that users of comparable systems have met, one process a rank. test/CASES.md says what each is; `long` multiplies the
 * work where that is affordable only now and then.
 *
 * usage: mpirun -np N field CASE [long] */
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

static void send(CUdeviceptr p, size_t n, int peer)
{
    check_hoccl(kit_send(p, n, peer, stream), "HOCCL_Send");
}

static void receive(CUdeviceptr p, size_t n, int peer)
{
    check_hoccl(kit_recv(p, n, peer, stream), "HOCCL_Recv");
}

static unsigned random_below(unsigned n)
{
    static uint64_t x = 88172645463325252u;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (unsigned)(x >> 11) % n;
}

/* ---- B01, B02, B04: who gets which message ------------------------------------------------------------------------- */

/* Two ranks that send first and receive then, on one stream, without a group: they wait, calls return, an abort ends it. */
static void b01(void)
{
    CUdeviceptr p = kit_memory(1 << 20);
    int peer = 1 - job.rank;
    double begun = now();
    send(p, 1 << 20, peer);
    receive(p, 1 << 20, peer);
    if (now() - begun > 2)
        fail("the calls took %.1f s", now() - begun);
    usleep(300000);
    if (cuStreamQuery(stream) != CUDA_ERROR_NOT_READY)
        fail("two sends that face one another have ended");
    kit_meet("looked"); /* nobody aborts before */
    check_hoccl(HOCCL_CommAbort(WORLD), "HOCCL_CommAbort");
    check_cuda(cuStreamSynchronize(stream), "the stream after the abort");
}

static void b02(void)
{
    static const size_t sizes[] = {1024, 3, 0, 5 << 20};
    CUdeviceptr out[4], in[4], side_out = kit_memory(70000), side_in = kit_guarded(70000);
    int to = (job.rank + 1) % job.size, from = (job.rank + job.size - 1) % job.size;
    for (unsigned i = 0; i < 4; i++) {
        out[i] = kit_memory(sizes[i]);
        in[i] = kit_guarded(sizes[i]);
        pattern_fill(out[i], sizes[i], (struct message){job.rank, to, i});
    }
    pattern_fill(side_out, 70000, (struct message){job.rank, from, 9});
    start();
    for (unsigned i = 0; i < 4; i++) {
        send(out[i], sizes[i], to);
        if (i == 1)
            send(side_out, 70000, from);
        if (i == 2)
            receive(side_in, 70000, to);
        receive(in[i], sizes[i], from);
    }
    end();
    kit_sync(stream, "b02");
    for (unsigned i = 0; i < 4; i++) {
        kit_verify(in[i], sizes[i], (struct message){from, job.rank, i}, "b02");
        kit_guards(in[i], sizes[i], "b02");
    }
    kit_verify(side_in, 70000, (struct message){to, job.rank, 9}, "b02, the other way");
}

static void b04(void)
{
    enum { RANKS = 8 };
    CUdeviceptr out[RANKS][2], in[RANKS][2];
    if (job.size > RANKS)
        fail("at most %d ranks", RANKS);
    for (int p = 0; p < job.size; p++)
        for (unsigned k = 0; k < 2; k++) {
            size_t sending = 1000 + 100003 * k + 17 * (size_t)p, receiving = 1000 + 100003 * k + 17 * (size_t)job.rank;
            out[p][k] = kit_memory(sending);
            in[p][k] = kit_guarded(receiving);
            pattern_fill(out[p][k], sending, (struct message){job.rank, p, k});
        }
    start();
    for (unsigned k = 0; k < 2; k++)
        for (int p = 0; p < job.size; p++)
            send(out[p][k], 1000 + 100003 * k + 17 * (size_t)p, p);
    for (unsigned k = 0; k < 2; k++)
        for (int p = 0; p < job.size; p++)
            receive(in[p][k], 1000 + 100003 * k + 17 * (size_t)job.rank, p);
    end();
    kit_sync(stream, "b04");
    for (int p = 0; p < job.size; p++)
        for (unsigned k = 0; k < 2; k++) {
            size_t n = 1000 + 100003 * k + 17 * (size_t)job.rank;
            kit_verify(in[p][k], n, (struct message){p, job.rank, k}, "b04");
            kit_guards(in[p][k], n, "b04");
        }
}

/* ---- B05: to itself ------------------------------------------------------------------------------------------------ */

static void b05(void)
{
    static const size_t sizes[] = {0, 1, 70001, 33 << 20};
    for (unsigned i = 0; i < 4; i++) {
        CUdeviceptr out = kit_memory(sizes[i]), in = kit_guarded(sizes[i]);
        pattern_fill(out, sizes[i], (struct message){job.rank, job.rank, i});
        for (int same = 0; same < 2; same++) {
            start();
            send(out, sizes[i], job.rank);
            receive(same ? out : in, sizes[i], job.rank);
            end();
            kit_sync(stream, "b05");
            kit_verify(same ? out : in, sizes[i], (struct message){job.rank, job.rank, i}, "b05");
            kit_guards(in, sizes[i], "b05");
        }
    }
    send(kit_memory(8), 8, job.rank); /* nobody receives: it waits, and an abort ends it */
    usleep(100000);
    if (cuStreamQuery(stream) != CUDA_ERROR_NOT_READY)
        fail("a send to itself that nobody receives has ended");
    check_hoccl(HOCCL_CommAbort(WORLD), "HOCCL_CommAbort");
    check_cuda(cuStreamSynchronize(stream), "the stream after the abort");
}

/* ---- B16: more than 31 and 32 bits --------------------------------------------------------------------------------- */

static void check_at(CUdeviceptr p, size_t at, unsigned char want)
{
    unsigned char seen;
    check_cuda(cuMemcpyDtoH(&seen, p + at, 1), "cuMemcpyDtoH");
    if (seen != want)
        fail("byte %zu is 0x%02x, not 0x%02x", at, seen, want);
}

static void b16(void)
{
    size_t n = longer ? ((size_t)1 << 32) + 5 : ((size_t)1 << 31) + 7;
    const size_t marks[] = {0, 1, ((size_t)1 << 31) - 1, (size_t)1 << 31, ((size_t)1 << 31) + 1, ((size_t)1 << 32) - 1,
                            (size_t)1 << 32, ((size_t)1 << 32) + 1, n - 1};
    CUdeviceptr p = kit_guarded(n);
    for (unsigned i = 0; i < sizeof marks / sizeof *marks; i++)
        if (marks[i] < n) {
            unsigned char c = (unsigned char)(job.rank ? 0 : 0x30 + i);
            copy_in(p + marks[i], &c, 1);
        }
    if (job.rank == 0)
        send(p, n, 1);
    else
        receive(p, n, 0);
    kit_sync(stream, "b16");
    kit_guards(p, n, "b16");
    for (unsigned i = 0; i < sizeof marks / sizeof *marks; i++)
        if (marks[i] < n - 1)
            check_at(p, marks[i], (unsigned char)(0x30 + i));
    check_at(p, n - 1, 0x30 + sizeof marks / sizeof *marks - 1);
}

/* ---- B19: every bit pattern, as every type ------------------------------------------------------------------------- */

static void b19(void)
{
    static uint16_t words[65536], seen[65536];
    CUdeviceptr out = kit_memory(sizeof words), in = kit_guarded(sizeof words);
    int to = (job.rank + 1) % job.size, from = (job.rank + job.size - 1) % job.size;
    static const unsigned size[] = {1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 2, 2, 4, 8, 8, 16, 1};
    /* all 16-bit patterns, and with them all bytes; as 32 and 64 bits: NaNs with payloads, denormals, -0 */
    for (unsigned i = 0; i < 65536; i++)
        words[i] = (uint16_t)(i * 40503u);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t f = 0x7f800001u + i * 0x10101u, z = 0x80000000u;
        memcpy(&words[2 * i], &f, 4);
        memcpy(&words[256 + 2 * i], &z, 4);
    }
    copy_in(out, words, sizeof words);
    for (int type = 0; type <= HOCCL_BYTE; type++) {
        check_cuda(cuMemsetD8(in, 0, sizeof words), "cuMemsetD8");
        check_cuda(cuStreamSynchronize(NULL), "cuMemsetD8");
        start();
        check_hoccl(HOCCL_Send(kit_pointer(out), sizeof words / size[type], (HOCCL_Datatype)type, to, WORLD, stream), "send");
        check_hoccl(HOCCL_Recv(kit_pointer(in), sizeof words / size[type], (HOCCL_Datatype)type, from, WORLD, stream), "receive");
        end();
        kit_sync(stream, "b19");
        check_cuda(cuMemcpyDtoH(seen, in, sizeof seen), "cuMemcpyDtoH");
        if (memcmp(seen, words, sizeof words))
            fail("b19: type %d: the bits have changed", type);
        kit_guards(in, sizeof words, "b19");
    }
}

/* ---- B21, B25, B26, B29: memory and its handles -------------------------------------------------------------------- */

static void b21(void)
{
    static const size_t views[] = {0, 1, 256, 4097, 1 << 20, 63 << 20};
    enum { N = 200000 };
    CUdeviceptr out = kit_memory(64 << 20), in = kit_memory(64 << 20);
    int to = (job.rank + 1) % job.size, from = (job.rank + job.size - 1) % job.size;
    for (unsigned i = 0; i < 6; i++)
        for (unsigned j = 0; j < 6; j++) {
            struct message m = {job.rank, to, 10 * i + j};
            pattern_fill(out + views[i], N, m);
            start();
            send(out + views[i], N, to);
            receive(in + views[j], N, from);
            end();
            kit_sync(stream, "b21");
            kit_verify(in + views[j], N, (struct message){from, job.rank, m.number}, "b21");
        }
}

/* Memory that comes and goes, at addresses that come again (HOCCL_EMU_REUSE=1), in other sizes too. */
static void b25(void)
{
    int to = (job.rank + 1) % job.size, from = (job.rank + job.size - 1) % job.size;
    CUdeviceptr last = 0;
    unsigned again = 0;
    for (unsigned round = 0; round < 300; round++) {
        size_t n = (size_t)(1 + random_below(3)) << 20; /* the same on all ranks */
        if (round % 20 == 19)
            n = 5 << 20;
        CUdeviceptr out = kit_memory(n), in = kit_memory(n);
        again += out == last || in == last;
        last = in;
        check_cuda(cuMemsetD8(out, (unsigned char)(round + (unsigned)job.rank), n), "cuMemsetD8");
        check_cuda(cuMemsetD8(in, 0xee, n), "cuMemsetD8");
        check_cuda(cuStreamSynchronize(NULL), "cuMemsetD8");
        start();
        send(out, n, to);
        receive(in, n, from);
        end();
        kit_sync(stream, "b25");
        for (size_t at = 0; at < n; at += n - 1)
            check_at(in, at, (unsigned char)(round + (unsigned)from));
        check_at(in, n / 2 + 12345, (unsigned char)(round + (unsigned)from));
        kit_exchange("b25"); /* nobody frees what a peer still reads: it does not, but this is how users do it */
        check_cuda(cuMemFree(out), "cuMemFree");
        check_cuda(cuMemFree(in), "cuMemFree");
    }
    if (!job.rank)
        printf("field: b25: %u of 300 rounds at an address used before\n", again);
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

static void b26(void)
{
    size_t n = longer ? 64 << 20 : 1 << 20, before, later, total;
    int rounds = longer ? 500 : 200, early = 0, to = (job.rank + 1) % job.size, from = (job.rank + job.size - 1) % job.size;
    kit_exchange("b26");
    check_cuda(cuMemGetInfo(&before, &total), "cuMemGetInfo");
    for (int round = 0; round < rounds; round++) {
        CUdeviceptr out = kit_memory(n), in = kit_memory(n);
        start();
        send(out, n, to);
        receive(in, n, from);
        end();
        kit_sync(stream, "b26");
        kit_exchange("b26");
        check_cuda(cuMemFree(out), "cuMemFree");
        check_cuda(cuMemFree(in), "cuMemFree");
        check_cuda(cuMemGetInfo(&later, &total), "cuMemGetInfo");
        if (later + ((size_t)256 << 20) < before)
            fail("b26: %zu bytes of GPU memory are gone after %d rounds", before - later, round + 1);
        if (round == 100)
            early = mappings();
    }
    if (mappings() > early + (SANITIZED ? 200 : 20))
        fail("b26: %d mappings after 100 buffers, %d after %d: those of freed buffers stay", early, mappings(), rounds);
}

static void *allocate(void *arg)
{
    CUdeviceptr *p = arg;
    CUcontext context;
    check_cuda(cuDevicePrimaryCtxRetain(&context, 0), "context");
    check_cuda(cuCtxSetCurrent(context), "context");
    *p = kit_guarded(100000);
    return NULL;
}

static CUdeviceptr early[2];

/* Before HOCCL_Init: memory of this thread and of another. */
static void b29_before(void)
{
    pthread_t t;
    check_cuda(cuInit(0), "cuInit");
    allocate(&early[0]);
    pthread_create(&t, NULL, allocate, &early[1]);
    pthread_join(t, NULL);
}

static void b29(void)
{
    for (int i = 0; i < 2; i++) {
        pattern_fill(early[i], 100000, (struct message){job.rank, 0, (unsigned)i});
        start();
        send(early[i], 100000, job.rank);
        CUdeviceptr in = kit_guarded(100000);
        receive(in, 100000, job.rank);
        end();
        kit_sync(stream, "b29");
        kit_verify(in, 100000, (struct message){job.rank, 0, (unsigned)i}, "b29");
    }
    start();
    send(early[0], 100000, (job.rank + 1) % job.size);
    receive(early[1], 100000, (job.rank + job.size - 1) % job.size);
    end();
    kit_sync(stream, "b29");
    kit_verify(early[1], 100000, (struct message){(job.rank + job.size - 1) % job.size, 0, 0}, "b29");
    kit_guards(early[1], 100000, "b29");
}

/* ---- B31: staging slots again and again ---------------------------------------------------------------------------- */

static void b31(void)
{
    size_t n = longer ? 64 << 20 : 9 << 20;
    int rounds = longer ? 100 : 6, peer = (job.rank + 1) % job.size, from = (job.rank + job.size - 1) % job.size;
    void *host;
    check_cuda(cuMemHostAlloc(&host, n, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    CUdeviceptr in = kit_guarded(n), out = kit_memory(n);
    for (int round = 0; round < rounds; round++) {
        struct message m = {job.rank, peer, (unsigned)round};
        pattern_fill_host(host, n, m); /* pinned memory: no path but staging */
        pattern_fill(out, n, (struct message){job.rank, from, (unsigned)round + 1000});
        start();
        check_hoccl(HOCCL_Send(host, n, HOCCL_BYTE, peer, WORLD, stream), "HOCCL_Send");
        receive(in, n, from);
        end();
        kit_sync(stream, "b31");
        kit_verify(in, n, (struct message){from, job.rank, (unsigned)round}, "b31");
        kit_guards(in, n, "b31");
    }
}

/* ---- B32, B34: the order of a stream ------------------------------------------------------------------------------- */

/* The buffer is overwritten, or given back, right behind the send; the receiver comes late. */
static void b32(void)
{
    enum { N = 3 << 20 };
    CUdeviceptr p, in = kit_guarded(N), out = kit_memory(N);
    unsigned char *host = malloc(N);
    if (!host)
        fail("no memory");
    for (unsigned way = 0; way < 2; way++) {
        struct message m = {0, 1, way};
        if (job.rank == 0) {
            pattern_fill_host(host, N, m);
            if (way)
                check_cuda(cuMemAllocAsync(&p, N, stream), "cuMemAllocAsync");
            else
                p = out;
            check_cuda(cuMemcpyHtoDAsync(p, host, N, stream), "fill");
            send(p, N, 1);
            if (way)
                check_cuda(cuMemFreeAsync(p, stream), "cuMemFreeAsync");
            else
                check_cuda(cuMemsetD8Async(p, 0xff, N, stream), "memset");
        } else {
            usleep(longer ? 2000000 : 400000);
            receive(in, N, 0);
            check_cuda(cuMemcpyDtoHAsync(host, in, N, stream), "behind the receive");
        }
        kit_sync(stream, "b32");
        size_t at;
        int right;
        if (job.rank && pattern_check(host, N, m, &at, &right))
            fail("b32: what stands behind the receive does not see its data (byte %zu)", at);
        kit_exchange("b32");
    }
    free(host);
}

/* A synchronous copy, on the NULL stream, between send and receive. */
static void b34(void)
{
    CUdeviceptr p = kit_memory(1 << 20), q = kit_guarded(1 << 20), other = kit_memory(64);
    char word[64] = "";
    int peer = 1 - job.rank;
    for (unsigned round = 0; round < 20; round++) {
        pattern_fill(p, 1 << 20, (struct message){job.rank, peer, round});
        for (int half = 0; half < 2; half++) {
            if (half == job.rank)
                send(p, 1 << 20, peer);
            else
                receive(q, 1 << 20, peer);
            check_cuda(cuMemcpyHtoD(other, word, sizeof word), "a synchronous copy beside a parked stream");
        }
        kit_sync(stream, "b34");
        kit_verify(q, 1 << 20, (struct message){peer, job.rank, round}, "b34");
        kit_guards(q, 1 << 20, "b34");
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
        bool aborts; /* the world is gone afterwards */
        void (*before)(void);
    } cases[] = {{"b01", b01, true, NULL},  {"b02", b02, false, NULL}, {"b04", b04, false, NULL}, {"b05", b05, true, NULL},
                 {"b16", b16, false, NULL}, {"b19", b19, false, NULL}, {"b21", b21, false, NULL}, {"b25", b25, false, NULL},
                 {"b26", b26, false, NULL}, {"b29", b29, false, b29_before}, {"b31", b31, false, NULL},
                 {"b32", b32, false, NULL}, {"b34", b34, false, NULL}};
    const char *name = argc > 1 ? argv[1] : "";
    longer = (argc > 2 && !strcmp(argv[2], "long")) || getenv("LONG_TESTS");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(name, cases[i].name))
            continue;
        if (cases[i].before)
            cases[i].before();
        kit_open(longer ? 280 : 100, name);
        stream = kit_stream();
        cases[i].run();
        if (!cases[i].aborts)
            kit_exchange("at last");
        kit_close();
        if (!job.rank)
            printf("field: %s on %d ranks: right\n", name, job.size);
        return 0;
    }
    fprintf(stderr, "usage: mpirun -np N field CASE [long]\n");
    return 2;
}
