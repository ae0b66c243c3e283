/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What settings do: faults on demand, delays, hidden and reordered devices, addresses that are given out again, GPU
 * memory that the CPU may touch, a small GPU. Each case is a process of its own, since settings are read once.
 */
#include "emu_test.h"

#include <sys/wait.h>

/* Each case runs in a child with its settings; cmocka only looks at how it ended. */
struct scenario {
    const char *name, *variable, *value;
    void (*run)(struct emu_test *t);
};

static bool is_filled(struct emu_test *t, CUdeviceptr p, unsigned char value)
{
    OK(cuMemcpyDtoH(t->host, p, 4096));
    for (size_t i = 0; i < 4096; i++)
        if (t->host[i] != value)
            return false;
    return true;
}

static void failing_call(struct emu_test *t)
{
    CUdeviceptr p; /* four allocations were the setup's */
    (void)t;
    OK(cuMemAlloc(&p, 4096));
    assert_int_equal(cuMemAlloc(&p, 4096), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&p, 4096));
}

static void late_call(struct emu_test *t)
{
    CUevent e;
    uint64_t start = now_ns();
    (void)t;
    OK(cuEventCreate(&e, 0));
    assert_true(now_ns() - start >= 50000000);
}

/* The second push of GPU 0 reports success and moves nothing. */
static void void_copy(struct emu_test *t)
{
    CUstream s = new_stream();
    OK(cuMemsetD8(t->b[1], 0, 16384));
    OK(cuMemsetD8(t->a[0], 5, 4096));
    OK(cuCtxSynchronize());
    for (int i = 0; i < 3; i++)
        OK(cuMemcpyDtoDAsync(t->b[1] + (CUdeviceptr)(4096 * i), t->a[0], 4096, s));
    OK(cuStreamSynchronize(s));
    assert_true(is_filled(t, t->b[1], 5));
    assert_true(is_filled(t, t->b[1] + 4096, 0));
    assert_true(is_filled(t, t->b[1] + 8192, 5));
}

static void late_copy(struct emu_test *t)
{
    CUstream s = new_stream();
    uint64_t start = now_ns();
    OK(cuMemcpyDtoHAsync(t->host, t->a[0], 4096, s));
    OK(cuStreamSynchronize(s));
    assert_true(now_ns() - start >= 200000000);
}

static void stuck_copy(struct emu_test *t)
{
    CUstream s = new_stream(), q = new_stream();
    OK(cuMemcpyDtoHAsync(t->host, t->a[0], 4096, s));
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 4096, q));
    OK(cuStreamSynchronize(q));
    usleep(100000);
    assert_int_equal(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
}

static void delayed_copies(struct emu_test *t)
{
    CUstream s = new_stream();
    uint64_t start = now_ns();
    for (int i = 0; i < 20; i++)
        OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 64, s));
    OK(cuStreamSynchronize(s));
    assert_in_range((now_ns() - start) / 1000000, 50, 2000); /* 20 times 0 ... 20 ms */
}

static void reused_address(struct emu_test *t)
{
    CUdeviceptr p, q;
    (void)t;
    OK(cuMemAlloc(&p, 3 * MIB));
    OK(cuMemFree(p));
    OK(cuMemAlloc(&q, 3 * MIB));
    assert_true(p == q);
    unsigned long long id;
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, q));
    OK(cuMemFree(q));
    OK(cuMemAlloc(&q, 3 * MIB));
    unsigned long long id2;
    OK(cuPointerGetAttribute(&id2, CU_POINTER_ATTRIBUTE_BUFFER_ID, q));
    assert_true(p == q && id != id2);
}

static void peer_memory(struct emu_test *t)
{
    CUstream s = new_stream();
    memset((void *)(uintptr_t)t->a[0], 77, 4096);
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 4096, s));
    OK(cuStreamSynchronize(s));
    assert_int_equal(*((unsigned char *)(uintptr_t)t->b[1] + 4095), 77);
}

static void hidden_devices(struct emu_test *t)
{
    int count;
    char bus[16];
    (void)t;
    OK(cuDeviceGetCount(&count));
    assert_int_equal(count, 2);
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
    assert_string_equal(bus, "0000:21:00.0"); /* GPU 3 of the machine */
}

static void given_pci_addresses(struct emu_test *t)
{
    char bus[16];
    (void)t;
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, 1));
    assert_string_equal(bus, "0001:C3:00.0");
}

struct launcher {
    struct emu_test *t;
    uint32_t left;
};

