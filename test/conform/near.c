/* SPDX-License-Identifier: Apache-2.0 */
/* See near.h. One lock for everything; the carrier thread delivers what is due: messages of a connection in order, writes in
 * any. A write into memory of a GPU that does not order what NICs write for who reads it (near.late) is reported, and lands
 * later:
 *
 *   parcels ──due: ARRIVED──▶ held ──due again, or a flush of that region, or its connection ends──▶ the bytes, WRITTEN */
#define _GNU_SOURCE
#include "near_bus.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"
#include "p2p/words.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hoccl_endpoint {
    struct hoccl_list link;
    uint64_t number;
    struct hoccl_doorbell *bell;
    struct hoccl_list news, old; /* events to be polled; those polled last, whose messages may still be read */
};

enum { NEW, JOINING, JOINED, OVER };

struct hoccl_connection {
    struct hoccl_list link;
    struct hoccl_endpoint *endpoint;
    struct hoccl_connection *peer;
    uint64_t id, to; /* to: the endpoint that it wants */
    void *context;
    int state;
    unsigned flight, turn;
    struct hoccl_lane_count lane[NEAR_LANES];
};

struct news {
    struct hoccl_list link;
    struct hoccl_connection *of;
    struct hoccl_transport_event event;
    char bytes[HOCCL_MESSAGE_BYTES];
};

struct parcel {
    struct hoccl_list link;
    struct hoccl_connection *from; /* NULL: a flush */
    struct hoccl_endpoint *flusher;
    const struct near_region *flushed;
    bool is_write;
    uint64_t due;
    int lane;
    struct hoccl_write write;
    size_t count;
    char bytes[HOCCL_MESSAGE_BYTES];
};

struct near_weather near;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct hoccl_list endpoints = {&endpoints, &endpoints}, connections = {&connections, &connections},
                         parcels = {&parcels, &parcels}, held = {&held, &held};
static uint64_t numbers, chance = 88172645463325252u, carried[NEAR_LANES];
static bool carrying;

static uint64_t draw(void)
{
    chance ^= chance << 13;
    chance ^= chance >> 7;
    return chance ^= chance << 17;
}

static void *take_memory(size_t n)
{
    void *p = calloc(1, n);
    if (!p)
        abort();
    return p;
}

/* ---- news, under the lock ---------------------------------------------------------------------------------------- */

static struct news *tell_endpoint(struct hoccl_endpoint *e, enum hoccl_transport_event_kind kind)
{
    struct news *n = take_memory(sizeof *n);
    n->event = (struct hoccl_transport_event){.kind = kind};
    hoccl_list_append(&e->news, &n->link);
    hoccl_doorbell_ring(e->bell);
    return n;
}

static struct news *tell(struct hoccl_connection *c, enum hoccl_transport_event_kind kind)
{
    struct news *n = tell_endpoint(c->endpoint, kind);
    n->of = c;
    n->event.context = c->context;
    return n;
}

/* The bytes are in place, and the sender's memory is free. */
static void land(struct parcel *p)
{
    struct hoccl_connection *c = p->from;
    const struct hoccl_write *w = &p->write;
    near_copy(w);
    c->lane[p->lane].writes++;
    c->lane[p->lane].bytes += w->bytes;
    c->lane[p->lane].flight--;
    carried[p->lane] += w->bytes;
    tell(c, HOCCL_TRANSPORT_WRITTEN)->event.tag = w->tag;
    c->flight--;
    free(p);
}

/* What is held for these connections, for this region, or long enough: it lands. */
static void land_held(const struct hoccl_connection *one, const struct hoccl_connection *other, const struct near_region *region,
                      uint64_t now)
{
    struct hoccl_list *next;
    for (struct hoccl_list *l = held.next; l != &held; l = next) {
        struct parcel *p = hoccl_entry(l, struct parcel, link);
        bool theirs = p->from == one || p->from == other;
        next = l->next;
        if (!theirs && p->due > now && (!region || near_region_at(p->write.to.address + p->write.to_offset) != region))
            continue;
        hoccl_list_remove(l);
        land(p);
    }
}

static void drop_parcels(struct hoccl_connection *c)
{
    struct hoccl_list *next;
    land_held(c, c->peer ? c->peer : c, NULL, 0);
    for (struct hoccl_list *l = parcels.next; l != &parcels; l = next) {
        struct parcel *p = hoccl_entry(l, struct parcel, link);
        next = l->next;
        if (!p->from || (p->from != c && p->from != c->peer))
            continue;
        hoccl_list_remove(l);
        free(p);
    }
    c->flight = 0;
    if (c->peer)
        c->peer->flight = 0;
}

