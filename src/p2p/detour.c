/* SPDX-License-Identifier: Apache-2.0 */
/* See detour.h. */
#include "p2p/detour.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"

#define MIB ((uint64_t)1 << 20)
#define LEAST (64 * MIB)               /* smaller messages are there before a detour has begun to pay */
#define LATENCY (80 * HOCCL_US)        /* from the offer to the first chunk's landing, and from the last begun to its */
#define EACH ((uint64_t)25 * HOCCL_US) /* a MiB, until it has been seen: 40 GB/s */
#define LARGE_PLAN (8 * MIB)           /* from there on chunks of two slots: 42 GB/s instead of 37 */
#define PLACES 4u
#define SELF_QUIET (200 * HOCCL_US)    /* behind the last step of a message to oneself */
#define ROUND ((uint64_t)64 << 10)
#define SAID (1u << 30)

/* ---- both -------------------------------------------------------------------------------------------------------- */

static uint64_t chunk_bytes(const struct hoccl_flow *f)
{
    return f->span * hoccl_stage_slot_bytes(HOCCL_STAGE_HOST);
}

/* Chunk i from the back. The bounds are round ones, for the copies' sake, so chunk 0 may be a little shorter. */
static uint64_t begin_of(const struct hoccl_flow *f, uint32_t i)
{
    return (f->header.bytes + ROUND - 1) / ROUND * ROUND - (i + 1) * chunk_bytes(f);
}

static struct hoccl_transfer *transfer_of(struct hoccl_flow *f, uint32_t i)
{
    return &f->transfer[1 + i % f->slots];
}

static void start_chunk(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    uint32_t i = f->detour.started++;
    uint64_t at = begin_of(f, i), left = f->header.bytes - at, n = left < chunk_bytes(f) ? left : chunk_bytes(f);
    CUdeviceptr own = (CUdeviceptr)(uintptr_t)f->address + at;
    CUdeviceptr slot = f->base + f->slot[i % f->slots] * hoccl_stage_slot_bytes(HOCCL_STAGE_HOST);
    struct hoccl_transfer *t = transfer_of(f, i);
    *t = (struct hoccl_transfer){.to = f->is_send ? slot : own, .from = f->is_send ? own : slot, .bytes = n, .order = f->order,
                                 .hold = f->hold, .party = f->header.kind == HOCCL_FLOW_SEND_RECV ? (const void *)f : f->op};
    hoccl_engine_add(&gpu->engine[f->is_send ? HOCCL_D2H : HOCCL_H2D], t);
}

/* Count the chunks that have landed, in their order. */
static HOCCL_Result land(struct hoccl_flow *f, bool *moved)
{
    struct hoccl_flow_detour *d = &f->detour;
    char name[160];
    while (d->landed < d->started && hoccl_transfer_complete(transfer_of(f, d->landed))) {
        CUresult result = transfer_of(f, d->landed)->result;
        if (result)
            return hoccl_fail(HOCCL_ERR_DEVICE, "%s: copying a chunk %s host memory: %s", hoccl_flow_name(f, name, sizeof name),
                              f->is_send ? "to" : "from", hoccl_driver_error(result));
        d->landed++;
        *moved = true;
    }
    return HOCCL_SUCCESS;
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

/* The bytes for which both ways take equally long, at most a quarter. */
static uint64_t even_share(const struct hoccl_gpu *gpu, uint64_t bytes)
{
    uint64_t push = gpu->engine[HOCCL_PUSH].pace.ns_a_mib, detour = gpu->detour_each ? gpu->detour_each : EACH;
    uint64_t all = bytes / MIB * push;
    uint64_t mib = all > LATENCY ? (all - LATENCY) / (push + detour) : 0;
    return mib * MIB < bytes / 4 ? mib * MIB : bytes / 4;
}

/* Others go from step to step by flags that take the same wire. */
static bool disturbs(const struct hoccl_gpu *gpu)
{
    uint64_t now = hoccl_now();
    return hoccl_pace_company(&gpu->engine[HOCCL_PUSH].pace, now) || (gpu->self_at && now < gpu->self_at + SELF_QUIET);
}

static bool possible(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    bool asked = hoccl_peek(&hoccl_flow_slot(f)->offer.tag) == f->number; /* for descriptors: the offer is used */
    if (!hoccl_settings.detour || f->header.bytes < LEAST || asked || disturbs(gpu))
        return false;
    f->view = &f->peer->view;
    return hoccl_staged_prepare(gpu, f->view) == HOCCL_STAGE_READY;
}

static void ask(struct hoccl_flow *f)
{
    struct hoccl_offer *o = &hoccl_flow_slot(f)->offer;
    o->buffer = 0;
    o->offset = f->span;
    hoccl_publish(&o->filled, 0);
    hoccl_publish(&o->kind, HOCCL_MEMORY_DETOUR);
    hoccl_publish(&o->tag, f->number);
}

/* A rate that was bad once is forgotten by and by. */
static void forget(struct hoccl_gpu *gpu)
{
    if (gpu->detour_each > EACH)
        gpu->detour_each -= gpu->detour_each / 64;
}

uint64_t hoccl_detour_plan(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    if (!possible(gpu, flow))
        return 0;
    uint64_t share = even_share(gpu, flow->header.bytes);
    flow->span = share < LARGE_PLAN ? 1 : 2;
    flow->detour.most = (uint32_t)(share / chunk_bytes(flow));
    if (!flow->detour.most) {
        forget(gpu);
        return 0;
    }
    ask(flow);
    return flow->header.bytes - begin_of(flow, flow->detour.most - 1);
}

/* The receiver has given slots. */
static void take_slots(struct hoccl_flow *f)
{
    const struct hoccl_receipt *r = &hoccl_flow_slot(f)->receipt;
    f->slots = r->count;
    for (uint32_t i = 0; i < f->slots; i++)
        f->slot[i] = r->slot[i];
    f->base = hoccl_stage_base(&f->peer->view);
    f->detour.open = true;
    f->detour.begun = hoccl_now();
    if (!(f->peer->paths_said & SAID))
        hoccl_log(HOCCL_LOG_INFO, "large messages to rank %d go through host memory too", f->peer->rank);
    f->peer->paths_said |= SAID;
}

HOCCL_Result hoccl_detour_send_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_flow_detour *d = &flow->detour;
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    if (!d->most || (!d->open && hoccl_observe(&s->receipt.staged) != flow->number))
        return HOCCL_SUCCESS;
    if (!d->open)
        take_slots(flow);
    uint32_t drained = hoccl_observe(&s->receipt.drained), landed = d->landed;
    d->closed = drained & HOCCL_DETOUR_CLOSED;
    if (d->drained != (drained & ~HOCCL_DETOUR_CLOSED)) {
        d->drained = drained & ~HOCCL_DETOUR_CLOSED;
        d->drained_at = hoccl_now();
        *moved = true;
    }
    HOCCL_Result r = land(flow, moved);
    if (d->landed != landed)
        hoccl_publish(&s->offer.filled, d->landed);
    if (disturbs(gpu))
        d->most = d->started;
    while (!r && !d->closed && d->started < d->most && d->started - d->drained < flow->slots) {
        start_chunk(gpu, flow);
        *moved = true;
    }
    return r;
}

