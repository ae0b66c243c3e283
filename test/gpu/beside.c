/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU's messages to other nodes cost the host's memory, without the messages: copies of 1 MiB out of the GPU and into it at a
 * given rate, through 60 MiB of pinned memory each way. For bare sockets to run beside.
 *
 * usage: beside GPU GB_A_SECOND SECONDS */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define COPY ((size_t)1 << 20)
#define SLOTS 60
#define AHEAD 8 /* copies of each way that are waited for together */

static void check(CUresult r, const char *what)
{
    const char *name = "?";
    if (!r)
        return;
    cuGetErrorName(r, &name);
    fprintf(stderr, "beside: %s: %s\n", what, name);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    double rate = argc == 4 ? atof(argv[2]) * 1e9 : 0, seconds = argc == 4 ? atof(argv[3]) : 0, begun, bytes = 0;
    CUdevice device;
    CUcontext context;
    CUstream out, in;
    CUdeviceptr gpu;
    char *host;
    if (rate <= 0 || seconds <= 0) {
        fprintf(stderr, "usage: beside GPU GB_A_SECOND SECONDS\n");
        return 2;
    }
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, atoi(argv[1])), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuMemAlloc(&gpu, 2 * SLOTS * COPY), "cuMemAlloc");
    check(cuMemAllocHost((void **)&host, 2 * SLOTS * COPY), "cuMemAllocHost");
    check(cuStreamCreate(&out, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuStreamCreate(&in, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    begun = now();
    for (size_t i = 0; now() < begun + seconds; i++) {
        size_t at = i % SLOTS * COPY, other = at + SLOTS * COPY;
        check(cuMemcpyDtoHAsync(host + at, gpu + at, COPY, out), "cuMemcpyDtoHAsync");
        check(cuMemcpyHtoDAsync(gpu + other, host + other, COPY, in), "cuMemcpyHtoDAsync");
        bytes += (double)COPY;
        if (i % AHEAD != AHEAD - 1)
            continue;
        check(cuStreamSynchronize(out), "cuStreamSynchronize");
        check(cuStreamSynchronize(in), "cuStreamSynchronize");
        while (bytes > rate * (now() - begun) && now() < begun + seconds)
            ;
    }
    printf("beside: GPU %s: %.1f GB/s out and in\n", argv[1], bytes / (now() - begun) / 1e9);
    return 0;
}
