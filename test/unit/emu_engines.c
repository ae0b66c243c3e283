/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines and SMs: one FIFO a direction, a stream with a backlog drains first, directions do not disturb each other,
 * zero SM with every slot held, bounded queues that block the thread that enqueues and no other.
 */
#include "emu_test.h"
#include <sys/resource.h>

/* While every thread slot is held, copies off the GPU and memory operations run, copies within it wait. */
static void test_zero_sm(void **state)
{
    struct emu_test *t = *state;
    CUstream held = new_stream(), s = new_stream(), local = new_stream();
    uint64_t start = now_ns();
    hold_all(held, 1000000000);
    uint64_t before = sm_work();
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], MIB, s));
    OK(cuMemcpyDtoDAsync(t->b[0], t->a[1], MIB, s));
    OK(cuMemcpyDtoHAsync(t->host, t->a[0], MIB, s));
    OK(cuMemcpyHtoDAsync(t->a[0], t->host, MIB, s));
    OK(cuMemcpyHtoDAsync(t->a[0], t->host, 64, s));
    OK(cuStreamWriteValue32(s, t->flag_dev + 4, 1, 0));
    OK(cuStreamWaitValue32(s, t->flag_dev + 4, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamSynchronize(s));
    assert_int_equal(sm_work(), before);
    store(t->flag + 2, 0);
    OK(cuMemcpyDtoDAsync(t->b[0], t->a[0], 4096, local));
    OK(cuStreamWriteValue32(local, t->flag_dev + 8, 1, 0));
    assert_false(becomes(t->flag + 2, 1, SHORT_NS));
    assert_true(now_ns() - start < 1000000000); /* all of this happened while the kernel ran */
    assert_true(becomes(t->flag + 2, 1, LONG_NS));
    assert_true(now_ns() - start >= 1000000000);
    assert_int_equal(sm_work(), before + 1);
    OK(cuStreamSynchronize(held));
    OK(cuStreamDestroy(held));
    OK(cuStreamDestroy(s));
    OK(cuStreamDestroy(local));
}

/* Every form of a copy within the GPU runs on its SMs, also from a stream of the other GPU. */
static void test_local_forms(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream(), other;
    CUDA_MEMCPY2D m2 = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = t->a[0], .srcPitch = 64,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = t->b[0], .dstPitch = 128,
                        .WidthInBytes = 64, .Height = 4};
    CUDA_MEMCPY3D_PEER m3 = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = t->a[0], .srcContext = t->ctx[0],
                             .srcPitch = 64, .srcHeight = 4, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                             .dstDevice = t->b[0], .dstContext = t->ctx[0], .dstPitch = 64, .dstHeight = 4,
                             .WidthInBytes = 64, .Height = 4, .Depth = 2};
    CUmemcpyAttributes attr = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                               .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE};
    CUdeviceptr dst[4], src[4];
    size_t bytes[4], first = 0;
    for (int i = 0; i < 4; i++) {
        dst[i] = t->b[0] + (size_t)i * 4096;
        src[i] = t->a[0] + (size_t)i * 4096;
        bytes[i] = 4096;
    }
    uint64_t before = sm_work();
    OK(cuMemcpy2DAsync(&m2, s));
    OK(cuMemcpy3DPeerAsync(&m3, s));
    OK(cuMemcpyBatchAsync(dst, src, bytes, 1, &attr, &first, 1, s));
    OK(cuMemcpyBatchAsync(dst, src, bytes, 4, &attr, &first, 1, s));
    OK(cuStreamSynchronize(s));
    assert_int_equal(sm_work(), before + 7);
    OK(cuCtxSetCurrent(t->ctx[1]));
    other = new_stream();
    OK(cuMemcpyDtoDAsync(t->b[0], t->a[0], 4096, other));
    OK(cuStreamSynchronize(other));
    OK(cuStreamDestroy(other));
    OK(cuCtxSetCurrent(t->ctx[0]));
    assert_int_equal(sm_work(), before + 8);
    OK(cuStreamDestroy(s));
}

