/* SPDX-License-Identifier: Apache-2.0 */
/* The mirror's half of a reflection: see mirror.h and reflection.h. */
#include "p2p/mirror.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "stream/parking.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_EVERY (10 * HOCCL_MS)
#define GONE_GRACE HOCCL_S
#define BLOCKED_MOST HOCCL_MS
#define LEAVE_GRACE (100 * HOCCL_MS)

void hoccl_mirror_init(struct hoccl_mirror *m)
{
    hoccl_list_init(&m->guests);
}

bool hoccl_mirror_news(const struct hoccl_mirror *m)
{
    return hoccl_observe(&m->board->status.knocks) != m->heard;
}

/* ---- whether, and as whose ---------------------------------------------------------------------------------------- */

/* What is parked here waits for copies of this process in any case, or nothing is. (A guest in this process would fare no better
 * by itself.) */
static bool may_copy(const struct hoccl_mirror *m, const struct hoccl_guest *g)
{
    if (!hoccl_parking_count() || g->peer->same_process)
        return true;
    for (const struct hoccl_list *l = m->running->next; l != m->running; l = l->next) {
        const struct hoccl_flow *f = hoccl_entry(l, const struct hoccl_flow, link);
        if (f->is_send && f->header.bytes)
            return true;
    }
    return false;
}

/* A flow of ours in the collective that the guest's message is a part of; NULL if there is none under way. */
static const struct hoccl_flow *companion(const struct hoccl_mirror *m, const struct hoccl_guest *g)
{
    const struct hoccl_reflection_ask *a = &g->words->ask;
    if (a->flow_kind == HOCCL_FLOW_SEND_RECV)
        return NULL;
    for (const struct hoccl_list *l = m->running->next; l != m->running; l = l->next) {
        const struct hoccl_flow *f = hoccl_entry(l, const struct hoccl_flow, link);
        if (f->header.kind == a->flow_kind && f->header.operation == a->operation)
            return f;
    }
    return NULL;
}

static void end(struct hoccl_guest *g, enum hoccl_reflection_status status)
{
    if (g->state >= HOCCL_GUEST_ENDING)
        return;
    g->status = status;
    g->state = HOCCL_GUEST_ENDING;
}

static void cannot(struct hoccl_guest *g, const char *what, const char *why)
{
    hoccl_log(HOCCL_LOG_INFO, "what rank %d sends to itself is not pushed back by this one: %s: %s", g->peer->rank, what, why);
    end(g, HOCCL_REFLECTION_NEVER);
}

/* The other end has had enough, or its process has gone. */
static bool left(struct hoccl_guest *g)
{
    uint64_t now = hoccl_now();
    if (hoccl_observe(&g->words->ask.tag) != g->number)
        return true;
    if (now - g->looked < LOOK_EVERY)
        return false;
    g->looked = now;
    return hoccl_link_gone(&g->peer->link);
}

/* ---- preparing: all of it may take several steps ------------------------------------------------------------------- */

static bool area_ready(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    struct hoccl_stage_view *v = &m->gpu->mirror.view;
    uint32_t state = hoccl_staged_prepare(m->gpu, v);
    if (state == HOCCL_STAGE_FAILED)
        cannot(g, "memory for it on this GPU", hoccl_driver_error(v->result));
    return state == HOCCL_STAGE_READY;
}

/* A range that is not known here: its descriptors have to come. */
static void want_range(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    struct hoccl_mappings *all = &m->gpu->mappings;
    uint32_t sent = hoccl_observe(&g->words->ask.sent);
    g->mapping = hoccl_mapping_find(all, g->peer->card.process, g->words->ask.buffer);
    if (g->mapping)
        return;
    hoccl_publish(&g->words->reply.wanted, g->number);
    if (sent != g->number)
        return;
    if (!hoccl_mappings_receive(all, g->peer->card.process, g->peer->link.parcels, m->gpu->device.ordinal))
        g->mapping = hoccl_mapping_find(all, g->peer->card.process, g->words->ask.buffer);
    if (!g->mapping)
        cannot(g, "opening its buffer", "its descriptors cannot be mapped");
}

