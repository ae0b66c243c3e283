/* SPDX-License-Identifier: Apache-2.0 */
/* Both buffers are on one GPU, and both ends in this process (path SELF). A copy within a GPU would run on its SMs, so the
 * bytes leave it and come back, by two routes at once. The sender does all of it; to the receiver it looks like a push.
 *
 *   from the front on:  buffer ──push──▶ a place on another GPU ──▶ buffer
 *   from the back on:   buffer ──D2H───▶ a place in host memory ──H2D──▶ buffer
 *
 * How much goes which way settles itself, for whichever route has a place free takes the next bytes, until the two meet.
 * Short ones go by one route, unless other flows have all its slots.
 *
 *   place:  IDLE ──bytes are left, slots are free──▶ FILLING ──landed──▶ DRAINING ──landed──▶ IDLE
 *   IDLE, no bytes left: its slots are given back
 *
 * **By another GPU.** What leaves and what comes back are one engine's work and share the link with all that goes to peers; D2H
 * and H2D have engines of their own, which others hardly notice (measured: test/gpu/engines). A drain uses the other direction of
 * the link than a fill. If all GPUs of a collective fill at one time and drain at one time, both directions are full; if one
 * fills while another drains, they share one and the other is idle. So large messages go **in turns**:
 *
 *   place 0:   ── fill k ──▶ drain k ──▶ fill k + 1 ──▶ drain k + 1 …     transfer[0], transfer[1]
 *   fill k + 1 is queued once fill k has landed, drain k + 1 once drain k has
 *
 * Both are put into the queue of pushes: its stream keeps them in order, and nobody has to hear that a piece has left before it is
 * fetched back. Ranks are in step because they begin together, behind what the operation sends to others, which
 * starts when both ends are there; and they stay in step the better, the larger the pieces are (measured, two GPUs that push a
 * slice to each other and move one of their own: 245 GB/s of whole buffers with pieces of 32 MiB in step, 235 with 16, 174
 * with 4; 153 out of step).
 * For small messages, which two places share, a stream of its own for the drains is faster (16 MiB: 102 µs against 121).
 *
 * Every arrow is the progress thread's. */
#include "p2p/flow.h"

#include "base/clock.h"
#include "base/error.h"

#define BY_GPU 2                          /* the first so many places; the others are in host memory */
#define LAST_IN_PARTY ((uint32_t)1 << 30) /* behind what goes to peers: `order` of the first fill */
#define TWO_ROUTES ((uint64_t)128 << 20)  /* fewer bytes go by one route (measured: 64 MiB are slower by two) */
#define IN_TURNS ((uint64_t)16 << 20)     /* from so many bytes on */
#define PATIENCE (100 * HOCCL_US)         /* so long one that goes in turns waits for peers that are not there */
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

static struct hoccl_stage *stage_of(const struct hoccl_flow *f, int i)
{
    return f->self.stage[i >= BY_GPU];
}

static uint64_t room(const struct hoccl_flow *f, int i)
{
    return f->self.place[i].span * hoccl_stage_slot_bytes(stage_of(f, i)->view.kind);
}

static bool in_turns(const struct hoccl_flow *f)
{
    return f->self.stage[0] && f->header.bytes >= IN_TURNS;
}

/* Bytes of the next piece that goes by the other GPU: of a small message a half. */
static uint64_t gpu_piece(const struct hoccl_flow *f)
{
    uint64_t left = f->self.back - f->self.front, bytes = f->header.bytes, half = bytes / 2 / ROUND * ROUND + ROUND;
    bool whole = in_turns(f) || bytes <= hoccl_stage_slot_bytes(HOCCL_STAGE_GPU);
    return whole || half > left ? left : half;
}

/* By GPU as many neighbouring slots as the next piece needs, or as there are. */
static bool take_place(struct hoccl_flow *f, int i)
{
    struct hoccl_self_place *p = &f->self.place[i];
    struct hoccl_stage *stage = stage_of(f, i);
    unsigned span = 1;
    if (!stage || p->span)
        return p->span;
    while (i < BY_GPU && span < HOCCL_GPU_STAGE_SLOTS && span * hoccl_stage_slot_bytes(HOCCL_STAGE_GPU) < gpu_piece(f))
        span *= 2;
    for (; span && !p->span; span /= 2)
        p->span = hoccl_stage_take(stage, 1, span, &f->slot[i]) ? (uint16_t)span : 0;
    return p->span;
}

