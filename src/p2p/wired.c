/* SPDX-License-Identifier: Apache-2.0 */
/* A flow to or from a rank of another node. What moves is decided for all flows together (wire.c); here one flow begins,
 * ends, and learns that its peer will not come.
 *
 *   send:     WAITING ──connection open: CLAIM──▶ OFFERED ──every chunk has left the buffer, or ANSWER DONE──▶ DONE
 *   receive:  WAITING ──in the table of receives──▶ OFFERED ──claim: headers agree──▶ (grants) ──every chunk has landed──▶ DONE
 *                                                       └──zero bytes: ANSWER DONE──▶ DONE
 *                                                       └──they differ: ANSWER MISMATCH──▶ the error
 *
 * A staged receive needs nothing of its peer to end after a failure: only this rank's own engine writes into its buffer. What
 * still arrives stays in the slots. Registered memory is the network's until what was granted has come and what was given has
 * been written, or the connection has ended, which an abort sees to at once, and else wire_check.c when nothing comes any
 * more. So an abort waits for no peer across nodes. */
#include "p2p/early.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "p2p/gpu.h"
#include "p2p/registered.h"

#include <stdio.h>

struct hoccl_flow *hoccl_wired_find(struct hoccl_list *table, uint32_t number)
{
    struct hoccl_list *head = &table[number % HOCCL_FAR_TABLE];
    for (struct hoccl_list *l = head->next; l != head; l = l->next) {
        struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, wire.table);
        if (f->number == number)
            return f;
    }
    return NULL;
}

static void enter(struct hoccl_flow *f, struct hoccl_list *table)
{
    hoccl_list_init(&f->wire.turn);
    hoccl_list_append(&table[f->number % HOCCL_FAR_TABLE], &f->wire.table);
    f->path = HOCCL_PATH_WIRE;
}

static void answer(struct hoccl_flow *f, enum hoccl_answer_status status)
{
    struct hoccl_word_answer a = {.head = {HOCCL_WORD_ANSWER, (uint16_t)status, f->number}, .header = f->header};
    f->wire.answer = status;
    hoccl_far_say(f->peer->far, &a, sizeof a);
}

static void say_path(struct hoccl_flow *f)
{
    const struct hoccl_far *far = f->peer->far;
    char why[480];
    snprintf(why, sizeof why, "it is on another node (%s): %s, %d lane%s, %u chunks on the way at most, %s%s",
             f->peer->card.host, far->wire->transport->name, far->lanes, far->lanes == 1 ? "" : "s", far->ahead,
             f->wire.registered ? "this rank's buffer is registered" : "slots ", f->wire.registered ? "" : far->wire->slots);
    hoccl_flow_say_path(f, why);
}

void hoccl_wired_meet(struct hoccl_flow *flow, const struct hoccl_flow_header *theirs, bool early)
{
    struct hoccl_flow_wire *p = &flow->wire;
    struct hoccl_far *far = flow->peer->far;
    if (!hoccl_flow_agrees(flow, theirs)) {
        p->theirs = *theirs;
        answer(flow, HOCCL_ANSWER_MISMATCH);
        return;
    }
    if (!flow->header.bytes) {
        answer(flow, HOCCL_ANSWER_DONE);
        return;
    }
    p->chunk = (uint32_t)hoccl_pipe_chunk(&far->pipe, flow->header.bytes, HOCCL_POOL_SLOT, far->ahead);
    p->chunks = (uint32_t)((flow->header.bytes + p->chunk - 1) / p->chunk);
    p->met = !early;
    if (early || p->early)
        hoccl_early_want(flow);
    else
        hoccl_wire_want(far->wire, flow);
}

/* ---- the end of a connection ------------------------------------------------------------------------------------- */

HOCCL_Result hoccl_wired_check_peer(struct hoccl_flow *flow)
{
    const struct hoccl_far *far = flow->peer->far;
    char name[160];
    if (far->state != HOCCL_FAR_BROKEN)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_PEER, "%s: %llu of %llu bytes moved, then the connection broke: %s",
                      hoccl_flow_name(flow, name, sizeof name), (unsigned long long)hoccl_flow_moved(flow),
                      (unsigned long long)flow->header.bytes, far->text);
}

/* It has begun, it is the peer's turn (to use its grants, to grant more), and the peer says nothing, not even that it
 * lives. */
static HOCCL_Result check_silence(const struct hoccl_flow *f)
{
    const struct hoccl_flow_wire *p = &f->wire;
    const struct hoccl_far *far = f->peer->far;
    uint64_t now = hoccl_now(), last = far->heard_at > p->granted_at ? far->heard_at : p->granted_at;
    uint64_t resumed = far->wire->gpu->resumed;
    bool theirs = f->is_send ? p->started == p->granted : p->granted > p->arrived;
    char name[160];
    last = last > resumed ? last : resumed;
    last = last > f->since ? last : f->since; /* it may have been granted places long before its stream was there */
    if (!theirs || now < last || now - last <= hoccl_settings.timeout)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_TIMEOUT, "%s: the peer has begun and has been silent for %llu s (HOCCL_TIMEOUT), %llu of %llu bytes "
                      "moved: its process may have been stopped, or the network", hoccl_flow_name(f, name, sizeof name),
                      (unsigned long long)((now - last) / HOCCL_S), (unsigned long long)hoccl_flow_moved(f),
                      (unsigned long long)f->header.bytes);
}

