/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_PLAN_GRANTS_H
#define HOCCL_PLAN_GRANTS_H

#include "sched/layout.h"
#include "sched/machine.h"

/*
 * The traffic between nodes without a plan, by grants alone, in virtual time: each end decides by what it knows. Only
 * NICs are modelled.
 */
enum hoccl_grants_order {
	HOCCL_GRANTS_STAGES,	/* in the order of the rotation, two senders at a time: the runtime, for equal pieces */
	HOCCL_GRANTS_LONGEST,	/* the flow with most left, some slots to each sender: the runtime, for unequal ones */
	HOCCL_GRANTS_TOTALS,	/* the sender (receiver) with most left in all, two at a time */
	HOCCL_GRANTS_ORDERS,
};

extern const char *const hoccl_grants_names[HOCCL_GRANTS_ORDERS];

#define HOCCL_GRANTS_MOST 64	/* GPUs */

/* When the last chunk has arrived; *bound_ns (may be NULL) is the time of the busiest NIC. 0 or a status. */
int hoccl_grants_run(const struct hoccl_layout *layout, const struct hoccl_machine *machine, const uint64_t *c,
		     enum hoccl_grants_order order, uint64_t *ns, uint64_t *bound_ns, struct hoccl_plan_error *error);

#endif
