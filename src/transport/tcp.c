/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport: the endpoint and its connections, on the side of their caller. Below it:
 *
 *   tcp_wire.h     what goes over the sockets
 *   tcp_address.c  by which addresses this host is reached, and in which order a peer's are tried
 *   tcp_door.c     the listener, callers, and connections that are being made; tcp_dial.c: making them
 *   tcp_lane.c     one socket of a connection that has been made
 *   tcp_loop.c     an I/O thread; tcp_news.h: what it tells; tcp_region.c: what it may touch
 *
 *                       ┌────────────── caller of the endpoint ──────────────┐
 *   join ── meeting ──▶ door (I/O thread 0) ── sockets ──▶ poll: makes the lanes, JOINED
 *   write, message ───▶ slots of a lane ── sendmsg by its I/O thread ──▶ peer's recvmsg into the region ──▶ news ──▶ poll
 *
 * A connection has socket 0 for messages and `lanes` for writes, so that a message waits behind no write, nor behind the call
 * that moves a part of one: where there are several I/O threads the first has the door and all sockets 0, and the lanes are
 * dealt out to the others in turn. A write goes to the lane with the fewest bytes before it.
 *
 * The news of a connection name it by a serial number (generation and place), for it may be closed while they are on their
 * way; those of a connection that is closed, or has ended, are dropped. Before BROKEN or CLOSED is returned every lane is
 * stopped under its lock, so nothing touches a region any more.
 *
 * A peer that vanishes: socket 0 says something at least every HOCCL_TIMEOUT / 16, so a peer whose kernel acknowledges
 * nothing more at five such looks in a row is gone, idle or not (tcp_lane.c). What is not acknowledged on a lane for
 * HOCCL_TIMEOUT breaks it too (TCP_USER_TIMEOUT). A process that is stopped is not gone: its kernel acknowledges. */
#define _GNU_SOURCE
#include "transport/tcp.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "transport/tcp_address.h"
#include "transport/tcp_door.h"
#include "transport/tcp_lane.h"
#include "transport/transport.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define THREADS_MAX 12 /* for lanes */

/* Where the peer is near, a lane's send buffer holds about one chunk. The kernel's own choice grows to 4 MiB: what is in it is on its lane
 * for good, though another may have nothing left, and has left the caches when it is read. At 2.5 GB/s a lane it is enough for NEAR. */
#define NEAR 200 /* µs there and back, as seen when the connection was made */

int hoccl_tcp_threads;

enum state { NEW, JOINING, JOINED, ENDED };

struct hoccl_connection {
    struct hoccl_endpoint *endpoint;
    enum state state;
    uint64_t serial, id;
    char name[64];
    void *context;
    struct tcp_order *forget;       /* while JOINING: what tells the door to forget it */
    int lanes;                      /* for writes; one socket more */
    unsigned goodbyes;              /* of sockets */
    unsigned turn;                  /* lane to begin looking at */
    struct tcp_lane *lane[TCP_SOCKETS]; /* by socket; NULL: ended */
    uint64_t given[TCP_SOCKETS];    /* bytes */
    struct hoccl_lane_count count[TCP_SOCKETS];
};

/* All of it belongs to the caller, but `shared` and the loops' own parts. */
struct hoccl_endpoint {
    struct tcp_shared shared;
    struct tcp_interfaces own;
    int threads, lanes;
    struct tcp_loop loop[1 + THREADS_MAX];
    unsigned turn;                  /* of the threads for lanes, whose the next one is */
    unsigned ring;                  /* ring to begin with */
    struct hoccl_connection **place;
    uint32_t places, generation;
    uint16_t port;
};

/* ---- connections by serial number -------------------------------------------------------------------------------- */

static struct hoccl_connection *find(const struct hoccl_endpoint *e, uint64_t serial)
{
    uint32_t at = (uint32_t)serial;
    struct hoccl_connection *c = at < e->places ? e->place[at] : NULL;
    return c && c->serial == serial ? c : NULL;
}

