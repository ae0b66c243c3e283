/* SPDX-License-Identifier: Apache-2.0 */
/* In which order the flows of one operation take the wire: at the receiver who is granted slots first, at the sender whose
 * granted chunks are filled first. Both ends decide alone, by what they know themselves:
 *
 *   even     all that this rank has to send over the wire (or to receive) are equal pieces: in the order in which the
 *            operation has them, which is the planner's stages (sched/rotate.h): everyone is at the same stage, so nobody
 *            collides
 *   uneven   the one that has most left first: so that no long flow is left over at the end, when only two ranks would be
 *            busy
 *
 * Flows of different operations keep the order in which they came. */
#ifndef HOCCL_P2P_PRECEDENCE_H
#define HOCCL_P2P_PRECEDENCE_H

#include "p2p/flow.h"

/* Before they begin: which of an operation's n flows, a direction at a time, are uneven (hoccl_flow_wire). Parts of one
 * message are not. */
void hoccl_precedence_judge(struct hoccl_flow *flows, int n);

/* Put the flow into a list of flows (by wire.turn) that want the wire. One that has more or less left than before is
 * taken out and put in again. */
void hoccl_precedence_insert(struct hoccl_list *list, struct hoccl_flow *flow);

#endif
