/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one rank that another one reaches, and what ends in the middle. Of a range with more segments than a parcel's worth of
 * descriptors the later ones cannot be exported: that message is staged, and the next one of the same memory is pushed, though
 * another message has brought the sender the first parcel meanwhile. And a sender that aborts while a thread of its process pulls
 * has its memory to itself afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emu/hooks.h"
#include "hoccl_cuda.h"
#include "p2p/parcel.h"
#include "ranks.h"

#define MIB ((size_t)1 << 20)
#define SEGMENTS (HOCCL_PARCEL_SEGMENTS + 2)
#define TRIALS 2 /* descriptors that the two ranks export when their GPUs try one another */
#define PULLED (32 * MIB)
#ifdef __SANITIZE_THREAD__
#define PARTS false /* 130 MiB, which say nothing of threads */
#else
#define PARTS true
#endif

static bool moved(struct rank *r, int gpu, enum hoccl_emu_engine engine, uint64_t *bytes)
{
    CUresult (*count)(CUdevice, enum hoccl_emu_engine, uint64_t *, uint64_t *);
    uint64_t ops;
    *(void **)&count = dlsym(hoccl_cuda_driver(), "hocclEmuEngineCount");
    return RANK_CUDA(r, count(gpu, engine, &ops, bytes));
}

static bool healthy(struct rank *r)
{
    HOCCL_Result error;
    return RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)) && RANK_OK(r, error);
}

/* So many allocations of `grain` bytes side by side; with descriptors, or such that nobody can open them. */
static bool side_by_side(struct rank *r, size_t grain, size_t count, bool descriptors, CUdeviceptr *base)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = descriptors ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, r->rank}};
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    if (!RANK_CUDA(r, cuMemAddressReserve(base, count * grain, 0, 0, 0)))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!RANK_CUDA(r, cuMemCreate(&h, grain, &p, 0)) || !RANK_CUDA(r, cuMemMap(*base + i * grain, grain, 0, h, 0)) ||
            !RANK_CUDA(r, cuMemRelease(h)))
            return false;
    return RANK_CUDA(r, cuMemSetAccess(*base, count * grain, &access, 1));
}

static size_t grain_of(struct rank *r)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, r->rank}};
    size_t grain = 0;
    RANK_CUDA(r, cuMemGetAllocationGranularity(&grain, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    return grain;
}

/* One message from rank 0 to rank 1. */
static bool message(struct rank *r, CUdeviceptr at, size_t bytes, CUstream stream)
{
    CUresult q = CUDA_ERROR_NOT_READY;
    bool posted = r->rank ? RANK_OK(r, HOCCL_Recv((void *)at, bytes, HOCCL_BYTE, 0, r->comm, stream))
                          : RANK_OK(r, HOCCL_Send((void *)at, bytes, HOCCL_BYTE, 1, r->comm, stream));
    for (int i = 0; i < 20000 && posted && q == CUDA_ERROR_NOT_READY; i++) {
        q = cuStreamQuery(stream);
        usleep(1000);
    }
    return posted && RANK_CUDA(r, q) && healthy(r);
}

#define PERIOD ((size_t)1000003)

static void fill(unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n && i < PERIOD; i++)
        p[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t i = PERIOD, k; i < n; i += k) {
        k = n - i < i ? n - i : i;
        memcpy(p + i, p, k);
    }
}

static bool right(struct rank *r, CUdeviceptr at, const unsigned char *wanted, unsigned char *got, size_t n)
{
    return RANK_CUDA(r, cuMemcpyDtoH(got, at, n)) && RANK_TRUE(r, !memcmp(got, wanted, n)) &&
           RANK_CUDA(r, cuMemsetD8(at, 0x5a, n)) && RANK_CUDA(r, cuStreamSynchronize(NULL));
}

