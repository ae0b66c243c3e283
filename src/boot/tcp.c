/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's side of the exchange in tcp.h. It tries the addresses of the id in turn until the right listener answers:
 * loopback first on the host of the listener, never elsewhere. If every address refuses, nobody listens any more, and
 * waiting would be in vain. The listener ends the exchange; a rank's own clock only counts if the listener is silent. */
#define _GNU_SOURCE
#include "boot/tcp.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTEMPT (3 * HOCCL_S)    /* for one address to connect and answer */
#define GRACE (1 * HOCCL_S)      /* so that the listener's verdict, with names, comes first */
#define PAUSE (50 * HOCCL_MS)    /* between rounds over the addresses */

/* Errors of one address are errno values; this one is for a listener that is not ours or closed again. */
#define NOT_OURS EPROTO

/* A signal of the application's does not end the waiting. */
static bool wait_for(int fd, short events, uint64_t deadline)
{
    struct pollfd f = {.fd = fd, .events = events};
    for (uint64_t now = hoccl_now(); now < deadline; now = hoccl_now()) {
        int n = poll(&f, 1, (int)((deadline - now) / HOCCL_MS) + 1);
        if (n >= 0 || errno != EINTR)
            return n > 0;
    }
    return false;
}

/* All of it before the deadline; an errno value, 0 for success. */
static int send_all(int fd, const void *data, size_t bytes, uint64_t deadline)
{
    const char *p = data;
    while (bytes) {
        ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return errno;
        if (n < 0) {
            if (!wait_for(fd, POLLOUT, deadline))
                return ETIMEDOUT;
            continue;
        }
        p += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int receive_all(int fd, void *data, size_t bytes, uint64_t deadline)
{
    char *p = data;
    while (bytes) {
        ssize_t n = recv(fd, p, bytes, MSG_DONTWAIT);
        if (!n)
            return ECONNRESET;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return errno;
        if (n < 0) {
            if (!wait_for(fd, POLLIN, deadline))
                return ETIMEDOUT;
            continue;
        }
        p += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* ---- finding the listener ---------------------------------------------------------------------------------------- */

struct greeting {
    const struct hoccl_id *id;
    struct hoccl_tcp_hello hello;
    const void *blob;
};

static int connect_to(const struct sockaddr_storage *a, socklen_t bytes, uint64_t deadline, int *out)
{
    int e = 0, one = 1;
    socklen_t n = sizeof e;
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    if (connect(fd, (const struct sockaddr *)a, bytes)) {
        e = errno;
        if (e == EINPROGRESS) {
            e = wait_for(fd, POLLOUT, deadline) ? 0 : ETIMEDOUT;
            if (!e && getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n))
                e = errno;
        }
    }
    if (e) {
        close(fd);
        return e;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *out = fd;
    return 0;
}

/* Say who we are and hear whether it is the right one. */
static int greet(int fd, const struct greeting *g, uint64_t deadline)
{
    struct {
        struct hoccl_tcp_frame frame;
        uint8_t proof[8];
    } answer;
    int e = send_all(fd, &g->hello, sizeof g->hello, deadline);
    if (!e)
        e = send_all(fd, g->blob, g->hello.bytes, deadline);
    if (!e)
        e = receive_all(fd, &answer, sizeof answer, deadline);
    if (e)
        return e == ECONNRESET || e == EPIPE ? NOT_OURS : e;
    bool right = answer.frame.magic == HOCCL_TCP_MAGIC && answer.frame.kind == HOCCL_TCP_WELCOME &&
                 answer.frame.bytes == sizeof answer.proof && !memcmp(answer.proof, g->id->proof, sizeof answer.proof);
    return right ? 0 : NOT_OURS;
}

static int try_address(const struct greeting *g, const struct sockaddr_storage *a, socklen_t bytes, uint64_t deadline, int *out)
{
    uint64_t limit = hoccl_now() + ATTEMPT;
    int fd = -1;
    int e = connect_to(a, bytes, limit < deadline ? limit : deadline, &fd);
    if (e)
        return e;
    e = greet(fd, g, limit < deadline ? limit : deadline);
    if (e)
        close(fd);
    else
        *out = fd;
    return e;
}

/* One round over the addresses that are loopback ones, or that are not. *worst is the error that says most. */
static bool try_addresses(const struct greeting *g, bool loopback, uint64_t deadline, int *fd, int *worst, char *tried,
                          size_t bytes)
{
    struct sockaddr_storage a;
    socklen_t n;
    char name[80];
    for (int i = 0; hoccl_id_address(g->id, i, &a, &n); i++) {
        if (hoccl_address_is_loopback(&a) != loopback)
            continue;
        int e = try_address(g, &a, n, deadline, fd);
        if (!e)
            return true;
        if (!*worst || *worst == ECONNREFUSED)
            *worst = e;
        size_t used = strlen(tried);
        snprintf(tried + used, bytes - used, "%s%s (%s)", used ? ", " : "", hoccl_address_text(&a, name, sizeof name),
                 e == NOT_OURS ? "closed by who listens there" : strerror(e));
    }
    return false;
}

static HOCCL_Result find_listener(const struct greeting *g, uint64_t deadline, int *fd)
{
    bool near = hoccl_id_is_near(g->id);
    char tried[320];
    for (;;) {
        int worst = 0;
        tried[0] = 0;
        if (near && try_addresses(g, true, deadline, fd, &worst, tried, sizeof tried))
            return HOCCL_SUCCESS;
        if (try_addresses(g, false, deadline, fd, &worst, tried, sizeof tried))
            return HOCCL_SUCCESS;
        if (worst == ECONNREFUSED)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP,
                              "nobody listens for this unique id any more: process %d that made it has ended, the id has been "
                              "used already (each serves one communicator), or no rank came within HOCCL_INIT_TIMEOUT; "
                              "tried %s",
                              g->id->pid, tried);
        if (hoccl_now() + PAUSE > deadline)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "process %d that made the unique id cannot be reached: tried %s; HOCCL needs a "
                              "network or firewall that lets rank %d connect to one of them", g->id->pid, tried, g->hello.rank);
        hoccl_sleep(PAUSE);
    }
}

/* ---- the verdict ------------------------------------------------------------------------------------------------- */

static HOCCL_Result silence(const struct greeting *g, int e, uint64_t timeout)
{
    if (e == ETIMEDOUT)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "start-up: nothing from process %d that made the unique id for %llu s "
                          "(HOCCL_INIT_TIMEOUT)", g->id->pid, (unsigned long long)(timeout / HOCCL_S));
    return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "start-up: process %d that made the unique id has closed the connection (%s): it has "
                      "ended", g->id->pid, strerror(e));
}

