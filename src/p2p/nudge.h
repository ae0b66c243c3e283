/* SPDX-License-Identifier: Apache-2.0 */
/* A nudge makes the GPU look at the end flags.
 *
 * A stream that waits for a word of host memory is looked at by the GPU about every 10 µs; but whenever something else comes
 * into a compute channel, it looks at all that wait in one (measured, test/gpu/turnaround). So behind a release the submitter
 * enqueues a write on a stream that has nothing else to do:
 *
 *   progress thread                     submitter                    GPU
 *   end ← n (handshake.h)  ───────────────────────────────────────▶  would see it within 10 µs
 *   job NUDGE: value v     ─────────▶   write of v on the stream ─▶  sees end at once; seen ← v
 *
 * The call takes the submitter 2 µs, and the GPU looks when it returns. So where the end can be foreseen, because all that an
 * operation still waits for is one copy that is alone with the engine, another nudge is given HOCCL_NUDGE_LEAD before it: the GPU's
 * look and the end then come together (measured, one process, 2 MiB: 20.3 µs a turn without, 18.9 with; a lead between 1.5 and 5 µs
 * makes no difference). If the end comes later, the nudge behind the release is still there.
 *
 * It is a hint, and nothing depends on it. The stream's channel may be that of a stream which waits, or of a kernel: then writes
 * pile up in it. So none is given while HOCCL_NUDGES are not yet seen. Waits behind a gate are in the gate's class of channels,
 * where this changes nothing: they get none.
 *
 * Writers: `seen` the GPU (at the opening, before it, who opens); `given` and `due` the progress thread. */
#ifndef HOCCL_P2P_NUDGE_H
#define HOCCL_P2P_NUDGE_H

#include "base/clock.h"
#include "p2p/submitter.h"
#include "stream/flag.h"

#include <stdint.h>

#define HOCCL_NUDGES 4u /* on their way at once */
#define HOCCL_NUDGE_LEAD (3 * HOCCL_US)

struct hoccl_nudge {
    CUstream stream;
    struct hoccl_flag seen;
    uint32_t given;
    uint64_t due;           /* when to give one ahead of an end that is foreseen, ns; 0: none is */
};

HOCCL_Result hoccl_nudge_open(struct hoccl_nudge *n, struct hoccl_flag_pool *flags);

/* A word that is still to be written is not given back: it stays out of use as long as the pool is there. */
void hoccl_nudge_close(struct hoccl_nudge *n, struct hoccl_flag_pool *flags);

/* Progress thread: end flags have been written. */
void hoccl_nudge_give(struct hoccl_nudge *n, struct hoccl_submitter *submitter);

/* Progress thread: end flags will probably be written at `end`; then, again and again: it is `now`. */
void hoccl_nudge_foresee(struct hoccl_nudge *n, uint64_t end);
void hoccl_nudge_step(struct hoccl_nudge *n, struct hoccl_submitter *submitter, uint64_t now);

#endif
