/* SPDX-License-Identifier: Apache-2.0 */
/* What is looked at ten times a second: connections that stand still, places that nobody uses any more, and peers that must
 * hear that this rank lives. */
#include "p2p/wire.h"

#include "base/clock.h"
#include "base/setting.h"
#include "p2p/gpu.h"

#define ABANDONED_PART 8 /* of HOCCL_TIMEOUT: what is on the way when a communicator fails comes sooner */

/* Grants of this peer that have not been used, or that the engine is at, or a send of its that gets none for now, since other
 * flows come first or the engine is slow. (An engine that stands still is this rank's failure, of which the peer hears.) */
static bool owes(const struct hoccl_wire *w, const struct hoccl_far *far)
{
    for (const struct hoccl_list *l = w->filling.next; l != &w->filling; l = l->next)
        if (hoccl_entry(l, struct hoccl_pool_slot, link)->far == far)
            return true;
    for (const struct hoccl_list *l = w->sends.next; l != &w->sends; l = l->next) {
        const struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, wire.turn);
        if (f->peer->far == far && f->wire.granted > f->wire.started)
            return true;
    }
    for (const struct hoccl_list *l = w->receives.next; l != &w->receives; l = l->next)
        if (hoccl_entry(l, struct hoccl_flow, wire.turn)->peer->far == far)
            return true;
    return false;
}

static bool holds_abandoned(const struct hoccl_pool *pool, const struct hoccl_far *far)
{
    for (unsigned i = 0; i < pool->count; i++) {
        const struct hoccl_pool_slot *s = &pool->slot[i];
        if (s->far == far && s->state == HOCCL_POOL_GRANTED && (!s->flow || s->flow->wire.given_up))
            return true;
    }
    return false;
}

/* Of a communicator that has failed here and has not been aborted: the peer has places that it may still write, and does
 * not. It has failed too, or will, and other communicators need the places, which come back when the connection ends. */
static bool is_abandoned(const struct hoccl_wire *w, const struct hoccl_far *far, uint64_t now)
{
    uint64_t last = far->moved_at > far->given_up_at ? far->moved_at : far->given_up_at;
    last = last > w->gpu->resumed ? last : w->gpu->resumed;
    return far->given_up_at && now > last && now - last > hoccl_settings.timeout / ABANDONED_PART &&
           (holds_abandoned(&w->in, far) || holds_abandoned(&w->user_in, far));
}

void hoccl_wire_check(struct hoccl_wire *wire, uint64_t now)
{
    struct hoccl_word_head alive = {.kind = HOCCL_WORD_ALIVE};
    struct hoccl_list *l, *next;
    if (!hoccl_observe(&wire->open))
        return;
    hoccl_order_check(&wire->order, now, wire->gpu->resumed, hoccl_settings.timeout);
    for (l = wire->fars.next; l != &wire->fars; l = next) {
        struct hoccl_far *far = hoccl_entry(l, struct hoccl_far, link);
        next = l->next;
        bool waits = far->writing || !hoccl_list_empty(&far->filled);
        uint64_t last = far->moved_at > wire->gpu->resumed ? far->moved_at : wire->gpu->resumed;
        if (waits && now > last && now - last > hoccl_settings.timeout)
            hoccl_far_broken(far, "the network has not taken anything for %llu s (HOCCL_TIMEOUT), and %u chunks wait for it: the "
                             "peer's process may have been stopped, or its host", (unsigned long long)(hoccl_settings.timeout / HOCCL_S),
                             far->writing);
        else if (hoccl_far_is_open(far) && is_abandoned(wire, far, now))
            hoccl_far_broken(far, "this rank's communicator has failed, and the peer writes no more of what it was granted");
        else if (hoccl_far_is_open(far) && owes(wire, far))
            hoccl_far_say(far, &alive, sizeof alive);
    }
}
