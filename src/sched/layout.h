/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_LAYOUT_H
#define HOCCL_SCHED_LAYOUT_H

#include "sched/error.h"

#include <stdbool.h>
#include <stdint.h>

#define HOCCL_SCHED_MAX_GPUS 1024

/* Where the staging slots of a GPU lie that has no symmetric GPU among the ranks. */
#define HOCCL_PAIR_HOST (-1)	/* pinned host memory: D2H and H2D */
#define HOCCL_PAIR_OUTSIDE (-2)	/* a GPU of the node that is no rank: push and pull, its own lines are free */

/* GPUs (ranks), the nodes they are in, and their symmetric GPUs; filled by hoccl_layout_make, read-only afterwards. */
struct hoccl_layout {
	int gpus, nodes;
	int16_t node[HOCCL_SCHED_MAX_GPUS];		/* node of each GPU */
	int16_t pair[HOCCL_SCHED_MAX_GPUS];		/* symmetric GPU, or one of the above */
	int16_t local[HOCCL_SCHED_MAX_GPUS];		/* position among the GPUs of its node */
	int16_t first[HOCCL_SCHED_MAX_GPUS + 1];	/* of each node: where its GPUs begin in member[] */
	int16_t member[HOCCL_SCHED_MAX_GPUS];		/* GPUs sorted by node */
	bool even;					/* all nodes have equally many GPUs */
};

/* Any nodes (numbered from 0 without gaps) and any symmetric pairing within them. */
int hoccl_layout_make(struct hoccl_layout *layout, int gpus, const int *node, const int *pair,
		      struct hoccl_plan_error *error);

/* `nodes` × `each` GPUs, neighbours paired; what has no neighbour gets `lone` (HOST or OUTSIDE). */
int hoccl_layout_grid(struct hoccl_layout *layout, int nodes, int each, int lone, struct hoccl_plan_error *error);

static inline int hoccl_layout_size(const struct hoccl_layout *layout, int node)
{
	return layout->first[node + 1] - layout->first[node];
}

#endif