static void give_place(struct hoccl_flow *f, int i)
{
    struct hoccl_self_place *p = &f->self.place[i];
    if (p->span)
        hoccl_stage_give(stage_of(f, i), 1, p->span, &f->slot[i]);
    p->span = 0;
}

static CUdeviceptr address(const struct hoccl_flow *f, int i)
{
    const struct hoccl_stage_view *v = &stage_of(f, i)->view;
    return hoccl_stage_base(v) + f->slot[i] * hoccl_stage_slot_bytes(v->kind);
}

/* Transfer i, from the flow's buffer to its place or back, of the bytes that the place has. */
static void copy(struct hoccl_engine *engine, struct hoccl_flow *f, int i, CUdeviceptr place, const struct hoccl_self_place *p,
                 bool fills, uint32_t order)
{
    CUdeviceptr from = (CUdeviceptr)(uintptr_t)f->address + p->at, to = f->self.to + p->at;
    struct hoccl_transfer *t = &f->transfer[i];
    *t = (struct hoccl_transfer){.to = fills ? place : to, .from = fills ? from : place, .bytes = p->bytes, .order = order};
    t->hold = f->hold;
    t->party = f->header.kind == HOCCL_FLOW_SEND_RECV ? (const void *)f : f->op;
    hoccl_engine_add(engine, t);
}

static HOCCL_Result check_copy(const struct hoccl_flow *f, int i)
{
    char name[160];
    if (!f->transfer[i].result)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_DEVICE, "%s: copying by way of %s: %s", hoccl_flow_name(f, name, sizeof name),
                      i < BY_GPU ? "another GPU" : "host memory", hoccl_driver_error(f->transfer[i].result));
}

static void take_front(struct hoccl_flow *f, int i)
{
    struct hoccl_self_place *p = &f->self.place[i];
    uint64_t n = gpu_piece(f);
    p->at = f->self.front;
    p->bytes = n < room(f, i) ? n : room(f, i);
    f->self.front += p->bytes;
}

/* From the back the bounds are those of whole slots, for the copies' sake; but never a single byte, which no engine would
 * bring back from host memory. */
static void take_back(struct hoccl_flow *f, int i)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_self_place *p = &s->place[i];
    uint64_t left = s->back - s->front, most = room(f, i), n = (s->back - 1) % most + 1;
    n = n == 1 ? most / 2 + 1 : n;
    p->bytes = n < left ? n : left;
    s->back -= p->bytes;
    p->at = s->back;
}

/* ---- by another GPU, in turns ------------------------------------------------------------------------------------ */

/* Transfer i, if it was queued, has landed. */
static bool ended(struct hoccl_flow *f, int i, uint32_t queued, uint32_t *over)
{
    if (*over == queued || !hoccl_transfer_complete(&f->transfer[i]))
        return false;
    (*over)++;
    return true;
}

/* Has the engine all that this flow will push? Also if it goes another way. */
static bool with_engine(const struct hoccl_flow *f)
{
    bool pushes = f->path == HOCCL_PATH_PUSH && (f->state == HOCCL_FLOW_OPENING || f->state == HOCCL_FLOW_MOVING);
    return !pushes || (f->state == HOCCL_FLOW_MOVING && f->transfer[0].given == f->transfer[0].bytes);
}

/* Peers that are not there yet are waited for a moment only: one that is late cannot be kept step with, and time would be lost. */
void hoccl_self_hold(struct hoccl_flow *self, const struct hoccl_flow *flows, int count, uint64_t now)
{
    bool waiting = false, pushing = false;
    for (const struct hoccl_flow *f = flows; f < flows + count; f++) {
        waiting |= f->is_send && !f->peer->same_object && !f->peer->far && f->state == HOCCL_FLOW_WAITING;
        pushing |= f->is_send && !with_engine(f);
    }
    if (pushing || !self->self.held_since)
        self->self.held_since = now;
    self->self.held = pushing || (waiting && now - self->self.held_since < PATIENCE);
}

static void fill(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_flow_self *s = &f->self;
    take_front(f, 0);
    copy(&gpu->engine[HOCCL_PUSH], f, 0, address(f, 0), &s->place[0], true, LAST_IN_PARTY + 2 * s->fills++);
}

