/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs transport in bad weather. */
#define _GNU_SOURCE
#include "verbs_cases.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each lane and the control queue of a new connection fails: both ends hear of it, with its name; a new connection works.
 */
void test_lane_faults(void)
{
    struct end x, y;
    struct line a, b;
    struct hoccl_lane_count count[HOCCL_LANES_MAX];
    open_on(&x, 0, "timeout=16,retry=3");
    open_on(&y, 1, "timeout=16,retry=3");
    int lanes = 1;
    for (int lane = -1; lane < lanes; lane++) {
        char name[24];
        struct buffer from, to;
        pair_open(&a, &x, &b, &y, 50 + (uint64_t)(lane + 1));
        lanes = transport->lanes(a.connection, count);
        buffer_open(&from, &x, 4 << 20, 1, 7);
        buffer_open(&to, &y, 4 << 20, 1, 0);
        for (uint32_t i = 0; i < 8; i++)
            give_write(&a, &y, &from, 0, to.region.key, 0, from.size, i);
        hoccl_verbs_break_lane(a.connection, lane);
        UNTIL(&x, &y, a.broken);
        snprintf(name, sizeof name, lane < 0 ? "control queue" : "lane %d", lane);
        CHECK(strstr(a.text, name) && strstr(a.text, "rank 1 (there)") && strstr(a.text, device[0]) &&
                  strstr(a.text, device[1]),
              "%s", a.text);
        /* nothing lands any more */
        memset(to.bytes, 0x33, to.size);
        hoccl_sleep(50 * HOCCL_MS);
        for (size_t i = 0; i < to.size; i++)
            CHECK(to.bytes[i] == 0x33, "byte %zu was written after BROKEN", i);
        printf("lane %d: %s\n", lane, a.text);
        line_close(&a);
        if (lane >= 0) { /* the reason is told */
            UNTIL(&x, &y, b.broken);
            CHECK(strstr(b.text, "has given the connection up") && strstr(b.text, name), "%s", b.text);
        }
        line_close(&b);
        buffer_close(&from);
        buffer_close(&to);
    }
    pair_open(&a, &x, &b, &y, 99);
    line_close(&a);
    UNTIL(&x, &y, b.closed);
    line_close(&b);
    end_close(&x);
    end_close(&y);
}

/* A process on the other device that joins and polls until it is killed; the cards go by pipes. */
static pid_t start_peer(struct hoccl_endpoint_card *card, int *go)
{
    int out[2], in[2];
    CHECK(!pipe(out) && !pipe(in), "pipe");
    pid_t pid = fork();
    CHECK(pid >= 0, "fork");
    if (!pid) {
        static struct end y;
        static struct line b;
        struct hoccl_endpoint_card theirs;
        struct buffer to;
        open_on(&y, 1, "timeout=17,retry=3");
        CHECK(write(out[1], &y.card, sizeof y.card) == sizeof y.card, "pipe");
        CHECK(read(in[0], &theirs, sizeof theirs) == sizeof theirs, "pipe");
        line_open(&b, &y, 15, &theirs);
        buffer_open(&to, &y, 4 << 20, 0, 0);
        UNTIL(&y, (struct end *)NULL, b.joined);
        give_message(&b, NULL, &to.region.key, sizeof to.region.key);
        for (;;)
            end_poll(&y);
    }
    close(out[1]);
    close(in[0]);
    CHECK(read(out[0], card, sizeof *card) == sizeof *card, "the peer has no endpoint");
    close(out[0]);
    *go = in[1];
    return pid;
}

/* The peer's process is killed: while idle, and with much outstanding. */
static void kill_peer(bool busy)
{
    struct end x;
    struct line a;
    struct hoccl_endpoint_card card;
    struct hoccl_region_key key;
    struct buffer from;
    int go;
    hoccl_settings.timeout = 20 * HOCCL_S;
    pid_t pid = start_peer(&card, &go);
    open_on(&x, 0, "timeout=17,retry=3");
    CHECK(write(go, &x.card, sizeof x.card) == sizeof x.card, "pipe");
    line_open(&a, &x, 14, &card);
    UNTIL(&x, (struct end *)NULL, a.joined || a.broken);
    CHECK(a.joined, "%s", a.text);
    UNTIL(&x, (struct end *)NULL, a.messages == 1);
    memcpy(&key, a.last, sizeof key);
    buffer_open(&from, &x, 4 << 20, 0, 1);
    struct hoccl_write w = {.from = &from.region, .to = key, .bytes = from.size};
    while (busy && transport->write(a.connection, &w))
        w.word++;
    if (busy)
        UNTIL(&x, (struct end *)NULL, a.written);
    while (busy && transport->write(a.connection, &w))
        w.word++;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    uint64_t begin = hoccl_now();
    UNTIL(&x, (struct end *)NULL, a.broken);
    uint64_t took = hoccl_now() - begin;
    printf("%u writes under way, noticed after %.1f s: %s\n", w.word - a.written, (double)took / 1e9, a.text);
    CHECK(!busy || w.word > a.written, "nothing was under way");
    CHECK(took < hoccl_settings.timeout / 2, "only after %.1f s", (double)took / 1e9);
    CHECK(strstr(a.text, "rank 1 (there)") && (strstr(a.text, "does not answer") || strstr(a.text, "may have ended")), "%s",
          a.text);
    line_close(&a);
    buffer_close(&from);
    end_close(&x);
    close(go);
    hoccl_settings.timeout = 30 * HOCCL_S;
}

void test_peer_killed_idle(void)
{
    kill_peer(false);
}

void test_peer_killed_busy(void)
{
    kill_peer(true);
}

