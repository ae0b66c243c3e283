/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of the peer are tried in order, a next one as soon as one fails or STAGGER after the last ("happy
 * eyeballs"). A call counts when the answer to its hello holds the proof of the peer's card: an address that belongs to
 * another host as well, or to somebody else's program, does not have it. The first that counts is chosen; the other
 * sockets go the same way.
 *
 *   CONNECTING ──connected: hello──▶ ASKED ──answer──▶ HEARD ──WELCOME──▶ THROUGH
 *        └──────────────────────────────┴────────────────┴──error, end, limit──▶ GONE
 *
 * A knock goes the same way, with one socket, and stays HEARD until its meeting has ended otherwise.
 *
 * If all addresses fail, or a call fails that had been chosen, there is another round after PAUSE: the peer may be short of
 * descriptors, the network may be coming up. That goes on for HOCCL_TIMEOUT, and not as long if every address refuses, for
 * a listener is there before its card. */
#define _GNU_SOURCE
#include "transport/tcp_dial.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "transport/tcp_wire.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define STAGGER (250 * HOCCL_MS)
#define ATTEMPT (5 * HOCCL_S)
#define PAUSE (100 * HOCCL_MS)
#define REFUSALS 30               /* rounds in which every address refused: 3 s */
#define NOT_THE_PEER EPROTO       /* as an error of a call: who answered is somebody else */

enum state { CONNECTING, ASKED, HEARD, THROUGH, GONE };

struct call {
    struct tcp_guest guest; /* of meeting's calls, or over */
    struct tcp_door *door;
    struct tcp_meeting *meeting;
    enum state state;
    int fd, socket, candidate;
    uint32_t attempt;
    uint64_t until;
    uint32_t at;            /* bytes that have come of */
    union {
        struct tcp_answer answer;
        struct tcp_frame frame;
    } in;
};

static struct call *call_of(struct hoccl_list *link)
{
    return hoccl_entry(link, struct call, guest.link);
}

static void hang_up(struct call *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->state = GONE;
    hoccl_list_remove(&c->guest.link);
    hoccl_list_append(&c->door->over, &c->guest.link);
}

void hoccl_tcp_dial_stop(struct tcp_door *door, struct tcp_meeting *meeting)
{
    (void)door;
    while (!hoccl_list_empty(&meeting->calls))
        hang_up(call_of(meeting->calls.next));
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

static void note(struct call *c, int e)
{
    struct tcp_meeting *m = c->meeting;
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    char to[80], from[80] = "?";
    size_t used = strlen(m->tried);
    if (c->fd >= 0 && !getsockname(c->fd, (struct sockaddr *)&a, &n) && a.ss_family)
        hoccl_tcp_address_text(&a, from, sizeof from);
    hoccl_tcp_address_text(&m->candidate[c->candidate].to, to, sizeof to);
    snprintf(m->tried + used, sizeof m->tried - used, "%s%s from %s (%s)", used ? ", " : "", to, from,
             e == NOT_THE_PEER ? "somebody else answers there" : strerror(e));
    m->heard |= e != ECONNREFUSED;
    m->unmade = e == EMFILE || e == ENFILE ? e : 0; /* and not, say, for want of IPv6 here, where another address may be the one */
}

static void begin_round(struct tcp_meeting *m, uint64_t at)
{
    m->chosen = -1;
    m->next = 0;
    m->next_at = at;
    m->heard = false;
    m->tried[0] = 0;
}

static void give_up(struct tcp_door *door, struct tcp_meeting *m)
{
    for (struct hoccl_list *l = m->calls.next; l != &m->calls; l = l->next)
        note(call_of(l), ETIMEDOUT);
    const char *tried = m->tried[0] ? m->tried : m->before;
    if (m->unmade)
        snprintf(m->text, sizeof m->text, "a socket to %s: %s (see ulimit -n: a connection has HOCCL_LANES + 1 sockets)", m->name,
                 strerror(m->unmade));
    else
        snprintf(m->text, sizeof m->text, "%.60s cannot be reached over TCP: its process has ended, or a firewall stands in between "
                 "(HOCCL_PORTS sets the ports to open), or HOCCL_NIC should name the network that joins the nodes; tried %s", m->name,
                 *tried ? tried : "no address, for it has published none that the interfaces of HOCCL_NIC could reach");
    hoccl_tcp_door_result(door, m, false);
}

/* A call has failed. Before the choice others go on; after it the round is lost. */
static void fail(struct call *c, int e)
{
    struct tcp_door *door = c->door;
    struct tcp_meeting *m = c->meeting;
    uint64_t now = hoccl_now();
    note(c, e);
    hang_up(c);
    if (m->chosen >= 0) {
        memcpy(m->before, m->tried, sizeof m->before);
        hoccl_tcp_dial_stop(door, m);
        begin_round(m, now + PAUSE);
    } else if (m->next < m->candidates) {
        m->next_at = now;
    }
    door->due = 0;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static void ask(struct call *c)
{
    const struct tcp_meeting *m = c->meeting;
    const struct tcp_shared *s = c->door->loop->shared;
    struct tcp_hello h = {.magic = TCP_HELLO_MAGIC, .version = TCP_VERSION, .token = m->card.token, .id = m->id,
                          .attempt = c->attempt, .socket = (uint16_t)c->socket, .lanes = (uint8_t)(m->sockets - 1),
                          .purpose = !m->dials ? TCP_KNOCKS : m->summons && !c->socket ? TCP_SUMMONS : TCP_JOINS};
    memcpy(h.cookie, s->cookie, sizeof h.cookie);
    if (send(c->fd, &h, sizeof h, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof h)
        c->state = ASKED;
    else
        fail(c, errno);
}

static void start(struct tcp_door *door, struct tcp_meeting *m, int socket, int candidate);

/* The peer itself has answered. */
static void hear(struct call *c)
{
    struct tcp_meeting *m = c->meeting;
    struct tcp_door *door = c->door;
    c->state = HEARD;
    c->until = TCP_NEVER;
    c->at = 0;
    if (c->socket)
        return;
    m->chosen = c->candidate;
    m->attempt = c->attempt;
    for (struct hoccl_list *l = m->calls.next, *next; l != &m->calls; l = next) {
        next = l->next;
        if (call_of(l) != c)
            hang_up(call_of(l));
    }
    for (int i = 1; i < m->sockets && m->chosen >= 0 && m->dials; i++)
        start(door, m, i, m->chosen);
}

static void welcome(struct call *c)
{
    struct tcp_meeting *m = c->meeting;
    c->state = THROUGH;
    for (struct hoccl_list *l = m->calls.next; l != &m->calls; l = l->next)
        if (call_of(l)->state != THROUGH)
            return;
    for (struct hoccl_list *l = m->calls.next; l != &m->calls; l = l->next) {
        struct call *k = call_of(l);
        epoll_ctl(k->door->loop->epoll, EPOLL_CTL_DEL, k->fd, NULL);
        m->fd[k->socket] = k->fd;
        k->fd = -1;
    }
    hoccl_tcp_door_result(c->door, m, true);
}

static void declined(struct call *c)
{
    struct tcp_meeting *m = c->meeting;
    snprintf(m->text, sizeof m->text, "%s has no part in the communicator any more: it has destroyed or aborted it", m->name);
    hoccl_tcp_door_result(c->door, m, false);
}

/* What has been waited for has come whole. */
static void take(struct call *c)
{
    if (c->state == ASKED) {
        const struct tcp_answer *a = &c->in.answer;
        if (a->magic == TCP_ANSWER_MAGIC && a->version == TCP_VERSION && a->proof == c->meeting->card.proof)
            hear(c);
        else
            fail(c, NOT_THE_PEER);
    } else {
        const struct tcp_frame *f = &c->in.frame;
        if (f->magic == TCP_FRAME_MAGIC && f->kind == TCP_WELCOME && c->meeting->dials)
            welcome(c);
        else if (f->magic == TCP_FRAME_MAGIC && f->kind == TCP_DECLINED)
            declined(c);
        else
            fail(c, EPROTO);
    }
}

static void listen_to(struct call *c)
{
    while (c->state == ASKED || c->state == HEARD) {
        uint32_t want = c->state == ASKED ? sizeof c->in.answer : sizeof c->in.frame;
        ssize_t n = recv(c->fd, (char *)&c->in + c->at, want - c->at, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            bool closed = !n || errno == ECONNRESET;
            fail(c, closed && c->state == ASKED ? NOT_THE_PEER : n ? errno : ECONNRESET);
            return;
        }
        c->at += (uint32_t)n;
        if (c->at == want)
            take(c);
    }
}

static void call_ready(struct tcp_source *source, uint32_t events)
{
    struct call *c = hoccl_entry(source, struct call, guest.source);
    int e = 0;
    socklen_t n = sizeof e;
    if (c->state == GONE || c->state == THROUGH)
        return;
    if (c->state == CONNECTING) {
        if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
            return;
        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &n) || e) {
            fail(c, e ? e : errno);
            return;
        }
        ask(c);
    }
    listen_to(c);
}

static void start(struct tcp_door *door, struct tcp_meeting *m, int socket_number, int candidate)
{
    const struct tcp_candidate *to = &m->candidate[candidate];
    struct call *c = hoccl_alloc(sizeof *c, "a call");
    int one = 1;
    if (!c) {
        m->next_at = hoccl_now() + PAUSE;
        return;
    }
    c->guest.source.ready = call_ready;
    c->door = door;
    c->meeting = m;
    c->socket = socket_number;
    c->candidate = candidate;
    c->attempt = socket_number ? m->attempt : ++m->attempts;
    c->until = hoccl_now() + ATTEMPT;
    hoccl_list_append(&m->calls, &c->guest.link);
    c->fd = socket(to->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || (to->bound && bind(c->fd, (const struct sockaddr *)&to->from, to->bytes))) {
        fail(c, errno);
        return;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if ((connect(c->fd, (const struct sockaddr *)&to->to, to->bytes) && errno != EINPROGRESS) ||
        !hoccl_tcp_loop_watch(door->loop, c->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &c->guest.source))
        fail(c, errno);
}

/* ---- what is due ------------------------------------------------------------------------------------------------- */

static void look_at_calls(struct tcp_meeting *m, uint64_t now, uint64_t *due)
{
    for (struct hoccl_list *l = m->calls.next; l != &m->calls; l = l->next) {
        struct call *c = call_of(l);
        if (now >= c->until) {
            fail(c, ETIMEDOUT); /* may end them all: look again at once */
            *due = 0;
            return;
        }
        if (c->until < *due)
            *due = c->until;
    }
}

/* Every address has been tried and none is left. */
static void end_round(struct tcp_meeting *m, uint64_t now)
{
    m->refused = m->heard || !m->candidates ? 0 : m->refused + 1;
    memcpy(m->before, m->tried, sizeof m->before);
    begin_round(m, now + PAUSE);
}

void hoccl_tcp_dial_step(struct tcp_door *door, struct tcp_meeting *m, uint64_t now, uint64_t *due)
{
    look_at_calls(m, now, due);
    if (m->chosen >= 0)
        return;
    if (now >= m->dial_until || m->refused >= REFUSALS || !m->candidates) {
        give_up(door, m);
        return;
    }
    if (m->next < m->candidates && now >= m->next_at) {
        m->next_at = now + STAGGER;
        start(door, m, 0, m->next++);
    }
    if (m->next == m->candidates && hoccl_list_empty(&m->calls))
        end_round(m, now);
    if (m->next < m->candidates && m->next_at < *due)
        *due = m->next_at;
    if (m->dial_until < *due)
        *due = m->dial_until;
}
