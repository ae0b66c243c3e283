/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: their handles, their life, waiting for them. The NULL stream of a context is a stream that waits for all
 * blocking ones and that they wait for (queue.c). Each thread has one more, its own, for CU_STREAM_PER_THREAD. A
 * destroyed stream runs its work to the end and then goes.
 */
#include "device.h"
#include "graph.h"

#include <stdlib.h>

static CUstream streams;
static __thread int own_default;

/* A thread's own streams, one a context. They are destroyed when the thread ends. */
struct own {
    struct own *next;
    CUcontext ctx;
    CUstream stream;
};
static pthread_key_t owned_key;
static pthread_once_t owned_once = PTHREAD_ONCE_INIT;

void emu_stream_own_default(int change)
{
    own_default += change;
}

CUstream emu_stream_own(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

CUstream emu_stream_first(void)
{
    return streams;
}

CUstream emu_stream_new(CUcontext ctx, unsigned flags, int priority)
{
    CUstream stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->ctx = ctx;
    stream->id = ++emu.ids;
    stream->flags = flags;
    stream->priority = priority;
    stream->next = streams;
    streams = stream;
    return stream;
}

static void destroy(CUstream stream)
{
    stream->destroyed = true;
    if (!stream->head)
        emu_stream_drained(stream);
}

static void thread_ends(void *arg)
{
    pthread_mutex_lock(&emu.lock);
    for (struct own *o = arg, *next; o; o = next) {
        next = o->next;
        if (o->stream && emu_ctx_valid(o->ctx))
            destroy(o->stream);
        free(o);
    }
    pthread_mutex_unlock(&emu.lock);
}

static void make_key(void)
{
    pthread_key_create(&owned_key, thread_ends);
}

void emu_streams_end(CUcontext ctx)
{
    for (CUstream s = streams, next; s; s = next) {
        next = s->next;
        if (s->ctx == ctx && !s->destroyed)
            destroy(s);
    }
}

CUstream emu_stream_thread_own(CUcontext ctx)
{
    pthread_once(&owned_once, make_key);
    struct own *o = pthread_getspecific(owned_key);
    while (o && o->ctx != ctx)
        o = o->next;
    if (o)
        return o->stream;
    o = malloc(sizeof *o);
    if (!o)
        return NULL;
    *o = (struct own){pthread_getspecific(owned_key), ctx, emu_stream_new(ctx, CU_STREAM_DEFAULT, 0)};
    pthread_setspecific(owned_key, o);
    return o->stream;
}

CUstream emu_stream_check(CUstream handle, CUcontext ctx)
{
    if (handle == CU_STREAM_PER_THREAD || (!handle && own_default > 0))
        return emu_stream_thread_own(ctx);
    if (!handle || handle == CU_STREAM_LEGACY)
        return ctx->legacy;
    CUstream s = streams;
    while (s && (s != handle || s->destroyed))
        s = s->next;
    return s;
}

void emu_stream_drained(CUstream stream)
{
    CUstream *link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    free(stream);
}

uint64_t emu_stream_oldest(CUstream stream)
{
    return stream->head ? stream->head->seq : UINT64_MAX;
}

/* The stream may be destroyed by another thread meanwhile: it is looked up again by its number. */
void emu_stream_drain(CUstream stream)
{
    uint64_t last = stream->last, id = stream->id;
    for (;;) {
        CUstream s = streams;
        while (s && s->id != id)
            s = s->next;
        if (!s || emu_stream_oldest(s) > last)
            return;
        emu_wait();
    }
}

static bool any_before(struct emu_device *dev, CUcontext ctx, uint64_t last)
{
    for (CUstream s = streams; s; s = s->next)
        if ((!dev || s->ctx->dev == dev) && (!ctx || s->ctx == ctx) && emu_stream_oldest(s) <= last)
            return true;
    return false;
}

void emu_drain(struct emu_device *dev, CUcontext ctx)
{
    uint64_t last = emu.seq;
    while (any_before(dev, ctx, last))
        emu_wait();
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || flags > CU_STREAM_NON_BLOCKING)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    emu_hazard_pass();
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    CUstream stream = emu_stream_new(ctx, flags, priority);
    if (!stream)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *out = stream;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
    return cuStreamCreateWithPriority(out, flags, 0);
}

/* Enters with a stream of the current context, or of any: a handle names its context itself. */
static CUresult enter_stream(CUstream handle, CUstream *stream)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    *stream = emu_stream_check(handle, ctx);
    return *stream ? CUDA_SUCCESS : emu_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuStreamDestroy(CUstream handle)
{
    CUstream stream;
    CUresult result = enter_stream(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream != handle)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE); /* a default stream */
    emu_hazard_pass();
    destroy(stream);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    CUstream stream;
    CUresult result = enter_stream(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!id)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *id = stream->id;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *ctx)
{
    CUstream stream;
    CUresult result = enter_stream(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!ctx)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *ctx = stream->ctx;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    CUstream stream;
    CUresult result = enter_stream(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!device)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *device = stream->ctx->dev->ordinal;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
    CUstream stream;
    CUresult result = enter_stream(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!flags)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = stream->flags;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    CUstream stream;
    CUresult result = enter_stream(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!priority)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *priority = stream->priority;
    return emu_leave(CUDA_SUCCESS);
}

/* What a wait for the stream's work has to wait for: the NULL stream stands for all blocking ones too. */
static void drain(CUstream stream)
{
    CUcontext ctx = stream->ctx;
    if (!stream->legacy) {
        emu_stream_drain(stream);
        return;
    }
    uint64_t last = emu.seq;
    for (bool again = true; again;) {
        again = false;
        for (CUstream s = streams; s && !again; s = s->next)
            again = s->ctx == ctx && !(s->flags & CU_STREAM_NON_BLOCKING) && emu_stream_oldest(s) <= last;
        if (again)
            emu_wait();
    }
}

static CUresult spoil(CUstream stream)
{
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    CUstream stream;
    CUresult result = enter_stream(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return emu_leave(spoil(stream));
    CUcontext ctx = stream->ctx;
    drain(stream);
    return emu_leave(ctx->error);
}

CUresult cuStreamQuery(CUstream handle)
{
    CUstream stream;
    CUresult result = enter_stream(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return emu_leave(spoil(stream));
    emu_pump();
    return emu_leave(stream->head ? CUDA_ERROR_NOT_READY : stream->ctx->error);
}
