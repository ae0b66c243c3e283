/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_PLAN_H
#define HOCCL_SCHED_PLAN_H

#include "sched/fill.h"

/* Which schedule a plan holds; AUTO asks for what production would use. */
enum hoccl_plan_method {
	HOCCL_PLAN_AUTO,
	HOCCL_PLAN_PEEL,	/* Algorithm 1: stages */
	HOCCL_PLAN_LIST,	/* list schedule: times */
	HOCCL_PLAN_ROTATION,	/* uniform patterns: sched/rotate.h; never made by hoccl_plan_make */
};

struct hoccl_plan_options {
	enum hoccl_plan_method method;
	bool relay;		/* may other GPUs' NICs carry part of an unbalanced node's traffic? */
};

/* Part of an inter-node flow. In a plan of stages the times are those without a barrier between stages. */
struct hoccl_plan_wire {
	struct hoccl_path path;
	uint64_t bytes, offset;		/* offset within the flow (src, dst) */
	uint64_t start_ns, end_ns;
	uint32_t stage;			/* list schedule: the window it starts in */
};

/* A stage, or a window of the list schedule. */
struct hoccl_plan_stage {
	uint64_t ns;			/* τ, start-up included; a window's length */
	uint64_t start_ns;		/* with a barrier before it */
	size_t first_wire, first_local;	/* where its entries begin (wires are by stage, then start) */
};

/* What every rank computes alike from C; freed by hoccl_plan_free. */
struct hoccl_plan {
	enum hoccl_plan_method method;	/* PEEL or LIST */
	struct hoccl_plan_wire *wire;
	size_t wires;
	struct hoccl_local *local;	/* by stage */
	size_t locals;
	struct hoccl_plan_stage *stage;	/* stages + 1 entries, the last an end mark */
	uint32_t stages;
	uint32_t extra;			/* from this stage on there is only traffic within nodes, in matchings */
	uint64_t bound_ns;		/* no schedule without relay is faster */
	uint64_t relay_bound_ns;	/* the same with the paths taken; equal to bound_ns when nothing is relayed */
	uint64_t makespan_ns;		/* without a barrier */
	uint64_t sum_ns;		/* Σ τ; 0 for a list schedule */
	uint64_t relayed;		/* bytes over another GPU's NIC */
};

/* Makes a plan of C (gpus × gpus bytes, row = source). NULL options: AUTO with relay. *plan is set on success only. */
int hoccl_plan_make(struct hoccl_plan **plan, const struct hoccl_layout *layout, const struct hoccl_machine *machine,
		    const uint64_t *c, const struct hoccl_plan_options *options, struct hoccl_plan_error *error);
void hoccl_plan_free(struct hoccl_plan *plan);

/* A hash of everything that ranks must agree on, for comparison between them. */
uint64_t hoccl_plan_hash(const struct hoccl_plan *plan);

#endif
