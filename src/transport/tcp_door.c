/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "transport/tcp_door.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "transport/listen.h"
#include "transport/tcp_dial.h"
#include "transport/tcp_wire.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#define HELLO_LIMIT (5 * HOCCL_S)
#define STRANGERS 256u
#define PAUSE (100 * HOCCL_MS)
#define ACCEPTS 64                 /* at once */
#define TELLINGS 10u               /* strangers that are worth a line in the log */

enum state { STRANGER, HELD, GONE };

struct caller {
    struct tcp_guest guest;        /* of callers, or over */
    struct tcp_door *door;
    enum state state;
    bool untold;                   /* HELD: a summons that is to become news */
    int fd;
    uint32_t at;                   /* bytes of the hello that have come */
    uint64_t until;
    struct tcp_hello hello;
};

/* ---- callers ----------------------------------------------------------------------------------------------------- */

static struct caller *caller_of(struct hoccl_list *link)
{
    return hoccl_entry(link, struct caller, guest.link);
}

static void leave(struct caller *c, bool keep_socket)
{
    if (c->state == STRANGER)
        c->door->strangers--;
    c->door->untold -= c->untold;
    c->untold = false;
    c->state = GONE;
    if (keep_socket)
        epoll_ctl(c->door->loop->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    else
        close(c->fd);
    c->fd = -1;
    hoccl_list_remove(&c->guest.link);
    hoccl_list_append(&c->door->over, &c->guest.link);
}

static void turn_away(struct caller *c, const char *why)
{
    char pair[180];
    if (c->door->turned_away++ < TELLINGS) {
        hoccl_tcp_socket_text(c->fd, pair, sizeof pair);
        hoccl_log(HOCCL_LOG_INFO, "TCP: a caller was turned away (%s): %s%s", pair, why,
                  c->door->turned_away == TELLINGS ? "; later ones are not told of" : "");
    }
    leave(c, false);
}

static bool same_cookie(const uint8_t *a, const uint8_t *b)
{
    unsigned differ = 0;
    for (int i = 0; i < 16; i++)
        differ |= a[i] ^ b[i];
    return !differ;
}

static const char *fault_of(const struct tcp_hello *h, const struct tcp_shared *s)
{
    if (h->magic != TCP_HELLO_MAGIC)
        return "it does not speak HOCCL's protocol";
    if (h->version != TCP_VERSION)
        return "it is of another version of HOCCL";
    if (!same_cookie(h->cookie, s->cookie))
        return "it does not know the cookie of this job";
    if (h->token != s->token)
        return "it means another process";
    if (!h->lanes || h->lanes > HOCCL_LANES_MAX || h->socket > h->lanes || h->purpose > TCP_KNOCKS)
        return "its hello makes no sense";
    return NULL;
}

/* The socket for `number` of an attempt, or of any attempt that has come for socket 0. */
static struct caller *find(struct tcp_door *door, uint64_t id, int number, int sockets, const uint32_t *attempt)
{
    for (struct hoccl_list *l = door->callers.next; l != &door->callers; l = l->next) {
        struct caller *c = caller_of(l);
        if (c->state == HELD && c->hello.purpose != TCP_KNOCKS && c->hello.id == id && c->hello.socket == number && c->hello.lanes + 1 == sockets &&
            (!attempt || c->hello.attempt == *attempt))
            return c;
    }
    return NULL;
}

/* A caller whose peer tried two addresses leaves two sockets 0; the others name the attempt that was chosen. */
static bool try_to_meet(struct tcp_door *door, struct tcp_meeting *m)
{
    struct caller *found[TCP_SOCKETS], *other = find(door, m->id, m->sockets - 1, m->sockets, NULL);
    if (m->dials || !other)
        return false;
    for (int i = 0; i < m->sockets; i++)
        if (!(found[i] = find(door, m->id, i, m->sockets, &other->hello.attempt)))
            return false;
    for (int i = 0; i < m->sockets; i++) {
        m->fd[i] = found[i]->fd;
        leave(found[i], true);
    }
    hoccl_tcp_door_result(door, m, true);
    return true;
}

static void meet(struct caller *c)
{
    struct tcp_door *door = c->door;
    bool known = false;
    for (struct hoccl_list *l = door->meetings.next, *next; l != &door->meetings; l = next) {
        struct tcp_meeting *m = hoccl_entry(l, struct tcp_meeting, of_door);
        next = l->next;
        known |= m->id == c->hello.id;
        if (m->id == c->hello.id && c->state == HELD)
            try_to_meet(door, m);
    }
    c->untold = !known && c->hello.purpose != TCP_JOINS;
    door->untold += c->untold;
}

static void answer(struct caller *c)
{
    struct tcp_door *door = c->door;
    struct tcp_answer a = {TCP_ANSWER_MAGIC, TCP_VERSION, door->loop->shared->proof};
    const char *why = fault_of(&c->hello, door->loop->shared);
    if (why) {
        turn_away(c, why);
        return;
    }
    if (send(c->fd, &a, sizeof a, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof a) {
        leave(c, false);
        return;
    }
    door->strangers--;
    c->state = HELD;
    meet(c);
}

/* A held caller says nothing before it is welcomed: what comes of it is its end. */
static void caller_ready(struct tcp_source *source, uint32_t events)
{
    struct caller *c = hoccl_entry(source, struct caller, guest.source);
    (void)events;
    if (c->state == GONE)
        return;
    char scrap;
    ssize_t n = c->state == HELD ? recv(c->fd, &scrap, 1, MSG_DONTWAIT | MSG_PEEK)
                                 : recv(c->fd, (char *)&c->hello + c->at, sizeof c->hello - c->at, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || c->state == HELD) {
        if (c->state == HELD)
            c->door->due = 0; /* its meeting may go on with another attempt */
        leave(c, false);
        return;
    }
    bool first = c->at < sizeof c->hello.magic;
    c->at += (uint32_t)n;
    if (c->at == sizeof c->hello)
        answer(c);
    else if (first && c->at >= sizeof c->hello.magic && c->hello.magic != TCP_HELLO_MAGIC)
        turn_away(c, "it does not speak HOCCL's protocol");
}

static void let_stand(struct tcp_door *door, int fd)
{
    struct caller *c = hoccl_alloc(sizeof *c, "a caller");
    int one = 1;
    if (!c) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->guest.source.ready = caller_ready;
    c->door = door;
    c->fd = fd;
    c->until = hoccl_now() + HELLO_LIMIT;
    hoccl_list_append(&door->callers, &c->guest.link);
    door->strangers++;
    if (c->until < door->due)
        door->due = c->until;
    if (!hoccl_tcp_loop_watch(door->loop, fd, EPOLLIN | EPOLLRDHUP, &c->guest.source))
        leave(c, false);
}

static void send_oldest_away(struct tcp_door *door)
{
    for (struct hoccl_list *l = door->callers.next; l != &door->callers; l = l->next) {
        struct caller *c = caller_of(l);
        if (c->state != STRANGER)
            continue;
        turn_away(c, "too many wait at the door");
        return;
    }
}

static void set_listening(struct tcp_door *door, bool on)
{
    struct epoll_event e = {.events = on ? EPOLLIN : 0, .data.ptr = &door->source};
    epoll_ctl(door->loop->epoll, EPOLL_CTL_MOD, door->fd, &e);
}

static void somebody_knocks(struct tcp_source *source, uint32_t events)
{
    struct tcp_door *door = hoccl_entry(source, struct tcp_door, source);
    (void)events;
    for (int i = 0; i < ACCEPTS; i++) {
        int fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            if (!door->warned)
                hoccl_log(HOCCL_LOG_WARN, "TCP: callers have to wait: accept: %m (limit of open files: ulimit -n)");
            door->warned = true;
            door->paused_until = hoccl_now() + PAUSE;
            if (door->paused_until < door->due)
                door->due = door->paused_until;
            set_listening(door, false);
        }
        if (fd < 0)
            return;
        if (door->strangers >= STRANGERS)
            send_oldest_away(door);
        let_stand(door, fd);
    }
}

/* ---- meetings ---------------------------------------------------------------------------------------------------- */

struct tcp_meeting *hoccl_tcp_meeting_open(void)
{
    struct tcp_meeting *m = hoccl_alloc(sizeof *m, "a connection that is being made");
    if (!m)
        return NULL;
    for (int i = 0; i < TCP_SOCKETS; i++)
        m->fd[i] = -1;
    m->chosen = -1;
    hoccl_list_init(&m->calls);
    hoccl_list_init(&m->of_door);
    return m;
}

void hoccl_tcp_meeting_free(struct tcp_meeting *m)
{
    for (int i = 0; i < TCP_SOCKETS; i++)
        if (m->fd[i] >= 0)
            close(m->fd[i]);
    free(m);
}

void hoccl_tcp_door_result(struct tcp_door *door, struct tcp_meeting *m, bool met)
{
    m->met = met;
    hoccl_tcp_dial_stop(door, m);
    hoccl_list_remove(&m->of_door);
    hoccl_list_append(&door->told, &m->of_door);
}

static void tell_results(struct tcp_door *door)
{
    struct tcp_news_ring *ring = door->loop->news;
    while (!hoccl_list_empty(&door->told) && tcp_news_room(ring, 1)) {
        struct tcp_meeting *m = hoccl_entry(hoccl_list_take(&door->told), struct tcp_meeting, of_door);
        struct tcp_news *n = tcp_news_next(ring);
        n->kind = TCP_NEWS_MET;
        n->serial = m->serial;
        n->meeting = m;
        tcp_news_tell(ring);
    }
}

static void tell_calls(struct tcp_door *door)
{
    struct tcp_news_ring *ring = door->loop->news;
    for (struct hoccl_list *l = door->callers.next; l != &door->callers && door->untold && tcp_news_room(ring, 1); l = l->next) {
        struct caller *c = caller_of(l);
        if (!c->untold)
            continue;
        struct tcp_news *n = tcp_news_next(ring);
        n->kind = TCP_NEWS_CALLED;
        n->tag = c->hello.id;
        tcp_news_tell(ring);
        c->untold = false;
        door->untold--;
    }
}

static void decline(struct tcp_door *door, uint64_t id)
{
    struct tcp_frame no = {.magic = TCP_FRAME_MAGIC, .kind = TCP_DECLINED};
    for (struct hoccl_list *l = door->callers.next, *next; l != &door->callers; l = next) {
        struct caller *c = caller_of(l);
        next = l->next;
        if (c->state != HELD || c->hello.id != id)
            continue;
        send(c->fd, &no, sizeof no, MSG_NOSIGNAL | MSG_DONTWAIT);
        leave(c, false);
    }
}

static void forget(struct tcp_door *door, uint64_t serial)
{
    for (struct hoccl_list *l = door->meetings.next; l != &door->meetings; l = l->next) {
        struct tcp_meeting *m = hoccl_entry(l, struct tcp_meeting, of_door);
        if (m->serial != serial)
            continue;
        hoccl_tcp_dial_stop(door, m);
        hoccl_list_remove(&m->of_door);
        hoccl_tcp_meeting_free(m);
        return;
    }
}

static int callers_of(struct tcp_door *door, const struct tcp_meeting *m)
{
    int n = 0;
    for (struct hoccl_list *l = door->callers.next; l != &door->callers; l = l->next)
        n += caller_of(l)->hello.id == m->id && caller_of(l)->hello.purpose != TCP_KNOCKS;
    return n;
}

/* One whose peer is calling already need not knock at once. */
static void let_meet(struct tcp_door *door, struct tcp_meeting *m)
{
    if (!m->dials && m->summons && callers_of(door, m))
        m->next_at = hoccl_now() + PAUSE;
    hoccl_list_append(&door->meetings, &m->of_door);
    try_to_meet(door, m);
}

void hoccl_tcp_door_orders(struct tcp_door *door, struct hoccl_list *orders)
{
    struct hoccl_list *link;
    while ((link = hoccl_list_take(orders))) {
        struct tcp_order *o = hoccl_entry(link, struct tcp_order, link);
        door->due = 0;
        switch (o->kind) {
        case TCP_MEET:
            let_meet(door, o->meeting);
            continue;
        case TCP_FORGET:
            forget(door, o->serial);
            break;
        case TCP_DECLINE:
            decline(door, o->serial);
            break;
        }
        free(o);
    }
}

static void too_late(struct tcp_door *door, struct tcp_meeting *m)
{
    unsigned long long s = hoccl_settings.init_timeout / HOCCL_S;
    if (m->dials)
        snprintf(m->text, sizeof m->text, "%s has answered, but has not joined the connection within %llu s "
                 "(HOCCL_INIT_TIMEOUT): look for its own message", m->name, s);
    else
        snprintf(m->text, sizeof m->text, "%s has not connected to port %d of this host within %llu s (HOCCL_INIT_TIMEOUT; %d "
                 "of %d sockets have come): its process has failed, or a firewall stands in between (HOCCL_PORTS sets the "
                 "ports to open)", m->name, door->port, s, callers_of(door, m), m->sockets);
    hoccl_tcp_door_result(door, m, false);
}

static void look_at_meetings(struct tcp_door *door, uint64_t now)
{
    for (struct hoccl_list *l = door->meetings.next, *next; l != &door->meetings; l = next) {
        struct tcp_meeting *m = hoccl_entry(l, struct tcp_meeting, of_door);
        next = l->next;
        if (m->until < door->due)
            door->due = m->until;
        if (now >= m->until) {
            too_late(door, m);
            continue;
        }
        if (!try_to_meet(door, m) && (m->dials || m->summons))
            hoccl_tcp_dial_step(door, m, now, &door->due);
    }
}

static void look_at_strangers(struct tcp_door *door, uint64_t now)
{
    for (struct hoccl_list *l = door->callers.next, *next; l != &door->callers; l = next) {
        struct caller *c = caller_of(l);
        next = l->next;
        if (c->state != STRANGER)
            continue;
        if (now >= c->until)
            turn_away(c, "it has said no hello");
        else if (c->until < door->due)
            door->due = c->until;
    }
}

uint64_t hoccl_tcp_door_due(const struct tcp_door *door)
{
    bool news = !hoccl_list_empty(&door->told) || door->untold;
    return news && tcp_news_room(door->loop->news, 1) ? 0 : door->due;
}

void hoccl_tcp_door_step(struct tcp_door *door)
{
    uint64_t now = hoccl_now();
    struct hoccl_list *link;
    if (now >= door->due) {
        door->due = TCP_NEVER;
        if (door->paused_until && now >= door->paused_until) {
            door->paused_until = 0;
            set_listening(door, true);
        }
        if (door->paused_until)
            door->due = door->paused_until;
        look_at_strangers(door, now);
        look_at_meetings(door, now);
    }
    tell_results(door);
    tell_calls(door);
    while ((link = hoccl_list_take(&door->over)))
        free(hoccl_entry(link, struct tcp_guest, link));
}

/* ---- the listener ------------------------------------------------------------------------------------------------ */

static HOCCL_Result open_listener(struct tcp_door *door)
{
    HOCCL_Result r = hoccl_listen(&door->fd, &door->port);
    if (!r && !hoccl_tcp_loop_watch(door->loop, door->fd, EPOLLIN, &door->source))
        r = hoccl_fail(HOCCL_ERR_SYSTEM, "TCP: epoll: %m");
    return r;
}

HOCCL_Result hoccl_tcp_door_open(struct tcp_loop *loop, struct tcp_door **out)
{
    struct tcp_door *door = hoccl_alloc(sizeof *door, "the TCP listener");
    if (!door)
        return HOCCL_ERR_MEMORY;
    door->loop = loop;
    door->fd = -1;
    door->due = TCP_NEVER;
    door->source.ready = somebody_knocks;
    hoccl_list_init(&door->callers);
    hoccl_list_init(&door->meetings);
    hoccl_list_init(&door->told);
    hoccl_list_init(&door->over);
    HOCCL_Result r = open_listener(door);
    if (r)
        hoccl_tcp_door_close(door);
    else
        *out = door;
    return r;
}

/* The I/O thread has ended. */
void hoccl_tcp_door_close(struct tcp_door *door)
{
    struct hoccl_list *link;
    while (!hoccl_list_empty(&door->meetings))
        forget(door, hoccl_entry(door->meetings.next, struct tcp_meeting, of_door)->serial);
    while ((link = hoccl_list_take(&door->told)))
        hoccl_tcp_meeting_free(hoccl_entry(link, struct tcp_meeting, of_door));
    while (!hoccl_list_empty(&door->callers))
        leave(caller_of(door->callers.next), false);
    while ((link = hoccl_list_take(&door->over)))
        free(hoccl_entry(link, struct tcp_guest, link));
    if (door->fd >= 0)
        close(door->fd);
    free(door);
}
