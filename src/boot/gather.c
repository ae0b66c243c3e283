/* SPDX-License-Identifier: Apache-2.0 */
/* Each rank sends one packet that every other receives. Sockets keep packets whole and in order:
 *
 *   … packets of failed calls ……… (call, step) …… perhaps (call, GIVEN_UP) …… (call, step + 1)
 *   thrown away                    those we want  ends our waiting         left for the next step
 *
 * An edge joins this rank to one that it has a socket to. Without a tree there is one to every rank, and one packet comes over each.
 * In a tree a packet is passed on over every edge but the one by which it came, in the order of coming:
 *
 *        0          r has edges to (r − 1) / 4 and to 4 r + 1 … 4 r + 4. Over the edge to a child the packets of its
 *     ┌┬─┴┬┐        subtree come, over the one to the parent all others: so each edge's number is known before, and
 *     1 2 3 4       what stands behind it is the next step's. A rank is done when it has every packet and has passed
 *   ┌┬┴┬┐           every one on; so nobody waits for a rank that has left.
 *   5 6 7 8
 *
 * A rank that gives a call up says so behind its packets, over each edge; who hears it gives up too, and so all do. While other
 * packets are still missing, edges that have delivered are looked at for that without taking anything else off them. */
#define _GNU_SOURCE
#include "boot/gather.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PATIENCE (30 * HOCCL_S)
#define MAGIC 0x52485447u /* "GTHR" */
#define GIVEN_UP UINT32_MAX
#define REFUSAL_TEXT 384

struct head {
    uint32_t magic;
    uint32_t call, step; /* GIVEN_UP as the step: the rank has failed, its text follows */
    uint32_t from;       /* place in the exchange of the rank whose packet it is */
    uint32_t bytes;      /* that follow */
};

struct packet {
    struct head head;
    char body[HOCCL_BLOB_MAX];
};

struct edge {
    int place; /* in g->ranks, of the rank at its other end */
    int left;  /* packets still to come over it */
    int sent;  /* packets of run->order that have gone over it, or need not */
};

/* One exchange on its way. */
struct run {
    const struct hoccl_gather *g;
    size_t bytes;
    char *all;
    int *via;   /* by place: the edge over which its packet came; NOWHERE: it has not come; OWN */
    int *order; /* places, in the order in which their packets came */
    int come;   /* how many */
    struct edge *edge;
    int edges;
    uint64_t begun, said;
    struct pollfd *poll;
    struct packet packet;
};

enum { NOWHERE = -1, OWN = -2 };

static int socket_of(const struct hoccl_gather *g, int i)
{
    return g->links[g->ranks[i]].fd;
}

static bool is_edge(const struct hoccl_gather *g, int i)
{
    return i != g->me && (!g->tree || hoccl_gather_edge(i, g->me));
}

static int post(int fd, const struct head *h, const void *body)
{
    struct iovec v[2] = {{(void *)h, sizeof *h}, {(void *)body, h->bytes}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    ssize_t n;
    do
        n = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? errno : 0;
}

static void stir(const struct hoccl_gather *g, bool begins)
{
    if (g->stir)
        g->stir(g->stirred, begins);
}

void hoccl_gather_refuse(const struct hoccl_gather *g)
{
    stir(g, true);
    char text[REFUSAL_TEXT];
    snprintf(text, sizeof text, "%.*s", REFUSAL_TEXT - 1, hoccl_error_text());
    struct head h = {MAGIC, g->call, GIVEN_UP, (uint32_t)g->me, (uint32_t)strlen(text)};
    for (int i = 0; i < g->count; i++)
        if (is_edge(g, i))
            post(socket_of(g, i), &h, text);
    stir(g, false);
}

/* Must the packet that came at place `n` of the order go over this edge? */
static bool goes(const struct run *r, const struct edge *e, int n)
{
    int via = r->via[r->order[n]];
    return r->g->tree ? via != (int)(e - r->edge) : via == OWN;
}

/* Send what can go. One that is gone may have said why: that is found when its packet is waited for. In a tree a rank that is
 * late may have many packets before it: they wait. */
static HOCCL_Result pass_on(struct run *r, struct edge *e)
{
    const struct hoccl_gather *g = r->g;
    for (; e->sent < r->come; e->sent++) {
        int from = r->order[e->sent];
        struct head h = {MAGIC, g->call, g->step, (uint32_t)from, (uint32_t)r->bytes};
        int error = goes(r, e, e->sent) ? post(socket_of(g, e->place), &h, r->all + (size_t)from * r->bytes) : 0;
        if (error == EAGAIN && g->tree)
            return HOCCL_SUCCESS;
        if (error && error != EPIPE && error != ECONNRESET)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d %s (%s)", g->name, g->ranks[e->place],
                              error == EAGAIN ? "takes no part: what it has been told lies unread" : "is gone", strerror(error));
    }
    return HOCCL_SUCCESS;
}

