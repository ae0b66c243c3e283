/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_CHUNKS_H
#define HOCCL_SCHED_CHUNKS_H

#include "sched/machine.h"

#include <stdbool.h>

/*
 * The queue of one engine: flows that share it, cut into chunks of fixed size, in weighted round robin.
 * Weights decide who ends when. Weight = size (flows of one stage): all end in the last round, within one chunk of each
 * other's. Equal weights (unrelated flows): a small flow beside a huge one ends after twice its own time.
 */

struct hoccl_chunk_flow {
	uint64_t bytes;		/* all of it */
	uint64_t given;		/* bytes handed out so far */
	unsigned __int128 due;	/* virtual time at which its next chunk is, scaled (chunks.c) */
	uint64_t weight;
	uint64_t id;		/* the owner's */
};

/* Owner: one thread (the submitter of the engine). */
struct hoccl_chunks {
	struct hoccl_chunk_flow *flow;
	int flows, room;
	uint64_t chunk_bytes;
	unsigned __int128 clock;	/* virtual time at which the last chunk handed out began */
};

/* One chunk of a flow. */
struct hoccl_chunk {
	uint64_t id, offset, bytes;
	bool last;
};

int hoccl_chunks_init(struct hoccl_chunks *chunks, uint64_t chunk_bytes);
void hoccl_chunks_fini(struct hoccl_chunks *chunks);

/* Adds a flow; it has no credit for the time before. Weight 0 counts as 1. */
int hoccl_chunks_add(struct hoccl_chunks *chunks, uint64_t id, uint64_t bytes, uint64_t weight);

/* The next chunk; false when there is none. `ready` (may be NULL) says whether a flow could take one now. */
bool hoccl_chunks_next(struct hoccl_chunks *chunks, struct hoccl_chunk *chunk,
		       bool (*ready)(void *context, uint64_t id), void *context);

/*
 * How many chunks to keep submitted, the running one included, so that the engine never waits for the CPU: the time from
 * a chunk's end until the next one is submitted must be covered by chunks that are queued; at least 2, at most 64.
 */
unsigned int hoccl_chunks_ahead(const struct hoccl_machine *machine, const struct hoccl_rate *engine,
				uint64_t chunk_bytes);

/*
 * How long the engine must rest after a chunk that took busy_ns, so that at most `percent` of its time is ours and the
 * application's own copies get the rest; 0 at 100.
 */
uint64_t hoccl_chunks_rest(uint64_t busy_ns, unsigned int percent);

#endif
