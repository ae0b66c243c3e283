/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of the verbs transport and who owns them.
 *
 *   endpoint ─┬─ port            the device's context
 *             ├─ one completion queue, one completion channel, one shared receive queue for all connections
 *             ├─ loop            a queue pair to itself, for flushes
 *             ├─ watch           the helper thread: sleeps on the channel, the device's events and the exchange's sockets
 *             ├─ news            events that poll has not handed out yet
 *             └─ connections ──┬─ control queue
 *                              └─ lanes (queues): queue pairs with what is in flight on them
 *
 * The thread in the transport's calls writes everything but: a call (verbs_exchange.h says who), `port` and `fatal` (the
 * helper thread, under port_lock). `beating` and `watch.stop` it publishes, and the helper observes them. */
#ifndef HOCCL_TRANSPORT_VERBS_H
#define HOCCL_TRANSPORT_VERBS_H

#include "base/list.h"
#include "transport/port.h"
#include "transport/transport.h"
#include "transport/verbs_exchange.h"
#include "transport/verbs_slots.h"

#define HOCCL_QUEUE_DEPTH 64     /* work requests in a queue pair at most */
#define HOCCL_SEND_BUDGET 2048   /* and in all of an endpoint together: what the completion queue has room for */
#define HOCCL_RECEIVES_MOST 16384 /* receives of an endpoint at most, 9 MiB */
#define HOCCL_SEND_SLOTS 512
#define HOCCL_SEND_RESERVE 64    /* of these only for frames of the transport's own */
#define HOCCL_SILENT_MOST 8      /* parts in a row that ask for no completion */

#define HOCCL_CONTROL (-1)
#define HOCCL_LOOP (-2)

enum hoccl_flight_kind {
    HOCCL_FLIGHT_WRITE, HOCCL_FLIGHT_PART, HOCCL_FLIGHT_FRAME, HOCCL_FLIGHT_BEAT, HOCCL_FLIGHT_FLUSH
};

/* A work request that has been posted and is not known to be complete. */
struct hoccl_flight {
    enum hoccl_flight_kind kind;
    int slot;       /* FRAME, FLUSH */
    uint64_t tag;   /* WRITE, FLUSH */
    uint64_t bytes; /* WRITE: of the whole write */
};

struct hoccl_queue {
    struct hoccl_endpoint *endpoint;
    struct hoccl_connection *connection; /* NULL: a farewell, or the loop */
    int lane;                            /* or HOCCL_CONTROL, HOCCL_LOOP */
    struct ibv_qp *qp;                   /* NULL: destroyed */
    uint32_t sequence;                   /* first packet sequence number */
    uint32_t generation;                 /* tells a completion of this queue from one of a former queue with its number */
    unsigned window;                     /* control: receives kept for the peer, given back with the queue */
    unsigned depth, silent;
    uint32_t first, next;                /* flights [first, next) are under way; places modulo depth */
    struct hoccl_flight *flights;
    struct hoccl_lane_count count;
    struct hoccl_write large;            /* a write in parts: so much of it has been posted; bytes 0: none */
    size_t posted;
    uint64_t parts_before;               /* of the write that is arriving in parts */
    struct hoccl_list link;              /* a farewell: in endpoint->farewells */
    uint64_t deadline;                   /* a farewell: when to give up */
};

enum hoccl_verbs_state {
    HOCCL_VERBS_NEW, HOCCL_VERBS_JOINING, HOCCL_VERBS_JOINED,
    HOCCL_VERBS_FAILING, /* found broken or closed, its event not made yet */
    HOCCL_VERBS_ENDED,   /* BROKEN or CLOSED has been made */
};

struct hoccl_connection {
    struct hoccl_list link;      /* in endpoint->connections */
    struct hoccl_list fail_link; /* in endpoint->failing */
    struct hoccl_endpoint *endpoint;
    uint64_t id;
    char name[96];
    void *context;
    enum hoccl_verbs_state state;
    struct hoccl_queue *control, *lane[HOCCL_LANES_MAX]; /* lanes are NULL once they are gone */
    int made, lanes;             /* lanes made here; those that both ends have */
    unsigned turn;               /* where to look for a free lane first */
    unsigned credits;            /* receives that the peer has for this end */
    unsigned owed;               /* receives used by the peer and handed on, not given back yet */
    unsigned window;
    uint64_t last;               /* when something was posted last */
    bool left;                   /* the peer has said goodbye: say nothing more */
    bool orderly;                /* the peer's goodbye was one in good order */
    bool mute;                   /* the control queue has failed: no goodbye can be said */
    struct hoccl_call call;
    struct hoccl_lane_count counts[HOCCL_LANES_MAX]; /* of lanes that are gone */
    char text[HOCCL_MESSAGE_BYTES]; /* why it is broken */
};

