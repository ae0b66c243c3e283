/* SPDX-License-Identifier: Apache-2.0 */
/* Messages, writes, regions. */
#include "transport_cases.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void check_message(struct line *l, const void *bytes, size_t count)
{
    size_t n = l->messages - 1;
    CHECK(count == n % (HOCCL_MESSAGE_BYTES + 1), "message %zu has %zu bytes", n, count);
    CHECK(pattern_holds(bytes, count, n), "message %zu has other bytes", n);
}

void case_messages(void)
{
    static struct line a, b;
    const unsigned total = 4000;
    char m[HOCCL_MESSAGE_BYTES];
    both_open();
    pair_open(&a, &x, &b, &y, 1);
    a.on_message = b.on_message = check_message;
    for (unsigned i = 0; i < total; i++) {
        size_t n = i % (HOCCL_MESSAGE_BYTES + 1);
        pattern_fill(m, n, i);
        give_message(&a, &y, m, n);
        give_message(&b, &x, m, n);
    }
    UNTIL(&x, &y, a.messages == total && b.messages == total);
    CHECK(!transport->message(a.connection, m, HOCCL_MESSAGE_BYTES + 1), "a message too long was taken");
    close_pair(&a, &b);
    both_close();
}

/* A peer that does not look: messages and writes are refused after a while, and nothing is lost. */
void case_backpressure(void)
{
    static struct line a, b;
    struct buffer f, t;
    enum { PIECE = 1 << 15, MOST = 4000 }; /* with three I/O threads for lanes their news alone let 768 in */
    unsigned messages = 0, writes = 0, refused;
    char m[HOCCL_MESSAGE_BYTES] = "";
    both_open();
    pair_open(&a, &x, &b, &y, 1);
    buffer_open(&f, &x, PIECE, 1, 1);
    buffer_open(&t, &y, MOST * PIECE, 1, 2);
    struct hoccl_write w = {.from = &f.region, .to = t.region.key, .bytes = PIECE};
    for (refused = 0; refused < 200000; refused++) {
        if (transport->message(a.connection, m, sizeof m))
            messages++, refused = 0;
        CHECK(messages < 200000, "messages are taken without end");
        end_poll(&x);
    }
    for (refused = 0; refused < 200000; refused++) {
        if (transport->write(a.connection, &w))
            writes++, refused = 0, w.word++, w.to_offset += PIECE;
        CHECK(writes < MOST, "writes are taken without end");
        end_poll(&x);
    }
    printf("  %u messages and %u writes before the peer looked\n", messages, writes);
    CHECK(messages && (writes || !strcmp(transport->name, "verbs")), "nothing was taken"); /* there both share receives */
    UNTIL(&x, &y, b.messages == messages && b.arrived == writes && a.written == writes && transport->idle(a.connection));
    close_pair(&a, &b);
    buffer_close(&f);
    buffer_close(&t);
    both_close();
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

void case_sizes(void)
{
    static const size_t sizes[] = {1,    2,     3,     7,      63,     64,     65,      511,      512,       513,      4095,
                                   4096, 65535, 65536, 131073, 999999, MIB - 1, MIB + 1, 3 * MIB, 16 * MIB + 3, 64 * MIB};
    static struct line a, b;
    struct buffer f, t;
    uint32_t word = 0;
    both_open();
    pair_open(&a, &x, &b, &y, 1);
    buffer_open(&f, &x, 64 * MIB + 64, 1, 1);
    buffer_open(&t, &y, 64 * MIB + 64, 3, 2);
    pattern_fill(f.bytes, f.size, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i], from = i % 7, to = i % 5;
        memset(t.bytes, 0x5c, n + 64);
        give_write(&a, &y, &f, from, t.region.key, to, n, ++word);
        UNTIL(&x, &y, b.arrived == word && a.written == word);
        CHECK(b.seen[word] == 1 && a.done[word] == 1, "word or tag %u", word);
        CHECK(!memcmp(t.bytes + to, f.bytes + from, n), "%zu bytes arrived otherwise", n);
        for (size_t k = 0; k < 64; k++)
            CHECK(t.bytes[k < to ? k : n + k] == 0x5c, "%zu bytes: byte %zu beside them was written", n, k);
    }
    close_pair(&a, &b);
    buffer_close(&f);
    buffer_close(&t);
    both_close();
}

