/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input: every wrong argument of Send, Recv and the group calls, and every call in a state that does not allow it. Each
 * must return the right result with a text that names the cause, post nothing, and leave the communicator good: a checked
 * exchange follows each.
 *
 * usage: mpirun -np N errors */
#include "kit.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 4096
#define WORLD HOCCL_COMM_WORLD

static unsigned checked;

struct bad {
    const char *what;
    void *buffer;
    size_t count;
    int type, peer;
    CUstream stream;
    HOCCL_Result want;
    const char *words;
};

/* As a call of its own and inside a group, where End must report it and post nothing of the good call before it. */
static void try_bad(const struct bad *b, bool is_send, CUdeviceptr good, CUstream stream)
{
    HOCCL_Datatype type = (HOCCL_Datatype)b->type;
    char text[512];
    HOCCL_Result r = is_send ? HOCCL_Send(b->buffer, b->count, type, b->peer, WORLD, b->stream)
                             : HOCCL_Recv(b->buffer, b->count, type, b->peer, WORLD, b->stream);
    kit_expect(r, b->want, b->words, b->what);
    kit_expect(r, b->want, is_send ? "HOCCL_Send" : "HOCCL_Recv", b->what);
    check_hoccl(kit_async_error(), b->what);
    kit_exchange(b->what);
    check_hoccl(HOCCL_GroupStart(), b->what);
    check_hoccl(kit_send(good, BYTES, (job.rank + 1) % job.size, stream), b->what);
    r = is_send ? HOCCL_Send(b->buffer, b->count, type, b->peer, WORLD, b->stream)
                : HOCCL_Recv(b->buffer, b->count, type, b->peer, WORLD, b->stream);
    if (b->want == HOCCL_ERR_ARGUMENT && !strcmp(b->words, "another context"))
        kit_expect(r, r, "", b->what); /* may be found at End only */
    else
        kit_expect(r, b->want, b->words, b->what);
    snprintf(text, sizeof text, "%s", r ? HOCCL_GetLastError() : b->words);
    r = HOCCL_GroupEnd();
    kit_expect(r, b->want, text, b->what);
    check_cuda(cuStreamQuery(stream), "the stream of a group that was not posted");
    kit_exchange(b->what);
    checked += 2;
}

static CUdeviceptr memory_of_another_gpu(CUcontext *context)
{
    CUcontext mine, other;
    CUdeviceptr p;
    int n;
    check_cuda(cuDeviceGetCount(&n), "cuDeviceGetCount");
    if (n < 2)
        return 0;
    check_cuda(cuCtxGetCurrent(&mine), "cuCtxGetCurrent");
    check_cuda(cuDevicePrimaryCtxRetain(&other, (job.device + 1) % n), "another GPU's context");
    check_cuda(cuCtxSetCurrent(other), "cuCtxSetCurrent");
    p = kit_memory(BYTES);
    check_cuda(cuCtxSetCurrent(mine), "cuCtxSetCurrent");
    *context = other;
    return p;
}

static CUstream stream_of(CUcontext context)
{
    CUcontext mine;
    check_cuda(cuCtxGetCurrent(&mine), "cuCtxGetCurrent");
    check_cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    CUstream s = kit_stream();
    check_cuda(cuCtxSetCurrent(mine), "cuCtxSetCurrent");
    return s;
}

