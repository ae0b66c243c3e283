/* SPDX-License-Identifier: Apache-2.0 */
/* The listener's side of the exchange in tcp.h: a thread of the process that made the id, which ends with it.
 *
 *   COLLECTING ──all have come──▶ TELLING everyone all blobs ──────────────────▶ ended
 *       │ └──a rank twice, sizes differ, a rank gone, time over──▶ TELLING why ──▶ ended (late ranks hear it for 5 s)
 *       └──nobody has come in time──▶ ended
 *
 * No caller is waited for: a stranger that is silent, slow or sends garbage costs a descriptor until it is closed, and
 * the oldest stranger makes room for a new caller. Ended, the listening socket is shut down, not only closed: a child
 * that was forked meanwhile holds a copy, and callers would queue up there unanswered. */
#define _GNU_SOURCE
#include "boot/tcp.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PATIENCE (30 * HOCCL_S)
#define LINGER (5 * HOCCL_S)  /* for telling, and for late ranks of a failed exchange */
#define STRANGERS 64          /* callers that have not shown the secret */
#define STRANGER_TIME (10 * HOCCL_S)
#define BLOB_MOST 65536u

/* STRANGER ──secret shown──▶ RANK (its blob comes) ──blob complete──▶ HERE; TOLD: the verdict is on its way or out. */
struct caller {
    struct hoccl_list link;
    int fd;
    enum { STRANGER, RANK, HERE } state;
    uint64_t since;
    size_t got; /* bytes of the hello, then of the blob */
    struct hoccl_tcp_hello hello;
    size_t told; /* bytes of the verdict that it has been sent */
    char from[80];
};

struct root {
    struct hoccl_id id;
    int listener;
    uint64_t timeout, deadline, said;
    struct hoccl_list callers; /* oldest first */
    int strangers, known; /* callers that have not, and that have, shown the secret */
    int size, arrived;    /* ranks, 0 until the first has come; ranks whose blob is here */
    size_t bytes;             /* of a blob */
    struct caller **of;       /* by rank */
    char *all;                /* size × bytes */
    struct hoccl_tcp_frame verdict;
    const char *body;         /* of the verdict; NULL while collecting */
    char text[HOCCL_TCP_TEXT + 1];
    int told;                 /* callers that have the whole verdict */
};

/* ---- callers ----------------------------------------------------------------------------------------------------- */

/* Has it been admitted as the rank that it says it is? */
static bool is_rank(const struct root *r, const struct caller *c)
{
    int p = c->hello.rank;
    return c->state != STRANGER && p >= 0 && p < r->size && r->of[p] == c;
}

static void drop(struct root *r, struct caller *c)
{
    if (c->state == STRANGER)
        r->strangers--;
    else
        r->known--;
    if (is_rank(r, c))
        r->of[c->hello.rank] = NULL;
    hoccl_list_remove(&c->link);
    close(c->fd);
    free(c);
}

static void decide(struct root *r, uint32_t kind, const char *body, size_t bytes)
{
    r->verdict = (struct hoccl_tcp_frame){HOCCL_TCP_MAGIC, kind, bytes};
    r->body = body;
    r->deadline = hoccl_now() + (kind == HOCCL_TCP_ALL ? r->timeout : LINGER);
}

static void __attribute__((format(printf, 2, 3))) give_up(struct root *r, const char *format, ...)
{
    va_list args;
    if (r->body)
        return;
    va_start(args, format);
    vsnprintf(r->text, sizeof r->text, format, args);
    va_end(args);
    hoccl_log(HOCCL_LOG_INFO, "%s", r->text);
    decide(r, HOCCL_TCP_FAILED, r->text, strlen(r->text));
}

/* Short messages: a socket that does not take them is not read at the other end. */
static bool say(struct caller *c, uint32_t kind, const void *data, size_t bytes)
{
    char packet[sizeof(struct hoccl_tcp_frame) + HOCCL_TCP_TEXT];
    struct hoccl_tcp_frame f = {HOCCL_TCP_MAGIC, kind, bytes};
    memcpy(packet, &f, sizeof f);
    memcpy(packet + sizeof f, data, bytes);
    return send(c->fd, packet, sizeof f + bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)(sizeof f + bytes);
}

