/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated GPU's ground floor: memory that the CPU cannot see, copies in every direction, order on a stream,
 * memory operations and their comparisons, events, attributes of pointers and devices.
 */
#include "emu_test.h"

static void fill(unsigned char *p, size_t n, unsigned key)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 7 + (i >> 8) * 13 + key);
}

static void assert_filled(const unsigned char *p, size_t n, unsigned key)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (unsigned char)(i * 7 + (i >> 8) * 13 + key))
            fail_msg("byte %zu is wrong", i);
}

static void test_devices(void **state)
{
    (void)state;
    int count, version, ordering, sms;
    char bus[16], again[64];
    CUuuid u0, u1;
    CUdevice dev;
    OK(cuDriverGetVersion(&version));
    OK(cuDeviceGetCount(&count));
    assert_int_equal(count, 4);
    OK(cuDeviceGetUuid(&u0, 0));
    OK(cuDeviceGetUuid(&u1, 1));
    assert_memory_not_equal(&u0, &u1, sizeof u0);
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, 3));
    OK(cuDeviceGetByPCIBusId(&dev, bus));
    assert_int_equal(dev, 3);
    OK(cuDeviceGetName(again, sizeof again, 0));
    OK(cuDeviceGetAttribute(&ordering, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 0));
    assert_int_equal(ordering, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
    OK(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    assert_int_equal(sms, 132);
    assert_int_equal(cuDeviceGet(&dev, 4), CUDA_ERROR_INVALID_DEVICE);
    assert_string_equal(hoccl_cuda_driver_name(), "emulated GPU");
}

/* Up, across to the peer, back, down: all four engines, right bytes, no SM. */
static void test_round_trip(void **state)
{
    struct emu_test *t = *state;
    const size_t sizes[] = {1, 3, 4, 7, 63, 64, 65, 4096, 32767, 32768, 100001, MIB + 13, 7 * MIB};
    CUstream s = new_stream();
    uint64_t before = sm_work();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        fill(t->host, n, (unsigned)i);
        OK(cuMemcpyHtoDAsync(t->a[0] + 5, t->host, n, s));
        OK(cuMemcpyDtoDAsync(t->a[1] + 9, t->a[0] + 5, n, s));
        OK(cuMemcpyAsync(t->b[0] + 1, t->a[1] + 9, n, s));
        OK(cuStreamSynchronize(s));
        memset(t->host, 0, n);
        OK(cuMemcpyDtoHAsync(t->host, t->b[0] + 1, n, s));
        OK(cuStreamSynchronize(s));
        assert_filled(t->host, n, (unsigned)i);
    }
    assert_int_equal(sm_work(), before);
    assert_true(engine_ops(0, HOCCL_EMU_PUSH) > 0 && engine_ops(0, HOCCL_EMU_PULL) > 0);
    assert_true(engine_ops(0, HOCCL_EMU_D2H) > 0 && engine_ops(0, HOCCL_EMU_H2D) > 0);
    OK(cuStreamDestroy(s));
}

static void test_local_copy_counts(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream();
    uint64_t before = sm_work();
    OK(cuMemcpyDtoDAsync(t->b[0], t->a[0], 4096, s));
    OK(cuMemcpyPeerAsync(t->b[0], t->ctx[0], t->a[0], t->ctx[0], 4096, s));
    OK(cuMemsetD8Async(t->b[0], 1, 4096, s));
    OK(cuStreamSynchronize(s));
    assert_int_equal(sm_work(), before + 3);
    OK(cuStreamDestroy(s));
}

static void test_pageable(void **state)
{
    struct emu_test *t = *state;
    unsigned char up[5000], down[5000];
    fill(up, sizeof up, 3);
    OK(cuMemcpyHtoD(t->a[0], up, sizeof up));
    memset(down, 0, sizeof down);
    OK(cuMemcpyDtoH(down, t->a[0], sizeof down));
    assert_filled(down, sizeof down, 3);
}

static void test_2d(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream();
    fill(t->host, 64 * 100, 1);
    CUDA_MEMCPY2D m = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = t->host, .srcPitch = 64,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = t->a[0], .dstPitch = 256,
                       .WidthInBytes = 64, .Height = 100};
    OK(cuMemcpy2DAsync(&m, s));
    CUDA_MEMCPY2D back = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = t->a[0], .srcPitch = 256, .srcY = 10,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = t->host + MIB, .dstPitch = 64,
                          .WidthInBytes = 64, .Height = 50};
    OK(cuMemcpy2DAsync(&back, s));
    OK(cuStreamSynchronize(s));
    assert_memory_equal(t->host + MIB, t->host + 640, 64 * 50);
    OK(cuStreamDestroy(s));
}

