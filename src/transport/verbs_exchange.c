/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange, step by step. Sockets never block; what is sent is small enough for a fresh socket's buffer, so a send that
 * does not take all of it is a fault. A guest is an accepted socket: it has 10 s to say a right hello, else it is closed,
 * and at most GUESTS of them that have said nothing are held, so that scanners cost nothing: the one that has been silent
 * longest goes for a new one. One with a right hello waits for its call as long as start-up may take. */
#define _GNU_SOURCE
#include "transport/verbs_exchange.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "transport/listen.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define GUESTS 64
#define GUEST_TIME (10 * HOCCL_S)
#define ATTEMPT (5 * HOCCL_S) /* for one address to connect and to welcome */
#define ROUNDS 2
#define CROWDED (20 * HOCCL_MS)
#define PAUSE (100 * HOCCL_MS)

struct guest {
    struct hoccl_list link;
    int fd;
    bool held; /* its hello was right: it waits for its call, and is no stranger */
    bool untold; /* a summons that has not been told yet */
    size_t got;
    uint64_t deadline;
    struct {
        struct hoccl_wire_hello hello;
        struct hoccl_offer offer;
    } said;
};

/* ---- sockets ----------------------------------------------------------------------------------------------------- */

static bool say(int fd, const void *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

static bool say_word(int fd, enum hoccl_wire_kind kind)
{
    struct hoccl_wire_word w = {HOCCL_WIRE_MAGIC, kind};
    return say(fd, &w, sizeof w);
}

/* Read on towards `want` bytes: 1 all there, 0 not yet, −1 closed or failed (errno). */
static int hear(int fd, void *buffer, size_t *got, size_t want)
{
    while (*got < want) {
        ssize_t n = recv(fd, (char *)buffer + *got, want - *got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        if (!n) {
            errno = ECONNRESET;
            return -1;
        }
        *got += (size_t)n;
    }
    return 1;
}

/* ---- the end of a call ------------------------------------------------------------------------------------------- */

static void finish(struct hoccl_exchange *x, struct hoccl_call *call, enum hoccl_call_state state)
{
    if (call->fd >= 0)
        close(call->fd);
    call->fd = -1;
    call->state = state;
    hoccl_list_remove(&call->link);
    hoccl_publish(&call->outcome, (uint32_t)state);
    hoccl_fetch_add(&x->news, 1);
}

static void fail(struct hoccl_exchange *x, struct hoccl_call *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct hoccl_exchange *x, struct hoccl_call *call, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(call->text, sizeof call->text, format, list);
    va_end(list);
    finish(x, call, HOCCL_CALL_FAILED);
}

/* The peer's offer is there. The lock is released meanwhile; the call stays in the list. */
static bool make_ready(struct hoccl_exchange *x, struct hoccl_call *call)
{
    char why[300] = "";
    call->busy = true;
    pthread_mutex_unlock(&x->lock);
    bool good = call->ready(call, why, sizeof why);
    if (good)
        hoccl_publish(&call->prepared, 1);
    pthread_mutex_lock(&x->lock);
    call->busy = false;
    pthread_cond_broadcast(&x->rest);
    if (!good)
        fail(x, call, "%s", why);
    return good;
}

/* ---- the lower rank ---------------------------------------------------------------------------------------------- */

/* An address has failed: note why, go to the next, after the last one begin again, then give up. */
static void next_address(struct hoccl_exchange *x, struct hoccl_call *call, int e)
{
    struct tcp_candidate candidate[TCP_CANDIDATES];
    char name[80];
    size_t used = strlen(call->text);
    int known = hoccl_tcp_card_candidates(&call->peer, &x->own, candidate);
    if (call->fd >= 0)
        close(call->fd);
    call->fd = -1;
    if (call->address >= (ROUNDS - 1) * known && known)
        snprintf(call->text + used, sizeof call->text - used, "%s%s (%s)", used ? ", " : "",
                 hoccl_tcp_address_text(&candidate[call->address % known].to, name, sizeof name),
                 e == EPROTO ? "another program listens there" : strerror(e));
    call->state = HOCCL_CALL_CONNECTING;
    call->step_deadline = 0;
    if (++call->address < ROUNDS * known)
        return;
    char tried[sizeof call->text];
    memcpy(tried, call->text, sizeof tried);
    fail(x, call,
         "%s cannot be reached over TCP to set RDMA up: its process has ended, or a firewall (HOCCL_PORTS names the ports "
         "to "
         "open) or a missing route is between; tried %.250s",
         call->name, *tried ? tried : "no address, as it has none");
}

/* A socket that connects, −1 with errno. */
static int dial(const struct tcp_candidate *to)
{
    int one = 1, fd = socket(to->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!connect(fd, (const struct sockaddr *)&to->to, to->bytes) || errno == EINPROGRESS)
        return fd;
    int e = errno;
    close(fd);
    errno = e;
    return -1;
}

static void begin_connect(struct hoccl_exchange *x, struct hoccl_call *call)
{
    struct tcp_candidate candidate[TCP_CANDIDATES];
    int known = hoccl_tcp_card_candidates(&call->peer, &x->own, candidate);
    errno = EADDRNOTAVAIL;
    call->fd = known ? dial(&candidate[call->address % known]) : -1;
    call->step_deadline = hoccl_now() + ATTEMPT;
    if (call->fd < 0)
        next_address(x, call, errno);
}

static void greet(struct hoccl_exchange *x, struct hoccl_call *call)
{
    struct {
        struct hoccl_wire_hello hello;
        struct hoccl_offer offer;
    } all = {.hello = {.magic = HOCCL_WIRE_MAGIC,
                       .version = HOCCL_WIRE_VERSION,
                       .token = call->peer.token,
                       .id = call->id & ~1ull,
                       .bytes = sizeof call->mine,
                       .purpose = call->id & 1     ? HOCCL_WIRE_KNOCKS
                                  : call->summons ? HOCCL_WIRE_SUMMONS
                                                  : HOCCL_WIRE_JOINS},
             .offer = call->mine};
    struct pollfd p = {.fd = call->fd, .events = POLLOUT};
    int e = 0;
    socklen_t n = sizeof e;
    if (poll(&p, 1, 0) < 1)
        return;
    if (getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &e, &n) || e) {
        next_address(x, call, e ? e : errno);
        return;
    }
    memcpy(all.hello.cookie, x->cookie, sizeof all.hello.cookie);
    call->state = HOCCL_CALL_GREETING;
    call->got = 0;
    if (!say(call->fd, &all, sizeof all))
        next_address(x, call, errno);
}

static void hear_welcome(struct hoccl_exchange *x, struct hoccl_call *call)
{
    struct hoccl_wire_word w;
    int heard = hear(call->fd, call->buffer, &call->got, sizeof w);
    if (!heard)
        return;
    memcpy(&w, call->buffer, sizeof w);
    if (heard < 0 || w.magic != HOCCL_WIRE_MAGIC || w.kind != HOCCL_WIRE_WELCOME) {
        next_address(x, call, EPROTO);
        return;
    }
    call->state = call->id & 1 ? HOCCL_CALL_WAITING : HOCCL_CALL_ASKING;
    call->got = 0;
    call->text[0] = 0;
}

static bool declined(struct hoccl_exchange *x, struct hoccl_call *call)
{
    struct hoccl_wire_word w = {0};
    if (call->got >= sizeof w)
        memcpy(&w, call->buffer, sizeof w);
    if (w.magic != HOCCL_WIRE_MAGIC || w.kind != HOCCL_WIRE_DECLINED)
        return false;
    fail(x, call, "%s has no part in the communicator any more: it has destroyed or aborted it", call->name);
    return true;
}

static void hear_answer(struct hoccl_exchange *x, struct hoccl_call *call)
{
    struct hoccl_wire_word w;
    int heard = hear(call->fd, call->buffer, &call->got, sizeof call->buffer);
    if (declined(x, call) || !heard)
        return;
    memcpy(&w, call->buffer, sizeof w);
    if (heard < 0 || w.magic != HOCCL_WIRE_MAGIC || w.kind != HOCCL_WIRE_ANSWER) {
        fail(x, call, "%s has left while RDMA was set up (%s): it has ended or given up, see its own messages", call->name,
             heard < 0 ? strerror(errno) : "a wrong answer");
        return;
    }
    memcpy(&call->theirs, call->buffer + sizeof w, sizeof call->theirs);
    if (!make_ready(x, call))
        return;
    if (say_word(call->fd, HOCCL_WIRE_READY))
        finish(x, call, HOCCL_CALL_DONE);
    else
        fail(x, call, "%s has left while RDMA was set up: %s", call->name, strerror(errno));
}

/* ---- the higher rank --------------------------------------------------------------------------------------------- */

static void drop_guest(struct hoccl_exchange *x, struct guest *g)
{
    if (g->fd >= 0)
        close(g->fd);
    hoccl_list_remove(&g->link);
    x->strangers -= !g->held;
    free(g);
}

/* There is one: they are counted. */
static struct guest *oldest_stranger(struct hoccl_exchange *x)
{
    struct hoccl_list *l = x->guests.next;
    while (hoccl_entry(l, struct guest, link)->held)
        l = l->next;
    return hoccl_entry(l, struct guest, link);
}

/* Without descriptors there is nobody to let in for a while: a listener that is readable would wake the thread at once. */
static void accept_guests(struct hoccl_exchange *x)
{
    int fd;
    while ((fd = accept4(x->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct guest *g = calloc(1, sizeof *g);
        if (!g) {
            close(fd);
            return;
        }
        if (x->strangers >= GUESTS)
            drop_guest(x, oldest_stranger(x));
        g->fd = fd;
        g->deadline = hoccl_now() + GUEST_TIME;
        hoccl_list_append(&x->guests, &g->link);
        x->strangers++;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        x->paused_until = hoccl_now() + PAUSE;
}

/* Is it a hello of this job for this endpoint? */
static bool right(const struct hoccl_exchange *x, const struct guest *g)
{
    const struct hoccl_wire_hello *h = &g->said.hello;
    return h->magic == HOCCL_WIRE_MAGIC && h->version == HOCCL_WIRE_VERSION && h->token == x->token &&
           h->bytes == sizeof g->said.offer && !memcmp(h->cookie, x->cookie, sizeof x->cookie);
}

static bool has_call(const struct hoccl_exchange *x, uint64_t id)
{
    for (const struct hoccl_list *l = x->calls.next; l != &x->calls; l = l->next)
        if ((hoccl_entry(l, struct hoccl_call, link)->id & ~1ull) == id)
            return true;
    return false;
}

bool hoccl_exchange_called(struct hoccl_exchange *x, uint64_t *id)
{
    bool any = false;
    pthread_mutex_lock(&x->lock);
    for (struct hoccl_list *l = x->guests.next; l != &x->guests && !any; l = l->next) {
        struct guest *g = hoccl_entry(l, struct guest, link);
        any = g->untold;
        g->untold = false;
        *id = g->said.hello.id;
    }
    pthread_mutex_unlock(&x->lock);
    return any;
}

void hoccl_exchange_decline(struct hoccl_exchange *x, uint64_t id)
{
    pthread_mutex_lock(&x->lock);
    for (struct hoccl_list *l = x->guests.next, *next; l != &x->guests; l = next) {
        struct guest *g = hoccl_entry(l, struct guest, link);
        next = l->next;
        if (!g->held || g->said.hello.id != (id & ~1ull))
            continue;
        say_word(g->fd, HOCCL_WIRE_DECLINED);
        drop_guest(x, g);
    }
    pthread_mutex_unlock(&x->lock);
}

/* A guest that has said its hello no longer counts among the strangers: their number is limited, not that of peers. */
static void hear_guest(struct hoccl_exchange *x, struct guest *g)
{
    char end;
    if (g->held) {
        ssize_t n = recv(g->fd, &end, 1, MSG_PEEK | MSG_DONTWAIT);
        if (hoccl_now() > g->deadline || !n || (n < 0 && errno != EAGAIN && errno != EINTR))
            drop_guest(x, g);
        return;
    }
    int heard = hear(g->fd, &g->said, &g->got, sizeof g->said);
    if (!heard && hoccl_now() < g->deadline)
        return;
    if (heard <= 0 || !right(x, g) || !say_word(g->fd, HOCCL_WIRE_WELCOME)) {
        drop_guest(x, g);
        return;
    }
    g->deadline = hoccl_now() + hoccl_settings.init_timeout;
    g->held = true;
    x->strangers--;
    g->untold = g->said.hello.purpose != HOCCL_WIRE_JOINS && !has_call(x, g->said.hello.id);
    if (g->untold)
        hoccl_fetch_add(&x->news, 1);
}

static struct guest *find_guest(struct hoccl_exchange *x, uint64_t id)
{
    for (struct hoccl_list *l = x->guests.next; l != &x->guests; l = l->next) {
        struct guest *g = hoccl_entry(l, struct guest, link);
        if (g->held && g->said.hello.purpose != HOCCL_WIRE_KNOCKS && g->said.hello.id == (id & ~1ull))
            return g;
    }
    return NULL;
}

/* false: it has not called yet. */
static bool meet_guest(struct hoccl_exchange *x, struct hoccl_call *call)
{
    struct guest *g = find_guest(x, call->id);
    struct {
        struct hoccl_wire_word word;
        struct hoccl_offer offer;
    } answer = {.word = {HOCCL_WIRE_MAGIC, HOCCL_WIRE_ANSWER}, .offer = call->mine};
    if (!g)
        return false;
    if (call->fd >= 0)
        close(call->fd);
    call->fd = g->fd;
    call->theirs = g->said.offer;
    call->got = 0;
    g->fd = -1;
    drop_guest(x, g);
    if (!make_ready(x, call))
        return true;
    call->state = HOCCL_CALL_ANSWERED;
    if (!say(call->fd, &answer, sizeof answer))
        fail(x, call, "%s has left while RDMA was set up: %s", call->name, strerror(errno));
    return true;
}

/* It has knocked. Where the peer's end is seen on that socket, knock again: that will be refused. */
static void watch_knock(struct hoccl_exchange *x, struct hoccl_call *call)
{
    if (call->fd < 0)
        return;
    int heard = hear(call->fd, call->buffer, &call->got, sizeof(struct hoccl_wire_word));
    if (heard && !declined(x, call))
        next_address(x, call, ECONNRESET);
}

static void hear_ready(struct hoccl_exchange *x, struct hoccl_call *call)
{
    struct hoccl_wire_word w;
    int heard = hear(call->fd, call->buffer, &call->got, sizeof w);
    if (!heard)
        return;
    memcpy(&w, call->buffer, sizeof w);
    if (heard > 0 && w.magic == HOCCL_WIRE_MAGIC && w.kind == HOCCL_WIRE_READY)
        finish(x, call, HOCCL_CALL_DONE);
    else
        fail(x, call,
             "%s has left while RDMA was set up (%s): it has ended or could not set its queue pairs up, see its own "
             "messages",
             call->name, heard < 0 ? strerror(errno) : "a wrong word");
}

/* ---- stepping ---------------------------------------------------------------------------------------------------- */

static void step_call(struct hoccl_exchange *x, struct hoccl_call *call, uint64_t now)
{
    if (call->id & 1 && call->state != HOCCL_CALL_ANSWERED && meet_guest(x, call))
        return;
    switch (call->state) {
    case HOCCL_CALL_CONNECTING:
        if (call->fd < 0)
            begin_connect(x, call);
        else if (now > call->step_deadline)
            next_address(x, call, ETIMEDOUT);
        else
            greet(x, call);
        break;
    case HOCCL_CALL_GREETING:
        if (now > call->step_deadline)
            next_address(x, call, ETIMEDOUT);
        else
            hear_welcome(x, call);
        break;
    case HOCCL_CALL_ASKING:
        hear_answer(x, call);
        break;
    case HOCCL_CALL_WAITING:
        watch_knock(x, call);
        break;
    case HOCCL_CALL_ANSWERED:
        hear_ready(x, call);
        break;
    case HOCCL_CALL_DONE:
    case HOCCL_CALL_FAILED:
        break;
    }
    if (!hoccl_peek(&call->outcome) && now > call->deadline)
        fail(x, call, "%s has not made its end of the connection within HOCCL_INIT_TIMEOUT (%llu s)", call->name,
             (unsigned long long)(hoccl_settings.init_timeout / HOCCL_S));
}

void hoccl_exchange_step(struct hoccl_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (hoccl_now() >= x->paused_until) {
        x->paused_until = 0;
        accept_guests(x);
    }
    for (struct hoccl_list *l = x->guests.next, *next; l != &x->guests; l = next) {
        next = l->next;
        hear_guest(x, hoccl_entry(l, struct guest, link));
    }
    uint64_t now = hoccl_now();
    /* The list may change while a call is made ready: a call that is behind stays behind, one that ends stays valid till
     * then. */
    struct hoccl_list done;
    hoccl_list_init(&done);
    struct hoccl_list *l;
    while ((l = hoccl_list_take(&x->calls))) {
        hoccl_list_append(&done, l);
        step_call(x, hoccl_entry(l, struct hoccl_call, link), now);
    }
    hoccl_list_move(&x->calls, &done);
    pthread_mutex_unlock(&x->lock);
}

int hoccl_exchange_wants(struct hoccl_exchange *x, struct pollfd *fds, int most, uint64_t *deadline)
{
    int n = 0;
    pthread_mutex_lock(&x->lock);
    if (x->paused_until && x->paused_until < *deadline)
        *deadline = x->paused_until;
    if (n < most && !x->paused_until)
        fds[n++] = (struct pollfd){.fd = x->listener, .events = POLLIN};
    for (struct hoccl_list *l = x->guests.next; l != &x->guests && n < most; l = l->next) {
        const struct guest *g = hoccl_entry(l, struct guest, link);
        fds[n++] = (struct pollfd){.fd = g->fd, .events = POLLIN};
        *deadline = g->deadline < *deadline ? g->deadline : *deadline;
    }
    for (struct hoccl_list *l = x->calls.next; l != &x->calls && n < most; l = l->next) {
        const struct hoccl_call *c = hoccl_entry(l, struct hoccl_call, link);
        uint64_t until = c->state < HOCCL_CALL_ASKING ? c->step_deadline : c->deadline;
        *deadline = until < *deadline ? until : *deadline;
        if (c->fd >= 0)
            fds[n++] = (struct pollfd){.fd = c->fd, .events = c->state == HOCCL_CALL_CONNECTING ? POLLOUT : POLLIN};
    }
    pthread_mutex_unlock(&x->lock);
    if (n == most && hoccl_now() + CROWDED < *deadline)
        *deadline = hoccl_now() + CROWDED; /* more than can be waited for at once */
    return n;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

void hoccl_exchange_start(struct hoccl_exchange *x, struct hoccl_call *call)
{
    call->fd = -1;
    call->address = 0;
    call->state = call->id & 1 && !call->summons ? HOCCL_CALL_WAITING : HOCCL_CALL_CONNECTING;
    call->deadline = hoccl_now() + hoccl_settings.init_timeout;
    call->step_deadline = call->state == HOCCL_CALL_WAITING ? call->deadline : 0;
    pthread_mutex_lock(&x->lock);
    hoccl_list_append(&x->calls, &call->link);
    pthread_mutex_unlock(&x->lock);
}

void hoccl_exchange_cancel(struct hoccl_exchange *x, struct hoccl_call *call)
{
    pthread_mutex_lock(&x->lock);
    while (call->busy)
        pthread_cond_wait(&x->rest, &x->lock);
    if (!call->outcome && call->link.next) {
        hoccl_list_remove(&call->link);
        if (call->fd >= 0)
            close(call->fd);
    }
    pthread_mutex_unlock(&x->lock);
}

HOCCL_Result hoccl_exchange_open(struct hoccl_exchange *x, const uint8_t cookie[16], const char *device,
                                 struct tcp_card *card)
{
    *x = (struct hoccl_exchange){.listener = -1};
    memcpy(x->cookie, cookie, sizeof x->cookie);
    if (getrandom(&x->token, sizeof x->token, 0) != sizeof x->token)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "no random numbers for an RDMA endpoint: %m");
    HOCCL_Result r = hoccl_tcp_interfaces_read("", device, &x->own);
    if (!r)
        r = hoccl_listen(&x->listener, &x->port);
    if (r)
        return r;
    *card = (struct tcp_card){.token = x->token, .port = x->port};
    hoccl_tcp_card_fill(card, &x->own);
    hoccl_list_init(&x->calls);
    hoccl_list_init(&x->guests);
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->rest, NULL);
    return HOCCL_SUCCESS;
}

void hoccl_exchange_close(struct hoccl_exchange *x)
{
    if (x->listener < 0)
        return;
    while (!hoccl_list_empty(&x->guests))
        drop_guest(x, hoccl_entry(x->guests.next, struct guest, link));
    close(x->listener);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->rest);
    x->listener = -1;
}
