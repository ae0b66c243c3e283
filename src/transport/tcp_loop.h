/* SPDX-License-Identifier: Apache-2.0 */
/* An I/O thread: it waits for its sockets with epoll and steps the lanes that have something to do.
 *
 *   the endpoint's caller                            the I/O thread
 *   puts a lane or an order into a list (lock),  ──▶ takes the lists, steps lanes
 *   wakes the thread if it sleeps                ◀── news (a ring), the endpoint's bell if it is armed
 *
 * A lane that the thread will step anyway, since it is in one of its lists, needs no second kick: `minded` says so.
 *
 * Thread 0 also has the door: the listener, and the sockets of connections that are still being made. */
#ifndef HOCCL_TRANSPORT_TCP_LOOP_H
#define HOCCL_TRANSPORT_TCP_LOOP_H

#include "base/list.h"
#include "transport/tcp_news.h"
#include "transport/tcp_region.h"

#include <pthread.h>

#define TCP_LOOKS 8 /* at each lane, in the time after which a silent peer is gone */

struct tcp_door;
struct tcp_lane;

/* What an epoll entry points to: the first member of everything that has a socket. */
struct tcp_source {
    void (*ready)(struct tcp_source *source, uint32_t events);
};

/* What all threads of an endpoint see. Constant after open but `armed`. */
struct tcp_shared {
    struct tcp_regions regions;
    struct hoccl_doorbell *bell;
    uint32_t armed;          /* set by the caller, cleared by who rings */
    uint8_t cookie[16];
    uint64_t token, proof;   /* of this listener */
    uint64_t life;           /* ns: a peer that is silent for so long has vanished */
};

struct tcp_loop {
    struct tcp_shared *shared;
    struct tcp_news_ring *news;
    struct tcp_door *door;         /* thread 0, else NULL */
    pthread_t thread;
    int epoll, wake;
    uint32_t asleep __attribute__((aligned(HOCCL_CACHE_LINE))); /* set by the thread; cleared by who wakes it too */
    uint32_t posted;               /* set by who adds to the next three, cleared by the thread before it takes them */
    pthread_mutex_t lock;          /* of the next three */
    struct hoccl_list kicked;      /* lanes to look at */
    struct hoccl_list orders;      /* for the door */
    bool stop;
    /* The thread's own: */
    struct tcp_source wake_source __attribute__((aligned(HOCCL_CACHE_LINE)));
    struct hoccl_list lanes;       /* all */
    struct hoccl_list run;         /* with something to do */
    struct hoccl_list over;        /* to be freed when no event can name them any more */
    unsigned departing;            /* lanes that say goodbye */
    uint64_t beat_at;              /* next look at idle and at departing lanes */
    uint32_t told;                 /* news.tail when the bell was last thought of */
    int number;                    /* among the endpoint's threads */
    uint64_t active_at;            /* when there was last anything to do, ns */
};

HOCCL_Result hoccl_tcp_loop_open(struct tcp_loop *loop, struct tcp_shared *shared, int number);

/* Starts the thread; `door` belongs to it then. */
HOCCL_Result hoccl_tcp_loop_start(struct tcp_loop *loop, int number);

/* Ends the thread, when lanes that say goodbye have done so or a limit has passed, and frees all that it has. */
void hoccl_tcp_loop_close(struct tcp_loop *loop);

/* Any thread: have the lane looked at. An order goes to the door. */
void hoccl_tcp_loop_kick(struct tcp_loop *loop, struct tcp_lane *lane);
void hoccl_tcp_loop_order(struct tcp_loop *loop, struct hoccl_list *order);
void hoccl_tcp_loop_wake(struct tcp_loop *loop);

/* The I/O thread's: watch a socket. Edge-triggered: an event says that something has changed. */
bool hoccl_tcp_loop_watch(struct tcp_loop *loop, int fd, uint32_t events, struct tcp_source *source);

#endif