/* An event of poll, with what must be given back when it has been seen. */
struct hoccl_news {
    struct hoccl_transport_event event;
    struct hoccl_connection *connection; /* NULL: withdrawn, or FLUSHED */
    int slot;                            /* MESSAGE: its receive; else −1 */
    uint32_t number;                     /* MESSAGE: of the queue pair that it came by */
    char *text;                          /* BROKEN, FLUSHED: freed with it */
};

struct hoccl_watch {
    pthread_t thread;
    int wake;          /* eventfd */
    bool running;
    uint32_t stop;     /* published by who closes */
};

struct hoccl_endpoint {
    struct hoccl_doorbell *bell;
    struct hoccl_verbs_setting setting;
    pthread_mutex_t port_lock; /* port.here, port.gid, fatal */
    struct hoccl_port port;
    char fatal[160];           /* the device has failed, and how; "" it has not */
    const struct hoccl_ibv *ibv;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct hoccl_queue *loop;  /* to itself, for flushes; NULL until the first */
    struct ibv_srq *srq;       /* NULL: receives are those of the queue pairs */
    struct hoccl_slots receives, sends;
    uint32_t *owner;           /* without srq: by receive slot, the queue pair that it is posted to */
    int kept, posted;          /* receives promised to peers; posted to srq */
    int budget, flying;        /* work requests: at most, now */
    int queue_depth, lanes;
    size_t part_most;          /* bytes of one work request */
    struct hoccl_list connections, failing, farewells;
    int count;                 /* connections */
    struct hoccl_queue **table; /* by queue pair number, open addressing; table_size is a power of two */
    unsigned table_size, table_used;
    uint32_t generation;
    struct hoccl_news *news;   /* a ring: [seen, given) handed out by the last poll, [given, made) not yet */
    uint32_t news_size, seen, given, made;
    uint64_t next_beat;
    uint32_t beating;          /* joined connections */
    uint32_t heard;            /* exchange.news when outcomes were looked at last */
    bool poke;                 /* something is to be tried again in the next poll: credits owed, large writes */
    struct hoccl_exchange exchange;
    struct hoccl_watch watch;
};

/* ---- verbs_queue.c: queue pairs, posting ---- */
HOCCL_Result hoccl_queue_make(struct hoccl_endpoint *e, struct hoccl_connection *c, int lane, struct hoccl_queue **queue);
/* To receive and to send, towards what the peer has offered. Any thread. false: errno. */
bool hoccl_queue_connect(struct hoccl_queue *q, const struct hoccl_offer *mine, const struct hoccl_offer *theirs, int place,
                         const char **step);
/* Nothing is accepted and nothing sent any more; what is under way is flushed. */
void hoccl_queue_halt(struct hoccl_queue *q);
void hoccl_queue_free(struct hoccl_queue *q);
struct hoccl_queue *hoccl_queue_find(struct hoccl_endpoint *e, uint32_t number);
static inline unsigned hoccl_queue_flying(const struct hoccl_queue *q) { return q->next - q->first; }
/* Room for n more work requests, in the queue pair and the endpoint? */
bool hoccl_queue_room(const struct hoccl_queue *q, unsigned n);
/* Post; there is room. The flight is taken over. An errno value that says that the queue pair takes nothing more, else 0. */
int hoccl_queue_post(struct hoccl_queue *q, struct ibv_send_wr *wr, struct hoccl_flight flight);
/* A frame with its payload; false: no slot or no room. */
bool hoccl_queue_frame(struct hoccl_queue *q, enum hoccl_frame_kind kind, const void *payload, size_t bytes, unsigned credits);

/* ---- verbs_receive.c: receives and windows ---- */
HOCCL_Result hoccl_receive_open(struct hoccl_endpoint *e);
/* A window for a new connection, its receives posted (with a shared queue). Errors: MEMORY, DEVICE. */
HOCCL_Result hoccl_receive_keep(struct hoccl_endpoint *e, unsigned *window);
void hoccl_receive_release(struct hoccl_endpoint *e, unsigned window);
/* Without a shared queue: the receives of this queue pair. */
HOCCL_Result hoccl_receive_fill(struct hoccl_queue *q, unsigned n);
/* The queue pair of this number has been destroyed. */
void hoccl_receive_forget(struct hoccl_endpoint *e, uint32_t number);
/* A receive has been used and read: post it again. `number`: of the queue pair that it came by. */
void hoccl_receive_again(struct hoccl_endpoint *e, int slot, uint32_t number);

