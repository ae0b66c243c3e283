/* SPDX-License-Identifier: Apache-2.0 */
/* What comes to TCP's sockets from others than HOCCL: callers at the listener, and streams that are none. The test knows
 * the wire format, so it can say anything. */
#include "ends.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "transport/tcp.h"
#include "transport/tcp_address.h"
#include "transport/tcp_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct end x, y;

static struct tcp_card card_of(const struct end *end)
{
    struct tcp_card card;
    memcpy(&card, end->card.bytes, sizeof card);
    return card;
}

/* A socket connected to the listener of `end`, over loopback. */
static int call(const struct end *end)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(card_of(end).port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a), "connect: %m");
    return fd;
}

static struct tcp_hello right_hello(const struct end *end, uint64_t id, int number, int lanes)
{
    struct tcp_hello h = {.magic = TCP_HELLO_MAGIC, .version = TCP_VERSION, .token = card_of(end).token, .id = id,
                          .attempt = 1, .socket = (uint16_t)number, .lanes = (uint16_t)lanes};
    memcpy(h.cookie, test_cookie, sizeof h.cookie);
    return h;
}

static void say(int fd, const void *bytes, size_t count)
{
    CHECK(send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count, "send: %m");
}

/* Wait for what comes of it: bytes, 0 for the end of the stream or a reset. */
static ssize_t hear(int fd, void *bytes, size_t count)
{
    ssize_t n = recv(fd, bytes, count, 0);
    CHECK(n >= 0 || errno == ECONNRESET, "recv: %m");
    return n < 0 ? 0 : n;
}

static void works(void)
{
    static struct line a, b;
    static uint64_t number = 1000;
    pair_open(&a, &x, &b, &y, number++);
    give_message(&a, &y, "m", 1);
    UNTIL(&x, &y, b.messages == 1);
    line_close(&a);
    UNTIL(&x, &y, b.closed);
    line_close(&b);
}

/* Whose hello is wrong is closed at once. */
static void case_hellos(void)
{
    struct tcp_hello h[7];
    char web[] = "GET / HTTP/1.1\r\nHost: somewhere.example\r\nUser-Agent: a port scanner\r\n\r\n", c;
    for (int i = 0; i < 7; i++)
        h[i] = right_hello(&y, 2, 0, 2);
    h[0].magic = 0;
    h[1].version++;
    h[2].cookie[15]++;
    h[3].token++;
    h[4].lanes = 0;
    h[5].lanes = HOCCL_LANES_MAX + 1;
    h[6].socket = 3;
    for (int i = 0; i < 7; i++) {
        int fd = call(&y);
        say(fd, &h[i], sizeof h[i]);
        CHECK(!hear(fd, &c, 1), "hello %d was answered", i);
        close(fd);
    }
    int fd = call(&y);
    say(fd, web, sizeof web);
    CHECK(!hear(fd, &c, 1), "a request of the web was answered");
    close(fd);
    struct tcp_hello right = right_hello(&y, 2, 0, 2);
    struct tcp_answer answer;
    fd = call(&y);
    for (size_t i = 0; i < sizeof right; i++) /* byte by byte */
        say(fd, (char *)&right + i, 1);
    CHECK(hear(fd, &answer, sizeof answer) == sizeof answer && answer.proof == card_of(&y).proof, "the right hello was not answered");
    close(fd);
    works();
}

/* Who says nothing stands at the door for a while, and is in nobody's way: not one, nor more than there is room for. */
static void case_silent(void)
{
    enum { N = 400 };
    static int fd[N];
    struct pollfd first;
    for (int i = 0; i < N; i++) {
        fd[i] = call(&y);
        if (i % 2)
            say(fd[i], "HOC", 3);
        if (i % 100 == 0)
            works();
    }
    works();
    first = (struct pollfd){.fd = fd[0], .events = POLLIN};
    CHECK(poll(&first, 1, LIMIT_S * 1000) == 1, "the one that stood there longest was not sent away");
    for (int i = 0; i < N; i++)
        close(fd[i]);
    works();
}

static void case_silent_limit(void)
{
    char c;
    int fd = call(&y);
    uint64_t begin = hoccl_now();
    CHECK(!hear(fd, &c, 1), "it was answered");
    printf("  closed after %.1f s\n", (double)(hoccl_now() - begin) / 1e9);
    close(fd);
}

