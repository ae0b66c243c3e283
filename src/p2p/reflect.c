/* SPDX-License-Identifier: Apache-2.0 */
/* The asking half of a reflection: see mirror.h and reflection.h. Of a flow's bytes it takes those from the front on, in chunks that
 * come back in their order; so those that have not when it ends are the last ones before the front. */
#include "p2p/mirror.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"

#include <string.h>

#define PATIENCE (200 * HOCCL_US) /* a mirror that is awake takes two naps of its loop at most */
#define TEST_PATIENCE (20 * HOCCL_S)
#define LOOK_EVERY (10 * HOCCL_MS)
#define WARN_AFTER (60 * HOCCL_S)
#define LAST ((uint32_t)1 << 30) /* its chunks are the last of their collective: the peers' come first, as they would anyway */

static struct hoccl_reflector *of(const struct hoccl_flow *f)
{
    return f->peer->mirror;
}

bool hoccl_reflect_may(const struct hoccl_reflector *x, uint64_t bytes)
{
    return x && x->peer && bytes >= HOCCL_REFLECTION_LEAST && hoccl_settings.test_mirror != HOCCL_MIRROR_OFF;
}

static bool answered(const struct hoccl_reflector *x)
{
    return hoccl_observe(&x->words->reply.answer) == x->number;
}

static void ask(struct hoccl_reflector *x, const struct hoccl_flow *f)
{
    const struct hoccl_slot *s = hoccl_flow_slot(f);
    struct hoccl_reflection_ask *a = &x->words->ask;
    x->number += 2;
    a->kind = (uint16_t)s->grant.kind;
    a->flow_kind = f->header.kind;
    a->buffer = s->grant.buffer;
    a->base = s->grant.base;
    a->offset = s->grant.offset;
    a->bytes = f->header.bytes;
    a->operation = f->header.operation;
    a->key = f->mapping ? x->key : 0;
    memcpy(x->words->memory, s->grant_memory.bytes, sizeof x->words->memory);
    hoccl_publish(&a->filled, 0);
    hoccl_publish(&a->sent, x->number + 1);
    hoccl_publish(&a->tag, x->number);
    hoccl_fetch_add(&x->peer->board->status.knocks, 1u);
    hoccl_doorbell_ring(x->bell);
}

/* What is mapped here of the mirror's area is kept so for this flow. */
void hoccl_reflect_begin(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    struct hoccl_reflector *x = of(flow);
    uint32_t kind = hoccl_flow_slot(flow)->grant.kind;
    if (!hoccl_reflect_may(x, flow->header.bytes) || x->owner || x->never || hoccl_gate_bars_push(&gpu->gate))
        return;
    if ((kind != HOCCL_MEMORY_IPC && kind != HOCCL_MEMORY_RANGE) || !answered(x) || hoccl_board_state(x->peer->board) != HOCCL_BOARD_OPEN)
        return;
    x->owner = flow;
    if (x->key)
        flow->mapping = hoccl_mapping_find(&gpu->mappings, x->peer->card.process, x->key);
    flow->self.mirror.state = HOCCL_REFLECTED_ASKED;
    flow->self.mirror.since = hoccl_now();
    ask(x, flow);
}

bool hoccl_reflect_pending(const struct hoccl_flow *flow)
{
    const struct hoccl_flow_reflection *m = &flow->self.mirror;
    uint64_t patience = hoccl_settings.test_mirror == HOCCL_MIRROR_WAIT ? TEST_PATIENCE : PATIENCE;
    return m->state == HOCCL_REFLECTED_ASKED && hoccl_now() - m->since < patience;
}

