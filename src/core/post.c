/* SPDX-License-Identifier: Apache-2.0 */
/* What the calling thread does: check, number, enqueue on streams, hand over. Its cost does not depend on the bytes: no
 * chunk is submitted here, no lock taken that the proxy holds for long, no peer waited for but where streams or hardware channels
 * are short (parking.h, gate.h). */
#include "core/post.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "core/proxy.h"
#include "p2p/wire.h"
#include "stream/parking.h"

#include <stdlib.h>
#include <string.h>

#define QUEUED_LOOK (10 * HOCCL_US)
#define RELEASED_LOOK (10 * HOCCL_US)

/* ---- checking ---------------------------------------------------------------------------------------------------- */

static HOCCL_Result check_stream(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult e = hoccl_driver.StreamIsCapturing(stream, &status);
    if (e == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (!e && status != CU_STREAM_CAPTURE_STATUS_NONE))
        return hoccl_fail(HOCCL_ERR_UNSUPPORTED, "stream %p is capturing a graph: HOCCL operations cannot be captured yet",
                          (void *)stream);
    return hoccl_driver_check(e, "stream %p", (void *)stream);
}

/* How the other end will get at a buffer: for another node, is it registered? A sender on this one opens a receive buffer. */
static HOCCL_Result make_reachable(struct hoccl_request *q, bool looked)
{
    const struct hoccl_peer *p = &q->comm->peers[q->peer];
    if (p->far && !looked)
        q->memory.registered = hoccl_registry_look(q->comm->gpu->wire, &q->memory, q->address, q->header.bytes);
    if (q->is_send || p->far || (p->same_gpu && !q->memory.host))
        return HOCCL_SUCCESS; /* by slots, whatever it is */
    return hoccl_memory_reach(&q->comm->gpu->exports, p->same_process, &q->memory);
}

/* From the first to the last byte that the requests of one direction touch. */
struct span {
    uintptr_t low, high;
    size_t pieces;
};

static struct span span_of(const struct hoccl_request *q, size_t n, bool is_send)
{
    struct span s = {.low = UINTPTR_MAX};
    for (size_t i = 0; i < n; i++) {
        uintptr_t low = (uintptr_t)q[i].address, high = low + q[i].header.bytes;
        if (q[i].is_send != is_send || low == high)
            continue;
        s.pieces++;
        s.low = low < s.low ? low : s.low;
        s.high = high > s.high ? high : s.high;
    }
    return s;
}

/* One question to the driver for all pieces of a buffer (it costs as much as the rest of the call); each by itself only
 * where the whole is not one allocation: pieces with gaps between them may lie in several, and one may be wrong. */
static HOCCL_Result check_memory(struct hoccl_request *q, size_t n, bool is_send)
{
    const struct hoccl_device *device = &q->comm->gpu->device;
    struct span s = span_of(q, n, is_send);
    struct hoccl_memory whole;
    bool one = s.pieces > 1 && !hoccl_memory_check(device, (const void *)s.low, s.high - s.low, &whole);
    HOCCL_Result r = HOCCL_SUCCESS;
    if (one && q->comm->abroad.count)
        whole.registered = hoccl_registry_look(q->comm->gpu->wire, &whole, (const void *)s.low, s.high - s.low);
    for (size_t i = 0; i < n && !r; i++) {
        if (q[i].is_send != is_send || !q[i].header.bytes)
            continue;
        if (one) {
            q[i].memory = whole;
            q[i].memory.offset += (uintptr_t)q[i].address - s.low;
        } else
            r = hoccl_memory_check(device, q[i].address, q[i].header.bytes, &q[i].memory);
        if (!r)
            r = make_reachable(&q[i], one && whole.registered);
    }
    return r;
}

