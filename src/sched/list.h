/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_LIST_H
#define HOCCL_SCHED_LIST_H

#include "sched/demand.h"

/* One transfer with its time. */
struct hoccl_slotted {
	uint64_t bytes, start_ns, end_ns;
	int16_t out, in;
};

struct hoccl_list {
	struct hoccl_slotted *item;	/* by start */
	size_t items;
	uint64_t end_ns;
};

/*
 * The list schedule of R: no stages, each line starts its next transfer as soon as both ends are free. `long_first`: how
 * much a transfer's own length counts beside its partner's remaining work (short ones then fill the end); 4 is good.
 * 0 or HOCCL_PLAN_MEMORY.
 */
int hoccl_list_run(struct hoccl_list *list, const struct hoccl_demand *demand, unsigned int long_first);
void hoccl_list_fini(struct hoccl_list *list);

#endif
