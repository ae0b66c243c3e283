/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_FILL_H
#define HOCCL_SCHED_FILL_H

#include "sched/list.h"

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

/* Gives `stage` all that is left, adds to `load` and says how long that takes (0: nothing was left). */
int hoccl_fill_rest(struct hoccl_fill *fill, uint32_t stage, struct hoccl_load *load, uint64_t *ns);

/*
 * Without stages: cuts the time of a schedule of wires into windows and fills those; *end_ns is when all is done.
 * `windows` gets their number, *window_ns their length; what fits in none is in the last one, number *windows.
 */
int hoccl_fill_windows(struct hoccl_fill *fill, const struct hoccl_wires *wires, const struct hoccl_list *list,
		       uint32_t *windows, uint64_t *window_ns, uint64_t *end_ns);

#endif
