/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the emulated driver share. They run on the emulator only, through the forwarders, each test
 * program in a process of its own; what a test needs beyond the driver's interface are the emulator's hooks.
 */
#ifndef EMU_TEST_H
#define EMU_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "emu/hooks.h"
#include "hoccl_cuda.h"

#define MIB ((size_t)1 << 20)
#define SHORT_NS 100000000u /* what has not happened by now is blocked */
#define LONG_NS 20000000000u

#define OK(call) assert_int_equal((call), CUDA_SUCCESS)

struct emu_test {
    CUcontext ctx[2];
    CUdeviceptr a[2], b[2]; /* 8 MiB on each of two GPUs */
    unsigned char *host;    /* 8 MiB, pinned */
    uint32_t *flag;         /* 4 KiB, pinned; word 0 is what parked waits wait for */
    CUdeviceptr flag_dev;
    const struct scenario *chosen; /* emu_faults.c */
};

static const char hold_ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                               ".visible .entry hold(.param .u64 ns)\n{\n.reg .pred q;\n.reg .b64 a,b,c;\n"
                               "ld.param.u64 c,[ns];\nmov.u64 a,%globaltimer;\nadd.u64 a,a,c;\nL:\n"
                               "mov.u64 b,%globaltimer;\nsetp.lt.u64 q,b,a;\n@q bra L;\nret;\n}\n"
                               ".visible .entry nop(.param .u64 p)\n{\n.reg .b64 a;\nld.param.u64 a,[p];\n"
                               "st.volatile.global.u32 [a],7;\nret;\n}\n";

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* Whether the word becomes value within ns. */
static inline bool becomes(const uint32_t *word, uint32_t value, uint64_t ns)
{
    uint64_t end = now_ns() + ns;
    while (load(word) != value) {
        if (now_ns() > end)
            return false;
        usleep(100);
    }
    return true;
}

static inline CUresult hook_count(CUdevice dev, enum hoccl_emu_engine engine, uint64_t *ops, uint64_t *bytes)
{
    CUresult (*f)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    *(void **)&f = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    return f(dev, engine, ops, bytes);
}

static inline uint64_t engine_ops(CUdevice dev, enum hoccl_emu_engine engine)
{
    uint64_t ops, bytes;
    OK(hook_count(dev, engine, &ops, &bytes));
    return ops;
}

static inline uint64_t sm_work(void)
{
    uint64_t work;
    assert_int_equal(hoccl_cuda_sm_work(&work), 1);
    return work;
}

static inline CUstream new_stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static inline CUfunction function(const char *name)
{
    static CUmodule module;
    CUfunction fn;
    if (!module)
        OK(cuModuleLoadData(&module, hold_ptx));
    OK(cuModuleGetFunction(&fn, module, name));
    return fn;
}

/* Takes every thread slot of every SM of the current GPU for so long. */
static inline void hold_all(CUstream s, uint64_t ns)
{
    int sms;
    CUdevice dev;
    void *args[] = {&ns};
    OK(cuCtxGetDevice(&dev));
    OK(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev));
    OK(cuLaunchKernel(function("hold"), (unsigned)sms * 2, 1, 1, 1024, 1, 1, 0, s, args, NULL));
}

static inline CUresult h2d_2d(CUdeviceptr dst, const void *src, size_t bytes, CUstream s)
{
    CUDA_MEMCPY2D m = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = src, .srcPitch = bytes / 2,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = dst, .dstPitch = bytes / 2,
                       .WidthInBytes = bytes / 2, .Height = 2};
    return cuMemcpy2DAsync(&m, s);
}

/* The module is loaded here: behind a parked wait that would hang. */
static inline int emu_setup(void **state)
{
    static struct emu_test t;
    *state = &t;
    OK(cuInit(0));
    for (int d = 1; d >= 0; d--) {
        OK(cuDevicePrimaryCtxRetain(&t.ctx[d], d));
        OK(cuCtxSetCurrent(t.ctx[d]));
        OK(cuMemAlloc(&t.a[d], 8 * MIB));
        OK(cuMemAlloc(&t.b[d], 8 * MIB));
    }
    OK(cuCtxEnablePeerAccess(t.ctx[1], 0));
    OK(cuMemHostAlloc((void **)&t.host, 8 * MIB, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostAlloc((void **)&t.flag, 4096, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostGetDevicePointer(&t.flag_dev, t.flag, 0));
    memset(t.flag, 0, 4096);
    function("nop");
    return 0;
}

/* Chooses the emulator, unless the test is to be held against a real GPU (EMU_TEST_DEVICE=cuda), and what else the
 * environment must say; before anything else. */
static inline void emu_environment(const char *connections)
{
    setenv("HOCCL_DEVICE", getenv("EMU_TEST_DEVICE") ? getenv("EMU_TEST_DEVICE") : "emu", 1);
    setenv("HOCCL_EMU_DEVICES", "4", 0);
    unsetenv("CUDA_VISIBLE_DEVICES");
    if (connections)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    else
        unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

#endif
