/* SPDX-License-Identifier: Apache-2.0 */
/* See far.h. A message that finds no room waits in a queue of its own, so whoever says something need not come again. */
#define _GNU_SOURCE
#include "p2p/far.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "p2p/early.h"
#include "p2p/registered.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PACKET_MOST ((size_t)8192) /* of boot/gather.c: a head and a blob */

struct waiting_word {
    struct hoccl_list link;
    size_t bytes;
    char word[];
};

struct waiting_packet {
    struct hoccl_list link;
    size_t bytes;
    char packet[];
};

struct waiting_claim {
    struct hoccl_list link;
    uint32_t number;
    bool early;
    struct hoccl_flow_header header;
};

HOCCL_Result hoccl_far_make(struct hoccl_far **far)
{
    struct hoccl_far *f = hoccl_alloc(sizeof *f, "a connection");
    struct hoccl_board *b = hoccl_alloc_lines(sizeof *b, "a connection");
    if (!f || !b) {
        free(f);
        free(b);
        return HOCCL_ERR_MEMORY;
    }
    hoccl_list_init(&f->link);
    hoccl_list_init(&f->words);
    hoccl_list_init(&f->filled);
    hoccl_list_init(&f->packed);
    for (unsigned i = 0; i < HOCCL_FAR_TABLE; i++) {
        hoccl_list_init(&f->sends[i]);
        hoccl_list_init(&f->receives[i]);
        hoccl_list_init(&f->claims[i]);
    }
    f->board = b;
    f->packets = -1;
    f->ahead = 1;
    hoccl_publish(&b->status.state, HOCCL_BOARD_OPEN);
    *far = f;
    return HOCCL_SUCCESS;
}

static void forget_words(struct hoccl_far *far)
{
    struct hoccl_list *l;
    while ((l = hoccl_list_take(&far->words)))
        free(hoccl_entry(l, struct waiting_word, link));
}

void hoccl_far_free(struct hoccl_far *far)
{
    struct hoccl_list *l;
    if (!far)
        return;
    forget_words(far);
    while ((l = hoccl_list_take(&far->packed)))
        free(hoccl_entry(l, struct waiting_packet, link));
    for (unsigned i = 0; i < HOCCL_FAR_TABLE; i++)
        while ((l = hoccl_list_take(&far->claims[i])))
            free(hoccl_entry(l, struct waiting_claim, link));
    free(far->packet);
    free(far->board);
    free(far);
}

/* ---- the connection ---------------------------------------------------------------------------------------------- */

void hoccl_far_join(struct hoccl_far *far)
{
    struct hoccl_wire *w = far->wire;
    const struct hoccl_transport *t = w->transport;
    hoccl_list_remove(&far->link);
    hoccl_list_append(&w->fars, &far->link);
    hoccl_publish(&far->state, HOCCL_FAR_JOINING);
    HOCCL_Result r = t->connection_open(w->endpoint, far->id, far->name, far, &far->connection);
    if (!r)
        r = far->late ? t->summon(far->connection, &far->card) : t->join(far->connection, &far->card);
    hoccl_fetch_add(&hoccl_wire_counts.begun, 1);
    if (r)
        hoccl_far_broken(far, "%s", hoccl_error_text());
}

/* Nothing more comes or goes: the network holds nothing of ours. A peer that is calling finds nobody any more. */
static void end_connection(struct hoccl_far *far)
{
    if (far->connection)
        far->wire->transport->connection_close(far->connection);
    if (far->late && far->state == HOCCL_FAR_JOINING)
        far->wire->transport->decline(far->wire->endpoint, far->id);
    far->connection = NULL;
    far->lost += hoccl_wire_reclaim(far->wire, far);
    forget_words(far);
}

/* Who waits in hoccl_gather is told, and finds the reason in place. */
static void be_over(struct hoccl_far *far, uint32_t state)
{
    hoccl_publish(&far->state, state);
    if (far->packets >= 0)
        shutdown(far->packets, SHUT_RDWR);
}

void hoccl_far_closed(struct hoccl_far *far)
{
    if (hoccl_far_is_over(far))
        return;
    end_connection(far);
    if (hoccl_board_state(far->board) == HOCCL_BOARD_OPEN)
        hoccl_board_say(far->board, HOCCL_BOARD_CLOSED, NULL);
    be_over(far, HOCCL_FAR_CLOSED);
}