static HOCCL_Result enlist(struct hoccl_endpoint *e, struct hoccl_connection *c)
{
    uint32_t at = 0;
    while (at < e->places && e->place[at])
        at++;
    if (at == e->places) {
        uint32_t more = e->places ? 2 * e->places : 16;
        struct hoccl_connection **p = realloc(e->place, more * sizeof *p);
        if (!p)
            return hoccl_fail(HOCCL_ERR_MEMORY, "no host memory for %u connections", more);
        memset(p + e->places, 0, (more - e->places) * sizeof *p);
        e->place = p;
        e->places = more;
    }
    e->place[at] = c;
    c->serial = (uint64_t)++e->generation << 32 | at;
    return HOCCL_SUCCESS;
}

/* ---- the endpoint ------------------------------------------------------------------------------------------------ */

static int allowed_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static void choose_sizes(struct hoccl_endpoint *e)
{
    int n = hoccl_tcp_threads ? hoccl_tcp_threads : allowed_cores() / 4;
    e->threads = n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
    e->lanes = hoccl_settings.lanes ? (int)hoccl_settings.lanes : e->threads < 2 ? 2 : e->threads;
    if (e->threads > 1)
        e->threads++; /* for messages */
}

static HOCCL_Result init_shared(struct tcp_shared *s, const struct hoccl_endpoint_wish *wish)
{
    hoccl_tcp_regions_init(&s->regions);
    s->bell = wish->bell;
    memcpy(s->cookie, wish->cookie, sizeof s->cookie);
    s->life = hoccl_settings.timeout / 2;
    if (getrandom(&s->token, sizeof s->token, 0) != sizeof s->token || getrandom(&s->proof, sizeof s->proof, 0) != sizeof s->proof)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "getrandom: %m");
    return HOCCL_SUCCESS;
}

static HOCCL_Result open_loops(struct hoccl_endpoint *e)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int i = 0; i < e->threads && !r; i++)
        r = hoccl_tcp_loop_open(&e->loop[i], &e->shared, i);
    if (!r)
        r = hoccl_tcp_door_open(&e->loop[0], &e->loop[0].door);
    if (!r)
        e->port = e->loop[0].door->port;
    for (int i = 0; i < e->threads && !r; i++)
        r = hoccl_tcp_loop_start(&e->loop[i], i);
    return r;
}

static void tcp_close(struct hoccl_endpoint *e)
{
    for (int i = 0; i < e->threads; i++)
        hoccl_tcp_loop_close(&e->loop[i]);
    hoccl_tcp_regions_fini(&e->shared.regions);
    free(e->place);
    free(e);
}

static void write_card(const struct hoccl_endpoint *e, struct hoccl_endpoint_card *card)
{
    struct tcp_card own = {.token = e->shared.token, .proof = e->shared.proof, .port = e->port, .lanes = (uint8_t)e->lanes};
    memset(card, 0, sizeof *card);
    snprintf(card->transport, sizeof card->transport, "tcp");
    hoccl_tcp_card_fill(&own, &e->own);
    memcpy(card->bytes, &own, sizeof own);
}

static HOCCL_Result tcp_open(const struct hoccl_endpoint_wish *wish, struct hoccl_endpoint **endpoint,
                             struct hoccl_endpoint_card *card)
{
    if (hoccl_settings.lanes > HOCCL_LANES_MAX)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_LANES=%llu: at most %d", (unsigned long long)hoccl_settings.lanes,
                          HOCCL_LANES_MAX);
    struct hoccl_endpoint *e = hoccl_alloc_lines(sizeof *e, "a TCP endpoint");
    if (!e)
        return HOCCL_ERR_MEMORY;
    choose_sizes(e);
    HOCCL_Result r = init_shared(&e->shared, wish);
    if (!r)
        r = hoccl_tcp_interfaces_read(hoccl_settings.nic, wish->nic, &e->own);
    if (!r)
        r = open_loops(e);
    if (r) {
        tcp_close(e);
        return r;
    }
    write_card(e, card);
    *endpoint = e;
    return HOCCL_SUCCESS;
}

