/* SPDX-License-Identifier: Apache-2.0 */
/* One copy engine: one direction of one GPU, fed chunk by chunk from one queue.
 *
 * An engine serves one stream at a time and drains a backlog whole (measured), so fairness between transfers exists
 * only if their chunks are put in order here, with few submitted ahead: sched/chunks.h says who is next, pace.h how large
 * a chunk and how far ahead. Behind each chunk the engine writes its number into `done`, so one word tells how far the
 * queue has come.
 *
 * Owner: the progress thread. `done` is written by the GPU. */
#ifndef HOCCL_P2P_ENGINE_H
#define HOCCL_P2P_ENGINE_H

#include "base/list.h"
#include "p2p/pace.h"
#include "p2p/submitter.h"
#include "sched/chunks.h"
#include "stream/flag.h"
#include "stream/hold.h"

#define HOCCL_WINDOW 16u /* most chunks that are with the driver at once */

/* A copy of `bytes` in the engine's direction; host addresses stand at the host's end. */
struct hoccl_transfer {
    struct hoccl_list link;   /* in the engine's queue, or behind its party's first, while bytes are left to be given */
    struct hoccl_list behind; /* of the party's first: the others, by `order` */
    const void *party;        /* parties share the engine equally; NULL: a party of its own */
    uint32_t order;           /* in its party: lower ones first, equal ones share by their sizes */
    struct hoccl_hold *hold;  /* of its party: while it keeps, no chunk is given; NULL: none does */
    struct hoccl_share turn;  /* the party's place among parties, kept by its first */
    struct hoccl_share part;  /* its own place in its party */
    CUdeviceptr to, from;
    uint64_t bytes;
    uint64_t given;   /* handed to the submitter */
    uint64_t landed;  /* copied */
    unsigned flight;  /* chunks handed over and not landed */
    CUresult result;  /* the first refusal of the driver */
};

struct hoccl_engine {
    enum hoccl_direction direction;
    CUstream stream;
    struct hoccl_flag done;
    struct hoccl_submitter *submitter;
    struct hoccl_list queue; /* the first transfer of each party, in the order in which they came */
    struct hoccl_pace pace;
    unsigned __int128 clock; /* virtual time of the parties' turns */
    struct hoccl_engine_chunk {
        struct hoccl_transfer *transfer; /* NULL: believed landed already (a test's fault) */
        uint64_t bytes;
        uint32_t result; /* submitter; CUresult */
    } window[HOCCL_WINDOW];
    uint32_t given, landed; /* chunk numbers: window[n mod HOCCL_WINDOW] for landed < n ≤ given */
    uint64_t flight_bytes;
    uint64_t moved_at; /* when a chunk last landed, or the first was given, ns */
    uint32_t alone;    /* number of the last chunk that was given when there was no other */
    uint64_t ends;     /* when that one will have landed, as far as one knows, ns; 0: one does not */
    uint64_t chunks, bytes; /* landed since the start, for tests and logs */
};

HOCCL_Result hoccl_engine_open(struct hoccl_engine *e, enum hoccl_direction direction, struct hoccl_flag_pool *flags,
                               struct hoccl_submitter *submitter);
void hoccl_engine_close(struct hoccl_engine *e, struct hoccl_flag_pool *flags);

/* Queue a transfer (bytes > 0). It lives until it is complete, or cancelled and flight == 0. */
void hoccl_engine_add(struct hoccl_engine *e, struct hoccl_transfer *t);

/* Give no more of it; what the driver has will still land. */
void hoccl_engine_cancel(struct hoccl_engine *e, struct hoccl_transfer *t);

/* Take note of landed chunks; that, and hand over new ones. True if anything moved. */
bool hoccl_engine_land(struct hoccl_engine *e);
bool hoccl_engine_step(struct hoccl_engine *e);

/* When the only chunk that is with the driver will have landed, as far as one knows; 0: there are several, or one does not. */
uint64_t hoccl_engine_ends(const struct hoccl_engine *e);

/* For how long a chunk has been with the driver without anything landing, ns; 0 if none is. */
uint64_t hoccl_engine_stalled(const struct hoccl_engine *e, uint64_t now);

/* Nothing is with the driver. */
static inline bool hoccl_engine_empty(const struct hoccl_engine *e)
{
    return e->given == e->landed;
}

static inline bool hoccl_transfer_complete(const struct hoccl_transfer *t)
{
    return t->landed == t->bytes && !t->flight;
}

#endif
