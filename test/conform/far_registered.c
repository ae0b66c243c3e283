/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers across nodes: GPU memory over the test's own transport, pinned host memory over it and over TCP. Where both
 * ends are registered no slot is granted and no engine fills or empties one; where one is, only the other end's slots are used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/setting.h"
#include "far.h"
#include "near.h"
#include "p2p/wire.h"

#define ROW(n) ((n) + 67)

/* What a test wants of its ranks' buffers. */
struct wish {
    bool host;             /* pinned host memory, else GPU memory */
    bool out, in;          /* which buffers are registered, on all ranks */
};

/* The buffers of a rank. */
struct buffers {
    struct wish wish;
    size_t room;
    unsigned char *host; /* to look at */
    CUdeviceptr out, in;
    CUstream stream;
    void *handle[2];
};

static CUresult get_memory(const struct buffers *b, CUdeviceptr *at)
{
    void *p = NULL;
    CUresult e = b->wish.host ? cuMemAllocHost(&p, b->room) : cuMemAlloc(at, b->room);
    if (b->wish.host)
        *at = (CUdeviceptr)(uintptr_t)p;
    return e;
}

static CUresult give_memory(const struct buffers *b, CUdeviceptr at)
{
    return b->wish.host ? cuMemFreeHost((void *)(uintptr_t)at) : cuMemFree(at);
}

static bool enter(struct rank *r, struct buffers *b)
{
    if (b->wish.out)
        RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)(uintptr_t)b->out, b->room, &b->handle[0]));
    if (b->wish.in)
        RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)(uintptr_t)b->in, b->room, &b->handle[1]));
    return !r->failed;
}

static void leave(struct rank *r, struct buffers *b)
{
    for (int i = 0; i < 2; i++)
        RANK_OK(r, HOCCL_CommDeregister(r->comm, b->handle[i]));
}

static bool open_buffers(struct rank *r, struct buffers *b, const struct wish *wish, size_t room)
{
    *b = (struct buffers){.wish = *wish, .room = room, .host = malloc(room)};
    return RANK_TRUE(r, b->host) && RANK_CUDA(r, get_memory(b, &b->out)) && RANK_CUDA(r, get_memory(b, &b->in)) &&
           RANK_CUDA(r, cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING));
}

static void close_buffers(struct rank *r, struct buffers *b)
{
    pthread_barrier_wait(&meeting);
    RANK_CUDA(r, cuStreamDestroy(b->stream));
    RANK_CUDA(r, give_memory(b, b->out));
    RANK_CUDA(r, give_memory(b, b->in));
    free(b->host);
    pthread_barrier_wait(&meeting);
}

static void put(struct rank *r, struct buffers *b, CUdeviceptr at, size_t n)
{
    if (b->wish.host)
        memcpy((void *)(uintptr_t)at, b->host, n);
    else if (RANK_CUDA(r, cuMemcpyHtoD(at, b->host, n)))
        RANK_CUDA(r, cuStreamSynchronize(NULL));
}

static void get(struct rank *r, struct buffers *b, CUdeviceptr at, size_t n)
{
    if (b->wish.host)
        memcpy(b->host, (void *)(uintptr_t)at, n);
    else
        RANK_CUDA(r, cuMemcpyDtoH(b->host, at, n));
}

static HOCCL_Result ended(struct rank *r, struct buffers *b)
{
    struct work w = {.stream = b->stream};
    return stream_end(r, &w);
}

/* Everyone's message to everyone else, posted. */
static HOCCL_Result post(struct rank *r, struct buffers *b, size_t n)
{
    RANK_OK(r, HOCCL_GroupStart());
    for (int d = 1; d < r->size; d++) {
        int to = (r->rank + d) % r->size, from = (r->rank - d + r->size) % r->size;
        RANK_OK(r, HOCCL_Send((void *)(b->out + (size_t)to * ROW(n) + 1), n, HOCCL_BYTE, to, r->comm, b->stream));
        RANK_OK(r, HOCCL_Recv((void *)(b->in + (size_t)from * ROW(n) + 1), n, HOCCL_BYTE, from, r->comm, b->stream));
    }
    return HOCCL_GroupEnd();
}

static void prepare(struct rank *r, struct buffers *b, size_t n, unsigned key)
{
    size_t all = ROW(n) * (size_t)r->size;
    for (int p = 0; p < r->size; p++)
        memcpy(b->host + (size_t)p * ROW(n) + 1, message(r->rank, p, key), n);
    put(r, b, b->out, all);
    memset(b->host, 0xa5, all);
    put(r, b, b->in, all);
}

