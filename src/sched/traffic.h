/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_TRAFFIC_H
#define HOCCL_SCHED_TRAFFIC_H

#include "sched/layout.h"
#include "sched/machine.h"

/* The bytes on each line of one GPU. */
struct hoccl_load {
	uint64_t bytes[HOCCL_LINES];
};

/*
 * One flow as the hardware sees it: from user memory of `src` over the NIC of `out` and the NIC of `in` to user memory
 * of `dst`. Without relay out = src and in = dst.
 */
struct hoccl_path {
	int src, dst, out, in;
};

/*
 * C (row: source, column: destination, bytes) with its line loads. `c` is not copied.
 * Row and column sums of C are below 2^63; so the line loads, at most a row and a column, are below 2^64.
 */
struct hoccl_traffic {
	const struct hoccl_layout *layout;
	const uint64_t *c;
	struct hoccl_load load[HOCCL_SCHED_MAX_GPUS];
	uint64_t off_out[HOCCL_SCHED_MAX_GPUS];	/* bytes each GPU sends off its node: the paper's A */
	uint64_t off_in[HOCCL_SCHED_MAX_GPUS];	/* bytes each GPU receives from other nodes: the paper's B */
	bool wires, locals;			/* is there any traffic of each domain */
};

/* Checks C and computes the loads; an overflow names the entry at which the sum passes 2^63. O(G²). */
int hoccl_traffic_init(struct hoccl_traffic *traffic, const struct hoccl_layout *layout, const uint64_t *c,
		       struct hoccl_plan_error *error);

/* The loads of a C whose entries, the diagonal too, are all `bytes`; `c` stays NULL. O(G). */
int hoccl_traffic_uniform(struct hoccl_traffic *traffic, const struct hoccl_layout *layout, uint64_t bytes,
			  struct hoccl_plan_error *error);

/* T[u,v] of the paper's equations 2-5, with self copies. */
uint64_t hoccl_traffic_entry(const struct hoccl_traffic *traffic, int u, int v);

/*
 * The GPU on which data of `gpu` is staged for the NIC of `nic`: that NIC's symmetric GPU, or HOST or OUTSIDE. A relay
 * over the own symmetric GPU's NIC is staged there too, as a copy within one GPU would need SMs.
 */
int hoccl_layout_slot(const struct hoccl_layout *layout, int gpu, int nic);

/* Adds one inter-node flow to the lines of its four GPUs. */
void hoccl_load_wire(struct hoccl_load *load, const struct hoccl_layout *layout, const struct hoccl_path *path,
		     uint64_t bytes);

/* Adds all that one GPU sends to other nodes and receives from them; the same, once a GPU. */
void hoccl_load_ends(struct hoccl_load *load, const struct hoccl_layout *layout, int gpu, uint64_t out, uint64_t in);

/* Adds one flow within a node, or a self copy (u = v). */
void hoccl_load_local(struct hoccl_load *load, const struct hoccl_layout *layout, int u, int v, uint64_t bytes);

/* The longest time of any line: no schedule is faster. `gpu` and `line` (may be NULL) get where that is. */
uint64_t hoccl_load_time(const struct hoccl_load *load, int gpus, const struct hoccl_machine *machine, int *gpu,
			 enum hoccl_line *line);

/* The lower bound; an error names the line if it is longer than the planner can compute with (years). */
int hoccl_traffic_bound(const struct hoccl_traffic *traffic, const struct hoccl_machine *machine, uint64_t *ns,
			struct hoccl_plan_error *error);

#endif
