/* SPDX-License-Identifier: Apache-2.0 */
/* One message between two ranks of a node: the sender's and the receiver's state machine over the mailbox.
 *
 * The paths (mailbox.h draws them) in order of preference: PUSH by the sender; PULL by the receiver; STAGED. */
#ifndef HOCCL_P2P_FLOW_H
#define HOCCL_P2P_FLOW_H

#include "boot/node.h"
#include "p2p/gpu.h"
#include "p2p/mailbox.h"
#include "p2p/words.h"
#include "stream/hold.h"

struct hoccl_far;

/* Another rank, or this one, as this one sees it. One of another node has `far` and no mailbox: its board is a mirror. */
struct hoccl_peer {
    int rank;
    struct hoccl_node_card card;
    struct hoccl_link link;
    struct hoccl_far *far; /* its connection; NULL: it is on this node */
    bool same_process; /* its board and memory are used at their own addresses (our own rank included) */
    bool same_gpu;     /* bound to our GPU (our own rank included) */
    bool same_object;  /* and in this process: it shares our GPU object */
    CUuuid uuid;       /* of its GPU */
    bool closed;       /* the driver says that our GPU cannot access its: everything between us is staged */
    struct hoccl_board *board; /* the peer's; ours if this is our own rank */
    size_t board_bytes;
    struct hoccl_slot *in;          /* in our board: what it sends to us */
    struct hoccl_slot *out;         /* in its board: what we send to it */
    const struct hoccl_totals *totals; /* in its board: what it has posted with us, once that is final */
    struct hoccl_stage *stage;      /* our board's staging area, for what it sends to us */
    struct hoccl_stage_view view;   /* its board's, for what we send to it */
    uint32_t sends, receives;       /* calling thread: flows posted so far */
    uint32_t answered[HOCCL_SLOTS]; /* progress thread: the last receive whose slot is free again */
    uint64_t looked;                /* progress thread: when the link was last tested, ns */
    uint64_t warned;                /* progress thread: when it was last said that we wait for it, ns; 0: never */
    uint32_t paths_said;            /* progress thread: bit for each path already logged */
    struct hoccl_flow *last[2];     /* progress thread, while an operation starts: receives, sends (core/lines.c) */
    bool no_third;                  /* progress thread: slots on a third GPU have been tried for what it sends to us, in vain */
    uint64_t stage_key;             /* progress thread: of its staging on a third GPU, as last told; 0: not yet */
};

/*   send:     WAITING ──grant of a range not known──▶ OFFERED ──descriptors sent──▶ OPENING, as next  (PUSH)
 *             WAITING ──grant──▶ OPENING ──mapping open──▶ MOVING ──all landed──▶ DONE           (PUSH)
 *             WAITING ──grant──▶ OPENING ──stages ready──▶ MOVING ──all landed──▶ DONE           (SELF)
 *                       └──────▶ OFFERED ──receipt──▶ DONE                                       (PULL)
 *                                   └──slots given──▶ MOVING ──all drained──▶ DONE               (STAGED)
 *   receive:  WAITING ──slot of the ring free──▶ OFFERED ──answer──▶ DONE                        (PUSH)
 *                OFFERED ──offer──▶ OPENING ──▶ MOVING ──▶ OFFERED, receipt given                (PULL)
 *                OFFERED ──offer──▶ OPENING (waits for slots) ──▶ MOVING ──▶ OFFERED, all out    (STAGED)
 * To and from other nodes (WIRE, wired.c): WAITING, perhaps early ──claimed, or ready for the claim──▶ OFFERED ──▶ DONE
 * All arrows are the progress thread's. DONE publishes the answer (send) or has taken it (receive); FAILED is left by
 * nobody. */
enum hoccl_flow_state {
    HOCCL_FLOW_WAITING,
    HOCCL_FLOW_OFFERED,
    HOCCL_FLOW_OPENING,
    HOCCL_FLOW_MOVING,
    HOCCL_FLOW_DONE,
    HOCCL_FLOW_FAILED,
};