static void break_one(struct hoccl_connection *c)
{
    struct news *n;
    if (!c || c->state == OVER)
        return;
    c->state = OVER;
    n = tell(c, HOCCL_TRANSPORT_BROKEN);
    snprintf(n->bytes, sizeof n->bytes, "the test has cut connection %llx", (unsigned long long)c->id);
    n->event.text = n->bytes;
}

static void break_both(struct hoccl_connection *c)
{
    drop_parcels(c);
    break_one(c);
    break_one(c->peer);
}

static void deliver(struct parcel *p)
{
    struct hoccl_connection *c = p->from, *peer = c->peer;
    struct news *n;
    if (near.break_after && !--near.break_after) {
        free(p);
        break_both(c);
        return;
    }
    if (!p->is_write) {
        n = tell(peer, HOCCL_TRANSPORT_MESSAGE);
        memcpy(n->bytes, p->bytes, p->count);
        n->event.message = n->bytes;
        n->event.bytes = p->count;
        c->flight--;
        free(p);
        return;
    }
    n = tell(peer, HOCCL_TRANSPORT_ARRIVED);
    n->event.word = p->write.word;
    n->event.bytes = p->write.bytes;
    const struct near_region *there = near_region_at(p->write.to.address + p->write.to_offset);
    near_counts.unordered += there && there->unordered;
    if (near.late && there && there->unordered) {
        p->due = hoccl_now() + near.late * HOCCL_US;
        hoccl_list_append(&held, &p->link);
    } else {
        land(p);
    }
}

/* What has arrived in the region is there, unless the weather is against it. */
static void deliver_flush(struct parcel *p)
{
    struct news *n = tell_endpoint(p->flusher, HOCCL_TRANSPORT_FLUSHED);
    n->event.tag = p->write.tag;
    if (near.fail_flush && !--near.fail_flush)
        n->event.text = "the test lets this flush fail";
    else
        land_held(NULL, NULL, p->flushed, 0);
    free(p);
}

/* ---- the carrier ------------------------------------------------------------------------------------------------- */

static bool behind_another(const struct parcel *p)
{
    for (struct hoccl_list *l = parcels.next; l != &p->link && !p->is_write && p->from; l = l->next) {
        const struct parcel *q = hoccl_entry(l, struct parcel, link);
        if (!q->is_write && q->from && q->from == p->from)
            return true;
    }
    return false;
}

static struct parcel *next_due(uint64_t now)
{
    for (struct hoccl_list *l = parcels.next; l != &parcels; l = l->next) {
        struct parcel *p = hoccl_entry(l, struct parcel, link);
        if (p->due <= now && !behind_another(p))
            return p;
    }
    return NULL;
}

static bool stalled; /* under the lock: the carrier looks also while nothing runs, if something is never to be delivered */

static void *carry(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        uint64_t now = hoccl_now();
        struct parcel *p = stalled ? NULL : next_due(now);
        land_held(NULL, NULL, NULL, now);
        if (p) {
            hoccl_list_remove(&p->link);
            if (p->from)
                deliver(p);
            else
                deliver_flush(p);
        } else if (hoccl_list_empty(&parcels) && hoccl_list_empty(&held)) {
            pthread_cond_wait(&work, &lock);
        } else {
            pthread_mutex_unlock(&lock);
            hoccl_sleep(10 * HOCCL_US);
            pthread_mutex_lock(&lock);
        }
    }
    return NULL;
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

static HOCCL_Result near_open(const struct hoccl_endpoint_wish *wish, struct hoccl_endpoint **endpoint,
                              struct hoccl_endpoint_card *card)
{
    pthread_t thread;
    if (near.fail_open)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "the test lets no endpoint open");
    struct hoccl_endpoint *e = take_memory(sizeof *e);
    pthread_mutex_lock(&lock);
    e->number = ++numbers;
    e->bell = wish->bell;
    hoccl_list_init(&e->news);
    hoccl_list_init(&e->old);
    hoccl_list_append(&endpoints, &e->link);
    if (!carrying && !pthread_create(&thread, NULL, carry, NULL))
        carrying = !pthread_detach(thread);
    pthread_mutex_unlock(&lock);
    memset(card, 0, sizeof *card);
    strcpy(card->transport, "near");
    memcpy(card->bytes, &e->number, sizeof e->number);
    *endpoint = e;
    return HOCCL_SUCCESS;
}

static void free_news(struct hoccl_list *list)
{
    struct hoccl_list *l;
    while ((l = hoccl_list_take(list)))
        free(hoccl_entry(l, struct news, link));
}

