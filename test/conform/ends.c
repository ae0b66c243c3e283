/* SPDX-License-Identifier: Apache-2.0 */
#include "ends.h"

#include "base/clock.h"
#include "base/error.h"

#include <dirent.h>
#include <sched.h>
#include <string.h>

const struct hoccl_transport *transport;
uint8_t test_cookie[16] = "a test's cookie";

/* The devices that TEST_NICS names ("rxe0 rxe1"), in turn; NULL: the transport's own choice. */
static const char *next_nic(void)
{
    static char nic[2][32];
    static unsigned turn;
    const char *both = getenv("TEST_NICS");
    if (!both || sscanf(both, "%31s %31s", nic[0], nic[1]) != 2)
        return NULL;
    return nic[turn++ % 2];
}

void end_open(struct end *end)
{
    struct hoccl_endpoint_wish wish = {.bell = &end->bell, .nic = next_nic()};
    memset(end, 0, sizeof *end);
    memcpy(wish.cookie, test_cookie, sizeof wish.cookie);
    HOCCL_Result r = transport->open(&wish, &end->endpoint, &end->card);
    CHECK(!r, "open: %s", hoccl_error_text());
}

void end_close(struct end *end)
{
    transport->close(end->endpoint);
}

static void record(struct line *l, const struct hoccl_transport_event *e)
{
    CHECK(!l->closed && !l->broken, "an event of kind %d after the end of its connection", e->kind);
    CHECK(l->joined || e->kind == HOCCL_TRANSPORT_JOINED || e->kind == HOCCL_TRANSPORT_BROKEN, "event %d before JOINED", e->kind);
    switch (e->kind) {
    case HOCCL_TRANSPORT_JOINED:
        CHECK(!l->joined, "joined twice");
        l->joined = true;
        break;
    case HOCCL_TRANSPORT_MESSAGE:
        CHECK(e->bytes <= sizeof l->last, "a message of %zu bytes", e->bytes);
        memcpy(l->last, e->message, e->bytes);
        if (!l->messages)
            memcpy(l->first, e->message, e->bytes);
        l->last_bytes = e->bytes;
        l->messages++;
        if (l->on_message)
            l->on_message(l, e->message, e->bytes);
        break;
    case HOCCL_TRANSPORT_WRITTEN:
        l->written++;
        l->done[e->tag % WORDS]++;
        break;
    case HOCCL_TRANSPORT_ARRIVED:
        l->arrived++;
        l->arrived_bytes += e->bytes;
        l->seen[e->word % WORDS]++;
        break;
    case HOCCL_TRANSPORT_CLOSED:
        l->closed = true;
        break;
    case HOCCL_TRANSPORT_BROKEN:
        l->broken = true;
        snprintf(l->text, sizeof l->text, "%s", e->text);
        break;
    case HOCCL_TRANSPORT_FLUSHED:
    case HOCCL_TRANSPORT_CALLED:
        CHECK(false, "event %d of a connection", e->kind);
        break;
    }
}

static void record_flush(struct end *end, const struct hoccl_transport_event *e)
{
    CHECK(!e->context, "a flush of a connection");
    end->flush[e->tag % WORDS]++;
    end->flushed += !e->text;
    end->unflushed += e->text != NULL;
    if (e->text)
        snprintf(end->why, sizeof end->why, "%s", e->text);
}

static void record_call(struct end *end, const struct hoccl_transport_event *e)
{
    CHECK(!e->context, "CALLED is of no connection");
    end->called++;
    end->called_id = e->tag;
}

void end_poll(struct end *end)
{
    struct hoccl_transport_event e[32];
    int n = transport->poll(end->endpoint, e, 32);
    CHECK(n >= 0 && n <= 32, "poll returned %d", n);
    for (int i = 0; i < n; i++) {
        if (e[i].kind == HOCCL_TRANSPORT_FLUSHED)
            record_flush(end, &e[i]);
        else if (e[i].kind == HOCCL_TRANSPORT_CALLED)
            record_call(end, &e[i]);
        else
            record(e[i].context, &e[i]);
    }
    end->events += (unsigned)n;
    if (!n)
        sched_yield();
}