static void tcp_describe(const struct hoccl_endpoint *e, char *text, size_t bytes)
{
    char where[512];
    size_t memory = sizeof(struct hoccl_connection) + (size_t)(e->lanes + 1) * sizeof(struct tcp_lane) +
                    (size_t)TCP_SLOTS * HOCCL_MESSAGE_BYTES;
    hoccl_tcp_interfaces_text(&e->own, where, sizeof where);
    snprintf(text, bytes, "tcp: port %d, %d lanes and %d writes in flight on each, %d I/O thread%s, %zu KiB a connection; %s", e->port,
             e->lanes, TCP_SLOTS, e->threads, e->threads > 1 ? "s" : "", (memory + 1023) / 1024, where);
}

/* ---- a connection is made ---------------------------------------------------------------------------------------- */

static HOCCL_Result tcp_connection_open(struct hoccl_endpoint *e, uint64_t id, const char *name, void *context,
                                        struct hoccl_connection **connection)
{
    struct hoccl_connection *c = hoccl_alloc(sizeof *c, "a connection");
    if (!c)
        return HOCCL_ERR_MEMORY;
    c->endpoint = e;
    c->id = id;
    c->context = context;
    snprintf(c->name, sizeof c->name, "%s", name);
    HOCCL_Result r = enlist(e, c);
    if (r)
        free(c);
    else
        *connection = c;
    return r;
}

static void fill_meeting(const struct hoccl_connection *c, const struct tcp_card *peer, bool summons, struct tcp_meeting *m)
{
    uint64_t now = hoccl_now();
    m->serial = c->serial;
    m->id = c->id & ~1ull;
    m->dials = !(c->id & 1);
    m->summons = summons;
    m->sockets = c->lanes + 1;
    memcpy(m->name, c->name, sizeof m->name);
    m->until = now + hoccl_settings.init_timeout;
    m->dial_until = now + hoccl_settings.timeout;
    m->card = *peer;
    m->candidates = hoccl_tcp_card_candidates(peer, &c->endpoint->own, m->candidate);
    m->order.meeting = m;
}

static HOCCL_Result begin_to_meet(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer, bool summons)
{
    struct tcp_card card;
    if (c->state != NEW)
        return hoccl_fail(HOCCL_ERR_INTERNAL, "a connection to %s is joined twice", c->name);
    if (strncmp(peer->transport, "tcp", sizeof peer->transport))
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s uses the transport %.7s, this rank tcp: set HOCCL_NET to the same on all ranks",
                          c->name, peer->transport);
    memcpy(&card, peer->bytes, sizeof card);
    if (!card.lanes || card.lanes > HOCCL_LANES_MAX)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "the card of %s is damaged", c->name);
    struct tcp_meeting *m = hoccl_tcp_meeting_open();
    if (!m)
        return HOCCL_ERR_MEMORY;
    c->forget = hoccl_alloc(sizeof *c->forget, "a connection");
    if (!c->forget) {
        hoccl_tcp_meeting_free(m);
        return HOCCL_ERR_MEMORY;
    }
    c->forget->kind = TCP_FORGET;
    c->lanes = card.lanes < c->endpoint->lanes ? card.lanes : c->endpoint->lanes;
    c->state = JOINING;
    fill_meeting(c, &card, summons, m);
    hoccl_tcp_loop_order(&c->endpoint->loop[0], &m->order.link);
    return HOCCL_SUCCESS;
}

static HOCCL_Result tcp_join(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer)
{
    return begin_to_meet(c, peer, false);
}

static HOCCL_Result tcp_summon(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer)
{
    return begin_to_meet(c, peer, true);
}

