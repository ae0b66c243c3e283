/* SPDX-License-Identifier: Apache-2.0 */
/* The two paths on which one end opens the other's memory and its engine moves the bytes in one go (paper §3.3.2): the
 * sender pushes, or, where the receiver's memory cannot be opened, the receiver pulls. */
#include "p2p/detour.h"

#include "base/error.h"

#include <stdio.h>

#define AT_ONCE ((uint64_t)4 << 20) /* so short a copy is given before anything else is looked at; longer ones once all are queued */

static struct hoccl_engine *engine_of(struct hoccl_gpu *gpu, const struct hoccl_flow *f)
{
    return &gpu->engine[f->path == HOCCL_PATH_PUSH ? HOCCL_PUSH : HOCCL_PULL];
}

static void start(struct hoccl_gpu *gpu, struct hoccl_flow *f, CUdeviceptr peer_base)
{
    struct hoccl_slot *s = hoccl_flow_slot(f);
    CUdeviceptr own = (CUdeviceptr)(uintptr_t)f->address;
    bool push = f->path == HOCCL_PATH_PUSH;
    CUdeviceptr other = peer_base + (push ? s->grant.offset : s->offer.offset);
    f->detour.front = f->header.bytes - (push ? hoccl_detour_plan(gpu, f) : 0);
    f->transfer[0] = (struct hoccl_transfer){.to = push ? other : own, .from = push ? own : other, .bytes = f->detour.front};
    f->transfer[0].party = f->header.kind == HOCCL_FLOW_SEND_RECV ? NULL : f->op;
    f->transfer[0].order = f->order;
    f->transfer[0].hold = f->hold;
    hoccl_engine_add(engine_of(gpu, f), &f->transfer[0]);
    if (f->header.bytes <= AT_ONCE)
        hoccl_engine_step(engine_of(gpu, f));
    f->state = HOCCL_FLOW_MOVING;
}

/* The peer's memory cannot be opened here after all (another PID namespace, no peer access, no descriptors): staging always
 * works. The sender says so in its offer, the receiver by giving slots. */
static HOCCL_Result stage_instead(struct hoccl_gpu *gpu, struct hoccl_flow *f, const char *call, const char *why, bool *moved)
{
    char text[224];
    snprintf(text, sizeof text, "the receiver's buffer could not be %s (%s)", call, why);
    if (!f->is_send)
        snprintf(text, sizeof text, "a buffer could not be %s (%s)", call, why);
    if (f->mapping)
        hoccl_mapping_put(&gpu->mappings, f->mapping);
    f->mapping = NULL;
    f->dispatch.state = HOCCL_DISPATCH_NONE;
    f->path = HOCCL_PATH_STAGED;
    hoccl_flow_say_path(f, text);
    if (!f->is_send)
        return hoccl_staged_receive_open(gpu, f, moved);
    hoccl_flow_offer(gpu, f);
    return HOCCL_SUCCESS;
}

/* ---- a range: its descriptors come first (parcel.h) --------------------------------------------------------------- */

static void ask(struct hoccl_flow *f)
{
    struct hoccl_slot *s = hoccl_flow_slot(f);
    s->offer.buffer = 0;
    hoccl_publish(&s->offer.filled, 0); /* the receiver may give slots instead */
    hoccl_publish(&s->offer.kind, HOCCL_MEMORY_WANTED);
    hoccl_publish(&s->offer.tag, f->number);
    f->state = HOCCL_FLOW_OFFERED;
}

