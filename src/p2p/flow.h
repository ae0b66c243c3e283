/* SPDX-License-Identifier: Apache-2.0 */
/* One message between two ranks of a node: the sender's and the receiver's state machine over the mailbox. */
#ifndef HOCCL_P2P_FLOW_H
#define HOCCL_P2P_FLOW_H

#include "boot/node.h"
#include "p2p/gpu.h"
#include "p2p/mailbox.h"

/* Another rank, as this one sees it. */
struct hoccl_peer {
    int rank;
    struct hoccl_node_card card;
    struct hoccl_link link;
    struct hoccl_board *board; /* the peer's; ours if this is our own rank */
    size_t board_bytes;
    bool same_process;         /* its board and memory are used at their own addresses (our own rank included) */
    struct hoccl_slot *in;     /* in our board: what it sends to us */
    struct hoccl_slot *out;    /* in its board: what we send to it */
    uint32_t sends, receives;  /* calling thread: flows posted so far */
    uint32_t answered[HOCCL_SLOTS]; /* progress thread: the last receive whose slot is free again */
    uint64_t looked;           /* progress thread: when the link was last tested, ns */
};

/*   send:     WAITING ──grant n seen──▶ OPENING ──mapping open──▶ PUSHING ──all landed──▶ DONE (answer n published)
 *   receive:  WAITING ──slot n free──▶ GRANTED (grant n published) ──answer n seen──▶ DONE
 * All arrows are the progress thread's; FAILED is left by nobody. */
enum hoccl_flow_state {
    HOCCL_FLOW_WAITING,
    HOCCL_FLOW_OPENING,
    HOCCL_FLOW_PUSHING,
    HOCCL_FLOW_GRANTED,
    HOCCL_FLOW_DONE,
    HOCCL_FLOW_FAILED,
};

struct hoccl_flow {
    struct hoccl_list link; /* in the communicator's list of running flows */
    void *op;               /* whose part it is */
    bool is_send;
    enum hoccl_flow_state state;
    struct hoccl_peer *peer;
    uint32_t number;        /* posting order of the pair and direction */
    struct hoccl_flow_header header;
    const void *address;
    struct hoccl_memory memory;
    uint64_t since;         /* when it began to wait for the peer, ns */
    bool warned;
    struct hoccl_mapping *mapping;
    struct hoccl_transfer transfer;
};

/* Go as far as possible without waiting. *moved tells whether anything happened. An error is the flow's failure, with
 * the full text; the state is then FAILED (a failed receive may still be written into until its peer has answered). */
HOCCL_Result hoccl_flow_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved);

/* The communicator has failed: stop giving chunks. The flow must be stepped on (hoccl_flow_drain) until it is quiet. */
void hoccl_flow_cancel(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

/* Is nothing of this flow with the driver or with the peer any more? Answers a cancelled send, hears a receive's. */
bool hoccl_flow_drain(struct hoccl_gpu *gpu, struct hoccl_flow *flow);

/* "send 3 to rank 1" for texts; the buffer is the caller's. */
const char *hoccl_flow_name(const struct hoccl_flow *flow, char *buffer, size_t bytes);

#endif