static void check(struct rank *r, struct buffers *b, size_t n, unsigned key)
{
    get(r, b, b->in, ROW(n) * (size_t)r->size);
    for (int p = 0; p < r->size && !r->failed; p++) {
        const unsigned char *at = b->host + (size_t)p * ROW(n);
        for (size_t i = 0; i < ROW(n); i++)
            if ((p == r->rank || !i || i > n) && at[i] != 0xa5)
                RANK_TRUE(r, !"something was written beside the message");
        if (p != r->rank)
            same(r, at + 1, message(p, r->rank, key), n, p);
    }
}

static void swap(struct rank *r, struct buffers *b, size_t n, unsigned key)
{
    prepare(r, b, n, key);
    RANK_OK(r, post(r, b, n));
    RANK_OK(r, ended(r, b));
    check(r, b, n, key);
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

static void forget_counts(void)
{
    memset(&hoccl_wire_counts, 0, sizeof hoccl_wire_counts);
}

static bool counted(uint64_t is, uint64_t should, const char *what)
{
    if (is != should)
        print_error("%s: %llu, not %llu\n", what, (unsigned long long)is, (unsigned long long)should);
    return is == should;
}

/* Of all ranks together, whose chunks are at least so many; and nothing of the callers' memory is registered any more. */
static void check_counts(const struct wish *w, uint64_t least)
{
    const struct hoccl_wire_count *c = &hoccl_wire_counts;
    uint64_t out = w->out ? c->arrived : 0, in = w->in ? c->arrived : 0;
    bool good = counted(c->from, out, "from registered buffers") & counted(c->into, in, "into registered buffers") &
                counted(c->allowed_into, in, "granted into registered buffers") &
                counted(c->filled, c->arrived - out, "out slots filled") & counted(c->granted, c->arrived - in, "in slots granted") &
                counted(c->allowed, c->granted, "slots allowed") & counted(c->written, c->arrived, "written");
    assert_true(good && c->arrived >= least);
    assert_int_equal(hoccl_registry_regions, 0);
}

static const size_t sizes[] = {0, 1, 7, 4097, 65536, 5 * MIB + 5};
#define SIZES (sizeof sizes / sizeof *sizes)

static void exchange_registered(struct rank *r)
{
    struct buffers b;
    if (open_buffers(r, &b, r->arg, (size_t)r->size * ROW(sizes[SIZES - 1]))) {
        if (enter(r, &b))
            for (size_t i = 0; i < SIZES && !r->failed; i++)
                swap(r, &b, sizes[i], (unsigned)i);
        leave(r, &b);
    }
    close_buffers(r, &b);
}

static void each_end(bool host)
{
    for (int ends = 0; ends < 4; ends++) {
        struct wish w = {host, ends & 1, ends & 2};
        forget_counts();
        far_run(2, "2", exchange_registered, &w, false);
        check_counts(&w, 2 * (4 + (sizes[SIZES - 1] + HOCCL_POOL_SLOT - 1) / HOCCL_POOL_SLOT));
    }
}

static void test_ends_tcp(void **state)
{
    (void)state;
    hoccl_wire_transport = &hoccl_transport_tcp;
    each_end(true);
    hoccl_wire_transport = &near_transport;
}

void test_registered_ends(void **state)
{
    uint64_t before[NEAR_LANES], after[NEAR_LANES];
    near = (struct near_weather){.on_gpu = true, .delay = 50};
    near_lanes(before);
    each_end(false);
    near_lanes(after);
    for (int i = 0; i < NEAR_LANES; i++)
        assert_true(after[i] - before[i] >= 4 * MIB);
    near = (struct near_weather){0};
    test_ends_tcp(state);
}

/* Several peers, some of this node; writes overtake one another and are refused. */
static void several(struct rank *r)
{
    struct buffers b;
    struct wish w = *(struct wish *)r->arg;
    w.out = r->rank % 2;
    w.in = r->rank % 3 != 1;
    if (open_buffers(r, &b, &w, (size_t)r->size * ROW(3 * MIB + 1))) {
        if (enter(r, &b))
            for (size_t i = 0; i < far_sizes_count && !r->failed; i++)
                swap(r, &b, far_sizes[i], (unsigned)i);
        leave(r, &b);
    }
    close_buffers(r, &b);
}

void test_registered_weather(void **state)
{
    struct wish gpu = {.host = false}, host = {.host = true};
    (void)state;
    near = (struct near_weather){.on_gpu = true, .jitter = 500, .refuse = 30};
    far_run(4, "2", several, &gpu, false);
    far_run(4, "1+3", several, &host, false);
    near = (struct near_weather){0};
    hoccl_wire_transport = &hoccl_transport_tcp;
    far_run(4, "2", several, &host, false);
    hoccl_wire_transport = &near_transport;
    assert_int_equal(hoccl_registry_regions, 0);
}

/* ---- kinds of memory --------------------------------------------------------------------------------------------- */

#define SEGMENTS 3
#define SEGMENT ((size_t)2 << 20)

/* A range of several segments: chunks that lie across two of them go by slots, the others do not. */
static void segmented(struct rank *r)
{
    struct buffers b = {.room = SEGMENTS * SEGMENT, .host = malloc(SEGMENTS * SEGMENT)};
    CUmemGenericAllocationHandle piece[2][SEGMENTS];
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = r->rank}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr *at[2] = {&b.out, &b.in};
    size_t n = b.room - 3, shift = 1;
    for (int k = 0; k < 2; k++) {
        RANK_CUDA(r, cuMemAddressReserve(at[k], b.room, 0, 0, 0));
        for (size_t i = 0; i < SEGMENTS; i++) {
            RANK_CUDA(r, cuMemCreate(&piece[k][i], SEGMENT, &prop, 0));
            RANK_CUDA(r, cuMemMap(*at[k] + i * SEGMENT, SEGMENT, 0, piece[k][i], 0));
        }
        RANK_CUDA(r, cuMemSetAccess(*at[k], b.room, &access, 1));
        RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)(*at[k] + shift), n, &b.handle[k]));
    }
    RANK_CUDA(r, cuStreamCreate(&b.stream, CU_STREAM_NON_BLOCKING));
    memcpy(b.host, message(r->rank, 1 - r->rank, 3), n);
    put(r, &b, b.out + shift, n);
    RANK_OK(r, HOCCL_GroupStart());
    RANK_OK(r, HOCCL_Send((void *)(b.out + shift), n, HOCCL_BYTE, 1 - r->rank, r->comm, b.stream));
    RANK_OK(r, HOCCL_Recv((void *)(b.in + shift), n, HOCCL_BYTE, 1 - r->rank, r->comm, b.stream));
    RANK_OK(r, HOCCL_GroupEnd());
    RANK_OK(r, ended(r, &b));
    get(r, &b, b.in + shift, n);
    same(r, b.host, message(1 - r->rank, r->rank, 3), n, 1 - r->rank);
    leave(r, &b);
    pthread_barrier_wait(&meeting);
    RANK_CUDA(r, cuStreamDestroy(b.stream));
    for (int k = 0; k < 2; k++) {
        RANK_CUDA(r, cuMemUnmap(*at[k], b.room));
        for (size_t i = 0; i < SEGMENTS; i++)
            RANK_CUDA(r, cuMemRelease(piece[k][i]));
        RANK_CUDA(r, cuMemAddressFree(*at[k], b.room));
    }
    free(b.host);
    pthread_barrier_wait(&meeting);
}

