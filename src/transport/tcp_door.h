/* SPDX-License-Identifier: Apache-2.0 */
/* Where the sockets of a connection come together; all of it belongs to I/O thread 0.
 *
 *   meeting   a connection that has been asked for by join or summon and is not there yet: dials (tcp_dial.c), or awaits
 *             callers, or, to make them come, knocks (tcp_dial.c) and awaits them
 *   caller    a socket that was accepted: STRANGER until its hello has come and is right, then HELD until its meeting is
 *             complete, perhaps long before join is called here
 *   call      a socket that was dialed (tcp_dial.c)
 *
 * A stranger has HELLO_LIMIT to say its hello, and only so many may stand at the door; the one that has stood there longest
 * is sent away for a new one. The caller of the endpoint gives orders and hears the result as news. */
#ifndef HOCCL_TRANSPORT_TCP_DOOR_H
#define HOCCL_TRANSPORT_TCP_DOOR_H

#include "transport/tcp_address.h"
#include "transport/tcp_loop.h"

#define TCP_SOCKETS (HOCCL_LANES_MAX + 1)
#define TCP_NEVER UINT64_MAX

/* What a caller and a call begin with. */
struct tcp_guest {
    struct tcp_source source;
    struct hoccl_list link;
};

struct tcp_order {
    struct hoccl_list link;
    enum { TCP_MEET, TCP_FORGET, TCP_DECLINE } kind;
    struct tcp_meeting *meeting; /* MEET */
    uint64_t serial;             /* FORGET: the meeting's; DECLINE: the pair's id */
};

/* Made and filled by join, the door's from the order until the news TCP_NEWS_MET, then the reader's. */
struct tcp_meeting {
    struct tcp_order order;
    struct hoccl_list of_door;
    uint64_t serial, id;
    bool dials;                  /* the lower rank */
    bool summons;                /* the peer need not know of it: the lower rank says so, the higher one knocks */
    int sockets;
    char name[64];
    uint64_t until;              /* the peer must have joined */
    /* of who dials or knocks */
    struct tcp_card card;
    struct tcp_candidate candidate[TCP_CANDIDATES];
    int candidates, next;        /* next: to try in this round */
    int chosen;                  /* −1: none has answered yet */
    uint32_t attempts, attempt;  /* number of the last call for socket 0, and of the chosen one */
    uint64_t next_at;            /* time of the next try */
    uint64_t dial_until;         /* somebody must have answered */
    int refused;                 /* rounds in a row in which every address refused */
    bool heard;                  /* something else than a refusal in this round */
    int unmade;                  /* EMFILE, ENFILE: there was no descriptor for the last call, else 0 */
    struct hoccl_list calls;
    char tried[240];             /* addresses and errors of this round */
    char before[240];            /* of the last one that was complete */
    /* the result */
    int fd[TCP_SOCKETS];
    bool met;
    char text[HOCCL_MESSAGE_BYTES];
};

struct tcp_door {
    struct tcp_loop *loop;
    struct tcp_source source;
    int fd;
    uint16_t port;
    struct hoccl_list callers, meetings, told; /* told: meetings with a result that is to become news */
    struct hoccl_list over;      /* guests to be freed at the end of the turn, when no event can name them any more */
    unsigned strangers;
    unsigned untold;             /* callers whose summons has not become news */
    unsigned turned_away;
    bool warned;                 /* of that: */
    uint64_t paused_until;       /* no descriptors: not accepting, else 0 */
    uint64_t due;                /* the next time something has to be looked at */
};

/* Listens, on a port that HOCCL_PORTS allows. ARGUMENT, SYSTEM, MEMORY. */
HOCCL_Result hoccl_tcp_door_open(struct tcp_loop *loop, struct tcp_door **door);
void hoccl_tcp_door_close(struct tcp_door *door);

/* I/O thread 0. */
void hoccl_tcp_door_orders(struct tcp_door *door, struct hoccl_list *orders);
void hoccl_tcp_door_step(struct tcp_door *door);

/* When the next step is due, if no event comes before. */
uint64_t hoccl_tcp_door_due(const struct tcp_door *door);

/* The meeting has its result; its descriptors stay if it has met. */
void hoccl_tcp_door_result(struct tcp_door *door, struct tcp_meeting *meeting, bool met);

/* Of any thread that owns it. */
struct tcp_meeting *hoccl_tcp_meeting_open(void);
void hoccl_tcp_meeting_free(struct tcp_meeting *meeting);

#endif
