/* SPDX-License-Identifier: Apache-2.0 */
/* May a process open another process's memory while one of its own streams is parked in a WaitValue?
 *
 * The executor learns a peer's buffer only after both streams have reached the operation, that is, while they are
 * parked. If the driver's open and map calls waited for parked streams (as cuMemFree does), handles would have to be
 * opened before anything parks. Each case forks an exporter (GPU 1) and an opener (GPU 0) and prints one line: the
 * time of every step, or the step that hung.
 *
 * usage: open_parked KIND GATE K USER WHICH EXPORTER
 *   KIND ipc | vmm; GATE none | push | d2h | h2d; K parked streams; USER none | memfree | modload (another thread of
 *   the opener sits in that call); WHICH first | second (one mapping was opened before parking);
 *   EXPORTER idle | parked. */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BYTES (64 * MIB)

struct message {
    CUipcMemHandle ipc[2];
};

static char line[512];
static const char *step = "start";
static volatile uint32_t *flags;
static CUdeviceptr flags_dev;
static volatile int user_in, user_out;
static CUdeviceptr user_mem;
static const char *user_call;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void on_alarm(int sig)
{
    (void)sig;
    char b[700];
    int n = snprintf(b, sizeof b, "%s HUNG in %s\n", line, step);
    if (write(1, b, n) < 0)
        _exit(4);
    _exit(3);
}

static void check(CUresult r, const char *what)
{
    const char *s = "?";
    if (!r)
        return;
    cuGetErrorName(r, &s);
    printf("%s FAIL %s: %s\n", line, what, s);
    fflush(stdout);
    _exit(1);
}

static void timed(const char *what, CUresult r, double since)
{
    check(r, what);
    snprintf(line + strlen(line), sizeof line - strlen(line), " %s %.0f us;", what, now_us() - since);
}

static void send_fds(int sock, const struct message *m, const int *fd)
{
    char c[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec v = {(void *)m, sizeof *m};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
    if (fd) {
        h.msg_control = c;
        h.msg_controllen = sizeof c;
        struct cmsghdr *g = CMSG_FIRSTHDR(&h);
        g->cmsg_level = SOL_SOCKET;
        g->cmsg_type = SCM_RIGHTS;
        g->cmsg_len = CMSG_LEN(2 * sizeof(int));
        memcpy(CMSG_DATA(g), fd, 2 * sizeof(int));
    }
    if (sendmsg(sock, &h, 0) < 0)
        _exit(5);
}

static void recv_fds(int sock, struct message *m, int *fd)
{
    char c[CMSG_SPACE(2 * sizeof(int))];
    struct iovec v = {m, sizeof *m};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c, .msg_controllen = sizeof c};
    if (recvmsg(sock, &h, 0) <= 0)
        _exit(5);
    struct cmsghdr *g = CMSG_FIRSTHDR(&h);
    if (g)
        memcpy(fd, CMSG_DATA(g), 2 * sizeof(int));
}

static CUcontext context(int device)
{
    CUcontext c;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&c, device), "context");
    check(cuCtxSetCurrent(c), "context");
    void *p;
    check(cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE), "host flags");
    memset(p, 0, 4096);
    flags = p;
    check(cuMemHostGetDevicePointer(&flags_dev, p, 0), "host flags");
    return c;
}

static CUdeviceptr vmm(int device, int access, CUmemGenericAllocationHandle *h)
{
    CUdeviceptr va;
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, access}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(cuMemCreate(h, BYTES, &p, 0), "cuMemCreate");
    check(cuMemAddressReserve(&va, BYTES, 0, 0, 0), "reserve");
    check(cuMemMap(va, BYTES, 0, *h, 0), "map");
    check(cuMemSetAccess(va, BYTES, &a, 1), "access");
    return va;
}

