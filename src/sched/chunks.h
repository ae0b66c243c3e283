/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_CHUNKS_H
#define HOCCL_SCHED_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The order of chunks of flows that share something: weighted round robin. Weights decide who ends when. Weight = size
 * (flows of one stage): all end in the last round, within one chunk of each other's. Equal weights (unrelated flows): a
 * small flow beside a huge one ends after twice its own time.
 */

/* A flow's place in the order; times are virtual, scaled (chunks.c). */
struct hoccl_share {
	uint64_t weight;		/* at least 1 */
	uint64_t next;			/* the chunk for which `due` holds; 0: none */
	unsigned __int128 begin, due;	/* of its next chunk */
};

/* Joins at the time `clock`: it has no credit for what was before. Weight 0 counts as 1. */
void hoccl_share_join(struct hoccl_share *share, uint64_t weight, unsigned __int128 clock);

/* When its next chunk, of `bytes`, is due: who is due first goes next. */
unsigned __int128 hoccl_share_due(struct hoccl_share *share, uint64_t bytes);

/* It has been given `bytes`; the clock goes on. */
void hoccl_share_give(struct hoccl_share *share, uint64_t bytes, unsigned __int128 *clock);

/* The queue of one engine, for the simulator: flows that share it, cut into chunks of fixed size. */
struct hoccl_chunk_flow {
	uint64_t bytes;		/* all of it */
	uint64_t given;		/* bytes handed out so far */
	struct hoccl_share share;
	uint64_t id;		/* the owner's */
};

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
 * How long the engine must rest after a chunk that took busy_ns, so that at most `percent` of its time is ours and the
 * application's own copies get the rest; 0 at 100.
 */
uint64_t hoccl_chunks_rest(uint64_t busy_ns, unsigned int percent);

#endif