static HOCCL_Result check_peer(const struct hoccl_request *q)
{
    const struct hoccl_comm *c = q->comm;
    if (q->peer < 0 || q->peer >= c->size)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "peer %d: the communicator has ranks 0 to %d", q->peer, c->size - 1);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_requests_check(struct hoccl_request *requests, size_t n, bool kept)
{
    struct hoccl_comm *c = requests->comm;
    bool pushed;
    HOCCL_Result r = hoccl_comm_error(c);
    for (size_t i = 0; i < n && !r; i++)
        r = check_peer(&requests[i]);
    if (!r)
        r = hoccl_device_enter(&c->gpu->device, &pushed);
    if (r)
        return r;
    r = kept ? HOCCL_SUCCESS : check_stream(requests->stream);
    if (!r)
        r = check_memory(requests, n, true);
    if (!r)
        r = check_memory(requests, n, false);
    hoccl_device_leave(pushed);
    return r;
}

/* ---- checking again ---------------------------------------------------------------------------------------------- */

static struct hoccl_kept_buffer *find_buffer(struct hoccl_kept_buffer *kept, size_t n, const struct hoccl_memory *m)
{
    for (size_t i = 0; i < n; i++)
        if (kept[i].buffer == m->buffer)
            return &kept[i];
    return NULL;
}

size_t hoccl_requests_buffers(const struct hoccl_request *requests, size_t n, struct hoccl_kept_buffer *kept)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const struct hoccl_memory *m = &requests[i].memory;
        uintptr_t low = (uintptr_t)requests[i].address, high = low + requests[i].header.bytes;
        struct hoccl_kept_buffer *k = low == high ? NULL : find_buffer(kept, count, m);
        if (low == high)
            continue;
        if (!k) {
            kept[count++] = (struct hoccl_kept_buffer){low, high, m->buffer, m->host || m->legacy};
            continue;
        }
        k->low = low < k->low ? low : k->low;
        k->high = high > k->high ? high : k->high;
    }
    return count;
}

/* Whoever opened the old allocation would go on using it, for its mapping keeps it alive. */
static HOCCL_Result check_buffer(const struct hoccl_device *device, const struct hoccl_kept_buffer *k)
{
    const void *at = (const void *)k->low;
    struct hoccl_memory now = {0};
    HOCCL_Result r = HOCCL_SUCCESS;
    if (k->whole)
        r = hoccl_memory_id(at, &now.buffer);
    else
        r = hoccl_memory_check(device, at, k->high - k->low, &now);
    if (!r && now.buffer != k->buffer)
        r = hoccl_fail(HOCCL_ERR_ARGUMENT, "buffer %p is not what it was when the request was made: its memory has been "
                       "freed; free the request and make a new one", at);
    return r;
}

HOCCL_Result hoccl_requests_check_again(struct hoccl_comm *comm, CUstream stream, const struct hoccl_kept_buffer *kept,
                                        size_t n)
{
    bool pushed;
    HOCCL_Result r = hoccl_comm_error(comm);
    if (!r)
        r = hoccl_device_enter(&comm->gpu->device, &pushed);
    if (r)
        return r;
    r = check_stream(stream);
    for (size_t i = 0; i < n && !r; i++)
        r = check_buffer(&comm->gpu->device, &kept[i]);
    hoccl_device_leave(pushed);
    return r;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static HOCCL_Result check_context(const struct hoccl_comm *c, CUstream stream)
{
    CUcontext context = NULL;
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.StreamGetCtx(stream, &context), "stream %p", (void *)stream);
    if (!r && context != c->gpu->device.context)
        r = hoccl_fail(HOCCL_ERR_ARGUMENT, "stream %p belongs to another context than the communicator's (GPU %d)",
                       (void *)stream, c->gpu->device.ordinal);
    return r;
}

static struct hoccl_comm_stream *idle_stream(struct hoccl_comm *c)
{
    for (int i = 0; i < c->streams_used; i++)
        if (!hoccl_observe(&c->streams[i].handshake.outstanding))
            return &c->streams[i];
    return NULL;
}

/* A place for a stream not met before: an unused one while there are flags enough for other communicators too, else one
 * that holds no operation, with its flags. */
