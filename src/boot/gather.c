/* SPDX-License-Identifier: Apache-2.0 */
/* Each rank sends one packet to every other and waits for theirs. The sockets keep packets whole and in order:
 *
 *   … packets of failed calls ……… (call, step) …… perhaps (call, GIVEN_UP) …… (call, step + 1)
 *   thrown away                    the one we want  ends our waiting         left for the next step
 *
 * A rank that gives a call up says so behind its packet; while others are still missing, sockets that have delivered are
 * looked at for that without taking anything else off them. */
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
    uint32_t bytes;      /* that follow */
};

struct packet {
    struct head head;
    char body[HOCCL_BLOB_MAX];
};

/* One exchange on its way. */
struct run {
    const struct hoccl_gather *g;
    size_t bytes;
    char *all;
    bool *here; /* by place in g->ranks */
    int missing;
    uint64_t begun, said;
    struct pollfd *poll;
    struct packet packet;
};

static int socket_of(const struct hoccl_gather *g, int i)
{
    return g->links[g->ranks[i]].fd;
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
    struct head h = {MAGIC, g->call, GIVEN_UP, (uint32_t)strlen(text)};
    for (int i = 0; i < g->count; i++)
        if (i != g->me)
            post(socket_of(g, i), &h, text);
    stir(g, false);
}

/* One that is gone may have said why: that is found when its packet is waited for. */
static HOCCL_Result post_all(const struct hoccl_gather *g, const void *mine, size_t bytes)
{
    struct head h = {MAGIC, g->call, g->step, (uint32_t)bytes};
    for (int i = 0; i < g->count; i++) {
        int e = i == g->me ? 0 : post(socket_of(g, i), &h, mine);
        if (e && e != EPIPE && e != ECONNRESET)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d %s (%s)", g->name, g->ranks[i],
                              e == EAGAIN ? "takes no part: what it has been told lies unread" : "is gone", strerror(e));
    }
    return HOCCL_SUCCESS;
}

/* The next packet of a rank; 0 if there is none, −1 if there will be none. */
static int look(struct run *r, int i, int flags)
{
    ssize_t n = recv(socket_of(r->g, i), &r->packet, sizeof r->packet, MSG_DONTWAIT | flags);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n < (ssize_t)sizeof r->packet.head || r->packet.head.magic != MAGIC ||
        (size_t)n != sizeof r->packet.head + r->packet.head.bytes)
        return -1;
    return 1;
}

static HOCCL_Result given_up(const struct run *r, int i)
{
    return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d has given up: %.*s", r->g->name, r->g->ranks[i],
                      (int)r->packet.head.bytes, r->packet.body);
}

static HOCCL_Result take(struct run *r, int i)
{
    const struct hoccl_gather *g = r->g;
    const struct head *h = &r->packet.head;
    while (!r->here[i]) {
        int n = look(r, i, 0);
        if (!n)
            return HOCCL_SUCCESS;
        if (n < 0)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d has ended, or has left the communicator", g->name, g->ranks[i]);
        if (h->call == g->call && h->step == GIVEN_UP)
            return given_up(r, i);
        if ((int32_t)(h->call - g->call) < 0 || (h->call == g->call && h->step < g->step))
            continue; /* of a call that has failed */
        if (h->call != g->call || h->step != g->step || h->bytes != r->bytes)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s: rank %d is in another call: all ranks must make the same ones in the "
                              "same order", g->name, g->ranks[i]);
        memcpy(r->all + (size_t)i * r->bytes, r->packet.body, r->bytes);
        r->here[i] = true;
        r->missing--;
    }
    return HOCCL_SUCCESS;
}

/* It has sent its packet: has it given up behind it? An ended one need not trouble us. */
static HOCCL_Result peek(struct run *r, int i)
{
    const struct head *h = &r->packet.head;
    if (look(r, i, MSG_PEEK) > 0 && h->call == r->g->call && h->step == GIVEN_UP)
        return given_up(r, i);
    return HOCCL_SUCCESS;
}

static HOCCL_Result hear_all(struct run *r)
{
    HOCCL_Result result = HOCCL_SUCCESS;
    for (int i = 0; i < r->g->count && !result; i++)
        if (i != r->g->me)
            result = r->here[i] ? peek(r, i) : take(r, i);
    return result;
}

static const char *missing_names(const struct run *r, char *text, size_t bytes)
{
    struct hoccl_names names;
    hoccl_names_begin(&names, text, bytes);
    for (int i = 0; i < r->g->count; i++)
        if (!r->here[i])
            hoccl_names_add(&names, r->g->ranks[i]);
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

/* Only ranks that are missing can bring news at once; the others are looked at every few milliseconds. */
static void wait_for_news(struct run *r)
{
    int n = 0;
    for (int i = 0; i < r->g->count; i++)
        if (!r->here[i])
            r->poll[n++] = (struct pollfd){.fd = socket_of(r->g, i), .events = POLLIN};
    poll(r->poll, (nfds_t)n, 5);
}

static HOCCL_Result collect(struct run *r)
{
    HOCCL_Result result = hear_all(r);
    while (!result && r->missing) {
        wait_for_news(r);
        result = hear_all(r);
        if (!result && r->missing)
            result = look_at_clock(r);
    }
    return result;
}

HOCCL_Result hoccl_gather(const struct hoccl_gather *g, const void *mine, size_t bytes, void *all)
{
    struct run *r = hoccl_alloc(sizeof *r, "an exchange");
    HOCCL_Result result = HOCCL_ERR_MEMORY;
    if (!r)
        return result;
    stir(g, true);
    *r = (struct run){.g = g, .bytes = bytes, .all = all, .missing = g->count - 1, .begun = hoccl_now()};
    r->said = r->begun;
    r->here = hoccl_alloc((size_t)g->count * sizeof *r->here, "an exchange");
    r->poll = hoccl_alloc((size_t)g->count * sizeof *r->poll, "an exchange");
    if (r->here && r->poll) {
        r->here[g->me] = true;
        memcpy(r->all + (size_t)g->me * bytes, mine, bytes);
        result = post_all(g, mine, bytes);
        if (!result)
            result = collect(r);
    }
    if (result)
        hoccl_gather_refuse(g);
    stir(g, false);
    free(r->here);
    free(r->poll);
    free(r);
    return result;
}
