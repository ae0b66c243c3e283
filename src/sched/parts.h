/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_PARTS_H
#define HOCCL_SCHED_PARTS_H

#include "sched/layout.h"

#include <stddef.h>

struct hoccl_plan;

/* What goes between nodes, as messages in an order of all of them: each NIC takes its own in this order. */
struct hoccl_part_of {
	uint64_t bytes, offset;	/* offset within the flow (src, dst) */
	int16_t src, dst;
};

struct hoccl_parts {
	struct hoccl_part_of *part;
	size_t parts, room;
};

/* Whole flows in the rotation's order: what ranks do that know only their own rows. 0 or HOCCL_PLAN_MEMORY. */
int hoccl_parts_of_matrix(struct hoccl_parts *parts, const struct hoccl_layout *layout, const uint64_t *c);

/*
 * A plan's transfers, by stage; of those that end before they begin the earlier one first. Flows are cut at multiples of
 * `grain` only. The plan must be without relay. 0 or HOCCL_PLAN_MEMORY.
 */
int hoccl_parts_of_plan(struct hoccl_parts *parts, const struct hoccl_layout *layout, const uint64_t *c,
			const struct hoccl_plan *plan, uint64_t grain);

void hoccl_parts_fini(struct hoccl_parts *parts);

/* Of the order and all of its bytes, for comparison between ranks. */
uint64_t hoccl_parts_hash(const struct hoccl_parts *parts);

#endif
