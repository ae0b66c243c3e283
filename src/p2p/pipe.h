/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline across nodes as a model: how long a message takes by chunk size and depth, and which to use. Pure
 * arithmetic in nanoseconds.
 *
 *   chunk i:   engine ──▶ wire ──▶ far engine ──grant──▶ chunk i + depth may begin, and with it a quarter of the depth
 *
 * An engine works on one chunk at a time and on the next as soon as it has it; the wire has lanes that do so, each with a chunk
 * of its own, which share a link. A stage costs `start` per chunk, `each` per byte, and hands over `late` after it has ended
 * (what a flag or an event takes to be seen).
 *
 *   pace    the time between two chunks that the slowest stage leaves: an engine, or all lanes together
 *   round   from a grant's leaving to the landing of the chunk it was for: grant, engine, its lane, far engine, and their delays
 *   depth   the larger of
 *             lanes + 2             a chunk in each lane and in each engine
 *             2 × ⌈round / pace⌉    as many as pass in a round; twice, because grants go in batches of a quarter of the depth (a
 *                                   message a chunk would cost as much as the chunk), and no network keeps to its averages
 *   chunk   the one of which pipe_time says that the message is there first; for large messages the largest that gives all lanes as
 *           many. All chunks of a message are equal but the last: smaller ones at both ends gain nothing (doc/performance.md)
 *
 * Where the figures come from: copies of up to 128 KiB are 2.2 µs apart on an engine, one alone is seen after 8 to 9.4 µs;
 * D2H and H2D reach 55 GB/s, pushes 380 and pulls 350 (two H200, driver 580). What a transport costs, it says itself
 * (transport.h). Below 64 KiB the start-up costs are all there is. Over 8 sockets on loopback, both ways at once, chunks of
 * 512 KiB reach 10 to 11.5 GB/s with 32 on the way, chunks of 1 MiB 13 with 20 and 13 to 17 with 30; bare sockets 16.5. */
#ifndef HOCCL_P2P_PIPE_H
#define HOCCL_P2P_PIPE_H

#include "transport/transport.h"

#include <stdint.h>

struct hoccl_pipe_stage {
    uint32_t start; /* ns a chunk */
    uint32_t each;  /* ps a byte; of the wire: on one lane */
    uint32_t late;  /* ns until the next stage knows */
};

struct hoccl_pipe {
    struct hoccl_pipe_stage engine, wire, far;
    uint32_t grant; /* ns from the far engine's end until the sender has the grant */
    uint32_t link;  /* ps a byte on all lanes together, at least */
    int lanes;      /* 0: as 1 */
};

/* Slots on another GPU or in host memory, a transport that costs so much. */
struct hoccl_pipe hoccl_pipe_make(bool on_gpu, const struct hoccl_transport_cost *cost, int lanes);

/* From the first copy's start to the last byte's landing, ns. bytes, chunk, depth > 0. */
uint64_t hoccl_pipe_time(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t chunk, unsigned depth);

/* The best power of two from 64 KiB to `most` (a power of two), or the largest multiple of 4 KiB that gives all lanes the same number
 * of chunks; always that for large messages. */
uint64_t hoccl_pipe_chunk(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t most, unsigned depth);

/* How many chunks are granted together, but for the last ones of a message. */
static inline unsigned hoccl_pipe_batch(unsigned depth)
{
    return (depth + 3) / 4;
}

/* The time between two chunks that the slowest stage leaves; from a grant's leaving until the first chunk for it can go over the
 * wire; from when it has, at that pace, until it has been emptied and this is known. */
uint64_t hoccl_pipe_pace(const struct hoccl_pipe *pipe, uint64_t chunk);
uint64_t hoccl_pipe_before(const struct hoccl_pipe *pipe, uint64_t chunk);
uint64_t hoccl_pipe_behind(const struct hoccl_pipe *pipe, uint64_t chunk);

/* Chunks of one flow that are worth having on the way. */
unsigned hoccl_pipe_depth(const struct hoccl_pipe *pipe, uint64_t chunk);

#endif