bool hoccl_detour_end(struct hoccl_flow *flow, uint64_t *rest)
{
    struct hoccl_flow_detour *d = &flow->detour;
    d->most = d->started;
    if (d->closed && d->landed == d->started)
        d->most = d->drained;
    uint64_t back = d->most ? begin_of(flow, d->most - 1) : flow->header.bytes;
    *rest = back - d->front;
    return *rest || d->drained >= d->most;
}

void hoccl_detour_learn(struct hoccl_gpu *gpu, const struct hoccl_flow *flow)
{
    const struct hoccl_flow_detour *d = &flow->detour;
    uint64_t mib = d->drained * chunk_bytes(flow) / MIB, seen = mib ? (d->drained_at - d->begun) / mib : 0;
    uint64_t before = gpu->detour_each ? gpu->detour_each : EACH;
    if (mib * MIB >= LARGE_PLAN) /* of fewer the latency says more than the rate */
        gpu->detour_each = (3 * before + seen) / 4;
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

static bool give_slots(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_slot *s = hoccl_flow_slot(f);
    struct hoccl_stage *stage = f->peer->stage;
    f->view = &stage->view;
    if (hoccl_staged_prepare(gpu, f->view) != HOCCL_STAGE_READY || hoccl_gate_barred(&gpu->gate))
        return false;
    f->span = s->offer.offset == 2 ? 2 : 1;
    f->slots = hoccl_stage_take(stage, PLACES, f->span, f->slot);
    if (!f->slots)
        return false;
    f->stage = stage;
    f->base = hoccl_stage_base(f->view);
    f->detour.open = true;
    hoccl_staged_publish_slots(f);
    return true;
}

/* A gated turn is out, and perhaps somebody waits to enqueue it. Of what is begun the driver is given no more: a phase (hold.h)
 * or the engine's share might keep it back until the gate stops it. When nothing is with the driver, what has not landed whole
 * is the sender's to push. */
static void withdraw(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_flow_detour *d = &f->detour;
    unsigned flight = 0;
    for (uint32_t i = d->landed; i != d->started; i++) {
        struct hoccl_transfer *t = transfer_of(f, i);
        if (t->link.next)
            hoccl_engine_cancel(&gpu->engine[HOCCL_H2D], t);
        flight += t->flight;
    }
    if (flight)
        return;
    hoccl_gate_land(&gpu->gate, d->started - d->landed);
    d->started = d->landed;
}

HOCCL_Result hoccl_detour_receive_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    struct hoccl_flow_detour *d = &flow->detour;
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    if (!d->open && !give_slots(gpu, flow))
        return HOCCL_SUCCESS;
    uint32_t filled = hoccl_observe(&s->offer.filled), landed = d->landed;
    HOCCL_Result r = land(flow, moved);
    hoccl_gate_land(&gpu->gate, d->landed - landed);
    d->closing |= hoccl_gate_barred(&gpu->gate);
    while (!r && !d->closing && d->started < filled && d->started - d->landed < flow->slots) {
        d->closing = !hoccl_gate_pass(&gpu->gate);
        if (!d->closing)
            start_chunk(gpu, flow);
        *moved = true;
    }
    if (r || d->closed)
        return r;
    if (d->closing)
        withdraw(gpu, flow);
    d->closed = d->closing && d->landed == d->started;
    if (d->landed != landed || d->closed)
        hoccl_publish(&s->receipt.drained, d->landed | (d->closed ? HOCCL_DETOUR_CLOSED : 0));
    return HOCCL_SUCCESS;
}

void hoccl_detour_quiet(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    struct hoccl_flow_detour *d = &flow->detour;
    if (!flow->is_send && d->open)
        hoccl_gate_land(&gpu->gate, d->started - d->landed);
    d->landed = d->started;
}