enum hoccl_path { HOCCL_PATH_NONE, HOCCL_PATH_PUSH, HOCCL_PATH_PULL, HOCCL_PATH_STAGED, HOCCL_PATH_WIRE, HOCCL_PATH_SELF };

/* WIRE: a flow's part in far.h and wire.h. Its chunks are counted here, their transfers stand in the slots. */
struct hoccl_flow_wire {
    struct hoccl_list table;  /* in the connection's sends or receives */
    struct hoccl_list turn;   /* in the wire's sends or receives */
    uint32_t chunk, chunks;   /* bytes of a chunk but the last; how many. 0: not known yet */
    uint32_t granted;         /* chunks that have a place at the receiver */
    uint32_t started;         /* send: chunks that have been given to the engine, or to the network as they are */
    uint32_t arrived;         /* receive: chunks that have come */
    uint32_t landed;          /* chunks that the engine has copied; of registered memory: that have been written, or have come */
    uint32_t copying;         /* chunks that the engine has */
    uint32_t network;         /* chunks of registered memory that the network may still read or write */
    uint32_t answer;          /* enum hoccl_answer_status, 0: none; given (receive) or heard (send) */
    bool unflushed;           /* receive: what has arrived cannot be read (wire->unflushed) */
    bool given_up;            /* the communicator has failed: it takes no part any more */
    bool early;               /* in the connection's table, and this rank's stream has not reached it (early.h) */
    bool met;                 /* the peer's stream has reached it, as far as is known here */
    uint32_t lent;            /* receive: slots granted to it that count as early */
    bool turned;              /* counted among the wire's large flows under way */
    bool uneven;              /* one of several that differ in size (precedence.h) */
    CUresult result;          /* the first refusal of the driver */
    uint64_t granted_at;      /* when slots were last granted, ns */
    struct hoccl_flow_header theirs; /* with MISMATCH: the peer's */
    uint32_t slot[HOCCL_GRANT_MOST]; /* send: words of granted chunks */
    struct hoccl_registration *registered; /* the buffer's; NULL: it goes by slots */
    struct hoccl_destination *into;              /* send: where granted chunks go at a registered receiver; NULL: slots only so far */
};

/* Where the flow's first byte would be, for a chunk that is written into the receiver's buffer. */
struct hoccl_destination {
    struct hoccl_region_key region;
    uint64_t offset;
};

/* SELF (self.c): where chunks are on their way. */
enum hoccl_self_state { HOCCL_SELF_IDLE, HOCCL_SELF_FILLING, HOCCL_SELF_DRAINING };

struct hoccl_self_place {
    enum hoccl_self_state state;
    uint16_t span;      /* slots it has; 0: none */
    uint64_t at, bytes; /* of the chunk in the flow */
};

struct hoccl_flow_self {
    CUdeviceptr to;
    struct hoccl_stage *stage[2]; /* on another GPU, in host memory; NULL: that route is not taken */
    uint64_t front, back;         /* between them are the bytes that no place has yet */
    uint64_t landed;              /* bytes that have arrived */
    uint32_t fills, filled, drains, drained; /* in turns: queued, landed */
    bool held;                    /* in turns: not begun with, because the operation's other sends come first */
    uint64_t held_since;          /* ns; 0: nobody has looked yet */
    struct hoccl_self_place place[HOCCL_FLOW_STAGES];
};

/* DETOUR (detour.h): the tail of a PUSH by way of host memory, in view, stage, base, slot[] and transfer[1 + i mod slots]. */
struct hoccl_flow_detour {
    uint64_t front;   /* send: bytes from the first on that have been given to the push */
    uint64_t begun, drained_at; /* send: when slots had come, when a chunk was last drained, ns */
    uint32_t most;    /* send: chunks planned; once the push has landed, those that count */
    uint32_t started, landed; /* chunks given to the own engine, and landed */
    uint32_t drained; /* send: as last seen */
    bool open;        /* slots are there */
    bool closing;     /* receive: gates bar H2D copies */
    bool closed;      /* and the sender has been told; send: it has been */
};

