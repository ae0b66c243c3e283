/* SPDX-License-Identifier: Apache-2.0 */
/* What runs beside a stream that is parked behind a gate: kernels, and copies with the kinds of memory that HOCCL uses, the
 * other GPU's memory made without a context there, and memory of another process. One GPU context; two GPUs, or one, which has
 * no pushes and pulls.
 *
 * usage: gates GATE [K [BEHIND]]   GATE: none, push (to memory on GPU 1 without a context there), pushipc (to another process's
 *        memory), h2d, d2h, compute (a plain copy of 64 bytes from host memory), kernel; K streams are parked (1), each with
 *        something of the kind BEHIND queued behind its wait (none), as a start signal or the program's own work would be. Each
 *        kind is tried on a stream that has carried it before and on a fresh one, then all are released. */
#define _GNU_SOURCE
#include <cuda.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels.h"

#define BYTES ((size_t)4 << 20)
#define KINDS 7

static volatile uint32_t *flags;
static CUdeviceptr flags_dev, own, foreign, remote;
static void *host;
static CUfunction nop;

static void check(CUresult r, const char *what)
{
    const char *s = "?";
    if (!r)
        return;
    cuGetErrorName(r, &s);
    printf("%s: %s\n", what, s);
    fflush(stdout);
    _exit(1);
}

static void context(int device)
{
    CUcontext c;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&c, device), "context");
    check(cuCtxSetCurrent(c), "context");
}

static void exporter(int sock)
{
    CUipcMemHandle h;
    CUdeviceptr p;
    char c;
    context(1);
    check(cuMemAlloc(&p, BYTES), "alloc");
    check(cuIpcGetMemHandle(&h, p), "handle");
    if (write(sock, &h, sizeof h) < 0 || read(sock, &c, 1) < 0)
        _exit(1);
    _exit(0);
}

static void rows(CUdeviceptr to, size_t n, CUstream s)
{
    CUDA_MEMCPY2D m = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = n / 2, .dstPitch = n / 2,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .WidthInBytes = n / 2, .Height = 2};
    check(cuMemcpy2DAsync(&m, s), "2D");
}

static void copy(const char *k, size_t n, CUstream s)
{
    CUresult r = CUDA_SUCCESS;
    if (!strcmp(k, "push"))
        r = cuMemcpyDtoDAsync(remote, own, n, s);
    else if (!strcmp(k, "pushipc"))
        r = cuMemcpyDtoDAsync(foreign, own, n, s);
    else if (!strcmp(k, "pull"))
        r = cuMemcpyDtoDAsync(own, remote, n, s);
    else if (!strcmp(k, "pullipc"))
        r = cuMemcpyDtoDAsync(own, foreign, n, s);
    else if (!strcmp(k, "d2h"))
        r = cuMemcpyDtoHAsync(host, own, n, s);
    else if (!strcmp(k, "h2d"))
        rows(own, n, s);
    else if (!strcmp(k, "compute"))
        r = cuMemcpyHtoDAsync(own, host, 64, s);
    else if (!strcmp(k, "kernel"))
        r = cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL);
    check(r, k);
}

/* On a stream that has carried only copies of this kind; `warm`: it has done so before anything was parked. */
static void try(const char *k, size_t n, CUstream s, int slot)
{
    struct timespec t = {0, 1000000};
    copy(k, n, s);
    check(cuStreamWriteValue32(s, flags_dev + (CUdeviceptr)slot * 64, 7, 0), "flag");
    for (int i = 0; i < 250 && flags[slot * 16] != 7; i++)
        nanosleep(&t, NULL);
    printf(" %s %s;", k, flags[slot * 16] == 7 ? "runs" : "STOPPED");
}

/* Memory on the other GPU: of this process without a context there, and of another process. */
static pid_t open_other(void)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    CUipcMemHandle ipc;
    int sock[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
        _exit(1);
    pid_t pid = fork();
    if (!pid)
        exporter(sock[1]);
    close(sock[1]);
    context(0);
    check(cuMemCreate(&h, BYTES, &p, 0), "cuMemCreate");
    check(cuMemAddressReserve(&remote, BYTES, 0, 0, 0), "reserve");
    check(cuMemMap(remote, BYTES, 0, h, 0), "map");
    check(cuMemSetAccess(remote, BYTES, &a, 1), "access");
    if (read(sock[0], &ipc, sizeof ipc) != (ssize_t)sizeof ipc)
        _exit(1);
    check(cuIpcOpenMemHandle(&foreign, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open");
    return pid;
}

/* How many GPUs there are: asked by another process, for a process that has asked cannot fork any more. */
static int gpus(void)
{
    int status = 0, n = 0;
    pid_t pid = fork();
    if (!pid)
        _exit(cuInit(0) || cuDeviceGetCount(&n) ? 0 : n);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void open_memory(void)
{
    CUmodule module;
    void *f;
    check(cuModuleLoadData(&module, kernels_ptx), "module");
    check(cuModuleGetFunction(&nop, module, "nop"), "kernel");
    check(cuMemAlloc(&own, BYTES), "alloc");
    check(cuMemHostAlloc(&host, BYTES, CU_MEMHOSTALLOC_PORTABLE), "host");
    check(cuMemHostAlloc(&f, 65536, CU_MEMHOSTALLOC_DEVICEMAP), "flags");
    flags = memset(f, 0, 65536);
    check(cuMemHostGetDevicePointer(&flags_dev, f, 0), "flags");
}

int main(int argc, char **argv)
{
    static const char *const kinds[KINDS] = {"kernel", "d2h", "h2d", "push", "pushipc", "pull", "pullipc"};
    const char *gate = argc > 1 ? argv[1] : "none", *behind = argc > 3 ? argv[3] : "none", *conn = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int k = argc > 2 ? atoi(argv[2]) : 1, n = gpus() > 1 ? KINDS : 3;
    CUstream parked[32], warm[KINDS], fresh[KINDS];
    if (k < 0 || k > 32)
        return fprintf(stderr, "gates: 0 to 32 streams\n"), 2;
    alarm(30);
    pid_t pid = n == KINDS ? open_other() : 0;
    context(0);
    open_memory();
    for (int i = 0; i < n; i++) {
        check(cuStreamCreate(&warm[i], CU_STREAM_NON_BLOCKING), "stream");
        check(cuStreamCreate(&fresh[i], CU_STREAM_NON_BLOCKING), "stream");
        copy(kinds[i], 65536, warm[i]);
        check(cuStreamSynchronize(warm[i]), "warm");
    }
    for (int i = 0; i < k; i++) {
        check(cuStreamCreate(&parked[i], CU_STREAM_NON_BLOCKING), "stream");
        copy(gate, 64, parked[i]);
        check(cuStreamWaitValue32(parked[i], flags_dev, 1, CU_STREAM_WAIT_VALUE_GEQ), "park");
        copy(behind, 64, parked[i]);
    }
    usleep(20000);
    printf("[conn=%s] gate %s, %d parked, %s behind: warm streams:", conn ? conn : "-", gate, k, behind);
    for (int i = 0; i < n; i++)
        try(kinds[i], 65536, warm[i], 1 + i);
    printf(" fresh streams:");
    for (int i = 0; i < n; i++)
        try(kinds[i], 65536, fresh[i], 10 + i);
    printf("\n");
    fflush(stdout);
    flags[0] = 1;
    if (pid)
        kill(pid, SIGKILL);
    _exit(0);
}