static void find_mapping(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    const struct hoccl_reflection_ask *a = &g->words->ask;
    struct hoccl_handle handle;
    if (a->kind == HOCCL_MEMORY_RANGE) {
        want_range(m, g);
        return;
    }
    memcpy(handle.bytes, g->words->memory, sizeof handle.bytes);
    if (hoccl_mapping_get(&m->gpu->mappings, g->peer->card.process, a->buffer, &handle, &g->mapping))
        cannot(g, "opening its buffer", "no memory");
}

static bool buffer_open(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    const struct hoccl_reflection_ask *a = &g->words->ask;
    if (a->kind == HOCCL_MEMORY_IPC && g->peer->same_process) {
        g->to = a->base + a->offset;
        return true;
    }
    if (!g->mapping)
        find_mapping(m, g);
    if (!g->mapping)
        return false;
    uint32_t state = hoccl_observe(&g->mapping->state);
    if (state == HOCCL_MAPPING_FAILED)
        cannot(g, "opening its buffer", hoccl_driver_error(g->mapping->result));
    else if (state == HOCCL_MAPPING_ARRIVING &&
             hoccl_mappings_receive(&m->gpu->mappings, g->peer->card.process, g->peer->link.parcels, m->gpu->device.ordinal))
        cannot(g, "opening its buffer", "no memory");
    g->to = g->mapping->address + a->offset;
    return state == HOCCL_MAPPING_OPEN;
}

/* The other end must have our area's descriptor. */
static bool told(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    const struct hoccl_stage_view *v = &m->gpu->mirror.view;
    struct hoccl_dispatch *d = &g->dispatch;
    uint32_t state = hoccl_observe(&d->state);
    if (g->words->ask.key == v->key || state == HOCCL_DISPATCH_SENT)
        return true;
    if (state == HOCCL_DISPATCH_FAILED)
        cannot(g, "exporting memory", d->text);
    if (state != HOCCL_DISPATCH_NONE)
        return false;
    *d = (struct hoccl_dispatch){.state = HOCCL_DISPATCH_PENDING, .socket = g->peer->link.parcels, .key = v->key,
                                 .base = v->memory.address, .bytes = v->memory.bytes};
    if (!hoccl_submitter_give(&m->gpu->submitter, &(struct hoccl_job){.kind = HOCCL_JOB_DISPATCH, .dispatch = d}))
        d->state = HOCCL_DISPATCH_NONE;
    return false;
}

/* Where all are taken the other end is better off by itself. */
static void take_slots(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    uint64_t chunk = hoccl_reflection_chunk(g->words->ask.bytes), slot = hoccl_stage_slot_bytes(HOCCL_STAGE_GPU);
    struct hoccl_reflection_reply *r = &g->words->reply;
    unsigned span = 1;
    while (span * slot < chunk)
        span *= 2;
    g->count = hoccl_stage_take(&m->gpu->mirror, HOCCL_MIRROR_PLACES, span, g->slot);
    g->span = span;
    if (!g->count) {
        end(g, HOCCL_REFLECTION_OFF);
        return;
    }
    r->count = g->count;
    r->span = span;
    r->key = m->gpu->mirror.view.key;
    memcpy(r->slot, g->slot, sizeof r->slot);
    hoccl_publish(&r->drained, 0);
    hoccl_publish(&r->ready, g->number);
    g->state = HOCCL_GUEST_SERVING;
}

/* True: something has happened. */
static bool prepare(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    if (left(g))
        end(g, HOCCL_REFLECTION_OFF);
    else if (hoccl_gate_bars_push(&m->gpu->gate))
        cannot(g, "engines", "HOCCL_GATE=push keeps them for gates");
    else if (may_copy(m, g) && area_ready(m, g) && buffer_open(m, g) && told(m, g))
        take_slots(m, g);
    return g->state != HOCCL_GUEST_PREPARING;
}

/* ---- serving ------------------------------------------------------------------------------------------------------- */