/* The next packet of an edge; 0 if there is none, −1 if there will be none. */
static int look(struct run *r, const struct edge *e, int flags)
{
    ssize_t n = recv(socket_of(r->g, e->place), &r->packet, sizeof r->packet, MSG_DONTWAIT | flags);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n < (ssize_t)sizeof r->packet.head || r->packet.head.magic != MAGIC ||
        (size_t)n != sizeof r->packet.head + r->packet.head.bytes)
        return -1;
    return 1;
}

/* The text of one that passes it on names the rank that had it first. */
static HOCCL_Result given_up(const struct run *r, const struct edge *e)
{
    const char *text = r->packet.body;
    int n = (int)r->packet.head.bytes, known = (int)strlen(r->g->name);
    bool told = r->g->tree && n > known && !strncmp(text, r->g->name, (size_t)known);
    if (told)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%.*s", n, text);
    return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d has given up: %.*s", r->g->name, r->g->ranks[e->place], n, text);
}

static void keep(struct run *r, struct edge *e)
{
    int from = (int)r->packet.head.from;
    memcpy(r->all + (size_t)from * r->bytes, r->packet.body, r->bytes);
    r->via[from] = (int)(e - r->edge);
    r->order[r->come++] = from;
    e->left--;
}

static HOCCL_Result ended(const struct hoccl_gather *g, int rank)
{
    const char *why = g->why ? g->why(g->stirred, rank) : NULL;
    if (why)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d: %s", g->name, rank, why);
    return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d has ended, or has left the communicator", g->name, rank);
}

static HOCCL_Result take(struct run *r, struct edge *e)
{
    const struct hoccl_gather *g = r->g;
    const struct head *h = &r->packet.head;
    while (e->left) {
        int n = look(r, e, 0);
        if (!n)
            return HOCCL_SUCCESS;
        if (n < 0)
            return ended(g, g->ranks[e->place]);
        if (h->call == g->call && h->step == GIVEN_UP)
            return given_up(r, e);
        if ((int32_t)(h->call - g->call) < 0 || (h->call == g->call && h->step < g->step))
            continue; /* of a call that has failed */
        if (h->call != g->call || h->step != g->step || h->bytes != r->bytes || h->from >= (uint32_t)g->count ||
            r->via[h->from] != NOWHERE)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d is in another call: all ranks must make the same ones in the "
                              "same order", g->name, g->ranks[e->place]);
        keep(r, e);
    }
    return HOCCL_SUCCESS;
}

/* It has sent its packets: has it given up behind them? An ended one need not trouble us. */
static HOCCL_Result peek(struct run *r, const struct edge *e)
{
    const struct head *h = &r->packet.head;
    if (look(r, e, MSG_PEEK) > 0 && h->call == r->g->call && h->step == GIVEN_UP)
        return given_up(r, e);
    return HOCCL_SUCCESS;
}

static HOCCL_Result hear_all(struct run *r)
{
    HOCCL_Result result = HOCCL_SUCCESS;
    for (struct edge *e = r->edge; e < r->edge + r->edges && !result; e++)
        result = e->left ? take(r, e) : peek(r, e);
    return result;
}

static HOCCL_Result pass_all_on(struct run *r)
{
    HOCCL_Result result = HOCCL_SUCCESS;
    for (struct edge *e = r->edge; e < r->edge + r->edges && !result; e++)
        result = pass_on(r, e);
    return result;
}

static bool complete(const struct run *r)
{
    for (const struct edge *e = r->edge; e < r->edge + r->edges; e++)
        if (e->left || e->sent < r->come)
            return false;
    return true;
}

