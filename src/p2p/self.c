/* SPDX-License-Identifier: Apache-2.0 */
/* Both buffers are on one GPU, and both ends in this process (path SELF). A copy within a GPU would run on its SMs, so the
 * bytes leave it and come back, chunk by chunk, by two routes at once. The sender does all of it; to the receiver it looks
 * like a push.
 *
 *   from the front on:  buffer ──push──▶ a place on another GPU ──pull──▶ buffer     large chunks
 *   from the back on:   buffer ──D2H───▶ a place in host memory ──H2D───▶ buffer     small ones
 *
 * Push and pull of a process are one engine, and share the links with all that goes to peers; D2H and H2D have engines of
 * their own (measured: test/gpu/engines). How much goes which way settles itself, for whichever route has a place free
 * takes the next chunk, until the two meet.
 *
 *   place:  IDLE ──bytes are left, slots are free──▶ FILLING ──landed──▶ DRAINING ──landed──▶ IDLE
 *   IDLE, no bytes left: its slots are given back
 *
 * Every arrow is the progress thread's. */
#include "p2p/flow.h"

#include "base/clock.h"
#include "base/error.h"

#define BY_GPU 2                         /* the first so many places; the others are in host memory */
#define TWO_ROUTES ((uint64_t)128 << 20) /* fewer bytes go by one route (measured: 64 MiB are slower by two) */
#define ROUND ((uint64_t)64 << 10)

static bool may_use_host(const struct hoccl_gpu *gpu)
{
    return gpu->gate.kind != HOCCL_GATE_H2D; /* such gates may stop H2D copies, and wait for this flow themselves */
}

static struct hoccl_stage *gpu_stage(struct hoccl_gpu *gpu)
{
    for (int i = 0; i < HOCCL_GPU_STAGES && !hoccl_gate_bars_push(&gpu->gate); i++) {
        struct hoccl_stage *s = &gpu->stage[i];
        if (s->view.other >= 0 && hoccl_observe(&s->view.state) != HOCCL_STAGE_FAILED)
            return s;
    }
    return NULL;
}

/* The stages that the flow will use, ready; false: not yet. */
static bool prepare(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_flow_self *s = &f->self;
    s->stage[0] = gpu_stage(gpu);
    f->view = s->stage[0] ? &s->stage[0]->view : NULL;
    if (f->view && hoccl_staged_prepare(gpu, f->view) != HOCCL_STAGE_READY)
        return false;
    bool host = !s->stage[0] || (f->header.bytes >= TWO_ROUTES && may_use_host(gpu));
    s->stage[1] = host ? f->peer->stage : NULL;
    f->view = host ? &s->stage[1]->view : f->view;
    uint32_t state = hoccl_staged_prepare(gpu, f->view);
    if (state == HOCCL_STAGE_FAILED && s->stage[0])
        s->stage[1] = NULL; /* one route will do */
    return state == HOCCL_STAGE_READY || state == HOCCL_STAGE_FAILED;
}

/* Bytes of a chunk: by GPU such that its two places take three quarters of what is worth two routes, else half each. */
static uint64_t gpu_chunk(const struct hoccl_flow *f)
{
    uint64_t bytes = f->header.bytes, slot = hoccl_stage_slot_bytes(HOCCL_STAGE_GPU), most = slot * HOCCL_GPU_STAGE_SLOTS / BY_GPU;
    if (bytes <= slot)
        return bytes;
    uint64_t n = (f->self.stage[1] ? bytes / 8 * 3 : bytes / 2) / ROUND * ROUND + ROUND;
    return n < most ? n : most;
}

static bool take_place(struct hoccl_flow *f, int i)
{
    struct hoccl_self_place *p = &f->self.place[i];
    struct hoccl_stage *stage = f->self.stage[i >= BY_GPU];
    unsigned span = 1;
    if (!stage || p->span)
        return p->span;
    while (i < BY_GPU && span * hoccl_stage_slot_bytes(HOCCL_STAGE_GPU) < gpu_chunk(f))
        span *= 2;
    for (; span && !p->span; span /= 2)
        p->span = hoccl_stage_take(stage, 1, span, &f->slot[i]) ? (uint16_t)span : 0;
    return p->span;
}

static void give_place(struct hoccl_flow *f, int i)
{
    struct hoccl_self_place *p = &f->self.place[i];
    if (p->span)
        hoccl_stage_give(f->self.stage[i >= BY_GPU], 1, p->span, &f->slot[i]);
    p->span = 0;
}

static struct hoccl_engine *engine_of(struct hoccl_gpu *gpu, const struct hoccl_self_place *p, int i)
{
    bool fills = p->state == HOCCL_SELF_FILLING;
    return &gpu->engine[i < BY_GPU ? fills ? HOCCL_PUSH : HOCCL_PULL : fills ? HOCCL_D2H : HOCCL_H2D];
}

