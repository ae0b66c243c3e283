/* SPDX-License-Identifier: Apache-2.0 */
/* The mailboxes between the ranks of a node: memory shared by two processes, no lock, no system call (paper §3.3.2,
 * whose semaphores and named shared memory are replaced by words in a memfd that has no name to leak).
 *
 * Every rank owns a board: its status, for each peer a ring of slots for the flows that this peer sends to it, and a
 * staging area. Flow n of a pair (both ends count in posting order) uses slot n mod 64 of the receiver's board:
 *
 *   receiver (owns the board)                              sender (has it mapped)
 *   its stream has reached the receive
 *   grant ← header and memory, tag ← n ──────────────────▶ sees the tag; its stream has reached the send:
 *                                                           takes the grant, compares the headers, then the best path:
 *   PUSH    the receiver's memory can be opened
 *                                                           opens it, pushes the bytes
 *   PULL    only the sender's can be opened
 *                                             ◀──────────── offer ← its memory, tag ← n
 *   opens it, pulls the bytes; receipt.tag ← n ──────────▶
 *   SELF    both are on one GPU, and both ends in one process
 *                                                           copies them, by way of its own slots (self.c)
 *   STAGED  neither can be opened, or both are on one GPU, or a buffer is host memory; or a PULL's receiver cannot open it after all
 *                                             ◀──────────── offer ← (nothing to open), tag ← n
 *   receipt ← slots of the staging area, staged ← n ─────▶ copies chunk i into slot i mod k
 *                                             ◀──────────── offer.filled ← i + 1 (or REFUSED: slots in host memory, please)
 *   copies it out; receipt.drained ← i + 1 ──────────────▶ the staging slot may be filled again
 *   always, at the end
 *   sees the tag: the data is in place, or  ◀──────────── answer ← status and header, tag ← n
 *   why it is not; the slot is free for n + 64
 *
 * Writers: `grant`, `grant_memory` and `receipt` the receiver, `offer`, `offer_memory` and `answer` the sender, `status`
 * the owner; each line has one writer (but the grant's tag, see HOCCL_GRANT_TAKEN), and its tag is published last. A
 * sender writes its lines for n only after it has seen the grant n, which the receiver publishes only after it has taken
 * the answer n − 64: so no line is written while the other end may still read it. Before the grant n is published the
 * receiver takes the tags of its receipt off n, and the sender its offer's before it takes the grant, and nobody reads the
 * offer of a grant not taken: so what a flow left there 2^32 numbers ago is no word of this one. */
#ifndef HOCCL_P2P_MAILBOX_H
#define HOCCL_P2P_MAILBOX_H

#include "base/atomic.h"
#include "hoccl.h"

#include <stddef.h>

#define HOCCL_SLOTS 64u
#define HOCCL_HANDLE_BYTES 64
#define HOCCL_STATUS_TEXT 384

/* What both ends of a flow must agree on. */
struct hoccl_flow_header {
    uint64_t bytes;
    uint64_t operation;    /* number of the collective in the communicator; 0 for Send and Recv, which match in order */
    uint16_t kind;         /* enum hoccl_flow_kind */
    uint16_t element_size; /* told in messages; a difference alone is no error */
    int32_t root;          /* of a collective that has one; else −1 */
    uint64_t whole;        /* bytes of the message of which this flow is a part (Broadcast); else 0 */
};

_Static_assert(sizeof(struct hoccl_flow_header) == 32, "a grant has room for no more");

/* What a flow is part of. */
enum hoccl_flow_kind {
    HOCCL_FLOW_SEND_RECV = 1,
    HOCCL_FLOW_ALLGATHER,
    HOCCL_FLOW_ALLTOALL,
    HOCCL_FLOW_BROADCAST,
    HOCCL_FLOW_GATHER,
    HOCCL_FLOW_SCATTER,
};