/* Without memory the callers go when their own limit has passed. */
static void tcp_decline(struct hoccl_endpoint *e, uint64_t id)
{
    struct tcp_order *o = hoccl_alloc(sizeof *o, "a refusal");
    if (!o)
        return;
    o->kind = TCP_DECLINE;
    o->serial = id & ~1ull;
    hoccl_tcp_loop_order(&e->loop[0], &o->link);
}

static bool is_near(int fd)
{
    struct tcp_info info;
    socklen_t n = sizeof info;
    return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) && info.tcpi_rtt && info.tcpi_rtt <= NEAR;
}

static void set_options(int fd, int socket)
{
    int bytes = HOCCL_TCP_SEND_BUFFER;
    uint64_t t = hoccl_settings.timeout / HOCCL_MS;
    if (t > 24 * 3600 * 1000)
        t = 24 * 3600 * 1000; /* what the options can hold */
    int one = 1, user = (int)(socket ? t : t / 3), idle = t > 16000 ? (int)(t / 8000) : 2, probes = 9;
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user, sizeof user);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if (socket && is_near(fd))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static void end_lanes(struct hoccl_connection *c, bool depart)
{
    for (int i = 0; i <= c->lanes; i++) {
        if (c->lane[i])
            hoccl_tcp_lane_end(c->lane[i], depart);
        c->lane[i] = NULL;
    }
}

/* Whose a socket is. */
static struct tcp_loop *loop_for(struct hoccl_endpoint *e, int socket)
{
    if (!socket || e->threads == 1)
        return &e->loop[0];
    return &e->loop[1 + e->turn++ % (unsigned)(e->threads - 1)];
}

/* The sockets become lanes. */
static bool make_lanes(struct hoccl_connection *c, struct tcp_meeting *m)
{
    struct hoccl_endpoint *e = c->endpoint;
    char pair[170], name[TCP_NAME];
    hoccl_tcp_socket_text(m->fd[0], pair, sizeof pair);
    hoccl_log(HOCCL_LOG_INFO, "TCP: connected to %s, %s, %d lanes", c->name, pair, c->lanes);
    for (int i = 0; i <= c->lanes; i++) {
        char what[16] = "messages";
        if (i)
            snprintf(what, sizeof what, "lane %d", i - 1);
        hoccl_tcp_socket_text(m->fd[i], pair, sizeof pair);
        snprintf(name, sizeof name, "connection to %s, %s (%s)", c->name, what, pair);
        set_options(m->fd[i], i);
        c->lane[i] = hoccl_tcp_lane_open(loop_for(e, i), m->fd[i], c->serial, (uint32_t)i, name, !m->dials);
        if (!c->lane[i])
            return false;
        m->fd[i] = -1;
    }
    return true;
}

/* ---- what is given ----------------------------------------------------------------------------------------------- */

static bool tcp_message(struct hoccl_connection *c, const void *bytes, size_t count)
{
    if (c->state != JOINED)
        return false;
    if (count > HOCCL_MESSAGE_BYTES) {
        hoccl_log(HOCCL_LOG_ERROR, "a message of %zu bytes for %s: at most %d (HOCCL's own error)", count, c->name,
                  HOCCL_MESSAGE_BYTES);
        return false;
    }
    return hoccl_tcp_lane_give_message(c->lane[0], bytes, count);
}

/* The lane with room and the fewest bytes before a new write; 0: none has room. */
static int choose_lane(const struct hoccl_connection *c)
{
    int best = 0;
    uint64_t least = UINT64_MAX;
    for (int k = 0; k < c->lanes; k++) {
        int i = 1 + (int)((c->turn + (unsigned)k) % (unsigned)c->lanes);
        uint64_t before = c->given[i] - hoccl_peek(&c->lane[i]->sent_bytes);
        if (hoccl_tcp_lane_room(c->lane[i]) && before < least) {
            least = before;
            best = i;
        }
    }
    return best;
}