static HOCCL_Result meet_stream(struct hoccl_comm *c, CUstream stream, unsigned long long id, struct hoccl_comm_stream **out)
{
    bool full = c->streams_used == HOCCL_STREAMS_MAX;
    struct hoccl_comm_stream *s = full || hoccl_flag_sets_scarce(&c->gpu->flags) ? idle_stream(c) : NULL;
    HOCCL_Result r = HOCCL_SUCCESS;
    if (s) {
        hoccl_handshake_reopen(&s->handshake, stream, id);
    } else if (full) {
        return hoccl_fail(HOCCL_ERR_USAGE, "more than %d streams hold operations of one communicator", HOCCL_STREAMS_MAX);
    } else {
        s = &c->streams[c->streams_used];
        hoccl_list_init(&s->queue);
        hoccl_list_init(&s->busy);
        hoccl_list_init(&s->link);
        r = hoccl_handshake_open(&s->handshake, stream, id, &c->gpu->flags);
        c->streams_used += !r;
    }
    if (!r)
        *out = s;
    return r;
}

static HOCCL_Result find_stream(struct hoccl_comm *c, CUstream stream, struct hoccl_comm_stream **out)
{
    unsigned long long id;
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.StreamGetId(stream, &id), "stream %p", (void *)stream);
    if (r)
        return r;
    for (int i = 0; i < c->streams_used; i++)
        if (c->streams[i].handshake.stream_id == id) {
            *out = &c->streams[i];
            return HOCCL_SUCCESS;
        }
    r = check_context(c, stream);
    return r ? r : meet_stream(c, stream, id, out);
}

/* ---- one communicator's part of a group -------------------------------------------------------------------------- */

struct part {
    struct hoccl_comm *comm;
    struct hoccl_op *op;
    int turns;
    bool foreground; /* a stream of it is in a foreground phase of the communicator's: the operation is a part of that */
    int fresh; /* streams that held no operation before: they will be parked */
    struct hoccl_comm_stream *stream[HOCCL_PARKED_MAX];
    bool was_free[HOCCL_PARKED_MAX];
    bool gated[HOCCL_PARKED_MAX];
    bool queued[HOCCL_PARKED_MAX]; /* gated, behind another turn of its stream, and counted so */
    struct hoccl_turn turn[HOCCL_PARKED_MAX]; /* a copy: once handed over, the operation may be freed at any time */
};

static HOCCL_Result add_stream(struct part *p, CUstream stream)
{
    struct hoccl_comm_stream *s = NULL;
    HOCCL_Result r = find_stream(p->comm, stream, &s);
    if (r)
        return r;
    for (int i = 0; i < p->turns; i++)
        if (p->stream[i] == s)
            return HOCCL_SUCCESS;
    if (p->turns == HOCCL_PARKED_MAX)
        return hoccl_fail(HOCCL_ERR_USAGE, "a group over more than %d streams: no more can wait at once", HOCCL_PARKED_MAX);
    p->foreground |= hoccl_hold_inside(&p->comm->hold, s->handshake.stream_id);
    p->was_free[p->turns] = hoccl_fetch_add(&s->handshake.outstanding, 1) == 0;
    p->queued[p->turns] = false;
    p->fresh += p->was_free[p->turns];
    p->stream[p->turns++] = s;
    return HOCCL_SUCCESS;
}

/* Nothing will be posted. A stream whose earlier operations have ended meanwhile is parked no longer. */
static void drop_streams(struct part *p)
{
    for (int i = 0; i < p->turns; i++)
        if (p->queued[i])
            hoccl_handshake_unqueue(&p->stream[i]->handshake, &p->comm->gpu->gate);
    for (int i = 0; i < p->turns; i++)
        if (hoccl_fetch_add(&p->stream[i]->handshake.outstanding, -1) == 1 && !p->was_free[i])
            hoccl_parking_leave(1);
}

static void set_flow(struct hoccl_flow *f, struct hoccl_op *op, const struct hoccl_request *q)
{
    struct hoccl_comm *c = q->comm;
    struct hoccl_peer *peer = &c->peers[q->peer];
    *f = (struct hoccl_flow){.op = op, .is_send = q->is_send, .peer = peer, .header = q->header, .address = q->address,
                             .memory = q->memory, .after = q->after ? f - q->after : NULL};
    f->order = (uint32_t)(f - op->flow);
    f->number = q->is_send ? peer->sends++ : peer->receives++;
    c->collectives += q->begins;
    f->header.operation = q->header.kind == HOCCL_FLOW_SEND_RECV ? 0 : c->collectives;
    hoccl_list_init(&f->link);
}