void hoccl_far_broken(struct hoccl_far *far, const char *format, ...)
{
    va_list arguments;
    if (hoccl_far_is_over(far))
        return;
    va_start(arguments, format);
    vsnprintf(far->text, sizeof far->text, format, arguments);
    va_end(arguments);
    end_connection(far);
    hoccl_log(HOCCL_LOG_INFO, "the connection to %s is broken: %s", far->name, far->text);
    be_over(far, HOCCL_FAR_BROKEN);
}

void hoccl_far_close(struct hoccl_far *far)
{
    hoccl_list_remove(&far->link);
    if (hoccl_observe(&far->state) == HOCCL_FAR_ENDED)
        return;
    end_connection(far);
    be_over(far, HOCCL_FAR_ENDED);
}

bool hoccl_far_flushed(const struct hoccl_far *far)
{
    if (!far->connection)
        return true;
    return hoccl_list_empty(&far->words) && hoccl_list_empty(&far->filled) && !far->writing &&
           far->wire->transport->idle(far->connection);
}

/* ---- what goes out ----------------------------------------------------------------------------------------------- */

static void wait_for_room(struct hoccl_far *far, struct hoccl_list *before, const void *word, size_t bytes)
{
    struct waiting_word *w = malloc(sizeof *w + bytes);
    if (!w) {
        hoccl_far_broken(far, "no memory for a message to %s", far->name);
        return;
    }
    w->bytes = bytes;
    memcpy(w->word, word, bytes);
    hoccl_list_append(before, &w->link);
}

void hoccl_far_say(struct hoccl_far *far, const void *word, size_t bytes)
{
    if (!far->connection && far->state != HOCCL_FAR_NEW)
        return;
    if (far->state >= HOCCL_FAR_JOINED && hoccl_list_empty(&far->words) &&
        far->wire->transport->message(far->connection, word, bytes))
        return;
    wait_for_room(far, &far->words, word, bytes);
}

void hoccl_far_greet(struct hoccl_far *far, const struct hoccl_word_hello *hello)
{
    wait_for_room(far, far->words.next, hello, sizeof *hello);
}

static bool flush_words(struct hoccl_far *far)
{
    bool moved = false;
    while (!hoccl_list_empty(&far->words)) {
        struct waiting_word *w = hoccl_entry(far->words.next, struct waiting_word, link);
        if (!far->wire->transport->message(far->connection, w->word, w->bytes))
            break;
        hoccl_list_remove(&w->link);
        free(w);
        moved = true;
    }
    return moved;
}

/* One chunk to the place that was granted for it; false if there is no room now. */
static bool write_slot(struct hoccl_far *far, struct hoccl_pool_slot *s)
{
    struct hoccl_wire *w = far->wire;
    struct hoccl_write write = {.from = s->from, .offset = s->from_offset, .to = s->to, .to_offset = s->to_offset,
                                .bytes = s->bytes, .word = s->word, .tag = s->number};
    if (!w->transport->write(far->connection, &write))
        return false;
    if (!far->writing++)
        far->moved_at = hoccl_now();
    hoccl_list_remove(&s->link);
    s->state = HOCCL_POOL_WRITING;
    hoccl_fetch_add(&hoccl_wire_counts.written, 1);
    if (w->fillings) {
        hoccl_fetch_add(&hoccl_wire_counts.overlaps, 1);
        if (hoccl_observe(&hoccl_wire_counts.emptying))
            hoccl_fetch_add(&hoccl_wire_counts.all_busy, 1);
    }
    return true;
}

bool hoccl_far_flush(struct hoccl_far *far)
{
    if (!far->connection || far->state < HOCCL_FAR_JOINED)
        return false;
    bool moved = flush_words(far);
    while (!hoccl_list_empty(&far->filled)) {
        if (!write_slot(far, hoccl_entry(far->filled.next, struct hoccl_pool_slot, link)))
            break;
        moved = true;
    }
    return moved;
}

/* ---- what comes in ----------------------------------------------------------------------------------------------- */

