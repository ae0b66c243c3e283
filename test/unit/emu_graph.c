/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capture and replay of copies, memsets and memory operations; what spoils a capture and what does not; the
 * per-thread default stream, by handle and by the names that programs compiled for it refer to.
 */
#include "emu_test.h"

static void test_capture_and_replay(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream();
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes = 0;
    memset(t->host, 0, 2 * MIB);
    store(t->flag + 1, 0);
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemcpyHtoDAsync(t->a[0], t->host, MIB, s));
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], MIB, s));
    OK(cuMemcpyDtoHAsync(t->host + MIB, t->b[1], MIB, s));
    OK(cuMemsetD8Async(t->a[0], 0, MIB, s));
    OK(cuStreamWriteValue32(s, t->flag_dev + 4, 1, 0));
    OK(cuStreamWaitValue32(s, t->flag_dev + 8, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue32(s, t->flag_dev + 4, 2, 0));
    OK(cuStreamEndCapture(s, &graph));
    assert_int_equal(load(t->flag + 1), 0); /* nothing has run */
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 7);
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int round = 1; round < 4; round++) {
        memset(t->host, round, MIB);
        store(t->flag + 2, 0);
        OK(cuGraphLaunch(exec, s));
        assert_true(becomes(t->flag + 1, 1, LONG_NS));
        assert_false(becomes(t->flag + 1, 2, SHORT_NS / 4));
        store(t->flag + 2, 1);
        OK(cuStreamSynchronize(s));
        assert_int_equal(load(t->flag + 1), 2);
        assert_memory_equal(t->host, t->host + MIB, MIB);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuStreamDestroy(s));
}

/* A second stream joins by an event and must be joined back. */
static void test_fork_and_join(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream(), q = new_stream();
    CUevent e;
    CUgraph graph;
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    for (int joined = 1; joined >= 0; joined--) {
        OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 64, s));
        OK(cuEventRecord(e, s));
        OK(cuStreamWaitEvent(q, e, 0));
        OK(cuMemcpyDtoHAsync(t->host, t->a[0], 64, q));
        if (joined) {
            OK(cuEventRecord(e, q));
            OK(cuStreamWaitEvent(s, e, 0));
        }
        assert_int_equal(cuStreamEndCapture(s, &graph), joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        if (joined)
            OK(cuGraphDestroy(graph));
    }
    CUstreamCaptureStatus status;
    OK(cuStreamIsCapturing(q, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuEventDestroy(e));
    OK(cuStreamDestroy(s));
    OK(cuStreamDestroy(q));
}

static void *other_thread(void *arg)
{
    struct emu_test *t = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr p;
    OK(cuCtxSetCurrent(t->ctx[0]));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuMemAlloc(&p, 4096));
    OK(cuMemFree(p));
    return NULL;
}

/* Unsafe calls spoil a global capture, unless their thread is relaxed. */
static void test_what_spoils_a_capture(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream();
    CUgraph graph;
    CUdeviceptr p;
    pthread_t thread;
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    pthread_create(&thread, NULL, other_thread, t);
    pthread_join(thread, NULL);
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 64, s));
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(cuMemAlloc(&p, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuMemcpyDtoDAsync(t->b[1], t->a[0], 64, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    assert_int_equal(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamDestroy(s));
}

static void test_graph_by_hand(void **state)
{
    struct emu_test *t = *state;
    CUDA_MEMCPY3D m = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = t->a[0], .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = t->b[1], .WidthInBytes = 4096, .Height = 1, .Depth = 1};
    CUDA_MEMSET_NODE_PARAMS p = {.dst = t->a[0], .value = 0x1234, .elementSize = 2, .width = 2048, .height = 1};
    CUgraph graph;
    CUgraphNode set, copy;
    CUgraphExec exec;
    CUstream s = new_stream();
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&set, graph, NULL, 0, &p, t->ctx[0]));
    OK(cuGraphAddMemcpyNode(&copy, graph, &set, 1, &m, t->ctx[0]));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphUpload(exec, s));
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH(t->host, t->b[1], 4096));
    assert_true(t->host[0] == 0x34 && t->host[1] == 0x12 && t->host[4095] == 0x12);
    m.dstDevice = t->b[1] + 8192;
    OK(cuGraphExecMemcpyNodeSetParams(exec, copy, &m, t->ctx[0]));
    OK(cuMemsetD8(t->b[1], 0, 16384));
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH(t->host, t->b[1], 16384));
    assert_true(t->host[0] == 0 && t->host[8192] == 0x34);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(s));
}

CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags);
CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id);

static void *own_stream_id(void *arg)
{
    struct emu_test *t = arg;
    static unsigned long long id;
    OK(cuCtxSetCurrent(t->ctx[0]));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &id));
    return &id;
}

/* The thread's own stream: another one in each thread, not held up by another thread's, reached by the NULL handle
 * through the _ptsz names. */
static void test_per_thread_stream(void **state)
{
    struct emu_test *t = *state;
    unsigned long long mine, legacy, by_name;
    pthread_t thread;
    void *other;
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
    OK(cuStreamGetId(NULL, &legacy));
    OK(cuStreamGetId_ptsz(NULL, &by_name));
    pthread_create(&thread, NULL, own_stream_id, t);
    pthread_join(thread, &other);
    assert_true(mine != legacy && by_name == mine && *(unsigned long long *)other != mine);
    store(t->flag, 0);
    store(t->flag + 1, 0);
    OK(cuStreamWaitValue32(CU_STREAM_PER_THREAD, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue32_v2_ptsz(NULL, t->flag_dev + 4, 1, 0));
    assert_false(becomes(t->flag + 1, 1, SHORT_NS / 4));
    store(t->flag, 1);
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    assert_int_equal(load(t->flag + 1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capture_and_replay), cmocka_unit_test(test_fork_and_join),
        cmocka_unit_test(test_what_spoils_a_capture), cmocka_unit_test(test_graph_by_hand),
        cmocka_unit_test(test_per_thread_stream),
    };
    emu_environment(NULL);
    return cmocka_run_group_tests(tests, emu_setup, NULL);
}