static const char *missing_names(const struct run *r, char *text, size_t bytes)
{
    struct hoccl_names names;
    hoccl_names_begin(&names, text, bytes);
    for (int i = 0; i < r->g->count; i++)
        if (r->via[i] == NOWHERE)
            hoccl_names_add(&names, r->g->ranks[i]);
    for (const struct edge *e = r->edge; e < r->edge + r->edges && r->come == r->g->count; e++)
        if (e->sent < r->come)
            hoccl_names_add(&names, r->g->ranks[e->place]); /* it does not read what it is sent */
    return hoccl_names_end(&names);
}

static HOCCL_Result look_at_clock(struct run *r)
{
    const struct hoccl_gather *g = r->g;
    char names[128];
    uint64_t now = hoccl_now();
    if (now - r->begun > g->timeout)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %s did not come within %llu s (HOCCL_INIT_TIMEOUT)", g->name,
                          missing_names(r, names, sizeof names), (unsigned long long)(g->timeout / HOCCL_S));
    if (now - r->said > PATIENCE) {
        hoccl_log(HOCCL_LOG_WARN, "%s: waiting for rank %s (%llu s)", g->name, missing_names(r, names, sizeof names),
                  (unsigned long long)((now - r->begun) / HOCCL_S));
        r->said = now;
    }
    return g->check ? g->check(g->arg) : HOCCL_SUCCESS;
}

/* Only edges that are not done can bring news at once; the others are looked at every few milliseconds. */
static void wait_for_news(struct run *r)
{
    int n = 0;
    for (const struct edge *e = r->edge; e < r->edge + r->edges; e++) {
        short events = (short)((e->left ? POLLIN : 0) | (e->sent < r->come ? POLLOUT : 0));
        if (events)
            r->poll[n++] = (struct pollfd){.fd = socket_of(r->g, e->place), .events = events};
    }
    poll(r->poll, (nfds_t)n, 5);
}

static HOCCL_Result collect(struct run *r)
{
    HOCCL_Result result = pass_all_on(r);
    while (!result) {
        result = hear_all(r);
        if (!result)
            result = pass_all_on(r);
        if (result || complete(r))
            break;
        wait_for_news(r);
        result = look_at_clock(r);
    }
    return result;
}

/* Ranks in the subtree whose root is `top`. */
static int below(int top, int count)
{
    int n = 0;
    for (int64_t first = top, last = top; first < count; first = first * HOCCL_GATHER_FAN + 1, last = (last + 1) * HOCCL_GATHER_FAN)
        n += (int)((last < count ? last : count - 1) - first) + 1;
    return n;
}

static void open_edges(struct run *r)
{
    const struct hoccl_gather *g = r->g;
    for (int i = 0; i < g->count; i++) {
        if (!is_edge(g, i))
            continue;
        int left = !g->tree ? 1 : i > g->me ? below(i, g->count) : g->count - below(g->me, g->count);
        r->edge[r->edges++] = (struct edge){.place = i, .left = left};
    }
}

static HOCCL_Result begin(struct run *r, const void *mine)
{
    const struct hoccl_gather *g = r->g;
    size_t n = (size_t)g->count;
    r->via = hoccl_alloc(n * sizeof *r->via, "an exchange");
    r->order = hoccl_alloc(n * sizeof *r->order, "an exchange");
    r->edge = hoccl_alloc(n * sizeof *r->edge, "an exchange");
    r->poll = hoccl_alloc(n * sizeof *r->poll, "an exchange");
    if (!r->via || !r->order || !r->edge || !r->poll)
        return HOCCL_ERR_MEMORY;
    for (int i = 0; i < g->count; i++)
        r->via[i] = NOWHERE;
    r->via[g->me] = OWN;
    r->order[r->come++] = g->me;
    memcpy(r->all + (size_t)g->me * r->bytes, mine, r->bytes);
    open_edges(r);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_gather(const struct hoccl_gather *g, const void *mine, size_t bytes, void *all)
{
    struct run *r = hoccl_alloc(sizeof *r, "an exchange");
    if (!r)
        return HOCCL_ERR_MEMORY;
    stir(g, true);
    *r = (struct run){.g = g, .bytes = bytes, .all = all, .begun = hoccl_now()};
    r->said = r->begun;
    HOCCL_Result result = begin(r, mine);
    if (!result)
        result = collect(r);
    if (result)
        hoccl_gather_refuse(g);
    stir(g, false);
    free(r->via);
    free(r->order);
    free(r->edge);
    free(r->poll);
    free(r);
    return result;
}
