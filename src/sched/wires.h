/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_WIRES_H
#define HOCCL_SCHED_WIRES_H

#include "sched/traffic.h"

#include <stddef.h>

/*
 * The inter-node traffic as the NICs see it: a matrix R of bytes from NIC to NIC (numbered by their GPUs). Without
 * relay R is C (entries within a node are then to be skipped) and a cell (a, b) is the flow (a, b). With relay a cell
 * holds the pieces, in order, of the flows that pass over these two NICs.
 */
struct hoccl_piece {
	struct hoccl_path path;
	uint64_t bytes;
	uint64_t offset;	/* within the flow (src, dst) */
};

struct hoccl_wires {
	const struct hoccl_layout *layout;
	const uint64_t *r;		/* of gpus × gpus; only entries between nodes count */
	uint64_t *own;			/* r's memory where it is not C */
	struct hoccl_piece *piece;	/* sorted by (out, in); NULL without relay */
	size_t pieces;
	uint32_t *cell;			/* gpus² + 1 offsets into piece[] */
	struct hoccl_load *load;	/* the loads with relay; NULL without */
	uint64_t relayed;		/* bytes that pass over another GPU's NIC */
};

/* `relay`: use other GPUs' NICs where the model says that the whole gets faster by more than 2 %. */
int hoccl_wires_init(struct hoccl_wires *wires, const struct hoccl_traffic *traffic,
		     const struct hoccl_machine *machine, bool relay, struct hoccl_plan_error *error);
void hoccl_wires_fini(struct hoccl_wires *wires);

static inline uint64_t hoccl_wires_bytes(const struct hoccl_wires *wires, int a, int b)
{
	const struct hoccl_layout *layout = wires->layout;

	return layout->node[a] == layout->node[b] ? 0 : wires->r[(size_t)a * (size_t)layout->gpus + (size_t)b];
}

#endif
