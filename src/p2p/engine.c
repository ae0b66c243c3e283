/* SPDX-License-Identifier: Apache-2.0 */
/* The chunk queue of an engine (paper §3.4, "flow-size-aware chunk schedule", here in its simplest form: equal turns).
 * Figures behind the constants: 128 MiB chunks reach 0.99 of an engine's rate, 4 MiB ones 0.82 (two H200s).
 *
 * The flows of a collective are a party: they go one after another, in the order of their rotation as far as the grants
 * have come, with large chunks, since all of them must have ended before any of them counts. Parties take turns. */
#include "p2p/engine.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"

#include <string.h>

#define SHARED_CHUNK ((uint64_t)4 << 20)  /* when several transfers take turns */
#define AHEAD_BYTES ((uint64_t)16 << 20)  /* beyond two chunks, only so much is submitted ahead */

HOCCL_Result hoccl_engine_open(struct hoccl_engine *e, enum hoccl_direction direction, struct hoccl_flag_pool *flags,
                               struct hoccl_submitter *submitter)
{
    memset(e, 0, sizeof *e);
    hoccl_list_init(&e->queue);
    e->submitter = submitter;
    e->direction = direction;
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

/* The flows of an operation stand in one array, in their order, and their transfers with them. */
static void line_up(struct hoccl_transfer *first, struct hoccl_transfer *t)
{
    struct hoccl_list *l = first->behind.next;
    while (l != &first->behind && hoccl_entry(l, struct hoccl_transfer, link) < t)
        l = l->next;
    hoccl_list_append(l, &t->link);
}

void hoccl_engine_add(struct hoccl_engine *e, struct hoccl_transfer *t)
{
    hoccl_list_init(&t->behind);
    for (struct hoccl_list *l = e->queue.next; l != &e->queue && t->party; l = l->next) {
        struct hoccl_transfer *first = hoccl_entry(l, struct hoccl_transfer, link);
        if (first->party == t->party) {
            line_up(first, t);
            return;
        }
    }
    hoccl_list_append(&e->queue, &t->link);
}

/* The next of the party takes the place of its first. */
static void take_out(struct hoccl_engine *e, struct hoccl_transfer *t)
{
    hoccl_list_remove(&t->link);
    struct hoccl_list *next = hoccl_list_take(&t->behind);
    if (!next)
        return;
    hoccl_list_move(&hoccl_entry(next, struct hoccl_transfer, link)->behind, &t->behind);
    hoccl_list_append(&e->queue, next);
}

void hoccl_engine_cancel(struct hoccl_engine *e, struct hoccl_transfer *t)
{
    take_out(e, t);
}

static bool land(struct hoccl_engine *e)
{
    uint32_t done = hoccl_observe(e->done.host);
    bool moved = false;
    while (e->landed != e->given && hoccl_reached(done, e->landed + 1)) {
        struct hoccl_chunk *c = &e->window[++e->landed % HOCCL_WINDOW];
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
        moved = true;
    }
    if (moved)
        e->moved_at = hoccl_now();
    return moved;
}

static uint64_t chunk_size(const struct hoccl_engine *e, const struct hoccl_transfer *t)
{
    bool alone = e->queue.next == e->queue.prev;
    uint64_t most = alone || hoccl_settings.chunk < SHARED_CHUNK ? hoccl_settings.chunk : SHARED_CHUNK;
    uint64_t left = t->bytes - t->given;
    return left < most ? left : most;
}

/* Two chunks keep the engine busy; small ones may be more, so that their start-up costs overlap. */
static bool room(const struct hoccl_engine *e, uint64_t bytes)
{
    uint32_t n = e->given - e->landed;
    return n < 2 || (n < HOCCL_WINDOW && e->flight_bytes + bytes <= AHEAD_BYTES);
}

/* For tests: the fault of taking a chunk for landed when it has only been submitted. */
static void believe_landed(struct hoccl_chunk *c)
{
    c->transfer->landed += c->bytes;
    c->transfer->flight--;
    c->transfer = NULL;
}

static bool give(struct hoccl_engine *e, struct hoccl_transfer *t, uint64_t bytes)
{
    struct hoccl_chunk *c = &e->window[(e->given + 1) % HOCCL_WINDOW];
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
        e->moved_at = hoccl_now();
    t->given += bytes;
    t->flight++;
    e->flight_bytes += bytes;
    if (hoccl_settings.test_break == HOCCL_BREAK_EARLY_REUSE)
        believe_landed(c);
    return true;
}

bool hoccl_engine_step(struct hoccl_engine *e)
{
    bool moved = land(e);
    while (!hoccl_list_empty(&e->queue)) {
        struct hoccl_transfer *t = hoccl_entry(e->queue.next, struct hoccl_transfer, link);
        uint64_t bytes = chunk_size(e, t);
        if (!room(e, bytes) || !give(e, t, bytes))
            break;
        if (t->given == t->bytes)
            take_out(e, t);
        else {
            hoccl_list_remove(&t->link);
            hoccl_list_append(&e->queue, &t->link);
        }
        moved = true;
    }
    return moved;
}

uint64_t hoccl_engine_stalled(const struct hoccl_engine *e, uint64_t now)
{
    if (e->given == e->landed || now < e->moved_at)
        return 0;
    return now - e->moved_at;
}
