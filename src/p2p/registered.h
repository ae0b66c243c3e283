/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that go without slots: from a registered buffer as they are, into a registered buffer at once (paper §3.3.1, "user
 * buffer registration"). Each end decides for itself, chunk by chunk: one that lies in one registered segment needs no slot
 * there, one that lies across two goes by a slot.
 *
 *   registered here     registered there    chunk k
 *   no                  no                  buffer ─engine─▶ out slot ═══▶ in slot ─engine─▶ buffer
 *   yes                 no                  buffer ═══════════════════════▶ in slot ─engine─▶ buffer
 *   no                  yes                 buffer ─engine─▶ out slot ═══════════════════════▶ buffer
 *   yes                 yes                 buffer ══════════════════════════════════════════▶ buffer
 *
 * A chunk that the network may read (FILLED, WRITING) or write (GRANTED) stands in a slot of a pool without memory
 * (wire->user_out, user_in) until that has ended: WRITTEN or ARRIVED, or nothing of the connection reads or writes memory here any
 * more. Where the GPU wants it (order.h), what has ARRIVED is flushed before it counts (FLUSHING). `network` counts them in their flow, which holds its registration so long, and is not over before that, whatever fails.
 *
 * All calls are the progress thread's. */
#ifndef HOCCL_P2P_REGISTERED_H
#define HOCCL_P2P_REGISTERED_H

#include "p2p/wire.h"

/* A flow begins: take its registration, if it has one. It ends: give it back. */
void hoccl_registered_begin(struct hoccl_flow *flow);
void hoccl_registered_end(struct hoccl_flow *flow);

/* How many of the `most` chunks from the one of this number on lie in one registered segment, the same for all. 0: not even the
 * first. */
unsigned hoccl_registered_run(const struct hoccl_flow *flow, uint32_t chunk, unsigned most);

/* Receive: let the network write the next n chunks, a run, into the buffer; there is room for them in wire->user_in. */
void hoccl_registered_grant(struct hoccl_wire *wire, struct hoccl_flow *flow, unsigned n);

/* Receive: a chunk has come. */
void hoccl_registered_arrived(struct hoccl_wire *wire, struct hoccl_pool_slot *slot);

/* Send: the next n granted chunks go into the receiver's buffer. false: no memory. */
bool hoccl_registered_aim(struct hoccl_flow *flow, unsigned n, const struct hoccl_destination *into);

/* Send: give the next granted chunk to the network, in this slot of wire->user_out. */
void hoccl_registered_fill(struct hoccl_flow *flow, struct hoccl_pool_slot *slot);

/* Send: the network no longer reads the chunk. */
void hoccl_registered_written(struct hoccl_wire *wire, struct hoccl_pool_slot *slot);

/* The flow is given up: what the network does not have yet is not given to it. */
void hoccl_registered_drop(struct hoccl_wire *wire, struct hoccl_flow *flow);

/* The network has nothing of this connection any more. */
void hoccl_registered_reclaim(struct hoccl_wire *wire, struct hoccl_far *far);

#endif