void test_registered_segments(void **state)
{
    const struct hoccl_wire_count *c = &hoccl_wire_counts;
    (void)state;
    near = (struct near_weather){.on_gpu = true};
    forget_counts();
    far_run(2, "2", segmented, NULL, false);
    assert_int_equal(c->granted, 2 * (SEGMENTS - 1));
    assert_int_equal(c->filled, 2 * (SEGMENTS - 1));
    assert_true(c->into > c->granted && c->from == c->into);
    assert_int_equal(c->written, c->into + c->granted);
    assert_int_equal(hoccl_registry_regions, 0);
}

/* Memory of HOCCL_MemAlloc is registered at first use, and withdrawn when it is freed. */
static void allocated(struct rank *r)
{
    struct buffers b = {.room = 2 * ROW(MIB), .host = malloc(2 * ROW(MIB))};
    void *out = NULL, *in = NULL;
    RANK_OK(r, HOCCL_MemAlloc(&out, b.room));
    RANK_OK(r, HOCCL_MemAlloc(&in, b.room));
    RANK_CUDA(r, cuStreamCreate(&b.stream, CU_STREAM_NON_BLOCKING));
    b.out = (CUdeviceptr)(uintptr_t)out;
    b.in = (CUdeviceptr)(uintptr_t)in;
    swap(r, &b, 1000, 1);
    swap(r, &b, MIB, 2);
    pthread_barrier_wait(&meeting);
    RANK_TRUE(r, hoccl_peek(&hoccl_registry_regions) == 4);
    pthread_barrier_wait(&meeting);
    RANK_OK(r, HOCCL_MemFree(out));
    RANK_OK(r, HOCCL_MemFree(in));
    pthread_barrier_wait(&meeting);
    RANK_TRUE(r, hoccl_peek(&hoccl_registry_regions) == 0);
    RANK_CUDA(r, cuStreamDestroy(b.stream));
    free(b.host);
}

