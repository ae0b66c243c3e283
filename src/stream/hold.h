/* SPDX-License-Identifier: Apache-2.0 */
/* Foreground phases: what a communicator moves is held up while a stream of the application is in one (paper §5).
 *
 *   calling thread           stream                    word of the stream (host memory)     progress thread
 *   ForegroundBegin ───────▶ … write 2k + 1 ─────────▶ odd                              ──▶ gives no chunk of the communicator
 *   ForegroundEnd ─────────▶ … write 2k + 2 ─────────▶ even                             ──▶ goes on
 *
 * Nobody can wait for ever, because a hold is bounded (by HOCCL_PAUSE, and by a quarter of HOCCL_TIMEOUT, by which peers
 * measure silence): a phase that lasts longer counts no more, and where phases overlap, or follow one another so closely
 * that no gap was seen, a chunk passes now and then. So two ranks whose phases wait for one another's operations go on,
 * and so does one whose phase never ends.
 *
 * Writers: `word` the stream; `last`, `depth`, ids the calling threads, under the lock; the rest the progress thread. */
#ifndef HOCCL_STREAM_HOLD_H
#define HOCCL_STREAM_HOLD_H

#include "stream/flag.h"

#define HOCCL_HOLD_STREAMS 16

struct hoccl_hold_mark {
    unsigned long long stream_id;
    struct hoccl_flag_set set; /* `start` is the word */
    uint32_t last;             /* enqueued last */
    int depth;                 /* Begins without their End */
    uint32_t seen;             /* the word, and since when, ns */
    uint64_t since;
    bool over; /* it has been odd for too long */
};

struct hoccl_hold {
    pthread_mutex_t lock;
    struct hoccl_flag_pool *flags;
    struct hoccl_hold_mark mark[HOCCL_HOLD_STREAMS];
    uint32_t marks;  /* published when a mark is ready to be looked at */
    uint32_t lifted; /* 1: no phase counts any more, the communicator is ending (any thread) */
    uint64_t looked; /* when somebody last wanted to give a chunk, ns */
    uint64_t since;  /* when it began to hold without a break; 0: it does not */
    uint32_t owed;   /* chunks that pass although it holds */
    uint64_t pauses, overruns; /* so often something had to wait for a phase; phases that lasted too long */
    uint64_t passed;           /* chunks that were given although it held */
    uint64_t began;            /* of the pause that lasts, ns; 0: none */
    uint64_t paused, longest;  /* ns: all pauses, as far as something was there to wait; the longest */
};

void hoccl_hold_init(struct hoccl_hold *hold, struct hoccl_flag_pool *flags);
/* Nobody uses it any more; its words stay the streams' until they have written them. */
void hoccl_hold_fini(struct hoccl_hold *hold);

/* Calling thread, the GPU's context current: enqueue the beginning or the end of a phase; phases of a stream nest.
 * Errors: USAGE (End without Begin, too many streams), UNSUPPORTED (the stream is capturing), DEVICE. */
HOCCL_Result hoccl_hold_begin(struct hoccl_hold *hold, CUstream stream);
HOCCL_Result hoccl_hold_end(struct hoccl_hold *hold, CUstream stream);

/* Calling thread: is what is enqueued on this stream now within a phase of its own? */
bool hoccl_hold_inside(struct hoccl_hold *hold, unsigned long long stream_id);

/* The communicator's progress has ended: one line at info of what phases have held up, if anything. */
void hoccl_hold_say(const struct hoccl_hold *hold);

/* Any thread: from now on no phase counts. */
void hoccl_hold_lift(struct hoccl_hold *hold);

/* Progress thread: may no chunk be given now? After one has been given: hoccl_hold_passed. NULL never holds. */
bool hoccl_hold_keeps(struct hoccl_hold *hold);
void hoccl_hold_passed(struct hoccl_hold *hold);

#endif