static void test_new_memory_is_no_zeros(void **state)
{
    struct emu_test *t = *state;
    CUdeviceptr p;
    OK(cuMemAlloc(&p, MIB));
    OK(cuMemcpyDtoH(t->host, p, MIB));
    size_t zeros = 0;
    for (size_t i = 0; i < MIB; i++)
        zeros += t->host[i] == 0;
    assert_true(zeros < MIB / 100);
    OK(cuMemFree(p));
}

static void test_freed_memory_is_refused(void **state)
{
    struct emu_test *t = *state;
    CUdeviceptr p, q, base;
    size_t size;
    int type;
    OK(cuMemAlloc(&p, MIB));
    OK(cuMemFree(p));
    assert_int_equal(cuMemcpyDtoH(t->host, p, 16), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemcpy((CUdeviceptr)(uintptr_t)t->host, p, 16), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemGetAddressRange(&base, &size, p), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc(&q, MIB));
    assert_true(q != p);
    assert_int_equal(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(q));
    assert_int_equal(cuMemAlloc(&p, (size_t)1 << 46), CUDA_ERROR_OUT_OF_MEMORY);
}

static void test_pointer_attributes(void **state)
{
    struct emu_test *t = *state;
    int type, ordinal, local;
    unsigned long long id, id2;
    CUdeviceptr base;
    size_t size;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, t->a[1] + 100));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, t->flag_dev));
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, t->a[1]));
    assert_int_equal(ordinal, 1);
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, t->a[1] + 77));
    OK(cuPointerGetAttribute(&id2, CU_POINTER_ATTRIBUTE_BUFFER_ID, t->b[1]));
    assert_int_not_equal(id, id2);
    OK(cuMemGetAddressRange(&base, &size, t->a[1] + 77));
    assert_true(base == t->a[1] && size == 8 * MIB);
    assert_int_equal(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&local),
                     CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID};
    void *out[] = {&type, &id2};
    OK(cuPointerGetAttributes(2, which, out, t->a[1]));
    assert_true(type == CU_MEMORYTYPE_DEVICE && id2 == id);
    OK(cuPointerGetAttributes(2, which, out, (CUdeviceptr)(uintptr_t)&local));
    assert_true(type == 0 && id2 == 0);
}

/* Whether a wait with these is satisfied at once. */
static bool passes(struct emu_test *t, uint32_t have, uint32_t want, unsigned flags)
{
    CUstream s = new_stream();
    store(t->flag + 8, have);
    OK(cuStreamWaitValue32(s, t->flag_dev + 32, want, flags));
    OK(cuStreamWriteValue32(s, t->flag_dev + 36, 1, 0));
    bool passed = becomes(t->flag + 9, 1, SHORT_NS / 5);
    store(t->flag + 8, flags == CU_STREAM_WAIT_VALUE_NOR ? 0 : want);
    OK(cuStreamSynchronize(s));
    store(t->flag + 9, 0);
    OK(cuStreamDestroy(s));
    return passed;
}

static void test_wait_comparisons(void **state)
{
    struct emu_test *t = *state;
    assert_true(passes(t, 5, 5, CU_STREAM_WAIT_VALUE_GEQ));
    assert_true(passes(t, 6, 5, CU_STREAM_WAIT_VALUE_GEQ));
    assert_false(passes(t, 4, 5, CU_STREAM_WAIT_VALUE_GEQ));
    assert_true(passes(t, 3, 0xfffffff0u, CU_STREAM_WAIT_VALUE_GEQ)); /* cyclic */
    assert_false(passes(t, 0xfffffff0u, 3, CU_STREAM_WAIT_VALUE_GEQ));
    assert_true(passes(t, 5 + 0x40000000u, 5, CU_STREAM_WAIT_VALUE_GEQ));
    assert_true(passes(t, 5, 5, CU_STREAM_WAIT_VALUE_EQ));
    assert_false(passes(t, 6, 5, CU_STREAM_WAIT_VALUE_EQ));
    assert_true(passes(t, 6, 2, CU_STREAM_WAIT_VALUE_AND));
    assert_false(passes(t, 4, 2, CU_STREAM_WAIT_VALUE_AND));
    assert_true(passes(t, 0, 1, CU_STREAM_WAIT_VALUE_NOR));
    assert_false(passes(t, 0xfffffffeu, 1, CU_STREAM_WAIT_VALUE_NOR));
}

