/* SPDX-License-Identifier: Apache-2.0 */
/* What one turn of a stream costs, taken apart: the stream writes a start signal and waits for an end flag, over and over,
 * all enqueued ahead; a CPU thread answers. Prints, in µs a turn, the whole turn and how long the next start signal takes
 * from the release of the turn before. usage: turnaround [TURNS]
 *
 *   bare       the CPU releases at once, or after a delay
 *   copy       it pushes 2 MiB to the other GPU first, waits for the flag behind them, releases
 *   engine     the engine's stream writes the end flag itself, behind the copy
 *   device     the same, the end flag in this GPU's memory
 *   nudged     behind its release the CPU lets another stream write a word: one with nothing else to do, or one that has copied */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BYTES ((size_t)2 << 20)

static int turns = 200;
static CUstream user, engine, nudge, copier;
static volatile uint32_t *words; /* 0 start, 64 end, 128 done; each on a line of its own */
static CUdeviceptr device_words, own, peer, end_in_memory;

static void check(CUresult r, const char *what)
{
    const char *s = "?";
    if (!r)
        return;
    cuGetErrorName(r, &s);
    fprintf(stderr, "%s: %s\n", what, s);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

enum how { BARE, COPY, ENGINE, DEVICE };

struct kind {
    const char *name;
    enum how how;
    double delay;         /* µs before the release */
    size_t bytes;
    int parts;            /* 1: write and wait in one call */
    int streams;          /* idle streams that have been used once */
    char gate;            /* a small copy in front of the wait: h, d (H2D, D2H); 0: none */
    char nudge;           /* w: by a stream that only writes, c: by one that has copied; 0: none */
};

/* As HOCCL's gates: two rows from host memory, or a few bytes to it. */
static void gate(char kind)
{
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = (const void *)&words[768], .srcPitch = 32,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = end_in_memory + 1024, .dstPitch = 32,
                          .WidthInBytes = 32, .Height = 2};
    if (kind == 'h')
        check(cuMemcpy2DAsync(&rows, user), "gate");
    else
        check(cuMemcpyDtoHAsync((void *)&words[768], end_in_memory + 1024, 4, user), "gate");
}