static void *launch_first(void *arg)
{
    struct launcher *l = arg;
    CUstream s;
    CUdeviceptr word = l->t->flag_dev + 256;
    void *args[] = {&word};
    OK(cuCtxSetCurrent(l->t->ctx[0]));
    s = new_stream();
    OK(cuLaunchKernel(function("nop"), 1, 1, 1, 32, 1, 1, 0, s, args, NULL));
    store(&l->left, 1);
    return NULL;
}

/* A function's first launch hangs behind a parked wait. */
static void lazy_loading(struct emu_test *t)
{
    struct launcher l = {t, 0};
    CUstream s = new_stream();
    pthread_t thread;
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 64, s));
    OK(cuStreamWaitValue32(s, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    pthread_create(&thread, NULL, launch_first, &l);
    assert_false(becomes(&l.left, 1, SHORT_NS));
    store(t->flag, 1);
    pthread_join(thread, NULL);
}

/* A context that ends takes its streams and memory along. */
static void end_of_context(struct emu_test *t)
{
    CUcontext ctx;
    CUdeviceptr p;
    CUstream s, own;
    size_t before, after, total;
    (void)t;
    OK(cuMemGetInfo(&before, &total));
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(cuMemAlloc(&p, 4 * MIB));
    s = new_stream();
    OK(cuStreamCreate(&own, 0));
    OK(cuMemsetD8Async(p, 1, MIB, s));
    OK(cuStreamWriteValue32(CU_STREAM_PER_THREAD, t->flag_dev, 1, 0));
    OK(cuCtxDestroy(ctx));
    OK(cuMemGetInfo(&after, &total));
    assert_true(before == after);
    assert_int_equal(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
}

static void small_memory(struct emu_test *t)
{
    CUdeviceptr p;
    size_t free, total;
    (void)t;
    OK(cuMemGetInfo(&free, &total));
    assert_true(total == 64 * MIB && free == 48 * MIB);
    assert_int_equal(cuMemAlloc(&p, 49 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&p, 48 * MIB));
}

/* By GPU; the last word for the rest. */
static void rdma(struct emu_test *t)
{
    static const int order[] = {CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE,
                                CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES};
    (void)t;
    for (CUdevice d = 0; d < 4; d++) {
        int is;
        OK(cuDeviceGetAttribute(&is, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, d));
        assert_int_equal(is, order[d]);
    }
}

/* What a GPU's word is, so are its attributes, and what it gives. */
static void rdma_ways(struct emu_test *t)
{
    static const unsigned long long flag[] = {0, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE};
    static const CUresult gives[4][2] = {{CUDA_SUCCESS, CUDA_SUCCESS}, {CUDA_SUCCESS, CUDA_ERROR_NOT_SUPPORTED},
                                         {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED},
                                         {CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED}};
    (void)t;
    for (CUdevice d = 0; d < 4; d++) {
        CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, d},
                                    .allocFlags = {.gpuDirectRDMACapable = 1}};
        CUmemGenericAllocationHandle handle;
        CUdeviceptr p;
        int direct, dmabuf, fd;
        OK(cuDeviceGetAttribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, d));
        OK(cuDeviceGetAttribute(&dmabuf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, d));
        assert_int_equal(direct, d < 3);
        assert_int_equal(dmabuf, d < 2);
        assert_int_equal(cuMemCreate(&handle, 2 * MIB, &prop, 0), d < 3 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
        prop.allocFlags.gpuDirectRDMACapable = 0;
        if (d == 3)
            OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
        OK(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
        OK(cuMemMap(p, 2 * MIB, 0, handle, 0));
        for (int i = 0; i < 2; i++) {
            assert_int_equal(cuMemGetHandleForAddressRange(&fd, p, 2 * MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flag[i]), gives[d][i]);
            if (!gives[d][i])
                close(fd);
        }
        OK(cuMemUnmap(p, 2 * MIB));
        OK(cuMemAddressFree(p, 2 * MIB));
        OK(cuMemRelease(handle));
    }
}

/* A parked wait is looked at again when something goes through a compute channel, not when something is copied. */
static void seldom_looks(struct emu_test *t)
{
    CUstream s = new_stream(), copies = new_stream(), writes = new_stream();
    store(t->flag, 0);
    store(t->flag + 1, 0);
    OK(cuStreamWriteValue32(s, t->flag_dev + 4, 1, 0));
    OK(cuStreamWaitValue32(s, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    assert_true(becomes(t->flag + 1, 1, LONG_NS));
    usleep(10000);
    store(t->flag, 1);
    OK(cuMemcpyDtoHAsync(t->host, t->a[0], 4096, copies));
    OK(cuStreamWriteValue32(copies, t->flag_dev + 8, 1, 0)); /* in the class of the copy */
    OK(cuStreamSynchronize(copies));
    usleep(50000);
    assert_int_equal(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32(writes, t->flag_dev + 8, 2, 0));
    OK(cuStreamSynchronize(s));
}

static const struct scenario scenarios[] = {
    {"failing call", "HOCCL_EMU_FAULT", "cuMemAlloc#6=CUDA_ERROR_OUT_OF_MEMORY", failing_call},
    {"late call", "HOCCL_EMU_FAULT", "cuEventCreate#1=late:50000", late_call},
    {"void copy", "HOCCL_EMU_FAULT", "push@0#2=void", void_copy},
    {"late copy", "HOCCL_EMU_FAULT", "push#1=void,d2h#1=late:200000", late_copy},
    {"stuck copy", "HOCCL_EMU_FAULT", "d2h#1+=stuck", stuck_copy},
    {"delays", "HOCCL_EMU_DELAY_US", "20000", delayed_copies},
    {"seldom looks", "HOCCL_EMU_LOOK_MS", "100000", seldom_looks},
    {"reuse", "HOCCL_EMU_REUSE", "1", reused_address},
    {"peer memory", "HOCCL_EMU_PEERMEM", "1", peer_memory},
    {"order of RDMA", "HOCCL_EMU_RDMA_ORDER", "owner,none,all", rdma},
    {"ways of RDMA", "HOCCL_EMU_RDMA", "pcie,dmabuf,address,off", rdma_ways},
    {"hidden devices", "CUDA_VISIBLE_DEVICES", "3,1", hidden_devices},
    {"PCI addresses", "HOCCL_EMU_PCI", "0000:11:00.0,0001:c3:00.0", given_pci_addresses},
    {"lazy loading", "HOCCL_EMU_LAZY", "1", lazy_loading},
    {"end of a context", "HOCCL_EMU_SEED", "2", end_of_context},
    {"small memory", "HOCCL_EMU_MEMORY", "64", small_memory},
};
#define SCENARIOS (sizeof scenarios / sizeof *scenarios)

static char self[4096];

static void test_scenarios(void **state)
{
    (void)state;
    for (size_t i = 0; i < SCENARIOS; i++) {
        int status;
        char number[8];
        snprintf(number, sizeof number, "%zu", i);
        pid_t pid = fork();
        if (!pid) {
            setenv(scenarios[i].variable, scenarios[i].value, 1);
            execl(self, self, number, (char *)NULL);
            _exit(9);
        }
        waitpid(pid, &status, 0);
        if (status)
            print_error("scenario %s\n", scenarios[i].name);
        assert_int_equal(status, 0);
    }
}

/* A setting that cannot be read stops cuInit. */
static void test_bad_settings(void **state)
{
    static const char *const bad[][2] = {{"HOCCL_EMU_DEVICES", "many"}, {"HOCCL_EMU_FAULT", "push#0=void"},
                                         {"HOCCL_EMU_FAULT", "cuMemAlloc#1=CUDA_ERROR_NO_SUCH"},
                                         {"HOCCL_EMU_FAULT", "cuMemAllocate#1=CUDA_ERROR_OUT_OF_MEMORY"},
                                         {"HOCCL_EMU_RATE", "sideways=5"}, {"HOCCL_EMU_RDMA", "pcie,pci"},
                                         {"HOCCL_EMU_RDMA_ORDER", "owner,,all"}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int status;
        pid_t pid = fork();
        if (!pid) {
            setenv(bad[i][0], bad[i][1], 1);
            execl(self, self, "init", (char *)NULL);
            _exit(9);
        }
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
    }
}

static void test_one(void **state)
{
    struct emu_test *t = *state;
    t->chosen->run(t);
}

static const struct scenario *chosen;

static int one_setup(void **state)
{
    emu_setup(state);
    ((struct emu_test *)*state)->chosen = chosen;
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest all[] = {cmocka_unit_test(test_scenarios), cmocka_unit_test(test_bad_settings)};
    const struct CMUnitTest one[] = {cmocka_unit_test(test_one)};
    if (argc > 1 && !strcmp(argv[1], "init"))
        return cuInit(0) == CUDA_SUCCESS;
    if (argc > 1) {
        chosen = &scenarios[atoi(argv[1])];
        return cmocka_run_group_tests_name(chosen->name, one, one_setup, NULL);
    }
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    emu_environment(NULL);
    return cmocka_run_group_tests(all, NULL, NULL);
}