/* The range begins in the last byte of its first segment and ends in the first byte of its last one. */
static void parts(struct rank *r)
{
    size_t grain = grain_of(r), bytes = (SEGMENTS - 2) * grain + 2;
    unsigned char *host = malloc(bytes), *got = malloc(bytes);
    CUdeviceptr large = 0, small = 0, at;
    CUstream stream;
    uint64_t before, after;
    bool good = RANK_TRUE(r, host && got) && RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (good && r->rank == 1)
        good = side_by_side(r, grain, SEGMENTS, true, &large) && side_by_side(r, grain, 1, true, &small);
    else if (good)
        good = RANK_CUDA(r, cuMemAlloc(&large, SEGMENTS * grain)) && RANK_CUDA(r, cuMemAlloc(&small, grain));
    at = large + grain - 1;
    if (good)
        fill(host, bytes);
    if (good && r->rank == 0)
        good = RANK_CUDA(r, cuMemcpyHtoD(at, host, bytes)) && RANK_CUDA(r, cuStreamSynchronize(NULL));
    good = good && moved(r, 0, HOCCL_EMU_D2H, &before) && message(r, at, bytes, stream) && moved(r, 0, HOCCL_EMU_D2H, &after) &&
           RANK_TRUE(r, r->rank || after - before >= bytes); /* staged: the fault was where it should be */
    good = good && (r->rank == 0 || right(r, at, host, got, bytes)) && message(r, small, grain, stream) && message(r, at, bytes, stream) &&
           (r->rank == 0 || right(r, at, host, got, bytes));
    free(host);
    free(got);
}

static void test_parts(void **state)
{
    (void)state;
    ranks_run(2, parts, NULL);
}

/* The receiver's memory cannot be opened, so it pulls; the sender aborts and frees. (Another communicator keeps its GPU's object, whose
 * end would wait for every copy of the process.) */
static void pulled(struct rank *r)
{
    size_t grain = grain_of(r);
    HOCCL_Result error = HOCCL_SUCCESS;
    HOCCL_Comm comm;
    CUdeviceptr memory;
    CUstream stream;
    uint64_t before, now = 0;
    if (!RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) || !RANK_OK(r, HOCCL_CommSplit(r->comm, 0, r->rank, &comm)) ||
        !moved(r, 1, HOCCL_EMU_PULL, &before))
        return;
    if (r->rank == 1) {
        if (!side_by_side(r, grain, (PULLED + grain - 1) / grain, false, &memory) ||
            !RANK_OK(r, HOCCL_Recv((void *)memory, PULLED, HOCCL_BYTE, 0, comm, stream)))
            return;
        for (int i = 0; i < 20000 && !error; i++) {
            RANK_OK(r, HOCCL_CommGetAsyncError(comm, &error));
            usleep(1000);
        }
        RANK_TRUE(r, error == HOCCL_ERR_PEER);
        RANK_CUDA(r, cuCtxSynchronize()); /* a copy from memory that is gone would have broken the context */
        RANK_OK(r, HOCCL_CommAbort(comm));
    } else {
        if (!RANK_CUDA(r, cuMemAlloc(&memory, PULLED)) ||
            !RANK_OK(r, HOCCL_Send((void *)memory, PULLED, HOCCL_BYTE, 1, comm, stream)))
            return;
        for (int i = 0; i < 20000 && now < before + MIB && moved(r, 1, HOCCL_EMU_PULL, &now); i++)
            usleep(1000);
        RANK_TRUE(r, now >= before + MIB && now < before + PULLED);
        RANK_OK(r, HOCCL_CommAbort(comm));
        RANK_CUDA(r, cuMemFree(memory));
    }
}

static void test_pulled(void **state)
{
    (void)state;
    ranks_run(2, pulled, NULL);
}

/* Settings are read once in a process, and a broken context stays so. */
static int child(const char *name, void (*test)(void **), const char *fault, const char *rates)
{
    const struct CMUnitTest tests[] = {{.name = name, .test_func = test}};
    int status;
    pid_t pid = fork();
    if (!pid) {
        if (fault)
            setenv("HOCCL_EMU_FAULT", fault, 1);
        if (rates)
            setenv("HOCCL_EMU_RATE", rates, 1);
        exit(cmocka_run_group_tests_name(name, tests, NULL, NULL));
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || status ? 1 : 0;
}

int main(void)
{
    char fault[80];
    snprintf(fault, sizeof fault, "cuMemExportToShareableHandle#%d=CUDA_ERROR_UNKNOWN", TRIALS + HOCCL_PARCEL_SEGMENTS + 1);
    setenv("HOCCL_DEVICE", "emu", 1);
    ranks_environment(2);
    int failed = PARTS ? child("a range that comes in part", test_parts, fault, NULL) : 0;
    failed |= child("a pull from who aborts", test_pulled, NULL, "pull=100");
    return failed;
}
