/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of NCCL's interface, with ranks as threads of one process: the operations in and out of place with every type,
 * what can be asked, registration, memory, errors and their texts, what is refused.
 */
#include "kit.h"
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 8 };

/* What a rank works with: room for a piece for each rank in either buffer. */
struct bench {
    struct rank *rank;
    ncclComm_t comm;
    CUstream stream;
    char *out, *in;
    size_t room;
};

static ncclUniqueId shared_id;

static const struct {
    ncclDataType_t type;
    size_t bytes;
} types[] = {{ncclInt8, 1},    {ncclUint8, 1},   {ncclInt32, 4},   {ncclUint32, 4},   {ncclInt64, 8},      {ncclUint64, 8},
             {ncclFloat16, 2}, {ncclFloat32, 4}, {ncclFloat64, 8}, {ncclBfloat16, 2}, {ncclFloat8e4m3, 1}, {ncclFloat8e5m2, 1}};
enum { TYPES = sizeof types / sizeof *types };

static bool bench_open(struct bench *b, struct rank *r, size_t piece)
{
    *b = (struct bench){.rank = r, .room = piece * (size_t)r->size};
    return NCCL_OK(r, ncclCommInitRank(&b->comm, r->size, shared_id, r->rank)) &&
           RANK_CUDA(r, cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING)) && NCCL_OK(r, ncclMemAlloc((void **)&b->out, b->room)) &&
           NCCL_OK(r, ncclMemAlloc((void **)&b->in, b->room));
}

static void bench_close(struct bench *b)
{
    struct rank *r = b->rank;
    if (b->comm && r->failed)
        ncclCommAbort(b->comm);
    else if (b->comm)
        NCCL_OK(r, ncclCommDestroy(b->comm));
    NCCL_OK(r, ncclMemFree(b->out));
    NCCL_OK(r, ncclMemFree(b->in));
    if (b->stream)
        cuStreamDestroy(b->stream);
}

