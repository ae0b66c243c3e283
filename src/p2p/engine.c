/* SPDX-License-Identifier: Apache-2.0 */
/* The chunk queue of an engine (paper §3.4, "flow-size-aware chunk schedule").
 *
 *   party: a message           ─┐
 *   party: a message            ├─ equal shares ──▶ chunk by chunk ──▶ engine
 *   party: a collective        ─┘
 *          stage 0: flow, flow     lower stages first; in a stage shares by size, so that its flows end together
 *          stage 1: flow
 *
 * A party that comes later begins at the present turn. A collective is one party, since all of it must have ended before
 * any of it counts; its flows stand there as far as the grants have come. */
#include "p2p/engine.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"

#include <string.h>

/* Of every party. Its virtual time is a length in bytes then, in units that 128 bits hold for 2^84 of them. */
#define PARTY_WEIGHT ((uint64_t)1 << 20)

HOCCL_Result hoccl_engine_open(struct hoccl_engine *e, enum hoccl_direction direction, struct hoccl_flag_pool *flags,
                               struct hoccl_submitter *submitter)
{
    memset(e, 0, sizeof *e);
    hoccl_list_init(&e->queue);
    e->submitter = submitter;
    e->direction = direction;
    hoccl_pace_init(&e->pace, hoccl_settings.chunk, (unsigned)hoccl_settings.share);
    HOCCL_Result r = hoccl_flag_take(flags, &e->done);
    if (r)
        return r;
    e->given = e->landed = (uint32_t)hoccl_settings.first_sequence;
    hoccl_publish(e->done.host, e->landed);
    if (direction == HOCCL_HOST)
        return HOCCL_SUCCESS;
    r = hoccl_driver_check(hoccl_driver.StreamCreateWithPriority(&e->stream, CU_STREAM_NON_BLOCKING, 0),
                           "a stream for the copy engine");
    if (r)
        hoccl_flag_give(flags, &e->done);
    return r;
}

void hoccl_engine_close(struct hoccl_engine *e, struct hoccl_flag_pool *flags)
{
    if (e->stream)
        hoccl_driver.StreamDestroy(e->stream);
    hoccl_flag_give(flags, &e->done);
}

/* ---- who is in the queue ----------------------------------------------------------------------------------------- */

static struct hoccl_transfer *at(struct hoccl_list *link)
{
    return hoccl_entry(link, struct hoccl_transfer, link);
}

/* Of a lower order than the first of its party: that is the second now. */
static void step_in_front(struct hoccl_transfer *first, struct hoccl_transfer *t)
{
    struct hoccl_list *place = first->link.next;
    hoccl_list_remove(&first->link);
    hoccl_list_move(&t->behind, &first->behind);
    hoccl_list_append(t->behind.next, &first->link);
    t->turn = first->turn;
    hoccl_share_join(&t->part, t->bytes, 0);
    hoccl_list_append(place, &t->link);
}

/* Behind those of the same or a lower order. One that has that order of the first shares with it from now on. */
static void line_up(struct hoccl_transfer *first, struct hoccl_transfer *t)
{
    struct hoccl_list *l = first->behind.prev;
    while (l != &first->behind && at(l)->order > t->order)
        l = l->prev;
    hoccl_list_append(l->next, &t->link);
    hoccl_share_join(&t->part, t->bytes, 0);
}

static struct hoccl_transfer *first_of_party(struct hoccl_engine *e, const void *party)
{
    for (struct hoccl_list *l = e->queue.next; l != &e->queue && party; l = l->next)
        if (at(l)->party == party)
            return at(l);
    return NULL;
}

static uint64_t ahead_of(const struct hoccl_engine *e, const struct hoccl_transfer *t)
{
    uint64_t bytes = 0;
    for (uint32_t n = e->landed; n != e->given; n++) {
        const struct hoccl_engine_chunk *c = &e->window[(n + 1) % HOCCL_WINDOW];
        bytes += !c->transfer || !t->party || c->transfer->party != t->party ? c->bytes : 0;
    }
    return bytes;
}

void hoccl_engine_add(struct hoccl_engine *e, struct hoccl_transfer *t)
{
    struct hoccl_transfer *first = first_of_party(e, t->party);
    hoccl_list_init(&t->behind);
    hoccl_pace_newcomer(&e->pace, t->bytes, ahead_of(e, t), hoccl_recently());
    if (first) {
        (t->order < first->order ? step_in_front : line_up)(first, t);
        return;
    }
    if (hoccl_list_empty(&e->queue))
        e->clock = 0;
    hoccl_share_join(&t->turn, PARTY_WEIGHT, e->clock);
    hoccl_share_join(&t->part, t->bytes, 0);
    hoccl_list_append(&e->queue, &t->link);
}

/* The next of the party takes the place of its first. */
static void take_out(struct hoccl_transfer *t)
{
    struct hoccl_list *next = hoccl_list_take(&t->behind), *place = t->link.next;
    hoccl_list_remove(&t->link);
    if (!next)
        return;
    hoccl_list_move(&at(next)->behind, &t->behind);
    at(next)->turn = t->turn;
    hoccl_list_append(place, next);
}

