/* SPDX-License-Identifier: Apache-2.0 */
/* What only the verbs transport can be asked: which device and packet size, parts of large writes, faults of single lanes,
 * memory that cannot be registered, cards without shared receive queues. It wants two RDMA devices as two nodes and is run
 * in the guest with Soft-RoCE (test/rdma/guest.sh). verbs [DEVICE DEVICE [CASE…]]; without devices: rxe0 rxe1. What all
 * transports share is tested by transport.c. */
#define _GNU_SOURCE
#include "verbs_cases.h"

#include <string.h>
#include <sys/resource.h>

const char *device[2] = {"rxe0", "rxe1"};

void open_on(struct end *end, int which, const char *verbs)
{
    char normal[sizeof hoccl_settings.verbs];
    struct hoccl_endpoint_wish wish = {.bell = &end->bell, .nic = device[which]};
    memset(end, 0, sizeof *end);
    memcpy(normal, hoccl_settings.verbs, sizeof normal);
    memcpy(wish.cookie, test_cookie, sizeof wish.cookie);
    snprintf(hoccl_settings.verbs, sizeof hoccl_settings.verbs, "%s%s",
             strstr(verbs, "timeout") ? ""
             : *verbs                 ? "timeout=18,"
                                      : "timeout=18",
             verbs);
    HOCCL_Result r = transport->open(&wish, &end->endpoint, &end->card);
    CHECK(!r, "open: %s", hoccl_error_text());
    memcpy(hoccl_settings.verbs, normal, sizeof normal);
}

void two_open(struct two *t, const char *verbs_x, const char *verbs_y)
{
    open_on(&t->x, 0, verbs_x);
    open_on(&t->y, 1, verbs_y);
    pair_open(&t->a, &t->x, &t->b, &t->y, 7);
}

void two_close(struct two *t)
{
    line_close(&t->a);
    UNTIL(&t->x, &t->y, t->b.closed || t->b.broken);
    CHECK(t->b.closed, "not closed in good order: %s", t->b.text);
    line_close(&t->b);
    end_close(&t->x);
    end_close(&t->y);
}

