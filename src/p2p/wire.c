/* SPDX-License-Identifier: Apache-2.0 */
/* See wire.h. A step goes through the pipeline from its far end to its near one, so that what ends makes room for what
 * follows in the same step. */
#include "p2p/wire.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "p2p/early.h"
#include "p2p/gpu.h"
#include "p2p/precedence.h"
#include "p2p/registered.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS 32
#define FILLINGS 8u /* slots that wait in the engine's queue: enough to keep it busy */

struct hoccl_wire_count hoccl_wire_counts;

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static void start_copy(struct hoccl_wire *w, struct hoccl_pool *pool, struct hoccl_pool_slot *s, bool out)
{
    struct hoccl_flow *f = s->flow;
    CUdeviceptr own = (CUdeviceptr)(uintptr_t)f->address + (uint64_t)s->chunk * f->wire.chunk, at = hoccl_pool_address(pool, s);
    s->state = HOCCL_POOL_COPYING;
    s->cancelled = false;
    s->direction = hoccl_pool_direction(pool, out, f->memory.host);
    s->transfer = (struct hoccl_transfer){.to = out ? at : own, .from = out ? own : at, .bytes = s->bytes, .party = f,
                                           .order = s->chunk};
    f->wire.copying++;
    hoccl_list_append(out ? &w->filling : &w->emptying, &s->link);
    hoccl_engine_add(&w->gpu->engine[s->direction], &s->transfer);
}

static bool copied(const struct hoccl_pool_slot *s)
{
    return hoccl_transfer_complete(&s->transfer) || (s->cancelled && !s->transfer.flight);
}

/* What the flow learns of a copy that has ended. */
static void count_copy(struct hoccl_pool_slot *s)
{
    struct hoccl_flow *f = s->flow;
    f->wire.copying--;
    if (s->transfer.result)
        f->wire.result = s->transfer.result;
    else if (!s->cancelled)
        f->wire.landed++;
}

void hoccl_wire_rest(struct hoccl_wire *wire, struct hoccl_flow *flow)
{
    struct hoccl_flow_wire *p = &flow->wire;
    if (!p->turned || p->copying || p->network)
        return;
    p->turned = false;
    wire->sending--;
}

static bool end_filling(struct hoccl_wire *w)
{
    struct hoccl_list *l, *next;
    bool moved = false;
    for (l = w->filling.next; l != &w->filling; l = next) {
        struct hoccl_pool_slot *s = hoccl_entry(l, struct hoccl_pool_slot, link);
        struct hoccl_flow *f = s->flow;
        next = l->next;
        if (!copied(s))
            continue;
        count_copy(s);
        hoccl_wire_rest(w, f);
        w->fillings--;
        moved = true;
        if (s->cancelled || s->transfer.result || !s->far) {
            hoccl_pool_give(&w->out, s);
            continue;
        }
        hoccl_list_remove(l);
        s->state = HOCCL_POOL_FILLED;
        s->flow = NULL;
        if (hoccl_list_empty(&s->far->filled) && !s->far->writing)
            s->far->moved_at = hoccl_now();
        hoccl_list_append(&s->far->filled, l);
    }
    return moved;
}

static bool end_emptying(struct hoccl_wire *w)
{
    struct hoccl_list *l, *next;
    bool moved = false;
    for (l = w->emptying.next; l != &w->emptying; l = next) {
        struct hoccl_pool_slot *s = hoccl_entry(l, struct hoccl_pool_slot, link);
        next = l->next;
        if (!copied(s))
            continue;
        count_copy(s);
        hoccl_fetch_add(&hoccl_wire_counts.emptying, -1);
        hoccl_pool_give(&w->in, s);
        moved = true;
    }
    return moved;
}

