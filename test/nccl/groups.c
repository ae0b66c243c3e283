/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread that drives several GPUs, as nccl-tests -g does: InitAll, groups that make communicators, groups over several
 * communicators and streams, Split, ends in groups, non-blocking communicators, abort while one is being made.
 */
#include "kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GPUS = 8, BYTES = 5000 };

static CUcontext context[GPUS];

/* What one GPU has. */
static struct gpu {
    struct rank rank; /* only to note faults */
    ncclComm_t comm;
    CUstream stream;
    char *out, *in;
} gpu[GPUS];

static void set_device(int i)
{
    assert_int_equal(cuCtxSetCurrent(context[i]), CUDA_SUCCESS);
}

static void open_gpus(void)
{
    for (int i = 0; i < GPUS; i++) {
        struct gpu *g = &gpu[i];
        assert_int_equal(cuDevicePrimaryCtxRetain(&context[i], i), CUDA_SUCCESS);
        set_device(i);
        g->rank = (struct rank){.rank = i, .size = GPUS};
        assert_int_equal(cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        nccl_good(ncclMemAlloc((void **)&g->out, BYTES * GPUS));
        nccl_good(ncclMemAlloc((void **)&g->in, BYTES * GPUS));
    }
}

static void close_gpus(void)
{
    for (int i = 0; i < GPUS; i++) {
        set_device(i);
        nccl_good(ncclMemFree(gpu[i].out));
        nccl_good(ncclMemFree(gpu[i].in));
        assert_int_equal(cuStreamDestroy(gpu[i].stream), CUDA_SUCCESS);
        cuDevicePrimaryCtxRelease(i);
    }
    cuCtxSetCurrent(NULL);
}

static void no_faults(void)
{
    for (int i = 0; i < GPUS; i++)
        if (gpu[i].rank.failed)
            fail_msg("%s", gpu[i].rank.text);
}

/* A ring over the first n, by one group, while GPU 0's context is current all the time. */
static void ring_post(int n, unsigned key)
{
    for (int i = 0; i < n; i++) {
        set_device(i);
        nccl_fill(&gpu[i].rank, gpu[i].out, BYTES, i, (i + 1) % n, key);
    }
    set_device(0);
    nccl_good(ncclGroupStart());
    for (int i = 0; i < n; i++) {
        nccl_good(ncclSend(gpu[i].out, BYTES, ncclInt8, (i + 1) % n, gpu[i].comm, gpu[i].stream));
        nccl_good(ncclRecv(gpu[i].in, BYTES, ncclInt8, (i + n - 1) % n, gpu[i].comm, gpu[i].stream));
    }
}

static void ring_verify(int n, unsigned key)
{
    for (int i = 0; i < n; i++) {
        set_device(i);
        assert_int_equal(cuStreamSynchronize(gpu[i].stream), CUDA_SUCCESS);
        nccl_verify(&gpu[i].rank, gpu[i].in, BYTES, (i + n - 1) % n, i, key);
    }
    cuCtxSetCurrent(NULL);
    no_faults();
}

static void ring(int n, unsigned key)
{
    ring_post(n, key);
    nccl_good(ncclGroupEnd());
    ring_verify(n, key);
}

static void destroy(int n)
{
    for (int i = 0; i < n; i++) {
        nccl_good(ncclCommDestroy(gpu[i].comm));
        gpu[i].comm = NULL;
    }
}

static void init_all(int n)
{
    ncclComm_t comms[GPUS];
    nccl_good(ncclCommInitAll(comms, n, NULL));
    for (int i = 0; i < n; i++)
        gpu[i].comm = comms[i];
}

/* Before anything else in this process is current anywhere: device 0, as with the CUDA runtime. */
static void test_no_device_set(void **state)
{
    ncclUniqueId id;
    ncclComm_t comm;
    int device = -1;

    (void)state;
    nccl_good(ncclGetUniqueId(&id));
    nccl_good(ncclCommInitRank(&comm, 1, id, 0));
    nccl_good(ncclCommCuDevice(comm, &device));
    assert_int_equal(device, 0);
    nccl_good(ncclCommDestroy(comm));
}

static void test_init_all(void **state)
{
    static const int backwards[] = {3, 2, 1, 0};
    CUcontext now = NULL;
    ncclComm_t comms[4];

    (void)state;
    for (int n = 1; n <= GPUS; n *= 2) {
        set_device(1);
        init_all(n);
        assert_int_equal(cuCtxGetCurrent(&now), CUDA_SUCCESS);
        assert_ptr_equal(now, context[1]);
        ring(n, (unsigned)n);
        destroy(n);
    }
    nccl_good(ncclCommInitAll(comms, 4, backwards));
    for (int i = 0; i < 4; i++) {
        int rank = -1, device = -1;
        nccl_good(ncclCommUserRank(comms[i], &rank));
        nccl_good(ncclCommCuDevice(comms[i], &device));
        assert_int_equal(rank, i);
        assert_int_equal(device, 3 - i);
    }
    nccl_good(ncclGroupStart());
    for (int i = 0; i < 4; i++)
        nccl_good(ncclCommDestroy(comms[i]));
    nccl_good(ncclGroupEnd());
}

/* As nccl-tests does it. */
static void test_init_in_group(void **state)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;

    (void)state;
    config.CTAPolicy = 2;
    config.nvlinkCentricSched = 1;
    nccl_good(ncclGetUniqueId(&id));
    nccl_good(ncclGroupStart());
    for (int i = 0; i < 4; i++) {
        set_device(i);
        nccl_good(ncclCommInitRankConfig(&gpu[i].comm, 4, id, i, &config));
        assert_non_null(gpu[i].comm);
        nccl_bad(ncclCommCount(gpu[i].comm, &(int){0}), ncclInvalidArgument, "still being made");
    }
    nccl_good(ncclGroupEnd());
    ring(4, 20);
    destroy(4);
    /* One alone belongs to the device of its call. */
    set_device(5);
    nccl_good(ncclGetUniqueId(&id));
    nccl_good(ncclGroupStart());
    nccl_good(ncclCommInitRankScalable(&gpu[5].comm, 1, 0, 1, &id, NULL));
    set_device(6);
    nccl_good(ncclGroupEnd());
    int device = -1;
    nccl_good(ncclCommCuDevice(gpu[5].comm, &device));
    assert_int_equal(device, 5);
    nccl_good(ncclCommDestroy(gpu[5].comm));
}

