/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU object has for ranks of other nodes: one endpoint of a transport, and two pools of slots (pool.h), shared by
 * all peers and communicators.
 *
 *   user's buffer ─engine─▶ out slot ═network═▶ in slot ─engine─▶ user's buffer
 *
 * Different chunks are in all three places at once. Registered memory needs no slot at its end (registered.h). Who may go
 * on is decided here, for all flows together:
 *
 *   receiver  grants slots to claimed flows, those of one operation in its order (precedence.h), to at most two large flows at once
 *             (the second, so that the NIC has work when the first one's sender is busy elsewhere), and of uneven ones a few
 *             slots to each, since nobody knows whose sender is free; a flow of one chunk needs no turn, but leaves a quarter
 *             of the pool to the large ones; and a few to flows that their streams reach next (early.h)
 *   sender    fills slots for granted chunks only, the oldest operation and the first of its flows first, at most two large
 *             flows at once; a flow that waits for grants holds no slot and no turn
 *
 * Owner: the progress thread, from the moment that `open` is published. */
#ifndef HOCCL_P2P_WIRE_H
#define HOCCL_P2P_WIRE_H

#include "p2p/far.h"
#include "p2p/loan.h"
#include "p2p/place.h"
#include "p2p/pool.h"
#include "p2p/registry.h"

struct hoccl_wire {
    const struct hoccl_transport *transport;
    struct hoccl_endpoint *endpoint;
    struct hoccl_endpoint_card card; /* empty: there is no endpoint, */
    char failure[HOCCL_STATUS_TEXT]; /* and why not */
    char about[400];             /* the endpoint in words */
    HOCCL_Result result;
    struct hoccl_gpu *gpu;
    struct hoccl_place place;
    struct hoccl_loan loan;      /* memory for the pools on a GPU that is hidden from us; only until they stand */
    char slots[300];             /* where the pools are, in words */
    uint32_t told;               /* place.c: which refusals have been said */
    struct hoccl_pool out, in;
    struct hoccl_order order;    /* flushes of what has arrived */
    char unflushed[256];         /* why one failed */
    struct hoccl_pool user_out, user_in; /* chunks of registered memory that the network may touch (registered.h) */
    struct hoccl_registry registry;      /* any thread, under its lock */
    uint32_t open;               /* 1: the progress thread may use the endpoint */
    bool equipped;               /* the pools are there and registered */
    struct hoccl_list fars;      /* connections that have been begun */
    struct hoccl_list latent;    /* ranks that connect at first use, while they have not */
    struct hoccl_list filling, emptying; /* slots that the engines have, out and in */
    struct hoccl_list sends;     /* flows with chunks that are granted; operations oldest first, each in its order */
    struct hoccl_list receives;  /* flows that want slots, in the same way */
    struct hoccl_list early;     /* receives that want early ones, in the order in which the two ends met */
    unsigned lent;               /* early slots */
    int sending, receiving;      /* large flows that fill slots, that are granted slots */
    unsigned fillings;           /* slots in `filling` */
    unsigned uneven;             /* flows in `receives` that are uneven */
};

/* What all wires of the process have done, for tests and logs: sums and maxima. */
struct hoccl_wire_count {
    uint64_t begun;              /* connections */
    uint64_t claimed;            /* receiver: claims heard */
    uint64_t granted, arrived;   /* receiver: slots given, chunks come */
    uint64_t early, held;        /* of these, given before both streams were there, come before the receive's was */
    uint64_t lent;               /* most early slots at once, of one wire */
    uint64_t flushed;            /* of these, how many had to be flushed */
    uint64_t allowed, filled, written; /* sender: slots given to us, out slots taken, given to the network */
    uint64_t into, allowed_into; /* chunks that we let into our registered buffers, that peers let into theirs */
    uint64_t from;               /* chunks that go from our registered buffers */
    uint64_t deepest;            /* most chunks of one flow on the way at once */
    uint64_t sending, receiving; /* most large flows at once, of one wire */
    uint64_t overlaps;           /* writes given while an engine was filling another slot */
    uint64_t all_busy;           /* and, anywhere in this process, an engine was emptying one */
    uint64_t emptying;           /* slots that engines are emptying now */
};
extern struct hoccl_wire_count hoccl_wire_counts;

/* Tests put theirs here before the first communicator; NULL: hoccl_transport_choose. And where they want the slots: where
 * place.h puts them, in host memory, or on another GPU also where no topology knows a symmetric one. */
enum hoccl_wire_choice { HOCCL_WIRE_CHOOSE, HOCCL_WIRE_ON_HOST, HOCCL_WIRE_ON_GPU };
extern const struct hoccl_transport *hoccl_wire_transport;
extern enum hoccl_wire_choice hoccl_wire_place;

/* Tests: told of each receive when it is granted its first places, by the progress thread. NULL: nobody is. */
extern void (*hoccl_wire_watch)(const struct hoccl_flow *flow);

/* The GPU's endpoint, at the first call; its absence is no error, `card` is empty then. Under the GPU table's lock. */
HOCCL_Result hoccl_wire_open(struct hoccl_gpu *gpu);

/* What another rank has made for the pools, before they stand; the same lock. */
void hoccl_wire_accept_loan(struct hoccl_wire *wire, const struct hoccl_loan *loan);

/* The pools, before the first connection; the same lock, and the context current. Without them ranks of other nodes can
 * still be told why. */
HOCCL_Result hoccl_wire_equip(struct hoccl_wire *wire);

/* The threads have ended: the endpoint goes, the pools' memory stays until hoccl_wire_free (only inside
 * hoccl_parking_quiet). */
void hoccl_wire_close(struct hoccl_wire *wire);
void hoccl_wire_free(struct hoccl_wire *wire);

/* Events, landed copies, messages, writes, grants, copies. True if anything moved. */
bool hoccl_wire_step(struct hoccl_wire *wire);

/* Nothing of ours is on its way to a peer. */
bool hoccl_wire_idle(const struct hoccl_wire *wire);

/* Before the thread sleeps: true if there is news already. */
bool hoccl_wire_arm(struct hoccl_wire *wire);

/* Now and then: what does not move is broken; peers that wait for us are told that we live. */
void hoccl_wire_check(struct hoccl_wire *wire, uint64_t now);

/* ---- for the wire's other files, far.c and wired.c ---------------------------------------------------------------- */

#define HOCCL_WIRE_LARGE 2 /* large flows that fill slots at once, that are granted slots at once */

/* wire_grants.c: all that may be granted now. True if anything was. */
bool hoccl_wire_give_grants(struct hoccl_wire *wire);

#define HOCCL_WIRE_KEPT_FOR_LARGE (HOCCL_POOL_SLOTS / 4) /* slots that flows which need no turn leave to the others */

/* Slots for the next n chunks of a receive. */
void hoccl_wire_grant_slots(struct hoccl_wire *wire, struct hoccl_flow *flow, unsigned n);

/* What has come into a slot on its way into the receive's buffer. */
void hoccl_wire_empty(struct hoccl_wire *wire, struct hoccl_pool_slot *slot);


/* A send has been granted places; a receive has met its claim. */
void hoccl_wire_allow(struct hoccl_wire *wire, struct hoccl_flow *flow);
void hoccl_wire_want(struct hoccl_wire *wire, struct hoccl_flow *flow);

/* Give no more of this flow to anybody, and forget it once its copies have landed. */
void hoccl_wire_drop(struct hoccl_wire *wire, struct hoccl_flow *flow);

/* The send's next granted chunk goes to the place that was granted for it. */
void hoccl_wire_aim(const struct hoccl_flow *flow, struct hoccl_pool_slot *slot);

/* A send of which neither an engine nor the network has anything waits for grants, or is over: it gives up its turn. */
void hoccl_wire_rest(struct hoccl_wire *wire, struct hoccl_flow *flow);

/* The network has nothing of this connection any more: its slots are free, or will be when the engines are done. The
 * bytes that were left to be written. */
uint64_t hoccl_wire_reclaim(struct hoccl_wire *wire, struct hoccl_far *far);

/* The flow of that number; NULL if there is none. */
struct hoccl_flow *hoccl_wired_find(struct hoccl_list *table, uint32_t number);
/* wired.c: the receive and the claim are both there. */
void hoccl_wired_meet(struct hoccl_flow *flow, const struct hoccl_flow_header *theirs, bool early);

#endif