static void exporter(int sock, const char *kind, int parked)
{
    struct message m = {0};
    int fd[2];
    CUdeviceptr p;
    char c;
    context(1);
    for (int i = 0; i < 2; i++) {
        if (!strcmp(kind, "ipc")) {
            check(cuMemAlloc(&p, BYTES), "alloc");
            check(cuIpcGetMemHandle(&m.ipc[i], p), "cuIpcGetMemHandle");
        } else {
            CUmemGenericAllocationHandle h;
            vmm(1, 1, &h);
            check(cuMemExportToShareableHandle(&fd[i], h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "export");
        }
    }
    if (parked) {
        CUstream s;
        check(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
        check(cuStreamWaitValue32(s, flags_dev, 1, CU_STREAM_WAIT_VALUE_GEQ), "park");
    }
    send_fds(sock, &m, strcmp(kind, "ipc") ? fd : NULL);
    if (read(sock, &c, 1) < 0)
        _exit(5);
    flags[0] = 1;
    _exit(0);
}

static void gate(const char *g, CUdeviceptr own, CUdeviceptr peer, void *host, CUstream s)
{
    CUDA_MEMCPY2D m = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 32, .dstPitch = 32,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = own, .WidthInBytes = 32, .Height = 2};
    if (!strcmp(g, "push"))
        check(cuMemcpyDtoDAsync(peer, own, 64, s), "gate");
    if (!strcmp(g, "d2h"))
        check(cuMemcpyDtoHAsync(host, own, 64, s), "gate");
    if (!strcmp(g, "h2d"))
        check(cuMemcpy2DAsync(&m, s), "gate");
}

static const char nop_ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nop()\n{\nret;\n}\n";

static void *user_thread(void *ctx)
{
    CUmodule m;
    cuCtxSetCurrent(ctx);
    user_in = 1;
    if (!strcmp(user_call, "memfree"))
        cuMemFree(user_mem);
    else
        cuModuleLoadData(&m, nop_ptx);
    user_out = 1;
    return NULL;
}

static CUdeviceptr open_one(const char *kind, const struct message *m, const int *fd, int i)
{
    CUdeviceptr p;
    double t = now_us();
    if (!strcmp(kind, "ipc")) {
        step = "cuIpcOpenMemHandle";
        CUresult r = cuIpcOpenMemHandle(&p, m->ipc[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        timed("open", r, t);
        return p;
    }
    CUmemGenericAllocationHandle h;
    CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    step = "cuMemImportFromShareableHandle";
    timed("import", cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), t);
    t = now_us();
    step = "cuMemAddressReserve";
    timed("reserve", cuMemAddressReserve(&p, BYTES, 0, 0, 0), t);
    t = now_us();
    step = "cuMemMap";
    timed("map", cuMemMap(p, BYTES, 0, h, 0), t);
    t = now_us();
    step = "cuMemSetAccess";
    timed("access", cuMemSetAccess(p, BYTES, &a, 1), t);
    return p;
}

static void opener(int sock, char **v)
{
    int k = atoi(v[3]), fd[2];
    struct message m;
    CUcontext ctx = context(0);
    CUmemGenericAllocationHandle h;
    CUdeviceptr own, peer = vmm(1, 0, &h), target;
    CUstream s[32], c;
    void *host;
    pthread_t th;
    check(cuMemAlloc(&own, BYTES), "alloc");
    check(cuMemAlloc(&user_mem, BYTES), "alloc");
    check(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE), "host");
    check(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING), "stream");
    check(cuMemcpyDtoDAsync(peer, own, MIB, c), "warm");
    check(cuStreamSynchronize(c), "warm");
    recv_fds(sock, &m, fd);
    if (!strcmp(v[5], "second"))
        open_one(v[1], &m, fd, 0);
    for (int i = 0; i < k; i++) {
        check(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING), "stream");
        gate(v[2], own, peer, host, s[i]);
        check(cuStreamWaitValue32(s[i], flags_dev, 1, CU_STREAM_WAIT_VALUE_GEQ), "park");
    }
    user_call = v[4];
    if (strcmp(v[4], "none")) {
        pthread_create(&th, NULL, user_thread, ctx);
        usleep(300000);
        strcat(line, user_out ? " [user call returned]" : " [user call waits]");
    }
    strcat(line, " |");
    target = open_one(v[1], &m, fd, 1);
    double t = now_us();
    step = "push submit";
    timed("submit", cuMemcpyDtoDAsync(target, own, MIB, c), t);
    t = now_us();
    check(cuStreamWriteValue32(c, flags_dev + 256, 5, 0), "flag");
    step = "push run";
    while (flags[64] != 5)
        ;
    timed("run", CUDA_SUCCESS, t);
    if (strcmp(v[1], "ipc")) {
        t = now_us();
        step = "cuMemUnmap";
        timed("unmap", cuMemUnmap(target, BYTES), t);
    }
    printf("%s OK\n", line);
    fflush(stdout);
    flags[0] = 1;
    if (write(sock, "", 1) < 0)
        _exit(5);
    _exit(0);
}

int main(int c, char **v)
{
    int sock[2], st;
    if (c != 7) {
        fprintf(stderr, "usage: open_parked ipc|vmm none|push|d2h|h2d K none|memfree|modload first|second idle|parked\n");
        return 2;
    }
    const char *conn = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    snprintf(line, sizeof line, "[conn=%s] %s gate=%s K=%s user=%s %s exporter=%s:", conn ? conn : "-", v[1], v[2], v[3],
             v[4], v[5], v[6]);
    signal(SIGALRM, on_alarm);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sock))
        return 1;
    pid_t pid = fork();
    if (!pid) {
        alarm(8);
        strcat(line, " (exporter)");
        exporter(sock[1], v[1], !strcmp(v[6], "parked"));
    }
    pid_t op = fork();
    if (!op) {
        close(sock[1]);
        alarm(6);
        opener(sock[0], v);
    }
    waitpid(op, &st, 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 9;
}