static bool tcp_write(struct hoccl_connection *c, const struct hoccl_write *write)
{
    int i = c->state == JOINED ? choose_lane(c) : 0;
    if (!i)
        return false;
    c->turn = (unsigned)i;
    c->given[i] += write->bytes;
    struct hoccl_lane_count *n = &c->count[i];
    n->flight++;
    if (n->flight > n->most)
        n->most = n->flight;
    return hoccl_tcp_lane_give_write(c->lane[i], write);
}

static bool lanes_idle(const struct hoccl_connection *c, int from)
{
    for (int i = from; i <= c->lanes; i++)
        if (c->lane[i] && !hoccl_tcp_lane_idle(c->lane[i]))
            return false;
    return true;
}

static bool tcp_idle(const struct hoccl_connection *c)
{
    return c->state != JOINED || lanes_idle(c, 0);
}

/* Messages that the kernel does not have yet lie in memory of the lane and can still go; writes lie in regions. */
static void tcp_connection_close(struct hoccl_connection *c)
{
    struct hoccl_endpoint *e = c->endpoint;
    if (c->state == JOINING) {
        c->forget->serial = c->serial;
        hoccl_tcp_loop_order(&e->loop[0], &c->forget->link);
    } else {
        end_lanes(c, lanes_idle(c, 1));
    }
    e->place[(uint32_t)c->serial] = NULL;
    free(c);
}

