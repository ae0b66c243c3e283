/* SPDX-License-Identifier: Apache-2.0 */
/* Which flows of an operation run: a group may hold very many messages, and whoever runs is looked at in each turn of the
 * loop. Of those to one peer, and of those from one, the first HOCCL_LINE_RUNS run; each that ends lets the next begin.
 *
 *   line:   first ─next─▶ · ─next─▶ · ─next─▶ · ─next─▶ ·        (one peer, one direction, in posting order)
 *           done          runs      runs      ▲ first->later
 *
 * Nobody waits for ever because of it: messages of a pair match in posting order, so the first that has not ended at one end
 * has not been overtaken at the other, and both let it run. Within a node the mailbox's ring, which is as long, says the same.
 * All fields are the progress thread's. */
#ifndef HOCCL_CORE_LINES_H
#define HOCCL_CORE_LINES_H

#include "p2p/flow.h"

#define HOCCL_LINE_RUNS HOCCL_SLOTS

/* The operation's streams have arrived: its n flows, or the first ones, go to the end of the running. Receives come first: each
 * of their grants is what a peer waits for. */
void hoccl_lines_start(struct hoccl_list *running, struct hoccl_flow *flows, int n);

/* The flow has ended: the next of its line, if there is one, goes to the end of the running. */
void hoccl_lines_advance(struct hoccl_list *running, struct hoccl_flow *flow);

#endif