static void test_failed_group_makes_nothing(void **state)
{
    ncclUniqueId id, wrong = {{0}};
    ncclComm_t comm[2] = {(ncclComm_t)1, (ncclComm_t)1};

    (void)state;
    nccl_good(ncclGetUniqueId(&id));
    nccl_good(ncclGroupStart());
    nccl_good(ncclCommInitRank(&comm[0], 1, id, 0));
    nccl_good(ncclCommInitRank(&comm[1], 1, wrong, 0));
    nccl_bad(ncclGroupEnd(), ncclInvalidArgument, "id");
    assert_null(comm[0]);
    assert_null(comm[1]);
    nccl_good(ncclGroupStart());
    nccl_good(ncclCommInitRank(&comm[0], 1, id, 0));
    nccl_bad(ncclCommInitRank(&comm[1], 1, id, 7), ncclInvalidArgument, "rank 7");
    nccl_bad(ncclGroupEnd(), ncclInvalidArgument, "rank 7");
    assert_null(comm[0]);
    set_device(0);
    nccl_good(ncclGetUniqueId(&id));
    nccl_good(ncclCommInitRank(&comm[0], 1, id, 0)); /* the next one works */
    nccl_good(ncclCommDestroy(comm[0]));
}

/* Nested groups, several operations, collectives among them, and AlltoAll in place: all posted by one thread. */
static void test_collectives(void **state)
{
    const int n = 4;

    (void)state;
    init_all(n);
    for (int i = 0; i < n; i++) {
        set_device(i);
        for (int to = 0; to < n; to++)
            nccl_fill(&gpu[i].rank, gpu[i].in + to * 1000, 1000, i, to, 30);
        nccl_fill(&gpu[i].rank, gpu[i].out, 500, i, 0, 31);
    }
    nccl_good(ncclGroupStart());
    for (int i = 0; i < n; i++) {
        nccl_good(ncclGroupStart());
        nccl_good(ncclAlltoAll(gpu[i].in, gpu[i].in, 1000, ncclInt8, gpu[i].comm, gpu[i].stream));
        nccl_good(ncclGroupEnd());
        nccl_good(ncclAllGather(gpu[i].out, gpu[i].in + 4000, 500, ncclInt8, gpu[i].comm, gpu[i].stream));
        nccl_good(ncclBroadcast(gpu[i].out, gpu[i].in + 6000, 500, ncclInt8, 2, gpu[i].comm, gpu[i].stream));
    }
    nccl_good(ncclGroupEnd());
    for (int i = 0; i < n; i++) {
        set_device(i);
        nccl_sync(&gpu[i].rank, gpu[i].comm, gpu[i].stream);
        for (int from = 0; from < n; from++) {
            nccl_verify(&gpu[i].rank, gpu[i].in + from * 1000, 1000, from, i, 30);
            nccl_verify(&gpu[i].rank, gpu[i].in + 4000 + from * 500, 500, from, 0, 31);
        }
        nccl_verify(&gpu[i].rank, gpu[i].in + 6000, 500, 2, 0, 31);
    }
    no_faults();
    destroy(n);
}

