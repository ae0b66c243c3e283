/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of events: a binary heap. A lack of memory is remembered and reported once, at the end. */
#include "sched/events.h"

#include <stdlib.h>

static bool earlier(const struct hoccl_event *a, const struct hoccl_event *b)
{
	return a->ns != b->ns ? a->ns < b->ns : a->order < b->order;
}

void hoccl_events_add(struct hoccl_events *e, struct hoccl_event event)
{
	if (e->count == e->room) {
		size_t room = e->room ? 2 * e->room : 256;
		struct hoccl_event *larger = realloc(e->heap, room * sizeof(*larger));

		if (!larger) {
			e->failed = true;
			return;
		}
		e->heap = larger;
		e->room = room;
	}
	size_t i = e->count++;

	event.order = e->added++;
	for (; i && earlier(&event, &e->heap[(i - 1) / 2]); i = (i - 1) / 2)
		e->heap[i] = e->heap[(i - 1) / 2];
	e->heap[i] = event;
}

bool hoccl_events_next(struct hoccl_events *e, struct hoccl_event *event)
{
	if (!e->count)
		return false;
	*event = e->heap[0];
	struct hoccl_event last = e->heap[--e->count];
	size_t i = 0;

	for (size_t child = 1; child < e->count; child = 2 * i + 1) {
		if (child + 1 < e->count && earlier(&e->heap[child + 1], &e->heap[child]))
			child++;
		if (earlier(&last, &e->heap[child]))
			break;
		e->heap[i] = e->heap[child];
		i = child;
	}
	e->heap[i] = last;
	return true;
}

void hoccl_events_fini(struct hoccl_events *e)
{
	free(e->heap);
	*e = (struct hoccl_events){0};
}