static void near_close(struct hoccl_endpoint *e)
{
    struct hoccl_list *next;
    pthread_mutex_lock(&lock);
    for (struct hoccl_list *l = parcels.next; l != &parcels; l = next) {
        struct parcel *p = hoccl_entry(l, struct parcel, link);
        next = l->next;
        if (p->flusher != e)
            continue;
        hoccl_list_remove(l);
        free(p);
    }
    hoccl_list_remove(&e->link);
    free_news(&e->news);
    free_news(&e->old);
    pthread_mutex_unlock(&lock);
    free(e);
}

static void near_describe(const struct hoccl_endpoint *e, char *text, size_t bytes)
{
    snprintf(text, bytes, "the test's transport, endpoint %llu", (unsigned long long)e->number);
}

static HOCCL_Result near_connection_open(struct hoccl_endpoint *e, uint64_t id, const char *name, void *context,
                                         struct hoccl_connection **connection)
{
    struct hoccl_connection *c = take_memory(sizeof *c);
    (void)name;
    *c = (struct hoccl_connection){.endpoint = e, .id = id, .context = context, .state = NEW};
    pthread_mutex_lock(&lock);
    hoccl_list_append(&connections, &c->link);
    pthread_mutex_unlock(&lock);
    *connection = c;
    return HOCCL_SUCCESS;
}

static HOCCL_Result near_join(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer)
{
    uint64_t number;
    memcpy(&number, peer->bytes, sizeof number);
    pthread_mutex_lock(&lock);
    c->state = JOINING;
    c->to = number;
    for (struct hoccl_list *l = connections.next; l != &connections; l = l->next) {
        struct hoccl_connection *d = hoccl_entry(l, struct hoccl_connection, link);
        if (d->id != (c->id ^ 1) || d->state != JOINING || d->endpoint->number != number)
            continue;
        c->peer = d;
        d->peer = c;
        c->state = d->state = JOINED;
        tell(c, HOCCL_TRANSPORT_JOINED);
        tell(d, HOCCL_TRANSPORT_JOINED);
        break;
    }
    pthread_mutex_unlock(&lock);
    return HOCCL_SUCCESS;
}

static HOCCL_Result near_summon(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer)
{
    bool found = false;
    near_join(c, peer);
    pthread_mutex_lock(&lock);
    for (struct hoccl_list *l = endpoints.next; l != &endpoints && c->state == JOINING; l = l->next) {
        struct hoccl_endpoint *e = hoccl_entry(l, struct hoccl_endpoint, link);
        if (e->number != c->to)
            continue;
        found = true;
        tell_endpoint(e, HOCCL_TRANSPORT_CALLED)->event.tag = c->id & ~(uint64_t)1;
    }
    if (c->state == JOINING && !found)
        break_one(c);
    pthread_mutex_unlock(&lock);
    return HOCCL_SUCCESS;
}

