/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Design: a plan is followed where its predicted gain exceeds what it costs. The exchange of the matrix has been paid when
 * this is asked, and a plan is executed many times; what is left is that the prediction is a model. So a plan must be
 * better by more than the model is good for.
 */
#include "sched/choice.h"

#include "sched/plan.h"

#include <stdlib.h>
#include <string.h>

#define GAIN 32				/* at least 1/32 faster */
#define GRAIN (UINT64_C(64) << 10)	/* the smallest chunk */

/* Only what crosses. */
static uint64_t *between_nodes(const struct hoccl_layout *layout, const uint64_t *c)
{
	size_t gpus = (size_t)layout->gpus;
	uint64_t *r = malloc(gpus * gpus * sizeof(*r));

	for (size_t i = 0; i < gpus * gpus && r; i++)
		r[i] = layout->node[i / gpus] == layout->node[i % gpus] ? 0 : c[i];
	return r;
}

/* Planned as if the NICs were all there is. */
static struct hoccl_machine machine_of(const struct hoccl_grants_cost *cost)
{
	struct hoccl_machine m = *hoccl_machine_find("h200");
	uint64_t rate = HOCCL_GRANTS_SLOT * UINT64_C(1000000000) / (cost->chunk_ns ? cost->chunk_ns : 1);

	for (int l = 0; l < HOCCL_LINES; l++)
		m.rate[l] = hoccl_rate_of(rate);
	m.start_ns = cost->start_ns;
	return m;
}

static int try_plan(struct hoccl_choice *choice, const struct hoccl_layout *layout, const struct hoccl_grants_cost *cost,
		    const uint64_t *r, enum hoccl_plan_method method, struct hoccl_plan_error *error)
{
	struct hoccl_plan_options options = {.method = method, .relay = false};
	struct hoccl_machine machine = machine_of(cost);
	struct hoccl_parts parts = {0};
	struct hoccl_plan *plan;
	uint64_t ns = 0;
	int status = hoccl_plan_make(&plan, layout, &machine, r, &options, error);

	if (status)
		return status;
	status = hoccl_parts_of_plan(&parts, layout, r, plan, GRAIN);
	if (!status)
		status = hoccl_grants_run(layout, cost, &parts, HOCCL_GRANTS_IN_ORDER, &ns, error);
	if (!status && (!choice->plan_ns || ns < choice->plan_ns)) {
		hoccl_parts_fini(&choice->parts);
		choice->parts = parts;
		choice->plan_ns = ns;
		choice->list = plan->method == HOCCL_PLAN_LIST;
		parts = (struct hoccl_parts){0};
	}
	hoccl_parts_fini(&parts);
	hoccl_plan_free(plan);
	return status;
}

static int by_grants(struct hoccl_choice *choice, const struct hoccl_layout *layout, const struct hoccl_grants_cost *cost,
		     const uint64_t *r, struct hoccl_plan_error *error)
{
	struct hoccl_parts parts;
	int status = hoccl_parts_of_matrix(&parts, layout, r);

	choice->bound_ns = hoccl_grants_bound(layout, cost, &parts);
	if (!status)
		status = hoccl_grants_run(layout, cost, &parts, HOCCL_GRANTS_LONGEST, &choice->grants_ns, error);
	hoccl_parts_fini(&parts);
	return status;
}

int hoccl_choice_make(struct hoccl_choice *choice, const struct hoccl_layout *layout, const struct hoccl_grants_cost *cost,
		      const uint64_t *c, struct hoccl_plan_error *error)
{
	uint64_t *r = between_nodes(layout, c);

	memset(choice, 0, sizeof(*choice));
	if (!r)
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for the traffic of %d GPUs", layout->gpus);
	int status = by_grants(choice, layout, cost, r, error);

	if (!status)
		status = try_plan(choice, layout, cost, r, HOCCL_PLAN_LIST, error);
	if (!status && layout->gpus <= HOCCL_GRANTS_MOST)
		status = try_plan(choice, layout, cost, r, HOCCL_PLAN_PEEL, error);
	free(r);
	choice->planned = !status && choice->plan_ns + choice->plan_ns / GAIN < choice->grants_ns;
	return status;
}

void hoccl_choice_fini(struct hoccl_choice *choice)
{
	hoccl_parts_fini(&choice->parts);
}
