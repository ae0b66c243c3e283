/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of other processes. The test process exports; a child made by exec (the driver does not survive a fork)
 * opens, checks and writes: legacy handles with their offsets, descriptors, a GPU that the child does not see, memory
 * that its owner has freed, memory that cannot be exported at all, and what is left when a process is killed.
 */
#include "emu_test.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define N (4 * MIB)

/* What the child is told; a descriptor may come with it. */
struct order {
    char what[16];
    CUipcMemHandle handle;
    size_t offset, bytes;
    unsigned char value;
};

struct child {
    pid_t pid;
    int socket;
};

static char self[4096];

static void send_order(int socket, const struct order *o, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec iov = {(void *)(uintptr_t)o, sizeof *o};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    assert_int_equal(sendmsg(socket, &m, 0), sizeof *o);
}

static int receive_order(int socket, struct order *o)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {o, sizeof *o};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd = -1;
    if (recvmsg(socket, &m, 0) != sizeof *o)
        exit(3);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c)
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

/* ---- the child ---- */

#define MUST(call)                                                                                                    \
    check((call), #call, __LINE__)

static void check(CUresult result, const char *call, int line)
{
    const char *name = "?";
    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorName(result, &name);
    fprintf(stderr, "child, line %d: %s: %s\n", line, call, name);
    exit(4);
}

/* Reads value at offset through memory of its own, then writes value + 1 there. */
static CUresult use(CUdeviceptr p, const struct order *o)
{
    CUdeviceptr mine;
    CUstream s;
    unsigned char *host;
    MUST(cuMemAlloc(&mine, N));
    MUST(cuMemHostAlloc((void **)&host, N, 0));
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    MUST(cuMemcpyDtoDAsync(mine, p + o->offset, o->bytes, s));
    CUresult result = cuStreamSynchronize(s);
    if (result != CUDA_SUCCESS)
        return result;
    MUST(cuMemcpyDtoH(host, mine, o->bytes));
    for (size_t i = 0; i < o->bytes; i++)
        if (host[i] != o->value)
            return CUDA_ERROR_UNKNOWN;
    MUST(cuMemsetD8Async(mine, (unsigned char)(o->value + 1), o->bytes, s));
    MUST(cuMemcpyDtoDAsync(p + o->offset, mine, o->bytes, s));
    result = cuStreamSynchronize(s);
    MUST(cuMemFree(mine));
    MUST(cuMemFreeHost(host));
    MUST(cuStreamDestroy(s));
    return result;
}

static CUresult do_legacy(const struct order *o)
{
    CUdeviceptr p, again, base;
    size_t size;
    CUresult result = cuIpcOpenMemHandle(&p, o->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS)
        return result;
    MUST(cuIpcOpenMemHandle(&again, o->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    MUST(cuMemGetAddressRange(&base, &size, p));
    if (again != p || base != p || size != N)
        return CUDA_ERROR_UNKNOWN;
    MUST(cuIpcCloseMemHandle(again));
    result = use(p, o);
    if (result == CUDA_SUCCESS)
        MUST(cuIpcCloseMemHandle(p));
    return result;
}

static CUresult do_descriptor(const struct order *o, int fd)
{
    CUmemGenericAllocationHandle h;
    CUdeviceptr p;
    CUdevice dev;
    MUST(cuCtxGetDevice(&dev));
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, dev}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    MUST(cuMemAddressReserve(&p, N, 0, 0, 0));
    MUST(cuMemMap(p, N, 0, h, 0));
    MUST(cuMemSetAccess(p, N, &access, 1));
    MUST(cuMemRelease(h));
    CUresult result = use(p, o);
    MUST(cuMemUnmap(p, N));
    MUST(cuMemAddressFree(p, N));
    return result;
}

/* Opens, tells the parent, waits for its word, then uses what the parent has freed meanwhile. */
static CUresult do_stale(const struct order *o, int socket)
{
    CUdeviceptr p;
    char byte = 0;
    MUST(cuIpcOpenMemHandle(&p, o->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    if (write(socket, &byte, 1) != 1 || read(socket, &byte, 1) != 1)
        exit(5);
    return use(p, o);
}

struct closer {
    CUcontext ctx;
    CUdeviceptr p;
    uint32_t left;
};

static void *close_handle(void *arg)
{
    struct closer *c = arg;
    MUST(cuCtxSetCurrent(c->ctx));
    MUST(cuIpcCloseMemHandle(c->p));
    store(&c->left, 1);
    return NULL;
}

/* Opening goes through while a wait is parked (not measured; assumed), closing hangs until it is released. */
static CUresult do_close(const struct order *o)
{
    struct closer c = {NULL, 0, 0};
    uint32_t *flag;
    CUstream s;
    pthread_t thread;
    MUST(cuCtxGetCurrent(&c.ctx));
    MUST(cuMemHostAlloc((void **)&flag, 4096, 0));
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    store(flag, 0);
    MUST(cuStreamWaitValue32(s, (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
    MUST(cuIpcOpenMemHandle(&c.p, o->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    pthread_create(&thread, NULL, close_handle, &c);
    bool hangs = !becomes(&c.left, 1, SHORT_NS);
    store(flag, 1);
    pthread_join(thread, NULL);
    MUST(cuMemFreeHost(flag));
    MUST(cuStreamDestroy(s));
    return hangs ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static int child_main(int socket)
{
    CUcontext ctx;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&ctx, 0));
    MUST(cuCtxSetCurrent(ctx));
    for (;;) {
        struct order o;
        CUresult result = CUDA_SUCCESS;
        int fd = receive_order(socket, &o);
        if (!strcmp(o.what, "legacy"))
            result = do_legacy(&o);
        else if (!strcmp(o.what, "descriptor"))
            result = do_descriptor(&o, fd);
        else if (!strcmp(o.what, "close"))
            result = do_close(&o);
        else if (!strcmp(o.what, "stale"))
            result = do_stale(&o, socket);
        else
            return 0;
        if (write(socket, &result, sizeof result) != sizeof result)
            return 6;
    }
}

/* ---- the parent ---- */

static struct child child_start(const char *visible)
{
    int sv[2];
    char number[16];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sv), 0);
    snprintf(number, sizeof number, "%d", sv[1]);
    pid_t pid = fork();
    if (!pid) {
        close(sv[0]);
        if (visible)
            setenv("CUDA_VISIBLE_DEVICES", visible, 1);
        execl(self, self, "child", number, (char *)NULL);
        _exit(9);
    }
    close(sv[1]);
    return (struct child){pid, sv[0]};
}

static void child_end(struct child c)
{
    struct order o = {.what = "end"};
    int status;
    send_order(c.socket, &o, -1);
    waitpid(c.pid, &status, 0);
    close(c.socket);
    assert_int_equal(status, 0);
}

static CUresult ask(struct child c, const struct order *o, int fd)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    send_order(c.socket, o, fd);
    assert_int_equal(read(c.socket, &result, sizeof result), sizeof result);
    return result;
}

static void assert_bytes(struct emu_test *t, CUdeviceptr p, size_t bytes, unsigned char value)
{
    OK(cuMemcpyDtoH(t->host, p, bytes));
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(t->host[i], value);
}

static void set(CUdeviceptr p, unsigned char value, size_t bytes)
{
    OK(cuMemsetD8(p, value, bytes));
    OK(cuCtxSynchronize());
}

/* Views at many offsets of one allocation: the handle is always the allocation's. */
static void test_offsets(void **state)
{
    static const size_t offsets[] = {0, 1, 256, 4097, MIB, 3 * MIB + 5};
    struct emu_test *t = *state;
    struct child c = child_start("1");
    CUdeviceptr p;
    OK(cuMemAlloc(&p, N));
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        struct order o = {.what = "legacy", .offset = offsets[i], .bytes = 999, .value = (unsigned char)(10 * i + 1)};
        set(p, 0xee, N);
        set(p + o.offset, o.value, o.bytes);
        OK(cuIpcGetMemHandle(&o.handle, p + o.offset));
        OK(ask(c, &o, -1));
        assert_bytes(t, p + o.offset, o.bytes, (unsigned char)(o.value + 1));
        assert_bytes(t, p + o.offset + o.bytes, 1, 0xee);
    }
    child_end(c);
    OK(cuMemFree(p));
}

/* A process of another machine gets nothing. */
static void test_other_machine(void **state)
{
    struct emu_test *t = *state;
    setenv("HOCCL_EMU_MACHINE", "another", 1);
    struct child c = child_start("1");
    unsetenv("HOCCL_EMU_MACHINE");
    struct order o = {.what = "legacy", .bytes = 64};
    OK(cuIpcGetMemHandle(&o.handle, t->a[0]));
    assert_int_equal(ask(c, &o, -1), CUDA_ERROR_INVALID_VALUE);
    child_end(c);
}

static void test_close_behind_a_parked_wait(void **state)
{
    struct emu_test *t = *state;
    struct child c = child_start("1");
    struct order o = {.what = "close"};
    OK(cuIpcGetMemHandle(&o.handle, t->a[0]));
    OK(ask(c, &o, -1));
    child_end(c);
}

/* A GPU that the opener does not see is no obstacle, in either way. */
static void test_hidden_gpu(void **state)
{
    struct emu_test *t = *state;
    struct child c = child_start("3");
    CUdeviceptr p;
    struct order o = {.what = "legacy", .bytes = N, .value = 7};
    OK(cuMemAlloc(&p, N));
    set(p, 7, N);
    OK(cuIpcGetMemHandle(&o.handle, p));
    OK(ask(c, &o, -1));
    assert_bytes(t, p, N, 8);
    child_end(c);
    OK(cuMemFree(p));
}

static CUresult vmm_new(size_t bytes, int dev, unsigned types, CUdeviceptr *p, CUmemGenericAllocationHandle *h)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = (CUmemAllocationHandleType)types,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = cuMemCreate(h, bytes, &prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    OK(cuMemAddressReserve(p, bytes, 0, 0, 0));
    OK(cuMemMap(*p, bytes, 0, *h, 0));
    OK(cuMemSetAccess(*p, bytes, &access, 1));
    return CUDA_SUCCESS;
}

static void vmm_end(CUdeviceptr p, size_t bytes, CUmemGenericAllocationHandle h)
{
    OK(cuMemUnmap(p, bytes));
    OK(cuMemAddressFree(p, bytes));
    OK(cuMemRelease(h));
}

static void test_descriptor(void **state)
{
    struct emu_test *t = *state;
    struct child c = child_start("1,2");
    CUmemGenericAllocationHandle h, retained;
    CUdeviceptr p;
    int fd;
    struct order o = {.what = "descriptor", .offset = 4096, .bytes = MIB, .value = 33};
    OK(vmm_new(N, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &p, &h));
    set(p, 33, N);
    OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)(p + 100)));
    OK(cuMemExportToShareableHandle(&fd, retained, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(retained));
    OK(ask(c, &o, fd));
    close(fd);
    assert_bytes(t, p + 4096, MIB, 34);
    child_end(c);
    vmm_end(p, N, h);
}

/* The table of what can be exported how. */
static void test_unexportable(void **state)
{
    struct emu_test *t = *state;
    CUipcMemHandle ipc;
    CUmemGenericAllocationHandle h, none;
    CUdeviceptr p, q, pool;
    int fd, capable;
    OK(vmm_new(N, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &p, &h));
    OK(vmm_new(N, 0, CU_MEM_HANDLE_TYPE_NONE, &q, &none));
    OK(cuMemAllocAsync(&pool, N, NULL));
    assert_int_equal(cuIpcGetMemHandle(&ipc, p), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuIpcGetMemHandle(&ipc, q), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuIpcGetMemHandle(&ipc, pool), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuIpcGetMemHandle(&ipc, t->flag_dev), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemExportToShareableHandle(&fd, none, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemRetainAllocationHandle(&none, (void *)(uintptr_t)t->a[0]), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemRetainAllocationHandle(&none, (void *)(uintptr_t)pool), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, t->a[0]));
    assert_int_equal(capable, 1);
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pool));
    assert_int_equal(capable, 0);
    OK(cuIpcGetMemHandle(&ipc, t->a[0]));
    assert_int_equal(cuIpcOpenMemHandle(&p, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuMemFreeAsync(pool, NULL));
    OK(cuCtxSynchronize());
    assert_int_equal(cuMemcpyDtoH(t->host, pool, 1), CUDA_ERROR_INVALID_VALUE);
}

/* Memory on a GPU without a context there; copies to it are pushes; a range may span allocations. */
static void test_vmm_on_another_gpu(void **state)
{
    struct emu_test *t = *state;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 2}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h[2];
    CUdeviceptr p;
    unsigned flags;
    int active, fd;
    uint64_t pushes = engine_ops(0, HOCCL_EMU_PUSH);
    CUstream s = new_stream();
    OK(cuMemAddressReserve(&p, N, 0, 0, 0));
    for (size_t i = 0; i < 2; i++) {
        OK(cuMemCreate(&h[i], N / 2, &prop, 0));
        OK(cuMemMap(p + i * N / 2, N / 2, 0, h[i], 0));
    }
    assert_int_equal(cuMemcpyDtoDAsync(p, t->a[0], 16, s), CUDA_ERROR_INVALID_VALUE); /* no access yet */
    OK(cuMemSetAccess(p, N, &access, 1));
    set(t->a[0], 55, N);
    OK(cuMemcpyDtoDAsync(p, t->a[0], N, s));
    OK(cuMemcpyDtoDAsync(t->b[0], p, N, s));
    OK(cuStreamSynchronize(s));
    assert_bytes(t, t->b[0], N, 55);
    assert_int_equal(engine_ops(0, HOCCL_EMU_PUSH), pushes + 1);
    OK(cuDevicePrimaryCtxGetState(2, &flags, &active));
    assert_int_equal(active, 0);
    OK(cuMemGetHandleForAddressRange(&fd, p, N / 2, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    close(fd);
    assert_int_equal(cuMemUnmap(p, N / 4), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(p, N));
    OK(cuMemAddressFree(p, N));
    assert_int_equal(cuMemcpyDtoDAsync(p, t->a[0], 16, s), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(h[0]));
    OK(cuMemRelease(h[1]));
    OK(cuStreamDestroy(s));
}

/* What the owner has freed faults in the opener, and breaks its context. */
static void test_freed_by_owner(void **state)
{
    (void)state;
    struct child c = child_start("1");
    struct order o = {.what = "stale", .bytes = 64, .value = 9};
    CUdeviceptr p;
    CUresult result;
    char byte;
    OK(cuMemAlloc(&p, N));
    set(p, 9, N);
    OK(cuIpcGetMemHandle(&o.handle, p));
    send_order(c.socket, &o, -1);
    assert_int_equal(read(c.socket, &byte, 1), 1);
    OK(cuMemFree(p));
    assert_int_equal(write(c.socket, &byte, 1), 1);
    assert_int_equal(read(c.socket, &result, sizeof result), sizeof result);
    assert_int_equal(result, CUDA_ERROR_ILLEGAL_ADDRESS);
    child_end(c);
    c = child_start("1"); /* and can no longer be opened */
    strcpy(o.what, "legacy");
    assert_int_equal(ask(c, &o, -1), CUDA_ERROR_INVALID_HANDLE);
    child_end(c);
}

/* A killed process leaves nothing: no name in the file system, no socket. */
static void test_killed(void **state)
{
    (void)state;
    struct child c = child_start("1");
    char line[512], name[64];
    int status, found = 0;
    struct order o = {.what = "stale", .bytes = 64, .value = 9};
    CUdeviceptr p;
    char byte;
    OK(cuMemAlloc(&p, N));
    OK(cuIpcGetMemHandle(&o.handle, p));
    send_order(c.socket, &o, -1);
    assert_int_equal(read(c.socket, &byte, 1), 1);
    kill(c.pid, SIGKILL);
    waitpid(c.pid, &status, 0);
    close(c.socket);
    snprintf(name, sizeof name, "hoccl-emu-%d-", (int)c.pid);
    FILE *f = fopen("/proc/net/unix", "r");
    while (f && fgets(line, sizeof line, f))
        found += strstr(line, name) != NULL;
    if (f)
        fclose(f);
    assert_int_equal(found, 0);
    OK(cuMemFree(p));
}

static void test_fork_is_refused(void **state)
{
    (void)state;
    int status;
    pid_t pid = fork();
    if (!pid) {
        size_t free, total;
        _exit(cuMemGetInfo(&free, &total) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offsets),         cmocka_unit_test(test_hidden_gpu),
        cmocka_unit_test(test_close_behind_a_parked_wait),
        cmocka_unit_test(test_other_machine),
        cmocka_unit_test(test_descriptor),      cmocka_unit_test(test_unexportable),
        cmocka_unit_test(test_vmm_on_another_gpu), cmocka_unit_test(test_freed_by_owner),
        cmocka_unit_test(test_killed),          cmocka_unit_test(test_fork_is_refused),
    };
    if (argc == 3)
        return child_main(atoi(argv[2]));
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    emu_environment(NULL);
    return cmocka_run_group_tests(tests, emu_setup, NULL);
}