/* What the other end says of chunk c must lie in its message, and in its place here. */
static bool start_chunk(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    uint32_t i = g->started % g->count;
    const struct hoccl_flow *f = companion(m, g);
    uint64_t at = g->words->place[i].at, n = g->words->place[i].bytes, all = g->words->ask.bytes;
    uint64_t slot = hoccl_stage_slot_bytes(HOCCL_STAGE_GPU);
    if (!n || n > g->span * slot || at > all || n > all - at)
        return false;
    g->transfer[i] = (struct hoccl_transfer){.to = g->to + at, .from = m->gpu->mirror.view.memory.address + g->slot[i] * slot,
                                             .bytes = n, .party = f ? f->op : (const void *)g, .order = f ? 0 : g->started, .urgent = f != NULL,
                                             .hold = f ? f->hold : m->hold};
    hoccl_engine_add(&m->gpu->engine[HOCCL_PUSH], &g->transfer[i]);
    g->started++;
    return true;
}

/* Chunks that are back, in their order. */
static bool land(struct hoccl_guest *g)
{
    uint32_t before = g->landed;
    while (g->landed != g->started && hoccl_transfer_complete(&g->transfer[g->landed % g->count]) &&
           !g->transfer[g->landed % g->count].result)
        g->landed++;
    if (g->landed == before)
        return false;
    hoccl_publish(&g->words->reply.drained, g->landed);
    return true;
}

static bool refused(const struct hoccl_guest *g)
{
    return g->landed != g->started && g->transfer[g->landed % g->count].result;
}

/* Between two operations of ours there is a moment in which nothing needs copies and a stream is parked: that is no reason to stop. */
static bool blocked(const struct hoccl_mirror *m, struct hoccl_guest *g)
{
    if (may_copy(m, g))
        g->blocked = 0;
    else if (!g->blocked)
        g->blocked = hoccl_now();
    if (g->blocked && hoccl_now() - g->blocked > BLOCKED_MOST && hoccl_settings.test_mirror != HOCCL_MIRROR_WAIT)
        end(g, HOCCL_REFLECTION_OFF);
    return g->blocked;
}