/* The mirror writes nothing more, or was never allowed to: what has not come back goes another way. */
static void over(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_flow_reflection *m = &s->mirror;
    if (m->started != m->drained)
        s->front = s->place[m->drained % m->count].at;
    for (int i = 0; i < HOCCL_FLOW_STAGES; i++) {
        if (s->place[i].mirrored && s->place[i].state == HOCCL_SELF_DRAINING)
            s->place[i].state = HOCCL_SELF_IDLE;
        else if (s->place[i].mirrored && s->place[i].state == HOCCL_SELF_FILLING) {
            s->place[i].state = HOCCL_SELF_STRAY;
            hoccl_engine_cancel(&gpu->engine[HOCCL_PUSH], &f->transfer[i]);
        }
    }
    m->state = HOCCL_REFLECTED_OVER;
}

/* Nothing of ours is on its way into the mirror's area any more: the slots may be another's. */
static void say_end(struct hoccl_reflector *x)
{
    hoccl_publish(&x->words->ask.tag, x->number + 1);
}

static void end_when_landed(struct hoccl_flow *f)
{
    for (int i = 0; i < HOCCL_FLOW_STAGES; i++)
        if (f->self.place[i].state == HOCCL_SELF_STRAY && f->transfer[i].flight)
            return;
    say_end(of(f));
}

static void cannot(struct hoccl_gpu *gpu, struct hoccl_flow *f, const char *what, const char *why)
{
    struct hoccl_reflector *x = of(f);
    hoccl_log(HOCCL_LOG_INFO, "what this rank sends to itself is not pushed back by rank %d: %s: %s", x->peer->rank, what, why);
    x->never = true;
    over(gpu, f);
}

/* Its process has ended. */
static bool gone(struct hoccl_flow *f)
{
    struct hoccl_flow_reflection *m = &f->self.mirror;
    uint64_t now = hoccl_now();
    if (now - m->looked < LOOK_EVERY)
        return false;
    m->looked = now;
    return hoccl_link_gone(&of(f)->peer->link);
}

/* ---- asked -------------------------------------------------------------------------------------------------------- */

/* The mirror wants the range's descriptors. */
static void dispatch(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    const struct hoccl_slot *s = hoccl_flow_slot(f);
    struct hoccl_reflector *x = of(f);
    struct hoccl_dispatch *d = &f->dispatch;
    switch ((enum hoccl_dispatch_state)hoccl_observe(&d->state)) {
    case HOCCL_DISPATCH_NONE:
        *d = (struct hoccl_dispatch){.state = HOCCL_DISPATCH_PENDING, .socket = x->peer->link.parcels, .key = s->grant.buffer,
                                     .base = s->grant.base};
        memcpy(&d->bytes, s->grant_memory.bytes, sizeof d->bytes);
        if (!hoccl_submitter_give(&gpu->submitter, &(struct hoccl_job){.kind = HOCCL_JOB_DISPATCH, .dispatch = d}))
            d->state = HOCCL_DISPATCH_NONE;
        break;
    case HOCCL_DISPATCH_PENDING:
        break;
    case HOCCL_DISPATCH_SENT:
        if (hoccl_peek(&x->words->ask.sent) != x->number)
            hoccl_publish(&x->words->ask.sent, x->number);
        break;
    case HOCCL_DISPATCH_FAILED:
        cannot(gpu, f, "exporting its buffer", d->text);
        break;
    }
}

/* The mirror has given slots of its area: true once that is mapped here. */
static bool area_open(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_reflector *x = of(f);
    uint64_t key = x->words->reply.key;
    if (f->mapping && f->mapping->buffer != key) {
        hoccl_mapping_put(&gpu->mappings, f->mapping);
        f->mapping = NULL;
    }
    if (!f->mapping || hoccl_observe(&f->mapping->state) == HOCCL_MAPPING_ARRIVING)
        if (hoccl_mappings_receive(&gpu->mappings, x->peer->card.process, x->peer->link.parcels, gpu->device.ordinal))
            return false;
    if (!f->mapping)
        f->mapping = hoccl_mapping_find(&gpu->mappings, x->peer->card.process, key);
    uint32_t state = f->mapping ? hoccl_observe(&f->mapping->state) : HOCCL_MAPPING_FAILED;
    if (state == HOCCL_MAPPING_FAILED)
        cannot(gpu, f, "mapping its memory", f->mapping ? hoccl_driver_error(f->mapping->result) : "no descriptor has come");
    if (state == HOCCL_MAPPING_OPEN)
        x->key = key;
    return state == HOCCL_MAPPING_OPEN;
}