/* How the other end can reach a buffer. */
enum hoccl_memory_kind {
    HOCCL_MEMORY_CLOSED,  /* not at all */
    HOCCL_MEMORY_HOST,    /* not at all, and no engine of another GPU copies there: pinned host memory */
    HOCCL_MEMORY_ADDRESS, /* by its address: the same process */
    HOCCL_MEMORY_IPC,     /* by the legacy IPC handle of its allocation */
    HOCCL_MEMORY_RANGE,   /* by descriptors of its segments, which the other end asks for once (parcel.h) */
    HOCCL_MEMORY_WANTED,  /* in an offer: descriptors of the granted range, please */
    HOCCL_MEMORY_DETOUR,  /* in an offer: it is being pushed; slots in host memory for its tail, please (detour.h) */
};

/* A grant ends when the sender takes it or the receiver withdraws it (its communicator has failed), whoever is first to
 * change its tag n: a receiver need not wait for a sender that has not begun. The tags of a slot are equal in their low
 * bits, so neither value is ever another flow's. */
#define HOCCL_GRANT_TAKEN(n) ((n) ^ 1u)
#define HOCCL_GRANT_WITHDRAWN(n) ((n) ^ 2u)

struct hoccl_grant {
    uint32_t tag;  /* published last */
    uint32_t kind; /* enum hoccl_memory_kind; also the next three */
    uint64_t buffer; /* the driver's id of the allocation: the key of the other end's cache */
    uint64_t base;   /* address of the allocation in this process */
    uint64_t offset; /* of the buffer in the allocation */
    struct hoccl_flow_header header;
} __attribute__((aligned(HOCCL_CACHE_LINE)));

struct hoccl_handle {
    uint8_t bytes[HOCCL_HANDLE_BYTES]; /* CUipcMemHandle of the whole allocation; a line in a slot, unaligned elsewhere */
};

struct hoccl_offer {
    uint32_t tag;  /* published last */
    uint32_t kind; /* published: a sender that could not open what it WANTED then asks for staging.
                      IPC, ADDRESS: pull from here; WANTED: a push, once the descriptors are here; CLOSED, HOST: staging, HOST
                      in host memory only; DETOUR: `offset` is the number of slots of a chunk */
    uint64_t buffer, base, offset; /* CLOSED: `buffer` is the key of the receiver's slots on a third GPU that are mapped here */
    uint32_t filled; /* STAGED: chunks that stand in the staging slots, counted from the flow's first; HOCCL_REFUSED: the
                        slots on a GPU cannot be used here, give some in host memory */
} __attribute__((aligned(HOCCL_CACHE_LINE)));

#define HOCCL_FLOW_STAGES 8 /* most staging slots of one flow */
#define HOCCL_REFUSED UINT32_MAX

/* What the receiver of a PULL says in its receipt's tag when it has failed and reads the sender's memory no more. */
#define HOCCL_RECEIPT_LEFT(n) ((n) ^ 1u)

struct hoccl_receipt {
    uint32_t tag;     /* PULL: published when the bytes have been pulled, or are not any more; WANTED: when the descriptors are sent */
    uint32_t staged;  /* STAGED: published when the next three stand */
    uint32_t where;   /* enum hoccl_stage_kind; published behind the rest when slots are given for the second time */
    uint32_t count;   /* chunks that have a place in staging slots at once */
    uint16_t slot[HOCCL_FLOW_STAGES];
    uint32_t drained; /* STAGED, DETOUR: chunks copied out; DETOUR: the top bit when that is all */
    uint64_t key;     /* where is GPU: of the memory, whose descriptor has been sent */
    uint32_t span;    /* slots of a chunk: `slot` names the first of so many neighbours */
} __attribute__((aligned(HOCCL_CACHE_LINE)));

enum hoccl_answer_status { HOCCL_ANSWER_DONE = 1, HOCCL_ANSWER_MISMATCH, HOCCL_ANSWER_FAILED };

struct hoccl_answer {
    uint32_t tag; /* published last */
    uint32_t status;
    struct hoccl_flow_header header; /* the sender's */
    uint64_t moved;                  /* bytes that have been moved */
} __attribute__((aligned(HOCCL_CACHE_LINE)));

struct hoccl_slot {
    struct hoccl_grant grant;
    struct hoccl_handle grant_memory;
    struct hoccl_receipt receipt;
    struct hoccl_offer offer;
    struct hoccl_handle offer_memory;
    struct hoccl_answer answer;
};