static bool serve(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    bool moved = land(g);
    uint32_t filled = hoccl_observe(&g->words->ask.filled);
    if (refused(g)) {
        cannot(g, "copying a chunk", hoccl_driver_error(g->transfer[g->landed % g->count].result));
    } else if (left(g)) {
        end(g, g->landed == filled ? HOCCL_REFLECTION_DONE : HOCCL_REFLECTION_OFF);
    } else if (filled != g->started && blocked(m, g)) {
        return moved;
    }
    while (g->state == HOCCL_GUEST_SERVING && filled != g->started && g->started - g->landed < g->count) {
        moved = true;
        if (!start_chunk(m, g))
            cannot(g, "copying a chunk", "its place makes no sense");
    }
    return moved || g->state != HOCCL_GUEST_SERVING;
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

static void cancel(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    for (unsigned i = 0; i < HOCCL_MIRROR_PLACES; i++)
        if (g->transfer[i].link.next)
            hoccl_engine_cancel(&m->gpu->engine[HOCCL_PUSH], &g->transfer[i]);
}

static bool quiet(const struct hoccl_guest *g)
{
    unsigned flight = 0;
    for (unsigned i = 0; i < HOCCL_MIRROR_PLACES; i++)
        flight += g->transfer[i].flight;
    return !flight && hoccl_observe(&g->dispatch.state) != HOCCL_DISPATCH_PENDING &&
           !(g->mapping && hoccl_observe(&g->mapping->state) == HOCCL_MAPPING_OPENING);
}

static void answer(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    struct hoccl_reflection_reply *r = &g->words->reply;
    if (g->mapping)
        hoccl_mapping_put(&m->gpu->mappings, g->mapping);
    g->mapping = NULL;
    hoccl_publish(&r->ready, g->number + 1);
    hoccl_publish(&r->wanted, g->number + 1);
    r->status = g->status;
    hoccl_publish(&r->answer, g->number);
    g->state = HOCCL_GUEST_ANSWERED;
    g->answered = hoccl_now();
}

static void forget(struct hoccl_guest *g)
{
    hoccl_list_remove(&g->link);
    free(g);
}

static void admit(struct hoccl_mirror *m, int peer);

/* The other end pushes into its slots no more. What a process has begun ends soon after it. Its next ask may be there. */
static bool part(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    int peer = g->peer->rank;
    if (!left(g) || (hoccl_observe(&g->words->ask.tag) == g->number && hoccl_now() - g->answered < GONE_GRACE))
        return false;
    if (g->count)
        hoccl_stage_give(&m->gpu->mirror, g->count, g->span, g->slot);
    forget(g);
    admit(m, peer);
    return true;
}

static bool step(struct hoccl_mirror *m, struct hoccl_guest *g)
{
    bool moved = false;
    if (g->state == HOCCL_GUEST_PREPARING)
        moved = prepare(m, g);
    if (g->state == HOCCL_GUEST_SERVING)
        moved |= serve(m, g);
    if (g->state == HOCCL_GUEST_ENDING) {
        cancel(m, g);
        moved |= land(g);
        if (quiet(g))
            answer(m, g);
    }
    return g->state == HOCCL_GUEST_ANSWERED ? part(m, g) : moved;
}

/* ---- */

static bool known(const struct hoccl_mirror *m, const struct hoccl_reflection *words)
{
    for (const struct hoccl_list *l = m->guests.next; l != &m->guests; l = l->next)
        if (hoccl_entry(l, const struct hoccl_guest, link)->words == words)
            return true;
    return false;
}

/* One that has ended before it was seen is answered too. */
static void admit(struct hoccl_mirror *m, int peer)
{
    struct hoccl_reflection *words = &m->board->ring[peer].reflection;
    uint32_t n = hoccl_observe(&words->ask.tag) & ~1u;
    if (n == words->reply.answer || known(m, words))
        return;
    struct hoccl_guest *g = hoccl_alloc(sizeof *g, "a reflection");
    if (!g) {
        words->reply.status = HOCCL_REFLECTION_OFF;
        hoccl_publish(&words->reply.answer, n);
        return;
    }
    *g = (struct hoccl_guest){.peer = &m->peers[peer], .words = words, .number = n};
    hoccl_list_append(&m->guests, &g->link);
}

bool hoccl_mirror_step(struct hoccl_mirror *m)
{
    struct hoccl_list *next;
    bool moved = false;
    uint32_t knocks = hoccl_observe(&m->board->status.knocks);
    for (int p = 0; p < m->size && knocks != m->heard; p++)
        if (p != m->rank && !m->peers[p].far)
            admit(m, p);
    m->heard = knocks;
    for (struct hoccl_list *l = m->guests.next; l != &m->guests; l = next) {
        next = l->next;
        moved |= step(m, hoccl_entry(l, struct hoccl_guest, link));
    }
    return moved;
}

bool hoccl_mirror_break(struct hoccl_mirror *m)
{
    struct hoccl_list *next;
    for (struct hoccl_list *l = m->guests.next; l != &m->guests; l = next) {
        struct hoccl_guest *g = hoccl_entry(l, struct hoccl_guest, link);
        next = l->next;
        end(g, HOCCL_REFLECTION_OFF);
        if (!step(m, g) && g->state == HOCCL_GUEST_ANSWERED && hoccl_now() - g->answered > LEAVE_GRACE)
            forget(g); /* its slots with it: another communicator must not be given them */
    }
    return hoccl_list_empty(&m->guests);
}

const struct hoccl_guest *hoccl_mirror_busy(const struct hoccl_mirror *m)
{
    for (const struct hoccl_list *l = m->guests.next; l != &m->guests; l = l->next) {
        const struct hoccl_guest *g = hoccl_entry(l, const struct hoccl_guest, link);
        if (!quiet(g))
            return g;
    }
    return NULL;
}