static int tcp_lanes(const struct hoccl_connection *c, struct hoccl_lane_count count[HOCCL_LANES_MAX])
{
    if (c->state == NEW)
        return 0;
    memcpy(count, c->count + 1, (size_t)c->lanes * sizeof *count);
    return c->lanes;
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

static HOCCL_Result tcp_region_add(struct hoccl_endpoint *e, const struct hoccl_region_source *source, struct hoccl_region *region)
{
    uint64_t key;
    if (source->gpu || source->dmabuf >= 0)
        return hoccl_fail(HOCCL_ERR_DEVICE, "TCP reaches host memory only, not memory of a GPU");
    if (!source->address || !source->bytes)
        return hoccl_fail(HOCCL_ERR_INTERNAL, "a region without memory");
    HOCCL_Result r = hoccl_tcp_region_add(&e->shared.regions, (uintptr_t)source->address, source->bytes, &key);
    if (!r)
        *region = (struct hoccl_region){.key = {(uintptr_t)source->address, key}};
    return r;
}

static void tcp_region_remove(struct hoccl_endpoint *e, struct hoccl_region *region)
{
    hoccl_tcp_region_remove(&e->shared.regions, region->key.key);
    region->key = (struct hoccl_region_key){0, 0};
}

/* ---- news become events ------------------------------------------------------------------------------------------ */

static bool broken(struct hoccl_connection *c, const char *text, struct hoccl_transport_event *event)
{
    end_lanes(c, false);
    c->state = ENDED;
    event->kind = HOCCL_TRANSPORT_BROKEN;
    event->text = text;
    return true;
}

static bool met(struct hoccl_connection *c, struct tcp_news *n, struct hoccl_transport_event *event)
{
    struct tcp_meeting *m = n->meeting;
    free(c->forget);
    c->forget = NULL;
    if (!m->met || !make_lanes(c, m)) {
        snprintf(n->data, sizeof n->data, "%s", m->met ? hoccl_error_text() : m->text);
        return broken(c, n->data, event);
    }
    c->state = JOINED;
    event->kind = HOCCL_TRANSPORT_JOINED;
    return true;
}

static bool goodbye(struct hoccl_connection *c, struct hoccl_transport_event *event)
{
    if (++c->goodbyes <= (unsigned)c->lanes)
        return false;
    end_lanes(c, false);
    c->state = ENDED;
    event->kind = HOCCL_TRANSPORT_CLOSED;
    return true;
}

static bool written(struct hoccl_connection *c, const struct tcp_news *n, struct hoccl_transport_event *event)
{
    struct hoccl_lane_count *k = &c->count[n->socket];
    k->flight--;
    k->writes++;
    k->bytes += n->bytes;
    event->kind = HOCCL_TRANSPORT_WRITTEN;
    event->tag = n->tag;
    return true;
}

/* false: nothing that the caller should know. */
static bool translate(struct hoccl_connection *c, struct tcp_news *n, struct hoccl_transport_event *event)
{
    *event = (struct hoccl_transport_event){.context = c->context};
    switch (n->kind) {
    case TCP_NEWS_MET:
        return met(c, n, event);
    case TCP_NEWS_MESSAGE:
        event->kind = HOCCL_TRANSPORT_MESSAGE;
        event->bytes = n->bytes;
        event->message = n->data;
        return true;
    case TCP_NEWS_WRITTEN:
        return written(c, n, event);
    case TCP_NEWS_ARRIVED:
        event->kind = HOCCL_TRANSPORT_ARRIVED;
        event->bytes = n->bytes;
        event->word = n->word;
        return true;
    case TCP_NEWS_GOODBYE:
        return goodbye(c, event);
    case TCP_NEWS_BROKEN:
        return broken(c, n->data, event);
    case TCP_NEWS_CALLED:
        break;
    }
    return false;
}

static bool hear(struct hoccl_endpoint *e, struct tcp_news *n, struct hoccl_transport_event *event)
{
    if (n->kind == TCP_NEWS_CALLED) {
        *event = (struct hoccl_transport_event){.kind = HOCCL_TRANSPORT_CALLED, .tag = n->tag};
        return true;
    }
    struct hoccl_connection *c = find(e, n->serial);
    bool told = c && c->state != ENDED && translate(c, n, event);
    if (n->kind == TCP_NEWS_MET)
        hoccl_tcp_meeting_free(n->meeting);
    return told;
}

/* What the last call returned has been seen: its entries are free again. */
static void give_back(struct tcp_loop *l)
{
    if (l->news->head.word == l->news->head.seen)
        return;
    hoccl_publish(&l->news->head.word, l->news->head.seen);
    if (hoccl_exchange(&l->news->stalled.word, 0u))
        hoccl_tcp_loop_wake(l);
}

static int tcp_poll(struct hoccl_endpoint *e, struct hoccl_transport_event *events, int most)
{
    int n = 0;
    for (int i = 0; i < e->threads; i++)
        give_back(&e->loop[i]);
    for (int i = 0; i < e->threads && n < most; i++) {
        struct tcp_news_ring *ring = e->loop[(e->ring + (unsigned)i) % (unsigned)e->threads].news;
        for (struct tcp_news *k; n < most && (k = tcp_news_take(ring));)
            n += hear(e, k, &events[n]);
    }
    e->ring++;
    return n;
}

static bool tcp_arm(struct hoccl_endpoint *e)
{
    hoccl_exchange(&e->shared.armed, 1u);
    for (int i = 0; i < e->threads; i++)
        if (e->loop[i].news->head.seen != hoccl_observe(&e->loop[i].news->tail.word))
            return true;
    return false;
}

const struct hoccl_transport hoccl_transport_tcp = {
    .name = "tcp",
    /* Measured with 8 sockets over loopback, both ways at once: chunks of 512 KiB 11 GB/s, of 1 MiB 14 to 15; bare sockets 16.5.
     * What is written stays in the sockets' buffers for a while then. `link`: 12 sockets move 18 to 20 GB/s. */
    .cost = {.start = 90000, .lane = 440, .link = 50, .late = 150000},
    .open = tcp_open,
    .close = tcp_close,
    .describe = tcp_describe,
    .connection_open = tcp_connection_open,
    .join = tcp_join,
    .summon = tcp_summon,
    .decline = tcp_decline,
    .message = tcp_message,
    .write = tcp_write,
    .idle = tcp_idle,
    .connection_close = tcp_connection_close,
    .lanes = tcp_lanes,
    .region_add = tcp_region_add,
    .region_remove = tcp_region_remove,
    .poll = tcp_poll,
    .arm = tcp_arm,
};