/* core/lines.h, of an operation with more flows than run at once. */
struct hoccl_flow_line {
    struct hoccl_flow *first; /* of the operation's with this peer in this direction; NULL: all of them run */
    struct hoccl_flow *next;  /* NULL: none */
    struct hoccl_flow *later; /* of the first: the next that has not begun; NULL: none */
    uint32_t begun;           /* of the first: how many began with the operation */
};

struct hoccl_flow {
    struct hoccl_list link; /* in the communicator's list of running flows */
    struct hoccl_flow_line line;
    void *op;               /* whose part it is */
    const struct hoccl_flow *after; /* another one of its operation, which must be DONE before it begins; NULL: none */
    bool is_send;
    enum hoccl_flow_state state;
    enum hoccl_path path;
    struct hoccl_peer *peer;
    uint32_t number;        /* posting order of the pair and direction */
    uint32_t order;         /* in its collective, where several share an engine: lower ones first, equal ones together */
    struct hoccl_flow_header header;
    struct hoccl_hold *hold; /* foreground phases that hold it up; NULL: it is posted in one */
    const void *address;
    struct hoccl_memory memory;
    uint64_t since;         /* when it began to wait for the peer, ns */
    bool warned;
    bool foreseen;          /* hoccl_flow_ends has told */
    struct hoccl_mapping *mapping; /* PUSH, PULL; STAGED on a third GPU: the sender's, of the receiver's slots */
    struct hoccl_dispatch dispatch; /* receive: descriptors that the sender needs: of its memory, or of slots on a third GPU */
    /* STAGED: chunk i of `chunks` uses transfer[i mod slots] and `span` slots from slot[i mod slots] on. */
    struct hoccl_stage_view *view; /* whose memory must be ready; NULL: the mapping's */
    struct hoccl_stage *stage;     /* receive: who has given the slots */
    enum hoccl_stage_kind where;   /* on which the next three depend */
    CUdeviceptr base;              /* of the first slot */
    bool refused;                  /* send: the slots on a third GPU cannot be used here, and the receiver is told so */
    uint32_t span;                 /* slots of a chunk, neighbours */
    uint32_t chunks, started, landed, slots;
    uint16_t slot[HOCCL_FLOW_STAGES];
    struct hoccl_transfer transfer[HOCCL_FLOW_STAGES]; /* PUSH, PULL: the first */
    struct hoccl_flow_detour detour; /* PUSH */
    struct hoccl_flow_wire wire; /* WIRE */
    struct hoccl_flow_self self; /* SELF: place[i] uses slot[i] and transfer[i]; in turns, place[0] uses transfer[1] too */
};

/* Its stream is the next to get there: what it will touch comes into this thread's cache meanwhile. */
void hoccl_flow_expect(const struct hoccl_flow *flow);

/* To or from another node: the two ends may agree before their streams get there (early.h). True if anything was said. */
bool hoccl_flow_foretell(struct hoccl_flow *flow);

/* Go as far as possible without waiting. *moved tells whether anything happened. An error is the flow's failure, with
 * the full text (a failed receive may still be written into until its peer has answered). */
HOCCL_Result hoccl_flow_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);

/* What the peer has already answered to a receive; success if it has not. */
HOCCL_Result hoccl_flow_verdict(struct hoccl_flow *flow);

