/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting the ranks of a node.
 *
 *   rank r                                   rank s > r
 *   listens on its abstract name             connects to r's name (in r's card)
 *                                            ── hello{cookie of r, s} + gift, parcel end ──▶
 *   knows the cookie: answers                ◀── hello{cookie of s, r} + gift ──
 *
 * Nobody waits inside connect: the listener's queue takes it, and every rank sends all its hellos before it waits for
 * any. Who sends no right cookie is closed and forgotten, so a stranger cannot stall the job. Abstract names leave no
 * file, belong to a network namespace, and vanish with their process. */
#define _GNU_SOURCE
#include "boot/node.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE (30 * HOCCL_S)
#define PROBE_EVERY (500 * HOCCL_MS)

struct hello {
    uint8_t cookie[16]; /* the receiver's */
    int32_t rank;       /* the sender's */
    int32_t version;
};

#define HELLO_VERSION 1

static void read_line(const char *path, char *out, size_t bytes)
{
    FILE *f = fopen(path, "re");
    out[0] = 0;
    if (!f)
        return;
    if (fgets(out, (int)bytes, f))
        out[strcspn(out, "\n")] = 0;
    fclose(f);
}

void hoccl_node_boot_id(char *text, size_t bytes)
{
    read_line("/proc/sys/kernel/random/boot_id", text, bytes);
}

HOCCL_Result hoccl_node_pretended(const char *setting, int rank, int *node)
{
    const char *at = setting;
    int blocks = 0, found = -1;
    long first = 0;
    *node = -1;
    while (*at) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < 1 || n > INT_MAX || (*end && *end != '+') || (*end == '+' && !end[1]))
            return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_TEST_NODE=%s cannot be read: it takes a number of nodes (2) or blocks of ranks "
                              "(3+5)", setting);
        if (!blocks && !*end) {
            *node = (int)(rank % n);
            return HOCCL_SUCCESS;
        }
        if (found < 0 && rank < first + n)
            found = blocks;
        first += n;
        blocks++;
        at = *end ? end + 1 : end;
    }
    if (blocks)
        *node = found >= 0 ? found : blocks - 1;
    return HOCCL_SUCCESS;
}

void hoccl_node_pretend(struct hoccl_node_card *card, int node)
{
    char number[16];
    size_t n = strlen(card->host), id = strlen(card->boot_id);
    if (node < 0)
        return;
    int digits = snprintf(number, sizeof number, "#%d", node);
    size_t most = sizeof card->host - 1 - (size_t)digits, least = sizeof card->boot_id - 1 - (size_t)digits;
    memcpy(card->host + (n < most ? n : most), number, (size_t)digits + 1);
    memcpy(card->boot_id + (id < least ? id : least), number, (size_t)digits + 1);
}

static socklen_t address_of(const char *name, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    size_t n = strlen(name); /* of a card: shorter than the field */
    if (n > sizeof a->sun_path - 2)
        n = sizeof a->sun_path - 2;
    memcpy(a->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

/* A random number of this process, the same for all its threads and communicators. */
static uint64_t process_number(void)
{
    static uint64_t number;
    uint64_t expected = 0, fresh = 0;
    if (getrandom(&fresh, sizeof fresh, 0) != (ssize_t)sizeof fresh)
        fresh = hoccl_now();
    fresh |= 1;
    __atomic_compare_exchange_n(&number, &expected, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&number, __ATOMIC_ACQUIRE);
}

static uint64_t network_number(void)
{
    struct stat st;
    return stat("/proc/self/ns/net", &st) ? 0 : (uint64_t)st.st_ino;
}

HOCCL_Result hoccl_listener_open(struct hoccl_listener *listener)
{
    struct hoccl_listener l = {.fd = -1};
    struct sockaddr_un a;
    uint64_t id;
    hoccl_node_boot_id(l.card.boot_id, sizeof l.card.boot_id);
    if (gethostname(l.card.host, sizeof l.card.host - 1))
        snprintf(l.card.host, sizeof l.card.host, "unknown host");
    l.card.pid = (int32_t)getpid();
    l.card.process = process_number();
    l.card.network = network_number();
    if (getrandom(l.card.cookie, sizeof l.card.cookie, 0) != sizeof l.card.cookie || getrandom(&id, sizeof id, 0) != sizeof id)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "getrandom: %m");
    listener->card = l.card; /* also of a rank that fails here: it says so to the others */
    snprintf(l.card.socket, sizeof l.card.socket, "hoccl-%d-%016llx", l.card.pid, (unsigned long long)id);
    l.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l.fd < 0)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "start-up: a socket to another rank: %m (see ulimit -n)");
    socklen_t n = address_of(l.card.socket, &a);
    if (bind(l.fd, (struct sockaddr *)&a, n) || listen(l.fd, 4096)) {
        hoccl_fail(HOCCL_ERR_SYSTEM, "listening on the abstract Unix socket %s: %m", l.card.socket);
        close(l.fd);
        return HOCCL_ERR_SYSTEM;
    }
    *listener = l;
    return HOCCL_SUCCESS;
}

