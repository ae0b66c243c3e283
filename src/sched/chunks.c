/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunk order (paper section 3.4, "flow-size-aware chunk scheduling"): the rule that the engines' queues (p2p/engine.c) and
 * the simulator of hoccl-plan share.
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
#define REST_MOST ((uint64_t)1 << 62)

void hoccl_share_join(struct hoccl_share *share, uint64_t weight, unsigned __int128 clock)
{
	*share = (struct hoccl_share){.weight = weight ? weight : 1, .begin = clock};
}

unsigned __int128 hoccl_share_due(struct hoccl_share *share, uint64_t bytes)
{
	if (share->next != bytes)
		share->due = share->begin + ((unsigned __int128)bytes << VIRTUAL_SHIFT) / share->weight;
	share->next = bytes;
	return share->due;
}

void hoccl_share_give(struct hoccl_share *share, uint64_t bytes, unsigned __int128 *clock)
{
	unsigned __int128 due = hoccl_share_due(share, bytes);

	*clock = share->begin > *clock ? share->begin : *clock;
	share->begin = due;
	share->next = 0;
}

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

static uint64_t next_bytes(const struct hoccl_chunks *q, const struct hoccl_chunk_flow *f)
{
	uint64_t left = f->bytes - f->given;

	return left < q->chunk_bytes ? left : q->chunk_bytes;
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

	*f = (struct hoccl_chunk_flow){.bytes = bytes, .id = id};
	hoccl_share_join(&f->share, weight, q->clock);
	return 0;
}

static struct hoccl_chunk_flow *first_due(const struct hoccl_chunks *q, bool (*ready)(void *, uint64_t), void *context)
{
	struct hoccl_chunk_flow *best = NULL;
	unsigned __int128 first = 0;

	for (int i = 0; i < q->flows; i++) {
		struct hoccl_chunk_flow *f = &q->flow[i];
		unsigned __int128 due = hoccl_share_due(&f->share, next_bytes(q, f));

		if (best && (due > first || (due == first && f->id >= best->id)))
			continue;
		if (ready && !ready(context, f->id))
			continue;
		best = f;
		first = due;
	}
	return best;
}

bool hoccl_chunks_next(struct hoccl_chunks *q, struct hoccl_chunk *chunk, bool (*ready)(void *, uint64_t),
		       void *context)
{
	struct hoccl_chunk_flow *f = first_due(q, ready, context);

	if (!f)
		return false;
	uint64_t bytes = next_bytes(q, f);

	*chunk = (struct hoccl_chunk){f->id, f->given, bytes, f->given + bytes == f->bytes};
	hoccl_share_give(&f->share, bytes, &q->clock);
	f->given += bytes;
	if (f->given == f->bytes)
		*f = q->flow[--q->flows];
	return true;
}

uint64_t hoccl_chunks_rest(uint64_t busy_ns, unsigned int percent)
{
	if (percent >= 100)
		return 0;
	if (!percent)
		percent = 1;
	unsigned __int128 rest = (unsigned __int128)busy_ns * (100 - percent) / percent;

	return rest > REST_MOST ? REST_MOST : (uint64_t)rest;
}