void write_and_compare(struct two *t, size_t bytes, uint32_t word)
{
    struct buffer from, to;
    unsigned arrived = t->b.arrived, written = t->a.written;
    uint64_t before = t->b.arrived_bytes;
    buffer_open(&from, &t->x, bytes, 3, 0);
    buffer_open(&to, &t->y, bytes, 5, 0xee);
    pattern_fill(from.bytes, bytes, word);
    give_write(&t->a, &t->y, &from, 0, to.region.key, 0, bytes, word);
    UNTIL(&t->x, &t->y, t->a.broken || t->b.broken || (t->b.arrived > arrived && t->a.written > written));
    CHECK(!t->a.broken && !t->b.broken, "%s %s", t->a.text, t->b.text);
    CHECK(t->b.arrived_bytes - before == bytes, "%zu bytes arrived as %llu", bytes,
          (unsigned long long)(t->b.arrived_bytes - before));
    CHECK(t->b.seen[word % WORDS] && t->a.done[word % WORDS], "another word");
    CHECK(pattern_holds(to.bytes, bytes, word), "%zu bytes arrived wrong", bytes);
    buffer_close(&from);
    buffer_close(&to);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static void test_device(void)
{
    struct two t;
    char text[256];
    two_open(&t, "", "");
    for (int i = 0; i < 2; i++) {
        transport->describe(i ? t.y.endpoint : t.x.endpoint, text, sizeof text);
        printf("%s\n", text);
        CHECK(strstr(text, device[i]), "%s is not there: %s", device[i], text);
        CHECK(strstr(text, "RoCE v2"), "%s", text);
    }
    two_close(&t);
}

static void test_sizes(void)
{
    static const size_t sizes[] = {1, 2, 7, 64, 4095, 4097, 65537, 1 << 20, (8 << 20) + 1, 64u << 20};
    struct two t;
    two_open(&t, "", "");
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        write_and_compare(&t, sizes[i], 100 + i);
    two_close(&t);
}

/* As on a card whose largest message is small: more parts than a queue pair holds, beside whole writes on other lanes. */
static void test_parts(void)
{
    struct two t;
    hoccl_verbs_fault.message_most = 8192;
    two_open(&t, "", "");
    write_and_compare(&t, 8192, 1);
    write_and_compare(&t, 8193, 2);
    write_and_compare(&t, 3 << 20, 3);
    two_close(&t);
    hoccl_verbs_fault.message_most = 0;
}

static void test_mtu(void)
{
    struct two t;
    two_open(&t, "mtu=1024", "mtu=4096");
    CHECK(hoccl_verbs_mtu(t.a.connection) == 1024 && hoccl_verbs_mtu(t.b.connection) == 1024, "%d and %d",
          hoccl_verbs_mtu(t.a.connection), hoccl_verbs_mtu(t.b.connection));
    write_and_compare(&t, 8 << 20, 4);
    two_close(&t);
}

/* Without room for a single retry: any sender that meets a receiver without a receive breaks. */
static void test_credits(void)
{
    struct two t;
    struct buffer from, to;
    two_open(&t, "rnr=0", "rnr=0");
    buffer_open(&from, &t.x, 4096, 0, 1);
    buffer_open(&to, &t.y, 4096, 0, 0);
    for (int round = 0; round < 20; round++) {
        unsigned given = 0, messages = t.b.messages, arrived = t.b.arrived;
        struct hoccl_write w = {.from = &from.region, .to = to.region.key, .bytes = 8, .word = 9, .tag = 9};
        UNTIL(&t.x, &t.y, transport->message(t.a.connection, "m", 1));
        for (given = 1;
             given < 1000 && transport->message(t.a.connection, "m", 1);) /* the other end is not polled: room ends */
            given++;
        CHECK(given < 1000, "messages always find room");
        unsigned writes = 0;
        UNTIL(&t.x, &t.y, !transport->write(t.a.connection, &w) || ++writes > 200);
        UNTIL(&t.x, &t.y, t.a.broken || (t.b.messages == messages + given && t.b.arrived >= arrived + writes));
        CHECK(!t.a.broken && !t.b.broken, "%s %s", t.a.text, t.b.text);
    }
    UNTIL(&t.x, &t.y, transport->idle(t.a.connection));
    buffer_close(&from);
    buffer_close(&to);
    two_close(&t);
}

static void test_no_srq(void)
{
    hoccl_verbs_fault.no_srq = true;
    test_credits();
    test_parts();
    hoccl_verbs_fault.no_srq = false;
}

/* Every lane carries data, and more than one write is under way on each. */
static void test_lanes(void)
{
    struct two t;
    struct buffer from, to;
    struct hoccl_lane_count count[HOCCL_LANES_MAX];
    two_open(&t, "", "");
    buffer_open(&from, &t.x, 1 << 20, 1, 0);
    buffer_open(&to, &t.y, 1 << 20, 2, 0);
    pattern_fill(from.bytes, from.size, 6);
    for (uint32_t i = 0; i < 256; i++)
        give_write(&t.a, &t.y, &from, i * 4096, to.region.key, i * 4096, 4096, i);
    UNTIL(&t.x, &t.y, t.a.broken || (t.b.arrived == 256 && t.a.written == 256));
    CHECK(!t.a.broken, "%s", t.a.text);
    CHECK(pattern_holds(to.bytes, to.size, 6), "wrong bytes");
    int lanes = transport->lanes(t.a.connection, count);
    for (int i = 0; i < lanes; i++)
        CHECK(count[i].writes > 8 && count[i].most >= 2 && !count[i].flight, "lane %d: %llu writes, at most %u at once", i,
              (unsigned long long)count[i].writes, count[i].most);
    for (int i = 0; i < 256; i++)
        CHECK(t.b.seen[i] == 1 && t.a.done[i] == 1, "word %d: arrived %d times, written %d times", i, t.b.seen[i],
              t.a.done[i]);
    buffer_close(&from);
    buffer_close(&to);
    two_close(&t);
}

/* Many connections of one pair of endpoints; the receives are promised in shares and none is lost. */
static void test_crowd(void)
{
    enum { N = 64 };
    static struct line a[N], b[N];
    struct end x, y;
    open_on(&x, 0, "");
    open_on(&y, 1, "");
    for (int i = 0; i < N; i++) {
        line_open(&a[i], &x, 200 + 2 * (uint64_t)i, &y.card);
        line_open(&b[i], &y, 201 + 2 * (uint64_t)i, &x.card);
    }
    for (int i = 0; i < N; i++)
        UNTIL(&x, &y, (a[i].joined && b[i].joined) || a[i].broken || b[i].broken);
    for (int i = 0; i < N; i++) {
        CHECK(!a[i].broken && !b[i].broken, "%s %s", a[i].text, b[i].text);
        for (int k = 0; k < 40; k++)
            give_message(&a[i], &y, &i, sizeof i);
    }
    for (int i = 0; i < N; i++)
        UNTIL(&x, &y, b[i].messages == 40);
    for (int i = 0; i < N; i++)
        CHECK(!memcmp(b[i].last, &i, sizeof i), "connection %d has another's message", i);
    for (int i = 0; i < N; i++)
        line_close(&a[i]);
    for (int i = 0; i < N; i++) {
        UNTIL(&x, &y, b[i].closed || b[i].broken);
        CHECK(b[i].closed, "%s", b[i].text);
        line_close(&b[i]);
    }
    end_close(&x);
    end_close(&y);
}

/* The same pair again and again: nothing grows. */
static void test_again(void)
{
    struct end x, y;
    struct line a, b;
    int descriptors = 0, rounds = getenv("LONG_TESTS") ? 1000 : 200;
    long memory = 0;
    open_on(&x, 0, "");
    open_on(&y, 1, "");
    for (int i = 0; i < rounds; i++) {
        pair_open(&a, &x, &b, &y, 1000 + (uint64_t)i);
        give_message(i & 1 ? &a : &b, i & 1 ? &y : &x, "once", 4);
        UNTIL(&x, &y, a.messages || b.messages);
        line_close(&a);
        UNTIL(&x, &y, b.closed || b.broken);
        CHECK(b.closed, "round %d: %s", i, b.text);
        line_close(&b);
        if (i == rounds / 2) {
            descriptors = process_descriptors();
            memory = process_memory();
        }
    }
    CHECK(process_descriptors() <= descriptors + 2, "%d descriptors became %d", descriptors, process_descriptors());
    CHECK(process_memory() < memory + 2048, "%ld KiB became %ld", memory, process_memory());
    end_close(&x);
    end_close(&y);
}

/* Nobody polls: the processor is at rest, and a bell that is armed rings when something comes. */
static void test_sleep(void)
{
    struct two t;
    struct rusage before, after;
    two_open(&t, "", "");
    UNTIL(&t.x, &t.y, !transport->arm(t.y.endpoint) && !transport->arm(t.x.endpoint));
    getrusage(RUSAGE_SELF, &before);
    hoccl_sleep(HOCCL_S);
    getrusage(RUSAGE_SELF, &after);
    long us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
              after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    CHECK(us < 50000, "%ld us of processor time in a second of rest", us);
    hoccl_doorbell_announce(&t.y.bell);
    UNTIL(&t.x, &t.y, !transport->arm(t.y.endpoint));
    CHECK(transport->message(t.a.connection, "wake", 4), "no room");
    uint64_t begin = hoccl_now();
    hoccl_doorbell_sleep(&t.y.bell, 20 * HOCCL_S);
    CHECK(hoccl_now() - begin < 2 * HOCCL_S, "the bell did not ring");
    UNTIL(&t.x, &t.y, t.b.messages == 1);
    two_close(&t);
}

/* Flushes answer with their tags, more of them than fit at once, also when the connection that they were for is gone; one that
 * cannot be done says so, and with it every connection ends. */
static void test_flush(void)
{
    struct two t;
    struct buffer f, to;
    two_open(&t, "", "");
    buffer_open(&f, &t.x, 65536, 0, 1);
    buffer_open(&to, &t.y, 65536, 0, 2);
    for (uint32_t i = 0; i < 300; i++) {
        if (i % 3 == 0)
            give_write(&t.a, &t.y, &f, i, to.region.key, i, 4096, i);
        UNTIL(&t.x, &t.y, t.b.broken || transport->flush(t.y.endpoint, &to.region, i, 1000 + i));
    }
    UNTIL(&t.x, &t.y, t.b.broken || (t.y.flushed == 300 && t.a.written == 100));
    CHECK(!t.b.broken && t.b.arrived == 100 && !t.b.written && !t.y.unflushed, "%s %s", t.b.text, t.y.why);
    for (int i = 0; i < 300; i++)
        CHECK(t.y.flush[1000 + i] == 1, "flush %d", i);
    CHECK(transport->flush(t.x.endpoint, &f.region, 0, 7), "no room");
    line_close(&t.a);
    UNTIL(&t.x, &t.y, (t.b.closed || t.b.broken) && t.x.flushed == 1);
    CHECK(t.b.closed && t.x.flush[7] == 1, "%s", t.b.text);
    line_close(&t.b);
    pair_open(&t.a, &t.x, &t.b, &t.y, 2);
    struct hoccl_region gone = to.region;
    struct ibv_mr stale = *(struct ibv_mr *)gone.own;
    gone.own = &stale;
    stale.rkey ^= 0xffff00;
    for (uint64_t tag = 0; tag < 5; tag++)
        CHECK(transport->flush(t.y.endpoint, &gone, 0, tag), "no room");
    UNTIL(&t.x, &t.y, t.y.unflushed == 5 && t.b.broken);
    printf("%s\n%s\n", t.y.why, t.b.text);
    CHECK(strstr(t.y.why, "flush what has arrived") && strstr(t.b.text, "flush what has arrived"), "%s, %s", t.y.why, t.b.text);
    CHECK(transport->flush(t.y.endpoint, &to.region, 0, 5), "no room");
    UNTIL(&t.x, &t.y, t.y.unflushed == 6);
    CHECK(t.y.flushed == 300, "%u flushed", t.y.flushed);
    line_close(&t.b);
    UNTIL(&t.x, &t.y, t.a.closed || t.a.broken);
    line_close(&t.a);
    buffer_close(&f);
    buffer_close(&to);
    end_close(&t.x);
    end_close(&t.y);
}

/* Silence for several heartbeats is no fault. */
static void test_quiet(void)
{
    struct two t;
    hoccl_settings.timeout = 8 * HOCCL_S; /* a beat a second */
    two_open(&t, "", "");
    uint64_t end = hoccl_now() + 4 * HOCCL_S;
    UNTIL(&t.x, &t.y, t.a.broken || t.b.broken || hoccl_now() > end);
    CHECK(!t.a.broken && !t.b.broken, "%s %s", t.a.text, t.b.text);
    hoccl_settings.timeout = 30 * HOCCL_S;
    two_close(&t);
}

struct test {
    const char *name;
    void (*run)(void);
};

static const struct test cases[] = {
    {"device", test_device},
    {"sizes", test_sizes},
    {"parts", test_parts},
    {"mtu", test_mtu},
    {"credits", test_credits},
    {"lanes", test_lanes},
    {"lane_faults", test_lane_faults},
    {"memlock", test_memlock},
    {"registration", test_registration},
    {"stale_key", test_stale_key},
    {"crowd", test_crowd},
    {"again", test_again},
    {"sleep", test_sleep},
    {"quiet", test_quiet},
    {"flush", test_flush},
    {"no_srq", test_no_srq},
    {"peer_killed_busy", test_peer_killed_busy},
    {"peer_killed_idle", test_peer_killed_idle},
    /* These change the guest's network and run only where they are named. */
    {"gid_change", test_gid_change},
    {"link_down_idle", test_link_down_idle},
    {"link_down_busy", test_link_down_busy},
};

static bool chosen(const struct test *test, int argc, char **argv)
{
    bool all = argc < 4 && strcmp(test->name, "gid_change") != 0 && strncmp(test->name, "link_down", 9) != 0;
    for (int i = 3; i < argc; i++)
        all = all || !strcmp(argv[i], test->name);
    return all;
}

int main(int argc, char **argv)
{
    transport = &hoccl_transport_verbs;
    CHECK(!hoccl_settings_load(), "%s", hoccl_error_text());
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2) {
        device[0] = argv[1];
        device[1] = argv[2];
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t begin = hoccl_now();
        if (!chosen(&cases[i], argc, argv))
            continue;
        cases[i].run();
        printf("ok %-18s %6.1f s\n", cases[i].name, (double)(hoccl_now() - begin) / 1e9);
    }
    return 0;
}