/* Many at once, both ways, each to a place of its own, in any order. */
void case_many(void)
{
    enum { N = 1500 };
    static struct line a, b;
    struct buffer f, g, t, u;
    static size_t at[N + 1];
    both_open();
    pair_open(&a, &x, &b, &y, 1);
    for (int i = 0; i < N; i++)
        at[i + 1] = at[i] + 1 + (size_t)(i * 7919 % (i % 10 ? 3000 : 200000));
    buffer_open(&f, &x, at[N], 5, 1);
    buffer_open(&g, &y, at[N], 6, 1);
    buffer_open(&t, &y, at[N], 1, 2);
    buffer_open(&u, &x, at[N], 0, 2);
    pattern_fill(f.bytes, f.size, 3);
    pattern_fill(g.bytes, g.size, 4);
    for (uint32_t i = 0; i < N; i++) {
        give_write(&a, &y, &f, at[i], t.region.key, at[i], at[i + 1] - at[i], i);
        give_write(&b, &x, &g, at[i], u.region.key, at[i], at[i + 1] - at[i], i);
    }
    UNTIL(&x, &y, a.arrived == N && b.arrived == N && a.written == N && b.written == N);
    for (int i = 0; i < N; i++)
        CHECK(a.seen[i] == 1 && b.seen[i] == 1 && a.done[i] == 1 && b.done[i] == 1, "write %d", i);
    CHECK(pattern_holds(t.bytes, t.size, 3) && pattern_holds(u.bytes, u.size, 4), "bytes differ");
    close_pair(&a, &b);
    buffer_close(&f);
    buffer_close(&g);
    buffer_close(&t);
    buffer_close(&u);
    both_close();
}

/* Each end in a thread of its own, which knows nothing of the other's but what comes over the connection. */
enum { THREAD_WRITES = 600, THREAD_PIECE = 30000 };

static void *end_thread(void *arg)
{
    struct end *end = arg;
    bool low = end == &x;
    struct line l;
    struct buffer out, in;
    struct hoccl_region_key key;
    buffer_open(&out, end, (size_t)THREAD_WRITES * THREAD_PIECE, 3, 1);
    buffer_open(&in, end, (size_t)THREAD_WRITES * THREAD_PIECE, 1, 2);
    pattern_fill(out.bytes, out.size, low);
    line_open(&l, end, low ? 60 : 61, low ? &y.card : &x.card);
    UNTIL(end, NULL, l.joined || l.broken);
    CHECK(l.joined, "%s", l.text);
    give_message(&l, NULL, &in.region.key, sizeof key);
    UNTIL(end, NULL, l.messages >= 1);
    memcpy(&key, l.first, sizeof key);
    for (uint32_t i = 0; i < THREAD_WRITES; i++) {
        give_write(&l, NULL, &out, (size_t)i * THREAD_PIECE, key, (size_t)i * THREAD_PIECE, THREAD_PIECE, i);
        give_message(&l, NULL, &i, sizeof i);
    }
    UNTIL(end, NULL, l.arrived == THREAD_WRITES && l.written == THREAD_WRITES && l.messages >= THREAD_WRITES + 1);
    CHECK(pattern_holds(in.bytes, in.size, !low), "bytes differ");
    give_message(&l, NULL, "done", 4);
    UNTIL(end, NULL, l.messages == THREAD_WRITES + 2);
    if (!low)
        UNTIL(end, NULL, l.closed || l.broken);
    UNTIL(end, NULL, transport->idle(l.connection));
    line_close(&l);
    buffer_close(&out);
    buffer_close(&in);
    return l.broken ? "broken" : NULL;
}

void case_threads(void)
{
    pthread_t thread[2];
    void *fault[2];
    both_open();
    CHECK(!pthread_create(&thread[0], NULL, end_thread, &x) && !pthread_create(&thread[1], NULL, end_thread, &y), "threads");
    pthread_join(thread[0], &fault[0]);
    pthread_join(thread[1], &fault[1]);
    CHECK(!fault[0] && !fault[1], "broken");
    both_close();
}

/* Every lane carries data, and what is counted adds up. */
void case_lanes(void)
{
    static const char *const settings[] = {"1", "2", "5", "16"};
    for (int s = 0; s < 4; s++) {
        static struct line a, b;
        struct buffer f, t;
        struct hoccl_lane_count n[HOCCL_LANES_MAX];
        const unsigned total = 400;
        uint64_t writes = 0, bytes = 0;
        set("HOCCL_LANES", settings[s]);
        both_open();
        pair_open(&a, &x, &b, &y, 1);
        buffer_open(&f, &x, MIB, 0, 1);
        buffer_open(&t, &y, total * 50000, 0, 2);
        for (unsigned i = 0; i < total; i++)
            give_write(&a, &y, &f, 0, t.region.key, i * 50000, 50000, i);
        UNTIL(&x, &y, b.arrived == total && a.written == total);
        int lanes = transport->lanes(a.connection, n);
        CHECK(lanes == atoi(settings[s]), "%d lanes instead of %s", lanes, settings[s]);
        for (int i = 0; i < lanes; i++) {
            CHECK(n[i].writes && n[i].bytes == 50000 * n[i].writes, "lane %d has carried nothing", i);
            CHECK(!n[i].flight && n[i].most >= 2, "lane %d: %u in flight now, %u at most", i, n[i].flight, n[i].most);
            writes += n[i].writes;
            bytes += n[i].bytes;
        }
        CHECK(writes == total && bytes == 50000 * total, "%llu writes counted", (unsigned long long)writes);
        close_pair(&a, &b);
        buffer_close(&f);
        buffer_close(&t);
        both_close();
    }
}

