/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of one connection beside that of bare sockets of the same number, over loopback, between two processes, in one
 * run: "transport_rate [LANES [CHUNK_KIB [SECONDS [both [MESSAGE_MIB]]]]]". The bare ones have a thread each at both ends, which send
 * and receive whole chunks; with "both" data goes both ways, with two threads a socket, and the rates are those of one way. Rounds
 * alternate; the best of each is compared, for other work on the machine only makes rounds slower. HOCCL's threads are as many as it
 * chooses, or RATE_THREADS.
 *
 * With MESSAGE_MIB messages of that size go both ways, one after the other: an end begins with the next when all of the one before has
 * come and is with the kernel. A bare socket carries its share of each. There are as many as take SECONDS at 4 GB/s. */
#include "ends.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "transport/tcp.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 3
#define WINDOW 32 /* chunks of memory at each end */

static int lanes = 2;
static size_t chunk = (size_t)1 << 20;
static double seconds = 1;
static bool both;
static size_t message; /* 0: a stream */
static unsigned messages;

static void put(int fd, const void *bytes, size_t n)
{
    CHECK(write(fd, bytes, n) == (ssize_t)n, "pipe: %m");
}

static void get(int fd, void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = read(fd, (char *)bytes + at, n - at);
        CHECK(k > 0, "pipe: %m");
        at += (size_t)k;
    }
}

static void *memory(void)
{
    char *m = aligned_alloc(4096, 2 * WINDOW * chunk); /* bare sockets: a window for each way */
    CHECK(m, "no memory");
    memset(m, 1, 2 * WINDOW * chunk);
    return m;
}

/* ---- bare sockets ------------------------------------------------------------------------------------------------ */

struct bare {
    int fd;
    bool sends;
    char *memory;
    uint64_t until, bytes;
    size_t share; /* of a message */
};

/* All threads of this end have moved their share of a message. */
static uint32_t barrier_come, barrier_round;

static void wait_for_all(void)
{
    uint32_t round = hoccl_observe(&barrier_round);
    if (hoccl_fetch_add(&barrier_come, 1u) == 2 * (uint32_t)lanes - 1) {
        hoccl_publish(&barrier_come, 0u);
        hoccl_publish(&barrier_round, round + 1);
    }
    for (unsigned looks = 0; hoccl_observe(&barrier_round) == round; looks++) {
        if (looks < 2000)
            hoccl_relax();
        else
            sched_yield();
    }
}

/* A socket's part of the window, in whole chunks: what it sends and receives goes through all of it in turn, as through slots. */
static size_t window_part(void)
{
    size_t bytes = WINDOW / (size_t)lanes * chunk;
    return bytes ? bytes : chunk;
}

static void *run_bare_messages(void *arg)
{
    struct bare *b = arg;
    size_t at = 0;
    for (unsigned i = 0; i < messages; i++) {
        for (size_t left = b->share; left;) {
            size_t n = left < chunk ? left : chunk;
            ssize_t k = b->sends ? send(b->fd, b->memory + at, n, MSG_NOSIGNAL) : recv(b->fd, b->memory + at, n, MSG_WAITALL);
            CHECK(k > 0, "a bare socket: %m");
            left -= (size_t)k;
            at = (at + chunk) % window_part();
        }
        b->bytes += b->share;
        wait_for_all();
    }
    return NULL;
}

static void *run_bare(void *arg)
{
    struct bare *b = arg;
    for (size_t at = 0; !b->sends || hoccl_now() < b->until; at = (at + chunk) % window_part()) {
        ssize_t n = b->sends ? send(b->fd, b->memory + at, chunk, MSG_NOSIGNAL) : recv(b->fd, b->memory + at, chunk, MSG_WAITALL);
        if (n <= 0)
            break;
        b->bytes += (uint64_t)n;
    }
    if (b->sends)
        shutdown(b->fd, SHUT_WR);
    return NULL;
}

