/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake of one stream with the progress thread, for one communicator (paper §3.2, Listing 1; counters instead
 * of resets).
 *
 *   calling thread          the stream (GPU)                         progress thread
 *   enqueue start n  ─────▶ start ← n  (its turn has come) ────────▶ sees start ≥ n: operation n may run
 *   enqueue wait n   ─────▶ waits until end ≥ n
 *                                                            ◀────── end ← n: operation n is complete
 *                           goes on
 *
 * Writers: `start` and `start16` the GPU, `end` the progress thread (at its opening, before any of them, the calling
 * thread; `start16` also when it has grown stale). Counters only grow and are
 * compared cyclically, by the GPU on 32 bits (GEQ) and by us on 32 and, behind gates, on 16: a stream holds at most 511
 * operations. `posted` and `last_gated` belong to the calling thread. */
#ifndef HOCCL_STREAM_HANDSHAKE_H
#define HOCCL_STREAM_HANDSHAKE_H

#include "stream/gate.h"

struct hoccl_handshake {
    unsigned long long stream_id; /* cuStreamGetId: handles are reused, ids are not */
    CUstream stream;
    struct hoccl_flag start;   /* written by the stream, by a memory operation */
    struct hoccl_flag start16; /* written by the stream when gated */
    struct hoccl_flag end;     /* written by the progress thread */
    uint32_t posted;           /* calling thread: last sequence number given out */
    uint32_t last_gated;       /* calling thread: last one that was gated */
    int32_t outstanding;       /* operations enqueued and not released; both threads, atomically */
    int32_t queued;            /* turns that are out and were enqueued gated behind another one; both threads, atomically */
    bool open_for_all;         /* progress thread: released for good, at an error or abort */
};

/* One operation's use of a stream. */
struct hoccl_turn {
    struct hoccl_handshake *handshake;
    uint32_t sequence;
    bool gated;
    bool queued; /* gated, behind another turn, and counted so (hoccl_handshake_queue) */
};

/* Take three flags. A new handshake begins at the value its end flag has. */
HOCCL_Result hoccl_handshake_open(struct hoccl_handshake *h, CUstream stream, unsigned long long id,
                                  struct hoccl_flag_pool *flags);
void hoccl_handshake_close(struct hoccl_handshake *h, struct hoccl_flag_pool *flags);

/* The same with the flags of one that holds no operation, for another stream. */
void hoccl_handshake_reopen(struct hoccl_handshake *h, CUstream stream, unsigned long long id);

/* Calling thread: was the last turn gated? The next one must be too, for a write behind a gated wait stands in the gate's
 * class, and may be stuck there behind other streams' gates. */
bool hoccl_turn_gated_last(const struct hoccl_handshake *h);

/* Calling thread: the next turn; then its two halves, enqueued in this order. Like any enqueue they block while the
 * stream's queue is full. */
struct hoccl_turn hoccl_turn_next(struct hoccl_handshake *h, bool gated);
HOCCL_Result hoccl_turn_start(const struct hoccl_turn *turn, const struct hoccl_gate *gate);
HOCCL_Result hoccl_turn_wait(const struct hoccl_turn *turn, const struct hoccl_gate *gate);
/* Both at once, in one driver call where that is possible. */
HOCCL_Result hoccl_turn_start_and_wait(const struct hoccl_turn *turn, const struct hoccl_gate *gate);

/* Calling thread: may the next turn, a gated one, be enqueued behind those that are out? Then it is counted, here and, if it is the
 * first such, by the gate. Progress thread, or who does not post it after all: it has been released. */
bool hoccl_handshake_queue(struct hoccl_handshake *h, struct hoccl_gate *gate);
void hoccl_handshake_unqueue(struct hoccl_handshake *h, struct hoccl_gate *gate);

/* Any thread: has the stream been let go on behind this turn? */
bool hoccl_turn_released(const struct hoccl_turn *turn);

/* Progress thread: has the stream reached this turn? Let the stream go on behind it. */
bool hoccl_turn_reached(const struct hoccl_turn *turn);
void hoccl_turn_release(const struct hoccl_turn *turn);

/* Progress thread, at an error or abort: let everything go that waits or will be enqueued. */
void hoccl_handshake_release_all(struct hoccl_handshake *h);

#endif
