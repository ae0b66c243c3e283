/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_CHOICE_H
#define HOCCL_SCHED_CHOICE_H

#include "sched/grants.h"

/*
 * Is it worth going by a plan? All who have the same matrix come to the same answer. Both ways are simulated as the
 * runtime would execute them, so a plan that is better on paper only is not taken.
 */
struct hoccl_choice {
	bool planned;
	bool list;			/* the best plan is a list schedule; else the stages of Algorithm 1 */
	struct hoccl_parts parts;	/* planned: in its order */
	uint64_t grants_ns, plan_ns;	/* by what each rank knows itself; by the best plan. 0: not computed */
	uint64_t bound_ns;		/* of the busiest NIC */
};

/* Of C (gpus × gpus bytes, row = source); traffic within nodes does not count. 0 or a status. */
int hoccl_choice_make(struct hoccl_choice *choice, const struct hoccl_layout *layout, const struct hoccl_grants_cost *cost,
		      const uint64_t *c, struct hoccl_plan_error *error);
void hoccl_choice_fini(struct hoccl_choice *choice);

#endif