/* Sockets to send on, to receive from; the bytes received, or sent if none are. */
static uint64_t all_bare(struct bare *b, bool sends, bool receives, char *m)
{
    pthread_t thread[2 * HOCCL_LANES_MAX];
    uint64_t bytes = 0, until = hoccl_now() + (uint64_t)(seconds * 1e9);
    int n = 0;
    for (int i = 0; i < lanes; i++)
        for (int way = 0; way < 2; way++) {
            struct bare *t = &b[n];
            if (!(way ? sends : receives))
                continue;
            *t = (struct bare){.fd = b[2 * lanes + i].fd, .sends = way == 1, .until = until};
            t->memory = m + (size_t)(way * lanes + i) * window_part();
            t->share = message * (size_t)(i + 1) / (size_t)lanes - message * (size_t)i / (size_t)lanes;
            CHECK(!pthread_create(&thread[n++], NULL, message ? run_bare_messages : run_bare, t), "thread");
        }
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        bytes += b[i].sends && receives ? 0 : b[i].bytes;
    }
    for (int i = 0; i < lanes; i++)
        close(b[2 * lanes + i].fd);
    return bytes;
}

static double bare_rate(struct bare *b, bool sends, bool receives, char *m)
{
    uint64_t begin = hoccl_now(), bytes = all_bare(b, sends, receives, m);
    return (double)bytes / (double)(hoccl_now() - begin);
}

static void receive_bare(int up, char *m)
{
    struct bare b[3 * HOCCL_LANES_MAX];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 64) && !getsockname(fd, (struct sockaddr *)&a, &n), "%m");
    put(up, &a, sizeof a);
    for (int i = 0; i < lanes; i++)
        CHECK((b[2 * lanes + i].fd = accept(fd, NULL, NULL)) >= 0, "accept: %m");
    close(fd);
    double rate = bare_rate(b, both, true, m);
    put(up, &rate, sizeof rate);
}

static double send_bare(int from, char *m)
{
    struct bare b[3 * HOCCL_LANES_MAX];
    struct sockaddr_in a;
    double rate;
    get(from, &a, sizeof a);
    for (int i = 0; i < lanes; i++) {
        int fd = b[2 * lanes + i].fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a), "connect: %m");
    }
    double own = bare_rate(b, true, both, m);
    get(from, &rate, sizeof rate);
    return both ? (own + rate) / 2 : rate;
}

/* ---- a connection ------------------------------------------------------------------------------------------------ */

struct side {
    struct end end;
    struct line line;
    struct hoccl_region region;
    struct hoccl_region_key key; /* of the peer's */
};

static void open_side(struct side *s, int in, int out, bool dials, char *m)
{
    struct hoccl_endpoint_card card;
    struct hoccl_region_source source = {.address = m, .bytes = WINDOW * chunk, .dmabuf = -1};
    end_open(&s->end);
    CHECK(!transport->region_add(s->end.endpoint, &source, &s->region), "%s", hoccl_error_text());
    put(out, &s->end.card, sizeof card);
    put(out, &s->region.key, sizeof s->region.key);
    get(in, &card, sizeof card);
    get(in, &s->key, sizeof s->key);
    line_open(&s->line, &s->end, dials ? 2 : 3, &card);
    UNTIL(&s->end, NULL, s->line.joined || s->line.broken);
    CHECK(s->line.joined, "%s", s->line.text);
}

/* As the progress thread does: poll, and sleep when there is nothing. */
static void rest(struct end *end)
{
    hoccl_doorbell_announce(&end->bell);
    if (transport->arm(end->endpoint))
        hoccl_doorbell_cancel(&end->bell);
    else
        hoccl_doorbell_sleep(&end->bell, 10 * HOCCL_MS);
}

static void close_side(struct side *s)
{
    line_close(&s->line);
    transport->region_remove(s->end.endpoint, &s->region);
    end_close(&s->end);
}

/* Sends for the time given, if it is to, and receives until the other end has closed; the rate of what came. */
static double run_side(struct side *s, bool sends)
{
    struct hoccl_write w = {.from = &s->region, .to = s->key, .bytes = chunk};
    uint64_t begin = hoccl_now(), until = begin + (uint64_t)(seconds * 1e9), now;
    double rate = 0;
    while ((now = hoccl_now()) < until || (!sends && !s->line.closed)) {
        while (sends && transport->write(s->line.connection, &w))
            w.offset = w.to_offset = ++w.word % WINDOW * chunk;
        end_poll(&s->end);
        CHECK(!s->line.broken, "%s", s->line.text);
        rate = (double)s->line.arrived_bytes / (double)(hoccl_now() - begin);
        rest(&s->end);
    }
    if (sends)
        UNTIL(&s->end, NULL, transport->idle(s->line.connection));
    return rate;
}

