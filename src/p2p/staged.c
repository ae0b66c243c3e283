/* SPDX-License-Identifier: Apache-2.0 */
/* The staged path: chunk by chunk through slots that the receiver gives (mailbox.h draws the words).
 *
 *   sender    chunk i: buffer ──its engine──▶ slot[i mod k]          may start when i − drained < k
 *   receiver  chunk i: slot[i mod k] ──its engine──▶ buffer          may start when i < filled
 *
 * So both engines work at once on different chunks. An engine is a queue, so a flow's chunks land in their order. */
#include "p2p/flow.h"

#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"

#include <string.h>

#define SAID_THIRD (1u << 31)

static bool is_host(const struct hoccl_flow *f)
{
    return f->memory.host;
}

struct hoccl_engine *hoccl_staged_engine(struct hoccl_gpu *gpu, const struct hoccl_flow *flow)
{
    enum hoccl_direction d;
    if (is_host(flow))
        d = HOCCL_HOST;
    else if (flow->where == HOCCL_STAGE_GPU)
        d = flow->is_send ? HOCCL_PUSH : HOCCL_PULL;
    else
        d = flow->is_send ? HOCCL_D2H : HOCCL_H2D;
    return &gpu->engine[d];
}

size_t hoccl_staged_chunk(const struct hoccl_flow *flow)
{
    return hoccl_stage_slot_bytes(flow->where) * flow->span;
}

uint32_t hoccl_staged_prepare(struct hoccl_gpu *gpu, struct hoccl_stage_view *view)
{
    uint32_t state = hoccl_observe(&view->state);
    if (state == HOCCL_STAGE_NEW) {
        hoccl_publish(&view->state, HOCCL_STAGE_PREPARING);
        if (!hoccl_submitter_give(&gpu->submitter, &(struct hoccl_job){.kind = HOCCL_JOB_PREPARE, .view = view}))
            hoccl_publish(&view->state, HOCCL_STAGE_NEW);
    }
    return state;
}

HOCCL_Result hoccl_staged_not_had(const struct hoccl_flow *flow)
{
    const struct hoccl_stage_view *v = flow->view;
    char name[160];
    return hoccl_fail(HOCCL_ERR_MEMORY, "%s: %zu bytes for staging (%s): %s", hoccl_flow_name(flow, name, sizeof name), v->bytes,
                      v->kind == HOCCL_STAGE_HOST ? "shared host memory" : "on another GPU", hoccl_driver_error(v->result));
}

static HOCCL_Result refused(const struct hoccl_flow *f, CUresult result)
{
    char name[160];
    return hoccl_fail(HOCCL_ERR_DEVICE, "%s: copying a chunk %s staging: %s", hoccl_flow_name(f, name, sizeof name),
                      f->is_send ? "into" : "out of", hoccl_driver_error(result));
}

static void start_chunk(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    uint32_t i = f->started % f->slots;
    size_t size = hoccl_staged_chunk(f);
    uint64_t at = (uint64_t)f->started * size, left = f->header.bytes - at;
    CUdeviceptr own = (CUdeviceptr)(uintptr_t)f->address + at, slot = f->base + f->slot[i] * hoccl_stage_slot_bytes(f->where);
    f->transfer[i] = (struct hoccl_transfer){.to = f->is_send ? slot : own, .from = f->is_send ? own : slot,
                                             .bytes = left < size ? left : size, .party = f, .order = f->started,
                                             .hold = f->hold};
    hoccl_engine_add(hoccl_staged_engine(gpu, f), &f->transfer[i]);
    f->started++;
}

/* Start chunks below `limit`, count those that have landed. */
static HOCCL_Result move_chunks(struct hoccl_gpu *gpu, struct hoccl_flow *f, uint32_t limit, bool *moved)
{
    while (f->landed < f->started && hoccl_transfer_complete(&f->transfer[f->landed % f->slots])) {
        CUresult result = f->transfer[f->landed % f->slots].result;
        if (result)
            return refused(f, result);
        f->landed++;
        *moved = true;
    }
    while (f->started < f->chunks && f->started < limit && f->started - f->landed < f->slots) {
        start_chunk(gpu, f);
        *moved = true;
    }
    return HOCCL_SUCCESS;
}