/* The first rank says how many there are and how large a blob is. */
static bool begin(struct root *r, const struct hoccl_tcp_hello *h)
{
    r->of = calloc((size_t)h->size, sizeof *r->of);
    r->all = calloc((size_t)h->size, h->bytes);
    if (!r->of || !r->all) {
        give_up(r, "start-up: no host memory for what %d ranks say", h->size);
        return false;
    }
    r->size = h->size;
    r->bytes = h->bytes;
    r->said = hoccl_now();
    r->deadline = r->said + r->timeout;
    return true;
}

/* A rank has shown itself: does it fit in with the others? */
static void admit(struct root *r, struct caller *c)
{
    const struct hoccl_tcp_hello *h = &c->hello;
    if (r->body)
        return;
    if (h->version != HOCCL_TCP_VERSION || h->bytes > BLOB_MOST || !h->bytes || (r->size && h->bytes != r->bytes))
        give_up(r, "start-up: rank %d (%s) runs another version of HOCCL", h->rank, c->from);
    else if (r->size && h->size != r->size)
        give_up(r, "start-up: rank %d (%s) says that there are %d ranks, others say %d: all must give HOCCL_CommInitRank the "
                   "same nranks", h->rank, c->from, h->size, r->size);
    else if (h->size < 1 || h->rank < 0 || h->rank >= h->size)
        give_up(r, "start-up: rank %d of %d (%s) is no rank", h->rank, h->size, c->from);
    else if (!r->size && !begin(r, h))
        return;
    else if (r->of[h->rank])
        give_up(r, "start-up: rank %d has come twice, from %s and from %s: every rank calls HOCCL_CommInitRank once with an id",
                h->rank, r->of[h->rank]->from, c->from);
    else
        r->of[h->rank] = c;
}

/* A hello is complete. Who does not know the secret is none of ours; nor is one too many. */
static bool recognise(struct root *r, struct caller *c)
{
    if (c->hello.magic != HOCCL_TCP_MAGIC || memcmp(c->hello.secret, r->id.secret, sizeof r->id.secret))
        return false;
    if (r->body && r->verdict.kind == HOCCL_TCP_ALL)
        return false;
    c->state = RANK;
    c->got = 0;
    r->strangers--;
    r->known++;
    admit(r, c);
    return say(c, HOCCL_TCP_WELCOME, r->id.proof, sizeof r->id.proof);
}

/* Where the next bytes of this caller belong; 0 if none are expected. */
static size_t expected(struct root *r, struct caller *c, char **to)
{
    if (c->state == STRANGER) {
        *to = (char *)&c->hello + c->got;
        return sizeof c->hello - c->got;
    }
    if (c->state == HERE || r->body)
        return 0;
    *to = r->all + (size_t)c->hello.rank * r->bytes + c->got;
    return r->bytes - c->got;
}

static void complete(struct root *r, struct caller *c)
{
    c->state = HERE;
    if (++r->arrived == r->size)
        decide(r, HOCCL_TCP_ALL, r->all, (size_t)r->size * r->bytes);
}

/* The connection has ended before the verdict was out. */
static void gone(struct root *r, struct caller *c)
{
    if (is_rank(r, c))
        give_up(r, "start-up: rank %d (%s) has ended or given up", c->hello.rank, c->from);
    drop(r, c);
}

/* What a caller says; its blob is drained after a verdict too, lest unread bytes turn our closing into a reset. */
static void hear(struct root *r, struct caller *c)
{
    char rest[4096], *to = rest;
    for (;;) {
        size_t want = expected(r, c, &to);
        ssize_t n = recv(c->fd, want ? to : rest, want ? want : sizeof rest, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            gone(r, c);
            return;
        }
        if (!want)
            continue;
        c->got += (size_t)n;
        if ((size_t)n < want)
            continue;
        if (c->state == RANK)
            complete(r, c);
        else if (!recognise(r, c)) {
            gone(r, c);
            return;
        }
    }
}

static void close_oldest_stranger(struct root *r)
{
    for (struct hoccl_list *l = r->callers.next; l != &r->callers; l = l->next) {
        struct caller *c = hoccl_entry(l, struct caller, link);
        if (c->state == STRANGER) {
            drop(r, c);
            return;
        }
    }
}