static double run_messages(struct side *s)
{
    struct hoccl_write w = {.from = &s->region, .to = s->key, .bytes = chunk};
    uint64_t begin = hoccl_now();
    for (unsigned i = 1; i <= messages; i++) {
        unsigned goal = i * (unsigned)(message / chunk);
        for (;;) {
            while (w.word < goal && transport->write(s->line.connection, &w))
                w.offset = w.to_offset = ++w.word % WINDOW * chunk;
            end_poll(&s->end);
            CHECK(!s->line.broken, "%s", s->line.text);
            if (s->line.arrived >= goal && s->line.written >= goal)
                break;
            rest(&s->end);
        }
    }
    return (double)messages * (double)message / (double)(hoccl_now() - begin);
}

/* What still comes has to be polled for, until the other end says that it was the last. */
static void part(struct side *s)
{
    give_message(&s->line, NULL, "done", 4);
    UNTIL(&s->end, NULL, s->line.messages || s->line.closed || s->line.broken);
    CHECK(s->line.messages, "%s", s->line.text);
    UNTIL(&s->end, NULL, transport->idle(s->line.connection));
}

static void receive_side(int in, int out, char *m)
{
    struct side s;
    open_side(&s, in, out, false, m);
    double rate = message ? run_messages(&s) : run_side(&s, both);
    if (both)
        part(&s);
    put(out, &rate, sizeof rate);
    if (both)
        UNTIL(&s.end, NULL, s.line.closed);
    close_side(&s);
}

static double send_side(int in, int out, char *m)
{
    struct side s;
    double rate;
    open_side(&s, in, out, true, m);
    double own = message ? run_messages(&s) : run_side(&s, true);
    if (both)
        part(&s);
    else
        close_side(&s);
    get(in, &rate, sizeof rate);
    if (both)
        close_side(&s);
    return both ? (own + rate) / 2 : rate;
}

static double better(double a, double b)
{
    return a > b ? a : b;
}

int main(int argc, char **argv)
{
    int up[2], down[2];
    double bare = 0, ours = 0;
    char text[32];
    if (argc > 1)
        lanes = atoi(argv[1]);
    if (argc > 2)
        chunk = strtoul(argv[2], NULL, 10) << 10;
    if (argc > 3)
        seconds = atof(argv[3]);
    both = argc > 4 && !strcmp(argv[4], "both");
    if (argc > 5)
        message = strtoul(argv[5], NULL, 10) << 20;
    CHECK(lanes > 0 && lanes <= HOCCL_LANES_MAX && chunk && seconds > 0, "arguments");
    CHECK(!message || (both && message % chunk == 0), "messages go both ways, in whole chunks");
    messages = message ? (unsigned)(seconds * 4e9 / (double)message) + 1 : 0;
    snprintf(text, sizeof text, "%d", lanes);
    setenv("HOCCL_LANES", text, 1);
    setenv("HOCCL_NET", "tcp", 0);
    hoccl_tcp_threads = getenv("RATE_THREADS") ? atoi(getenv("RATE_THREADS")) : 0;
    CHECK(!hoccl_settings_load() && !pipe(up) && !pipe(down), "%s", hoccl_error_text());
    transport = hoccl_transport_choose();
    CHECK(transport, "%s", hoccl_error_text());
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    char *m = memory();
    for (int i = 0; i < ROUNDS; i++) {
        if (!child) {
            receive_bare(up[1], m);
            receive_side(down[0], up[1], m);
            continue;
        }
        bare = better(bare, send_bare(up[0], m));
        ours = better(ours, send_side(up[0], down[1], m));
    }
    if (!child)
        return 0;
    char what[64] = "";
    if (message)
        snprintf(what, sizeof what, ", %u messages of %zu MiB one after the other", messages, message >> 20);
    printf("%d sockets, chunks of %zu KiB%s%s: bare %.2f GB/s, a connection %.2f GB/s, %.2f of it\n", lanes, chunk >> 10,
           both ? ", both ways" : "", what, bare, ours, ours / bare);
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status, "the receiver failed");
    return 0;
}
