/* SPDX-License-Identifier: Apache-2.0 */
/* See early.h. */
#include "p2p/early.h"

#include "base/clock.h"
#include "base/setting.h"
#include "p2p/registered.h"

static bool is_off(void)
{
    return hoccl_settings.test_break == HOCCL_BREAK_NO_EAGER;
}

bool hoccl_early_may(const struct hoccl_flow *flow)
{
    bool waiting = flow->state == HOCCL_FLOW_WAITING && !flow->wire.early && !flow->after;
    return waiting && !is_off() && flow->header.bytes && (flow->is_send || !flow->memory.registered) &&
           hoccl_far_is_open(flow->peer->far);
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

void hoccl_early_want(struct hoccl_flow *flow)
{
    if (!is_off() && !flow->wire.registered)
        hoccl_list_append(&flow->peer->far->wire->early, &flow->wire.turn);
}

/* Both streams are there. */
static void settle(struct hoccl_flow *f)
{
    struct hoccl_wire *w = f->peer->far->wire;
    hoccl_early_drop(f);
    if (f->wire.granted < f->wire.chunks)
        hoccl_wire_want(w, f);
}

void hoccl_early_met(struct hoccl_flow *flow)
{
    flow->wire.met = true;
    if (!flow->wire.early)
        settle(flow);
}

void hoccl_early_hold(struct hoccl_pool_slot *slot)
{
    slot->state = HOCCL_POOL_HELD;
    hoccl_fetch_add(&hoccl_wire_counts.held, 1);
}

void hoccl_early_drop(struct hoccl_flow *flow)
{
    hoccl_list_remove(&flow->wire.turn);
    flow->peer->far->wire->lent -= flow->wire.lent;
    flow->wire.lent = 0;
}

/* How many of the first chunks may have a slot now. */
static unsigned room(const struct hoccl_wire *w, const struct hoccl_flow *f)
{
    unsigned few = HOCCL_POOL_EARLY - w->lent, n = f->wire.chunks, ahead = f->peer->far->ahead;
    unsigned idle = w->in.idle > HOCCL_WIRE_KEPT_FOR_LARGE ? w->in.idle - HOCCL_WIRE_KEPT_FOR_LARGE : 0;
    n = n < ahead ? n : ahead;
    n = n < few ? n : few;
    return n < idle ? n : idle;
}

static void lend(struct hoccl_wire *w, struct hoccl_flow *f, unsigned n)
{
    if (hoccl_wire_watch)
        hoccl_wire_watch(f);
    hoccl_list_remove(&f->wire.turn);
    f->wire.lent = n;
    w->lent += n;
    hoccl_fetch_add(&hoccl_wire_counts.early, n);
    hoccl_at_least(&hoccl_wire_counts.lent, w->lent);
    hoccl_wire_grant_slots(w, f, n);
}

bool hoccl_early_give(struct hoccl_wire *wire)
{
    struct hoccl_list *l, *next;
    bool moved = false;
    for (l = wire->early.next; l != &wire->early; l = next) {
        struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, wire.turn);
        unsigned n = room(wire, f);
        next = l->next;
        if (!n)
            break;
        if (!hoccl_far_is_open(f->peer->far) || hoccl_hold_keeps(f->hold))
            continue;
        lend(wire, f, n);
        hoccl_hold_passed(f->hold);
        moved = true;
    }
    return moved;
}

/* What has been held is copied; a claim that does not agree has waited for this moment. */
static void receive_reached(struct hoccl_flow *f)
{
    struct hoccl_far *far = f->peer->far;
    struct hoccl_wire *w = far->wire;
    struct hoccl_flow_header theirs;
    bool early;
    for (unsigned i = 0; i < w->in.count && f->wire.arrived; i++)
        if (w->in.slot[i].flow == f && w->in.slot[i].state == HOCCL_POOL_HELD)
            hoccl_wire_empty(w, &w->in.slot[i]);
    if (f->wire.chunks && f->wire.met)
        settle(f);
    else if (hoccl_far_claimed(far, f, &theirs, &early))
        hoccl_wired_meet(f, &theirs, early);
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

static void send_reached(struct hoccl_flow *f)
{
    struct hoccl_far *far = f->peer->far;
    struct hoccl_word_head reached = {.kind = HOCCL_WORD_REACHED, .number = f->number};
    hoccl_registered_begin(f);
    if (f->wire.granted)
        hoccl_wire_allow(far->wire, f);
    if (!f->wire.chunks || f->wire.granted < f->wire.chunks)
        hoccl_far_say(far, &reached, sizeof reached);
}

void hoccl_early_reached(struct hoccl_flow *flow)
{
    flow->wire.early = false;
    if (flow->is_send)
        send_reached(flow);
    else
        receive_reached(flow);
}