static void begin(struct hoccl_flow *f, enum hoccl_stage_kind where, CUdeviceptr base)
{
    f->where = where;
    size_t size = hoccl_staged_chunk(f);
    f->base = base;
    f->chunks = (uint32_t)((f->header.bytes + size - 1) / size);
    f->started = f->landed = 0;
    f->state = HOCCL_FLOW_MOVING;
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

static void release_mapping(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    if (f->mapping)
        hoccl_mapping_put(&gpu->mappings, f->mapping);
    f->mapping = NULL;
}

/* The receiver's slots on a third GPU, opened here. *base stays 0 while that lasts, or if it is in vain: then the receiver
 * is told so. */
static HOCCL_Result open_third(struct hoccl_gpu *gpu, struct hoccl_flow *f, CUdeviceptr *base)
{
    struct hoccl_slot *s = hoccl_flow_slot(f);
    struct hoccl_peer *p = f->peer;
    if (!f->mapping || f->mapping->buffer != s->receipt.key) {
        release_mapping(gpu, f);
        HOCCL_Result r = hoccl_mappings_receive(&gpu->mappings, p->card.process, p->link.parcels, gpu->device.ordinal);
        if (r)
            return r;
        f->mapping = hoccl_mapping_find(&gpu->mappings, p->card.process, s->receipt.key);
    }
    uint32_t state = f->mapping ? hoccl_observe(&f->mapping->state) : HOCCL_MAPPING_FAILED;
    if (state == HOCCL_MAPPING_OPEN) {
        p->stage_key = s->receipt.key;
        *base = f->mapping->address;
        if (!(p->paths_said & SAID_THIRD))
            hoccl_log(HOCCL_LOG_INFO, "staging to rank %d is on a GPU that is neither end's", p->rank);
        p->paths_said |= SAID_THIRD;
    } else if (state == HOCCL_MAPPING_FAILED) {
        hoccl_log(HOCCL_LOG_INFO, "slots of rank %d on a third GPU cannot be mapped here%s%s: host memory instead", p->rank,
                  f->mapping ? ": " : "", f->mapping ? hoccl_driver_error(f->mapping->result) : "");
        release_mapping(gpu, f);
        f->refused = true;
        hoccl_publish(&s->offer.filled, HOCCL_REFUSED);
    } else if (state == HOCCL_MAPPING_ARRIVING) {
        return hoccl_mappings_receive(&gpu->mappings, p->card.process, p->link.parcels, gpu->device.ordinal);
    }
    return HOCCL_SUCCESS;
}

/* The receiver has given slots: see that they are usable here, then take note. */
static HOCCL_Result take_slots(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(f);
    enum hoccl_stage_kind where = (enum hoccl_stage_kind)hoccl_observe(&s->receipt.where);
    bool third = where == HOCCL_STAGE_GPU;
    CUdeviceptr base = 0;
    HOCCL_Result r = HOCCL_SUCCESS;
    if (third && f->refused)
        return hoccl_flow_check_peer(f); /* it has not read our refusal */
    if (third) {
        r = open_third(gpu, f, &base);
    } else {
        f->view = &f->peer->view;
        uint32_t state = hoccl_staged_prepare(gpu, f->view);
        if (state == HOCCL_STAGE_FAILED)
            return hoccl_staged_not_had(f);
        base = state == HOCCL_STAGE_READY ? hoccl_stage_base(f->view) : 0;
    }
    if (r || !base)
        return r ? r : hoccl_flow_check_peer(f);
    f->slots = s->receipt.count;
    f->span = s->receipt.span;
    for (uint32_t i = 0; i < f->slots; i++)
        f->slot[i] = s->receipt.slot[i];
    hoccl_publish(&s->offer.filled, 0);
    begin(f, where, base);
    *moved = true;
    return HOCCL_SUCCESS;
}

/* A test's fault: fill slots again before they have been drained. */
static uint32_t room(const struct hoccl_flow *f)
{
    return hoccl_settings.test_break == HOCCL_BREAK_EARLY_REUSE ? 4 * f->slots : f->slots;
}

HOCCL_Result hoccl_staged_send_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    if (flow->state == HOCCL_FLOW_OFFERED) {
        if (hoccl_observe(&s->receipt.staged) != flow->number)
            return hoccl_flow_check_peer(flow);
        return take_slots(gpu, flow, moved);
    }
    uint32_t drained = hoccl_observe(&s->receipt.drained), landed = flow->landed;
    HOCCL_Result r = move_chunks(gpu, flow, drained + room(flow), moved);
    if (r)
        return r;
    if (flow->landed != landed)
        hoccl_publish(&s->offer.filled, flow->landed);
    if (drained < flow->chunks)
        return hoccl_flow_check_peer(flow);
    release_mapping(gpu, flow);
    hoccl_flow_answer(flow, HOCCL_ANSWER_DONE);
    *moved = true;
    return HOCCL_SUCCESS;
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

static struct hoccl_stage *choose(struct hoccl_gpu *gpu, const struct hoccl_flow *f)
{
    const struct hoccl_peer *p = f->peer;
    bool device = !is_host(f) && hoccl_flow_slot(f)->offer.kind != HOCCL_MEMORY_HOST;
    bool by_gpu = device && !p->no_third && !p->closed && !hoccl_gate_bars_push(&gpu->gate);
    for (int i = 0; i < HOCCL_GPU_STAGES && by_gpu; i++) {
        const struct hoccl_stage_view *v = &gpu->stage[i].view;
        if (v->other >= 0 && hoccl_observe(&v->state) != HOCCL_STAGE_FAILED && memcmp(&v->uuid, &p->uuid, sizeof v->uuid))
            return &gpu->stage[i];
    }
    return p->stage;
}

/* The sender must have the descriptor of slots on a third GPU. True: it has. */
static bool told(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    const struct hoccl_stage_view *v = f->view;
    struct hoccl_dispatch *d = &f->dispatch;
    if (v->kind == HOCCL_STAGE_HOST || hoccl_flow_slot(f)->offer.buffer == v->key)
        return true;
    switch ((enum hoccl_dispatch_state)hoccl_observe(&d->state)) {
    case HOCCL_DISPATCH_NONE:
        *d = (struct hoccl_dispatch){.state = HOCCL_DISPATCH_PENDING, .socket = f->peer->link.parcels, .key = v->key,
                                     .base = v->memory.address, .bytes = v->memory.bytes};
        if (!hoccl_submitter_give(&gpu->submitter, &(struct hoccl_job){.kind = HOCCL_JOB_DISPATCH, .dispatch = d}))
            d->state = HOCCL_DISPATCH_NONE;
        return false;
    case HOCCL_DISPATCH_PENDING:
        return false;
    case HOCCL_DISPATCH_SENT:
        return true;
    case HOCCL_DISPATCH_FAILED:
        hoccl_log(HOCCL_LOG_INFO, "slots on a third GPU for rank %d: %s: host memory instead", f->peer->rank, d->text);
        f->peer->no_third = true;
        return false;
    }
    return false;
}

void hoccl_staged_publish_slots(struct hoccl_flow *flow)
{
    struct hoccl_receipt *r = &hoccl_flow_slot(flow)->receipt;
    r->count = flow->slots;
    for (uint32_t i = 0; i < flow->slots; i++)
        r->slot[i] = flow->slot[i];
    r->key = flow->view->key;
    r->span = flow->span;
    hoccl_publish(&r->drained, 0);
    hoccl_publish(&r->where, flow->view->kind);
    hoccl_publish(&r->staged, flow->number);
}

/* Chunks of several slots, for one slot's bytes are few for engines that reach full speed only beyond 16 MiB; four of them
 * keep both engines busy. Runs that are not free now may be soon; a single slot will do. */
static unsigned take(struct hoccl_flow *f, struct hoccl_stage *stage)
{
    size_t slot = hoccl_stage_slot_bytes(stage->view.kind);
    bool large = stage->view.kind == HOCCL_STAGE_GPU && f->header.bytes >= 2 * HOCCL_GPU_STAGE_SLOTS * slot;
    for (f->span = large ? HOCCL_GPU_STAGE_SLOTS / 4 : 1;; f->span /= 2) {
        uint64_t need = (f->header.bytes + f->span * slot - 1) / (f->span * slot);
        unsigned n = hoccl_stage_take(stage, need < HOCCL_FLOW_STAGES ? (unsigned)need : HOCCL_FLOW_STAGES, f->span, f->slot);
        if (n || f->span == 1)
            return n;
    }
}

HOCCL_Result hoccl_staged_receive_open(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_stage *stage = choose(gpu, flow);
    flow->path = HOCCL_PATH_STAGED;
    flow->state = HOCCL_FLOW_OPENING;
    flow->view = &stage->view;
    uint32_t state = hoccl_staged_prepare(gpu, flow->view);
    if (state == HOCCL_STAGE_FAILED && stage->view.kind == HOCCL_STAGE_HOST)
        return hoccl_staged_not_had(flow);
    if (state == HOCCL_STAGE_READY && told(gpu, flow))
        flow->slots = take(flow, stage);
    if (!flow->slots)
        return hoccl_flow_check_peer(flow);
    flow->stage = stage;
    begin(flow, stage->view.kind, hoccl_stage_base(&stage->view));
    hoccl_staged_publish_slots(flow);
    *moved = true;
    return HOCCL_SUCCESS;
}

void hoccl_staged_give_back(struct hoccl_flow *flow)
{
    if (flow->is_send || !flow->slots)
        return;
    hoccl_stage_give(flow->stage, flow->slots, flow->span, flow->slot);
    flow->slots = 0;
}

/* The sender cannot use slots on a GPU: others, in host memory. */
static HOCCL_Result give_others(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    hoccl_staged_give_back(f);
    f->peer->no_third = true;
    return hoccl_staged_receive_open(gpu, f, moved);
}

HOCCL_Result hoccl_staged_receive_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    if (flow->state == HOCCL_FLOW_OPENING)
        return hoccl_staged_receive_open(gpu, flow, moved);
    uint32_t landed = flow->landed, filled = hoccl_observe(&s->offer.filled);
    if (filled == HOCCL_REFUSED && flow->where == HOCCL_STAGE_GPU)
        return give_others(gpu, flow, moved);
    HOCCL_Result r = move_chunks(gpu, flow, filled == HOCCL_REFUSED ? 0 : filled, moved);
    if (r)
        return r;
    if (flow->landed != landed)
        hoccl_publish(&s->receipt.drained, flow->landed);
    if (flow->landed < flow->chunks)
        return hoccl_flow_check_peer(flow);
    hoccl_staged_give_back(flow);
    flow->state = HOCCL_FLOW_OFFERED;
    return HOCCL_SUCCESS;
}
