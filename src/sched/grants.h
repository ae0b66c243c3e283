/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_GRANTS_H
#define HOCCL_SCHED_GRANTS_H

#include "sched/machine.h"
#include "sched/parts.h"

/*
 * How long the traffic between nodes takes as the runtime moves it: receivers grant places, senders fill them (p2p/wire.c),
 * in virtual time. Only NICs are modelled. Everybody starts at once.
 */
enum hoccl_grants_order {
	HOCCL_GRANTS_IN_ORDER,	/* the parts' own, two senders at a time: equal pieces by their stages, and a plan */
	HOCCL_GRANTS_LONGEST,	/* what has most left, some places to each sender: unequal pieces without a plan */
	HOCCL_GRANTS_TOTALS,	/* the sender (receiver) with most left in all, two at a time */
	HOCCL_GRANTS_ORDERS,
};

#define HOCCL_GRANTS_MOST 64			/* GPUs */
#define HOCCL_GRANTS_SLOT (UINT64_C(1) << 20)	/* the runtime's largest chunk, and how many places it has (p2p/pool.h) */
#define HOCCL_GRANTS_SLOTS 60u

/* What the network costs. */
struct hoccl_grants_cost {
	uint64_t chunk_ns;	/* a chunk of HOCCL_GRANTS_SLOT on a NIC; smaller ones in proportion, and start_ns each */
	uint64_t start_ns;
	uint64_t grant_ns;	/* from a grant's leaving until the first chunk for it can be sent */
	uint64_t free_ns;	/* from a chunk's arrival until it has been emptied and this is known */
	uint64_t ahead;		/* chunks of one flow that may be on the way at once */
};

/* Of a machine's NICs, with RDMA between them. */
struct hoccl_grants_cost hoccl_grants_cost_of(const struct hoccl_machine *machine);

/* When the last chunk has arrived. 0 or a status. */
int hoccl_grants_run(const struct hoccl_layout *layout, const struct hoccl_grants_cost *cost, const struct hoccl_parts *parts,
		     enum hoccl_grants_order order, uint64_t *ns, struct hoccl_plan_error *error);

/* The time of the busiest NIC. */
uint64_t hoccl_grants_bound(const struct hoccl_layout *layout, const struct hoccl_grants_cost *cost,
			    const struct hoccl_parts *parts);

#endif