static struct caller *new_caller(struct root *r, int fd, const struct sockaddr_storage *from)
{
    struct caller *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return NULL;
    }
    c->fd = fd;
    c->since = hoccl_now();
    hoccl_address_text(from, c->from, sizeof c->from);
    hoccl_list_append(&r->callers, &c->link);
    r->strangers++;
    return c;
}

static void accept_callers(struct root *r)
{
    for (;;) {
        struct sockaddr_storage from;
        socklen_t n = sizeof from;
        int fd = accept4(r->listener, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && r->strangers) {
            close_oldest_stranger(r);
            continue;
        }
        if (fd < 0 && errno != EAGAIN && errno != EINTR)
            hoccl_sleep(10 * HOCCL_MS); /* no descriptor, no memory: there may be later */
        if (fd < 0)
            return;
        struct caller *c = new_caller(r, fd, &from);
        if (c)
            hear(r, c);
        if (r->strangers > STRANGERS)
            close_oldest_stranger(r);
    }
}

/* ---- the verdict ------------------------------------------------------------------------------------------------- */

/* As much of it as the socket takes. False if the caller is gone. */
static bool tell(struct root *r, struct caller *c)
{
    size_t head = sizeof r->verdict, total = head + (size_t)r->verdict.bytes;
    while (c->told < total) {
        bool in_head = c->told < head;
        const char *from = in_head ? (const char *)&r->verdict + c->told : r->body + (c->told - head);
        ssize_t n = send(c->fd, from, (in_head ? head : total) - c->told, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        c->told += (size_t)n;
        r->told += c->told == total;
    }
    return true;
}

static void tell_everyone(struct root *r)
{
    struct hoccl_list *next;
    for (struct hoccl_list *l = r->callers.next; l != &r->callers; l = next) {
        struct caller *c = hoccl_entry(l, struct caller, link);
        next = l->next;
        if (c->state != STRANGER && !tell(r, c))
            drop(r, c);
    }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static const char *missing_names(const struct root *r, char *text, size_t bytes)
{
    struct hoccl_names names;
    hoccl_names_begin(&names, text, bytes);
    for (int p = 0; p < r->size; p++)
        if (!r->of[p])
            hoccl_names_add(&names, p);
    return hoccl_names_end(&names);
}

static void say_who_is_missing(struct root *r, uint64_t now)
{
    char names[128], text[HOCCL_TCP_TEXT];
    int n = snprintf(text, sizeof text, "start-up: waiting for rank %s of %d to call HOCCL_CommInitRank (%llu s)",
                     missing_names(r, names, sizeof names), r->size,
                     (unsigned long long)((r->timeout - (r->deadline - now)) / HOCCL_S));
    for (struct hoccl_list *l = r->callers.next; l != &r->callers; l = l->next) {
        struct caller *c = hoccl_entry(l, struct caller, link);
        if (c->state != STRANGER)
            say(c, HOCCL_TCP_WAITING, text, (size_t)n);
    }
    r->said = now;
}

static void close_old_strangers(struct root *r, uint64_t now)
{
    struct hoccl_list *next;
    for (struct hoccl_list *l = r->callers.next; l != &r->callers; l = next) {
        struct caller *c = hoccl_entry(l, struct caller, link);
        next = l->next;
        if (c->state == STRANGER && now - c->since > STRANGER_TIME)
            drop(r, c);
    }
}

/* The verdict is out when nobody is left: a rank closes its connection when it has read it. */
static bool still_telling(const struct root *r, uint64_t now)
{
    bool more_to_come = r->verdict.kind == HOCCL_TCP_FAILED && r->told < (r->size ? r->size : 1);
    return now < r->deadline && (r->known || more_to_come);
}

/* True while there is something to do. */
static bool look_at_clock(struct root *r)
{
    char names[128];
    uint64_t now = hoccl_now();
    close_old_strangers(r, now);
    if (r->body)
        return still_telling(r, now);
    if (now >= r->deadline && !r->size)
        return false;
    if (now >= r->deadline)
        give_up(r, "start-up: rank %s of %d did not call HOCCL_CommInitRank within %llu s (HOCCL_INIT_TIMEOUT)",
                missing_names(r, names, sizeof names), r->size, (unsigned long long)(r->timeout / HOCCL_S));
    else if (r->size && now - r->said > PATIENCE)
        say_who_is_missing(r, now);
    return true;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Wait for news of the listener or of any caller, for at most a tenth of a second. */
static void wait_for_news(struct root *r)
{
    int n = 1;
    for (struct hoccl_list *l = r->callers.next; l != &r->callers; l = l->next)
        n++;
    struct pollfd *f = calloc((size_t)n, sizeof *f);
    if (!f) {
        hoccl_sleep(HOCCL_MS);
        return;
    }
    f[0] = (struct pollfd){.fd = r->listener, .events = POLLIN};
    n = 1;
    for (struct hoccl_list *l = r->callers.next; l != &r->callers; l = l->next) {
        const struct caller *c = hoccl_entry(l, struct caller, link);
        bool telling = r->body && c->told < sizeof r->verdict + r->verdict.bytes && c->state != STRANGER;
        f[n++] = (struct pollfd){.fd = c->fd, .events = (short)(POLLIN | (telling ? POLLOUT : 0))};
    }
    poll(f, (nfds_t)n, 100);
    free(f);
}

static void hear_callers(struct root *r)
{
    struct hoccl_list *next;
    for (struct hoccl_list *l = r->callers.next; l != &r->callers; l = next) {
        next = l->next;
        hear(r, hoccl_entry(l, struct caller, link));
    }
}

static void free_root(struct root *r)
{
    while (!hoccl_list_empty(&r->callers))
        drop(r, hoccl_entry(r->callers.next, struct caller, link));
    if (r->listener >= 0) {
        shutdown(r->listener, SHUT_RDWR);
        close(r->listener);
    }
    free(r->of);
    free(r->all);
    free(r);
}

static void *serve(void *arg)
{
    struct root *r = arg;
    prctl(PR_SET_NAME, "hoccl-root");
    do {
        wait_for_news(r);
        accept_callers(r);
        hear_callers(r);
        if (r->body)
            tell_everyone(r);
    } while (look_at_clock(r));
    free_root(r);
    return NULL;
}

/* IPv6 and IPv4 on one socket; IPv4 alone where there is no IPv6. */
static HOCCL_Result listen_anywhere(struct root *r, uint16_t *port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_storage got;
    socklen_t n = sizeof got;
    int zero = 0;
    r->listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (r->listener >= 0 && (setsockopt(r->listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero) ||
                             bind(r->listener, (struct sockaddr *)&six, sizeof six))) {
        close(r->listener);
        r->listener = -1;
    }
    if (r->listener < 0) {
        r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (r->listener < 0 || bind(r->listener, (struct sockaddr *)&four, sizeof four))
            return hoccl_fail(HOCCL_ERR_SYSTEM, "a TCP socket for the ranks to come: %m%s",
                              errno == EMFILE || errno == ENFILE ? " (see ulimit -n: an id holds one until its ranks have come)" : "");
    }
    if (listen(r->listener, SOMAXCONN) || getsockname(r->listener, (struct sockaddr *)&got, &n))
        return hoccl_fail(HOCCL_ERR_SYSTEM, "listening for the ranks to come: %m");
    *port = ntohs(got.ss_family == AF_INET ? ((struct sockaddr_in *)&got)->sin_port : ((struct sockaddr_in6 *)&got)->sin6_port);
    return HOCCL_SUCCESS;
}

/* Detached: it ends by itself. */
static HOCCL_Result start(struct root *r)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int e = hoccl_thread_create(&thread, &attributes, serve, r);
    pthread_attr_destroy(&attributes);
    return e ? hoccl_fail(HOCCL_ERR_SYSTEM, "a thread to wait for the ranks: %s", strerror(e)) : HOCCL_SUCCESS;
}

HOCCL_Result hoccl_root_open(uint64_t timeout, HOCCL_UniqueId *out)
{
    struct root *r = hoccl_alloc(sizeof *r, "a unique id");
    HOCCL_UniqueId id;
    uint16_t port = 0;
    if (!r)
        return HOCCL_ERR_MEMORY;
    hoccl_list_init(&r->callers);
    r->listener = -1;
    r->timeout = timeout;
    r->deadline = hoccl_now() + timeout;
    HOCCL_Result result = hoccl_id_make(&r->id);
    if (!result)
        result = listen_anywhere(r, &port);
    if (!result) {
        hoccl_id_seal(&r->id, port, &id);
        result = start(r);
    }
    if (result)
        free_root(r);
    else
        *out = id;
    return result;
}