static void run_threads(int size, void (*body)(struct rank *), void *arg)
{
    nccl_good(ncclGetUniqueId(&shared_id));
    ranks_run_bare(size, body, arg);
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

/* The piece of n bytes of a buffer that belongs to a rank. */
static char *piece(char *buf, int rank, size_t n)
{
    return buf + (size_t)rank * n;
}

static bool fill_for_all(struct bench *b, char *buf, size_t n, unsigned key)
{
    for (int to = 0; to < b->rank->size; to++)
        if (!nccl_fill(b->rank, piece(buf, to, n), n, b->rank->rank, to, key))
            return false;
    return true;
}

/* Piece p of buf has come from rank p. `to`: −1 for this rank. */
static bool verify_from_all(struct bench *b, char *buf, size_t n, int to, unsigned key)
{
    for (int from = 0; from < b->rank->size; from++)
        if (!nccl_verify(b->rank, piece(buf, from, n), n, from, to < 0 ? b->rank->rank : to, key))
            return false;
    return true;
}

static bool all_gather(struct bench *b, ncclDataType_t type, size_t count, size_t n, bool in_place)
{
    char *from = in_place ? piece(b->in, b->rank->rank, n) : b->out;
    return nccl_fill(b->rank, from, n, b->rank->rank, 0, 1) &&
           NCCL_OK(b->rank, ncclAllGather(from, b->in, count, type, b->comm, b->stream)) && nccl_sync(b->rank, b->comm, b->stream) &&
           verify_from_all(b, b->in, n, 0, 1);
}

static bool all_to_all(struct bench *b, ncclDataType_t type, size_t count, size_t n, bool in_place)
{
    char *from = in_place ? b->in : b->out;
    return fill_for_all(b, from, n, 2) && NCCL_OK(b->rank, ncclAlltoAll(from, b->in, count, type, b->comm, b->stream)) &&
           nccl_sync(b->rank, b->comm, b->stream) && verify_from_all(b, b->in, n, -1, 2);
}

static bool gather(struct bench *b, ncclDataType_t type, size_t count, size_t n, bool in_place)
{
    struct rank *r = b->rank;
    int root = r->size - 1;
    char *from = in_place && r->rank == root ? piece(b->in, root, n) : b->out;
    return nccl_fill(r, from, n, r->rank, root, 3) && NCCL_OK(r, ncclGather(from, b->in, count, type, root, b->comm, b->stream)) &&
           nccl_sync(r, b->comm, b->stream) && (r->rank != root || verify_from_all(b, b->in, n, -1, 3));
}

static bool scatter(struct bench *b, ncclDataType_t type, size_t count, size_t n, bool in_place)
{
    struct rank *r = b->rank;
    int root = r->size / 2;
    char *to = in_place && r->rank == root ? piece(b->out, root, n) : b->in;
    return (r->rank != root || fill_for_all(b, b->out, n, 4)) &&
           NCCL_OK(r, ncclScatter(b->out, to, count, type, root, b->comm, b->stream)) && nccl_sync(r, b->comm, b->stream) &&
           nccl_verify(r, to, n, root, r->rank, 4);
}

static bool broadcast(struct bench *b, ncclDataType_t type, size_t count, size_t n, bool in_place)
{
    struct rank *r = b->rank;
    int root = 0;
    char *from = in_place ? b->in : b->out;
    bool good = r->rank != root || nccl_fill(r, from, n, root, root, 5);
    if (in_place)
        good = good && NCCL_OK(r, ncclBcast(b->in, count, type, root, b->comm, b->stream));
    else
        good = good && NCCL_OK(r, ncclBroadcast(b->out, b->in, count, type, root, b->comm, b->stream));
    return good && nccl_sync(r, b->comm, b->stream) && nccl_verify(r, b->in, n, root, root, 5);
}

static bool ring(struct bench *b, ncclDataType_t type, size_t count, size_t n, bool in_place)
{
    struct rank *r = b->rank;
    int right = (r->rank + 1) % r->size, left = (r->rank + r->size - 1) % r->size;
    (void)in_place;
    return nccl_fill(r, b->out, n, r->rank, right, 6) && NCCL_OK(r, ncclGroupStart()) &&
           NCCL_OK(r, ncclSend(b->out, count, type, right, b->comm, b->stream)) &&
           NCCL_OK(r, ncclRecv(b->in, count, type, left, b->comm, b->stream)) && NCCL_OK(r, ncclGroupEnd()) &&
           nccl_sync(r, b->comm, b->stream) && nccl_verify(r, b->in, n, left, r->rank, 6);
}

static bool (*const operations[])(struct bench *, ncclDataType_t, size_t, size_t, bool) = {all_gather, all_to_all, gather,
                                                                                        scatter,    broadcast,  ring};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static void body_operations(struct rank *r)
{
    static const size_t counts[] = {0, 1, 1000};
    struct bench b;
    bool good = bench_open(&b, r, 8000);
    for (int i = 0; i < OPERATIONS * TYPES * 3 * 2 && good; i++) {
        int op = i % OPERATIONS, type = i / OPERATIONS % TYPES, size = i / OPERATIONS / TYPES % 3;
        size_t count = counts[size];
        if (type && size != 1) /* the first type at every size, the others at one */
            continue;
        good = operations[op](&b, types[type].type, count, count * types[type].bytes, i / OPERATIONS / TYPES / 3);
    }
    bench_close(&b);
}

static void test_operations(void **state)
{
    (void)state;
    for (int n = 1; n <= GPUS; n *= 2)
        run_threads(n, body_operations, NULL);
    run_threads(3, body_operations, NULL);
}

/* More than the scratch memory of AlltoAll in place holds, so several rounds; and two streams, each with its own. */
static void body_large_swap(struct rank *r)
{
    struct bench b;
    CUstream stream;
    const size_t n = ((size_t)33 << 20) + 5;
    bool good = bench_open(&b, r, n) && RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    good = good && all_to_all(&b, ncclUint8, n, n, true);
    good = good && fill_for_all(&b, b.in, 3000, 7) && fill_for_all(&b, b.out, 5000, 8);
    good = good && NCCL_OK(r, ncclAlltoAll(b.in, b.in, 3000, ncclInt8, b.comm, b.stream)) &&
           NCCL_OK(r, ncclAlltoAll(b.out, b.out, 5000, ncclInt8, b.comm, stream)) && nccl_sync(r, b.comm, b.stream) &&
           nccl_sync(r, b.comm, stream) && verify_from_all(&b, b.in, 3000, -1, 7) && verify_from_all(&b, b.out, 5000, -1, 8);
    bench_close(&b);
    cuStreamDestroy(stream);
}

static void test_large_swap(void **state)
{
    (void)state;
    run_threads(2, body_large_swap, NULL);
}

/* ---- what can be asked ------------------------------------------------------------------------------------------- */

static void body_questions(struct rank *r)
{
    struct bench b;
    int size = 0, rank = 0, device = 0;
    ncclResult_t error = ncclInternalError;
    if (bench_open(&b, r, 100)) {
        NCCL_OK(r, ncclCommCount(b.comm, &size));
        NCCL_OK(r, ncclCommUserRank(b.comm, &rank));
        NCCL_OK(r, ncclCommCuDevice(b.comm, &device));
        NCCL_OK(r, ncclCommGetAsyncError(b.comm, &error));
        RANK_TRUE(r, size == r->size && rank == r->rank && device == r->rank && error == ncclSuccess);
        ncclTeam_t world = ncclTeamWorld(b.comm);
        RANK_TRUE(r, world.nRanks == size && world.rank == rank && world.stride == 1);
        RANK_TRUE(r, ncclTeamRankToWorld(b.comm, world, 0) == 0);
        NCCL_FAILS(r, ncclCommCount(b.comm, NULL), ncclInvalidArgument, "NULL");
        NCCL_FAILS(r, ncclCommCount(NULL, &size), ncclInvalidArgument, "does not exist");
        NCCL_FAILS(r, ncclCommGetAsyncError(b.comm, NULL), ncclInvalidArgument, "NULL");
    }
    ncclComm_t gone = b.comm;
    bench_close(&b);
    NCCL_FAILS(r, ncclCommUserRank(gone, &rank), ncclInvalidArgument, "does not exist");
    NCCL_FAILS(r, ncclSend(NULL, 0, ncclInt8, 0, gone, NULL), ncclInvalidArgument, "does not exist");
    NCCL_FAILS(r, ncclCommDestroy(gone), ncclInvalidArgument, "does not exist");
    NCCL_FAILS(r, ncclCommAbort(gone), ncclInvalidArgument, "does not exist");
}

static void test_questions(void **state)
{
    int version = 0;
    (void)state;
    nccl_good(ncclGetVersion(&version));
    assert_int_equal(version, NCCL_VERSION_CODE);
    nccl_bad(ncclGetVersion(NULL), ncclInvalidArgument, "NULL");
    nccl_bad(ncclGetUniqueId(NULL), ncclInvalidArgument, "NULL");
    for (int i = ncclSuccess; i < ncclNumResults; i++)
        for (int j = i + 1; j <= ncclNumResults; j++)
            assert_string_not_equal(ncclGetErrorString((ncclResult_t)i), ncclGetErrorString((ncclResult_t)j));
    ncclResetDebugInit();
    pncclResetDebugInit();
    ncclResetDebugInitInternal();
    run_threads(2, body_questions, NULL);
}

/* ---- registration, memory ---------------------------------------------------------------------------------------- */

static void body_registration(struct rank *r)
{
    struct bench b;
    void *handle[2] = {NULL, NULL};
    ncclWindow_t win = NULL;
    if (bench_open(&b, r, 4096)) {
        NCCL_OK(r, ncclCommRegister(b.comm, b.out, b.room, &handle[0]));
        NCCL_OK(r, ncclCommRegister(b.comm, b.out, b.room, &handle[1]));
        NCCL_OK(r, ncclCommWindowRegister(b.comm, b.in, b.room, &win, NCCL_WIN_COLL_SYMMETRIC));
        RANK_TRUE(r, handle[0] && handle[1] && win && handle[0] != handle[1]);
        all_gather(&b, ncclInt8, 4096, 4096, true);
        NCCL_FAILS(r, ncclCommDeregister(b.comm, win), ncclInvalidUsage, "no registration");
        NCCL_FAILS(r, ncclCommWindowDeregister(b.comm, handle[0]), ncclInvalidUsage, "no window");
        NCCL_OK(r, ncclCommDeregister(b.comm, handle[0]));
        NCCL_FAILS(r, ncclCommDeregister(b.comm, handle[0]), ncclInvalidUsage, "given back");
        NCCL_OK(r, ncclCommWindowDeregister(b.comm, win));
        NCCL_FAILS(r, ncclCommWindowDeregister(b.comm, win), ncclInvalidUsage, "given back");
        NCCL_OK(r, ncclCommDeregister(b.comm, NULL));
        NCCL_FAILS(r, ncclCommRegister(b.comm, NULL, 1, &handle[0]), ncclInvalidArgument, "nothing");
        NCCL_FAILS(r, ncclCommRegister(b.comm, b.in, 0, &handle[0]), ncclInvalidArgument, "nothing");
        NCCL_FAILS(r, ncclCommRegister(b.comm, b.in, 1, NULL), ncclInvalidArgument, "NULL");
        NCCL_FAILS(r, ncclCommRegister(NULL, b.in, 1, &handle[0]), ncclInvalidArgument, "does not exist");
        NCCL_FAILS(r, ncclCommWindowRegister(b.comm, b.in, 1, &win, 8), ncclInvalidArgument, "flags");
    }
    bench_close(&b); /* handle[1] goes with it */
}

static void test_registration(void **state)
{
    (void)state;
    run_threads(2, body_registration, NULL);
}

static void test_memory(void **state)
{
    void *p = NULL;
    (void)state;
    nccl_good(ncclMemAlloc(&p, 1));
    nccl_bad(ncclMemFree((char *)p + 1), ncclInvalidArgument, "beginning");
    nccl_good(ncclMemFree(p));
    nccl_bad(ncclMemFree(p), ncclInvalidArgument, "freed");
    nccl_bad(ncclMemAlloc(NULL, 1), ncclInvalidArgument, "NULL");
    nccl_bad(ncclMemAlloc(&p, (size_t)1 << 46), ncclSystemError, "GPU 0");
    nccl_good(ncclMemAlloc(&p, 0));
    assert_null(p);
    nccl_good(ncclMemFree(NULL));
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void body_wrong_arguments(struct rank *r)
{
    struct bench b;
    ncclComm_t c = NULL;
    if (bench_open(&b, r, 1000)) {
        NCCL_FAILS(r, ncclSend(b.out, 1, (ncclDataType_t)12, 0, b.comm, b.stream), ncclInvalidArgument, "datatype 12");
        NCCL_FAILS(r, ncclSend(b.out, 1, (ncclDataType_t)-1, 0, b.comm, b.stream), ncclInvalidArgument, "datatype -1");
        NCCL_FAILS(r, ncclSend(b.out, 1, ncclInt8, r->size, b.comm, b.stream), ncclInvalidArgument, "peer");
        NCCL_FAILS(r, ncclRecv(NULL, 1, ncclInt8, 0, b.comm, b.stream), ncclInvalidArgument, "NULL");
        NCCL_FAILS(r, ncclBroadcast(b.out, b.in, 1, ncclInt8, -1, b.comm, b.stream), ncclInvalidArgument, "root");
        NCCL_FAILS(r, ncclAlltoAll(b.in, b.in, (size_t)1 << 62, ncclInt64, b.comm, b.stream), ncclInvalidArgument, "address space");
        NCCL_FAILS(r, ncclCommSplit(b.comm, 0, 0, NULL, NULL), ncclInvalidArgument, "NULL");
        NCCL_FAILS(r, ncclCommSplit(NULL, 0, 0, &c, NULL), ncclInvalidArgument, "does not exist");
        NCCL_FAILS(r, ncclGroupEnd(), ncclInvalidUsage, "without ncclGroupStart");
        all_gather(&b, ncclInt32, 10, 40, false); /* it is still good */
    }
    bench_close(&b);
}

static void test_wrong_arguments(void **state)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER, none = {0};
    ncclUniqueId id = {{0}};
    ncclComm_t c = NULL;
    int far = GPUS;
    (void)state;
    run_threads(2, body_wrong_arguments, NULL);
    nccl_bad(ncclCommInitRank(&c, 1, id, 0), ncclInvalidArgument, "id");
    assert_null(c);
    nccl_good(ncclGetUniqueId(&id));
    nccl_bad(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument, "NULL");
    nccl_bad(ncclCommInitRank(&c, 0, id, 0), ncclInvalidArgument, "rank 0 of 0");
    nccl_bad(ncclCommInitRank(&c, 2, id, 2), ncclInvalidArgument, "rank 2 of 2");
    nccl_bad(ncclCommInitRankConfig(&c, 1, id, 0, &none), ncclInvalidArgument, "INITIALIZER");
    config.blocking = 7;
    nccl_bad(ncclCommInitRankConfig(&c, 1, id, 0, &config), ncclInvalidArgument, "blocking is 7");
    config.blocking = 1;
    config.minCTAs = 8;
    config.maxCTAs = 4;
    nccl_bad(ncclCommInitRankConfig(&c, 1, id, 0, &config), ncclInvalidArgument, "minCTAs 8");
    config.size = offsetof(ncclConfig_t, maxCTAs); /* an older header had no such field */
    nccl_good(ncclCommInitRankConfig(&c, 1, id, 0, &config));
    nccl_good(ncclCommDestroy(c));
    nccl_good(ncclCommDestroy(NULL));
    nccl_bad(ncclCommInitRankScalable(&c, 1, 0, 2, &id, NULL), ncclInvalidArgument, "2 ids");
    nccl_bad(ncclCommInitAll(NULL, 1, NULL), ncclInvalidArgument, "NULL");
    nccl_bad(ncclCommInitAll(&c, 1, &far), ncclInvalidArgument, "device 8");
    nccl_bad(ncclCommInitAll(&c, GPUS + 1, NULL), ncclInvalidArgument, "9 communicators");
}

/* Found later: the other rank hears of it, a third thread asks, and abort makes an end of it. */
static void *watch(void *argument)
{
    struct bench *b = argument;
    ncclResult_t error = ncclSuccess;
    for (int i = 0; i < 200000 && error == ncclSuccess && !ncclCommGetAsyncError(b->comm, &error); i++)
        usleep(100);
    RANK_TRUE(b->rank, error == ncclInvalidUsage);
    RANK_TRUE(b->rank, strstr(ncclGetLastError(b->comm), "bytes"));
    return NULL;
}

static void body_mismatch(struct rank *r)
{
    struct bench b;
    pthread_t thread;
    if (bench_open(&b, r, 1000)) {
        RANK_TRUE(r, !pthread_create(&thread, NULL, watch, &b));
        if (r->rank)
            NCCL_OK(r, ncclSend(b.out, 100, ncclInt8, 0, b.comm, b.stream));
        else
            NCCL_OK(r, ncclRecv(b.in, 200, ncclInt8, 1, b.comm, b.stream));
        RANK_CUDA(r, cuStreamSynchronize(b.stream));
        pthread_join(thread, NULL);
        NCCL_FAILS(r, ncclSend(b.out, 1, ncclInt8, 0, b.comm, b.stream), ncclInvalidUsage, "bytes");
        NCCL_OK(r, ncclCommAbort(b.comm));
        b.comm = NULL;
    }
    bench_close(&b);
}

static void test_mismatch(void **state)
{
    (void)state;
    run_threads(2, body_mismatch, NULL);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void body_refused(struct rank *r)
{
    static const char sms[] = "needs SMs; reductions go to NCCL in a later part";
    struct bench b;
    ncclRedOp_t op = ncclSum;
    ncclComm_t c = (ncclComm_t)&b;
    int list = 0;
    if (bench_open(&b, r, 1000)) {
        NCCL_FAILS(r, ncclAllReduce(b.out, b.in, 1, ncclInt8, ncclSum, b.comm, b.stream), ncclInvalidUsage, sms);
        NCCL_FAILS(r, ncclReduce(b.out, b.in, 1, ncclInt8, ncclSum, 0, b.comm, b.stream), ncclInvalidUsage, sms);
        NCCL_FAILS(r, ncclReduceScatter(b.out, b.in, 1, ncclInt8, ncclSum, b.comm, b.stream), ncclInvalidUsage, sms);
        NCCL_FAILS(r, ncclRedOpCreatePreMulSum(&op, b.out, ncclInt8, ncclScalarDevice, b.comm), ncclInvalidUsage, sms);
        NCCL_FAILS(r, ncclRedOpDestroy(op, b.comm), ncclInvalidUsage, sms);
        NCCL_FAILS(r, ncclCommShrink(b.comm, &list, 1, &c, NULL, 0), ncclInvalidUsage, "failure handling");
        RANK_TRUE(r, !c);
        NCCL_FAILS(r, ncclCommRevoke(b.comm, 0), ncclInvalidUsage, "failure handling");
        NCCL_FAILS(r, ncclDevCommCreate(b.comm, NULL, NULL), ncclInvalidUsage, "device interface");
        NCCL_FAILS(r, ncclDevCommDestroy(b.comm, NULL), ncclInvalidUsage, "device interface");
        ncclTeam_t none = ncclTeamLsa(b.comm);
        NCCL_FAILS(r, ncclGinBarrierCreateRequirement(b.comm, none, 1, NULL, NULL), ncclInvalidUsage, "device interface");
        NCCL_FAILS(r, ncclLsaBarrierCreateRequirement(none, 1, NULL, NULL), ncclInvalidUsage, "device interface");
        NCCL_FAILS(r, ncclLLA2ACreateRequirement(1, 1, NULL, NULL), ncclInvalidUsage, "device interface");
        RANK_TRUE(r, !none.nRanks && !ncclTeamRail(b.comm).nRanks && ncclTeamRankToLsa(b.comm, none, 0) == -1);
        RANK_TRUE(r, ncclLLA2ACalcSlots(1, 1) == 0);
        /* A reduction in a group makes an end of the group, not of the communicator. */
        NCCL_OK(r, ncclGroupStart());
        NCCL_OK(r, ncclSend(b.out, 1, ncclInt8, r->rank, b.comm, b.stream));
        NCCL_FAILS(r, ncclAllReduce(b.out, b.in, 1, ncclInt8, ncclSum, b.comm, b.stream), ncclInvalidUsage, sms);
        NCCL_FAILS(r, ncclGroupEnd(), ncclInvalidUsage, sms);
        ring(&b, ncclInt8, 1000, 1000, false);
    }
    bench_close(&b);
}

static void test_refused(void **state)
{
    (void)state;
    run_threads(2, body_refused, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_questions),       cmocka_unit_test(test_operations),
        cmocka_unit_test(test_large_swap), cmocka_unit_test(test_registration),    cmocka_unit_test(test_wrong_arguments),
        cmocka_unit_test(test_mismatch),   cmocka_unit_test(test_refused),
    };

    ranks_environment(GPUS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