/* Nothing behind a wait runs before it is satisfied; everything in front of a write has happened when it is seen. */
static void test_stream_order(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream();
    fill(t->host, 2 * MIB, 9);
    memset(t->host + 2 * MIB, 0, 2 * MIB);
    CUstreamBatchMemOpParams pair[2];
    memset(pair, 0, sizeof pair);
    pair[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    pair[0].writeValue.address = t->flag_dev + 64;
    pair[0].writeValue.value = 1;
    pair[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    pair[1].waitValue.address = t->flag_dev + 68;
    pair[1].waitValue.value = 1;
    store(t->flag + 17, 0);
    OK(cuStreamBatchMemOp(s, 2, pair, 0));
    OK(cuMemcpyHtoDAsync(t->a[0], t->host, 2 * MIB, s));
    OK(cuMemcpyDtoHAsync(t->host + 2 * MIB, t->a[0], 2 * MIB, s));
    OK(cuStreamWriteValue32(s, t->flag_dev + 72, 1, 0));
    assert_true(becomes(t->flag + 16, 1, LONG_NS));
    assert_false(becomes(t->flag + 18, 1, SHORT_NS));
    assert_int_equal(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    store(t->flag + 17, 1);
    assert_true(becomes(t->flag + 18, 1, LONG_NS));
    assert_filled(t->host + 2 * MIB, 2 * MIB, 9);
    OK(cuStreamSynchronize(s));
    OK(cuStreamQuery(s));
    OK(cuStreamDestroy(s));
}

static void test_events(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream(), q = new_stream();
    CUevent e, f;
    float ms;
    OK(cuEventCreate(&e, 0));
    OK(cuEventCreate(&f, 0));
    OK(cuEventQuery(e)); /* never recorded: passed */
    store(t->flag, 0);
    store(t->flag + 1, 0);
    OK(cuStreamWaitValue32(s, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(q, e, 0));
    OK(cuStreamWriteValue32(q, t->flag_dev + 4, 1, 0));
    assert_int_equal(cuEventQuery(e), CUDA_ERROR_NOT_READY);
    assert_false(becomes(t->flag + 1, 1, SHORT_NS));
    store(t->flag, 1);
    OK(cuEventSynchronize(e));
    assert_true(becomes(t->flag + 1, 1, LONG_NS));
    OK(cuEventRecord(f, q));
    OK(cuStreamSynchronize(q));
    OK(cuEventElapsedTime(&ms, e, f));
    assert_true(ms >= 0);
    OK(cuEventDestroy(e));
    OK(cuEventDestroy(f));
    assert_int_equal(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamDestroy(s));
    OK(cuStreamDestroy(q));
}

static void test_stream_ids_are_new(void **state)
{
    (void)state;
    unsigned long long a, b;
    CUstream s = new_stream();
    OK(cuStreamGetId(s, &a));
    OK(cuStreamDestroy(s));
    s = new_stream();
    OK(cuStreamGetId(s, &b));
    assert_int_not_equal(a, b);
    OK(cuStreamDestroy(s));
    assert_int_equal(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
}

static void test_legacy_stream(void **state)
{
    struct emu_test *t = *state;
    CUstream blocking, other = new_stream();
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    store(t->flag, 0);
    store(t->flag + 1, 0);
    store(t->flag + 2, 0);
    OK(cuStreamWaitValue32(blocking, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue32(NULL, t->flag_dev + 4, 1, 0));
    OK(cuStreamWriteValue32(other, t->flag_dev + 8, 1, 0));
    assert_true(becomes(t->flag + 2, 1, LONG_NS)); /* non-blocking streams do not care */
    assert_false(becomes(t->flag + 1, 1, SHORT_NS));
    store(t->flag, 1);
    assert_true(becomes(t->flag + 1, 1, LONG_NS));
    OK(cuStreamDestroy(blocking));
    OK(cuStreamDestroy(other));
}

static void host_function(void *arg)
{
    store(arg, 5);
}

static void test_host_function(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream();
    uint32_t word = 0;
    store(t->flag + 3, 0);
    OK(cuLaunchHostFunc(s, host_function, &word));
    OK(cuStreamWriteValue32(s, t->flag_dev + 12, 1, 0));
    assert_true(becomes(t->flag + 3, 1, LONG_NS));
    assert_int_equal(load(&word), 5);
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy(s));
}

static void test_error_text(void **state)
{
    (void)state;
    const char *text;
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    assert_string_equal(text, "out of memory");
    void *entry;
    CUdriverProcAddressQueryResult found;
    OK(cuGetProcAddress("cuMemAlloc", &entry, 13000, 0, &found));
    assert_ptr_equal(entry, dlsym(hoccl_cuda_driver(), "cuMemAlloc_v2"));
    assert_int_equal(cuGetProcAddress("cuNoSuchThing", &entry, 13000, 0, &found), CUDA_ERROR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_local_copy_counts),
        cmocka_unit_test(test_pageable),
        cmocka_unit_test(test_2d),
        cmocka_unit_test(test_new_memory_is_no_zeros),
        cmocka_unit_test(test_freed_memory_is_refused),
        cmocka_unit_test(test_pointer_attributes),
        cmocka_unit_test(test_wait_comparisons),
        cmocka_unit_test(test_stream_order),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_stream_ids_are_new),
        cmocka_unit_test(test_legacy_stream),
        cmocka_unit_test(test_host_function),
        cmocka_unit_test(test_error_text),
    };
    emu_environment(NULL);
    return cmocka_run_group_tests(tests, emu_setup, NULL);
}
