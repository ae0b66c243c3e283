/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues: how operations get into their stream and into hardware channels, and when one may start.
 *
 *     stream A:  [write] [push] [wait] [push]        each also stands in the queue of a channel:
 *     compute 0:  A.write, B.kernel ...              it may run when it is first in its stream
 *     push 0:     A.push, A.wait, A.push, B.push     and first in its channels
 *
 * A stream uses one channel of each class while it has work there; without, it gets the one with the least to do, a
 * channel in which somebody waits last. An operation without a class of its own (write, wait, record) runs in the
 * class of the one in front of it. Two measured oddities: what stands behind a pull is in the compute class as well
 * as in the pull class, and a pull also uses the channels of every other class of copy that its stream has carried.
 * An event wait uses no channel: it is part of whatever comes next.
 */
#include "device.h"
#include "graph.h"

#include <stdlib.h>

#define BIT(class) (1u << (class))
#define COPIES (BIT(EMU_PUSH) | BIT(EMU_PULL) | BIT(EMU_D2H) | BIT(EMU_H2D))

struct emu_op *emu_op_new(CUstream stream, enum emu_kind kind)
{
    struct emu_op *op = calloc(1, sizeof *op);
    if (!op)
        return NULL;
    op->stream = stream;
    op->dev = stream->ctx->dev;
    op->kind = kind;
    return op;
}

/* The channels that the operation needs, as bits; and what the stream remembers of it. */
static unsigned classes_of(CUstream s, enum emu_kind kind, unsigned own)
{
    if (kind == EMU_OP_AFTER)
        return 0;
    if (!own)
        return s->front ? s->front : BIT(EMU_COMPUTE);
    unsigned all = own;
    s->front = own;
    if (own == BIT(EMU_PULL)) {
        s->front |= BIT(EMU_COMPUTE);
        all |= s->carried & ~BIT(EMU_PULL);
    }
    s->carried |= own & COPIES;
    return all;
}

static struct emu_channel *channel_for(CUstream s, struct emu_device *dev, unsigned class)
{
    if (s->pending[class])
        return s->channel[class];
    struct emu_channel *best = s->channel[class] ? s->channel[class] : &dev->channel[class][0];
    for (unsigned i = 0; i < emu.set.connections; i++) {
        struct emu_channel *c = &dev->channel[class][i];
        if (c->stuck < best->stuck || (c->stuck == best->stuck && c->ops < best->ops))
            best = c;
    }
    return best;
}

static void join_channels(struct emu_op *op)
{
    CUstream s = op->stream;
    for (unsigned class = 0; class < EMU_CLASSES; class ++) {
        if (!(op->classes & BIT(class)))
            continue;
        struct emu_channel *c = channel_for(s, s->ctx->dev, class);
        s->channel[class] = op->channel[class] = c;
        s->pending[class]++;
        c->ops++;
        c->stuck += op->stuck;
        if (c->tail)
            c->tail->behind[class] = op;
        else
            c->head = op;
        c->tail = op;
    }
}

static void leave_channels(struct emu_op *op)
{
    for (unsigned class = 0; class < EMU_CLASSES; class ++) {
        struct emu_channel *c = op->channel[class];
        if (!c)
            continue;
        c->head = op->behind[class];
        if (!c->head)
            c->tail = NULL;
        c->ops--;
        c->stuck -= op->stuck;
        op->stream->pending[class]--;
    }
}

static void busy_add(CUstream s)
{
    s->busy = true;
    s->prev_busy = NULL;
    s->next_busy = emu.busy;
    if (emu.busy)
        emu.busy->prev_busy = s;
    emu.busy = s;
}

static void busy_remove(CUstream s)
{
    s->busy = false;
    if (s->prev_busy)
        s->prev_busy->next_busy = s->next_busy;
    else
        emu.busy = s->next_busy;
    if (s->next_busy)
        s->next_busy->prev_busy = s->prev_busy;
}

CUresult emu_enqueue_room(CUstream stream, unsigned units)
{
    uint64_t id = stream->id;
    while (stream->units + units > EMU_QUEUE_UNITS && stream->head) {
        emu_wait();
        CUstream s = emu_stream_first();
        while (s && s->id != id)
            s = s->next;
        if (!s || s->destroyed)
            return CUDA_ERROR_INVALID_HANDLE;
    }
    return stream->ctx->error;
}

CUresult emu_enqueue(struct emu_op *op, unsigned classes)
{
    CUstream s = op->stream;
    if (s->capture)
        return emu_capture_take(op, classes);
    CUresult result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!s->legacy || !emu_capture_blocks_legacy(s->ctx))
        result = emu_enqueue_room(s, 1);
    if (result != CUDA_SUCCESS) {
        free(op->bounce);
        free(op);
        return result;
    }
    op->seq = s->last = ++emu.seq;
    if (op->kind == EMU_OP_WAIT && !s->waits++)
        emu.waiting++;
    op->stuck = s->waits > 0;
    op->classes = classes_of(s, op->kind, classes);
    join_channels(op);
    if (s->tail)
        s->tail->next = op;
    else
        s->head = op;
    s->tail = op;
    s->units++;
    if (!s->busy)
        busy_add(s);
    emu_pump();
    if (s->busy)
        emu_kick();
    return CUDA_SUCCESS;
}

/* The NULL stream's operation waits for the older ones of all blocking streams of its context, theirs for its. */
static bool legacy_clear(const struct emu_op *op)
{
    CUcontext ctx = op->stream->ctx;
    if (op->stream->flags & CU_STREAM_NON_BLOCKING)
        return true;
    if (!op->stream->legacy)
        return emu_stream_oldest(ctx->legacy) > op->seq;
    for (CUstream s = emu.busy; s; s = s->next_busy)
        if (s->ctx == ctx && !(s->flags & CU_STREAM_NON_BLOCKING) && emu_stream_oldest(s) < op->seq)
            return false;
    return true;
}

bool emu_op_may_start(const struct emu_op *op)
{
    if (op->stream->head != op)
        return false;
    for (unsigned class = 0; class < EMU_CLASSES; class ++)
        if (op->channel[class] && op->channel[class]->head != op)
            return false;
    return legacy_clear(op);
}

void emu_op_done(struct emu_op *op)
{
    CUstream s = op->stream;
    op->dev->compute += (op->classes & BIT(EMU_COMPUTE)) != 0;
    leave_channels(op);
    s->head = op->next;
    if (!s->head)
        s->tail = NULL;
    s->units--;
    if (op->kind == EMU_OP_WAIT && !--s->waits)
        emu.waiting--;
    emu.parked -= op->parked;
    if (op->kind == EMU_OP_RECORD || op->kind == EMU_OP_AFTER)
        emu_event_release(op->ev.event);
    free(op->bounce);
    free(op);
    if (!s->head) {
        busy_remove(s);
        if (s->destroyed)
            emu_stream_drained(s);
    }
    emu_changed();
}
