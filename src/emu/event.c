/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events. Each record is a generation; a wait remembers which generation it was enqueued behind, so that recording
 * again does not move it. An event lives on, after its destruction, until the operations that name it have run.
 */
#include "device.h"
#include "graph.h"

#include <stdlib.h>

static CUevent events;

static CUevent find(CUevent handle)
{
    CUevent e = events;
    while (e && (e != handle || e->destroyed))
        e = e->next;
    return e;
}

void emu_event_release(CUevent event)
{
    if (--event->refs || !event->destroyed)
        return;
    CUevent *link = &events;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    free(event);
}

void emu_event_record(struct emu_op *op)
{
    CUevent event = op->ev.event;
    if (op->ev.generation > event->done) {
        event->done = op->ev.generation;
        event->at_ns = emu_now();
    }
}

bool emu_event_passed(const struct emu_op *op)
{
    return op->ev.event->done >= op->ev.generation;
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    CUevent event = calloc(1, sizeof *event);
    if (!event)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    event->ctx = ctx;
    event->flags = flags;
    event->refs = 1;
    event->next = events;
    events = event;
    *out = event;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent handle)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUevent event = find(handle);
    if (!event)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    event->destroyed = true;
    emu_event_release(event);
    return emu_leave(CUDA_SUCCESS);
}

/* Enqueues a record or a wait; the operation holds the event until it is done. The caller holds it, too: the lock may
 * be given up. */
static CUresult enqueue(CUevent event, CUstream s, enum emu_kind kind, uint64_t generation)
{
    struct emu_op *op = emu_op_new(s, kind);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->ev.event = event;
    op->ev.generation = generation;
    event->refs++;
    CUresult result = emu_enqueue(op, 0);
    if (result != CUDA_SUCCESS)
        event->refs--;
    return result;
}

/* Enters with both; the lock is held on success. */
static CUresult enter_both(CUevent handle, CUstream stream, CUevent *event, CUstream *s)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    *event = find(handle);
    *s = emu_stream_check(stream, ctx);
    return *event && *s ? CUDA_SUCCESS : emu_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned int flags)
{
    CUevent event;
    CUstream s;
    CUresult result = enter_both(handle, stream, &event, &s);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags > CU_EVENT_RECORD_EXTERNAL)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (event->ctx != s->ctx)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    if (emu_capture_record(event, s))
        return emu_leave(CUDA_SUCCESS);
    event->refs++;
    emu_hazard_pass();
    result = enqueue(event, s, EMU_OP_RECORD, ++event->recorded);
    emu_event_release(event);
    return emu_leave(result);
}

CUresult cuEventRecord(CUevent handle, CUstream stream)
{
    return cuEventRecordWithFlags(handle, stream, 0);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int flags)
{
    CUevent event;
    CUstream s;
    CUresult result = enter_both(handle, stream, &event, &s);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags > CU_EVENT_WAIT_EXTERNAL)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (emu_capture_wait(event, s, &result))
        return emu_leave(result);
    if (event->done >= event->recorded)
        return emu_leave(CUDA_SUCCESS);
    event->refs++;
    result = enqueue(event, s, EMU_OP_AFTER, event->recorded);
    emu_event_release(event);
    return emu_leave(result);
}

CUresult cuEventQuery(CUevent handle)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUevent event = find(handle);
    if (!event)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    result = emu_capture_unsafe();
    if (result != CUDA_SUCCESS)
        return emu_leave(result);
    emu_pump();
    if (event->done < event->recorded)
        return emu_leave(CUDA_ERROR_NOT_READY);
    return emu_leave(event->ctx->error);
}

CUresult cuEventSynchronize(CUevent handle)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUevent event = find(handle);
    if (!event)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    uint64_t generation = event->recorded;
    CUcontext ctx = event->ctx;
    event->refs++;
    while (event->done < generation && ctx->error == CUDA_SUCCESS)
        emu_wait();
    emu_event_release(event);
    return emu_leave(ctx->error);
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUevent a = find(start), b = find(end);
    if (!a || !b || !a->recorded || !b->recorded || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING))
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!ms)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (a->done < a->recorded || b->done < b->recorded)
        return emu_leave(CUDA_ERROR_NOT_READY);
    *ms = (float)((double)(int64_t)(b->at_ns - a->at_ns) * 1e-6);
    return emu_leave(CUDA_SUCCESS);
}
