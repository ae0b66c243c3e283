/* SPDX-License-Identifier: Apache-2.0 */
/* Which copies of one process run side by side: pushes to another GPU, pulls from it, D2H, H2D, each on a stream of its own,
 * in several forms of call. The process has a context on GPU 0 only, unless the argument is "both".
 * usage: engines [both] */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BYTES ((size_t)256 << 20)
#define TIMES 8

static CUdeviceptr own[4], peer[2];
static void *host[2];
static CUcontext context;
static pthread_barrier_t meeting;

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
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct job {
    char kind;    /* p push, l pull, d D2H, h H2D, - nothing */
    char form;    /* a cuMemcpyDtoDAsync, b cuMemcpyBatchAsync with hints, 2 cuMemcpy2DAsync, u cuMemcpyAsync */
    size_t piece;
    int flags;
    CUstream stream;
    double rate;
};

static void copy(const struct job *j, CUdeviceptr to, CUdeviceptr from, size_t n, int to_gpu, int from_gpu)
{
    CUmemcpyAttributes a = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                            .srcLocHint = {CU_MEM_LOCATION_TYPE_DEVICE, from_gpu},
                            .dstLocHint = {CU_MEM_LOCATION_TYPE_DEVICE, to_gpu},
                            .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE};
    CUDA_MEMCPY2D m = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from, .srcPitch = n / 2,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstPitch = n / 2,
                       .WidthInBytes = n / 2, .Height = 2};
    size_t first = 0;
    switch (j->form) {
    case 'b':
        check(cuMemcpyBatchAsync(&to, &from, &n, 1, &a, &first, 1, j->stream), "batch");
        return;
    case '2':
        check(cuMemcpy2DAsync(&m, j->stream), "2d");
        return;
    case 'u':
        check(cuMemcpyAsync(to, from, n, j->stream), "copy");
        return;
    default:
        check(cuMemcpyDtoDAsync(to, from, n, j->stream), "copy");
    }
}

static void one(const struct job *j, size_t at)
{
    switch (j->kind) {
    case 'p':
        copy(j, peer[0] + at, own[0] + at, j->piece, 1, 0);
        break;
    case 'l':
        copy(j, own[1] + at, peer[1] + at, j->piece, 0, 1);
        break;
    case 'd':
        check(cuMemcpyDtoHAsync((char *)host[0] + at, own[2] + at, j->piece, j->stream), "d2h");
        break;
    case 'h':
        check(cuMemcpyHtoDAsync(own[3] + at, (char *)host[1] + at, j->piece, j->stream), "h2d");
        break;
    }
}

static void *work(void *arg)
{
    struct job *j = arg;
    check(cuCtxSetCurrent(context), "context");
    one(j, 0);
    check(cuStreamSynchronize(j->stream), "sync");
    pthread_barrier_wait(&meeting);
    double t = now();
    for (int i = 0; i < TIMES; i++)
        for (size_t at = 0; at < BYTES; at += j->piece)
            one(j, at);
    check(cuStreamSynchronize(j->stream), "sync");
    j->rate = 1e-9 * (double)BYTES * TIMES / (now() - t);
    return NULL;
}

static void together(const char *kinds, char form, size_t piece)
{
    struct job job[4];
    pthread_t thread[4];
    int n = (int)strlen(kinds);
    pthread_barrier_init(&meeting, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        job[i] = (struct job){.kind = kinds[i], .form = form, .piece = piece};
        check(cuStreamCreate(&job[i].stream, CU_STREAM_NON_BLOCKING), "stream");
        pthread_create(&thread[i], NULL, work, &job[i]);
    }
    printf("%-5s form %c, pieces of %3zu MiB:", kinds, form, piece >> 20);
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        cuStreamDestroy(job[i].stream);
        printf("  %c %6.1f", kinds[i], job[i].rate);
    }
    printf(" GB/s\n");
    fflush(stdout);
}

static void open_peer(CUdeviceptr *at, int two)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemAccessDesc a[2] = {{.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                            {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUmemGenericAllocationHandle h;
    check(cuMemCreate(&h, BYTES, &p, 0), "create");
    check(cuMemAddressReserve(at, BYTES, 0, 0, 0), "reserve");
    check(cuMemMap(*at, BYTES, 0, h, 0), "map");
    check(cuMemSetAccess(*at, BYTES, a, two ? 2 : 1), "access");
}

int main(int argc, char **argv)
{
    static const char forms[] = "ab2u";
    int both = argc > 1 && !strcmp(argv[1], "both");
    alarm(60);
    check(cuInit(0), "init");
    if (both) {
        CUcontext other;
        check(cuDevicePrimaryCtxRetain(&other, 1), "context");
        check(cuCtxSetCurrent(other), "context");
    }
    check(cuDevicePrimaryCtxRetain(&context, 0), "context");
    check(cuCtxSetCurrent(context), "context");
    for (int i = 0; i < 4; i++)
        check(cuMemAlloc(&own[i], BYTES), "memory");
    for (int i = 0; i < 2; i++) {
        open_peer(&peer[i], both);
        check(cuMemHostAlloc(&host[i], BYTES, 0), "host");
    }
    printf("contexts: %s\n", both ? "both GPUs" : "GPU 0");
    for (const char *f = forms; *f; f++) {
        together("p", *f, BYTES / 2);
        together("l", *f, BYTES / 2);
        together("pl", *f, BYTES / 2);
        together("lp", *f, BYTES / 2);
    }
    together("pl", 'a', (size_t)4 << 20);
    together("pl", 'a', (size_t)16 << 20);
    together("pd", 'a', BYTES / 2);
    together("pdh", 'a', BYTES / 2);
    together("dh", 'a', BYTES / 2);
    together("pp", 'a', BYTES / 2);
    together("ld", 'a', BYTES / 2);
    together("lh", 'a', BYTES / 2);
    together("ldh", 'a', BYTES / 2);
    together("pldh", 'a', (size_t)16 << 20);
    return 0;
}
