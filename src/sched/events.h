/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_EVENTS_H
#define HOCCL_SCHED_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A queue of events in virtual time: by time, then in the order in which they were added. */
struct hoccl_event {
	uint64_t ns, order;
	int kind, where;
	uint32_t which;
	uint64_t bytes;
};

struct hoccl_events {
	struct hoccl_event *heap;
	size_t count, room;
	uint64_t added;
	bool failed;	/* no memory: events were lost */
};

void hoccl_events_add(struct hoccl_events *events, struct hoccl_event event);
bool hoccl_events_next(struct hoccl_events *events, struct hoccl_event *event);
void hoccl_events_fini(struct hoccl_events *events);

#endif