enum hoccl_board_state { HOCCL_BOARD_OPEN = 1, HOCCL_BOARD_FAILED, HOCCL_BOARD_ABORTED, HOCCL_BOARD_CLOSED };

struct hoccl_board_status {
    uint32_t magic;
    uint32_t version;
    uint32_t state; /* enum hoccl_board_state; published after the text */
    uint32_t quiet; /* 1: after FAILED or ABORTED, nothing of the owner's is moving into other ranks' memory any more */
    char text[HOCCL_STATUS_TEXT]; /* why, when FAILED */
} __attribute__((aligned(HOCCL_CACHE_LINE)));

/* What the owner has posted with one peer when it will post no more (HOCCL_Finalize, HOCCL_CommDestroy): a flow of the
 * peer's beyond that will never be matched. */
struct hoccl_totals {
    uint32_t final;    /* 1: the next two stand for good; published last */
    uint32_t sends;    /* number behind the last send to the peer */
    uint32_t receives; /* number behind the last receive from it */
} __attribute__((aligned(HOCCL_CACHE_LINE)));

struct hoccl_ring {
    struct hoccl_totals totals; /* owner */
    struct hoccl_slot slot[HOCCL_SLOTS];
};

struct hoccl_board {
    struct hoccl_board_status status;
    struct hoccl_ring ring[]; /* [peer's rank] */
};

_Static_assert(sizeof(struct hoccl_grant) == HOCCL_CACHE_LINE, "a grant is one line");
_Static_assert(sizeof(struct hoccl_answer) == HOCCL_CACHE_LINE, "an answer is one line");
_Static_assert(sizeof(struct hoccl_offer) == HOCCL_CACHE_LINE, "an offer is one line");
_Static_assert(sizeof(struct hoccl_receipt) == HOCCL_CACHE_LINE, "a receipt is one line");
_Static_assert(sizeof(struct hoccl_slot) == 6 * HOCCL_CACHE_LINE, "a slot is six lines");
_Static_assert((HOCCL_SLOTS & (HOCCL_SLOTS - 1)) == 0, "numbers wrap at a multiple of the ring's size");

/* A board in a memfd of its own, its memory reserved (MEMORY with the bytes needed if it cannot be; the staging area only
 * when it is first used), its tags such that the flow `first` of no pair seems granted or answered. `number` is its name
 * in this process. */
HOCCL_Result hoccl_board_create(int size, uint32_t first, struct hoccl_board **board, size_t *bytes, int *fd,
                                uint64_t *number);

/* The staging area of a board of `bytes` bytes: its last HOCCL_STAGE_AREA bytes. */
char *hoccl_board_stage(struct hoccl_board *board, size_t bytes);

#define HOCCL_STAGE_BYTES ((size_t)1 << 20) /* a staging slot */
#define HOCCL_STAGE_SLOTS 16
#define HOCCL_STAGE_AREA (HOCCL_STAGE_SLOTS * HOCCL_STAGE_BYTES)

/* A peer's board. BOOTSTRAP if it is not one of this version and size. */
HOCCL_Result hoccl_board_map(int fd, size_t bytes, int size, struct hoccl_board **board);
void hoccl_board_unmap(struct hoccl_board *board, size_t bytes);

/* Ranks of one process use one mapping, the owner's: take the board of that number into use too; BOOTSTRAP if its owner
 * has given up meanwhile. Everyone leaves once, the owner too, and says whether it had the staging area registered; true
 * for the last one, who discards it (stage.h) and is told whether anyone had. */
HOCCL_Result hoccl_board_join(uint64_t number, struct hoccl_board **board);
bool hoccl_board_leave(struct hoccl_board *board, bool ready, bool *registered);

/* The owner says how it is; the first FAILED text stays. */
void hoccl_board_say(struct hoccl_board *board, enum hoccl_board_state state, const char *text);
/* The owner's sends have come to rest after a failure; has the owner come to rest, whatever its state? */
void hoccl_board_say_quiet(struct hoccl_board *board);
bool hoccl_board_quiet(const struct hoccl_board *board);
enum hoccl_board_state hoccl_board_state(const struct hoccl_board *board);

#endif