static void near_decline(struct hoccl_endpoint *e, uint64_t id)
{
    pthread_mutex_lock(&lock);
    for (struct hoccl_list *l = connections.next; l != &connections; l = l->next) {
        struct hoccl_connection *c = hoccl_entry(l, struct hoccl_connection, link);
        if (c->state == JOINING && c->to == e->number && (c->id | 1) == (id | 1))
            break_one(c);
    }
    pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static struct parcel *new_parcel(struct hoccl_connection *c, bool is_write)
{
    struct parcel *p = take_memory(sizeof *p);
    uint64_t late = near.delay + (near.jitter ? draw() % near.jitter : 0);
    p->from = c;
    p->is_write = is_write;
    p->due = hoccl_now() + late * HOCCL_US;
    if (c)
        c->flight++;
    hoccl_list_append(&parcels, &p->link);
    pthread_cond_signal(&work);
    return p;
}

static bool refused(const struct hoccl_connection *c)
{
    return c->state != JOINED || draw() % 100 < near.refuse;
}

/* Under the lock: does the weather let it come? */
static bool comes(const struct hoccl_word_head *word)
{
    bool alive = word->kind == HOCCL_WORD_ALIVE;
    near_counts.alive += alive;
    return !alive || !near.mute;
}

static bool near_message(struct hoccl_connection *c, const void *bytes, size_t count)
{
    pthread_mutex_lock(&lock);
    bool good = !refused(c) && count <= HOCCL_MESSAGE_BYTES;
    for (bool more = good && comes(bytes), first = true; more; first = false) {
        struct parcel *p = new_parcel(c, false);
        p->count = count;
        memcpy(p->bytes, bytes, count);
        more = first && near.forge && near.forge(p->bytes, &p->count);
    }
    pthread_mutex_unlock(&lock);
    return good;
}

static bool near_write(struct hoccl_connection *c, const struct hoccl_write *write)
{
    pthread_mutex_lock(&lock);
    bool good = !refused(c) && c->flight < 64;
    if (good) {
        struct parcel *p = new_parcel(c, true);
        if (write->to.key != NEAR_KEY || !write->bytes)
            abort();
        p->write = *write;
        p->lane = (int)(c->turn++ % NEAR_LANES);
        struct hoccl_lane_count *n = &c->lane[p->lane];
        if (++n->flight > n->most)
            n->most = n->flight;
    }
    pthread_mutex_unlock(&lock);
    return good;
}

static bool near_flush(struct hoccl_endpoint *e, const struct hoccl_region *region, size_t offset, uint64_t tag)
{
    const struct near_region *r = region->own;
    if (offset >= r->bytes)
        abort();
    pthread_mutex_lock(&lock);
    bool good = draw() % 100 >= near.refuse;
    if (good) {
        struct parcel *p = new_parcel(NULL, false);
        p->flusher = e;
        p->flushed = r;
        p->write.tag = tag;
        p->due = near.lose_flush && !--near.lose_flush ? UINT64_MAX : p->due;
        near_counts.flushes++;
    }
    pthread_mutex_unlock(&lock);
    return good;
}

static bool near_idle(const struct hoccl_connection *c)
{
    pthread_mutex_lock(&lock);
    bool idle = !c->flight;
    pthread_mutex_unlock(&lock);
    return idle;
}

static void near_connection_close(struct hoccl_connection *c)
{
    struct hoccl_list *next;
    pthread_mutex_lock(&lock);
    drop_parcels(c);
    for (struct hoccl_list *l = c->endpoint->news.next; l != &c->endpoint->news; l = next) {
        struct news *n = hoccl_entry(l, struct news, link);
        next = l->next;
        if (n->of != c)
            continue;
        hoccl_list_remove(l);
        free(n);
    }
    if (c->peer) {
        if (c->peer->state != OVER)
            tell(c->peer, HOCCL_TRANSPORT_CLOSED);
        c->peer->state = OVER;
        c->peer->peer = NULL;
    }
    hoccl_list_remove(&c->link);
    pthread_mutex_unlock(&lock);
    free(c);
}

static int near_lane_counts(const struct hoccl_connection *c, struct hoccl_lane_count count[HOCCL_LANES_MAX])
{
    memcpy(count, c->lane, sizeof c->lane);
    return NEAR_LANES;
}

static int near_poll(struct hoccl_endpoint *e, struct hoccl_transport_event *events, int most)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    free_news(&e->old);
    while (n < most && !hoccl_list_empty(&e->news)) {
        struct hoccl_list *l = hoccl_list_take(&e->news);
        hoccl_list_append(&e->old, l);
        events[n++] = hoccl_entry(l, struct news, link)->event;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static bool near_arm(struct hoccl_endpoint *e)
{
    pthread_mutex_lock(&lock);
    bool any = !hoccl_list_empty(&e->news);
    pthread_mutex_unlock(&lock);
    return any;
}

const struct hoccl_transport near_transport = {
    .name = "near",
    .cost = {.start = 2000, .lane = 333, .link = 30, .late = 15000},
    .takes_gpu = true,
    .open = near_open,
    .close = near_close,
    .describe = near_describe,
    .connection_open = near_connection_open,
    .join = near_join,
    .summon = near_summon,
    .decline = near_decline,
    .message = near_message,
    .write = near_write,
    .flush = near_flush,
    .idle = near_idle,
    .connection_close = near_connection_close,
    .lanes = near_lane_counts,
    .region_add = near_region_add,
    .region_remove = near_region_remove,
    .poll = near_poll,
    .arm = near_arm,
};

void near_break(unsigned n)
{
    pthread_mutex_lock(&lock);
    near.break_after = n;
    pthread_mutex_unlock(&lock);
}

void near_stall(bool stall)
{
    pthread_mutex_lock(&lock);
    stalled = stall;
    pthread_mutex_unlock(&lock);
}

void near_lanes(uint64_t bytes[NEAR_LANES])
{
    pthread_mutex_lock(&lock);
    memcpy(bytes, carried, sizeof carried);
    pthread_mutex_unlock(&lock);
}

int near_left(void)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    for (struct hoccl_list *l = endpoints.next; l != &endpoints; l = l->next)
        n++;
    for (struct hoccl_list *l = connections.next; l != &connections; l = l->next)
        n++;
    for (struct hoccl_list *l = parcels.next; l != &parcels; l = l->next)
        n++;
    for (struct hoccl_list *l = held.next; l != &held; l = l->next)
        n++;
    pthread_mutex_unlock(&lock);
    return n;
}
