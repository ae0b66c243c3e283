/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of another node, as one communicator sees it: its connection, what has been said on it, and a mirror of what a
 * rank of this node would show on its board. words.h has the messages.
 *
 *   NEW ──(calling thread has filled it in; the progress thread connects, at once or at first use)──▶ JOINING
 *   JOINING ──JOINED──▶ JOINED, HELLO said
 *   JOINED ──the peer's HELLO──▶ OPEN ──CLOSED (by the peer, in good order)──▶ CLOSED
 *   JOINING, JOINED, OPEN ──any fault, of the transport or in what the peer says──▶ BROKEN
 *   any ──hoccl_far_close──▶ ENDED
 *
 * Every arrow from NEW on is the progress thread's; the thread that makes the communicator reads the state. */
#ifndef HOCCL_P2P_FAR_H
#define HOCCL_P2P_FAR_H

#include "p2p/flow.h"
#include "p2p/pipe.h"
#include "p2p/words.h"

#define HOCCL_FAR_TABLE 64u

enum hoccl_far_state {
    HOCCL_FAR_NEW,
    HOCCL_FAR_JOINING,
    HOCCL_FAR_JOINED,
    HOCCL_FAR_OPEN,
    HOCCL_FAR_CLOSED,
    HOCCL_FAR_BROKEN,
    HOCCL_FAR_ENDED,
};

struct hoccl_wire;

/* Owner: the progress thread, but what stands under another name. */
struct hoccl_far {
    struct hoccl_list link;  /* in one of the wire's lists */
    /* The calling thread, before NEW is published. */
    struct hoccl_wire *wire;
    int rank, own_rank;
    uint64_t id;             /* of the connection */
    char name[128];          /* "rank 3 (host, pid 77)", for texts */
    struct hoccl_endpoint_card card;
    int packets;             /* this thread's end of the pair on which boot/gather.h sends; −1: none */
    bool late;               /* connects at first use */

    uint32_t state;
    char text[HOCCL_STATUS_TEXT]; /* BROKEN: why; stands before the state does */
    struct hoccl_connection *connection;
    int lanes;
    struct hoccl_pipe pipe;  /* what goes between the two of us, as a model */
    unsigned ahead;          /* chunks of one flow that may be on the way to us at once */
    struct hoccl_region_key pool; /* the peer's in pool, from its HELLO */

    struct hoccl_board *board;    /* mirror of the peer's status */
    struct hoccl_totals totals;   /* mirror */

    struct hoccl_list words;      /* messages that wait for room, or for the connection */
    struct hoccl_list filled;     /* out slots, and chunks of registered memory, that wait to be written, in order */
    unsigned writing;             /* those that are with the network */
    struct hoccl_list sends[HOCCL_FAR_TABLE];    /* flows that have claimed, by number */
    struct hoccl_list receives[HOCCL_FAR_TABLE]; /* flows that wait for a claim or for chunks, by number */
    struct hoccl_list claims[HOCCL_FAR_TABLE];   /* claims whose receive has not been reached */

    uint64_t moved_at; /* when the network last took or brought something, or was first given it, ns */
    uint64_t heard_at; /* when anything last came from the peer, ns */
    uint64_t given_up_at; /* when a flow to or from the peer was last given up, ns; 0: never */
    uint64_t lost;     /* bytes of sends already completed that the network has not taken when the connection broke */

    char *packet;      /* a packet that is arriving in pieces */
    size_t packet_bytes;
    struct hoccl_list packed; /* packets that have come and wait until `packets` has room */
};

/* The tables and the mirror; the caller fills in the calling thread's part. */
HOCCL_Result hoccl_far_make(struct hoccl_far **far);
void hoccl_far_free(struct hoccl_far *far);

/* Connect: NEW → JOINING or BROKEN. */
void hoccl_far_join(struct hoccl_far *far);

/* The first flow: connect if that has not been begun. */
static inline void hoccl_far_need(struct hoccl_far *far)
{
    if (far->state == HOCCL_FAR_NEW)
        hoccl_far_join(far);
}

/* Queue a message; it goes in order, once there is a connection. Dropped if there is none any more (its end is known
 * otherwise). */
void hoccl_far_say(struct hoccl_far *far, const void *word, size_t bytes);

/* The first message. */
void hoccl_far_greet(struct hoccl_far *far, const struct hoccl_word_hello *hello);

/* Give waiting messages, then filled slots, to the transport. True if any went. */
bool hoccl_far_flush(struct hoccl_far *far);

/* A message has come. */
void hoccl_far_hear(struct hoccl_far *far, const void *word, size_t bytes);

/* Has the peer claimed this receive? Its header then, once, and whether its stream is not there yet. A claim that does not agree
 * waits until both streams are there. */
bool hoccl_far_claimed(struct hoccl_far *far, const struct hoccl_flow *flow, struct hoccl_flow_header *header, bool *early);

/* The transport is done with it (event), or something is wrong: the text says what. Everything that the network had of
 * ours is ours again. */
void hoccl_far_closed(struct hoccl_far *far);
void hoccl_far_broken(struct hoccl_far *far, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Everything that this rank has given has left it. */
bool hoccl_far_flushed(const struct hoccl_far *far);

/* End the connection in good order if it is flushed; else what has not left is cut off. */
void hoccl_far_close(struct hoccl_far *far);

/* Forward what hoccl_gather has sent, or received; false if some could not go yet. */
bool hoccl_far_pump(struct hoccl_far *far);

static inline bool hoccl_far_is_open(const struct hoccl_far *far)
{
    return far->state == HOCCL_FAR_OPEN;
}

static inline bool hoccl_far_is_over(const struct hoccl_far *far)
{
    return hoccl_observe(&far->state) > HOCCL_FAR_OPEN;
}

#endif
