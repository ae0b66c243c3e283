/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk order of one engine (paper section 3.4, "flow-size-aware chunk scheduling").
 *
 * A copy engine takes one copy at a time and drains the stream it serves, so flows share it only if HOCCL orders their
 * chunks itself: one queue an engine, a bounded number of chunks submitted ahead. The order is that of start-time fair
 * queueing on the ends of chunks: a flow's next chunk is due at (bytes given + chunk) / weight, and the chunk due first
 * goes next, lower ids first among equals. With weight = bytes every flow's last chunk is due at 1: in the last round
 * each flow has one chunk, whatever the sizes. A flow that joins later starts at the queue's present virtual time, so
 * it neither catches up nor waits. Times are fixed-point, bytes × 2^64 / weight in 128 bits, which 2^63 bytes of weight
 * 1 just fit.
 */
#include "sched/chunks.h"

#include "sched/error.h"

#include <stdlib.h>

#define VIRTUAL_SHIFT 64

int hoccl_chunks_init(struct hoccl_chunks *q, uint64_t chunk_bytes)
{
	*q = (struct hoccl_chunks){.chunk_bytes = chunk_bytes ? chunk_bytes : 1};
	return 0;
}

void hoccl_chunks_fini(struct hoccl_chunks *q)
{
	free(q->flow);
	*q = (struct hoccl_chunks){0};
}

/* The virtual time that the flow's next chunk takes. */
static unsigned __int128 virtual_length(const struct hoccl_chunks *q, const struct hoccl_chunk_flow *f)
{
	uint64_t left = f->bytes - f->given, bytes = left < q->chunk_bytes ? left : q->chunk_bytes;

	return ((unsigned __int128)bytes << VIRTUAL_SHIFT) / f->weight;
}

int hoccl_chunks_add(struct hoccl_chunks *q, uint64_t id, uint64_t bytes, uint64_t weight)
{
	if (!bytes)
		return 0;
	if (q->flows == q->room) {
		int room = q->room ? 2 * q->room : 16;
		struct hoccl_chunk_flow *larger = realloc(q->flow, (size_t)room * sizeof(*larger));

		if (!larger)
			return HOCCL_PLAN_MEMORY;
		q->flow = larger;
		q->room = room;
	}
	if (!q->flows)
		q->clock = 0;
	struct hoccl_chunk_flow *f = &q->flow[q->flows++];

	*f = (struct hoccl_chunk_flow){.bytes = bytes, .weight = weight ? weight : 1, .id = id};
	f->due = q->clock + virtual_length(q, f);
	return 0;
}

static struct hoccl_chunk_flow *first_due(const struct hoccl_chunks *q, bool (*ready)(void *, uint64_t), void *context)
{
	struct hoccl_chunk_flow *best = NULL;

	for (int i = 0; i < q->flows; i++) {
		struct hoccl_chunk_flow *f = &q->flow[i];

		if (best && (f->due > best->due || (f->due == best->due && f->id >= best->id)))
			continue;
		if (!ready || ready(context, f->id))
			best = f;
	}
	return best;
}

bool hoccl_chunks_next(struct hoccl_chunks *q, struct hoccl_chunk *chunk, bool (*ready)(void *, uint64_t),
		       void *context)
{
	struct hoccl_chunk_flow *f = first_due(q, ready, context);

	if (!f)
		return false;
	uint64_t left = f->bytes - f->given, bytes = left < q->chunk_bytes ? left : q->chunk_bytes;
	unsigned __int128 began = f->due - virtual_length(q, f);

	*chunk = (struct hoccl_chunk){f->id, f->given, bytes, bytes == left};
	q->clock = began > q->clock ? began : q->clock;
	f->given += bytes;
	if (f->given == f->bytes)
		*f = q->flow[--q->flows];
	else
		f->due += virtual_length(q, f);
	return true;
}

unsigned int hoccl_chunks_ahead(const struct hoccl_machine *machine, const struct hoccl_rate *engine,
				uint64_t chunk_bytes)
{
	uint64_t chunk_ns = hoccl_rate_time(engine, chunk_bytes) + machine->copy_ns;
	uint64_t ahead = 1 + (machine->seen_ns + chunk_ns - 1) / (chunk_ns ? chunk_ns : 1);

	return ahead < 2 ? 2 : ahead > 64 ? 64 : (unsigned int)ahead;
}

uint64_t hoccl_chunks_rest(uint64_t busy_ns, unsigned int percent)
{
	if (percent >= 100)
		return 0;
	if (!percent)
		percent = 1;
	unsigned __int128 rest = (unsigned __int128)busy_ns * (100 - percent) / percent;

	return rest > HOCCL_TIME_MAX ? HOCCL_TIME_MAX : (uint64_t)rest;
}
