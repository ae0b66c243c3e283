/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan by Algorithm 1: stages of wires, the native traffic in their slack, extra stages.
 *
 * Execution has no barrier between stages: every NIC goes on as soon as both ends can, in the order of the stages. So
 * two times are computed: Σ τ, and the makespan of the loosened stages with the native traffic in windows beside them,
 * as for a list schedule. The makespan is the shorter one; neither way of running the plan is wrong.
 */
#include "sched/maker.h"

#include <stdlib.h>
#include <string.h>

#define NEAR_BOUND 512		/* Σ τ within 1/512 of the bound: loosening cannot gain anything */

/* The stages' parts at the times they have without barriers. */
static int loosen(struct hoccl_maker *m, const struct hoccl_peel *peel, struct hoccl_list *loose)
{
	struct hoccl_demand demand = hoccl_maker_demand(m);
	uint64_t free_at[2][HOCCL_SCHED_MAX_GPUS] = {{0}};

	loose->item = malloc((peel->parts ? peel->parts : 1) * sizeof(*loose->item));
	if (!loose->item)
		return HOCCL_PLAN_MEMORY;
	for (size_t i = 0; i < peel->parts; i++) {
		const struct hoccl_part *part = &peel->part[i];
		uint64_t start = hoccl_later(free_at[0][part->out], free_at[1][part->in]);
		uint64_t end = start + hoccl_demand_time(&demand, part->bytes);

		free_at[0][part->out] = free_at[1][part->in] = end;
		loose->item[i] = (struct hoccl_slotted){part->bytes, start, end, part->out, part->in};
		loose->end_ns = hoccl_later(loose->end_ns, end);
	}
	loose->items = peel->parts;
	return 0;
}

/* The makespan without barriers; the native traffic is placed only to see how long all takes. */
static int loose_time(struct hoccl_maker *m, const struct hoccl_list *loose, uint64_t *ns)
{
	struct hoccl_windows windows = {0};
	struct hoccl_fill fill;
	int status = hoccl_fill_init(&fill, &m->traffic, m->machine);

	if (!status)
		status = hoccl_fill_windows(&fill, &m->wires, loose, &windows);
	*ns = windows.end_ns;
	hoccl_extra_fini(&windows.extra);
	hoccl_fill_fini(&fill);
	return status;
}

/* τ of each stage from the loads of its parts; then its native traffic. */
static int time_stages(struct hoccl_maker *m, struct hoccl_plan *plan, struct hoccl_fill *fill,
		       struct hoccl_load *load)
{
	size_t size = (size_t)m->layout->gpus * sizeof(*load);

	hoccl_maker_index(plan);
	for (uint32_t s = 0; s < plan->stages; s++) {
		memset(load, 0, size);
		for (size_t i = plan->stage[s].first_wire; i < plan->stage[s + 1].first_wire; i++)
			hoccl_load_wire(load, m->layout, &plan->wire[i].path, plan->wire[i].bytes);
		uint64_t ns = hoccl_load_time(load, m->layout->gpus, m->machine, NULL, NULL);

		if (hoccl_fill_stage(fill, s, ns, load, false))
			return HOCCL_PLAN_MEMORY;
		plan->stage[s].ns = ns + m->machine->start_ns;
		plan->stage[s].start_ns = plan->sum_ns;
		plan->sum_ns += plan->stage[s].ns;
	}
	return 0;
}

static int fill_stages(struct hoccl_maker *m, struct hoccl_plan *plan, struct hoccl_fill *fill)
{
	struct hoccl_load *load = malloc((size_t)m->layout->gpus * sizeof(*load));
	struct hoccl_extra extra = {0};
	uint32_t wires = plan->stages;
	int status = load ? time_stages(m, plan, fill, load) : HOCCL_PLAN_MEMORY;

	free(load);
	if (!status)
		status = hoccl_fill_extra(fill, wires, &extra);
	if (!status)
		status = hoccl_maker_stages(plan, wires + extra.stages);
	if (!status) {
		hoccl_maker_extra(plan, wires, plan->sum_ns, &extra, fill);
		hoccl_maker_index(plan);
		plan->sum_ns += extra.sum_ns;
	}
	hoccl_extra_fini(&extra);
	return status;
}

/* Both times; without barriers it is at most Σ τ. */
static int time_plan(struct hoccl_maker *m, struct hoccl_plan *plan, const struct hoccl_list *loose)
{
	uint64_t ns;

	plan->makespan_ns = plan->sum_ns;
	if (plan->sum_ns <= m->relay_bound_ns + m->relay_bound_ns / NEAR_BOUND)
		return 0;
	int status = loose_time(m, loose, &ns);

	ns = hoccl_later(ns, m->relay_bound_ns);
	if (!status && ns < plan->makespan_ns)
		plan->makespan_ns = ns;
	return status;
}

int hoccl_maker_peel(struct hoccl_maker *m, struct hoccl_plan *plan)
{
	struct hoccl_demand demand = hoccl_maker_demand(m);
	struct hoccl_list loose = {0};
	struct hoccl_peel peel = {0};
	struct hoccl_fill fill;
	int status = hoccl_fill_init(&fill, &m->traffic, m->machine);

	plan->method = HOCCL_PLAN_PEEL;
	if (!status)
		status = hoccl_peel_run(&peel, &demand);
	if (!status)
		status = loosen(m, &peel, &loose);
	if (!status)
		status = hoccl_maker_wires(m, plan, &loose, &peel, 0);
	if (!status)
		status = hoccl_maker_stages(plan, peel.stages);
	if (!status)
		status = fill_stages(m, plan, &fill);
	if (!status)
		status = time_plan(m, plan, &loose);
	hoccl_list_fini(&loose);
	hoccl_peel_fini(&peel);
	hoccl_fill_fini(&fill);
	return status;
}