void hoccl_listener_close(struct hoccl_listener *listener)
{
    if (listener->fd >= 0)
        close(listener->fd);
    listener->fd = -1;
}

/* The descriptors that travel with a hello: the gift, and from the caller one end of the parcel socket. */
struct handed {
    int gift, parcels; /* −1: none */
};

static const struct handed nothing = {-1, -1};

static void drop(struct handed *h)
{
    if (h->gift >= 0)
        close(h->gift);
    if (h->parcels >= 0)
        close(h->parcels);
    *h = nothing;
}

static bool send_hello(int fd, const struct hello *h, const struct handed *give)
{
    char control[CMSG_SPACE(sizeof *give)] = {0};
    size_t bytes = give->parcels < 0 ? sizeof give->gift : sizeof *give;
    struct iovec v = {(void *)h, sizeof *h};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(c), give, bytes);
    return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)sizeof *h;
}

/* Take one hello if it is there. 1: taken; 0: not yet; −1: the other end closed, or what came is no hello. */
static int take_hello(int fd, struct hello *h, struct handed *got)
{
    char control[CMSG_SPACE(sizeof *got)];
    struct iovec v = {h, sizeof *h};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *got = nothing;
    ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len <= CMSG_LEN(sizeof *got))
        memcpy(got, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    if (n == (ssize_t)sizeof *h && got->gift >= 0 && h->version == HELLO_VERSION)
        return 1;
    drop(got);
    return -1;
}

/* Everything one start-up needs, so that the steps below can be short. */
struct meeting {
    struct hoccl_boot *boot;
    struct hoccl_listener *listener;
    const struct hoccl_node_card *cards;
    int rank, size;
    struct hello hello;
    int gift;
    struct hoccl_link *links;
    bool *expected; /* ranks whose hello has not come yet */
    int missing;
    int waiting[64]; /* accepted sockets that have not said who they are, oldest first */
    int waiters;
    uint64_t said, probed; /* when the missing were last named, and looked for */
};

static bool greet(struct meeting *m, int fd, int peer)
{
    memcpy(m->hello.cookie, m->cards[peer].cookie, sizeof m->hello.cookie);
    return send_hello(fd, &m->hello, &(struct handed){m->gift, -1});
}

/* The caller makes the parcel socket and gives the other end away. */
static bool greet_with_parcels(struct meeting *m, int fd, int peer)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        return false;
    memcpy(m->hello.cookie, m->cards[peer].cookie, sizeof m->hello.cookie);
    bool sent = send_hello(fd, &m->hello, &(struct handed){m->gift, pair[1]});
    close(pair[1]);
    if (sent)
        m->links[peer].parcels = pair[0];
    else
        close(pair[0]);
    return sent;
}

/* A socket connected to `peer`; −1 in *fd if its name is not known here: another network namespace, so another node. */
static HOCCL_Result reach(const struct meeting *m, int peer, int *fd)
{
    struct sockaddr_un a;
    socklen_t n = address_of(m->cards[peer].socket, &a);
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "start-up: a socket to another rank: %m (see ulimit -n)");
    if (!connect(*fd, (struct sockaddr *)&a, n))
        return HOCCL_SUCCESS;
    int error = errno;
    close(*fd);
    *fd = -1;
    if (error == ECONNREFUSED)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_SYSTEM, "connecting to rank %d over %s: %s", peer, m->cards[peer].socket, strerror(error));
}

static HOCCL_Result vanished(const struct meeting *m, int peer)
{
    return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "rank %d (pid %d on %s) ended or gave up during start-up", peer, m->cards[peer].pid,
                      m->cards[peer].host);
}

/* A lower rank is called and greeted; a higher one will call us, and is only tried, so that neither end waits for one
 * that it cannot reach. */