static void bad_arguments(void)
{
    CUcontext other;
    CUstream s = kit_stream(), capturing = kit_stream();
    CUdeviceptr good = kit_memory(BYTES), freed = kit_memory(BYTES), far = memory_of_another_gpu(&other), managed;
    void *p = kit_pointer(good), *pageable = malloc(BYTES), *registered = malloc(BYTES), *pinned;
    char on_stack[64];
    void *own;
    int right = (job.rank + 1) % job.size;
    check_cuda(cuMemFree(freed), "cuMemFree");
    check_hoccl(HOCCL_MemAlloc(&own, BYTES), "HOCCL_MemAlloc");
    check_cuda(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    check_cuda(cuMemHostAlloc(&pinned, BYTES, 0), "cuMemHostAlloc");
    check_cuda(cuMemFreeHost(pinned), "cuMemFreeHost");
    check_cuda(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED), "capture");
    const struct bad cases[] = {
        {"NULL buffer", NULL, 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "the buffer is NULL and the count is 1"},
        {"peer -1", p, 1, HOCCL_BYTE, -1, s, HOCCL_ERR_ARGUMENT, "peer -1"},
        {"peer = size", p, 1, HOCCL_BYTE, job.size, s, HOCCL_ERR_ARGUMENT, "has ranks 0 to"},
        {"peer INT_MAX", p, 1, HOCCL_BYTE, INT_MAX, s, HOCCL_ERR_ARGUMENT, "peer 2147483647"},
        {"peer INT_MIN, count 0", NULL, 0, HOCCL_BYTE, INT_MIN, s, HOCCL_ERR_ARGUMENT, "peer -2147483648"},
        {"datatype behind the last", p, 1, HOCCL_BYTE + 1, right, s, HOCCL_ERR_ARGUMENT, "datatype 17"},
        {"datatype -1", p, 1, -1, right, s, HOCCL_ERR_ARGUMENT, "datatype -1"},
        {"datatype unknown, count 0", NULL, 0, 1000, right, s, HOCCL_ERR_ARGUMENT, "datatype 1000"},
        {"count over SIZE_MAX / 8", p, SIZE_MAX / 8 + 1, HOCCL_FP64, right, s, HOCCL_ERR_ARGUMENT, "address space"},
        {"count over SIZE_MAX / 16", p, SIZE_MAX / 16 + 1, HOCCL_COMPLEX128, right, s, HOCCL_ERR_ARGUMENT, "address space"},
        {"count SIZE_MAX", p, SIZE_MAX, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "beyond its allocation"},
        {"count SIZE_MAX of HOCCL_MemAlloc's", own, SIZE_MAX, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "beyond its memory"},
        {"one byte less than wraps", (char *)own + 1, SIZE_MAX - (uintptr_t)own - 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "beyond its memory"},
        {"one byte too many", p, BYTES + 1, HOCCL_INT8, right, s, HOCCL_ERR_ARGUMENT, "beyond its allocation"},
        {"an offset too many", (char *)p + 8, BYTES / 8, HOCCL_UINT64, right, s, HOCCL_ERR_ARGUMENT, "beyond its allocation"},
        {"malloc", pageable, 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "pageable"},
        {"the stack", on_stack, 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "pageable"},
        {"a small number", (void *)8, 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "no memory that the driver knows"},
        {"freed device memory", kit_pointer(freed), 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "freed"},
        {"freed pinned memory", pinned, 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "no memory that the driver knows"},
        {"managed memory", kit_pointer(managed), 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "managed"},
        {"capture", p, 1, HOCCL_BYTE, right, capturing, HOCCL_ERR_UNSUPPORTED, "captur"},
        {"another GPU's memory", kit_pointer(far), 1, HOCCL_BYTE, right, s, HOCCL_ERR_ARGUMENT, "this rank is bound to GPU"},
        {"another context's stream", p, 1, HOCCL_BYTE, right, far ? stream_of(other) : NULL, HOCCL_ERR_ARGUMENT, "another context"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases - (far ? 0 : 2); i++) {
        try_bad(&cases[i], true, good, s);
        try_bad(&cases[i], false, good, s);
    }
    check_hoccl(HOCCL_MemFree(own), "HOCCL_MemFree");
    free(pageable);
    free(registered);
}

/* A capture that was refused goes on: it ends with a graph of nothing of ours. */
static void capture_goes_on(void)
{
    CUstream s = kit_stream();
    CUdeviceptr p = kit_memory(64);
    CUgraph graph;
    check_cuda(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
    kit_expect(kit_send(p, 64, 0, s), HOCCL_ERR_UNSUPPORTED, "captur", "a captured send");
    check_cuda(cuStreamEndCapture(s, &graph), "the end of the capture");
    checked++;
    kit_exchange("after a capture");
}

/* The right thing that looks wrong. */
static void good_arguments(void)
{
    CUstream s = kit_stream();
    CUdeviceptr p = kit_memory(16);
    int right = (job.rank + 1) % job.size, left = (job.rank + job.size - 1) % job.size;
    for (int type = HOCCL_INT8; type <= HOCCL_BYTE; type++) {
        check_hoccl(HOCCL_GroupStart(), "empty messages");
        check_hoccl(HOCCL_Send(NULL, 0, (HOCCL_Datatype)type, right, WORLD, s), "NULL and 0");
        check_hoccl(HOCCL_Recv(kit_pointer(p), 0, HOCCL_BYTE, left, WORLD, s), "0 elements");
        check_hoccl(HOCCL_Send(kit_pointer(p), 16, HOCCL_BYTE, right, WORLD, s), "16 bytes");
        check_hoccl(HOCCL_Recv(kit_pointer(p), 1, HOCCL_COMPLEX128, left, WORLD, s), "one element of 16 bytes");
        check_hoccl(HOCCL_GroupEnd(), "empty messages");
    }
    kit_sync(s, "empty messages");
    check_hoccl(HOCCL_GroupStart(), "an empty group");
    check_hoccl(HOCCL_GroupEnd(), "an empty group");
    kit_exchange("after empty messages");
}

static void bad_groups(void)
{
    CUstream s = kit_stream();
    CUdeviceptr p = kit_memory(BYTES), q = kit_memory(BYTES);
    int right = (job.rank + 1) % job.size, left = (job.rank + job.size - 1) % job.size;
    kit_expect(HOCCL_GroupEnd(), HOCCL_ERR_USAGE, "without HOCCL_GroupStart", "End without Start");
    kit_exchange("after End without Start");
    check_hoccl(HOCCL_GroupStart(), "Start");
    kit_expect(HOCCL_Finalize(), HOCCL_ERR_USAGE, "group is open", "Finalize in a group");
    check_hoccl(HOCCL_GroupStart(), "Start");
    check_hoccl(kit_send(p, BYTES, right, s), "in the inner group");
    check_hoccl(kit_recv(q, BYTES, left, s), "in the inner group");
    check_hoccl(HOCCL_GroupEnd(), "the inner End");
    check_cuda(cuStreamQuery(s), "the inner End has posted something");
    check_hoccl(HOCCL_GroupEnd(), "the outer End");
    kit_sync(s, "a nested group");
    kit_expect(HOCCL_GroupEnd(), HOCCL_ERR_USAGE, "without HOCCL_GroupStart", "one End too many");
    /* The first error is the one that End reports, wherever in the nest it was. */
    check_hoccl(HOCCL_GroupStart(), "Start");
    check_hoccl(HOCCL_GroupStart(), "Start");
    kit_expect(kit_send(p, BYTES, -7, s), HOCCL_ERR_ARGUMENT, "peer -7", "a bad call in a nested group");
    check_hoccl(HOCCL_GroupEnd(), "the inner End");
    kit_expect(kit_recv(0, BYTES, left, s), HOCCL_ERR_ARGUMENT, "NULL", "a second bad call");
    kit_expect(HOCCL_GroupEnd(), HOCCL_ERR_ARGUMENT, "peer -7", "the End of a group with bad calls");
    check_cuda(cuStreamQuery(s), "a group with bad calls has posted something");
    kit_exchange("after a nested group with bad calls");
    checked += 7;
}

static void bad_handles(void)
{
    static HOCCL_Comm const handles[] = {HOCCL_COMM_NULL, (HOCCL_Comm)2, (HOCCL_Comm)0x101, (HOCCL_Comm)0xdeadbeef,
                                         (HOCCL_Comm)UINTPTR_MAX};
    CUstream s = kit_stream();
    CUdeviceptr p = kit_memory(64);
    HOCCL_Result e;
    int n;
    for (size_t i = 0; i < sizeof handles / sizeof *handles; i++) {
        HOCCL_Comm h = handles[i];
        kit_expect(HOCCL_Send(kit_pointer(p), 1, HOCCL_BYTE, 0, h, s), HOCCL_ERR_ARGUMENT, "does not exist", "no communicator");
        kit_expect(HOCCL_Recv(kit_pointer(p), 1, HOCCL_BYTE, 0, h, s), HOCCL_ERR_ARGUMENT, "does not exist", "no communicator");
        kit_expect(HOCCL_CommSize(h, &n), HOCCL_ERR_ARGUMENT, "HOCCL_CommSize", "no communicator");
        kit_expect(HOCCL_CommRank(h, &n), HOCCL_ERR_ARGUMENT, "HOCCL_CommRank", "no communicator");
        kit_expect(HOCCL_CommDevice(h, &n), HOCCL_ERR_ARGUMENT, "HOCCL_CommDevice", "no communicator");
        kit_expect(HOCCL_CommGetAsyncError(h, &e), HOCCL_ERR_ARGUMENT, "HOCCL_CommGetAsyncError", "no communicator");
        kit_expect(HOCCL_CommAbort(h), HOCCL_ERR_ARGUMENT, "HOCCL_CommAbort", "no communicator");
        checked += 7;
    }
    kit_expect(HOCCL_CommSize(WORLD, NULL), HOCCL_ERR_ARGUMENT, "NULL", "HOCCL_CommSize(NULL)");
    kit_expect(HOCCL_CommRank(WORLD, NULL), HOCCL_ERR_ARGUMENT, "NULL", "HOCCL_CommRank(NULL)");
    kit_expect(HOCCL_CommDevice(WORLD, NULL), HOCCL_ERR_ARGUMENT, "NULL", "HOCCL_CommDevice(NULL)");
    kit_expect(HOCCL_CommGetAsyncError(WORLD, NULL), HOCCL_ERR_ARGUMENT, "NULL", "HOCCL_CommGetAsyncError(NULL)");
    kit_expect(HOCCL_GetVersion(NULL), HOCCL_ERR_ARGUMENT, "NULL", "HOCCL_GetVersion(NULL)");
    kit_exchange("after bad handles");
    checked += 5;
}

/* Before Init and after Finalize. */
static void no_world(const char *when, const char *words)
{
    HOCCL_Result e;
    char buffer[8] = "";
    int n;
    kit_expect(HOCCL_Send(buffer, 1, HOCCL_BYTE, 0, WORLD, NULL), HOCCL_ERR_USAGE, words, when);
    kit_expect(HOCCL_Recv(buffer, 1, HOCCL_BYTE, 0, WORLD, NULL), HOCCL_ERR_USAGE, words, when);
    kit_expect(HOCCL_CommSize(WORLD, &n), HOCCL_ERR_USAGE, words, when);
    kit_expect(HOCCL_CommGetAsyncError(WORLD, &e), HOCCL_ERR_USAGE, words, when);
    kit_expect(HOCCL_CommAbort(WORLD), HOCCL_ERR_USAGE, words, when);
    kit_expect(HOCCL_Finalize(), HOCCL_ERR_USAGE, "HOCCL_Finalize", when);
    kit_expect(HOCCL_GroupEnd(), HOCCL_ERR_USAGE, "HOCCL_GroupStart", when);
    check_hoccl(HOCCL_GroupStart(), when);
    kit_expect(HOCCL_Send(buffer, 1, HOCCL_BYTE, 0, WORLD, NULL), HOCCL_ERR_USAGE, words, when);
    kit_expect(HOCCL_GroupEnd(), HOCCL_ERR_USAGE, words, when);
    for (int r = -1; r < 40; r++)
        if (!HOCCL_GetErrorString((HOCCL_Result)r)[0])
            fail("result %d has no text", r);
    checked += 9;
}

/* ---- two threads in one communicator (B40) ------------------------------------------------------------------------- */

#define SENDS 200

static pthread_barrier_t together;

struct sender {
    pthread_t thread;
    CUcontext context;
    CUdeviceptr memory;
    CUstream stream;
    unsigned refused;
};

/* Each send posted or refused as a whole: who is refused tries again. */
static void *send_many(void *arg)
{
    struct sender *s = arg;
    check_cuda(cuCtxSetCurrent(s->context), "cuCtxSetCurrent");
    pthread_barrier_wait(&together);
    for (int i = 0; i < SENDS; i++) {
        HOCCL_Result r;
        while ((r = kit_send(s->memory, BYTES, (job.rank + 1) % job.size, s->stream)) == HOCCL_ERR_USAGE) {
            kit_expect(r, HOCCL_ERR_USAGE, "another thread", "two threads");
            s->refused++;
        }
        check_hoccl(r, "a send beside another thread's");
    }
    return NULL;
}

static void two_threads(void)
{
    struct sender s[2] = {{.refused = 0}, {.refused = 0}};
    int right = (job.rank + 1) % job.size, left = (job.rank + job.size - 1) % job.size, seen[2] = {0, 0};
    CUdeviceptr in = kit_memory((size_t)2 * SENDS * BYTES);
    CUstream r = kit_stream();
    /* the receives are posted first, so that nobody's sends wait for ever */
    check_hoccl(HOCCL_GroupStart(), "receives");
    for (size_t i = 0; i < (size_t)2 * SENDS; i++)
        check_hoccl(kit_recv(in + i * BYTES, BYTES, left, r), "a receive");
    check_hoccl(HOCCL_GroupEnd(), "receives");
    for (int t = 0; t < 2; t++) {
        s[t].memory = kit_memory(BYTES);
        s[t].stream = kit_stream();
        check_cuda(cuCtxGetCurrent(&s[t].context), "cuCtxGetCurrent");
        pattern_fill(s[t].memory, BYTES, (struct message){job.rank, right, 7000 + (unsigned)t});
    }
    pthread_barrier_init(&together, NULL, 2);
    for (int t = 0; t < 2; t++)
        if (pthread_create(&s[t].thread, NULL, send_many, &s[t]))
            fail("no thread");
    for (int t = 0; t < 2; t++)
        pthread_join(s[t].thread, NULL);
    kit_sync(r, "two threads");
    for (size_t i = 0; i < (size_t)2 * SENDS; i++) {
        unsigned char data[BYTES];
        size_t at;
        int want, t;
        check_cuda(cuMemcpyDtoH(data, in + i * BYTES, BYTES), "cuMemcpyDtoH");
        for (t = 0; t < 2; t++)
            if (!pattern_check(data, BYTES, (struct message){left, job.rank, 7000 + (unsigned)t}, &at, &want))
                break;
        if (t == 2)
            fail("two threads: message %zu is neither thread's", i);
        seen[t]++;
    }
    if (seen[0] != SENDS || seen[1] != SENDS)
        fail("two threads: %d and %d messages came, not %d of each", seen[0], seen[1], SENDS);
    kit_exchange("after two threads");
    if (!job.rank)
        printf("errors: two threads sent %d messages each, refused %u and %u times\n", SENDS, s[0].refused, s[1].refused);
    checked++;
}

int main(void)
{
    no_world("before HOCCL_Init", "HOCCL_Init has not been called");
    kit_open(200, "errors");
    kit_expect(HOCCL_Init(), HOCCL_ERR_USAGE, "has been called already", "HOCCL_Init twice");
    kit_exchange("after HOCCL_Init twice");
    good_arguments();
    bad_arguments();
    capture_goes_on();
    bad_groups();
    bad_handles();
    two_threads();
    kit_close();
    no_world("after HOCCL_Finalize", "finalised");
    kit_expect(HOCCL_Init(), HOCCL_ERR_USAGE, "again", "HOCCL_Init after HOCCL_Finalize");
    if (!job.rank)
        printf("errors: %u wrong calls on each of %d ranks: all refused, the communicator good after each\n", checked + 2, job.size);
    return 0;
}
