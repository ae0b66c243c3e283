/* SPDX-License-Identifier: Apache-2.0 */
/* See registered.h. */
#include "p2p/registered.h"

#include "base/clock.h"
#include "base/error.h"
#include "p2p/registry.h"

#include <stdio.h>
#include <stdlib.h>

void hoccl_registered_begin(struct hoccl_flow *flow)
{
    if (flow->memory.registered && flow->header.bytes)
        flow->wire.registered = hoccl_registry_take(flow->peer->far->wire, flow->memory.registered);
}

void hoccl_registered_end(struct hoccl_flow *flow)
{
    struct hoccl_flow_wire *p = &flow->wire;
    if (p->registered)
        hoccl_registry_put(flow->peer->far->wire, p->registered);
    p->registered = NULL;
    free(p->into);
    p->into = NULL;
}

static size_t bytes_of(const struct hoccl_flow *f, uint32_t chunk)
{
    uint64_t left = f->header.bytes - (uint64_t)chunk * f->wire.chunk;
    return left < f->wire.chunk ? left : f->wire.chunk;
}

static const struct hoccl_segment *segment_of(const struct hoccl_flow *f, uint32_t chunk)
{
    uintptr_t at = (uintptr_t)f->address + (uint64_t)chunk * f->wire.chunk;
    return hoccl_registration_find(f->wire.registered, at, bytes_of(f, chunk));
}

unsigned hoccl_registered_run(const struct hoccl_flow *flow, uint32_t chunk, unsigned most)
{
    const struct hoccl_segment *s = flow->wire.registered ? segment_of(flow, chunk) : NULL;
    unsigned n = 0;
    while (s && n < most && segment_of(flow, chunk + n) == s)
        n++;
    return n;
}

/* A slot for the chunk; the network may touch the buffer until it is given back. */
static void occupy(struct hoccl_flow *f, struct hoccl_pool_slot *s, uint32_t chunk, enum hoccl_pool_state state)
{
    s->state = state;
    s->far = f->peer->far;
    s->flow = f;
    s->chunk = chunk;
    s->bytes = (uint32_t)bytes_of(f, chunk);
    f->wire.network++;
}

static void vacate(struct hoccl_wire *w, struct hoccl_pool *pool, struct hoccl_pool_slot *s)
{
    struct hoccl_flow *f = s->flow;
    f->wire.network--;
    hoccl_pool_give(pool, s);
    if (f->is_send)
        hoccl_wire_rest(w, f);
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

void hoccl_registered_grant(struct hoccl_wire *wire, struct hoccl_flow *flow, unsigned n)
{
    struct hoccl_flow_wire *p = &flow->wire;
    const struct hoccl_segment *segment = segment_of(flow, p->granted);
    struct hoccl_word_into g = {.head = {HOCCL_WORD_INTO, (uint16_t)n, flow->number}, .chunk = p->chunk,
                                .region = segment->region.key, .offset = (uintptr_t)flow->address - segment->base};
    for (unsigned i = 0; i < n; i++) {
        struct hoccl_pool_slot *s = hoccl_pool_take(&wire->user_in);
        occupy(flow, s, p->granted++, HOCCL_POOL_GRANTED);
        s->generation++;
        g.slot[i] = hoccl_slot_word(s->number, s->generation);
    }
    p->granted_at = hoccl_now();
    hoccl_fetch_add(&hoccl_wire_counts.into, n);
    hoccl_far_say(flow->peer->far, &g, offsetof(struct hoccl_word_into, slot) + n * sizeof *g.slot);
}

/* The bytes are there for the GPU, or (why) never will be. */
static void settled(struct hoccl_order_request *request, const char *why)
{
    struct hoccl_pool_slot *s = hoccl_entry(request, struct hoccl_pool_slot, order);
    struct hoccl_wire *w = request->owner;
    struct hoccl_flow *f = s->flow;
    if (why)
        snprintf(w->unflushed, sizeof w->unflushed, "%s", why);
    f->wire.unflushed |= why != NULL;
    f->wire.landed += !why;
    vacate(w, &w->user_in, s);
}

void hoccl_registered_arrived(struct hoccl_wire *wire, struct hoccl_pool_slot *slot)
{
    const struct hoccl_segment *segment = segment_of(slot->flow, slot->chunk);
    uintptr_t at = (uintptr_t)slot->flow->address + (uint64_t)slot->chunk * slot->flow->wire.chunk;
    slot->order = (struct hoccl_order_request){.region = &segment->region, .offset = at - segment->base, .owner = wire, .done = settled};
    if (!segment->flush) {
        settled(&slot->order, NULL);
        return;
    }
    slot->state = HOCCL_POOL_FLUSHING;
    hoccl_fetch_add(&hoccl_wire_counts.flushed, 1);
    hoccl_order_flush(&wire->order, &slot->order);
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

bool hoccl_registered_aim(struct hoccl_flow *flow, unsigned n, const struct hoccl_destination *into)
{
    struct hoccl_flow_wire *p = &flow->wire;
    if (!p->into)
        p->into = malloc(HOCCL_GRANT_MOST * sizeof *p->into);
    for (unsigned i = 0; i < n && p->into; i++)
        p->into[(p->granted + i) % HOCCL_GRANT_MOST] = *into;
    return p->into;
}

void hoccl_registered_fill(struct hoccl_flow *flow, struct hoccl_pool_slot *slot)
{
    struct hoccl_flow_wire *p = &flow->wire;
    struct hoccl_far *far = flow->peer->far;
    const struct hoccl_segment *segment = segment_of(flow, p->started);
    hoccl_wire_aim(flow, slot);
    occupy(flow, slot, p->started, HOCCL_POOL_FILLED);
    slot->from = &segment->region;
    slot->from_offset = (uintptr_t)flow->address + (uint64_t)p->started * p->chunk - segment->base;
    p->started++;
    hoccl_fetch_add(&hoccl_wire_counts.from, 1);
    if (hoccl_list_empty(&far->filled) && !far->writing)
        far->moved_at = hoccl_now();
    hoccl_list_append(&far->filled, &slot->link);
}

void hoccl_registered_written(struct hoccl_wire *wire, struct hoccl_pool_slot *slot)
{
    slot->flow->wire.landed++;
    vacate(wire, &wire->user_out, slot);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void hoccl_registered_drop(struct hoccl_wire *wire, struct hoccl_flow *flow)
{
    for (unsigned i = 0; i < wire->user_out.count && flow->wire.network; i++) {
        struct hoccl_pool_slot *s = &wire->user_out.slot[i];
        if (s->flow == flow && s->state == HOCCL_POOL_FILLED)
            vacate(wire, &wire->user_out, s);
    }
}

/* A flush is the endpoint's, and ends by itself. */
static void reclaim(struct hoccl_wire *w, struct hoccl_pool *pool, const struct hoccl_far *far)
{
    for (unsigned i = 0; i < pool->count; i++) {
        struct hoccl_pool_slot *s = &pool->slot[i];
        if (s->state != HOCCL_POOL_FREE && s->state != HOCCL_POOL_FLUSHING && s->far == far)
            vacate(w, pool, s);
    }
}

void hoccl_registered_reclaim(struct hoccl_wire *wire, struct hoccl_far *far)
{
    reclaim(wire, &wire->user_out, far);
    reclaim(wire, &wire->user_in, far);
}
