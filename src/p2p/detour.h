/* SPDX-License-Identifier: Apache-2.0 */
/* The detour: the tail of a large push goes through host memory while the rest goes over the link, since D2H and H2D are engines
 * and wires of their own (measured: 40 GB/s beside 388 GB/s of pushes, which lose nothing; test/gpu/engines). The sender decides;
 * the receiver need not take part.
 *
 *   buffer:   0 ───────────── push ──────────────▶ front         back ◀── chunk i ── … ── chunk 0 ── bytes
 *
 *   sender                                                  receiver (has granted its buffer)
 *   offer: kind DETOUR, filled ← 0; tag ← n ──────────────▶ takes k places of its staging area, if it can
 *                                             ◀──────────── receipt: count, slot[], span, drained ← 0; staged ← n
 *   chunk i: D2H into place i mod k, while i − drained < k
 *   filled ← i + 1 ───────────────────────────────────────▶ chunk i: H2D to its place in the buffer
 *                                             ◀──────────── drained ← i + 1
 *   the push has landed: no chunk is begun any more; what is left between front and back is pushed too
 *   the chunks begun are drained: answer
 *
 * The plan is such that both end together, from the rates seen so far (hoccl_gpu.detour_each); if the detour is slower than
 * that, the push takes over what it has left; if no slots come, all.
 *
 * Flags and words to the CPU share the wire to host memory: where somebody else has had to wait for the push engine of late (pace.h),
 * and so messages are small beside large ones, or a message to oneself is under way (self.c), there is no detour.
 *
 * A gate of H2D copies (gate.h) may stop H2D copies while a stream waits behind one, perhaps for this flow. So no H2D copy of a
 * detour is given while such a turn is out, and none is posted while such a copy is out (hoccl_gate_bar): the receiver then
 * takes back what is not yet with the driver and says that it drains no more, drained ← i | CLOSED; the sender pushes the rest.
 *
 * Writers: the offer the sender, the receipt the receiver, as for STAGED. Both are the progress threads'. */
#ifndef HOCCL_P2P_DETOUR_H
#define HOCCL_P2P_DETOUR_H

#include "p2p/flow.h"

#define HOCCL_DETOUR_CLOSED (1u << 31)

/* Sender, about to push: the bytes that are left to the detour; 0: none. The receiver is asked for slots. */
uint64_t hoccl_detour_plan(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

/* Sender: chunks begin, land, are drained. */
HOCCL_Result hoccl_detour_send_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);

/* Sender, the push has landed: begin no more. True: *rest bytes from flow->detour.front on are still to be pushed, and when
 * they have landed and *rest is 0, all is there. False: not known before chunks have been drained. */
bool hoccl_detour_end(struct hoccl_flow *flow, uint64_t *rest);

/* Sender, all is there: what it took is the next plan's measure. */
void hoccl_detour_learn(struct hoccl_gpu *gpu, const struct hoccl_flow *flow);

/* Receiver, asked for slots: give some, copy out what has come. */
HOCCL_Result hoccl_detour_receive_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);

/* Nothing of it is with the driver any more. */
void hoccl_detour_quiet(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

#endif