static int read_text(int fd, uint64_t bytes, uint64_t deadline, char text[HOCCL_TCP_TEXT + 1])
{
    if (bytes > HOCCL_TCP_TEXT)
        return EPROTO;
    text[bytes] = 0;
    return receive_all(fd, text, bytes, deadline);
}

static HOCCL_Result hear_verdict(int fd, const struct greeting *g, void *all, uint64_t timeout, uint64_t deadline)
{
    size_t bytes = (size_t)g->hello.size * g->hello.bytes;
    for (;;) {
        struct hoccl_tcp_frame f = {0};
        char text[HOCCL_TCP_TEXT + 1];
        int e = receive_all(fd, &f, sizeof f, deadline);
        if (!e && f.magic != HOCCL_TCP_MAGIC)
            e = EPROTO;
        if (!e && f.kind == HOCCL_TCP_ALL) {
            e = f.bytes == bytes ? receive_all(fd, all, bytes, deadline) : EPROTO;
            if (!e)
                return HOCCL_SUCCESS;
        } else if (!e) {
            e = read_text(fd, f.bytes, deadline, text);
        }
        if (e)
            return silence(g, e, timeout);
        if (f.kind == HOCCL_TCP_FAILED)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "%s", text);
        hoccl_log(HOCCL_LOG_WARN, "%s", text);
    }
}

static HOCCL_Result exchange(struct hoccl_boot *boot, const void *mine, size_t bytes, void *all, uint64_t timeout)
{
    struct greeting g = {.id = boot->own, .blob = mine};
    uint64_t deadline = hoccl_now() + timeout + GRACE;
    int fd = -1;
    g.hello = (struct hoccl_tcp_hello){.magic = HOCCL_TCP_MAGIC, .version = HOCCL_TCP_VERSION, .rank = boot->rank,
                                       .size = boot->size, .bytes = (uint32_t)bytes};
    memcpy(g.hello.secret, g.id->secret, sizeof g.hello.secret);
    HOCCL_Result r = find_listener(&g, deadline, &fd);
    if (r)
        return r;
    r = hear_verdict(fd, &g, all, timeout, deadline);
    close(fd);
    return r;
}

static void close_tcp(struct hoccl_boot *boot)
{
    free(boot->own);
    boot->own = NULL;
}

static const struct hoccl_boot_ops ops = {.name = "a unique id", .exchange = exchange, .close = close_tcp};

HOCCL_Result hoccl_boot_tcp_open(const HOCCL_UniqueId *in, int rank, int size, struct hoccl_boot *boot)
{
    struct hoccl_id *id = hoccl_alloc(sizeof *id, "a unique id");
    if (!id)
        return HOCCL_ERR_MEMORY;
    HOCCL_Result r = hoccl_id_read(in, id);
    if (r) {
        free(id);
        return r;
    }
    *boot = (struct hoccl_boot){.ops = &ops, .rank = rank, .size = size, .local_rank = rank, .own = id};
    return HOCCL_SUCCESS;
}
