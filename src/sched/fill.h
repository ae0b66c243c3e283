/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_FILL_H
#define HOCCL_SCHED_FILL_H

#include "sched/list.h"
#include "sched/wires.h"

/* Part of a flow within a node (or of a self copy, src = dst) that belongs to a stage. */
struct hoccl_local {
	uint64_t bytes, offset;
	uint32_t stage;
	int16_t src, dst;
};

/* Traffic within nodes that has no stage yet, and what has been given one. */
struct hoccl_fill {
	const struct hoccl_traffic *traffic;
	const struct hoccl_machine *machine;
	uint64_t *left;		/* of each node a block of size², one behind the other */
	size_t block[HOCCL_SCHED_MAX_GPUS];
	uint64_t row[HOCCL_SCHED_MAX_GPUS], column[HOCCL_SCHED_MAX_GPUS];
	struct hoccl_local *item;
	size_t items, room;
};

int hoccl_fill_init(struct hoccl_fill *fill, const struct hoccl_traffic *traffic, const struct hoccl_machine *machine);
void hoccl_fill_fini(struct hoccl_fill *fill);

/*
 * Gives `stage`, which lasts span_ns and whose lines already carry `load`, as much as fits beside it, longest lines
 * first; adds to `load`. With `start` each piece also takes a start-up from its engine's time.
 */
int hoccl_fill_stage(struct hoccl_fill *fill, uint32_t stage, uint64_t span_ns, struct hoccl_load *load, bool start);

/* Extra stages at the end, for what fitted nowhere: of each node's own, side by side. */
struct hoccl_extra {
	uint32_t stages;
	uint64_t *tau;		/* of the node whose stages take longest, and the sum of them */
	uint64_t sum_ns;
	uint64_t loose_ns;	/* without barriers */
};

/* Gives stages first, first + 1, … all that is left. */
int hoccl_fill_extra(struct hoccl_fill *fill, uint32_t first, struct hoccl_extra *extra);
void hoccl_extra_fini(struct hoccl_extra *extra);

/* Takes `bytes` of (u, v) out of what is left, as a piece of `stage`. Used by the two above. */
int hoccl_fill_take(struct hoccl_fill *fill, uint32_t stage, int u, int v, uint64_t bytes);

/* The cell of (u, v), both of one node, in left[]. */
uint64_t *hoccl_fill_cell(const struct hoccl_fill *fill, int u, int v);

/*
 * Without stages: cuts the time of a schedule of wires into windows and fills those; end_ns is when all is done.
 * What fits in no window is in extra stages behind them.
 */
struct hoccl_windows {
	uint32_t count;
	uint64_t ns;		/* length of each */
	uint64_t end_ns;
	struct hoccl_extra extra;
};

int hoccl_fill_windows(struct hoccl_fill *fill, const struct hoccl_wires *wires, const struct hoccl_list *list,
		       struct hoccl_windows *windows);

#endif