/* Chunks are missing. Before the two ends have met, patience, which begins when this rank has used what it was granted. */
static HOCCL_Result wait_peer(struct hoccl_flow *f)
{
    HOCCL_Result r = hoccl_flow_check_peer(f);
    if (r)
        return r;
    if (f->is_send && f->wire.started < f->wire.granted) {
        f->since = hoccl_recently();
        return HOCCL_SUCCESS;
    }
    return f->wire.met ? check_silence(f) : hoccl_flow_check_patience(f);
}

HOCCL_Result hoccl_wired_verdict(const struct hoccl_flow *flow)
{
    bool open = flow->state == HOCCL_FLOW_OFFERED && flow->wire.answer == HOCCL_ANSWER_MISMATCH;
    return open ? hoccl_flow_mismatch(flow, &flow->wire.theirs) : HOCCL_SUCCESS;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Into the table, ahead of its stream or with it. */
static void tell(struct hoccl_flow *f, bool early)
{
    struct hoccl_far *far = f->peer->far;
    struct hoccl_flow_header theirs;
    bool theirs_early;
    f->wire.early = early;
    enter(f, f->is_send ? far->sends : far->receives);
    if (f->is_send) {
        struct hoccl_word_claim c = {.head = {HOCCL_WORD_CLAIM, early, f->number}, .header = f->header};
        hoccl_far_say(far, &c, sizeof c);
    } else if (hoccl_far_claimed(far, f, &theirs, &theirs_early)) {
        hoccl_wired_meet(f, &theirs, theirs_early);
    }
}

bool hoccl_wired_foretell(struct hoccl_flow *flow)
{
    bool may = hoccl_early_may(flow);
    if (may)
        tell(flow, true);
    return may;
}

static HOCCL_Result begin(struct hoccl_flow *f, bool *moved)
{
    if (!f->wire.early && !hoccl_far_is_open(f->peer->far)) {
        if (!f->since)
            f->since = hoccl_recently();
        return wait_peer(f);
    }
    *moved = true;
    f->state = HOCCL_FLOW_OFFERED;
    f->since = hoccl_recently();
    if (f->wire.early) {
        hoccl_early_reached(f);
        return HOCCL_SUCCESS;
    }
    hoccl_registered_begin(f);
    tell(f, false);
    return HOCCL_SUCCESS;
}

static HOCCL_Result refused(const struct hoccl_flow *f)
{
    char name[160];
    return hoccl_fail(HOCCL_ERR_DEVICE, "%s: copying a chunk %s a slot: %s", hoccl_flow_name(f, name, sizeof name),
                      f->is_send ? "into" : "out of", hoccl_driver_error(f->wire.result));
}

static HOCCL_Result unflushed(const struct hoccl_flow *f)
{
    const struct hoccl_wire *wire = f->peer->far->wire;
    char name[160];
    if (f->wire.registered)
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s: what has arrived on its own GPU %d cannot be read: %s",
                          hoccl_flow_name(f, name, sizeof name), wire->gpu->device.ordinal, wire->unflushed);
    return hoccl_fail(HOCCL_ERR_DEVICE, "%s: what has arrived on the %s cannot be read: %s", hoccl_flow_name(f, name, sizeof name),
                      wire->place.name, wire->unflushed);
}

static HOCCL_Result advance(struct hoccl_flow *f, bool *moved)
{
    struct hoccl_flow_wire *p = &f->wire;
    if (p->result)
        return refused(f);
    if (p->unflushed)
        return unflushed(f);
    if (p->answer == HOCCL_ANSWER_MISMATCH)
        return hoccl_flow_mismatch(f, &p->theirs);
    if (p->answer == HOCCL_ANSWER_DONE || (p->chunks && p->landed == p->chunks)) {
        hoccl_list_remove(&p->table);
        if (p->chunks && !hoccl_flow_path_said(f))
            say_path(f);
        hoccl_registered_end(f);
        f->state = HOCCL_FLOW_DONE;
        *moved = true;
        return HOCCL_SUCCESS;
    }
    bool theirs = !p->chunks || (f->is_send ? p->started : p->arrived) < p->chunks;
    if (f->is_send && !p->copying && !p->network)
        theirs = true; /* what was given to the network is not there any more: the connection has ended */
    return theirs ? wait_peer(f) : HOCCL_SUCCESS; /* engines have the rest, or the network, which is watched by itself (wire_check.c) */
}

HOCCL_Result hoccl_wired_step(struct hoccl_flow *flow, bool *moved)
{
    return flow->state == HOCCL_FLOW_WAITING ? begin(flow, moved) : advance(flow, moved);
}

void hoccl_wired_cancel(struct hoccl_flow *flow)
{
    if (flow->state != HOCCL_FLOW_OFFERED && !flow->wire.early)
        return;
    hoccl_list_remove(&flow->wire.table);
    flow->wire.given_up = true;
    flow->peer->far->given_up_at = hoccl_now();
    hoccl_wire_drop(flow->peer->far->wire, flow);
}

bool hoccl_wired_drain(struct hoccl_flow *flow)
{
    if (flow->wire.copying || flow->wire.network)
        return false;
    if (flow->wire.registered || flow->wire.into)
        hoccl_registered_end(flow);
    if (flow->state != HOCCL_FLOW_DONE)
        flow->state = HOCCL_FLOW_FAILED;
    return true;
}