static void hear_hello(struct hoccl_far *far, const struct hoccl_word_hello *h)
{
    if (far->state != HOCCL_FAR_JOINED || h->head.number != HOCCL_WORDS_VERSION || h->slot_bytes != HOCCL_POOL_SLOT ||
        h->rank != (uint32_t)far->rank) {
        hoccl_far_broken(far, "%s greets with version %u, slots of %llu bytes, rank %u, where %u, %zu and %d were expected: all "
                         "ranks must run the same HOCCL", far->name, h->head.number, (unsigned long long)h->slot_bytes, h->rank,
                         HOCCL_WORDS_VERSION, HOCCL_POOL_SLOT, far->rank);
        return;
    }
    far->pool = h->pool;
    hoccl_publish(&far->state, HOCCL_FAR_OPEN);
}

/* One that does not agree is for the moment at which both streams are there: the mismatch is an error of these two operations, and
 * those before them may still go well. */
static bool is_for_later(const struct hoccl_flow *f, const struct hoccl_flow_header *theirs, bool early)
{
    return (early || f->wire.early) && !hoccl_flow_agrees(f, theirs);
}

static struct waiting_claim *find_claim(struct hoccl_far *far, uint32_t number)
{
    struct hoccl_list *head = &far->claims[number % HOCCL_FAR_TABLE];
    for (struct hoccl_list *l = head->next; l != head; l = l->next) {
        struct waiting_claim *w = hoccl_entry(l, struct waiting_claim, link);
        if (w->number == number)
            return w;
    }
    return NULL;
}

static void hear_claim(struct hoccl_far *far, const struct hoccl_word_claim *c)
{
    struct hoccl_flow *f = hoccl_wired_find(far->receives, c->head.number);
    hoccl_fetch_add(&hoccl_wire_counts.claimed, 1);
    if ((f && (f->wire.chunks || f->wire.answer)) || find_claim(far, c->head.number)) {
        hoccl_far_broken(far, "%s claims send %u twice, which makes no sense", far->name, c->head.number);
        return;
    }
    if (f && !is_for_later(f, &c->header, c->head.count)) {
        hoccl_wired_meet(f, &c->header, c->head.count);
        return;
    }
    struct waiting_claim *w = malloc(sizeof *w);
    if (!w) {
        hoccl_far_broken(far, "no memory for a claim of %s", far->name);
        return;
    }
    w->number = c->head.number;
    w->early = c->head.count;
    w->header = c->header;
    hoccl_list_append(&far->claims[w->number % HOCCL_FAR_TABLE], &w->link);
}

bool hoccl_far_claimed(struct hoccl_far *far, const struct hoccl_flow *flow, struct hoccl_flow_header *header, bool *early)
{
    struct waiting_claim *w = find_claim(far, flow->number);
    if (!w || is_for_later(flow, &w->header, w->early))
        return false;
    *header = w->header;
    *early = w->early;
    hoccl_list_remove(&w->link);
    free(w);
    return true;
}

/* The receive may have been given up, or have failed, meanwhile. */
static void hear_reached(struct hoccl_far *far, uint32_t number)
{
    struct hoccl_flow *f = hoccl_wired_find(far->receives, number);
    struct waiting_claim *w = find_claim(far, number);
    struct hoccl_flow_header theirs;
    bool early;
    if (w)
        w->early = false;
    if (f && hoccl_far_claimed(far, f, &theirs, &early))
        hoccl_wired_meet(f, &theirs, early);
    else if (f && f->wire.chunks && !f->wire.met)
        hoccl_early_met(f);
}

/* Numbers of slots of the in pool, or (into) of chunks of a registered buffer. */
static bool right_numbers(const uint32_t *words, unsigned n, bool into)
{
    unsigned mark = into ? HOCCL_PLACE_USER : 0;
    for (unsigned i = 0; i < n; i++)
        if (((words[i] & 0xffff) ^ mark) >= HOCCL_POOL_SLOTS)
            return false;
    return true;
}

/* Places for the next n chunks: slots, or (into) the receiver's buffer. For a send that has been given up in the meantime they
 * mean nothing. */