static HOCCL_Result step_turns(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    struct hoccl_flow_self *s = &f->self;
    HOCCL_Result r = HOCCL_SUCCESS;
    if (ended(f, 0, s->fills, &s->filled)) {
        r = check_copy(f, 0);
        *moved = true;
    }
    if (!r && ended(f, 1, s->drains, &s->drained)) {
        s->landed += f->transfer[1].bytes;
        r = check_copy(f, 1);
        *moved = true;
    }
    if (r)
        return r;
    if (s->fills == s->filled && s->fills == s->drains && s->front < s->back && !s->held && take_place(f, 0)) {
        fill(gpu, f);
        *moved = true;
    }
    if (s->drains == s->drained && s->drains < s->fills)
        copy(&gpu->engine[HOCCL_PUSH], f, 1, address(f, 0), &s->place[0], false, LAST_IN_PARTY + 2 * s->drains++ + 1);
    if (s->front == s->back && s->fills == s->drained)
        give_place(f, 0);
    return HOCCL_SUCCESS;
}

/* ---- place by place ---------------------------------------------------------------------------------------------- */

static struct hoccl_engine *engine_of(struct hoccl_gpu *gpu, const struct hoccl_flow *f, int i)
{
    bool fills = f->self.place[i].state == HOCCL_SELF_FILLING;
    return &gpu->engine[i < BY_GPU ? fills || in_turns(f) ? HOCCL_PUSH : HOCCL_PULL : fills ? HOCCL_D2H : HOCCL_H2D];
}

static void copy_place(struct hoccl_gpu *gpu, struct hoccl_flow *f, int i, enum hoccl_self_state state)
{
    f->self.place[i].state = state;
    copy(engine_of(gpu, f, i), f, i, address(f, i), &f->self.place[i], state == HOCCL_SELF_FILLING, f->order);
}

static HOCCL_Result step_place(struct hoccl_gpu *gpu, struct hoccl_flow *f, int i, bool *moved)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_self_place *p = &s->place[i];
    if (p->state != HOCCL_SELF_IDLE) {
        if (!hoccl_transfer_complete(&f->transfer[i]))
            return HOCCL_SUCCESS;
        *moved = true;
        HOCCL_Result r = check_copy(f, i);
        if (r)
            return r;
        if (p->state == HOCCL_SELF_FILLING) {
            copy_place(gpu, f, i, HOCCL_SELF_DRAINING);
            return HOCCL_SUCCESS;
        }
        p->state = HOCCL_SELF_IDLE;
        s->landed += p->bytes;
    }
    if (s->front == s->back) {
        give_place(f, i);
    } else if (take_place(f, i)) {
        (i < BY_GPU ? take_front : take_back)(f, i);
        copy_place(gpu, f, i, HOCCL_SELF_FILLING);
        *moved = true;
    }
    return HOCCL_SUCCESS;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* Another flow has the slots on the other GPU, maybe for long: a phase (hold.h) may keep it up, in which this one is what
 * comes first. So this one goes by host memory too. */
static void go_round(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_flow_self *s = &f->self;
    bool has = s->place[0].span || s->place[1].span || s->front == s->back;
    if (has || s->stage[1] || s->held || !may_use_host(gpu))
        return;
    f->view = &f->peer->stage->view;
    if (hoccl_staged_prepare(gpu, f->view) == HOCCL_STAGE_READY)
        s->stage[1] = f->peer->stage;
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
    gpu->self_at = hoccl_recently();
    if (flow->state == HOCCL_FLOW_OPENING) {
        if (!prepare(gpu, flow))
            return hoccl_flow_check_peer(flow);
        if (!flow->self.stage[0] && hoccl_observe(&flow->view->state) == HOCCL_STAGE_FAILED)
            return hoccl_staged_not_had(flow);
        flow->state = HOCCL_FLOW_MOVING;
        flow->self.held = in_turns(flow);
        *moved = true;
    }
    HOCCL_Result r = in_turns(flow) ? step_turns(gpu, flow, moved) : HOCCL_SUCCESS;
    for (int i = in_turns(flow) ? BY_GPU : 0; i < HOCCL_FLOW_STAGES && !r; i++)
        r = step_place(gpu, flow, i, moved);
    go_round(gpu, flow);
    if (r)
        return r;
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
            hoccl_engine_cancel(engine_of(gpu, flow, i), &flow->transfer[i]);
}

void hoccl_self_give_back(struct hoccl_flow *flow)
{
    for (int i = 0; i < HOCCL_FLOW_STAGES; i++)
        give_place(flow, i);
}