static HOCCL_Result call_peer(struct meeting *m, int peer)
{
    int fd;
    HOCCL_Result r = reach(m, peer, &fd);
    if (r)
        return r;
    if (fd < 0)
        return m->cards[peer].network && m->cards[peer].network == m->cards[m->rank].network ? vanished(m, peer) : HOCCL_SUCCESS;
    if (peer > m->rank) {
        close(fd);
    } else if (greet_with_parcels(m, fd, peer)) {
        m->links[peer].fd = fd;
    } else {
        hoccl_fail(HOCCL_ERR_BOOTSTRAP, "start-up: greeting rank %d: %m%s", peer,
                   errno == EMFILE || errno == ENFILE ? " (see ulimit -n: each rank needs a descriptor for each other one)" : "");
        close(fd);
        return HOCCL_ERR_BOOTSTRAP;
    }
    m->expected[peer] = true;
    m->missing++;
    return HOCCL_SUCCESS;
}

static void arrived(struct meeting *m, int peer, int fd, const struct handed *got)
{
    struct hoccl_link *l = &m->links[peer];
    l->local = true;
    l->fd = fd;
    l->gift = got->gift;
    if (got->parcels >= 0)
        l->parcels = got->parcels;
    m->expected[peer] = false;
    m->missing--;
}

/* A caller has spoken (or hung up): is it one of us? */
static void hear_caller(struct meeting *m, int fd, int state, const struct hello *h, struct handed *got)
{
    bool ours = state > 0 && got->parcels >= 0 && !memcmp(h->cookie, m->cards[m->rank].cookie, sizeof h->cookie) && h->rank > m->rank &&
                h->rank < m->size && m->expected[h->rank];
    if (ours && greet(m, fd, h->rank)) {
        arrived(m, h->rank, fd, got);
        return;
    }
    drop(got);
    close(fd);
}

static void forget_waiting(struct meeting *m, int i)
{
    m->waiters--;
    memmove(m->waiting + i, m->waiting + i + 1, (size_t)(m->waiters - i) * sizeof *m->waiting);
}

/* Silent strangers make room for new callers, the oldest first. */
static HOCCL_Result accept_callers(struct meeting *m)
{
    const int room = (int)(sizeof m->waiting / sizeof *m->waiting);
    for (int n = 0; n < room; n++) {
        int fd = accept4(m->listener->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            return hoccl_fail(HOCCL_ERR_SYSTEM, "start-up: accepting another rank: %m (see ulimit -n: each rank needs a descriptor "
                              "for every other one of its node)");
        if (fd < 0)
            break;
        if (m->waiters == room) {
            close(m->waiting[0]);
            forget_waiting(m, 0);
        }
        m->waiting[m->waiters++] = fd;
    }
    return HOCCL_SUCCESS;
}

static HOCCL_Result hear_callers(struct meeting *m)
{
    HOCCL_Result r = accept_callers(m);
    for (int i = 0; i < m->waiters;) {
        struct hello h;
        struct handed got;
        int state = take_hello(m->waiting[i], &h, &got);
        if (!state) {
            i++;
            continue;
        }
        hear_caller(m, m->waiting[i], state, &h, &got);
        forget_waiting(m, i);
    }
    return r;
}

static HOCCL_Result hear_answers(struct meeting *m)
{
    for (int p = 0; p < m->rank; p++) {
        struct hello h;
        struct handed got;
        if (!m->expected[p])
            continue;
        int state = take_hello(m->links[p].fd, &h, &got);
        if (!state)
            continue;
        if (state < 0 || h.rank != p || memcmp(h.cookie, m->cards[m->rank].cookie, sizeof h.cookie)) {
            drop(&got);
            return vanished(m, p);
        }
        arrived(m, p, m->links[p].fd, &got);
    }
    return HOCCL_SUCCESS;
}

/* A higher rank that has not called yet and whose listener is gone will never call. */
static HOCCL_Result probe(const struct meeting *m)
{
    for (int p = m->rank + 1; p < m->size; p++) {
        int fd;
        if (!m->expected[p])
            continue;
        HOCCL_Result r = reach(m, p, &fd);
        if (r)
            return r;
        if (fd < 0)
            return vanished(m, p);
        close(fd);
    }
    return HOCCL_SUCCESS;
}

static const char *missing_names(const struct meeting *m, char *text, size_t bytes)
{
    struct hoccl_names names;
    hoccl_names_begin(&names, text, bytes);
    for (int p = 0; p < m->size; p++)
        if (m->expected[p])
            hoccl_names_add(&names, p);
    return hoccl_names_end(&names);
}

static HOCCL_Result look_at_clock(struct meeting *m, uint64_t begun, uint64_t timeout)
{
    char names[128];
    uint64_t now = hoccl_now();
    if (now - begun > timeout)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "start-up: rank %s on this node did not connect within %llu s "
                          "(HOCCL_INIT_TIMEOUT)", missing_names(m, names, sizeof names), (unsigned long long)(timeout / HOCCL_S));
    if (now - m->said > PATIENCE) {
        hoccl_log(HOCCL_LOG_WARN, "start-up: waiting for rank %s on this node", missing_names(m, names, sizeof names));
        m->said = now;
    }
    if (now - m->probed <= PROBE_EVERY)
        return HOCCL_SUCCESS;
    m->probed = now;
    return probe(m);
}

