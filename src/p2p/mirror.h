/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of a reflection (reflection.h draws what they say to each other): the mirror's half serves all ranks that ask this one,
 * in the order in which it finds them; the asking half belongs to one flow at a time (self.c).
 *
 * The mirror copies for others only while that cannot stop anybody: an application that sits in cudaFree behind a parked stream
 * stops every copy of its process. So either nothing of the process is parked, or what is parked needs copies of its own to go on.
 * In the engine a reflection is a party like any other, or, where it is for a collective that this rank is in as well, part of that
 * one's party, and its first part: the sooner a chunk is back, the sooner its place is free. */
#ifndef HOCCL_P2P_MIRROR_H
#define HOCCL_P2P_MIRROR_H

#include "p2p/flow.h"

/* One communicator's; progress thread. */
struct hoccl_mirror {
    struct hoccl_gpu *gpu;
    struct hoccl_board *board; /* our own */
    struct hoccl_peer *peers;
    int rank, size;
    struct hoccl_list *running; /* the communicator's flows */
    struct hoccl_hold *hold;    /* and its foreground phases */
    uint32_t heard;             /* the knocks up to which asks have been looked for */
    struct hoccl_list guests;   /* reflections under way */
};

/*   (none) ─ask─▶ PREPARING ─buffer open, area and slots at hand─▶ SERVING ─▶ ENDING ─nothing moves─▶ ANSWERED ─its end─▶ (none)
 *                    └───────── ended by the other end, or not possible ───────┘
 * All arrows are the progress thread's. ANSWERED: the other end may still be pushing into its slots. */
enum hoccl_guest_state { HOCCL_GUEST_PREPARING, HOCCL_GUEST_SERVING, HOCCL_GUEST_ENDING, HOCCL_GUEST_ANSWERED };

struct hoccl_guest {
    struct hoccl_list link;
    struct hoccl_peer *peer;
    struct hoccl_reflection *words;
    uint32_t number;
    enum hoccl_guest_state state;
    enum hoccl_reflection_status status; /* ENDING: what will be answered */
    struct hoccl_mapping *mapping;       /* of its buffer; NULL: by its address, or not yet */
    CUdeviceptr to;                      /* where its message begins */
    struct hoccl_dispatch dispatch;      /* of our area */
    uint32_t started, landed, count, span;
    uint16_t slot[HOCCL_MIRROR_PLACES];
    struct hoccl_transfer transfer[HOCCL_MIRROR_PLACES];
    uint64_t looked; /* when the link was last tested, ns */
    uint64_t blocked;  /* since when this process keeps its engine to itself, ns; 0: it does not */
    uint64_t answered; /* when that was done, ns */
};

void hoccl_mirror_init(struct hoccl_mirror *m);

/* Somebody has asked since the last step. */
bool hoccl_mirror_news(const struct hoccl_mirror *m);

/* Go as far as possible without waiting; true if anything moved. */
bool hoccl_mirror_step(struct hoccl_mirror *m);

/* Break everything off; true: nothing moves any more. To be called until then. */
bool hoccl_mirror_break(struct hoccl_mirror *m);

/* For whom this process's engine or submitter is at work; NULL: nobody. */
const struct hoccl_guest *hoccl_mirror_busy(const struct hoccl_mirror *m);

/* ---- the asking half (reflect.c) ---------------------------------------------------------------------------------- */

/* This rank's mirror; one a communicator. Made with it, then the progress thread's. */
struct hoccl_reflector {
    struct hoccl_peer *peer; /* NULL: there is none */
    struct hoccl_doorbell *bell; /* of its progress thread */
    struct hoccl_reflection *words; /* in its board */
    uint32_t number;         /* of the last ask; 0: none yet */
    const struct hoccl_flow *owner; /* whose the present one is; NULL: none is under way here */
    bool never;              /* it does not work between the two */
    bool said;               /* that it does has been logged */
    uint64_t key;            /* of its area that is mapped here, as last told */
};

/* Is a message of so many bytes to oneself worth asking for, as far as the calling thread knows? */
bool hoccl_reflect_may(const struct hoccl_reflector *x, uint64_t bytes);

/* Ask, if that is possible now. */
void hoccl_reflect_begin(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

/* Asked, and not answered for so long only that it is worth waiting for. */
bool hoccl_reflect_pending(const struct hoccl_flow *flow);

/* Move chunks there, from the flow's front on, and count those that are back. When it ends early, the front goes back. */
HOCCL_Result hoccl_reflect_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);

/* The mirror writes nothing for this flow unless it is stepped again. */
bool hoccl_reflect_quiet(const struct hoccl_flow *flow);

/* After that, and when nothing of the flow is with our own engine: the reflection, if there was one, has ended. */
void hoccl_reflect_close(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

#endif
