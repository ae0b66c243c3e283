/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_DEMAND_H
#define HOCCL_SCHED_DEMAND_H

#include "sched/layout.h"
#include "sched/machine.h"

#include <stddef.h>

/* What a schedule is made of: bytes from senders to receivers of which each does one thing at a time. */
struct hoccl_demand {
	const uint64_t *r;			/* gpus × gpus, row = sender */
	int gpus;
	const struct hoccl_layout *layout;	/* entries within a node are skipped; NULL: all count */
	const struct hoccl_rate *rate;		/* of one transfer */
	uint64_t start_ns;			/* of one transfer or stage */
};

static inline uint64_t hoccl_demand_bytes(const struct hoccl_demand *demand, int u, int v)
{
	if (demand->layout && demand->layout->node[u] == demand->layout->node[v])
		return 0;
	return demand->r[(size_t)u * (size_t)demand->gpus + (size_t)v];
}

/* The time of one transfer. */
static inline uint64_t hoccl_demand_time(const struct hoccl_demand *demand, uint64_t bytes)
{
	return hoccl_rate_time(demand->rate, bytes) + demand->start_ns;
}

#endif