static void take_note(struct hoccl_flow *f)
{
    struct hoccl_reflector *x = of(f);
    const struct hoccl_reflection_reply *r = &x->words->reply;
    struct hoccl_flow_reflection *m = &f->self.mirror;
    m->count = r->count;
    m->span = r->span;
    m->base = f->mapping->address;
    m->since = hoccl_now();
    memcpy(m->slot, r->slot, sizeof m->slot);
    m->state = HOCCL_REFLECTED_OPEN;
    if (!x->said)
        hoccl_log(HOCCL_LOG_INFO, "what this rank sends to itself is pushed back by rank %d", x->peer->rank);
    x->said = true;
}

static void asked(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    struct hoccl_reflector *x = of(f);
    if (answered(x)) {
        x->never |= x->words->reply.status == HOCCL_REFLECTION_NEVER;
        over(gpu, f);
    } else if (hoccl_board_state(x->peer->board) != HOCCL_BOARD_OPEN || gone(f)) {
        over(gpu, f);
    } else if (hoccl_observe(&x->words->reply.ready) == x->number) {
        if (area_open(gpu, f))
            take_note(f);
    } else if (hoccl_observe(&x->words->reply.wanted) == x->number) {
        dispatch(gpu, f);
    }
    *moved |= f->self.mirror.state != HOCCL_REFLECTED_ASKED;
}

/* ---- open --------------------------------------------------------------------------------------------------------- */

static void start_chunk(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_flow_reflection *m = &s->mirror;
    uint32_t i = m->started % m->count;
    uint64_t left = s->back - s->front, n = hoccl_reflection_chunk(f->header.bytes);
    bool alone = f->header.kind == HOCCL_FLOW_SEND_RECV;
    s->place[i] = (struct hoccl_self_place){.state = HOCCL_SELF_FILLING, .mirrored = true, .at = s->front, .bytes = n < left ? n : left};
    s->front += s->place[i].bytes;
    f->transfer[i] = (struct hoccl_transfer){.from = (CUdeviceptr)(uintptr_t)f->address + s->place[i].at,
                                             .to = m->base + m->slot[i] * hoccl_stage_slot_bytes(HOCCL_STAGE_GPU),
                                             .bytes = s->place[i].bytes, .party = alone ? (const void *)f : f->op,
                                             .order = (alone ? 0 : LAST) + m->started, .hold = f->hold};
    hoccl_engine_add(&gpu->engine[HOCCL_PUSH], &f->transfer[i]);
    m->started++;
}

/* Chunks that stand in their places are the mirror's, in their order. */
static HOCCL_Result fill(struct hoccl_flow *f, bool *moved)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_flow_reflection *m = &s->mirror;
    struct hoccl_reflection *w = of(f)->words;
    char name[160];
    while (m->filled != m->started && hoccl_transfer_complete(&f->transfer[m->filled % m->count])) {
        uint32_t i = m->filled % m->count;
        if (f->transfer[i].result)
            return hoccl_fail(HOCCL_ERR_DEVICE, "%s: copying by way of rank %d: %s", hoccl_flow_name(f, name, sizeof name),
                              of(f)->peer->rank, hoccl_driver_error(f->transfer[i].result));
        w->place[i].at = s->place[i].at;
        w->place[i].bytes = s->place[i].bytes;
        s->place[i].state = HOCCL_SELF_DRAINING;
        hoccl_publish(&w->ask.filled, ++m->filled);
        *moved = true;
    }
    return HOCCL_SUCCESS;
}

