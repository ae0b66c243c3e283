/* SPDX-License-Identifier: Apache-2.0 */
/* A collective's description → C (paper section 3.4, Figure 6 left): every logical flow as the user asked for it. */
#include "sched/collective.h"

#include "sched/layout.h"

#include <stddef.h>

bool hoccl_collective_uniform(const struct hoccl_collective *collective)
{
	return collective->kind == HOCCL_COLLECTIVE_ALLTOALL || collective->kind == HOCCL_COLLECTIVE_ALLGATHER;
}

static uint64_t flow(const struct hoccl_collective *x, int u, int v)
{
	switch (x->kind) {
	case HOCCL_COLLECTIVE_ALLTOALL:
	case HOCCL_COLLECTIVE_ALLGATHER:
		return x->bytes[0];
	case HOCCL_COLLECTIVE_ALLTOALLV:
		return x->bytes[(size_t)u * (size_t)x->ranks + (size_t)v];
	case HOCCL_COLLECTIVE_ALLGATHERV:
		return x->bytes[u];
	case HOCCL_COLLECTIVE_GATHERV:
		return v == x->root ? x->bytes[u] : 0;
	case HOCCL_COLLECTIVE_SCATTERV:
		return u == x->root ? x->bytes[v] : 0;
	case HOCCL_COLLECTIVE_BROADCAST:
		return u == x->root && v != u ? x->bytes[0] : 0;
	}
	return 0;
}

int hoccl_collective_matrix(const struct hoccl_collective *x, uint64_t *c, struct hoccl_plan_error *error)
{
	if (x->ranks < 1 || x->ranks > HOCCL_SCHED_MAX_GPUS)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "%d ranks: between 1 and %d can be planned",
				       x->ranks, HOCCL_SCHED_MAX_GPUS);
	if (x->root < 0 || x->root >= x->ranks)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "root %d is not in 0..%d", x->root, x->ranks - 1);
	for (int u = 0; u < x->ranks; u++)
		for (int v = 0; v < x->ranks; v++)
			c[(size_t)u * (size_t)x->ranks + (size_t)v] = u == v && x->in_place ? 0 : flow(x, u, v);
	return 0;
}