static void enqueue(const struct kind *k, uint32_t first)
{
    CUdeviceptr end = k->how == DEVICE ? end_in_memory : device_words + 256;
    for (int i = 0; i < turns; i++) {
        CUstreamBatchMemOpParams p[2];
        memset(p, 0, sizeof p);
        p[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        p[0].writeValue.address = device_words;
        p[0].writeValue.value = first + (uint32_t)i;
        p[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        p[1].waitValue.address = end;
        p[1].waitValue.value = first + (uint32_t)i;
        p[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
        if (k->gate) {
            check(cuStreamBatchMemOp(user, 1, p, 0), "batch");
            gate(k->gate);
            check(cuStreamBatchMemOp(user, 1, p + 1, 0), "batch");
        } else if (k->parts == 1) {
            check(cuStreamBatchMemOp(user, 2, p, 0), "batch");
        } else {
            check(cuStreamBatchMemOp(user, 1, p, 0), "batch");
            check(cuStreamBatchMemOp(user, 1, p + 1, 0), "batch");
        }
    }
}

static void answer(const struct kind *k, uint32_t first)
{
    double begun = 0, turn = 0, released = 0, submit = 0, landed = 0, gap = 0;
    for (int i = 0; i < turns; i++) {
        uint32_t n = first + (uint32_t)i;
        while ((int32_t)(words[0] - n) < 0)
            ;
        double seen = now();
        if (i == 20)
            begun = seen;
        if (i > 20)
            gap += seen - released;
        if (k->how != BARE) {
            CUdeviceptr flag = k->how == COPY ? device_words + 512 : k->how == ENGINE ? device_words + 256 : end_in_memory;
            check(cuMemcpyDtoDAsync(peer, own, k->bytes, engine), "copy");
            check(cuStreamWriteValue32(engine, flag, n, 0), "flag");
            double given = now();
            submit += given - seen;
            if (k->how == COPY) {
                while ((int32_t)(words[128] - n) < 0)
                    ;
                landed += now() - given;
                words[64] = n;
            }
        } else {
            while (k->delay > 0 && now() < seen + k->delay)
                ;
            words[64] = n;
        }
        released = now();
        turn = released;
        if (k->nudge)
            check(cuStreamWriteValue32(k->nudge == 'w' ? nudge : copier, device_words + 3072, n, 0), "nudge");
    }
    check(cuStreamSynchronize(user), "sync");
    int m = turns - 21;
    printf("%-34s turn %6.2f  next start %6.2f after", k->name, (turn - begun) / m, gap / m);
    if (k->how != BARE)
        printf("  submit %5.2f  landed %5.2f", submit / turns, landed / turns);
    printf("\n");
    fflush(stdout);
}

static void run(const struct kind *k)
{
    static uint32_t next = 1;
    check(cuStreamCreate(&user, CU_STREAM_NON_BLOCKING), "stream"); /* a stream stays in the class of channel of its last copy */
    for (int i = 0; i < k->streams; i++) {
        CUstream s;
        check(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
        check(cuStreamWriteValue32(s, device_words + 2048, 1, 0), "use");
    }
    if (k->nudge == 'c')
        check(cuMemcpyDtoHAsync((void *)&words[832], end_in_memory + 1024, 4, copier), "copy");
    for (int i = 0; i < 2; i++) {
        enqueue(k, next);
        answer(k, next);
        next += (uint32_t)turns;
    }
}

static void open_peer(void)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemAccessDesc a = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    int n;
    check(cuDeviceGetCount(&n), "count");
    p.location.id = n > 1;
    check(cuMemCreate(&h, BYTES, &p, 0), "create");
    check(cuMemAddressReserve(&peer, BYTES, 0, 0, 0), "reserve");
    check(cuMemMap(peer, BYTES, 0, h, 0), "map");
    check(cuMemSetAccess(peer, BYTES, &a, 1), "access");
}

int main(int argc, char **argv)
{
    const struct kind kinds[] = {
        {"bare", BARE, 0, 0, 1, 0, 0, 0},
        {"bare, two calls", BARE, 0, 0, 2, 0, 0, 0},
        {"bare, released after 2", BARE, 2, 0, 1, 0, 0, 0},
        {"bare, released after 5", BARE, 5, 0, 1, 0, 0, 0},
        {"bare, released after 10", BARE, 10, 0, 1, 0, 0, 0},
        {"bare, released after 20", BARE, 20, 0, 1, 0, 0, 0},
        {"bare, released after 40", BARE, 40, 0, 1, 0, 0, 0},
        {"copy 8 B", COPY, 0, 8, 1, 0, 0, 0},
        {"copy 2 MiB", COPY, 0, BYTES, 1, 0, 0, 0},
        {"engine 8 B", ENGINE, 0, 8, 1, 0, 0, 0},
        {"engine 2 MiB", ENGINE, 0, BYTES, 1, 0, 0, 0},
        {"device 8 B", DEVICE, 0, 8, 1, 0, 0, 0},
        {"device 2 MiB", DEVICE, 0, BYTES, 1, 0, 0, 0},
        {"bare, H2D gate", BARE, 0, 0, 1, 0, 'h', 0},
        {"bare, H2D gate, after 5", BARE, 5, 0, 1, 0, 'h', 0},
        {"bare, H2D gate, after 10", BARE, 10, 0, 1, 0, 'h', 0},
        {"bare, H2D gate, after 20", BARE, 20, 0, 1, 0, 'h', 0},
        {"bare, D2H gate, after 10", BARE, 10, 0, 1, 0, 'd', 0},
        {"copy 8 B, H2D gate", COPY, 0, 8, 1, 0, 'h', 0},
        {"copy 2 MiB, H2D gate", COPY, 0, BYTES, 1, 0, 'h', 0},
        {"copy 2 MiB, D2H gate", COPY, 0, BYTES, 1, 0, 'd', 0},
        {"bare, 30 idle streams", BARE, 0, 0, 1, 30, 0, 0},
        {"bare, after 10, 30 idle streams", BARE, 10, 0, 1, 0, 0, 0},
        {"copy 2 MiB, 30 idle streams", COPY, 0, BYTES, 1, 0, 0, 0},
        {"bare, after 5, nudged", BARE, 5, 0, 1, 0, 0, 'w'},
        {"bare, after 14, nudged", BARE, 14, 0, 1, 0, 0, 'w'},
        {"bare, after 40, nudged", BARE, 40, 0, 1, 0, 0, 'w'},
        {"bare, after 14, by one that copied", BARE, 14, 0, 1, 0, 0, 'c'},
        {"bare, H2D gate, after 14", BARE, 14, 0, 1, 0, 'h', 0},
        {"bare, H2D gate, after 14, nudged", BARE, 14, 0, 1, 0, 'h', 'w'},
        {"copy 8 B, nudged", COPY, 0, 8, 1, 0, 0, 'w'},
        {"copy 2 MiB, nudged", COPY, 0, BYTES, 1, 0, 0, 'w'},
    };
    CUcontext c;
    void *host;
    turns = argc > 1 ? atoi(argv[1]) : turns;
    alarm(60);
    check(cuInit(0), "init");
    check(cuDevicePrimaryCtxRetain(&c, 0), "context");
    check(cuCtxSetCurrent(c), "context");
    check(cuStreamCreate(&engine, CU_STREAM_NON_BLOCKING), "stream");
    check(cuStreamCreate(&nudge, CU_STREAM_NON_BLOCKING), "stream");
    check(cuStreamCreate(&copier, CU_STREAM_NON_BLOCKING), "stream");
    check(cuMemAlloc(&own, BYTES), "memory");
    check(cuMemAlloc(&end_in_memory, 4096), "memory");
    check(cuMemsetD32(end_in_memory, 0, 1024), "memory");
    open_peer();
    check(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP), "host");
    memset(host, 0, 4096);
    words = host;
    check(cuMemHostGetDevicePointer(&device_words, host, 0), "host");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        words[0] = words[64] = words[128] = 0;
        run(&kinds[i]);
    }
    return 0;
}