/* ---- NCCL's rule for a group over several streams: it begins when all have reached it, and ends for all together --------- */

static void stays(CUstream stream)
{
    usleep(50000);
    assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
}

static void test_streams(void **state)
{
    CUstream late, other;
    CUdeviceptr flag;
    uint32_t *host;

    (void)state;
    init_all(2);
    set_device(0);
    assert_int_equal(cuStreamCreate(&late, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    assert_int_equal(cuMemHostAlloc((void **)&host, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
    assert_int_equal(cuMemHostGetDevicePointer(&flag, host, 0), CUDA_SUCCESS);
    __atomic_store_n(host, 0, __ATOMIC_SEQ_CST);
    assert_int_equal(cuStreamWaitValue32(late, flag, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    set_device(1);
    assert_int_equal(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);

    nccl_good(ncclGroupStart());
    nccl_good(ncclSend(gpu[0].out, 100, ncclInt8, 1, gpu[0].comm, gpu[0].stream));
    nccl_good(ncclRecv(gpu[0].in, 100, ncclInt8, 1, gpu[0].comm, late));
    nccl_good(ncclGroupEnd());
    nccl_good(ncclRecv(gpu[1].in, 100, ncclInt8, 0, gpu[1].comm, gpu[1].stream));
    stays(gpu[1].stream); /* rank 0's send has not begun, though its own stream has reached it */

    __atomic_store_n(host, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(cuStreamSynchronize(gpu[1].stream), CUDA_SUCCESS);
    stays(gpu[0].stream); /* the send is done, but not the receive beside it */

    nccl_good(ncclSend(gpu[1].out, 100, ncclInt8, 0, gpu[1].comm, other));
    assert_int_equal(cuStreamSynchronize(gpu[0].stream), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(late), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(other), CUDA_SUCCESS);
    destroy(2);
    cuStreamDestroy(other);
    cuStreamDestroy(late);
    cuMemFreeHost(host);
}

/* ---- split, finalize, simulate ----------------------------------------------------------------------------------- */

static void test_split(void **state)
{
    ncclComm_t part[4];

    (void)state;
    init_all(4);
    nccl_good(ncclGroupStart());
    for (int i = 0; i < 4; i++)
        nccl_good(ncclCommSplit(gpu[i].comm, i == 3 ? NCCL_SPLIT_NOCOLOR : 0, -i, &part[i], NULL));
    nccl_good(ncclGroupEnd());
    assert_null(part[3]);
    for (int i = 0; i < 3; i++) {
        int rank = -1, size = -1, device = -1;
        nccl_good(ncclCommUserRank(part[i], &rank));
        nccl_good(ncclCommCount(part[i], &size));
        nccl_good(ncclCommCuDevice(part[i], &device));
        assert_int_equal(rank, 2 - i);
        assert_int_equal(size, 3);
        assert_int_equal(device, i);
    }
    ring(4, 40); /* the parent works on */
    nccl_good(ncclGroupStart());
    for (int i = 0; i < 3; i++) {
        nccl_good(ncclAllGather(gpu[i].out, gpu[i].in, 100, ncclInt8, part[i], gpu[i].stream));
        nccl_good(ncclCommFinalize(part[i]));
    }
    nccl_good(ncclGroupEnd());
    nccl_bad(ncclSend(gpu[0].out, 1, ncclInt8, 1, part[0], gpu[0].stream), ncclInvalidUsage, "finalized");
    for (int i = 0; i < 3; i++)
        nccl_good(ncclCommDestroy(part[i]));
    destroy(4);
}

static void test_simulate(void **state)
{
    ncclSimInfo_t info = {sizeof info, NCCL_SIM_INFO_MAGIC, NCCL_VERSION_CODE, 5}, wrong = {0};

    (void)state;
    init_all(2);
    ring_post(2, 50);
    nccl_good(ncclGroupSimulateEnd(&info));
    assert_true(info.estimatedTime == NCCL_UNDEF_FLOAT);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuStreamQuery(gpu[i].stream), CUDA_SUCCESS); /* nothing has been posted */
    ring(2, 51);
    nccl_bad(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "without");
    nccl_good(ncclGroupStart());
    nccl_bad(ncclGroupSimulateEnd(&wrong), ncclInvalidArgument, "INITIALIZER");
    nccl_good(ncclGroupStart());
    nccl_good(ncclCommFinalize(gpu[0].comm));
    nccl_bad(ncclGroupSimulateEnd(NULL), ncclInvalidUsage, "cannot be simulated");
    ring(2, 52);
    destroy(2);
}

/* ---- a thread a GPU, with communicators that another thread has made, as nccl-tests -t does it --------------------------- */

static void *use(void *argument)
{
    struct gpu *g = argument;
    struct rank *r = &g->rank;
    ncclResult_t error = ncclSuccess;
    CUresult now = CUDA_SUCCESS;

    RANK_CUDA(r, cuCtxSetCurrent(context[r->rank]));
    for (unsigned i = 0; i < 20 && !r->failed; i++) {
        char *own = g->in + r->rank * 1000;
        nccl_fill(r, own, 1000, r->rank, 0, i);
        NCCL_OK(r, ncclAllGather(own, g->in, 1000, ncclInt8, g->comm, g->stream));
        do { /* both poll without a pause */
            now = cuStreamQuery(g->stream);
            NCCL_OK(r, ncclCommGetAsyncError(g->comm, &error));
        } while (now == CUDA_ERROR_NOT_READY && error == ncclSuccess);
        RANK_CUDA(r, now);
        NCCL_OK(r, error);
        for (int from = 0; from < 2; from++)
            nccl_verify(r, g->in + from * 1000, 1000, from, 0, i);
    }
    cuCtxSetCurrent(NULL);
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t thread[2];
    void *handle[2];

    (void)state;
    init_all(2);
    nccl_good(ncclGroupStart());
    for (int i = 0; i < 2; i++)
        nccl_good(ncclCommRegister(gpu[i].comm, gpu[i].in, BYTES, &handle[i]));
    nccl_good(ncclGroupEnd());
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, use, &gpu[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    no_faults();
    for (int i = 0; i < 2; i++)
        nccl_good(ncclCommDeregister(gpu[i].comm, handle[i]));
    destroy(2);
}

/* ---- non-blocking ------------------------------------------------------------------------------------------------ */

static void in_progress(ncclResult_t result)
{
    if (result != ncclInProgress)
        fail_msg("%s instead of in progress: %s", ncclGetErrorString(result), ncclGetLastError(NULL));
}

/* Threads of this process that take signals. */
static int listeners(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *d;
    int n = 0;

    assert_non_null(tasks);
    while ((d = readdir(tasks))) {
        char path[300], line[200];
        unsigned long long blocked;
        FILE *status;

        snprintf(path, sizeof path, "/proc/self/task/%s/status", d->d_name);
        status = d->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            if (sscanf(line, "SigBlk: %llx", &blocked) == 1)
                n += !(blocked >> (SIGUSR2 - 1) & 1);
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return n;
}

static void test_non_blocking(void **state)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t now = ncclSuccess;
    ncclComm_t part[4];
    ncclUniqueId id;
    int size, before;

    (void)state;
    config.blocking = 0;
    nccl_good(ncclGetUniqueId(&id));
    before = listeners();
    for (int i = 0; i < 4; i++) { /* without a group: no call waits */
        set_device(i);
        in_progress(ncclCommInitRankConfig(&gpu[i].comm, 4, id, i, &config));
        if (i == 3)
            break;
        nccl_good(ncclCommGetAsyncError(gpu[i].comm, &now));
        in_progress(now);
        assert_true(listeners() <= before); /* signals are not for the library's threads */
        nccl_bad(ncclCommCount(gpu[i].comm, &size), ncclInvalidArgument, "still being made");
        nccl_bad(ncclSend(gpu[i].out, 1, ncclInt8, 0, gpu[i].comm, NULL), ncclInvalidArgument, "still being made");
        nccl_bad(ncclCommDestroy(gpu[i].comm), ncclInvalidArgument, "still being made");
    }
    cuCtxSetCurrent(NULL);
    for (int i = 0; i < 4; i++)
        nccl_good(nccl_settled(gpu[i].comm));
    ring(4, 60);
    in_progress((nccl_good(ncclGroupStart()), nccl_good(ncclCommSplit(gpu[0].comm, 0, 0, &part[0], NULL)), ncclGroupEnd()));
    nccl_bad(ncclSend(gpu[0].out, 1, ncclInt8, 0, gpu[0].comm, NULL), ncclInvalidArgument, "split");
    for (int i = 1; i < 4; i++)
        in_progress(ncclCommSplit(gpu[i].comm, i == 3 ? NCCL_SPLIT_NOCOLOR : 0, 0, &part[i], NULL));
    for (int i = 0; i < 4; i++) {
        nccl_good(nccl_settled(gpu[i].comm));
        if (i < 3)
            nccl_good(nccl_settled(part[i]));
    }
    assert_null(part[3]);
    for (int i = 0; i < 3; i++)
        in_progress(ncclCommFinalize(part[i]));
    for (int i = 0; i < 3; i++) {
        nccl_good(nccl_settled(part[i]));
        nccl_good(ncclCommDestroy(part[i]));
    }
    ring(4, 61);
    destroy(4);
}

/* A rank that does not come: making fails after HOCCL_INIT_TIMEOUT, or is given up before. */
static void test_nobody_comes(void **state)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id[2];
    ncclComm_t comm[2], gone;
    int threads = 0, descriptors = 0;

    (void)state;
    ranks_hold(&descriptors, &threads);
    config.blocking = 0;
    set_device(0);
    for (int i = 0; i < 2; i++) {
        nccl_good(ncclGetUniqueId(&id[i]));
        in_progress(ncclCommInitRankConfig(&comm[i], 2, id[i], 0, &config));
    }
    gone = comm[0];
    nccl_good(ncclCommAbort(comm[0])); /* at once */
    nccl_bad(ncclCommAbort(gone), ncclInvalidArgument, "does not exist");
    assert_int_equal(nccl_settled(comm[1]), ncclRemoteError);
    nccl_bad(ncclSend(gpu[0].out, 1, ncclInt8, 0, comm[1], NULL), ncclRemoteError, "could not be made");
    nccl_good(ncclCommDestroy(comm[1]));
    assert_true(ranks_settle(descriptors, threads));
}

/* Aborted while the other end of an operation has not come, from another thread. */
static void *abort_it(void *comm)
{
    return (void *)(uintptr_t)ncclCommAbort(comm);
}

static void test_abort(void **state)
{
    pthread_t thread;
    void *result = NULL;

    (void)state;
    init_all(2);
    nccl_good(ncclRecv(gpu[0].in, 100, ncclInt8, 1, gpu[0].comm, gpu[0].stream));
    stays(gpu[0].stream);
    assert_int_equal(pthread_create(&thread, NULL, abort_it, gpu[0].comm), 0);
    pthread_join(thread, &result);
    nccl_good((ncclResult_t)(uintptr_t)result);
    set_device(0);
    assert_int_equal(cuStreamSynchronize(gpu[0].stream), CUDA_SUCCESS);
    nccl_good(ncclCommAbort(gpu[1].comm));
    nccl_good(ncclCommAbort(NULL));
    init_all(2); /* new ones work */
    ring(2, 70);
    destroy(2);
}

static int setup(void **state)
{
    (void)state;
    open_gpus();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_gpus();
    return 0;
}

int main(void)
{
    const struct CMUnitTest first[] = {cmocka_unit_test(test_no_device_set)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_all),      cmocka_unit_test(test_init_in_group), cmocka_unit_test(test_failed_group_makes_nothing),
        cmocka_unit_test(test_collectives),   cmocka_unit_test(test_streams),       cmocka_unit_test(test_split),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_simulate),      cmocka_unit_test(test_non_blocking),  cmocka_unit_test(test_nobody_comes),
        cmocka_unit_test(test_abort),
    };

    ranks_environment(GPUS);
    setenv("HOCCL_INIT_TIMEOUT", "5", 0);
    alarm(RANKS_SECONDS);
    if (cmocka_run_group_tests(first, NULL, NULL))
        return 1;
    return cmocka_run_group_tests(tests, setup, teardown);
}
