/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_PEEL_H
#define HOCCL_SCHED_PEEL_H

#include "sched/demand.h"

/* One transfer of a stage. */
struct hoccl_part {
	uint64_t bytes;
	uint32_t stage;
	int16_t out, in;
};

/* Stages: each sender has at most one part in each, and each receiver. */
struct hoccl_peel {
	struct hoccl_part *part;	/* by stage */
	size_t parts, room;
	uint32_t stages;
	uint32_t merged;	/* how many of them are the merged tail */
};

/* Algorithm 1 on R; 0 or HOCCL_PLAN_MEMORY. */
int hoccl_peel_run(struct hoccl_peel *peel, const struct hoccl_demand *demand);
void hoccl_peel_fini(struct hoccl_peel *peel);

/* Appends a part; 0 or HOCCL_PLAN_MEMORY. */
int hoccl_peel_add(struct hoccl_peel *peel, int out, int in, uint64_t bytes);

/*
 * The merged tail: stages that move whole entries of the residual `r` (of the demand's size; emptied), at most as many
 * as the line with the most entries has. Adds its stages to `peel` unless that is NULL; *ns is their time, with start-up.
 */
int hoccl_tail_run(struct hoccl_peel *peel, uint64_t *r, const struct hoccl_demand *demand, uint64_t *ns);

#endif
