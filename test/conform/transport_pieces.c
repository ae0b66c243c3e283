/* SPDX-License-Identifier: Apache-2.0 */
/* Writes that a transport deals out over its lanes (cost.spread): by how many they go, that they arrive once and whole whatever the
 * order of their pieces, and what is left of them when the peer is killed. Of a transport that does not, the same but the lanes. */
#include "transport_cases.h"

#include "base/error.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Over how many lanes a write of so many bytes goes if nothing else is under way. */
static int lanes_of(size_t bytes, int lanes)
{
    size_t n = transport->cost.spread ? bytes / transport->cost.spread : 1;
    return n < 1 ? 1 : n < (size_t)lanes ? (int)n : lanes;
}

/* Each lane that took part has one piece more, of nearly the same size. */
static void check_lanes(const struct hoccl_lane_count *before, const struct hoccl_lane_count *after, int lanes, size_t bytes)
{
    uint64_t sum = 0, least = UINT64_MAX, most = 0;
    int used = 0;
    for (int i = 0; i < lanes; i++) {
        uint64_t n = after[i].bytes - before[i].bytes;
        if (after[i].writes == before[i].writes)
            continue;
        CHECK(after[i].writes == before[i].writes + 1 && n && !after[i].flight, "lane %d has several pieces of a write", i);
        used++;
        sum += n;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    CHECK(used == lanes_of(bytes, lanes), "%zu bytes went over %d of %d lanes, not %d", bytes, used, lanes, lanes_of(bytes, lanes));
    CHECK(sum == bytes && most - least < 2 * 4096, "%zu bytes in pieces of %llu to %llu", bytes, (unsigned long long)least,
          (unsigned long long)most);
}

void case_spread(void)
{
    static const char *const settings[] = {"1", "3", "8"};
    const size_t unit = transport->cost.spread ? transport->cost.spread : 128 << 10;
    const size_t sizes[] = {unit - 1, 2 * unit - 1, 2 * unit, 2 * unit + 1, 3 * unit, 5 * unit + 4097, MIB, 16 * MIB + 3};
    for (int s = 0; s < 3; s++) {
        static struct line a, b;
        struct buffer f, t;
        struct hoccl_lane_count before[HOCCL_LANES_MAX], after[HOCCL_LANES_MAX];
        uint64_t total = 0;
        set("HOCCL_LANES", settings[s]);
        both_open();
        pair_open(&a, &x, &b, &y, 1);
        buffer_open(&f, &x, 17 * MIB, 0, 1);
        buffer_open(&t, &y, 17 * MIB, 3, 2);
        pattern_fill(f.bytes, f.size, 1);
        for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t n = sizes[i];
            int lanes = transport->lanes(a.connection, before);
            memset(t.bytes, 0x5c, n + 1);
            give_write(&a, &y, &f, 0, t.region.key, 0, n, i);
            UNTIL(&x, &y, b.seen[i] && a.done[i] && transport->idle(a.connection));
            transport->lanes(a.connection, after);
            check_lanes(before, after, lanes, n);
            CHECK(!memcmp(t.bytes, f.bytes, n) && t.bytes[n] == 0x5c, "%zu bytes arrived otherwise", n);
            total += n;
            CHECK(b.arrived == i + 1 && a.written == i + 1 && b.arrived_bytes == total, "%u events for %u writes", b.arrived, i + 1);
        }
        close_pair(&a, &b);
        buffer_close(&f);
        buffer_close(&t);
        both_close();
    }
}

/* ---- many, of all sizes ------------------------------------------------------------------------------------------- */

enum { MIXED = 120 };
static size_t mixed_at[MIXED + 1];
static struct buffer mixed_in[2];

static void check_arrival(const struct buffer *in, uint32_t word, size_t bytes)
{
    CHECK(word < MIXED && bytes == mixed_at[word + 1] - mixed_at[word], "write %u has arrived with %zu bytes", word, bytes);
    CHECK(pattern_holds(in->bytes + mixed_at[word], bytes, word), "write %u was told before its bytes were there", word);
}

static void on_x(struct line *l, uint32_t word, size_t bytes)
{
    (void)l;
    check_arrival(&mixed_in[0], word, bytes);
}

static void on_y(struct line *l, uint32_t word, size_t bytes)
{
    (void)l;
    check_arrival(&mixed_in[1], word, bytes);
}

/* From bytes to 3 MiB, both ways, as many at once as there is room for: when one is told every byte of it is there, and all of
 * them once. */