void test_registered_allocated(void **state)
{
    (void)state;
    near = (struct near_weather){.on_gpu = true};
    forget_counts();
    far_run(2, "2", allocated, NULL, false);
    assert_true(hoccl_wire_counts.into >= 6 && hoccl_wire_counts.from == hoccl_wire_counts.into);
    assert_int_equal(hoccl_wire_counts.granted, 0);
    assert_int_equal(hoccl_wire_counts.filled, 0);
}

/* The same address, other memory: it is not registered, whatever the handle says. */
static void elsewhere(struct rank *r)
{
    struct buffers b = {.wish.host = true, .room = 2 * ROW(MIB), .host = malloc(2 * ROW(MIB))};
    size_t all = (2 * b.room + 4095) / 4096 * 4096;
    char *at = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *handle = NULL;
    RANK_TRUE(r, at != MAP_FAILED);
    RANK_CUDA(r, cuStreamCreate(&b.stream, CU_STREAM_NON_BLOCKING));
    RANK_CUDA(r, cuMemHostRegister(at, all, 0));
    RANK_OK(r, HOCCL_CommRegister(r->comm, at, all, &handle));
    b.out = (CUdeviceptr)(uintptr_t)at;
    b.in = b.out + b.room;
    swap(r, &b, MIB, 1);
    pthread_barrier_wait(&meeting);
    RANK_TRUE(r, hoccl_wire_counts.filled == 0 && hoccl_wire_counts.granted == 0 && hoccl_registry_regions == 2);
    pthread_barrier_wait(&meeting);
    RANK_CUDA(r, cuMemHostUnregister(at));
    RANK_TRUE(r, mmap(at, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    RANK_CUDA(r, cuMemHostRegister(at, all, 0));
    pthread_barrier_wait(&meeting); /* cuMemHostUnregister waits for streams that wait */
    swap(r, &b, MIB, 2);
    RANK_OK(r, HOCCL_CommDeregister(r->comm, handle));
    RANK_FAILS(r, HOCCL_CommDeregister(r->comm, handle), HOCCL_ERR_ARGUMENT, "given back");
    pthread_barrier_wait(&meeting);
    RANK_TRUE(r, hoccl_wire_counts.filled > 0 && hoccl_wire_counts.granted == hoccl_wire_counts.filled && hoccl_registry_regions == 0);
    pthread_barrier_wait(&meeting);
    RANK_OK(r, HOCCL_CommRegister(r->comm, at, all, &handle));
    swap(r, &b, MIB, 3);
    pthread_barrier_wait(&meeting);
    RANK_TRUE(r, hoccl_registry_regions == 2);
    pthread_barrier_wait(&meeting);
    RANK_CUDA(r, cuStreamDestroy(b.stream));
    RANK_CUDA(r, cuMemHostUnregister(at));
    munmap(at, all);
    free(b.host);
}

void test_registered_reallocated(void **state)
{
    (void)state;
    near = (struct near_weather){.on_gpu = true};
    forget_counts();
    far_run(2, "2", elsewhere, NULL, false);
    assert_int_equal(hoccl_registry_regions, 0); /* the handle that was left went with its communicator */
    hoccl_wire_transport = &hoccl_transport_tcp;
    forget_counts();
    far_run(2, "2", elsewhere, NULL, false);
    hoccl_wire_transport = &near_transport;
    assert_int_equal(hoccl_registry_regions, 0);
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static void handles(struct rank *r)
{
    struct buffers b;
    struct wish w = {.out = true};
    void *more[3] = {NULL, NULL, NULL};
    int pageable = 0;
    if (open_buffers(r, &b, &w, 2 * ROW(MIB)) && enter(r, &b)) {
        void *out = (void *)(uintptr_t)b.out;
        for (int i = 0; i < 3; i++)
            RANK_OK(r, HOCCL_CommRegister(r->comm, (char *)out + 100 * i, 1000, &more[i]));
        RANK_TRUE(r, more[0] && more[0] != more[1] && more[1] != more[2] && more[0] != b.handle[0]);
        RANK_OK(r, HOCCL_CommDeregister(r->comm, b.handle[0]));
        b.handle[0] = NULL;
        swap(r, &b, MIB, 4); /* one allocation is one region, as long as anybody holds it */
        for (int i = 0; i < 3; i++)
            RANK_OK(r, HOCCL_CommDeregister(r->comm, more[i]));
        swap(r, &b, 5000, 5);
        RANK_FAILS(r, HOCCL_CommDeregister(r->comm, more[1]), HOCCL_ERR_ARGUMENT, "given back");
        RANK_FAILS(r, HOCCL_CommDeregister(r->comm, out), HOCCL_ERR_ARGUMENT, "no registration");
        RANK_FAILS(r, HOCCL_CommDeregister(HOCCL_COMM_NULL, more[1]), HOCCL_ERR_ARGUMENT, "does not exist");
        RANK_OK(r, HOCCL_CommDeregister(r->comm, NULL));
        RANK_FAILS(r, HOCCL_CommRegister(r->comm, NULL, 1, &more[0]), HOCCL_ERR_ARGUMENT, "nothing to register");
        RANK_FAILS(r, HOCCL_CommRegister(r->comm, out, 0, &more[0]), HOCCL_ERR_ARGUMENT, "nothing to register");
        RANK_FAILS(r, HOCCL_CommRegister(r->comm, out, 1, NULL), HOCCL_ERR_ARGUMENT, "NULL");
        RANK_FAILS(r, HOCCL_CommRegister(r->comm, out, b.room * 100, &more[0]), HOCCL_ERR_ARGUMENT, "beyond its allocation");
        RANK_FAILS(r, HOCCL_CommRegister(r->comm, &pageable, sizeof pageable, &more[0]), HOCCL_ERR_ARGUMENT, "pageable");
    }
    close_buffers(r, &b);
}

/* Memory that cannot be registered is staged. */
static void refused(struct rank *r)
{
    struct buffers b;
    struct wish w = {.out = true, .in = true};
    if (open_buffers(r, &b, &w, 2 * ROW(MIB)) && enter(r, &b)) {
        RANK_TRUE(r, b.handle[0] && b.handle[1]);
        swap(r, &b, MIB, 6);
        leave(r, &b);
    }
    close_buffers(r, &b);
}

void test_registered_handles(void **state)
{
    (void)state;
    near = (struct near_weather){.on_gpu = true};
    forget_counts();
    far_run(2, "2", handles, NULL, false);
    assert_true(hoccl_wire_counts.from >= 4);
    assert_int_equal(hoccl_wire_counts.filled, 2); /* of 5000 bytes, no longer registered */
    forget_counts();
    far_run(2, "", handles, NULL, false); /* within a node there is nothing to register with */
    assert_int_equal(hoccl_wire_counts.from, 0);
    hoccl_wire_transport = &hoccl_transport_tcp;
    far_run(2, "2", refused, NULL, false);
    hoccl_wire_transport = &near_transport;
    assert_int_equal(hoccl_wire_counts.from, 0);
    assert_int_equal(hoccl_wire_counts.into, 0);
    assert_true(hoccl_wire_counts.filled > 0);
}

/* ---- bad weather -------------------------------------------------------------------------------------------------- */

/* Taken back while operations are under way, and before they have begun: these end as they began, those go by slots. */
static void taken_back(struct rank *r)
{
    struct buffers b;
    struct wish w = *(struct wish *)r->arg;
    size_t n = 8 * MIB + 3;
    if (open_buffers(r, &b, &w, 2 * ROW(n)) && enter(r, &b)) {
        prepare(r, &b, n, 7);
        RANK_OK(r, post(r, &b, n));
        while (!r->rank && hoccl_peek(&hoccl_wire_counts.written) < 5)
            usleep(50);
        leave(r, &b);
        RANK_OK(r, ended(r, &b));
        check(r, &b, n, 7);
        pthread_barrier_wait(&meeting);
        RANK_TRUE(r, hoccl_peek(&hoccl_registry_regions) == 0); /* withdrawn before the stream went on */
        pthread_barrier_wait(&meeting);
        swap(r, &b, 4097, 8);
    }
    close_buffers(r, &b);
}

void test_registered_taken_back(void **state)
{
    struct wish gpu = {false, true, true}, host = {true, true, true};
    (void)state;
    near = (struct near_weather){.on_gpu = true, .delay = 300, .jitter = 300};
    far_run(2, "2", taken_back, &gpu, false);
    near = (struct near_weather){0};
    hoccl_wire_transport = &hoccl_transport_tcp;
    far_run(2, "2", taken_back, &host, false);
    hoccl_wire_transport = &near_transport;
}

static void fill_in(struct rank *r, struct buffers *b)
{
    memset(b->host, 0x5a, b->room);
    put(r, b, b->in, b->room);
}

/* One aborts in the middle: when the call has returned, nothing is written into its buffers any more, and they can be freed. */
static void give_up(struct rank *r)
{
    struct buffers b;
    struct wish w = *(struct wish *)r->arg;
    size_t n = 16 * MIB + 3;
    if (open_buffers(r, &b, &w, (size_t)r->size * ROW(n)) && enter(r, &b)) {
        uint64_t seen = hoccl_peek(&hoccl_wire_counts.arrived);
        RANK_OK(r, post(r, &b, n));
        if (!r->rank) {
            while (hoccl_peek(&hoccl_wire_counts.arrived) < seen + 4)
                usleep(20);
            RANK_OK(r, HOCCL_CommAbort(r->comm));
            RANK_CUDA(r, cuStreamSynchronize(b.stream));
            fill_in(r, &b);
            usleep(30000);
            get(r, &b, b.in, b.room);
            RANK_TRUE(r, b.host[0] == 0x5a && !memcmp(b.host, b.host + 1, b.room - 1));
        } else {
            RANK_TRUE(r, ended(r, &b) == HOCCL_ERR_PEER);
            RANK_TRUE(r, strstr(HOCCL_GetLastError(), "rank 0") || strstr(HOCCL_GetLastError(), "aborted"));
            RANK_OK(r, HOCCL_CommAbort(r->comm));
        }
        r->comm = HOCCL_COMM_NULL;
    }
    close_buffers(r, &b);
}

void test_registered_abort(void **state)
{
    struct wish gpu = {false, true, true}, host = {true, true, true}, in = {true, false, true};
    (void)state;
    near = (struct near_weather){.on_gpu = true, .delay = 300, .jitter = 30000}; /* the fifth chunk comes long before the last */
    far_run(3, "3", give_up, &gpu, false);
    far_run(3, "1+2", give_up, &host, false);
    far_run(2, "2", give_up, &in, false);
    near = (struct near_weather){0};
    hoccl_wire_transport = &hoccl_transport_tcp;
    far_run(2, "2", give_up, &host, false);
    hoccl_wire_transport = &near_transport;
    assert_int_equal(hoccl_registry_regions, 0);
}

/* Connections that break in the middle: an error or the right bytes, and nothing is kept. */
static void survive(struct rank *r)
{
    struct buffers b;
    struct wish w = {true, true, r->rank != 1};
    size_t n = 3 * MIB + 11;
    HOCCL_Result e = HOCCL_CommInitRank(&r->comm, r->size, r->id, r->rank);
    bool opened = !e;
    if (open_buffers(r, &b, &w, (size_t)r->size * ROW(n)) && opened) {
        prepare(r, &b, n, 5);
        e = enter(r, &b) ? post(r, &b, n) : HOCCL_ERR_PEER;
        e = e ? e : ended(r, &b);
        if (!e)
            check(r, &b, n, 5);
    }
    RANK_TRUE(r, !e || e == HOCCL_ERR_PEER || (!opened && e == HOCCL_ERR_BOOTSTRAP));
    if (opened)
        RANK_OK(r, HOCCL_CommAbort(r->comm));
    close_buffers(r, &b);
    r->comm = HOCCL_COMM_NULL;
}

void test_registered_breaks(void **state)
{
    (void)state;
    for (unsigned n = 20; n < 80; n += 1 + n / 5) {
        near_break(n);
        far_run(3, n % 2 ? "3" : "1+2", survive, NULL, true);
        assert_int_equal(hoccl_registry_regions, 0);
    }
    near_break(0);
}
