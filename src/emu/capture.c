/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture: what is enqueued into a capturing stream becomes a node of a graph. A stream joins a capture by
 * waiting for an event that was recorded in it, and must be joined again, by an event of its own, before the end.
 * Calls that no capture allows fail and spoil the captures they offend: those of all threads, of their own thread or
 * none, by the capturing mode and by the mode of the thread that calls.
 */
#include "graph.h"

#include <stdlib.h>

static struct emu_capture *captures;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

CUresult emu_capture_unsafe(void)
{
    bool found = false;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct emu_capture *c = captures; c; c = c->next) {
        bool own = pthread_equal(c->thread, pthread_self());
        bool offends = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? own || thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                                                                : c->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && own;
        c->invalid |= offends;
        found |= offends;
    }
    return found ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

bool emu_capture_blocks_legacy(CUcontext ctx)
{
    if (!captures)
        return false;
    for (CUstream s = emu_stream_first(); s; s = s->next)
        if (s->capture && s->ctx == ctx && !(s->flags & CU_STREAM_NON_BLOCKING)) {
            s->capture->invalid = true;
            return true;
        }
    return false;
}

CUresult emu_capture_take(struct emu_op *op, unsigned classes)
{
    struct emu_capture *c = op->stream->capture;
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!c->invalid)
        result = emu_graph_add(c->graph, op, classes);
    op->stream->unjoined = op->stream->id != c->origin;
    free(op);
    return result;
}

/* True: the record belonged to a capture and is dealt with. */
bool emu_capture_record(CUevent event, CUstream s)
{
    event->capture = s->capture ? s->capture->id : 0;
    event->captured_in = s->id;
    return s->capture != NULL;
}

/* True: the event belongs to a capture, the wait is dealt with. */
bool emu_capture_wait(CUevent event, CUstream s, CUresult *result)
{
    struct emu_capture *c = captures;
    while (c && c->id != event->capture)
        c = c->next;
    if (!event->capture || (!c && !s->capture))
        return false;
    *result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (!c || s->legacy || (s->capture && s->capture != c))
        return true;
    for (CUstream from = emu_stream_first(); from; from = from->next)
        if (from->id == event->captured_in)
            from->unjoined = false;
    if (!s->capture) {
        s->capture = c;
        s->unjoined = true;
    }
    *result = CUDA_SUCCESS;
    return true;
}

/* Enters with a stream of the current context; the lock is held on success. */
static CUresult enter_stream(CUstream handle, CUstream *s)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    *s = emu_stream_check(handle, ctx);
    return *s ? CUDA_SUCCESS : emu_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    CUstream s;
    CUresult result = enter_stream(handle, &s);
    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (s->legacy)
        return emu_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (s->capture)
        return emu_leave(CUDA_ERROR_ILLEGAL_STATE);
    struct emu_capture *c = calloc(1, sizeof *c);
    if (c)
        c->graph = emu_graph_new();
    if (!c || !c->graph) {
        free(c);
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    c->id = ++emu.ids;
    c->origin = s->id;
    c->mode = mode;
    c->thread = pthread_self();
    c->next = captures;
    captures = c;
    s->capture = c;
    return emu_leave(CUDA_SUCCESS);
}

/* All its streams leave the capture; true: one of them has work that was not joined. */
static bool let_go(struct emu_capture *c)
{
    bool unjoined = false;
    for (CUstream s = emu_stream_first(); s; s = s->next) {
        if (s->capture != c)
            continue;
        unjoined |= s->unjoined && s->id != c->origin;
        s->capture = NULL;
        s->unjoined = false;
    }
    struct emu_capture **link = &captures;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    return unjoined;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
    CUstream s;
    CUresult result = enter_stream(handle, &s);
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_capture *c = s->capture;
    if (!out || !c)
        return emu_leave(out ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE);
    if (c->origin != s->id)
        return emu_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        return emu_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    bool unjoined = let_go(c);
    result = c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : unjoined ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                        : CUDA_SUCCESS;
    *out = result == CUDA_SUCCESS ? c->graph : NULL;
    if (result != CUDA_SUCCESS)
        emu_graph_free(c->graph);
    free(c);
    return emu_leave(result);
}

static CUstreamCaptureStatus status_of(CUstream s)
{
    if (!s->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CUstream s;
    CUresult result = enter_stream(handle, &s);
    if (result != CUDA_SUCCESS)
        return result;
    if (!status)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (s->legacy && emu_capture_blocks_legacy(s->ctx))
        return emu_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *status = status_of(s);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
    CUstream s;
    CUresult result = enter_stream(handle, &s);
    if (result != CUDA_SUCCESS)
        return result;
    if (!status)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *status = status_of(s);
    if (id)
        *id = s->capture ? s->capture->id : 0;
    if (graph)
        *graph = s->capture ? s->capture->graph : NULL;
    if (dependencies)
        *dependencies = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    return emu_leave(CUDA_SUCCESS);
}