/* No descriptor is left: callers wait until there is one. */
static void case_descriptors(void)
{
    struct rlimit old, few;
    CHECK(!getrlimit(RLIMIT_NOFILE, &old), "getrlimit");
    int fd = call(&y); /* so that the client side needs none */
    works();
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(card_of(&y).port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    few = old;
    few.rlim_cur = (rlim_t)late + 1;
    CHECK(!setrlimit(RLIMIT_NOFILE, &few), "setrlimit");
    struct tcp_hello h = right_hello(&y, 77, 0, 2);
    struct tcp_answer answer;
    CHECK(!connect(late, (struct sockaddr *)&a, sizeof a), "connect: %m");
    say(late, &h, sizeof h);
    hoccl_sleep(300 * HOCCL_MS);
    CHECK(!setrlimit(RLIMIT_NOFILE, &old), "setrlimit");
    CHECK(hear(late, &answer, sizeof answer) == sizeof answer, "the caller that had to wait was forgotten");
    close(late);
    close(fd);
    works();
}

/* ---- streams that are none --------------------------------------------------------------------------------------- */

/* The dialing end of a connection, made by hand: one lane. */
static void dial_by_hand(struct line *line, int fd[2], uint64_t id)
{
    struct tcp_answer answer;
    struct tcp_frame welcome;
    for (int i = 0; i < 2; i++) {
        struct tcp_hello h = right_hello(&y, id, i, 1);
        fd[i] = call(&y);
        say(fd[i], &h, sizeof h);
        CHECK(hear(fd[i], &answer, sizeof answer) == sizeof answer && answer.proof == card_of(&y).proof, "no answer");
    }
    line_open(line, &y, id | 1, &x.card);
    UNTIL(&y, NULL, line->joined || line->broken);
    CHECK(line->joined, "%s", line->text);
    for (int i = 0; i < 2; i++)
        CHECK(recv(fd[i], &welcome, sizeof welcome, MSG_WAITALL) == sizeof welcome && welcome.kind == TCP_WELCOME, "no welcome");
}

static void hang_up(struct line *line, int fd[2])
{
    line_close(line);
    close(fd[0]);
    close(fd[1]);
}

/* On socket `number`: breaks the connection with a text that says `words`. */
static void breaks(int number, struct tcp_frame frame, const char *words)
{
    static struct line l;
    static uint64_t id = 5000;
    int fd[2];
    dial_by_hand(&l, fd, id += 2);
    frame.magic = frame.magic ? frame.magic : TCP_FRAME_MAGIC;
    say(fd[number], &frame, sizeof frame);
    say(fd[number], "0123456789", 10);
    UNTIL(&y, NULL, l.broken || l.closed);
    CHECK(l.broken && strstr(l.text, words), "%s", l.text);
    hang_up(&l, fd);
}

static void case_frames(void)
{
    struct buffer b;
    buffer_open(&b, &y, 1000, 0, 7);
    uint64_t key = b.region.key.key, at = b.region.key.address;
    breaks(0, (struct tcp_frame){.magic = 0x12345678}, "no frame");
    breaks(0, (struct tcp_frame){.kind = 99}, "no frame");
    breaks(0, (struct tcp_frame){.kind = TCP_WELCOME}, "no frame");
    breaks(0, (struct tcp_frame){.kind = TCP_MESSAGE, .bytes = HOCCL_MESSAGE_BYTES + 1}, "no frame");
    breaks(1, (struct tcp_frame){.kind = TCP_MESSAGE, .bytes = 5}, "no frame");
    breaks(0, (struct tcp_frame){.kind = TCP_WRITE, .bytes = 5, .key = key, .address = at}, "no frame");
    breaks(1, (struct tcp_frame){.kind = TCP_WRITE, .bytes = 0, .key = key, .address = at}, "no frame");
    breaks(1, (struct tcp_frame){.kind = TCP_WRITE, .bytes = 5, .key = key ^ 1, .address = at}, "unknown");
    breaks(1, (struct tcp_frame){.kind = TCP_WRITE, .bytes = 5, .key = 0, .address = at}, "unknown");
    breaks(1, (struct tcp_frame){.kind = TCP_WRITE, .bytes = 5, .key = key, .address = at - 1}, "not inside");
    breaks(1, (struct tcp_frame){.kind = TCP_WRITE, .bytes = 1001, .key = key, .address = at}, "not inside");
    breaks(1, (struct tcp_frame){.kind = TCP_WRITE, .bytes = UINT64_MAX, .key = key, .address = at}, "not inside");
    for (int i = 0; i < 1000; i++)
        CHECK(b.bytes[i] == 7, "byte %d was written", i);
    buffer_close(&b);
    works();
}

/* A stream that ends in the middle: of a header, of a body, behind a frame without a goodbye, with a goodbye on one socket
 * only. And one in good order. */
static void case_ends(void)
{
    static struct line l;
    static const char half[500];
    struct buffer b;
    int fd[2];
    buffer_open(&b, &y, 1000, 0, 7);
    struct tcp_frame beat = {.magic = TCP_FRAME_MAGIC, .kind = TCP_BEAT}, bye = {.magic = TCP_FRAME_MAGIC, .kind = TCP_GOODBYE};
    struct tcp_frame write = {.magic = TCP_FRAME_MAGIC, .kind = TCP_WRITE, .bytes = 1000, .key = b.region.key.key,
                              .address = b.region.key.address, .word = 3};
    for (int how = 0; how < 5; how++) {
        dial_by_hand(&l, fd, 7000 + 2 * (uint64_t)how);
        if (how == 0)
            say(fd[0], &beat, 20);
        if (how == 1) {
            say(fd[1], &write, sizeof write);
            say(fd[1], half, sizeof half);
        }
        if (how == 2)
            say(fd[0], &beat, sizeof beat);
        if (how >= 3)
            say(fd[0], &bye, sizeof bye);
        if (how == 4)
            say(fd[1], &bye, sizeof bye);
        shutdown(fd[0], SHUT_WR);
        shutdown(fd[1], SHUT_WR);
        UNTIL(&y, NULL, l.broken || l.closed);
        CHECK(how == 4 ? l.closed : l.broken && strstr(l.text, "without a goodbye"), "%d: %s", how, l.text);
        CHECK(!l.arrived, "half a write has arrived");
        hang_up(&l, fd);
    }
    buffer_close(&b);
    works();
}

/* Several I/O threads for lanes have one beside them for messages; one alone does everything. */
static void case_threads(void)
{
    for (int lanes = 1; lanes <= 2; lanes++) {
        struct end z = {0};
        char text[1024], said[32];
        int before = process_threads(), wanted = lanes == 1 ? 1 : lanes + 1;
        hoccl_tcp_threads = lanes;
        end_open(&z);
        transport->describe(z.endpoint, text, sizeof text);
        snprintf(said, sizeof said, " %d I/O thread%s,", wanted, wanted > 1 ? "s" : "");
        CHECK(process_threads() - before == wanted && strstr(text, said), "%d for lanes: %d; %s", lanes, process_threads() - before, text);
        end_close(&z);
    }
    hoccl_tcp_threads = 0;
}

static int send_buffer(int fd)
{
    int bytes = 0;
    socklen_t size = sizeof bytes;
    return getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size) ? 0 : bytes;
}