/* Two streams with a backlog for one engine: the first drains before the second starts, however they were mixed. */
static void test_backlog_drains_first(void **state)
{
    struct emu_test *t = *state;
    CUstream s[2] = {new_stream(), new_stream()};
    enum { N = 16 };
    CUevent e[2][N];
    float ms;
    store(t->flag, 0);
    for (int i = 0; i < 2; i++)
        OK(cuStreamWaitValue32(s[i], t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (int k = 0; k < N; k++)
        for (int i = 0; i < 2; i++) {
            OK(cuEventCreate(&e[i][k], 0));
            OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], MIB, s[i]));
            OK(cuEventRecord(e[i][k], s[i]));
        }
    store(t->flag, 1);
    OK(cuStreamSynchronize(s[0]));
    OK(cuStreamSynchronize(s[1]));
    OK(cuEventElapsedTime(&ms, e[0][N - 1], e[1][0]));
    float other;
    OK(cuEventElapsedTime(&other, e[1][N - 1], e[0][0]));
    assert_true(ms >= 0 || other >= 0); /* one of them was through before the other began to end */
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < N; k++)
            OK(cuEventDestroy(e[i][k]));
        OK(cuStreamDestroy(s[i]));
    }
}

/* A synchronous copy from pageable memory returns when it has taken the bytes; they land later, in stream order (measured).
 * Seen when the call is back before the backlog in front of it, which a busy machine may prevent now and then. */
static void test_pageable_lands_late(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream();
    CUevent backlog;
    unsigned char up[64], down[64];
    bool seen = false;
    OK(cuEventCreate(&backlog, 0));
    for (int i = 0; i < 20 && !seen; i++) {
        for (int k = 0; k < 32; k++)
            OK(cuMemcpyHtoDAsync(t->a[0], t->host, 8 * MIB, s));
        OK(cuEventRecord(backlog, s));
        memset(up, 0x40 + i, sizeof up);
        OK(cuMemcpyHtoD(t->b[0], up, sizeof up));
        memset(up, 0, sizeof up);
        seen = cuEventQuery(backlog) == CUDA_ERROR_NOT_READY;
        OK(cuMemcpyDtoH(down, t->b[0], sizeof down));
        for (size_t b = 0; b < sizeof down; b++)
            assert_int_equal(down[b], 0x40 + i);
        OK(cuStreamSynchronize(s));
    }
    assert_true(seen);
    OK(cuEventDestroy(backlog));
    OK(cuStreamDestroy(s));
}

/* A long copy in one direction does not hold up a short one in another: rates are per engine. */
static void test_directions_are_independent(void **state)
{
    struct emu_test *t = *state;
    CUstream slow = new_stream(), s = new_stream();
    OK(cuMemcpyDtoHAsync(t->host, t->a[0], 8 * MIB, slow)); /* 80 ms at the rate that main() sets */
    store(t->flag + 1, 0);
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 4096, s));
    OK(cuMemcpyDtoDAsync(t->b[0], t->a[1], 4096, s));
    OK(h2d_2d(t->a[0], t->host, 4096, s));
    OK(cuStreamWriteValue32(s, t->flag_dev + 4, 1, 0));
    assert_true(becomes(t->flag + 1, 1, LONG_NS));
    assert_int_equal(cuStreamQuery(slow), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(slow));
    OK(cuStreamDestroy(slow));
    OK(cuStreamDestroy(s));
}

struct ahead {
    struct emu_test *t;
    CUstream s;
    bool copies;
    uint32_t done;
};

static void *run_ahead(void *arg)
{
    struct ahead *a = arg;
    OK(cuCtxSetCurrent(a->t->ctx[0]));
    for (uint32_t i = 1; i <= 1500; i++) {
        if (a->copies) {
            OK(cuMemcpyDtoDAsync(a->t->b[1], a->t->a[0], 256, a->s));
        } else {
            OK(cuStreamWriteValue32(a->s, a->t->flag_dev + 128, i, 0));
            OK(cuStreamWaitValue32(a->s, a->t->flag_dev, i, CU_STREAM_WAIT_VALUE_GEQ));
        }
        store(&a->done, i);
    }
    return NULL;
}

