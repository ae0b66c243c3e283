/* SPDX-License-Identifier: Apache-2.0 */
/* One socket of a connection that has come together: frames out of a ring of things given, frames in into regions.
 *
 *   caller of the endpoint         ring            I/O thread
 *   hoccl_tcp_lane_give ──▶ slot[given], given ──▶ sendmsg(headers and bytes of several) ──▶ sent; news WRITTEN
 *
 * States; C the endpoint's caller, I the I/O thread:
 *
 *   ACTIVE ──I: GOODBYE read──▶ QUIET ──C──▶ CUT ──I──▶ (freed)
 *     ├──I: fault──▶ FAULTY ──C──▶ CUT
 *     ├──C──▶ DEPARTING ──I: all sent, GOODBYE sent, peer's end of stream or a limit──▶ CUT
 *     └──C──▶ CUT
 *
 * The lock is held by the I/O thread while it steps the lane, one recvmsg and one sendmsg that do not block, and by who
 * changes the state: once a lane is DEPARTING or CUT, nothing touches a region for it. */
#ifndef HOCCL_TRANSPORT_TCP_LANE_H
#define HOCCL_TRANSPORT_TCP_LANE_H

#include "transport/tcp_loop.h"
#include "transport/tcp_wire.h"

#define TCP_SLOTS 16 /* writes in flight on a lane; messages on socket 0 */
#define TCP_NAME 288

enum tcp_lane_state { TCP_ACTIVE, TCP_QUIET, TCP_FAULTY, TCP_DEPARTING, TCP_CUT };

/* A thing given: the caller's until `given` passes it, then the I/O thread's until `sent` does. */
struct tcp_slot {
    struct tcp_frame frame;
    uint64_t tag;
    uint64_t key;       /* WRITE: of the region it comes from; MESSAGE: 0 */
    const char *bytes;  /* what goes: in a region, or in the lane's own text */
};

struct tcp_lane {
    struct tcp_source source;
    struct tcp_loop *loop;
    struct hoccl_list of_kicked; /* under the loop's lock */
    struct hoccl_list of_loop, of_run;
    uint64_t serial;          /* of the connection */
    uint32_t socket;          /* number in the connection */
    char name[TCP_NAME];      /* "rank 3 (host), lane 2 (address → address)" */
    pthread_mutex_t lock;
    enum tcp_lane_state state; /* under the lock */
    int fd;                   /* the I/O thread's, −1: closed */
    bool watched;

    /* out */
    struct tcp_slot slot[TCP_SLOTS];
    char (*text)[HOCCL_MESSAGE_BYTES]; /* socket 0: of the messages in the slots */
    uint32_t given __attribute__((aligned(HOCCL_CACHE_LINE))); /* caller's */
    uint32_t minded;          /* 1: the I/O thread will step it. Exchanged by who kicks, and by the thread (tcp_loop.c) */
    uint32_t sent __attribute__((aligned(HOCCL_CACHE_LINE))); /* I/O thread's: slots that the kernel has */
    uint64_t sent_bytes;      /* I/O thread's: of these slots */
    uint64_t sent_at;         /* bytes of slot `sent` that the kernel has, its header counted */
    struct tcp_frame note;    /* WELCOME, BEAT or GOODBYE */
    uint32_t note_left;       /* bytes of it to send */
    bool can_write, spoke;    /* spoke: something was sent since the last look */
    uint64_t taken;           /* bytes that the kernel took */
    uint64_t acknowledged;    /* socket 0: of these by the peer's at the last look */
    unsigned silent;          /* looks in a row at which it was not more */
    bool goodbye;             /* GOODBYE is or was in `note` */
    bool finished;            /* and the stream has ended */

    /* in; the I/O thread's */
    struct tcp_frame head;
    uint32_t head_at;         /* bytes of it that have come */
    uint64_t left;            /* bytes of its body that have not */
    bool can_read;
    char message[HOCCL_MESSAGE_BYTES];
    int send_error;           /* what sending failed with; receiving says whether it matters */
    uint64_t depart_until;
};

/* A lane on `fd`, in state ACTIVE; `welcome`: that frame goes first. NULL and MEMORY in the error. `fd` is its own then. */
struct tcp_lane *hoccl_tcp_lane_open(struct tcp_loop *loop, int fd, uint64_t serial, uint32_t socket, const char *name,
                                     bool welcome);

/* Caller: is there room for another thing? */
bool hoccl_tcp_lane_room(const struct tcp_lane *lane);

/* Caller: one more thing; false if the ring is full. */
bool hoccl_tcp_lane_give_write(struct tcp_lane *lane, const struct hoccl_write *write);
bool hoccl_tcp_lane_give_message(struct tcp_lane *lane, const void *bytes, size_t count);

/* Caller: has the kernel all that was given? */
bool hoccl_tcp_lane_idle(const struct tcp_lane *lane);

/* Caller: the lane ends, after a goodbye if `depart`. On return nothing touches regions for it, and it is not the
 * caller's any more. */
void hoccl_tcp_lane_end(struct tcp_lane *lane, bool depart);

/* I/O thread: one step. Is there more to do? */
bool hoccl_tcp_lane_step(struct tcp_lane *lane);

/* I/O thread: the regular look. */
void hoccl_tcp_lane_look(struct tcp_lane *lane, uint64_t now);

/* I/O thread: closes and frees. */
void hoccl_tcp_lane_free(struct tcp_lane *lane);

#endif