/* The communicator has failed: stop giving chunks. The flow must be stepped on (hoccl_flow_drain) until it is quiet. */
void hoccl_flow_cancel(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

/* Is nothing of this flow with the driver or with the peer any more? Answers a cancelled send, hears a receive's. */
bool hoccl_flow_drain(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

/* Does it wait for this process's engines or submitter? */
bool hoccl_flow_busy(const struct hoccl_flow *flow);

/* Send: when it will have ended, if that can be foreseen; 0: it cannot, or has been told already. */
uint64_t hoccl_flow_ends(const struct hoccl_gpu *gpu, struct hoccl_flow *flow);

/* Bytes that this end has moved, for texts. */
uint64_t hoccl_flow_moved(const struct hoccl_flow *flow);

/* "send 3 to rank 1 (host, pid)" for texts; the buffer is the caller's. */
const char *hoccl_flow_name(const struct hoccl_flow *flow, char *buffer, size_t bytes);

/* ---- between the files of this folder ---------------------------------------------------------------------------- */

struct hoccl_slot *hoccl_flow_slot(const struct hoccl_flow *flow);

/* Is the peer still there? An error with the text if not. Then, while nothing has come from it: patience. */
HOCCL_Result hoccl_flow_check_peer(struct hoccl_flow *flow);
HOCCL_Result hoccl_flow_wait_peer(struct hoccl_flow *flow);

/* The sender's last word; the state becomes DONE or FAILED. */
void hoccl_flow_answer(struct hoccl_flow *flow, enum hoccl_answer_status status);

/* Sender: tell the receiver how to pull, or ask it for staging (by the flow's path); the state becomes OFFERED. */
void hoccl_flow_offer(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

/* Sender: has the receiver given slots although a push or pull was offered? The path is STAGED then, the state as before. */
bool hoccl_flow_staged_after_all(struct hoccl_flow *flow, const char *why, bool *moved);

/* Say once for each peer which path its flows take, and why. Who has a long text to make asks first whether that has been said. */
void hoccl_flow_say_path(struct hoccl_flow *flow, const char *why);
bool hoccl_flow_path_said(const struct hoccl_flow *flow);

/* Do the two ends agree? The error with both values if not. While nothing has come from the peer: patience. */
bool hoccl_flow_agrees(const struct hoccl_flow *flow, const struct hoccl_flow_header *theirs);
HOCCL_Result hoccl_flow_mismatch(const struct hoccl_flow *flow, const struct hoccl_flow_header *theirs);
HOCCL_Result hoccl_flow_check_patience(struct hoccl_flow *flow);

/* wired.c: WIRE. */
bool hoccl_wired_foretell(struct hoccl_flow *flow);
HOCCL_Result hoccl_wired_step(struct hoccl_flow *flow, bool *moved);
HOCCL_Result hoccl_wired_check_peer(struct hoccl_flow *flow);
HOCCL_Result hoccl_wired_verdict(const struct hoccl_flow *flow);
void hoccl_wired_cancel(struct hoccl_flow *flow);
bool hoccl_wired_drain(struct hoccl_flow *flow);

/* direct.c: PUSH and PULL. staged.c: STAGED. */
HOCCL_Result hoccl_direct_open(struct hoccl_gpu *gpu, struct hoccl_flow *flow, enum hoccl_path path, bool *moved);
/* PUSH into a range whose descriptors have to come first: the sender's wait, the receiver's sending. */
HOCCL_Result hoccl_direct_await(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);
HOCCL_Result hoccl_direct_dispatch(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);
HOCCL_Result hoccl_direct_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);
HOCCL_Result hoccl_staged_send_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);
HOCCL_Result hoccl_staged_receive_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);
HOCCL_Result hoccl_staged_receive_open(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);
/* self.c: SELF; the sender's part, which is all of it. */
HOCCL_Result hoccl_self_open(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);
HOCCL_Result hoccl_self_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);
/* In turns: is it still to be held, for what its operation sends to others? */
void hoccl_self_hold(struct hoccl_flow *self, const struct hoccl_flow *flows, int count, uint64_t now);
void hoccl_self_cancel(struct hoccl_gpu *gpu, struct hoccl_flow *flow);
void hoccl_self_give_back(struct hoccl_flow *flow);
/* The staging area must be usable here before the first copy: its state then, READY or FAILED in the end. FAILED: why. */
uint32_t hoccl_staged_prepare(struct hoccl_gpu *gpu, struct hoccl_stage_view *view);
HOCCL_Result hoccl_staged_not_had(const struct hoccl_flow *flow);
/* Receiver: the slots are free again. Nothing if it has none. */
void hoccl_staged_give_back(struct hoccl_flow *flow);
void hoccl_staged_publish_slots(struct hoccl_flow *flow);
size_t hoccl_staged_chunk(const struct hoccl_flow *flow); /* bytes of each but the last */
struct hoccl_engine *hoccl_staged_engine(struct hoccl_gpu *gpu, const struct hoccl_flow *flow);

#endif
