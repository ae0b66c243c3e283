/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan by list schedule: times of the wires, the native traffic in windows beside them.
 * The order of a greedy schedule is a matter of luck where all lines are equally long; where the first leaves a few per
 * cent and a second costs little, another preference is tried and the better one kept.
 */
#include "sched/maker.h"

#include <stdlib.h>

#define LONG_FIRST 4
#define OTHER_LONG_FIRST 2
#define SECOND_ENTRIES 6144	/* the second one costs less than a millisecond */
#define SECOND_GAIN 32		/* if the first is more than 1/32 above the bound */

static int best_list(struct hoccl_maker *m, struct hoccl_list *list)
{
	struct hoccl_demand demand = hoccl_maker_demand(m);
	struct hoccl_list other;
	int status = hoccl_list_run(list, &demand, LONG_FIRST);

	if (status || list->items > SECOND_ENTRIES ||
	    list->end_ns <= m->relay_bound_ns + m->relay_bound_ns / SECOND_GAIN)
		return status;
	status = hoccl_list_run(&other, &demand, OTHER_LONG_FIRST);
	if (!status && other.end_ns < list->end_ns) {
		hoccl_list_fini(list);
		*list = other;
	} else {
		hoccl_list_fini(&other);
	}
	return status;
}

static int finish(struct hoccl_maker *m, struct hoccl_plan *plan, const struct hoccl_list *list,
		  const struct hoccl_windows *w, struct hoccl_fill *fill)
{
	if (hoccl_maker_wires(m, plan, list, NULL, w->ns) || hoccl_maker_stages(plan, w->count + w->extra.stages))
		return HOCCL_PLAN_MEMORY;
	for (uint32_t s = 0; s < w->count; s++) {
		uint64_t end = (s + 1) * w->ns;

		plan->stage[s].start_ns = s * w->ns;
		plan->stage[s].ns = (end < list->end_ns ? end : list->end_ns) - s * w->ns;
	}
	hoccl_maker_extra(plan, w->count, list->end_ns, &w->extra, fill);
	hoccl_maker_index(plan);
	plan->makespan_ns = hoccl_later(w->end_ns, m->relay_bound_ns);
	return 0;
}

int hoccl_maker_list(struct hoccl_maker *m, struct hoccl_plan *plan)
{
	struct hoccl_windows windows = {0};
	struct hoccl_list list = {0};
	struct hoccl_fill fill;
	int status = hoccl_fill_init(&fill, &m->traffic, m->machine);

	plan->method = HOCCL_PLAN_LIST;
	if (!status)
		status = best_list(m, &list);
	if (!status)
		status = hoccl_fill_windows(&fill, &m->wires, &list, &windows);
	if (!status)
		status = finish(m, plan, &list, &windows, &fill);
	hoccl_extra_fini(&windows.extra);
	hoccl_list_fini(&list);
	hoccl_fill_fini(&fill);
	return status;
}