/* The operation in one block: itself, its turns, its flows. */
static HOCCL_Result make_op(struct part *p, const struct hoccl_request *q, size_t n)
{
    int flows = 0;
    for (size_t i = 0; i < n; i++)
        flows += q[i].comm == p->comm;
    size_t turns = sizeof(struct hoccl_op), flow = turns + (size_t)p->turns * sizeof(struct hoccl_op_turn);
    struct hoccl_op *op = hoccl_alloc(flow + (size_t)flows * sizeof(struct hoccl_flow), "an operation");
    if (!op)
        return HOCCL_ERR_MEMORY;
    op->turn = (struct hoccl_op_turn *)((char *)op + turns);
    op->flow = (struct hoccl_flow *)((char *)op + flow);
    op->turns = p->turns;
    op->unfinished = flows;
    p->op = op;
    return HOCCL_SUCCESS;
}

_Static_assert(sizeof(struct hoccl_op) % 16 == 0 && sizeof(struct hoccl_op_turn) % 16 == 0,
               "the parts of the block are aligned");
_Static_assert(_Alignof(struct hoccl_op) <= 16 && _Alignof(struct hoccl_op_turn) <= 16 && _Alignof(struct hoccl_flow) <= 16,
               "and 16 is enough for them");

/* Nothing here can fail: numbers are given out only when the operation will be posted. */
static void fill_op(struct part *p, const struct hoccl_request *q, size_t n)
{
    struct hoccl_op *op = p->op;
    for (int i = 0; i < p->turns; i++) {
        struct hoccl_handshake *h = &p->stream[i]->handshake;
        p->turn[i] = hoccl_turn_next(h, p->gated[i]);
        p->turn[i].queued = p->queued[i];
        op->turn[i] = (struct hoccl_op_turn){.turn = p->turn[i], .stream = p->stream[i], .op = op};
        hoccl_list_init(&op->turn[i].link);
        if (p->turn[i].gated)
            hoccl_gate_bar(&p->comm->gpu->gate);
    }
    for (size_t i = 0; i < n; i++)
        if (q[i].comm == p->comm) {
            struct hoccl_flow *f = &op->flow[op->flows++];
            set_flow(f, op, &q[i]);
            f->hold = p->foreground ? NULL : &p->comm->hold;
        }
}

static void hand_over(struct part *p)
{
    struct hoccl_comm *c = p->comm;
    hoccl_fetch_add(&c->unfinished, 1u);
    pthread_mutex_lock(&c->inbox_lock);
    hoccl_list_append(&c->inbox, &p->op->link);
    hoccl_publish(&c->inbox_full, 1);
    pthread_mutex_unlock(&c->inbox_lock);
    p->op = NULL;
    hoccl_proxy_ring(c);
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

static HOCCL_Result enqueue_halves(struct part *p, HOCCL_Result (*half)(const struct hoccl_turn *, const struct hoccl_gate *))
{
    bool pushed;
    HOCCL_Result r = hoccl_device_enter(&p->comm->gpu->device, &pushed);
    if (r)
        return r;
    for (int i = 0; i < p->turns && !r; i++)
        r = half(&p->turn[i], &p->comm->gpu->gate);
    hoccl_device_leave(pushed);
    if (r)
        hoccl_comm_fail(p->comm, r); /* other streams of the group may have their half already */
    return r;
}

/* Every start signal comes before any wait, so no stream of the group can be kept from starting by another's wait. */
static HOCCL_Result enqueue_all(struct part *parts, int n)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    if (n == 1 && parts->turns == 1)
        return enqueue_halves(parts, hoccl_turn_start_and_wait);
    for (int i = 0; i < n && !r; i++)
        r = enqueue_halves(&parts[i], hoccl_turn_start);
    for (int i = 0; i < n && !r; i++)
        r = enqueue_halves(&parts[i], hoccl_turn_wait);
    for (int i = 0; i < n && r; i++)
        hoccl_comm_fail(parts[i].comm, r); /* every communicator of the group has handed an operation over by now */
    return r;
}

