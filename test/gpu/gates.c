/* SPDX-License-Identifier: Apache-2.0 */
/* Which copies run beside a stream that is parked behind a gate, with the kinds of memory that HOCCL uses: the other GPU's
 * memory made without a context there, and memory of another process. One GPU context; two GPUs.
 *
 * usage: gates GATE [K [BEHIND]]   GATE: none, push (to memory on GPU 1 without a context there), pushipc (to another process's
 *        memory), h2d, d2h; K streams are parked (1), each with a copy of the kind BEHIND queued behind its wait (none), as a
 *        start signal or the program's own copy would be. Each copy below is tried on a fresh stream, then all are released. */
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

#define BYTES ((size_t)4 << 20)

static volatile uint32_t *flags;
static CUdeviceptr flags_dev, own, foreign, remote;
static void *host;

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
    check(r, k);
}

/* On a stream that has carried only copies of this kind; `warm`: it has done so before anything was parked. */
static void try(const char *k, size_t n, CUstream s, int slot)
{
    struct timespec t = {0, 1000000};
    copy(k, n, s);
    check(cuStreamWriteValue32(s, flags_dev + (CUdeviceptr)slot * 64, 7, 0), "flag");
    for (int i = 0; i < 400 && flags[slot * 16] != 7; i++)
        nanosleep(&t, NULL);
    printf(" %s %s;", k, flags[slot * 16] == 7 ? "runs" : "STOPPED");
}

int main(int argc, char **argv)
{
    static const char *const kinds[] = {"d2h", "h2d", "push", "pushipc", "pull", "pullipc"};
    const char *gate = argc > 1 ? argv[1] : "none", *behind = argc > 3 ? argv[3] : "none", *conn = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int k = argc > 2 ? atoi(argv[2]) : 1, sock[2];
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    CUipcMemHandle ipc;
    CUstream parked[32], warm[6], fresh[6];
    void *f;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
        return 1;
    pid_t pid = fork();
    if (!pid)
        exporter(sock[1]);
    close(sock[1]);
    alarm(30);
    context(0);
    check(cuMemAlloc(&own, BYTES), "alloc");
    check(cuMemHostAlloc(&host, BYTES, CU_MEMHOSTALLOC_PORTABLE), "host");
    check(cuMemHostAlloc(&f, 65536, CU_MEMHOSTALLOC_DEVICEMAP), "flags");
    flags = memset(f, 0, 65536);
    check(cuMemHostGetDevicePointer(&flags_dev, f, 0), "flags");
    check(cuMemCreate(&h, BYTES, &p, 0), "cuMemCreate");
    check(cuMemAddressReserve(&remote, BYTES, 0, 0, 0), "reserve");
    check(cuMemMap(remote, BYTES, 0, h, 0), "map");
    check(cuMemSetAccess(remote, BYTES, &a, 1), "access");
    if (read(sock[0], &ipc, sizeof ipc) != (ssize_t)sizeof ipc)
        return 1;
    check(cuIpcOpenMemHandle(&foreign, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open");
    for (int i = 0; i < 6; i++) {
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
    for (int i = 0; i < 6; i++)
        try(kinds[i], 65536, warm[i], 1 + i);
    printf(" fresh streams:");
    for (int i = 0; i < 6; i++)
        try(kinds[i], 65536, fresh[i], 10 + i);
    printf("\n");
    fflush(stdout);
    flags[0] = 1;
    kill(pid, SIGKILL);
    _exit(0);
}