uint64_t hoccl_wire_reclaim(struct hoccl_wire *wire, struct hoccl_far *far)
{
    uint64_t lost = 0;
    hoccl_registered_reclaim(wire, far);
    for (unsigned i = 0; i < wire->out.count; i++) {
        struct hoccl_pool_slot *s = &wire->out.slot[i];
        if (s->far != far)
            continue;
        if (s->state == HOCCL_POOL_FILLED || s->state == HOCCL_POOL_WRITING) {
            lost += s->bytes;
            hoccl_pool_give(&wire->out, s);
        }
        s->far = NULL;
    }
    for (unsigned i = 0; i < wire->in.count; i++) {
        struct hoccl_pool_slot *s = &wire->in.slot[i];
        if (s->far != far)
            continue;
        if (s->state == HOCCL_POOL_GRANTED)
            hoccl_pool_give(&wire->in, s);
        s->far = NULL;
    }
    far->writing = 0;
    return lost;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void joined(struct hoccl_wire *w, struct hoccl_far *far)
{
    struct hoccl_lane_count lanes[HOCCL_LANES_MAX];
    far->lanes = w->transport->lanes(far->connection, lanes);
    far->pipe = hoccl_pipe_make(w->in.place == HOCCL_POOL_GPU, &w->transport->cost, far->lanes);
    far->ahead = hoccl_pipe_depth(&far->pipe, HOCCL_POOL_SLOT);
    if (far->ahead > HOCCL_GRANT_MOST)
        far->ahead = HOCCL_GRANT_MOST;
    hoccl_publish(&far->state, HOCCL_FAR_JOINED);
    struct hoccl_word_hello h = {.head = {.kind = HOCCL_WORD_HELLO, .number = HOCCL_WORDS_VERSION},
                                 .pool = w->in.region.key, .slot_bytes = HOCCL_POOL_SLOT, .slots = HOCCL_POOL_SLOTS,
                                 .rank = (uint32_t)far->own_rank};
    hoccl_far_greet(far, &h);
}

/* Of both lists; NULL: none that this rank would make, or has. */
static struct hoccl_far *find_far(const struct hoccl_list *fars, uint64_t id)
{
    for (const struct hoccl_list *l = fars->next; l != fars; l = l->next) {
        struct hoccl_far *far = hoccl_entry(l, struct hoccl_far, link);
        if ((far->id & ~(uint64_t)1) == id)
            return far;
    }
    return NULL;
}

/* A rank has something for us that has not connected yet. One whose connection stands, or is being made, has been called
 * before; one that is over, or of a communicator that has ended here, is not for us any more. */
static void called(struct hoccl_wire *w, uint64_t id)
{
    struct hoccl_far *far = find_far(&w->latent, id), *begun = find_far(&w->fars, id);
    if (far)
        hoccl_far_join(far);
    else if (!begun || hoccl_far_is_over(begun))
        w->transport->decline(w->endpoint, id);
}

/* By its number, in the pool of slots or in that of chunks of registered memory. */
static struct hoccl_pool_slot *find_slot(struct hoccl_pool *slots, struct hoccl_pool *user, uint64_t number)
{
    uint64_t i = number & ~(uint64_t)HOCCL_PLACE_USER;
    struct hoccl_pool *pool = i == number ? slots : user;
    return i < pool->count ? &pool->slot[i] : NULL;
}

static void written(struct hoccl_wire *w, struct hoccl_far *far, uint64_t tag)
{
    struct hoccl_pool_slot *s = find_slot(&w->out, &w->user_out, tag);
    if (!s || s->state != HOCCL_POOL_WRITING || s->far != far) {
        hoccl_far_broken(far, "the transport reports slot %llu written, which it does not have", (unsigned long long)tag);
        return;
    }
    far->writing--;
    far->moved_at = hoccl_now();
    if (s->number & HOCCL_PLACE_USER)
        hoccl_registered_written(w, s);
    else
        hoccl_pool_give(&w->out, s);
}

static void copy_out(struct hoccl_wire *w, struct hoccl_pool_slot *s)
{
    hoccl_fetch_add(&hoccl_wire_counts.emptying, 1);
    start_copy(w, &w->in, s, false);
}

/* The flow may have been given up meanwhile. */
static void flushed(struct hoccl_order_request *request, const char *why)
{
    struct hoccl_pool_slot *s = hoccl_entry(request, struct hoccl_pool_slot, order);
    struct hoccl_wire *w = request->owner;
    if (s->flow && !why) {
        copy_out(w, s);
        return;
    }
    if (s->flow) {
        snprintf(w->unflushed, sizeof w->unflushed, "%s", why);
        s->flow->wire.unflushed = true;
    }
    hoccl_pool_give(&w->in, s);
}

/* What a slot on another GPU holds, that GPU may have to be asked for. */
static void flush_slot(struct hoccl_wire *w, struct hoccl_pool_slot *s)
{
    s->state = HOCCL_POOL_FLUSHING;
    s->order = (struct hoccl_order_request){.region = &w->in.region, .offset = s->number * HOCCL_POOL_SLOT, .owner = w, .done = flushed};
    hoccl_fetch_add(&hoccl_wire_counts.flushed, 1);
    hoccl_order_flush(&w->order, &s->order);
}

void hoccl_wire_empty(struct hoccl_wire *wire, struct hoccl_pool_slot *slot)
{
    if (wire->place.flush)
        flush_slot(wire, slot);
    else
        copy_out(wire, slot);
}

/* A chunk for a flow that has been given up is dropped. */
static void arrived(struct hoccl_wire *w, struct hoccl_far *far, uint32_t word, size_t bytes)
{
    unsigned number = word & 0xffff;
    struct hoccl_pool_slot *s = find_slot(&w->in, &w->user_in, number);
    if (!s || s->state != HOCCL_POOL_GRANTED || s->far != far || s->generation != word >> 16 || s->bytes != bytes) {
        hoccl_far_broken(far, "%s has written %zu bytes into slot %u (grant %u), which is not what it was granted", far->name, bytes,
                         number, word >> 16);
        return;
    }
    far->moved_at = hoccl_now();
    hoccl_fetch_add(&hoccl_wire_counts.arrived, 1);
    if (!s->flow) {
        hoccl_pool_give(&w->in, s);
        return;
    }
    struct hoccl_flow_wire *p = &s->flow->wire;
    if (++p->arrived == p->chunks && p->turned) {
        p->turned = false;
        w->receiving--;
    }
    if (!p->met)
        hoccl_early_met(s->flow);
    if (s->number & HOCCL_PLACE_USER)
        hoccl_registered_arrived(w, s);
    else if (p->early)
        hoccl_early_hold(s);
    else
        hoccl_wire_empty(w, s);
}

/* A connection that has been closed in this very batch has no events any more. */
static void hear(struct hoccl_wire *w, const struct hoccl_transport_event *e)
{
    struct hoccl_far *far = e->context;
    if (hoccl_far_is_over(far))
        return;
    far->heard_at = hoccl_now();
    switch (e->kind) {
    case HOCCL_TRANSPORT_JOINED:
        joined(w, far);
        break;
    case HOCCL_TRANSPORT_MESSAGE:
        hoccl_far_hear(far, e->message, e->bytes);
        break;
    case HOCCL_TRANSPORT_WRITTEN:
        written(w, far, e->tag);
        break;
    case HOCCL_TRANSPORT_ARRIVED:
        arrived(w, far, e->word, e->bytes);
        break;
    case HOCCL_TRANSPORT_CLOSED:
        hoccl_far_closed(far);
        break;
    case HOCCL_TRANSPORT_BROKEN:
        hoccl_far_broken(far, "%s", e->text);
        break;
    case HOCCL_TRANSPORT_FLUSHED: /* of no connection */
    case HOCCL_TRANSPORT_CALLED:
        break;
    }
}

static bool take_events(struct hoccl_wire *w)
{
    struct hoccl_transport_event events[EVENTS];
    int n = w->transport->poll(w->endpoint, events, EVENTS);
    for (int i = 0; i < n; i++) {
        if (events[i].kind == HOCCL_TRANSPORT_FLUSHED)
            hoccl_order_hear(&w->order, &events[i]);
        else if (events[i].kind == HOCCL_TRANSPORT_CALLED)
            called(w, events[i].tag);
        else
            hear(w, &events[i]);
    }
    return n > 0;
}

/* ---- filling ----------------------------------------------------------------------------------------------------- */

void hoccl_wire_aim(const struct hoccl_flow *flow, struct hoccl_pool_slot *slot)
{
    const struct hoccl_flow_wire *p = &flow->wire;
    unsigned i = p->started % HOCCL_GRANT_MOST;
    bool into = p->slot[i] & HOCCL_PLACE_USER;
    slot->word = p->slot[i];
    slot->to = into ? p->into[i].region : flow->peer->far->pool;
    slot->to_offset = into ? p->into[i].offset + (uint64_t)p->started * p->chunk : (slot->word & 0xffff) * HOCCL_POOL_SLOT;
}

static void fill(struct hoccl_wire *w, struct hoccl_flow *f, struct hoccl_pool_slot *s)
{
    struct hoccl_flow_wire *p = &f->wire;
    uint64_t at = (uint64_t)p->started * p->chunk, left = f->header.bytes - at;
    hoccl_wire_aim(f, s);
    s->far = f->peer->far;
    s->flow = f;
    s->chunk = p->started++;
    s->bytes = left < p->chunk ? (uint32_t)left : p->chunk;
    s->from = &w->out.region;
    s->from_offset = s->number * HOCCL_POOL_SLOT;
    w->fillings++;
    hoccl_fetch_add(&hoccl_wire_counts.filled, 1);
    start_copy(w, &w->out, s, true);
}

static bool may_start(const struct hoccl_wire *w, const struct hoccl_flow *f)
{
    const struct hoccl_flow_wire *p = &f->wire;
    return p->started < p->granted && !hoccl_hold_keeps(f->hold) && hoccl_far_is_open(f->peer->far) &&
           (p->chunks == 1 || p->turned || w->sending < HOCCL_WIRE_LARGE);
}

/* A message of up to a chunk a lane, and of chunks smaller than a slot, waits for the engine more than for sockets (2 MiB over TCP: 283 µs
 * so, 348 with the slot used last; from 8 MiB on no difference, then a loss). */
static struct hoccl_pool_slot *take_out_slot(struct hoccl_wire *w, const struct hoccl_flow *f)
{
    bool few = f->wire.chunks <= (uint32_t)f->peer->far->lanes && f->wire.chunk < HOCCL_POOL_SLOT;
    return few ? hoccl_pool_take_cold(&w->out) : hoccl_pool_take(&w->out);
}

/* The next granted chunk, into an out slot or, of a registered buffer, to the network as it is; false: no room now. */
static bool start_chunk(struct hoccl_wire *w, struct hoccl_flow *f)
{
    struct hoccl_flow_wire *p = &f->wire;
    bool user = hoccl_registered_run(f, p->started, 1), room = user ? p->network < f->peer->far->ahead : w->fillings < FILLINGS;
    struct hoccl_pool_slot *s = !room ? NULL : user ? hoccl_pool_take(&w->user_out) : take_out_slot(w, f);
    if (!s)
        return false;
    if (p->chunks > 1 && !p->turned) {
        p->turned = true;
        hoccl_at_least(&hoccl_wire_counts.sending, (uint64_t)++w->sending);
    }
    if (user)
        hoccl_registered_fill(f, s);
    else
        fill(w, f, s);
    hoccl_hold_passed(f->hold);
    return true;
}

static bool fill_slots(struct hoccl_wire *w)
{
    struct hoccl_list *l, *next;
    bool moved = false;
    for (l = w->sends.next; l != &w->sends; l = next) {
        struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, wire.turn);
        struct hoccl_flow_wire *p = &f->wire;
        next = l->next;
        while (may_start(w, f) && start_chunk(w, f))
            moved = true;
        if (p->started == p->granted) /* it is put in again with the next grant */
            hoccl_list_remove(l);
    }
    return moved;
}

