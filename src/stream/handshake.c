/* SPDX-License-Identifier: Apache-2.0 */
/* See handshake.h for the protocol. Both halves cost the calling thread the same whatever the message's size. */
#include "stream/handshake.h"

#include "base/atomic.h"
#include "base/setting.h"

#include <string.h>

/* How far beyond anything posted an abort sets the end flag: half the cyclic order. */
#define FAR_AHEAD (1u << 30)

/* After so many ungated turns the 16-bit flag is set anew before it is used, lest an old value pass for a new one. */
#define STALE 1024

static void begin(struct hoccl_handshake *h, const struct hoccl_flag_set *set, CUstream stream, unsigned long long id)
{
    *h = (struct hoccl_handshake){.stream = stream, .stream_id = id, .start = set->start, .start16 = set->start16, .end = set->end};
    h->posted = hoccl_peek(h->end.host) + (uint32_t)hoccl_settings.first_sequence;
    h->last_gated = h->posted - STALE;
    hoccl_publish(h->start.host, h->posted);
    hoccl_publish(h->end.host, h->posted);
}

HOCCL_Result hoccl_handshake_open(struct hoccl_handshake *h, CUstream stream, unsigned long long id,
                                  struct hoccl_flag_pool *flags)
{
    struct hoccl_flag_set set;
    HOCCL_Result r = hoccl_flag_set_take(flags, &set);
    if (!r)
        begin(h, &set, stream, id);
    return r;
}

void hoccl_handshake_reopen(struct hoccl_handshake *h, CUstream stream, unsigned long long id)
{
    struct hoccl_flag_set set = {h->start, h->start16, h->end};
    begin(h, &set, stream, id);
}

void hoccl_handshake_close(struct hoccl_handshake *h, struct hoccl_flag_pool *flags)
{
    hoccl_flag_set_give(flags, &(struct hoccl_flag_debt){.set = {h->start, h->start16, h->end},
                                                         .last = h->posted,
                                                         .gated = h->last_gated == h->posted});
}

bool hoccl_turn_gated_last(const struct hoccl_handshake *h)
{
    return h->last_gated == h->posted;
}

struct hoccl_turn hoccl_turn_next(struct hoccl_handshake *h, bool gated)
{
    uint32_t sequence = ++h->posted;
    if (gated) {
        if (sequence - h->last_gated >= STALE)
            hoccl_publish(h->start16.host, (sequence - 1) & 0xffff);
        h->last_gated = sequence;
    }
    return (struct hoccl_turn){.handshake = h, .sequence = sequence, .gated = gated};
}

bool hoccl_handshake_queue(struct hoccl_handshake *h, struct hoccl_gate *gate)
{
    if (hoccl_fetch_add(&h->queued, 1) || hoccl_gate_queue(gate))
        return true;
    hoccl_fetch_add(&h->queued, -1);
    return false;
}

void hoccl_handshake_unqueue(struct hoccl_handshake *h, struct hoccl_gate *gate)
{
    if (hoccl_fetch_add(&h->queued, -1) == 1)
        hoccl_gate_unqueue(gate);
}

static void set_write(CUstreamBatchMemOpParams *p, const struct hoccl_turn *t)
{
    p->operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    p->writeValue.address = t->handshake->start.device;
    p->writeValue.value = t->sequence;
}

static void set_wait(CUstreamBatchMemOpParams *p, const struct hoccl_turn *t)
{
    p->operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    p->waitValue.address = t->handshake->end.device;
    p->waitValue.value = t->sequence;
    p->waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
}

static HOCCL_Result enqueue(const struct hoccl_turn *t, CUstreamBatchMemOpParams *p, unsigned n)
{
    return hoccl_driver_check(hoccl_driver.StreamBatchMemOp(t->handshake->stream, n, p, 0), "enqueueing on the stream");
}

HOCCL_Result hoccl_turn_start(const struct hoccl_turn *turn, const struct hoccl_gate *gate)
{
    CUstreamBatchMemOpParams p;
    if (turn->gated)
        return hoccl_gate_signal(gate, turn->handshake->stream, &turn->handshake->start16, turn->sequence);
    memset(&p, 0, sizeof p);
    set_write(&p, turn);
    return enqueue(turn, &p, 1);
}

HOCCL_Result hoccl_turn_wait(const struct hoccl_turn *turn, const struct hoccl_gate *gate)
{
    CUstreamBatchMemOpParams p;
    if (turn->gated) {
        HOCCL_Result r = hoccl_gate_enqueue(gate, turn->handshake->stream);
        if (r)
            return r;
    }
    memset(&p, 0, sizeof p);
    set_wait(&p, turn);
    return enqueue(turn, &p, 1);
}

HOCCL_Result hoccl_turn_start_and_wait(const struct hoccl_turn *turn, const struct hoccl_gate *gate)
{
    CUstreamBatchMemOpParams p[2];
    if (turn->gated) {
        HOCCL_Result r = hoccl_turn_start(turn, gate);
        return r ? r : hoccl_turn_wait(turn, gate);
    }
    memset(p, 0, sizeof p);
    set_write(&p[0], turn);
    set_wait(&p[1], turn);
    return enqueue(turn, p, 2);
}

bool hoccl_turn_reached(const struct hoccl_turn *turn)
{
    if (turn->gated)
        return hoccl_reached16(hoccl_observe(turn->handshake->start16.host), turn->sequence);
    return hoccl_reached(hoccl_observe(turn->handshake->start.host), turn->sequence);
}

void hoccl_turn_release(const struct hoccl_turn *turn)
{
    if (!turn->handshake->open_for_all)
        hoccl_publish(turn->handshake->end.host, turn->sequence);
}

bool hoccl_turn_released(const struct hoccl_turn *turn)
{
    return hoccl_reached(hoccl_observe(turn->handshake->end.host), turn->sequence);
}

void hoccl_handshake_release_all(struct hoccl_handshake *h)
{
    if (!h->open_for_all)
        hoccl_publish(h->end.host, hoccl_peek(h->end.host) + FAR_AHEAD);
    h->open_for_all = true;
}
