/* SPDX-License-Identifier: Apache-2.0 */
/* The staged path: chunk by chunk through slots that the receiver gives (mailbox.h draws the words).
 *
 *   sender    chunk i: buffer ──its engine──▶ slot[i mod k]          may start when i − drained < k
 *   receiver  chunk i: slot[i mod k] ──its engine──▶ buffer          may start when i < filled
 *
 * So both engines work at once on different chunks. An engine is a queue, so a flow's chunks land in their order. */
#include "p2p/flow.h"

#include "base/error.h"
#include "base/setting.h"

static bool is_host(const struct hoccl_flow *f)
{
    return f->memory.host;
}

struct hoccl_engine *hoccl_staged_engine(struct hoccl_gpu *gpu, const struct hoccl_flow *flow)
{
    enum hoccl_direction d;
    if (is_host(flow))
        d = HOCCL_HOST;
    else if (flow->view->kind == HOCCL_STAGE_GPU)
        d = flow->is_send ? HOCCL_PUSH : HOCCL_PULL;
    else
        d = flow->is_send ? HOCCL_D2H : HOCCL_H2D;
    return &gpu->engine[d];
}

/* The staging area must be usable here before the first copy. True: READY. */
static HOCCL_Result prepare(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *ready)
{
    struct hoccl_stage_view *v = f->view;
    char name[160];
    uint32_t state = hoccl_observe(&v->state);
    *ready = state == HOCCL_STAGE_READY;
    if (state == HOCCL_STAGE_NEW) {
        hoccl_publish(&v->state, HOCCL_STAGE_PREPARING);
        if (!hoccl_submitter_give(&gpu->submitter, &(struct hoccl_job){.kind = HOCCL_JOB_PREPARE, .view = v}))
            hoccl_publish(&v->state, HOCCL_STAGE_NEW);
    }
    if (state != HOCCL_STAGE_FAILED)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_MEMORY, "%s: %zu bytes for staging (%s): %s", hoccl_flow_name(f, name, sizeof name), v->bytes,
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
    size_t size = hoccl_stage_slot_bytes(f->view->kind);
    uint64_t at = (uint64_t)f->started * size, left = f->header.bytes - at;
    CUdeviceptr own = (CUdeviceptr)(uintptr_t)f->address + at, slot = hoccl_stage_address(f->view, f->slot[i]);
    f->transfer[i] = (struct hoccl_transfer){.to = f->is_send ? slot : own, .from = f->is_send ? own : slot,
                                             .bytes = left < size ? left : size};
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

static void begin(struct hoccl_flow *f)
{
    size_t size = hoccl_stage_slot_bytes(f->view->kind);
    f->chunks = (uint32_t)((f->header.bytes + size - 1) / size);
    f->started = f->landed = 0;
    f->state = HOCCL_FLOW_MOVING;
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

/* The receiver has given slots: take note, and see that they are usable here. */
static HOCCL_Result take_slots(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    const struct hoccl_receipt *r = &hoccl_flow_slot(f)->receipt;
    bool ready;
    f->view = r->where == HOCCL_STAGE_GPU ? &gpu->stage.view : &f->peer->view;
    HOCCL_Result e = prepare(gpu, f, &ready);
    if (e || !ready)
        return e;
    f->slots = r->count;
    for (uint32_t i = 0; i < f->slots; i++)
        f->slot[i] = r->slot[i];
    begin(f);
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
    hoccl_flow_answer(flow, HOCCL_ANSWER_DONE);
    *moved = true;
    return HOCCL_SUCCESS;
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

static struct hoccl_stage *choose(struct hoccl_gpu *gpu, const struct hoccl_flow *f)
{
    bool device = !is_host(f) && hoccl_flow_slot(f)->offer.kind != HOCCL_MEMORY_HOST;
    bool by_gpu = device && f->peer->same_object && gpu->stage.view.other >= 0 && !hoccl_gate_bars_push(&gpu->gate);
    return by_gpu ? &gpu->stage : f->peer->stage;
}

HOCCL_Result hoccl_staged_receive_open(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    struct hoccl_stage *stage = choose(gpu, flow);
    size_t size = hoccl_stage_slot_bytes(stage->view.kind);
    uint64_t chunks = (flow->header.bytes + size - 1) / size;
    bool ready;
    flow->path = HOCCL_PATH_STAGED;
    flow->state = HOCCL_FLOW_OPENING;
    flow->view = &stage->view;
    HOCCL_Result r = prepare(gpu, flow, &ready);
    if (!r && ready)
        flow->slots = hoccl_stage_take(stage, chunks < HOCCL_FLOW_STAGES ? (unsigned)chunks : HOCCL_FLOW_STAGES, flow->slot);
    if (r || !flow->slots)
        return r ? r : hoccl_flow_check_peer(flow);
    begin(flow);
    s->receipt.where = stage->view.kind;
    s->receipt.count = flow->slots;
    for (uint32_t i = 0; i < flow->slots; i++)
        s->receipt.slot[i] = flow->slot[i];
    hoccl_publish(&s->receipt.drained, 0);
    hoccl_publish(&s->receipt.staged, flow->number);
    *moved = true;
    return HOCCL_SUCCESS;
}

void hoccl_staged_give_back(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    if (flow->is_send || !flow->slots)
        return;
    hoccl_stage_give(flow->view == &gpu->stage.view ? &gpu->stage : flow->peer->stage, flow->slots, flow->slot);
    flow->slots = 0;
}

HOCCL_Result hoccl_staged_receive_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    if (flow->state == HOCCL_FLOW_OPENING)
        return hoccl_staged_receive_open(gpu, flow, moved);
    uint32_t landed = flow->landed;
    HOCCL_Result r = move_chunks(gpu, flow, hoccl_observe(&s->offer.filled), moved);
    if (r)
        return r;
    if (flow->landed != landed)
        hoccl_publish(&s->receipt.drained, flow->landed);
    if (flow->landed < flow->chunks)
        return hoccl_flow_check_peer(flow);
    hoccl_staged_give_back(gpu, flow);
    flow->state = HOCCL_FLOW_OFFERED;
    return HOCCL_SUCCESS;
}