static void hear_places(struct hoccl_far *far, const struct hoccl_word_head *head, uint32_t chunk, bool early, const uint32_t *words,
                        const struct hoccl_destination *into)
{
    struct hoccl_flow *f = hoccl_wired_find(far->sends, head->number);
    unsigned n = head->count;
    if (!f)
        return;
    struct hoccl_flow_wire *p = &f->wire;
    uint64_t chunks = chunk ? (f->header.bytes + chunk - 1) / chunk : 0;
    bool good = chunks && chunk <= HOCCL_POOL_SLOT && n && p->granted - p->started + n <= HOCCL_GRANT_MOST &&
                p->granted + n <= chunks && (!p->chunk || p->chunk == chunk) && right_numbers(words, n, into);
    if (!good) {
        hoccl_far_broken(far, "%s grants %u places of %u bytes for chunk %u of send %u, which makes no sense", far->name, n, chunk,
                         p->granted, head->number);
        return;
    }
    if (into && !hoccl_registered_aim(f, n, into)) {
        hoccl_far_broken(far, "no memory for a grant of %s", far->name);
        return;
    }
    p->granted_at = hoccl_now();
    p->chunk = chunk;
    p->chunks = (uint32_t)chunks;
    for (unsigned i = 0; i < n; i++)
        p->slot[p->granted++ % HOCCL_GRANT_MOST] = words[i];
    hoccl_fetch_add(into ? &hoccl_wire_counts.allowed_into : &hoccl_wire_counts.allowed, n);
    p->met |= !early;
    if (!p->early)
        hoccl_wire_allow(far->wire, f);
}

static void hear_into(struct hoccl_far *far, const struct hoccl_word_into *g)
{
    struct hoccl_destination into = {g->region, g->offset};
    hear_places(far, &g->head, g->chunk, false, g->slot, &into);
}

static void hear_answer(struct hoccl_far *far, const struct hoccl_word_answer *a)
{
    struct hoccl_flow *f = hoccl_wired_find(far->sends, a->head.number);
    if (!f)
        return;
    if (a->head.count != HOCCL_ANSWER_MISMATCH && (a->head.count != HOCCL_ANSWER_DONE || f->header.bytes)) {
        hoccl_far_broken(far, "%s answers %u to send %u of %llu bytes, which makes no sense", far->name, a->head.count, a->head.number,
                         (unsigned long long)f->header.bytes);
        return;
    }
    f->wire.theirs = a->header;
    f->wire.answer = a->head.count;
}

static void hear_status(struct hoccl_far *far, const struct hoccl_word_status *s)
{
    if (hoccl_board_state(far->board) == HOCCL_BOARD_OPEN)
        hoccl_board_say(far->board, (enum hoccl_board_state)s->head.count, s->head.count == HOCCL_BOARD_FAILED ? s->text : NULL);
}

static void hear_totals(struct hoccl_far *far, const struct hoccl_word_totals *t)
{
    far->totals.sends = t->sends;
    far->totals.receives = t->receives;
    hoccl_publish(&far->totals.final, 1);
}

