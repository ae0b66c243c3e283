/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_BROADCAST_H
#define HOCCL_SCHED_BROADCAST_H

#include "sched/layout.h"
#include "sched/machine.h"

#define HOCCL_BROADCAST_PIECES 64	/* most pieces of a message */

/*
 * A broadcast as a rule, not a table: the message is cut into pieces, and each piece goes down a tree of its own, from
 * rank to rank. Nothing is exchanged; every rank computes the same from the same arguments.
 */
struct hoccl_broadcast {
	const struct hoccl_layout *layout;	/* NULL: all ranks on one node, in their order */
	int ranks, root;
	uint64_t bytes, piece_bytes;	/* of the message, of a piece but the last */
	uint32_t pieces;		/* 0 for 0 bytes */
	int node_ways, rank_ways;	/* most copies that a rank passes on to other nodes, within its node */
	bool rails;			/* a node's ranks take turns, piece by piece, in sending and receiving over the wire */
	uint64_t ns;			/* from the first copy to the last one's end, by the model */
};

/* The shape that the model finds fastest. The layout, which must outlive it, may be NULL for one node. */
void hoccl_broadcast_plan(struct hoccl_broadcast *b, const struct hoccl_layout *layout, int ranks,
			  const struct hoccl_machine *machine, int root, uint64_t bytes);

/* The rank that passes this piece on to `rank`; -1 for the root. */
int hoccl_broadcast_from(const struct hoccl_broadcast *b, int rank, uint32_t piece);

/* The i-th rank to which `rank` passes this piece on, those on other nodes first; -1 when there are no more. */
int hoccl_broadcast_to(const struct hoccl_broadcast *b, int rank, uint32_t piece, int i);

#endif
