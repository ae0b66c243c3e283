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
 * It is a hint, and nothing depends on it. The stream's channel may be that of a stream which waits, or of a kernel: then writes
 * pile up in it. So none is given while HOCCL_NUDGES are not yet seen. Waits behind a gate are in the gate's class of channels,
 * where this changes nothing: they get none.
 *
 * Writers: `seen` the GPU (at the opening, before it, who opens); `given` the progress thread. */
#ifndef HOCCL_P2P_NUDGE_H
#define HOCCL_P2P_NUDGE_H

#include "p2p/submitter.h"
#include "stream/flag.h"

#include <stdint.h>

#define HOCCL_NUDGES 4u /* on their way at once */

struct hoccl_nudge {
    CUstream stream;
    struct hoccl_flag seen;
    uint32_t given;
};

HOCCL_Result hoccl_nudge_open(struct hoccl_nudge *n, struct hoccl_flag_pool *flags);

/* A word that is still to be written is not given back: it stays out of use as long as the pool is there. */
void hoccl_nudge_close(struct hoccl_nudge *n, struct hoccl_flag_pool *flags);

/* Progress thread: end flags have been written. */
void hoccl_nudge_give(struct hoccl_nudge *n, struct hoccl_submitter *submitter);

#endif