/* How many calls a stream takes behind a parked wait; meanwhile another thread's copies run. */
static uint32_t depth(struct emu_test *t, bool copies)
{
    struct ahead a = {t, new_stream(), copies, 0};
    CUstream s = new_stream();
    pthread_t thread;
    store(t->flag, 0);
    if (copies)
        OK(cuStreamWaitValue32(a.s, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    pthread_create(&thread, NULL, run_ahead, &a);
    uint32_t before = 0, n;
    for (int quiet = 0; quiet < 20; before = n) {
        usleep(10000);
        n = load(&a.done);
        quiet = n == before && n ? quiet + 1 : 0;
    }
    OK(cuMemcpyDtoHAsync(t->host, t->a[0], 4096, s));
    OK(cuStreamSynchronize(s));
    store(t->flag, 5000);
    pthread_join(thread, NULL);
    OK(cuStreamSynchronize(a.s));
    OK(cuStreamDestroy(a.s));
    OK(cuStreamDestroy(s));
    return n;
}

static void test_queue_bound(void **state)
{
    struct emu_test *t = *state;
    assert_int_equal(depth(t, false), 511);
    assert_in_range(depth(t, true), 1015, 1025);
}

/* Half of the slots held: a copy within the GPU has room. */
static void test_partial_hold(void **state)
{
    struct emu_test *t = *state;
    CUstream held = new_stream(), s = new_stream();
    uint64_t ns = 300000000, start = now_ns();
    void *args[] = {&ns};
    int fit;
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, function("hold"), 1024, 0));
    assert_int_equal(fit, 2);
    OK(cuLaunchKernel(function("hold"), 132, 1, 1, 1024, 1, 1, 0, held, args, NULL));
    OK(cuMemcpyDtoDAsync(t->b[0], t->a[0], 4096, s));
    OK(cuStreamSynchronize(s));
    assert_true(now_ns() - start < ns);
    OK(cuStreamSynchronize(held));
    assert_true(now_ns() - start >= ns);
    OK(cuStreamDestroy(held));
    OK(cuStreamDestroy(s));
}

/* A push, then a flag in the peer's memory: who sees the flag there sees the bytes. */
static void test_flag_in_peer_memory(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream(), peer;
    CUdeviceptr flag = t->b[1] + 4 * MIB;
    OK(cuMemsetD32(flag, 0, 1));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(t->ctx[1]));
    peer = new_stream();
    for (uint32_t i = 1; i <= 50; i++) {
        OK(cuCtxSetCurrent(t->ctx[0]));
        OK(cuMemsetD32Async(t->a[0], i, MIB / 4, s));
        OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], MIB, s));
        OK(cuStreamWriteValue32(s, flag, i, 0));
        OK(cuCtxSetCurrent(t->ctx[1]));
        OK(cuStreamWaitValue32(peer, flag, i, CU_STREAM_WAIT_VALUE_GEQ));
        OK(cuMemcpyDtoHAsync(t->host, t->b[1], MIB, peer));
        OK(cuStreamSynchronize(peer));
        const uint32_t *words = (const uint32_t *)(void *)t->host;
        for (size_t k = 0; k < MIB / 4; k += 1021)
            assert_int_equal(words[k], i);
    }
    OK(cuStreamDestroy(peer));
    OK(cuCtxSetCurrent(t->ctx[0]));
    OK(cuStreamDestroy(s));
}

/* How often threads of this process have gone to sleep: each poll of the executor is one. */
static long sleeps(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_nvcsw;
}

/* Idle, nothing wakes up; for parked waits the executor looks ever more seldom, and not once for each of them. */
static void test_idle_cost(void **state)
{
    struct emu_test *t = *state;
    CUstream s[16];
    long before = sleeps();
    usleep(500000);
    assert_true(sleeps() - before < 20);
    store(t->flag, 0);
    for (int i = 0; i < 16; i++) {
        s[i] = new_stream();
        OK(cuStreamWaitValue32(s[i], t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    }
    usleep(200000);
    before = sleeps();
    usleep(1000000);
    long polls = sleeps() - before;
    print_message("16 waits that have stood for 0.2 s: %ld polls a second\n", polls);
    assert_in_range(polls, 1, 1000);
    store(t->flag, 1);
    for (int i = 0; i < 16; i++)
        OK(cuStreamDestroy(s[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zero_sm),
        cmocka_unit_test(test_local_forms),
        cmocka_unit_test(test_backlog_drains_first),
        cmocka_unit_test(test_pageable_lands_late),
        cmocka_unit_test(test_directions_are_independent),
        cmocka_unit_test(test_queue_bound),
        cmocka_unit_test(test_partial_hold),
        cmocka_unit_test(test_flag_in_peer_memory),
        cmocka_unit_test(test_idle_cost),
    };
    emu_environment("8");
    setenv("HOCCL_EMU_RATE", "d2h=100", 1);
    return cmocka_run_group_tests(tests, emu_setup, NULL);
}