/* The parts of a group: one a communicator. */
static HOCCL_Result divide(const struct hoccl_request *q, size_t n, struct part *parts, int *count)
{
    for (size_t i = 0; i < n; i++) {
        struct part *p = parts;
        bool pushed;
        if (i && q[i].comm == q[i - 1].comm && q[i].stream == q[i - 1].stream)
            continue;
        while (p < parts + *count && p->comm != q[i].comm)
            p++;
        if (p == parts + *count) {
            p->comm = q[i].comm;
            p->op = NULL;
            p->turns = p->fresh = 0;
            p->foreground = false;
            ++*count;
        }
        HOCCL_Result r = hoccl_device_enter(&p->comm->gpu->device, &pushed);
        if (r)
            return r;
        r = add_stream(p, q[i].stream);
        hoccl_device_leave(pushed);
        if (r)
            return r;
    }
    return HOCCL_SUCCESS;
}

/* Waiting for room ends when a communicator of the group fails or is given up meanwhile. */
struct parts {
    const struct part *part;
    int count;
};

static HOCCL_Result given_up(void *arg)
{
    const struct parts *p = arg;
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int i = 0; i < p->count && !r; i++) {
        struct hoccl_comm *c = p->part[i].comm;
        r = hoccl_comm_error(c);
        if (!r && hoccl_observe(&c->abort))
            r = hoccl_fail(HOCCL_ERR_USAGE, "the communicator has been aborted meanwhile");
    }
    return r;
}

/* A gated turn behind another one of its stream takes a channel, and may have to wait until that one is released. */
static HOCCL_Result await_channels(struct part *p, int parked, struct parts *all)
{
    struct hoccl_gate *gate = &p->comm->gpu->gate;
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int i = 0; i < p->turns && !r; i++) {
        struct hoccl_handshake *h = &p->stream[i]->handshake;
        p->gated[i] = hoccl_gate_needed(gate, parked) || hoccl_turn_gated_last(h);
        while (p->gated[i] && !r && hoccl_observe(&h->outstanding) > 1 && !(p->queued[i] = hoccl_handshake_queue(h, gate))) {
            hoccl_sleep(QUEUED_LOOK);
            r = given_up(all);
        }
    }
    return r;
}

/* Every operation's memory, then every stream's right to park: all that can fail before anything is posted. */
static HOCCL_Result prepare(const struct hoccl_request *q, size_t n, struct part *parts, int count)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    int fresh = 0, parked = 0;
    for (int i = 0; i < count && !r; i++) {
        r = make_op(&parts[i], q, n);
        fresh += parts[i].fresh;
    }
    struct parts all = {parts, count};
    if (r || (r = hoccl_parking_enter(fresh, hoccl_settings.timeout, given_up, &all, &parked)))
        return r;
    for (int i = 0; i < count && !r; i++)
        r = await_channels(&parts[i], parked, &all);
    if (r)
        hoccl_parking_leave(fresh);
    return r;
}

/* HOCCL_BLOCKING: until every stream of the group has been released, as by completion, so by a failure or an abort. */
static HOCCL_Result await_release(const struct part *parts, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < parts[i].turns; k++)
            while (!hoccl_turn_released(&parts[i].turn[k]))
                hoccl_sleep(RELEASED_LOOK);
    return given_up(&(struct parts){parts, n});
}

HOCCL_Result hoccl_post(const struct hoccl_request *requests, size_t n)
{
    struct part parts[HOCCL_GROUP_COMMS];
    int count = 0;
    HOCCL_Result r = divide(requests, n, parts, &count);
    if (!r)
        r = prepare(requests, n, parts, count);
    if (r) {
        for (int i = 0; i < count; i++) {
            drop_streams(&parts[i]);
            free(parts[i].op);
        }
        return r;
    }
    for (int i = 0; i < count; i++) {
        fill_op(&parts[i], requests, n);
        hand_over(&parts[i]);
    }
    r = enqueue_all(parts, count);
    return !r && hoccl_settings.blocking ? await_release(parts, count) : r;
}
