/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes and symmetric GPUs, checked once so that everything behind may trust them.
 * A symmetric GPU (the paper's ū, section 3.3.1) lies under the same PCIe switch, in the same node, and the relation
 * goes both ways.
 */
#include "sched/layout.h"

#include <string.h>

static int check_nodes(const struct hoccl_layout *layout, const int *node, struct hoccl_plan_error *error)
{
	bool seen[HOCCL_SCHED_MAX_GPUS] = {false};

	for (int g = 0; g < layout->gpus; g++) {
		if (node[g] < 0 || node[g] >= layout->gpus)
			return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "GPU %d: node %d is not in 0..%d", g,
					       node[g], layout->gpus - 1);
		seen[node[g]] = true;
	}
	for (int n = 0; n < layout->nodes; n++)
		if (!seen[n])
			return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "node %d has no GPU", n);
	return 0;
}

static int check_pair(const struct hoccl_layout *layout, const int *node, const int *pair, int g,
		      struct hoccl_plan_error *error)
{
	int other = pair[g];

	if (other == HOCCL_PAIR_HOST || other == HOCCL_PAIR_OUTSIDE)
		return 0;
	if (other < 0 || other >= layout->gpus)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "GPU %d: symmetric GPU %d is unknown", g, other);
	if (other == g)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "GPU %d is its own symmetric GPU", g);
	if (pair[other] != g)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "GPU %d names %d as symmetric, %d names %d", g,
				       other, other, pair[other]);
	if (node[other] != node[g])
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "symmetric GPUs %d and %d are in nodes %d and %d",
				       g, other, node[g], node[other]);
	return 0;
}

static void sort_members(struct hoccl_layout *layout)
{
	int16_t next[HOCCL_SCHED_MAX_GPUS];

	memset(layout->first, 0, sizeof(layout->first));
	for (int g = 0; g < layout->gpus; g++)
		layout->first[layout->node[g] + 1]++;
	layout->even = true;
	for (int n = 0; n < layout->nodes; n++) {
		layout->even = layout->even && layout->first[n + 1] == layout->first[1];
		next[n] = layout->first[n];
		layout->first[n + 1] = (int16_t)(layout->first[n + 1] + layout->first[n]);
	}
	for (int g = 0; g < layout->gpus; g++) {
		int n = layout->node[g];

		layout->local[g] = (int16_t)(next[n] - layout->first[n]);
		layout->member[next[n]++] = (int16_t)g;
	}
}

int hoccl_layout_make(struct hoccl_layout *layout, int gpus, const int *node, const int *pair,
		      struct hoccl_plan_error *error)
{
	if (gpus < 1 || gpus > HOCCL_SCHED_MAX_GPUS)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%d GPUs: between 1 and %d can be planned", gpus,
				       HOCCL_SCHED_MAX_GPUS);
	layout->gpus = gpus;
	layout->nodes = 0;
	for (int g = 0; g < gpus; g++)
		if (node[g] >= layout->nodes)
			layout->nodes = node[g] < gpus ? node[g] + 1 : gpus;
	int status = check_nodes(layout, node, error);

	for (int g = 0; g < gpus && !status; g++)
		status = check_pair(layout, node, pair, g, error);
	if (status)
		return status;
	for (int g = 0; g < gpus; g++) {
		layout->node[g] = (int16_t)node[g];
		layout->pair[g] = (int16_t)pair[g];
	}
	sort_members(layout);
	return 0;
}

int hoccl_layout_grid(struct hoccl_layout *layout, int nodes, int each, int lone, struct hoccl_plan_error *error)
{
	int node[HOCCL_SCHED_MAX_GPUS], pair[HOCCL_SCHED_MAX_GPUS];

	if (nodes < 1 || each < 1 || nodes > HOCCL_SCHED_MAX_GPUS || each > HOCCL_SCHED_MAX_GPUS ||
	    nodes * each > HOCCL_SCHED_MAX_GPUS)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%d x %d GPUs: between 1 and %d can be planned",
				       nodes, each, HOCCL_SCHED_MAX_GPUS);
	for (int g = 0; g < nodes * each; g++) {
		int i = g % each;

		node[g] = g / each;
		pair[g] = (i ^ 1) < each ? g - i + (i ^ 1) : lone;
	}
	return hoccl_layout_make(layout, nodes * each, node, pair, error);
}