/* ---- verbs_flush.c ---- */
bool hoccl_verbs_flush(struct hoccl_endpoint *e, const struct hoccl_region *region, size_t offset, uint64_t tag);
/* The queue pair to itself has failed: flushes end in events that say so, and so does every connection. */
void hoccl_flush_failed(struct hoccl_endpoint *e, enum ibv_wc_status status);

/* ---- verbs_flow.c ---- */
void hoccl_connection_return(struct hoccl_connection *c); /* credits, if they are many */
void hoccl_connection_resume(struct hoccl_connection *c); /* what had no room: credits, parts of large writes */
bool hoccl_verbs_message(struct hoccl_connection *c, const void *bytes, size_t count);
bool hoccl_verbs_write(struct hoccl_connection *c, const struct hoccl_write *write);
bool hoccl_verbs_idle(const struct hoccl_connection *c);
int hoccl_verbs_lanes(const struct hoccl_connection *c, struct hoccl_lane_count count[HOCCL_LANES_MAX]);

/* ---- verbs_connection.c ---- */
void hoccl_connection_joined(struct hoccl_connection *c);
/* Break it, with the reason; the event is made by hoccl_connection_settle. Only the first reason counts. */
void hoccl_connection_fail(struct hoccl_connection *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* End the connections that have been found broken or closed. */
void hoccl_connection_settle(struct hoccl_endpoint *e);
/* What the port says of itself now, without queue pairs. */
struct hoccl_offer hoccl_offer_of_port(struct hoccl_endpoint *e);
void hoccl_connection_tend(struct hoccl_endpoint *e, uint64_t now); /* outcomes, retries, heartbeats, farewells */
HOCCL_Result hoccl_verbs_connection_open(struct hoccl_endpoint *e, uint64_t id, const char *name, void *context,
                                         struct hoccl_connection **connection);
HOCCL_Result hoccl_verbs_join(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer);
HOCCL_Result hoccl_verbs_summon(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer);
void hoccl_verbs_decline(struct hoccl_endpoint *e, uint64_t id);
void hoccl_verbs_connection_close(struct hoccl_connection *c);

/* ---- verbs_harvest.c: completions become events ---- */
/* Take what the completion queue has, as long as there is room for news; how many completions. */
int hoccl_harvest(struct hoccl_endpoint *e);
struct hoccl_news *hoccl_news_add(struct hoccl_connection *c, enum hoccl_transport_event_kind kind);
/* FLUSHED; `why` it could not be done is copied, NULL: it was. */
void hoccl_news_add_flushed(struct hoccl_endpoint *e, uint64_t tag, const char *why);
/* CALLED, which is of no connection. */
void hoccl_news_call(struct hoccl_endpoint *e, uint64_t id);
bool hoccl_news_room(const struct hoccl_endpoint *e);
/* What the last poll handed out has been seen: post its receives again. */
void hoccl_news_release(struct hoccl_endpoint *e);
/* No event of this connection any more. */
void hoccl_news_withdraw(struct hoccl_endpoint *e, const struct hoccl_connection *c);

/* ---- verbs_watch.c: the helper thread ---- */
HOCCL_Result hoccl_watch_open(struct hoccl_endpoint *e);
void hoccl_watch_close(struct hoccl_endpoint *e);
void hoccl_watch_wake(struct hoccl_endpoint *e);

/* ---- verbs.c ---- */
/* How long a connection may be silent before a heartbeat. */
uint64_t hoccl_verbs_beat(void);

/* ---- for tests: faults on demand (verbs_fault.c) ---- */
struct hoccl_verbs_fault {
    bool no_srq;           /* as on a card without shared receive queues */
    uint32_t message_most; /* as on a card with this max_msg_sz; 0: as it is */
};
extern struct hoccl_verbs_fault hoccl_verbs_fault;
/* The lane's queue pair fails, as by a fault of the card: completion errors come. */
void hoccl_verbs_break_lane(struct hoccl_connection *c, int lane);
/* Bytes of a packet, once joined. */
int hoccl_verbs_mtu(const struct hoccl_connection *c);

#endif