void case_connections(void)
{
    enum { N = 64 };
    static struct line a[N], b[N];
    struct buffer f, t;
    both_open();
    for (unsigned i = 0; i < N; i++) {
        line_open(&a[i], &x, 2 * i + 100, &y.card);
        line_open(&b[N - 1 - i], &y, 2 * (N - 1 - i) + 101, &x.card);
    }
    for (int i = 0; i < N; i++)
        UNTIL(&x, &y, a[i].joined && b[i].joined);
    buffer_open(&f, &x, N * 4096, 0, 1);
    buffer_open(&t, &y, N * 4096, 0, 2);
    pattern_fill(f.bytes, f.size, 5);
    for (unsigned i = 0; i < N; i++) {
        give_write(&a[i], &y, &f, 4096 * i, t.region.key, 4096 * i, 4096, i);
        give_message(&b[i], &x, &i, sizeof i);
    }
    for (unsigned i = 0; i < N; i++) {
        UNTIL(&x, &y, b[i].arrived == 1 && a[i].messages == 1);
        CHECK(b[i].seen[i] == 1 && !memcmp(a[i].last, &i, sizeof i), "connection %u has what belongs to another", i);
    }
    CHECK(pattern_holds(t.bytes, t.size, 5), "bytes differ");
    for (int i = 0; i < N; i++)
        close_pair(&a[i], &b[i]);
    buffer_close(&f);
    buffer_close(&t);
    both_close();
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

/* A write where it may not go: nothing there changes, the connection breaks, with a text at the end that noticed. */
static void refused(const char *what, struct hoccl_region_key key, size_t offset, size_t bytes, struct buffer *f, struct buffer *t)
{
    static struct line a, b;
    static uint64_t number = 300;
    pair_open(&a, &x, &b, &y, number++);
    struct hoccl_write w = {.from = &f->region, .to = key, .to_offset = offset, .bytes = bytes};
    CHECK(transport->write(a.connection, &w), "no room");
    UNTIL(&x, &y, b.broken || a.broken);
    printf("  %s: %s\n", what, b.broken ? b.text : a.text);
    UNTIL(&x, &y, a.broken);
    for (size_t i = 0; i < t->size; i++)
        CHECK(t->bytes[i] == 2, "%s: byte %zu was written", what, i);
    line_close(&a);
    line_close(&b);
}

void case_regions(void)
{
    struct buffer f, t, gone;
    struct hoccl_region_key wrong, old;
    both_open();
    buffer_open(&f, &x, 10000, 0, 1);
    buffer_open(&t, &y, 10000, 0, 2);
    buffer_open(&gone, &y, 10000, 0, 2);
    old = gone.region.key;
    transport->region_remove(y.endpoint, &gone.region);
    wrong = t.region.key;
    wrong.key += 1u << 16;
    refused("wrong key", wrong, 0, 100, &f, &t);
    refused("behind the end", t.region.key, 9950, 51, &f, &t);
    refused("far away", t.region.key, SIZE_MAX - 10, 100, &f, &t);
    refused("removed", old, 0, 100, &f, &gone);
    buffer_guards(&gone);
    free(gone.whole);
    buffer_close(&f);
    buffer_close(&t);
    both_close();
}

/* Regions come and go in another thread while data moves. */
static uint32_t churn_stop, churn_rounds;

static void *churn(void *arg)
{
    struct end *end = arg;
    static char memory[64][4096];
    while (!hoccl_observe(&churn_stop)) {
        struct hoccl_region r[64];
        for (int i = 0; i < 64; i++) {
            struct hoccl_region_source s = {.address = memory[i], .bytes = sizeof memory[i], .dmabuf = -1};
            CHECK(!transport->region_add(end->endpoint, &s, &r[i]), "%s", hoccl_error_text());
        }
        for (int i = 0; i < 64; i++)
            transport->region_remove(end->endpoint, &r[i]);
        hoccl_fetch_add(&churn_rounds, 1u);
        sched_yield();
    }
    return NULL;
}

void case_region_threads(void)
{
    static struct line a, b;
    enum { PIECE = 1 << 16 };
    struct buffer f, t;
    pthread_t thread;
    both_open();
    pair_open(&a, &x, &b, &y, 1);
    buffer_open(&f, &x, MIB, 0, 1);
    buffer_open(&t, &y, 300 * PIECE, 0, 2);
    hoccl_publish(&churn_stop, 0);
    hoccl_publish(&churn_rounds, 0);
    CHECK(!pthread_create(&thread, NULL, churn, &y), "thread");
    pattern_fill(f.bytes, f.size, 9);
    for (uint32_t i = 0; i < 300; i++)
        give_write(&a, &y, &f, 0, t.region.key, i * PIECE, PIECE, i);
    UNTIL(&x, &y, b.arrived == 300 && a.written == 300 && hoccl_observe(&churn_rounds) > 2);
    hoccl_publish(&churn_stop, 1);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < 300; i++)
        CHECK(pattern_holds(t.bytes + i * PIECE, PIECE, 9), "bytes of write %zu differ", i);
    close_pair(&a, &b);
    buffer_close(&f);
    buffer_close(&t);
    both_close();
}