/* How many sockets of this process have the send buffer of a near peer's lane, as this kernel gives it (net.core.wmem_max). */
static int near_lanes(void)
{
    int n = 0, wish = HOCCL_TCP_SEND_BUFFER, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wish, sizeof wish), "socket: %m");
    int bytes = send_buffer(fd);
    close(fd);
    for (fd = 0; fd < 1024; fd++)
        n += send_buffer(fd) == bytes;
    return n;
}

/* The lane of a near peer has a bounded send buffer, at both ends; the socket for messages has not. (Where the machine is busy, near may
 * look far.) */
static void case_buffers(void)
{
    static struct line a, b;
    int lanes = 0;
    for (int i = 0; i < 50 && lanes < 2; i++) {
        pair_open(&a, &x, &b, &y, 3000 + (uint64_t)i);
        lanes = near_lanes();
        CHECK(lanes <= 2, "%d sockets of 4 are bounded", lanes);
        line_close(&a);
        UNTIL(&x, &y, b.closed);
        line_close(&b);
        UNTIL(&x, &y, !near_lanes());
    }
    CHECK(lanes == 2, "%d lanes of 2 are bounded", lanes);
    works();
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"threads", case_threads}, {"buffers", case_buffers},
    {"hellos", case_hellos}, {"silent", case_silent}, {"silent_limit", case_silent_limit}, {"descriptors", case_descriptors},
    {"frames", case_frames}, {"ends", case_ends},
};

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("HOCCL_NET", "tcp", 1);
    setenv("HOCCL_LANES", "1", 1);
    CHECK(!hoccl_settings_load(), "%s", hoccl_error_text());
    transport = hoccl_transport_choose();
    CHECK(transport, "%s", hoccl_error_text());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name))
            continue;
        printf("== %s\n", cases[i].name);
        end_open(&x);
        end_open(&y);
        cases[i].run();
        end_close(&x);
        end_close(&y);
    }
    return 0;
}
