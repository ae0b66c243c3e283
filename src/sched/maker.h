/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_MAKER_H
#define HOCCL_SCHED_MAKER_H

#include "sched/fill.h"
#include "sched/peel.h"
#include "sched/plan.h"

/* What the making of one plan shares between its files; not for users of the planner. */
struct hoccl_maker {
	const struct hoccl_layout *layout;
	const struct hoccl_machine *machine;
	struct hoccl_traffic traffic;
	struct hoccl_wires wires;
	uint64_t bound_ns, relay_bound_ns;
};

/* Both fill an empty plan but for bounds and relay. 0 or HOCCL_PLAN_MEMORY; the plan is to be freed in any case. */
int hoccl_maker_list(struct hoccl_maker *maker, struct hoccl_plan *plan);
int hoccl_maker_peel(struct hoccl_maker *maker, struct hoccl_plan *plan);

/* The wires as a demand. */
struct hoccl_demand hoccl_maker_demand(const struct hoccl_maker *maker);

/*
 * Turns NIC-to-NIC transfers into parts of flows (with relay a transfer is several). `stage_of` gives each transfer's
 * stage; NULL: the window of window_ns it starts in.
 */
int hoccl_maker_wires(struct hoccl_maker *maker, struct hoccl_plan *plan, const struct hoccl_list *list,
		      const struct hoccl_peel *stage_of, uint64_t window_ns);

/* Room for stages; what is there stays. */
int hoccl_maker_stages(struct hoccl_plan *plan, uint32_t stages);

/* Puts extra stages behind stage `first`, which begins at start_ns, and takes the pieces of `fill`. */
void hoccl_maker_extra(struct hoccl_plan *plan, uint32_t first, uint64_t start_ns, const struct hoccl_extra *extra,
		       struct hoccl_fill *fill);

/* Finds where each stage's entries begin; both lists are by stage. */
void hoccl_maker_index(struct hoccl_plan *plan);

static inline uint64_t hoccl_later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

#endif
