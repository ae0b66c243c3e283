/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_ROTATE_H
#define HOCCL_SCHED_ROTATE_H

#include "sched/layout.h"
#include "sched/machine.h"

/*
 * The plan of a uniform pattern (Alltoall, AllGather: each rank sends `bytes` to each, itself included): a rule, not a
 * table. In stage s every rank has one wire peer to send to and one to receive from, and an equal share of its traffic
 * within the node. Nothing is exchanged and nothing is stored: O(G) to make, O(1) to ask.
 */
struct hoccl_rotation {
	const struct hoccl_layout *layout;
	uint64_t bytes;
	uint32_t stages;
	uint64_t stage_ns;	/* τ of each stage, start-up included, */
	uint64_t self_ns;	/* but of a single node's last stage, the self copies */
	uint64_t bound_ns;
	uint64_t sum_ns;	/* Σ τ, which is also the makespan: all ranks go at the same pace */
};

/* The rule alone, for those who only ask who is next: bytes and times are 0. */
struct hoccl_rotation hoccl_rotation_rule(const struct hoccl_layout *layout);

int hoccl_rotation_init(struct hoccl_rotation *rotation, const struct hoccl_layout *layout,
			const struct hoccl_machine *machine, uint64_t bytes, struct hoccl_plan_error *error);

static inline uint64_t hoccl_rotation_time(const struct hoccl_rotation *rotation, uint32_t stage)
{
	return stage + 1 == rotation->stages ? rotation->self_ns : rotation->stage_ns;
}

/* The rank to which `rank` sends over the wire in this stage, -1 for none. */
int hoccl_rotation_to(const struct hoccl_rotation *rotation, int rank, uint32_t stage);

/* The rank from which it receives. */
int hoccl_rotation_from(const struct hoccl_rotation *rotation, int rank, uint32_t stage);

/*
 * The i-th piece that `rank` sends within its node in this stage (itself last); false when there are no more.
 * A rank's peers follow one another, so a stage has about one piece.
 */
bool hoccl_rotation_local(const struct hoccl_rotation *rotation, int rank, uint32_t stage, int i, int *peer,
			  uint64_t *offset, uint64_t *bytes);

#endif