void ends_poll(struct end *end, struct end *other)
{
    end_poll(end);
    if (other)
        end_poll(other);
}

void line_open(struct line *line, struct end *end, uint64_t id, const struct hoccl_endpoint_card *card)
{
    memset(line, 0, sizeof *line);
    line->end = end;
    HOCCL_Result r = transport->connection_open(end->endpoint, id, id & 1 ? "rank 0 (here)" : "rank 1 (there)", line, &line->connection);
    CHECK(!r, "connection_open: %s", hoccl_error_text());
    r = card ? transport->join(line->connection, card) : HOCCL_SUCCESS;
    CHECK(!r, "join: %s", hoccl_error_text());
}

void line_close(struct line *line)
{
    transport->connection_close(line->connection);
    line->connection = NULL;
}

void pair_open(struct line *a, struct end *x, struct line *b, struct end *y, uint64_t number)
{
    line_open(a, x, 2 * number, &y->card);
    line_open(b, y, 2 * number + 1, &x->card);
    UNTIL(x, y, (a->joined || a->broken) && (b->joined || b->broken));
    CHECK(!a->broken && !b->broken, "%s %s", a->text, b->text);
}

uint64_t end_deadline(void)
{
    return hoccl_now() + LIMIT_S * HOCCL_S;
}

bool end_late(uint64_t deadline)
{
    return hoccl_now() > deadline;
}

#define GUARD 4096

void buffer_open(struct buffer *b, struct end *end, size_t size, size_t odd, int fill)
{
    *b = (struct buffer){.size = size, .odd = odd, .end = end};
    b->whole = aligned_alloc(4096, (size + odd + 3 * GUARD) / 4096 * 4096);
    CHECK(b->whole, "no memory");
    b->bytes = b->whole + GUARD + odd;
    memset(b->whole, 0xa5, GUARD + odd);
    memset(b->bytes, fill, size);
    memset(b->bytes + size, 0xa5, GUARD);
    struct hoccl_region_source s = {.address = b->bytes, .bytes = size, .dmabuf = -1};
    HOCCL_Result r = transport->region_add(end->endpoint, &s, &b->region);
    CHECK(!r, "region_add: %s", hoccl_error_text());
}

void buffer_guards(const struct buffer *b)
{
    for (size_t i = 0; i < GUARD + b->odd; i++)
        CHECK((uint8_t)b->whole[i] == 0xa5, "byte %zu before the buffer was written", GUARD + b->odd - i);
    for (size_t i = 0; i < GUARD; i++)
        CHECK((uint8_t)b->bytes[b->size + i] == 0xa5, "byte %zu behind the buffer was written", i);
}

void buffer_close(struct buffer *b)
{
    buffer_guards(b);
    transport->region_remove(b->end->endpoint, &b->region);
    free(b->whole);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void pattern_fill(char *bytes, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = mix(seed * 0x9e3779b97f4a7c15u + i);
        memcpy(bytes + i, &v, n - i < 8 ? n - i : 8);
    }
}

bool pattern_holds(const char *bytes, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = mix(seed * 0x9e3779b97f4a7c15u + i);
        if (memcmp(bytes + i, &v, n - i < 8 ? n - i : 8))
            return false;
    }
    return true;
}

void give_write(struct line *line, struct end *other, const struct buffer *from, size_t offset, struct hoccl_region_key to,
                size_t to_offset, size_t bytes, uint32_t word)
{
    struct hoccl_write w = {.from = &from->region, .offset = offset, .to = to, .to_offset = to_offset, .bytes = bytes, .word = word,
                            .tag = word};
    UNTIL(line->end, other, line->broken || transport->write(line->connection, &w));
}

void give_message(struct line *line, struct end *other, const void *bytes, size_t count)
{
    UNTIL(line->end, other, line->broken || transport->message(line->connection, bytes, count));
}

static int entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    CHECK(d, "%s", path);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

int process_descriptors(void)
{
    return entries("/proc/self/fd");
}

int process_threads(void)
{
    return entries("/proc/self/task");
}

long process_memory(void)
{
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%ld %ld", &size, &resident) == 2, "statm");
    fclose(f);
    return resident * 4;
}
