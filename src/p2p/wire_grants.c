/* SPDX-License-Identifier: Apache-2.0 */
/* How many places a receive is granted, and when (wire.h says who comes first). */
#include "p2p/early.h"

#include "base/clock.h"
#include "p2p/precedence.h"
#include "p2p/registered.h"

#include <stddef.h>

#define UNEVEN_MOST (HOCCL_POOL_SLOTS * 5 / 8)  /* slots for flows that need no turn although they are large */
#define UNEVEN_LEAST 3u                         /* each: less does not cover the time that a grant takes */
#define DEEPEST ((HOCCL_POOL_SLOTS - HOCCL_WIRE_KEPT_FOR_LARGE - 8) / HOCCL_WIRE_LARGE) /* each: some are left for flows of one chunk */
_Static_assert(DEEPEST <= HOCCL_GRANT_MOST, "a grant holds them");
_Static_assert(HOCCL_GRANT_MOST + DEEPEST + 8 <= HOCCL_POOL_SLOTS, "also when one that was alone is joined by another");
#define USER_AHEAD (HOCCL_POOL_SLOTS * 3 / 8) /* chunks that a registered receive lets in at once: they hold no memory */
_Static_assert(USER_AHEAD <= HOCCL_GRANT_MOST && HOCCL_WIRE_LARGE * USER_AHEAD < HOCCL_POOL_SLOTS, "small messages find room");

/* Flows of equal size take turns, two at a time. Of unequal ones all who have claimed are granted some: a receiver that
 * grants two waits for these two where their senders are busy with others (doc/performance-planner.md has the figures). */
static bool takes_turn(const struct hoccl_flow_wire *p)
{
    return p->chunks > 1 && !p->uneven;
}

/* The most places that the flow may have at once: all that its connection is worth if no other large one has the turn. */
static unsigned window(const struct hoccl_wire *w, const struct hoccl_flow *f)
{
    unsigned ahead = f->peer->far->ahead, others = (unsigned)w->receiving - f->wire.turned;
    unsigned most = f->wire.registered ? USER_AHEAD : others && ahead > DEEPEST ? DEEPEST : ahead;
    unsigned share = w->uneven ? UNEVEN_MOST / w->uneven : most;
    if (!f->wire.uneven || share >= most)
        return most;
    return share > UNEVEN_LEAST ? share : most < UNEVEN_LEAST ? most : UNEVEN_LEAST;
}

/* How many places the flow may have now. Few at a time, but not one by one: a message a chunk would cost as much as the
 * chunk. */
static unsigned room(const struct hoccl_wire *w, const struct hoccl_flow *f)
{
    const struct hoccl_flow_wire *p = &f->wire;
    unsigned out = p->granted - p->landed, most = window(w, f), left = p->chunks - p->granted;
    bool user = hoccl_registered_run(f, p->granted, 1);
    unsigned kept = p->chunks == 1 ? user ? 0 : HOCCL_WIRE_KEPT_FOR_LARGE : p->uneven ? HOCCL_POOL_SLOTS - UNEVEN_MOST : 0;
    unsigned have = user ? w->user_in.idle : w->in.idle, idle = have > kept ? have - kept : 0, n = most > out ? most - out : 0;
    n = n < left ? n : left;
    n = n < idle ? n : idle;
    bool few = n < left && n < hoccl_pipe_batch(most) && out > 1;
    return few ? 0 : n;
}

void hoccl_wire_grant_slots(struct hoccl_wire *wire, struct hoccl_flow *flow, unsigned n)
{
    struct hoccl_flow_wire *p = &flow->wire;
    struct hoccl_far *far = flow->peer->far;
    struct hoccl_word_grant g = {.head = {HOCCL_WORD_GRANT, (uint16_t)n, flow->number}, .chunk = p->chunk,
                                 .early = p->early};
    for (unsigned i = 0; i < n; i++) {
        struct hoccl_pool_slot *s = hoccl_pool_take(&wire->in);
        uint64_t at = (uint64_t)p->granted * p->chunk, left = flow->header.bytes - at;
        s->state = HOCCL_POOL_GRANTED;
        s->generation++;
        s->far = far;
        s->flow = flow;
        s->chunk = p->granted++;
        s->bytes = left < p->chunk ? (uint32_t)left : p->chunk;
        g.slot[i] = hoccl_slot_word(s->number, s->generation);
    }
    p->granted_at = hoccl_now();
    hoccl_fetch_add(&hoccl_wire_counts.granted, n);
    hoccl_at_least(&hoccl_wire_counts.deepest, p->granted - p->landed);
    hoccl_far_say(far, &g, offsetof(struct hoccl_word_grant, slot) + n * sizeof *g.slot);
}

/* Up to n places, at least one: of a registered receive what lies in one segment, and what lies across two, by turns. */
static void grant(struct hoccl_wire *w, struct hoccl_flow *f, unsigned n)
{
    struct hoccl_flow_wire *p = &f->wire;
    if (!p->registered) {
        hoccl_wire_grant_slots(w, f, n);
        return;
    }
    for (unsigned run; n; n -= run) {
        run = hoccl_registered_run(f, p->granted, n);
        if (run > w->user_in.idle || (!run && !w->in.idle))
            return;
        if (run)
            hoccl_registered_grant(w, f, run);
        else
            hoccl_wire_grant_slots(w, f, run = 1);
    }
}

/* After a grant: is it still one of those that want more, and where among them? */
static void put_back(struct hoccl_wire *w, struct hoccl_flow *f)
{
    hoccl_list_remove(&f->wire.turn);
    if (f->wire.granted < f->wire.chunks)
        hoccl_precedence_insert(&w->receives, f);
    else
        w->uneven -= f->wire.uneven;
}

/* A foreground phase holds the flow up: nothing more is asked for, and the turn is others' meanwhile. What has been granted is
 * taken out of its slots all the same, for they are everybody's. */
static bool held(struct hoccl_wire *w, struct hoccl_flow *f)
{
    struct hoccl_flow_wire *p = &f->wire;
    if (!hoccl_hold_keeps(f->hold))
        return false;
    if (p->turned && p->granted == p->arrived) {
        p->turned = false;
        w->receiving--;
    }
    return true;
}

bool hoccl_wire_give_grants(struct hoccl_wire *wire)
{
    struct hoccl_list *l, *next;
    bool moved = hoccl_early_give(wire);
    for (l = wire->receives.next; l != &wire->receives; l = next) {
        struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, wire.turn);
        struct hoccl_flow_wire *p = &f->wire;
        next = l->next;
        bool waits = takes_turn(p) && !p->turned && wire->receiving == HOCCL_WIRE_LARGE;
        if (held(wire, f) || !hoccl_far_is_open(f->peer->far) || waits)
            continue;
        unsigned n = room(wire, f);
        if (!n)
            continue;
        if (takes_turn(p) && !p->turned) {
            p->turned = true;
            hoccl_at_least(&hoccl_wire_counts.receiving, (uint64_t)++wire->receiving);
        }
        if (hoccl_wire_watch && !p->granted)
            hoccl_wire_watch(f);
        grant(wire, f, n);
        put_back(wire, f);
        hoccl_hold_passed(f->hold);
        moved = true;
    }
    return moved;
}