void hoccl_wire_allow(struct hoccl_wire *wire, struct hoccl_flow *flow)
{
    if (hoccl_list_empty(&flow->wire.turn))
        hoccl_precedence_insert(&wire->sends, flow);
}

void hoccl_wire_want(struct hoccl_wire *wire, struct hoccl_flow *flow)
{
    wire->uneven += flow->wire.uneven;
    hoccl_precedence_insert(&wire->receives, flow);
}

static void drop_slots(struct hoccl_wire *w, struct hoccl_pool *pool, struct hoccl_flow *f)
{
    for (unsigned i = 0; i < pool->count; i++) {
        struct hoccl_pool_slot *s = &pool->slot[i];
        if (s->flow != f)
            continue;
        if (s->state == HOCCL_POOL_HELD)
            hoccl_pool_give(pool, s);
        if (s->state == HOCCL_POOL_GRANTED || s->state == HOCCL_POOL_FLUSHING)
            s->flow = NULL; /* it stays the peer's until it has come, or the connection is gone; or the NIC's */
        if (s->state != HOCCL_POOL_COPYING || s->cancelled)
            continue;
        s->cancelled = true;
        hoccl_engine_cancel(&w->gpu->engine[s->direction], &s->transfer);
    }
}

void hoccl_wire_drop(struct hoccl_wire *wire, struct hoccl_flow *flow)
{
    bool wants = !flow->is_send && flow->wire.met && !flow->wire.early && !hoccl_list_empty(&flow->wire.turn);
    wire->uneven -= wants && flow->wire.uneven;
    hoccl_early_drop(flow);
    drop_slots(wire, &wire->out, flow);
    drop_slots(wire, &wire->in, flow);
    hoccl_registered_drop(wire, flow);
    if (flow->wire.turned && !flow->is_send) {
        flow->wire.turned = false;
        wire->receiving--;
    }
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static bool flush(struct hoccl_wire *w)
{
    struct hoccl_list *l, *next;
    bool moved = false;
    for (l = w->fars.next; l != &w->fars; l = next) {
        next = l->next;
        moved |= hoccl_far_flush(hoccl_entry(l, struct hoccl_far, link));
    }
    return moved;
}

bool hoccl_wire_step(struct hoccl_wire *wire)
{
    if (!hoccl_observe(&wire->open))
        return false;
    bool moved = take_events(wire);
    moved |= hoccl_order_step(&wire->order);
    moved |= end_emptying(wire);
    moved |= hoccl_wire_give_grants(wire);
    moved |= end_filling(wire);
    moved |= flush(wire);
    moved |= fill_slots(wire);
    return moved;
}

bool hoccl_wire_idle(const struct hoccl_wire *wire)
{
    if (!hoccl_observe(&wire->open))
        return true;
    for (const struct hoccl_list *l = wire->fars.next; l != &wire->fars; l = l->next) {
        const struct hoccl_far *far = hoccl_entry(l, struct hoccl_far, link);
        if (far->connection && (far->writing || !hoccl_list_empty(&far->words) || !hoccl_list_empty(&far->filled)))
            return false;
    }
    return hoccl_list_empty(&wire->filling) && hoccl_list_empty(&wire->emptying) && hoccl_order_is_idle(&wire->order);
}

bool hoccl_wire_arm(struct hoccl_wire *wire)
{
    return hoccl_observe(&wire->open) && wire->transport->arm(wire->endpoint);
}