void case_mixed(void)
{
    static struct line a, b;
    struct buffer out[2];
    uint64_t chance = 1;
    set("HOCCL_LANES", "5");
    both_open();
    pair_open(&a, &x, &b, &y, 1);
    for (int i = 0; i < MIXED; i++) {
        static const size_t most[] = {5000, 300000, MIB, 3 * MIB};
        chance = chance * 6364136223846793005u + 1442695040888963407u;
        mixed_at[i + 1] = mixed_at[i] + 1 + (size_t)(chance >> 33) % most[i % 4];
    }
    for (int k = 0; k < 2; k++) {
        buffer_open(&out[k], k ? &y : &x, mixed_at[MIXED], (size_t)k, 1);
        buffer_open(&mixed_in[k], k ? &y : &x, mixed_at[MIXED], 5, 2);
        for (uint32_t i = 0; i < MIXED; i++)
            pattern_fill(out[k].bytes + mixed_at[i], mixed_at[i + 1] - mixed_at[i], i);
    }
    a.on_arrived = on_x;
    b.on_arrived = on_y;
    for (uint32_t i = 0; i < MIXED; i++) {
        give_write(&a, &y, &out[0], mixed_at[i], mixed_in[1].region.key, mixed_at[i], mixed_at[i + 1] - mixed_at[i], i);
        give_write(&b, &x, &out[1], mixed_at[i], mixed_in[0].region.key, mixed_at[i], mixed_at[i + 1] - mixed_at[i], i);
    }
    UNTIL(&x, &y, a.arrived == MIXED && b.arrived == MIXED && a.written == MIXED && b.written == MIXED);
    for (int i = 0; i < MIXED; i++)
        CHECK(a.seen[i] == 1 && b.seen[i] == 1 && a.done[i] == 1 && b.done[i] == 1, "write %d", i);
    close_pair(&a, &b);
    for (int k = 0; k < 2; k++) {
        buffer_close(&out[k]);
        buffer_close(&mixed_in[k]);
    }
    both_close();
}

/* ---- a peer that is killed ---------------------------------------------------------------------------------------- */

static void swap(int in, int out, const void *own, void *theirs, size_t n)
{
    CHECK(write(out, own, n) == (ssize_t)n && read(in, theirs, n) == (ssize_t)n, "pipe: %m");
}

enum { PLACES = 16 }; /* for a MiB; a place is written again when a message says that what was for it has come */

/* One of two processes that write whole MiBs to each other, until `most` have come. */
static void write_at(struct end *end, struct line *l, struct buffer *out, struct buffer *in, int from, int to, bool dials,
                     unsigned most)
{
    struct hoccl_endpoint_card card;
    struct hoccl_region_key key;
    end_open(end);
    buffer_open(out, end, PLACES * MIB, 0, 1);
    buffer_open(in, end, PLACES * MIB, 0, 2);
    swap(from, to, &end->card, &card, sizeof card);
    swap(from, to, &in->region.key, &key, sizeof key);
    line_open(l, end, dials ? 2 : 3, &card);
    UNTIL(end, NULL, l->joined || l->broken);
    struct hoccl_write w = {.from = &out->region, .to = key, .bytes = MIB};
    unsigned said = 0;
    for (uint64_t give_up = end_deadline(); !l->broken && l->arrived < most;) {
        while (w.word - l->messages < PLACES && transport->write(l->connection, &w))
            w.offset = w.to_offset = ++w.word % PLACES * MIB;
        while (said < l->arrived && transport->message(l->connection, "m", 1))
            said++;
        end_poll(end);
        CHECK(!end_late(give_up), "nothing for %d s", LIMIT_S);
    }
}

/* The peer is killed while writes go both ways: the connection is BROKEN, and only whole writes were told. Its memory may go then. */
void case_killed(void)
{
    static struct line l;
    struct buffer out, in;
    if (!transport->cost.spread) /* and a device that a child cannot use */
        return;
    set("HOCCL_LANES", "4");
    for (int round = 0; round < 4; round++) {
        int up[2], down[2];
        CHECK(!pipe(up) && !pipe(down), "pipe: %m");
        fflush(stdout);
        pid_t child = fork();
        CHECK(child >= 0, "fork: %m");
        if (!child) {
            write_at(&y, &l, &out, &in, down[0], up[1], true, UINT32_MAX);
            _exit(1);
        }
        write_at(&x, &l, &out, &in, up[0], down[1], false, 3 + 5 * (unsigned)round);
        kill(child, SIGKILL);
        UNTIL(&x, NULL, l.broken || l.closed);
        CHECK(l.broken && strstr(l.text, "without a goodbye"), "%s", l.text);
        CHECK(l.arrived_bytes == l.arrived * MIB, "%u writes of %llu bytes", l.arrived, (unsigned long long)l.arrived_bytes);
        buffer_close(&in);
        buffer_close(&out);
        line_close(&l);
        end_close(&x);
        waitpid(child, NULL, 0);
        for (int i = 0; i < 2; i++)
            close(up[i]), close(down[i]);
    }
}