/* What has come whole is put where hoccl_gather reads, as far as there is room: this rank may come late to the call. */
static void deliver(struct hoccl_far *far)
{
    while (!hoccl_list_empty(&far->packed)) {
        struct waiting_packet *w = hoccl_entry(far->packed.next, struct waiting_packet, link);
        ssize_t sent = send(far->packets, w->packet, w->bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        hoccl_list_remove(&w->link); /* an error: nobody will read there any more */
        free(w);
    }
}

static void keep_packet(struct hoccl_far *far)
{
    struct waiting_packet *w = malloc(sizeof *w + far->packet_bytes);
    if (!w) {
        hoccl_far_broken(far, "no memory for a packet of %s", far->name);
        return;
    }
    w->bytes = far->packet_bytes;
    memcpy(w->packet, far->packet, w->bytes);
    hoccl_list_append(&far->packed, &w->link);
    deliver(far);
}

static void hear_packet(struct hoccl_far *far, const struct hoccl_word_packet *p)
{
    size_t left = p->head.number, n = p->head.count;
    if (!far->packet)
        far->packet = malloc(PACKET_MOST);
    if (!far->packet || far->packets < 0 || left > PACKET_MOST || n > left || n > HOCCL_PACKET_PIECE || far->packet_bytes + left > PACKET_MOST) {
        hoccl_far_broken(far, "a packet of %zu bytes of %s cannot be taken", left, far->name);
        return;
    }
    memcpy(far->packet + far->packet_bytes, p->bytes, n);
    far->packet_bytes += n;
    if (n < left)
        return;
    keep_packet(far);
    far->packet_bytes = 0;
}

/* Each kind has one length, but the pieces of packets and the slots of grants. */
static bool right_length(const struct hoccl_word_head *h, size_t bytes)
{
    switch (h->kind) {
    case HOCCL_WORD_HELLO:
        return bytes == sizeof(struct hoccl_word_hello);
    case HOCCL_WORD_CLAIM:
        return bytes == sizeof(struct hoccl_word_claim);
    case HOCCL_WORD_GRANT:
        return h->count <= HOCCL_GRANT_MOST && bytes == offsetof(struct hoccl_word_grant, slot) + h->count * sizeof(uint32_t);
    case HOCCL_WORD_INTO:
        return h->count <= HOCCL_GRANT_MOST && bytes == offsetof(struct hoccl_word_into, slot) + h->count * sizeof(uint32_t);
    case HOCCL_WORD_ANSWER:
        return bytes == sizeof(struct hoccl_word_answer);
    case HOCCL_WORD_STATUS:
        return bytes == sizeof(struct hoccl_word_status) &&
               memchr(((const struct hoccl_word_status *)h)->text, 0, HOCCL_STATUS_TEXT);
    case HOCCL_WORD_TOTALS:
        return bytes == sizeof(struct hoccl_word_totals);
    case HOCCL_WORD_PACKET:
        return bytes == sizeof *h + h->count;
    case HOCCL_WORD_ALIVE:
    case HOCCL_WORD_REACHED:
        return bytes == sizeof *h;
    }
    return false;
}

void hoccl_far_hear(struct hoccl_far *far, const void *word, size_t bytes)
{
    union {
        struct hoccl_word_head head;
        struct hoccl_word_hello hello;
        struct hoccl_word_claim claim;
        struct hoccl_word_grant grant;
        struct hoccl_word_into into;
        struct hoccl_word_answer answer;
        struct hoccl_word_status status;
        struct hoccl_word_totals totals;
        struct hoccl_word_packet packet;
        char bytes[HOCCL_MESSAGE_BYTES];
    } w; /* a transport's buffer need not be aligned */
    bool good = bytes >= sizeof w.head && bytes <= sizeof w;
    if (good) {
        memcpy(&w, word, bytes);
        good = right_length(&w.head, bytes) && (far->state == HOCCL_FAR_OPEN || w.head.kind == HOCCL_WORD_HELLO);
    }
    if (!good) {
        hoccl_far_broken(far, "a message of %zu bytes of %s is none of HOCCL's", bytes, far->name);
        return;
    }
    switch ((enum hoccl_word_kind)w.head.kind) {
    case HOCCL_WORD_HELLO:
        hear_hello(far, &w.hello);
        break;
    case HOCCL_WORD_CLAIM:
        hear_claim(far, &w.claim);
        break;
    case HOCCL_WORD_GRANT:
        hear_places(far, &w.head, w.grant.chunk, w.grant.early, w.grant.slot, NULL);
        break;
    case HOCCL_WORD_INTO:
        hear_into(far, &w.into);
        break;
    case HOCCL_WORD_ANSWER:
        hear_answer(far, &w.answer);
        break;
    case HOCCL_WORD_STATUS:
        hear_status(far, &w.status);
        break;
    case HOCCL_WORD_TOTALS:
        hear_totals(far, &w.totals);
        break;
    case HOCCL_WORD_PACKET:
        hear_packet(far, &w.packet);
        break;
    case HOCCL_WORD_REACHED:
        hear_reached(far, w.head.number);
        break;
    case HOCCL_WORD_ALIVE:
        break;
    }
}

/* ---- packets that go out ----------------------------------------------------------------------------------------- */

static void say_packet(struct hoccl_far *far, const char *packet, size_t bytes)
{
    struct hoccl_word_packet p = {.head.kind = HOCCL_WORD_PACKET};
    while (bytes) {
        size_t n = bytes < HOCCL_PACKET_PIECE ? bytes : HOCCL_PACKET_PIECE;
        p.head.count = (uint16_t)n;
        p.head.number = (uint32_t)bytes;
        memcpy(p.bytes, packet, n);
        hoccl_far_say(far, &p, sizeof p.head + n);
        packet += n;
        bytes -= n;
    }
}

bool hoccl_far_pump(struct hoccl_far *far)
{
    char packet[PACKET_MOST];
    ssize_t n;
    deliver(far);
    if (hoccl_far_is_over(far))
        return true;
    if (!hoccl_far_is_open(far))
        return false;
    while ((n = recv(far->packets, packet, sizeof packet, MSG_DONTWAIT)) > 0)
        say_packet(far, packet, (size_t)n);
    return true;
}