void hoccl_engine_cancel(struct hoccl_engine *e, struct hoccl_transfer *t)
{
    (void)e;
    take_out(t);
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

bool hoccl_engine_land(struct hoccl_engine *e)
{
    uint32_t done = hoccl_observe(e->done.host), first = e->landed + 1;
    uint64_t before = e->bytes, now;
    while (e->landed != e->given && hoccl_reached(done, e->landed + 1)) {
        struct hoccl_engine_chunk *c = &e->window[++e->landed % HOCCL_WINDOW];
        struct hoccl_transfer *t = c->transfer;
        CUresult result = (CUresult)hoccl_observe(&c->result);
        if (t) {
            t->result = t->result ? t->result : result;
            t->landed += c->bytes;
            t->flight--;
        }
        e->flight_bytes -= c->bytes;
        e->chunks++;
        e->bytes += c->bytes;
    }
    if (e->bytes == before)
        return false;
    now = hoccl_now();
    hoccl_pace_landed(&e->pace, e->bytes - before, now - e->moved_at, now, first == e->alone);
    if (first == e->alone && e->landed == first)
        hoccl_pace_alone(&e->pace, e->bytes - before, now - e->moved_at);
    e->moved_at = now;
    return true;
}

static struct hoccl_load load_of(const struct hoccl_engine *e)
{
    return (struct hoccl_load){.several = e->queue.next != e->queue.prev,
                               .chunks = e->given - e->landed,
                               .bytes = e->flight_bytes,
                               .since = e->moved_at,
                               .now = hoccl_recently()};
}

static uint64_t next_bytes(const struct hoccl_transfer *t, uint64_t most)
{
    uint64_t left = t->bytes - t->given;
    return left < most ? left : most;
}

/* Of the party's present stage, the one whose next chunk is due first. */
static struct hoccl_transfer *next_in_party(struct hoccl_transfer *first, uint64_t most)
{
    struct hoccl_transfer *best = first;
    for (struct hoccl_list *l = first->behind.next; l != &first->behind && at(l)->order == first->order; l = l->next)
        if (hoccl_share_due(&at(l)->part, next_bytes(at(l), most)) < hoccl_share_due(&best->part, next_bytes(best, most)))
            best = at(l);
    return best;
}

/* NULL: those that there are may not go on now. */
static struct hoccl_transfer *next_party(struct hoccl_engine *e, uint64_t most)
{
    struct hoccl_transfer *best = NULL;
    for (struct hoccl_list *l = e->queue.next; l != &e->queue; l = l->next)
        if (hoccl_hold_keeps(at(l)->hold))
            continue;
        else if (!best || hoccl_share_due(&at(l)->turn, next_bytes(at(l), most)) < hoccl_share_due(&best->turn, next_bytes(best, most)))
            best = at(l);
    return best;
}

/* For tests: the fault of taking a chunk for landed when it has only been submitted. */
static void believe_landed(struct hoccl_engine_chunk *c)
{
    c->transfer->landed += c->bytes;
    c->transfer->flight--;
    c->transfer = NULL;
}

/* The engine had nothing: a chunk of `bytes` is alone with it. */
static void begin(struct hoccl_engine *e, uint64_t bytes)
{
    uint64_t takes = hoccl_pace_takes(&e->pace, bytes);
    e->moved_at = hoccl_now();
    e->alone = e->given;
    e->ends = takes ? e->moved_at + takes : 0;
}

static bool give(struct hoccl_engine *e, struct hoccl_transfer *t, uint64_t bytes)
{
    struct hoccl_engine_chunk *c = &e->window[(e->given + 1) % HOCCL_WINDOW];
    struct hoccl_job job = {.kind = HOCCL_JOB_COPY,
                            .direction = e->direction,
                            .stream = e->stream,
                            .to = t->to + t->given,
                            .from = t->from + t->given,
                            .bytes = bytes,
                            .host_flag = e->done.host,
                            .flag = e->done.device,
                            .value = e->given + 1,
                            .result = &c->result};
    c->transfer = t;
    c->bytes = bytes;
    hoccl_poke(&c->result, 0);
    if (!hoccl_submitter_give(e->submitter, &job))
        return false;
    if (e->given++ == e->landed)
        begin(e, bytes);
    t->given += bytes;
    t->flight++;
    e->flight_bytes += bytes;
    if (hoccl_settings.test_break == HOCCL_BREAK_EARLY_REUSE)
        believe_landed(c);
    return true;
}

/* Give the chunk that is next; false if there is none, or no room. */
static bool give_next(struct hoccl_engine *e)
{
    unsigned __int128 part_clock = 0;
    if (hoccl_list_empty(&e->queue))
        return false;
    struct hoccl_load load = load_of(e);
    uint64_t most = hoccl_pace_chunk(&e->pace, &load);
    struct hoccl_transfer *first = next_party(e, most), *t = first ? next_in_party(first, most) : NULL;
    if (!t)
        return false;
    uint64_t bytes = next_bytes(t, most);
    if (load.chunks == HOCCL_WINDOW || !hoccl_pace_room(&e->pace, &load, bytes) || !give(e, t, bytes))
        return false;
    hoccl_pace_given(&e->pace, &load);
    hoccl_hold_passed(first->hold);
    hoccl_share_give(&first->turn, bytes, &e->clock);
    hoccl_share_give(&t->part, bytes, &part_clock);
    if (t->given == t->bytes)
        take_out(t);
    return true;
}

bool hoccl_engine_step(struct hoccl_engine *e)
{
    bool moved = hoccl_engine_land(e);
    while (give_next(e))
        moved = true;
    return moved;
}

uint64_t hoccl_engine_ends(const struct hoccl_engine *e)
{
    return e->given - e->landed == 1 && e->given == e->alone ? e->ends : 0;
}

uint64_t hoccl_engine_stalled(const struct hoccl_engine *e, uint64_t now)
{
    if (e->given == e->landed || now < e->moved_at)
        return 0;
    return now - e->moved_at;
}