static void drain(struct hoccl_flow *f, bool *moved)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_flow_reflection *m = &s->mirror;
    uint32_t drained = hoccl_observe(&of(f)->words->reply.drained);
    while (m->drained != drained && m->drained != m->filled) {
        struct hoccl_self_place *p = &s->place[m->drained++ % m->count];
        p->state = HOCCL_SELF_IDLE;
        s->landed += p->bytes;
        m->since = hoccl_now();
        *moved = true;
    }
}

/* A mirror that lives and does not run (a debugger, SIGSTOP) is waited for like any peer. */
static HOCCL_Result check_patience(struct hoccl_flow *f)
{
    struct hoccl_flow_reflection *m = &f->self.mirror;
    uint64_t waited = m->drained == m->filled ? 0 : hoccl_now() - m->since;
    char name[160];
    if (waited > WARN_AFTER && !f->warned) {
        f->warned = true;
        hoccl_log(HOCCL_LOG_WARN, "%s: rank %d has something of it to push back and has not for %llu s; its process lives",
                  hoccl_flow_name(f, name, sizeof name), of(f)->peer->rank, (unsigned long long)(waited / HOCCL_S));
    }
    if (!hoccl_settings.wait_timeout || waited < hoccl_settings.wait_timeout)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_TIMEOUT, "%s: rank %d has something of it to push back and has not for %llu s (HOCCL_WAIT_TIMEOUT)",
                      hoccl_flow_name(f, name, sizeof name), of(f)->peer->rank, (unsigned long long)(waited / HOCCL_S));
}

/* The answer is read before `drained`, so that is its last word. */
static HOCCL_Result move(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    struct hoccl_flow_self *s = &f->self;
    struct hoccl_flow_reflection *m = &s->mirror;
    struct hoccl_reflector *x = of(f);
    bool last = answered(x) || gone(f), bad = hoccl_board_state(x->peer->board) != HOCCL_BOARD_OPEN;
    drain(f, moved);
    if (last) {
        x->never |= answered(x) && x->words->reply.status == HOCCL_REFLECTION_NEVER;
        hoccl_log(HOCCL_LOG_INFO, "rank %d pushes back no more of what this rank sends to itself: it goes on by itself", x->peer->rank);
        over(gpu, f);
        *moved = true;
        return HOCCL_SUCCESS;
    }
    HOCCL_Result r = fill(f, moved);
    while (!r && !bad && s->front < s->back && m->started - m->drained < m->count) {
        struct hoccl_self_place *p = &s->place[m->started % m->count];
        if (p->state != HOCCL_SELF_IDLE || p->span)
            break; /* still with the chunk of another way */
        start_chunk(gpu, f);
        *moved = true;
    }
    return r ? r : check_patience(f);
}

HOCCL_Result hoccl_reflect_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    if (flow->self.mirror.state == HOCCL_REFLECTED_ASKED)
        asked(gpu, flow, moved);
    HOCCL_Result r = flow->self.mirror.state == HOCCL_REFLECTED_OPEN ? move(gpu, flow, moved) : HOCCL_SUCCESS;
    if (flow->self.mirror.state == HOCCL_REFLECTED_OVER)
        end_when_landed(flow);
    return r;
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

bool hoccl_reflect_quiet(const struct hoccl_flow *flow)
{
    const struct hoccl_flow_reflection *m = &flow->self.mirror;
    const struct hoccl_reflector *x = of(flow);
    if (m->state == HOCCL_REFLECTED_NONE || x->owner != flow)
        return true;
    return m->filled == hoccl_observe(&x->words->reply.drained) || m->state != HOCCL_REFLECTED_OPEN || answered(x) ||
           hoccl_link_gone(&x->peer->link);
}

void hoccl_reflect_close(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    struct hoccl_reflector *x = of(flow);
    if (!x || x->owner != flow)
        return;
    say_end(x);
    x->owner = NULL;
    if (flow->mapping)
        hoccl_mapping_put(&gpu->mappings, flow->mapping);
    flow->mapping = NULL;
}