static HOCCL_Result meet(struct meeting *m, uint64_t timeout)
{
    uint64_t begun = m->said = m->probed = hoccl_now();
    while (m->missing) {
        HOCCL_Result r = hear_callers(m);
        if (!r)
            r = hear_answers(m);
        if (r || !m->missing)
            return r;
        r = look_at_clock(m, begun, timeout);
        if (!r && m->boot->ops->check)
            r = m->boot->ops->check(m->boot);
        if (r)
            return r;
        struct pollfd f = {.fd = m->listener->fd, .events = POLLIN};
        poll(&f, 1, 1);
    }
    return HOCCL_SUCCESS;
}

/* A child that the program forks closes its copies of the links: while it held them, its parent's death would go
 * unnoticed. (What is executed needs none of this: the sockets are closed then.) */
struct kept {
    struct hoccl_link *links;
    int size;
    struct kept *next;
};

static struct kept *kept; /* under kept_lock, which fork takes too */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t kept_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&kept_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&kept_lock);
}

static void close_links(struct hoccl_link *links, int size)
{
    for (int p = 0; p < size; p++) {
        if (links[p].fd >= 0)
            close(links[p].fd);
        if (links[p].gift >= 0)
            close(links[p].gift);
        if (links[p].parcels >= 0)
            close(links[p].parcels);
        links[p].fd = links[p].gift = links[p].parcels = -1;
    }
}

static void in_the_child(void)
{
    for (const struct kept *k = kept; k; k = k->next)
        close_links(k->links, k->size);
    pthread_mutex_unlock(&kept_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_the_child);
}

static HOCCL_Result keep(struct hoccl_link *links, int size)
{
    struct kept *k = hoccl_alloc(sizeof *k, "start-up");
    if (!k)
        return HOCCL_ERR_MEMORY;
    pthread_once(&kept_once, watch_forks);
    pthread_mutex_lock(&kept_lock);
    *k = (struct kept){.links = links, .size = size, .next = kept};
    kept = k;
    pthread_mutex_unlock(&kept_lock);
    return HOCCL_SUCCESS;
}

void hoccl_node_disconnect(struct hoccl_link *links, int size)
{
    pthread_mutex_lock(&kept_lock);
    struct kept **at = &kept, *gone;
    while (*at && (*at)->links != links)
        at = &(*at)->next;
    if ((gone = *at))
        *at = gone->next;
    close_links(links, size);
    pthread_mutex_unlock(&kept_lock);
    free(gone);
}

HOCCL_Result hoccl_node_connect(struct hoccl_boot *boot, struct hoccl_listener *listener, const struct hoccl_node_card *cards,
                                int gift, uint64_t timeout, struct hoccl_link *links)
{
    int rank = boot->rank, size = boot->size;
    struct meeting m = {.boot = boot, .listener = listener, .cards = cards, .rank = rank, .size = size, .gift = gift,
                        .links = links};
    HOCCL_Result r = HOCCL_SUCCESS;
    m.hello = (struct hello){.rank = rank, .version = HELLO_VERSION};
    m.expected = hoccl_alloc((size_t)size * sizeof *m.expected, "start-up");
    if (!m.expected)
        return HOCCL_ERR_MEMORY;
    for (int p = 0; p < size; p++)
        links[p] = (struct hoccl_link){.local = p == rank, .fd = -1, .gift = -1, .parcels = -1};
    for (int p = 0; p < size && !r; p++) {
        if (p != rank && !strcmp(cards[p].boot_id, cards[rank].boot_id))
            r = call_peer(&m, p);
    }
    if (!r)
        r = meet(&m, timeout);
    for (int i = 0; i < m.waiters; i++)
        close(m.waiting[i]);
    free(m.expected);
    if (!r)
        r = keep(links, size);
    if (r)
        hoccl_node_disconnect(links, size);
    return r;
}

bool hoccl_link_gone(const struct hoccl_link *link)
{
    struct pollfd f = {.fd = link->fd, .events = POLLRDHUP};
    return link->fd >= 0 && poll(&f, 1, 0) > 0 && (f.revents & (POLLRDHUP | POLLHUP | POLLERR));
}
