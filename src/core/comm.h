/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator: this rank's state, its peers, its streams, its operations. */
#ifndef HOCCL_CORE_COMM_H
#define HOCCL_CORE_COMM_H

#include "base/list.h"
#include "boot/boot.h"
#include "core/abroad.h"
#include "p2p/flow.h"
#include "sched/layout.h"
#include "stream/handshake.h"

#include <pthread.h>

/* A stream that this communicator has met. The calling thread makes it and, while it holds no operation (outstanding
 * is 0), may use it for another stream; the progress thread touches it only while it holds one. */
struct hoccl_comm_stream {
    struct hoccl_handshake handshake;
    struct hoccl_list queue; /* progress thread: turns (hoccl_op_turn) not released yet, in stream order */
    struct hoccl_list busy;  /* progress thread: in comm->busy_streams while the queue is not empty */
    struct hoccl_list link;  /* progress thread: in comm->watched while the first turn has not been reached */
};

/* One group's part in one communicator: its turns on streams, its flows. Made by the calling thread, then owned by the
 * progress thread, which frees it.
 *
 *   POSTED ──every stream has reached it──▶ RUNNING ──every flow done──▶ released, freed
 *                                              └──the communicator fails──▶ released, DRAINING ──quiet──▶ freed */
struct hoccl_op_turn {
    struct hoccl_turn turn;
    struct hoccl_comm_stream *stream;
    struct hoccl_list link; /* in stream->queue */
    struct hoccl_op *op;
};

struct hoccl_op {
    struct hoccl_list link; /* comm->inbox, then comm->draining */
    int turns, flows;
    int reached;    /* turns that their stream has reached */
    int unfinished; /* flows */
    struct hoccl_op_turn *turn;
    struct hoccl_flow *flow;
};

#define HOCCL_STREAMS_MAX 128

struct hoccl_comm {
    int rank, size;
    struct hoccl_gpu *gpu;
    struct hoccl_list link; /* in the proxy's list */
    struct hoccl_board *board;
    size_t board_bytes;
    int board_fd;
    struct hoccl_stage stage; /* in the board; progress thread */
    struct hoccl_peer *peers; /* size of them */
    struct hoccl_link *links; /* size of them */
    int node;                 /* HOCCL_TEST_NODE's, −1: the real one */
    struct hoccl_layout *layout; /* which ranks share a node, the same at all; NULL: one node, or more than 1,024 ranks */
    struct hoccl_abroad abroad;

    /* The calling thread that holds `busy`. */
    uint32_t busy; /* 1: a thread is in a call of this communicator */
    struct hoccl_comm_stream *streams;
    int streams_used;
    uint32_t exchanges; /* splits, and agreements on rows (rows.h), so far: the same on all ranks */
    struct hoccl_hold hold; /* foreground phases; a calling thread's half needs no `busy` */
    uint64_t collectives; /* posted so far: the number of the last one */

    /* Any thread. */
    pthread_mutex_t registered_lock;
    struct hoccl_handle_entry *registered; /* what HOCCL_CommRegister has given (register.c), under registered_lock */

    /* Calling thread → progress thread. */
    pthread_mutex_t inbox_lock;
    struct hoccl_list inbox; /* ops, under inbox_lock */
    uint32_t inbox_full;     /* 1: look into the inbox (saves the lock) */
    uint32_t unfinished;     /* ops posted and not freed */
    uint32_t abort;          /* 1: give everything up (any thread) */
    uint32_t finalized;      /* 1: takes no more operations (any thread) */

    /* Progress thread. */
    struct hoccl_list busy_streams; /* streams that hold an operation */
    struct hoccl_list watched;  /* those of them whose first turn has not been reached */
    struct hoccl_list running;  /* flows */
    struct hoccl_list draining; /* ops of a failed communicator with something still moving */
    bool untold;                /* of the streams' next operations nothing has been said to other nodes */
    bool failed;                /* the failure has been carried out */

    /* The sticky error: whoever takes `failing` writes the text, then publishes `error`. */
    uint32_t failing;
    uint32_t error; /* HOCCL_Result */
    char error_text[HOCCL_STATUS_TEXT];
    uint32_t drained; /* 1: after a failure, nothing moves any more (progress thread) */
};

/* Collective over the ranks of `boot`: exchange identities, connect the node, attach to the GPU's progress thread. If
 * a rank cannot take part, every rank fails with that rank's text. */
HOCCL_Result hoccl_comm_open(struct hoccl_boot *boot, struct hoccl_comm **comm);

/* Of what that exchanges: bytes a rank. */
size_t hoccl_comm_card_bytes(void);

/* Everything but the progress thread's part, and the GPU object. */
void hoccl_comm_free(struct hoccl_comm *c);

/* Wait until every operation has completed or failed: the sticky error; PEER if another thread aborts meanwhile. */
HOCCL_Result hoccl_comm_wait(struct hoccl_comm *comm);

/* Nothing more will be posted: let peers know what they need not wait for. Needs the busy mark. */
void hoccl_comm_end_posting(struct hoccl_comm *comm);

/* The same, then free. */
HOCCL_Result hoccl_comm_close(struct hoccl_comm *comm);

/* Give everything up, then free; bounded. Nobody else may be inside a call: see hoccl_comm_stop. TIMEOUT if a
 * transfer of a failed operation could not be stopped: the text says what that means. */
HOCCL_Result hoccl_comm_abort(struct hoccl_comm *comm);

/* Any thread: release every stream and make calls inside return soon; does not free. */
void hoccl_comm_stop(struct hoccl_comm *comm);

/* Any thread: make the calling thread's error text the communicator's sticky error, unless it has one. */
void hoccl_comm_fail(struct hoccl_comm *comm, HOCCL_Result result);

/* The sticky error, with its text made the calling thread's. */
HOCCL_Result hoccl_comm_error(struct hoccl_comm *comm);

#endif