/* As an ordinary user with 64 KiB of locked memory, in a process of its own. */
void test_memlock(void)
{
    pid_t pid = fork();
    if (!pid) {
        struct end x = {0};
        struct hoccl_endpoint_wish wish = {.bell = &x.bell, .nic = device[0]};
        struct rlimit l = {65536, 65536};
        CHECK(!setrlimit(RLIMIT_MEMLOCK, &l) && !setresuid(65534, 65534, 65534), "no ordinary user");
        HOCCL_Result r = transport->open(&wish, &x.endpoint, &x.card);
        printf("%s\n", hoccl_error_text());
        CHECK(r == HOCCL_ERR_MEMORY, "result %d", r);
        CHECK(strstr(hoccl_error_text(), "64 KiB") && strstr(hoccl_error_text(), "the launcher's may differ"), "text");
        fflush(stdout);
        _exit(0);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    CHECK(!status, "status %d", status);
}

/* Registration fails on one side, by each way; the connection is none the worse. */
void test_registration(void)
{
    struct two t;
    struct hoccl_region region;
    two_open(&t, "", "");
    struct hoccl_region_source nothing = {.address = (void *)4096, .bytes = 4096, .dmabuf = -1};
    CHECK(transport->region_add(t.x.endpoint, &nothing, &region) == HOCCL_ERR_DEVICE, "no error, or %s",
          hoccl_error_text());
    CHECK(strstr(hoccl_error_text(), "nvidia-peermem"), "%s", hoccl_error_text());
    printf("%s\n", hoccl_error_text());
    int fd = open("/dev/null", O_RDONLY);
    struct hoccl_region_source odd = {.address = (void *)4096, .bytes = 4096, .dmabuf = fd};
    CHECK(transport->region_add(t.x.endpoint, &odd, &region) == HOCCL_ERR_DEVICE, "no error");
    CHECK(strstr(hoccl_error_text(), "dma-buf"), "%s", hoccl_error_text());
    printf("%s\n", hoccl_error_text());
    close(fd);
    write_and_compare(&t, 100000, 5);
    two_close(&t);
}

/* A key that the peer has withdrawn breaks the connection, and nothing is written. */
void test_stale_key(void)
{
    struct two t;
    struct buffer from, to;
    two_open(&t, "", "");
    buffer_open(&from, &t.x, 4096, 0, 1);
    buffer_open(&to, &t.y, 4096, 0, 0x44);
    struct hoccl_region_key key = to.region.key;
    transport->region_remove(t.y.endpoint, &to.region);
    give_write(&t.a, &t.y, &from, 0, key, 0, 4096, 1);
    UNTIL(&t.x, &t.y, t.a.broken);
    printf("%s\n", t.a.text);
    CHECK(strstr(t.a.text, "not registered"), "%s", t.a.text);
    for (int i = 0; i < 4096; i++)
        CHECK(to.bytes[i] == 0x44, "byte %d was written", i);
    line_close(&t.a);
    UNTIL(&t.x, &t.y, t.b.broken);
    line_close(&t.b);
    buffer_guards(&to);
    free(to.whole);
    buffer_close(&from);
    end_close(&t.x);
    end_close(&t.y);
}

/* Commands that change the guest's network; these cases run only where they are named. */
static void shell(const char *command)
{
    CHECK(!system(command), "%s", command);
}

static bool describes(struct end *end, const char *words)
{
    char text[256];
    end_poll(end);
    transport->describe(end->endpoint, text, sizeof text);
    return strstr(text, words);
}

/* The port's address goes and comes back: the endpoint goes by what there is. */
void test_gid_change(void)
{
    struct two t;
    open_on(&t.x, 0, "");
    CHECK(describes(&t.x, "10.77.0.1"), "not as guest.sh has set it up");
    shell("ip addr del 10.77.0.1/24 dev eth0");
    UNTIL(&t.x, (struct end *)NULL, describes(&t.x, "fd77::1"));
    shell("ip addr add 10.77.0.1/24 dev eth0 && ip route replace 10.77.0.2 dev eth0 table 201");
    UNTIL(&t.x, (struct end *)NULL, describes(&t.x, "10.77.0.1"));
    end_close(&t.x);
    two_open(&t, "", "");
    write_and_compare(&t, 100000, 8);
    two_close(&t);
}

/* The cable is cut: while idle, and in the middle of a write. Both ends notice within half of HOCCL_TIMEOUT. */
static void link_down(bool busy)
{
    struct two t;
    struct buffer from, to;
    hoccl_settings.timeout = 20 * HOCCL_S;
    two_open(&t, "timeout=17,retry=3", "timeout=17,retry=3");
    buffer_open(&from, &t.x, 64 << 20, 0, 1);
    buffer_open(&to, &t.y, 64 << 20, 0, 0);
    if (busy)
        give_write(&t.a, &t.y, &from, 0, to.region.key, 0, from.size, 1);
    shell("ip link set eth0 down");
    uint64_t begin = hoccl_now();
    UNTIL(&t.x, &t.y, t.a.broken && t.b.broken);
    uint64_t took = hoccl_now() - begin;
    printf("after %.1f s: %s\n", (double)took / 1e9, t.a.text);
    CHECK(took < hoccl_settings.timeout / 2, "only after %.1f s", (double)took / 1e9);
    CHECK(!t.b.arrived, "the word of a write that was cut off");
    line_close(&t.a);
    line_close(&t.b);
    buffer_close(&from);
    buffer_close(&to);
    end_close(&t.x);
    end_close(&t.y);
    shell("ip link set eth0 up && ip route replace 10.77.0.2 dev eth0 table 201 && "
          "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:77:02 dev eth0");
    hoccl_settings.timeout = 30 * HOCCL_S;
}

void test_link_down_idle(void)
{
    link_down(false);
}

void test_link_down_busy(void)
{
    link_down(true);
}
