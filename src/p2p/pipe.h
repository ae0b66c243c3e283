/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline across nodes as a model: how long a message takes by chunk size and depth, and which chunk to use. Pure
 * arithmetic in nanoseconds.
 *
 *   chunk i:   engine ──▶ wire ──▶ far engine ──grant──▶ chunk i + depth may begin
 *
 * Each of the three works on one chunk at a time and on the next as soon as it has it. A stage costs `start` per chunk,
 * `each` per KiB, and hands over `late` after it has ended (what a flag or an event takes to be seen).
 *
 * Where the figures come from: copies of up to 128 KiB are 2.2 µs apart on an engine, one alone is seen after 8 to 9.4 µs;
 * D2H and H2D reach 55 GB/s, pushes 380 and pulls 350 (two H200, driver 580). A socket over loopback carries 3 GB/s, and a
 * message is seen some 15 µs after it was given; NICs do better in both, so a chunk chosen for sockets is never too small for
 * them. Below 64 KiB the start-up costs are all there is; above 512 KiB nothing is gained that 8 chunks do not give. */
#ifndef HOCCL_P2P_PIPE_H
#define HOCCL_P2P_PIPE_H

#include <stdint.h>

struct hoccl_pipe_stage {
    uint32_t start; /* ns a chunk */
    uint32_t each;  /* ps a byte, for all lanes together */
    uint32_t late;  /* ns until the next stage knows */
};

struct hoccl_pipe {
    struct hoccl_pipe_stage engine, wire, far;
    uint32_t grant; /* ns from the far engine's end until the sender has the grant */
};

/* Slots in host memory, `lanes` sockets. */
struct hoccl_pipe hoccl_pipe_default(int lanes);

/* From the first copy's start to the last byte's landing, ns. bytes, chunk, depth > 0. */
uint64_t hoccl_pipe_time(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t chunk, unsigned depth);

/* The best power of two from 64 KiB to `most` (a power of two); `most` for large messages. */
uint64_t hoccl_pipe_chunk(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t most, unsigned depth);

/* Chunks of one flow that are worth having on the way: one in each engine and one in each lane, and enough to cover the
 * time that a grant takes. */
unsigned hoccl_pipe_depth(const struct hoccl_pipe *pipe, int lanes, uint64_t chunk);

#endif
