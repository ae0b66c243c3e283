/* SPDX-License-Identifier: Apache-2.0 */
/* Eager: two ranks of different nodes agree on a flow before their streams get there, so that its bytes leave as soon as the
 * sender's stream does, and wait at the receiver for the other's. The words (words.h) are those of every flow, said sooner:
 *
 *   sender      the operation before it runs: CLAIM, early ──stream there──▶ chunks for what was granted, REACHED if that is not all
 *   receiver    the operation before it runs: in the table ──stream there──▶ what is held is copied out
 *
 *   receive  ──claim and receive both known──▶ wants early slots ──granted──▶ has some of them lent
 *               both streams there, at any time ──▶ like any other: lent are its own, it wants what is missing by its turn
 *
 * The sender's stream is there when its claim was not early, when it says REACHED, or when a chunk comes. For the sender the
 * receiver's is there when a grant is not early.
 *
 * What may go wrong with slots that nobody can empty yet: they are few (HOCCL_POOL_EARLY, counted in wire->lent) and leave a quarter of
 * the pool free; who finds none claims and is granted as if there were nothing early. So two ranks whose streams wait for
 * one another through many other flows cannot take the pool from these (pool.h has the argument). Registered receives are
 * never granted early: their places are the user's memory, which is his until the stream is there.
 *
 * None is lent to a flow that a foreground phase holds up, as no other place is, nor over a connection that has ended: its
 * slots have come back, and those lent later would not.
 *
 * Two ends that do not agree say so when both streams are there, as ever.
 *
 * Owner: the progress thread. */
#ifndef HOCCL_P2P_EARLY_H
#define HOCCL_P2P_EARLY_H

#include "p2p/wire.h"

/* Its stream has not reached it: may it be spoken of? */
bool hoccl_early_may(const struct hoccl_flow *flow);

/* Its stream has reached a flow that is in its table early. */
void hoccl_early_reached(struct hoccl_flow *flow);

/* Claim and receive have met, and one of the streams is not there; the sender's is there now. */
void hoccl_early_want(struct hoccl_flow *flow);
void hoccl_early_met(struct hoccl_flow *flow);

/* A chunk has come for a receive whose stream is not there. */
void hoccl_early_hold(struct hoccl_pool_slot *slot);

/* It is given up, and off the wire's lists. */
void hoccl_early_drop(struct hoccl_flow *flow);

/* Grants that may be given early now. True if any was. */
bool hoccl_early_give(struct hoccl_wire *wire);

#endif
