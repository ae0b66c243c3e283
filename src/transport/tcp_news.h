/* SPDX-License-Identifier: Apache-2.0 */
/* What an I/O thread has to tell: a ring for each, from the thread to poll.
 *
 *   I/O thread   writes an entry, then `tail`
 *   poll         reads entries up to `tail`; those that the caller has seen are given back by `head` at the next call
 *
 * A thread that finds no room sets `stalled`, looks once more, and waits to be woken by poll. */
#ifndef HOCCL_TRANSPORT_TCP_NEWS_H
#define HOCCL_TRANSPORT_TCP_NEWS_H

#include "base/atomic.h"
#include "transport/transport.h"

#define TCP_NEWS 256       /* entries */
#define TCP_NEWS_STEP 16   /* at most as many come of one step of a lane */

enum tcp_news_kind {
    TCP_NEWS_MET = 1,  /* the sockets of a connection have come together: `meeting`, whose owner the reader becomes */
    TCP_NEWS_MESSAGE,
    TCP_NEWS_WRITTEN,
    TCP_NEWS_ARRIVED,
    TCP_NEWS_GOODBYE,  /* the peer's last word on one socket */
    TCP_NEWS_BROKEN,   /* data: the text */
    TCP_NEWS_CALLED,   /* tag: the id of a pair that is summoned here, and has no meeting */
};

struct tcp_news {
    enum tcp_news_kind kind;
    uint32_t word;
    uint64_t serial;   /* of the connection */
    uint32_t socket;
    uint64_t tag;
    uint64_t bytes;
    struct tcp_meeting *meeting;
    char data[HOCCL_MESSAGE_BYTES]; /* a message, or a text */
};

struct tcp_news_ring {
    struct {
        uint32_t word; /* the I/O thread's */
    } tail __attribute__((aligned(HOCCL_CACHE_LINE)));
    struct {
        uint32_t word; /* poll's */
        uint32_t seen; /* poll's own */
    } head __attribute__((aligned(HOCCL_CACHE_LINE)));
    struct {
        uint32_t word; /* set by the I/O thread, cleared by poll */
    } stalled __attribute__((aligned(HOCCL_CACHE_LINE)));
    struct tcp_news entry[TCP_NEWS];
};

/* Of the I/O thread: room for as many more? */
static inline bool tcp_news_room(struct tcp_news_ring *ring, uint32_t entries)
{
    return ring->tail.word - hoccl_observe(&ring->head.word) + entries <= TCP_NEWS;
}

/* The entry to write, if there is room; then tell. */
static inline struct tcp_news *tcp_news_next(struct tcp_news_ring *ring)
{
    return &ring->entry[ring->tail.word % TCP_NEWS];
}

static inline void tcp_news_tell(struct tcp_news_ring *ring)
{
    hoccl_publish(&ring->tail.word, ring->tail.word + 1);
}

/* Of poll: the next entry that it has not seen, or NULL. */
static inline struct tcp_news *tcp_news_take(struct tcp_news_ring *ring)
{
    if (ring->head.seen == hoccl_observe(&ring->tail.word))
        return NULL;
    return &ring->entry[ring->head.seen++ % TCP_NEWS];
}

#endif