HOCCL_Result hoccl_direct_await(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    const struct hoccl_peer *p = flow->peer;
    if (hoccl_flow_staged_after_all(flow, "the receiver could not export its buffer", moved))
        return HOCCL_SUCCESS;
    if (hoccl_observe(&s->receipt.tag) != flow->number)
        return hoccl_flow_check_peer(flow);
    *moved = true;
    HOCCL_Result r = hoccl_mappings_receive(&gpu->mappings, p->card.process, p->link.parcels, gpu->device.ordinal);
    if (r)
        return r;
    flow->mapping = hoccl_mapping_find(&gpu->mappings, p->card.process, s->grant.buffer);
    if (!flow->mapping)
        return stage_instead(gpu, flow, "opened", "its descriptors cannot be mapped", moved);
    flow->state = HOCCL_FLOW_OPENING;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_direct_dispatch(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_dispatch *d = &flow->dispatch;
    uint32_t state = hoccl_observe(&d->state);
    if (state == HOCCL_DISPATCH_NONE) {
        *d = (struct hoccl_dispatch){.state = HOCCL_DISPATCH_PENDING, .socket = flow->peer->link.parcels, .key = flow->memory.buffer,
                                     .base = flow->memory.base, .bytes = flow->memory.bytes};
        if (!hoccl_submitter_give(&gpu->submitter, &(struct hoccl_job){.kind = HOCCL_JOB_DISPATCH, .dispatch = d}))
            d->state = HOCCL_DISPATCH_NONE;
        flow->path = HOCCL_PATH_PUSH;
        flow->state = HOCCL_FLOW_OPENING;
        return HOCCL_SUCCESS;
    }
    if (state == HOCCL_DISPATCH_FAILED)
        return stage_instead(gpu, flow, "exported", d->text, moved);
    if (state != HOCCL_DISPATCH_SENT)
        return hoccl_flow_check_peer(flow);
    hoccl_publish(&hoccl_flow_slot(flow)->receipt.tag, flow->number);
    flow->state = HOCCL_FLOW_OFFERED;
    *moved = true;
    return HOCCL_SUCCESS;
}

/* A mapping that is open already, as most are, is used at once. */
static void begin(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    f->state = HOCCL_FLOW_OPENING;
    if (hoccl_observe(&f->mapping->state) == HOCCL_MAPPING_OPEN)
        start(gpu, f, f->mapping->address);
}

/* ---- both paths -------------------------------------------------------------------------------------------------- */

HOCCL_Result hoccl_direct_open(struct hoccl_gpu *gpu, struct hoccl_flow *flow, enum hoccl_path path, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    bool push = path == HOCCL_PATH_PUSH;
    uint32_t kind = push ? s->grant.kind : s->offer.kind;
    flow->path = path;
    *moved = true;
    if (kind == HOCCL_MEMORY_RANGE) {
        flow->mapping = hoccl_mapping_find(&gpu->mappings, flow->peer->card.process, s->grant.buffer);
        if (flow->mapping)
            begin(gpu, flow);
        else
            ask(flow);
        return HOCCL_SUCCESS;
    }
    if (kind == HOCCL_MEMORY_ADDRESS) {
        start(gpu, flow, push ? s->grant.base : s->offer.base);
        return HOCCL_SUCCESS;
    }
    HOCCL_Result r = hoccl_mapping_get(&gpu->mappings, flow->peer->card.process, push ? s->grant.buffer : s->offer.buffer,
                                       push ? &s->grant_memory : &s->offer_memory, &flow->mapping);
    if (!r && flow->mapping) {
        begin(gpu, flow);
        return r;
    }
    flow->path = HOCCL_PATH_NONE; /* the submitter's ring is full: the same again at the next step */
    *moved = false;
    return r;
}

static HOCCL_Result opening(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    uint32_t state = hoccl_observe(&f->mapping->state);
    if (state == HOCCL_MAPPING_ARRIVING) { /* it has come; the submitter's ring was full */
        HOCCL_Result r = hoccl_mappings_receive(&gpu->mappings, f->peer->card.process, f->peer->link.parcels, gpu->device.ordinal);
        return r ? r : hoccl_flow_check_peer(f);
    }
    if (state == HOCCL_MAPPING_FAILED)
        return stage_instead(gpu, f, "opened", hoccl_driver_error(f->mapping->result), moved);
    if (state != HOCCL_MAPPING_OPEN)
        return hoccl_flow_check_peer(f);
    *moved = true;
    start(gpu, f, f->mapping->address);
    return HOCCL_SUCCESS;
}

/* A push has landed: is everything there? What the detour leaves is pushed. */
static bool pushed_all(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_transfer *t = &f->transfer[0];
    uint64_t rest;
    if (!hoccl_detour_end(f, &rest))
        return false;
    if (!rest)
        return true;
    *t = (struct hoccl_transfer){.to = t->to + t->bytes, .from = t->from + t->bytes, .bytes = rest, .party = t->party,
                                 .order = t->order, .hold = t->hold};
    f->detour.front += rest;
    hoccl_engine_add(engine_of(gpu, f), t);
    return false;
}

static HOCCL_Result moving(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    char name[160];
    struct hoccl_transfer *t = &f->transfer[0];
    HOCCL_Result r = hoccl_detour_send_step(gpu, f, moved);
    if (r)
        return r;
    if (t->result)
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s: copying %llu bytes: %s", hoccl_flow_name(f, name, sizeof name),
                          (unsigned long long)f->header.bytes, hoccl_driver_error(t->result));
    if (!hoccl_transfer_complete(t) || !pushed_all(gpu, f))
        return hoccl_flow_check_peer(f);
    *moved = true;
    if (f->is_send) { /* first of all: the peer waits for it */
        hoccl_flow_answer(f, HOCCL_ANSWER_DONE);
    } else {
        hoccl_publish(&hoccl_flow_slot(f)->receipt.tag, f->number);
        f->state = HOCCL_FLOW_OFFERED;
    }
    hoccl_detour_learn(gpu, f);
    if (f->mapping)
        hoccl_mapping_put(&gpu->mappings, f->mapping);
    f->mapping = NULL;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_direct_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    return flow->state == HOCCL_FLOW_OPENING ? opening(gpu, flow, moved) : moving(gpu, flow, moved);
}
