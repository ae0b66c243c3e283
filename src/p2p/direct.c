/* SPDX-License-Identifier: Apache-2.0 */
/* The two paths on which one end opens the other's memory and its engine moves the bytes in one go (paper §3.3.2): the
 * sender pushes, or, where the receiver's memory cannot be opened, the receiver pulls. */
#include "p2p/flow.h"

#include "base/error.h"

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
    f->transfer[0] = (struct hoccl_transfer){.to = push ? other : own, .from = push ? own : other, .bytes = f->header.bytes};
    hoccl_engine_add(engine_of(gpu, f), &f->transfer[0]);
    f->state = HOCCL_FLOW_MOVING;
}

HOCCL_Result hoccl_direct_open(struct hoccl_gpu *gpu, struct hoccl_flow *flow, enum hoccl_path path, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    bool push = path == HOCCL_PATH_PUSH;
    flow->path = path;
    *moved = true;
    if (flow->peer->same_process) {
        start(gpu, flow, push ? s->grant.base : s->offer.base);
        return HOCCL_SUCCESS;
    }
    HOCCL_Result r = hoccl_mapping_get(&gpu->mappings, flow->peer->card.process, push ? s->grant.buffer : s->offer.buffer,
                                       push ? &s->grant_memory : &s->offer_memory, &flow->mapping);
    if (!r && flow->mapping)
        flow->state = HOCCL_FLOW_OPENING;
    else
        *moved = false;
    return r;
}

static HOCCL_Result opening(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    char name[160];
    uint32_t state = hoccl_observe(&f->mapping->state);
    if (state == HOCCL_MAPPING_FAILED)
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s: opening the peer's buffer (cuIpcOpenMemHandle): %s",
                          hoccl_flow_name(f, name, sizeof name), hoccl_driver_error(f->mapping->result));
    if (state != HOCCL_MAPPING_OPEN)
        return hoccl_flow_check_peer(f);
    *moved = true;
    start(gpu, f, f->mapping->address);
    return HOCCL_SUCCESS;
}

static HOCCL_Result moving(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    char name[160];
    struct hoccl_transfer *t = &f->transfer[0];
    if (t->result)
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s: copying %llu bytes: %s", hoccl_flow_name(f, name, sizeof name),
                          (unsigned long long)f->header.bytes, hoccl_driver_error(t->result));
    if (!hoccl_transfer_complete(t))
        return hoccl_flow_check_peer(f);
    if (f->mapping)
        hoccl_mapping_put(&gpu->mappings, f->mapping);
    f->mapping = NULL;
    *moved = true;
    if (f->is_send) {
        hoccl_flow_answer(f, HOCCL_ANSWER_DONE);
    } else {
        hoccl_publish(&hoccl_flow_slot(f)->receipt.tag, f->number);
        f->state = HOCCL_FLOW_OFFERED;
    }
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_direct_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    return flow->state == HOCCL_FLOW_OPENING ? opening(gpu, flow, moved) : moving(gpu, flow, moved);
}