static void copy(struct hoccl_gpu *gpu, struct hoccl_flow *f, int i, enum hoccl_self_state state)
{
    struct hoccl_self_place *p = &f->self.place[i];
    const struct hoccl_stage_view *v = &f->self.stage[i >= BY_GPU]->view;
    CUdeviceptr at = hoccl_stage_base(v) + f->slot[i] * hoccl_stage_slot_bytes(v->kind);
    CUdeviceptr from = (CUdeviceptr)(uintptr_t)f->address + p->at, to = f->self.to + p->at;
    bool fills = state == HOCCL_SELF_FILLING;
    p->state = state;
    f->transfer[i] = (struct hoccl_transfer){.to = fills ? at : to, .from = fills ? from : at, .bytes = p->bytes, .order = f->order};
    f->transfer[i].hold = f->hold;
    f->transfer[i].party = f->header.kind == HOCCL_FLOW_SEND_RECV ? (const void *)f : f->op;
    hoccl_engine_add(engine_of(gpu, p, i), &f->transfer[i]);
}

/* The next chunk of the route. From the back the bounds are those of whole slots, for the copies' sake; but never a single
 * byte, which no engine would bring back from host memory. */
static void take_bytes(struct hoccl_flow *f, int i)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_self_place *p = &s->place[i];
    uint64_t left = s->back - s->front, room = p->span * hoccl_stage_slot_bytes(s->stage[i >= BY_GPU]->view.kind);
    if (i < BY_GPU) {
        uint64_t n = gpu_chunk(f);
        n = n < room ? n : room;
        p->bytes = n < left ? n : left;
        p->at = s->front;
        s->front += p->bytes;
        return;
    }
    uint64_t n = (s->back - 1) % room + 1;
    n = n == 1 ? room / 2 + 1 : n;
    p->bytes = n < left ? n : left;
    s->back -= p->bytes;
    p->at = s->back;
}

static HOCCL_Result step_place(struct hoccl_gpu *gpu, struct hoccl_flow *f, int i, bool *moved)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_self_place *p = &s->place[i];
    char name[160];
    if (p->state != HOCCL_SELF_IDLE) {
        if (!hoccl_transfer_complete(&f->transfer[i]))
            return HOCCL_SUCCESS;
        *moved = true;
        if (f->transfer[i].result)
            return hoccl_fail(HOCCL_ERR_DEVICE, "%s: copying by way of %s: %s", hoccl_flow_name(f, name, sizeof name),
                              i < BY_GPU ? "another GPU" : "host memory", hoccl_driver_error(f->transfer[i].result));
        if (p->state == HOCCL_SELF_FILLING) {
            copy(gpu, f, i, HOCCL_SELF_DRAINING);
            return HOCCL_SUCCESS;
        }
        p->state = HOCCL_SELF_IDLE;
        s->landed += p->bytes;
    }
    if (s->front == s->back) {
        give_place(f, i);
    } else if (take_place(f, i)) {
        take_bytes(f, i);
        copy(gpu, f, i, HOCCL_SELF_FILLING);
        *moved = true;
    }
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_self_open(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    const struct hoccl_grant *g = &hoccl_flow_slot(flow)->grant;
    flow->path = HOCCL_PATH_SELF;
    flow->state = HOCCL_FLOW_OPENING;
    flow->self = (struct hoccl_flow_self){.to = g->base + g->offset, .back = flow->header.bytes};
    return hoccl_self_step(gpu, flow, moved);
}

HOCCL_Result hoccl_self_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    gpu->self_at = hoccl_now();
    if (flow->state == HOCCL_FLOW_OPENING) {
        if (!prepare(gpu, flow))
            return hoccl_flow_check_peer(flow);
        if (!flow->self.stage[0] && hoccl_observe(&flow->view->state) == HOCCL_STAGE_FAILED)
            return hoccl_staged_not_had(flow);
        flow->state = HOCCL_FLOW_MOVING;
        *moved = true;
    }
    for (int i = 0; i < HOCCL_FLOW_STAGES; i++) {
        HOCCL_Result r = step_place(gpu, flow, i, moved);
        if (r)
            return r;
    }
    if (flow->self.landed < flow->header.bytes)
        return hoccl_flow_check_peer(flow);
    hoccl_flow_answer(flow, HOCCL_ANSWER_DONE);
    *moved = true;
    return HOCCL_SUCCESS;
}

void hoccl_self_cancel(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    for (int i = 0; i < HOCCL_FLOW_STAGES; i++)
        if (flow->transfer[i].link.next)
            hoccl_engine_cancel(engine_of(gpu, &flow->self.place[i], i), &flow->transfer[i]);
}

void hoccl_self_give_back(struct hoccl_flow *flow)
{
    for (int i = 0; i < HOCCL_FLOW_STAGES; i++)
        give_place(flow, i);
}
