/* SPDX-License-Identifier: Apache-2.0 */
/* The state machines of flow.h over the mailbox of mailbox.h (paper §3.3.2): what all paths share, and the choice of the
 * path. The sender pushes where it can: writes over NVLink are faster than reads (380 against 350 GB/s measured), and the
 * receiver needs no driver call at all. */
#define _GNU_SOURCE
#include "p2p/detour.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"

#include <stdio.h>
#include <string.h>

#define LOOK_EVERY (10 * HOCCL_MS)
#define WARN_AFTER (60 * HOCCL_S)

const char *hoccl_flow_name(const struct hoccl_flow *flow, char *buffer, size_t bytes)
{
    snprintf(buffer, bytes, "%s %u %s rank %d (%s, pid %d)", flow->is_send ? "send" : "receive", flow->number,
             flow->is_send ? "to" : "from", flow->peer->rank, flow->peer->card.host, flow->peer->card.pid);
    return buffer;
}

struct hoccl_slot *hoccl_flow_slot(const struct hoccl_flow *flow)
{
    return (flow->is_send ? flow->peer->out : flow->peer->in) + flow->number % HOCCL_SLOTS;
}

static const char *kind_name(uint32_t kind)
{
    static const char *const names[] = {"nothing", "Send/Recv", "AllGather", "Alltoall", "Broadcast", "Gather", "Scatter"};
    return kind < sizeof names / sizeof *names ? names[kind] : "something unknown";
}

HOCCL_Result hoccl_flow_mismatch(const struct hoccl_flow *flow, const struct hoccl_flow_header *theirs)
{
    char name[160];
    if (flow->header.kind != theirs->kind || flow->header.operation != theirs->operation)
        return hoccl_fail(HOCCL_ERR_MISMATCH,
                          "%s: this rank is in %s (collective %llu) and the peer in %s (collective %llu): all ranks must call "
                          "the same operations in the same order",
                          hoccl_flow_name(flow, name, sizeof name), kind_name(flow->header.kind),
                          (unsigned long long)flow->header.operation, kind_name(theirs->kind),
                          (unsigned long long)theirs->operation);
    if (flow->header.root != theirs->root)
        return hoccl_fail(HOCCL_ERR_MISMATCH,
                          "%s: %s (collective %llu) has root %d at this rank and root %d at the peer: all ranks must name the "
                          "same root",
                          hoccl_flow_name(flow, name, sizeof name), kind_name(flow->header.kind),
                          (unsigned long long)flow->header.operation, flow->header.root, theirs->root);
    if (flow->header.whole != theirs->whole)
        return hoccl_fail(HOCCL_ERR_MISMATCH,
                          "%s: %s (collective %llu) is of %llu bytes (elements of %u) at this rank and of %llu bytes (elements of "
                          "%u) at the peer: the counts of all ranks must give the same bytes",
                          hoccl_flow_name(flow, name, sizeof name), kind_name(flow->header.kind),
                          (unsigned long long)flow->header.operation, (unsigned long long)flow->header.whole,
                          flow->header.element_size, (unsigned long long)theirs->whole, theirs->element_size);
    return hoccl_fail(HOCCL_ERR_MISMATCH,
                      "%s of %s: this rank %s %llu bytes (elements of %u) and the peer %s %llu bytes (elements of %u): the counts of "
                      "the two ends must give the same bytes",
                      hoccl_flow_name(flow, name, sizeof name), kind_name(flow->header.kind), flow->is_send ? "sends" : "expects",
                      (unsigned long long)flow->header.bytes, flow->header.element_size, flow->is_send ? "expects" : "sends",
                      (unsigned long long)theirs->bytes, theirs->element_size);
}

bool hoccl_flow_agrees(const struct hoccl_flow *flow, const struct hoccl_flow_header *theirs)
{
    return theirs->bytes == flow->header.bytes && theirs->kind == flow->header.kind &&
           theirs->operation == flow->header.operation && theirs->root == flow->header.root && theirs->whole == flow->header.whole;
}

/* Sender: has the receiver granted? From the first true answer on the grant cannot be withdrawn. */
static bool granted(const struct hoccl_flow *f)
{
    struct hoccl_slot *s = hoccl_flow_slot(f);
    uint32_t n = f->number, seen = hoccl_observe(&s->grant.tag);
    if (seen != n)
        return seen == HOCCL_GRANT_TAKEN(n);
    if (hoccl_peek(&s->offer.tag) == n) /* of 2³² flows ago */
        hoccl_publish(&s->offer.tag, n - HOCCL_SLOTS);
    return hoccl_take(&s->grant.tag, n, HOCCL_GRANT_TAKEN(n));
}

/* Receiver: has the sender come? Its data may be on the way then. */
static bool taken(const struct hoccl_flow *f)
{
    return !f->is_send && hoccl_observe(&hoccl_flow_slot(f)->grant.tag) == HOCCL_GRANT_TAKEN(f->number);
}

/* Receiver: true if the sender has not begun and never will. */
static bool withdraw(const struct hoccl_flow *f)
{
    return hoccl_take(&hoccl_flow_slot(f)->grant.tag, f->number, HOCCL_GRANT_WITHDRAWN(f->number));
}

static bool answered(const struct hoccl_flow *f)
{
    return hoccl_observe(&hoccl_flow_slot(f)->answer.tag) == f->number;
}

uint64_t hoccl_flow_moved(const struct hoccl_flow *flow)
{
    if (flow->path == HOCCL_PATH_WIRE) {
        uint64_t n = (uint64_t)flow->wire.landed * flow->wire.chunk;
        return n < flow->header.bytes ? n : flow->header.bytes;
    }
    if (flow->path == HOCCL_PATH_STAGED) {
        uint64_t n = (uint64_t)flow->landed * hoccl_staged_chunk(flow);
        return n < flow->header.bytes ? n : flow->header.bytes;
    }
    if (flow->path == HOCCL_PATH_SELF)
        return flow->self.landed;
    const struct hoccl_flow_detour *d = &flow->detour;
    uint64_t aside = (uint64_t)d->drained * flow->span * hoccl_stage_slot_bytes(HOCCL_STAGE_HOST);
    uint64_t n = d->front - flow->transfer[0].bytes + flow->transfer[0].landed + aside;
    return n < flow->header.bytes ? n : flow->header.bytes;
}

/* The peer posts no more, and what it has posted ends before this flow. */
static bool never_matched(const struct hoccl_flow *f)
{
    const struct hoccl_totals *t = f->peer->totals;
    if (!t || !hoccl_observe(&t->final))
        return false;
    return hoccl_reached(f->number, f->is_send ? t->receives : t->sends);
}

/* The peer's own words first, then its socket, which closes however a process ends. */
HOCCL_Result hoccl_flow_check_peer(struct hoccl_flow *flow)
{
    struct hoccl_peer *p = flow->peer;
    char name[160];
    enum hoccl_board_state state = hoccl_board_state(p->board);
    uint64_t now = hoccl_recently();
    switch (state) {
    case HOCCL_BOARD_FAILED:
        return hoccl_fail(HOCCL_ERR_PEER, "%s: rank %d has failed: %s", hoccl_flow_name(flow, name, sizeof name), p->rank,
                          p->board->status.text);
    case HOCCL_BOARD_ABORTED:
        return hoccl_fail(HOCCL_ERR_PEER, "%s: rank %d has aborted the communicator",
                          hoccl_flow_name(flow, name, sizeof name), p->rank);
    case HOCCL_BOARD_CLOSED:
        return hoccl_fail(HOCCL_ERR_PEER, "%s: rank %d has left (HOCCL_Finalize, HOCCL_CommDestroy) and will never post its side",
                          hoccl_flow_name(flow, name, sizeof name), p->rank);
    case HOCCL_BOARD_OPEN:
        break;
    }
    if (never_matched(flow))
        return hoccl_fail(HOCCL_ERR_PEER, "%s: rank %d has called HOCCL_Finalize (or HOCCL_CommDestroy) without posting its side",
                          hoccl_flow_name(flow, name, sizeof name), p->rank);
    if (p->far)
        return hoccl_wired_check_peer(flow);
    if (now - p->looked < LOOK_EVERY)
        return HOCCL_SUCCESS;
    p->looked = now;
    if (hoccl_link_gone(&p->link))
        return hoccl_fail(HOCCL_ERR_PEER, "%s: the process of rank %d is gone (%llu of %llu bytes moved)",
                          hoccl_flow_name(flow, name, sizeof name), p->rank, (unsigned long long)hoccl_flow_moved(flow),
                          (unsigned long long)flow->header.bytes);
    return HOCCL_SUCCESS;
}

/* A peer that lives and has not posted is no fault: one warning a flow, and not more than one a peer and minute; an error only
 * where HOCCL_WAIT_TIMEOUT asks for it. */
HOCCL_Result hoccl_flow_check_patience(struct hoccl_flow *flow)
{
    char name[160];
    struct hoccl_peer *p = flow->peer;
    uint64_t now = hoccl_recently(), waited = now > flow->since ? now - flow->since : 0;
    if (hoccl_settings.wait_timeout && waited > hoccl_settings.wait_timeout)
        return hoccl_fail(HOCCL_ERR_TIMEOUT, "%s: the peer has not posted its side for %llu s (HOCCL_WAIT_TIMEOUT)",
                          hoccl_flow_name(flow, name, sizeof name), (unsigned long long)(waited / HOCCL_S));
    if (waited > WARN_AFTER && !flow->warned && (!p->warned || now - p->warned > WARN_AFTER)) {
        flow->warned = true;
        p->warned = now;
        hoccl_log(HOCCL_LOG_WARN, "%s: waiting for the peer for %llu s; it lives and has not posted its side, or its stream "
                  "has not reached it", hoccl_flow_name(flow, name, sizeof name), (unsigned long long)(waited / HOCCL_S));
    }
    return HOCCL_SUCCESS;
}

/* What the peer published before it ended or failed counts, so the caller looks at the tag again after a bad check. */
HOCCL_Result hoccl_flow_wait_peer(struct hoccl_flow *flow)
{
    if (!flow->since)
        flow->since = hoccl_recently();
    HOCCL_Result r = hoccl_flow_check_peer(flow);
    return r || taken(flow) ? r : hoccl_flow_check_patience(flow);
}

void hoccl_flow_answer(struct hoccl_flow *flow, enum hoccl_answer_status status)
{
    struct hoccl_answer *a = &hoccl_flow_slot(flow)->answer;
    flow->state = status == HOCCL_ANSWER_DONE ? HOCCL_FLOW_DONE : HOCCL_FLOW_FAILED;
    a->status = status;
    a->header = flow->header;
    a->moved = hoccl_flow_moved(flow);
    hoccl_publish(&a->tag, flow->number);
}

static uint32_t path_bit(const struct hoccl_flow *f)
{
    return 1u << (f->path + (f->wire.registered ? 8 : 0));
}

bool hoccl_flow_path_said(const struct hoccl_flow *flow)
{
    return flow->peer->paths_said & path_bit(flow);
}

void hoccl_flow_say_path(struct hoccl_flow *flow, const char *why)
{
    static const char *const names[] = {"nowhere", "pushed by the sender", "pulled by the receiver", "staged", "sent over the network",
                                        "copied"};
    if (hoccl_flow_path_said(flow))
        return;
    flow->peer->paths_said |= path_bit(flow);
    hoccl_log(flow->path == HOCCL_PATH_PUSH ? HOCCL_LOG_TRACE : HOCCL_LOG_INFO, "data to rank %d is %s: %s", flow->peer->rank,
              names[flow->path], why);
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

static HOCCL_Result compare(struct hoccl_flow *f)
{
    const struct hoccl_flow_header *theirs = &hoccl_flow_slot(f)->grant.header;
    if (hoccl_flow_agrees(f, theirs))
        return HOCCL_SUCCESS;
    hoccl_flow_answer(f, HOCCL_ANSWER_MISMATCH);
    return hoccl_flow_mismatch(f, theirs);
}

/* For staging: what of the receiver's slots on a third GPU is mapped here, and kept so for this flow. */
static uint64_t hold_stage(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    if (f->peer->stage_key)
        f->mapping = hoccl_mapping_find(&gpu->mappings, f->peer->card.process, f->peer->stage_key);
    return f->mapping ? f->peer->stage_key : 0;
}

void hoccl_flow_offer(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    struct hoccl_slot *s = hoccl_flow_slot(flow);
    bool pull = flow->path == HOCCL_PATH_PULL, host = flow->memory.host || flow->peer->closed || hoccl_gate_bars_push(&gpu->gate);
    s->offer_memory = flow->memory.handle;
    s->offer.buffer = pull ? flow->memory.buffer : host ? 0 : hold_stage(gpu, flow);
    s->offer.base = flow->memory.base;
    s->offer.offset = flow->memory.offset;
    hoccl_publish(&s->offer.filled, 0);
    hoccl_publish(&s->offer.kind, pull ? flow->memory.kind : host ? HOCCL_MEMORY_HOST : HOCCL_MEMORY_CLOSED);
    hoccl_publish(&s->offer.tag, flow->number);
    flow->state = HOCCL_FLOW_OFFERED;
}

/* The best path for two buffers, from the sender's side; paths that need no words of the receiver start at once. */
static HOCCL_Result choose_path(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    struct hoccl_slot *s = hoccl_flow_slot(f);
    bool barred = hoccl_gate_bars_push(&gpu->gate), closed = f->peer->closed;
    bool apart = !barred && !closed && !f->peer->same_gpu && !f->memory.host && s->grant.kind != HOCCL_MEMORY_HOST;
    HOCCL_Result r = HOCCL_SUCCESS;
    *moved = true;
    if (!f->header.bytes) {
        hoccl_flow_answer(f, HOCCL_ANSWER_DONE);
        return HOCCL_SUCCESS;
    }
    if (f->peer->same_object && !f->memory.host && s->grant.kind != HOCCL_MEMORY_HOST) {
        f->path = HOCCL_PATH_SELF;
        hoccl_flow_say_path(f, barred ? "within this GPU, by way of host memory (HOCCL_GATE)" : "within this GPU, by way of another one and of host memory");
        return hoccl_self_open(gpu, f, moved);
    }
    if (apart && s->grant.kind != HOCCL_MEMORY_CLOSED) {
        f->path = HOCCL_PATH_PUSH;
        hoccl_flow_say_path(f, "its buffer can be opened");
        return hoccl_direct_open(gpu, f, HOCCL_PATH_PUSH, moved);
    }
    if (apart)
        r = hoccl_memory_reach(&gpu->exports, f->peer->same_process, &f->memory);
    if (r)
        return r;
    bool pull = f->memory.kind == HOCCL_MEMORY_IPC || f->memory.kind == HOCCL_MEMORY_ADDRESS;
    f->path = apart && pull ? HOCCL_PATH_PULL : HOCCL_PATH_STAGED;
    hoccl_flow_say_path(f, f->peer->same_gpu ? "both ends are on one GPU, where a copy would run on SMs"
                           : barred          ? "HOCCL_GATE=push keeps the engines between GPUs for gates"
                           : closed          ? "the two GPUs cannot access one another"
                           : !apart          ? "a buffer is pinned host memory"
                                             : "its buffer cannot be opened by another process");
    hoccl_flow_offer(gpu, f);
    return HOCCL_SUCCESS;
}

static HOCCL_Result send_waiting(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    if (!granted(f)) {
        HOCCL_Result r = hoccl_flow_wait_peer(f);
        if (!granted(f))
            return r;
    }
    HOCCL_Result r = compare(f);
    return r ? r : choose_path(gpu, f, moved);
}

bool hoccl_flow_staged_after_all(struct hoccl_flow *flow, const char *why, bool *moved)
{
    if (hoccl_observe(&hoccl_flow_slot(flow)->receipt.staged) != flow->number)
        return false;
    flow->path = HOCCL_PATH_STAGED;
    hoccl_flow_say_path(flow, why);
    *moved = true;
    return true;
}

/* PULL: the receiver says when it has the bytes, or gives slots because it cannot open our memory. */
static HOCCL_Result send_pulled(struct hoccl_flow *f, bool *moved)
{
    if (hoccl_flow_staged_after_all(f, "the receiver could not open this rank's buffer", moved))
        return HOCCL_SUCCESS;
    if (hoccl_observe(&hoccl_flow_slot(f)->receipt.tag) != f->number)
        return hoccl_flow_check_peer(f);
    hoccl_flow_answer(f, HOCCL_ANSWER_DONE);
    *moved = true;
    return HOCCL_SUCCESS;
}

static HOCCL_Result send_step(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    if (f->state == HOCCL_FLOW_WAITING)
        return send_waiting(gpu, f, moved);
    if (f->path == HOCCL_PATH_PULL)
        return send_pulled(f, moved);
    if (f->path == HOCCL_PATH_SELF)
        return hoccl_self_step(gpu, f, moved);
    if (f->path == HOCCL_PATH_PUSH && f->state == HOCCL_FLOW_OFFERED)
        return hoccl_direct_await(gpu, f, moved);
    return f->path == HOCCL_PATH_PUSH ? hoccl_direct_step(gpu, f, moved) : hoccl_staged_send_step(gpu, f, moved);
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

static void publish_grant(struct hoccl_flow *f)
{
    struct hoccl_slot *s = hoccl_flow_slot(f);
    hoccl_publish(&s->receipt.tag, f->number - HOCCL_SLOTS);
    hoccl_publish(&s->receipt.staged, f->number - HOCCL_SLOTS);
    s->grant_memory = f->memory.handle;
    s->grant.kind = f->memory.kind;
    s->grant.header = f->header;
    s->grant.buffer = f->memory.buffer;
    s->grant.base = f->memory.base;
    s->grant.offset = f->memory.offset;
    hoccl_publish(&s->grant.tag, f->number);
    f->state = HOCCL_FLOW_OFFERED;
    f->since = hoccl_recently();
}

static HOCCL_Result receive_waiting(struct hoccl_flow *f, bool *moved)
{
    if (f->peer->answered[f->number % HOCCL_SLOTS] != f->number - HOCCL_SLOTS)
        return HOCCL_SUCCESS; /* the slot's last flow is still running; it is watched itself */
    publish_grant(f);
    *moved = true;
    return HOCCL_SUCCESS;
}

static HOCCL_Result take_answer(struct hoccl_flow *f)
{
    const struct hoccl_answer *a = &hoccl_flow_slot(f)->answer;
    char name[160];
    f->peer->answered[f->number % HOCCL_SLOTS] = f->number;
    if (a->status == HOCCL_ANSWER_DONE) {
        hoccl_staged_give_back(f);
        f->state = HOCCL_FLOW_DONE;
        return HOCCL_SUCCESS;
    }
    f->state = HOCCL_FLOW_FAILED;
    if (a->status == HOCCL_ANSWER_MISMATCH)
        return hoccl_flow_mismatch(f, &a->header);
    bool aborted = hoccl_board_state(f->peer->board) == HOCCL_BOARD_ABORTED;
    return hoccl_fail(HOCCL_ERR_PEER, "%s: rank %d %s after %llu of %llu bytes%s%s", hoccl_flow_name(f, name, sizeof name),
                      f->peer->rank, aborted ? "has aborted the communicator" : "has failed", (unsigned long long)a->moved,
                      (unsigned long long)f->header.bytes, aborted ? "" : ": ", aborted ? "" : f->peer->board->status.text);
}

HOCCL_Result hoccl_flow_verdict(struct hoccl_flow *flow)
{
    if (flow->peer->far)
        return hoccl_wired_verdict(flow);
    bool open = !flow->is_send && flow->state == HOCCL_FLOW_OFFERED && answered(flow);
    return open ? take_answer(flow) : HOCCL_SUCCESS;
}

/* The sender has asked for something else than a push. */
static HOCCL_Result take_offer(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    uint32_t kind = hoccl_flow_slot(f)->offer.kind;
    if (kind == HOCCL_MEMORY_IPC || kind == HOCCL_MEMORY_ADDRESS)
        return hoccl_direct_open(gpu, f, HOCCL_PATH_PULL, moved);
    if (kind == HOCCL_MEMORY_WANTED)
        return hoccl_direct_dispatch(gpu, f, moved);
    return hoccl_staged_receive_open(gpu, f, moved);
}

static HOCCL_Result receive_offered(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    if (answered(f)) {
        *moved = true;
        return take_answer(f);
    }
    if (f->path == HOCCL_PATH_PUSH && hoccl_observe(&hoccl_flow_slot(f)->offer.kind) != HOCCL_MEMORY_WANTED) {
        f->dispatch.state = HOCCL_DISPATCH_NONE; /* the sender could not open what it has been sent */
        return hoccl_staged_receive_open(gpu, f, moved);
    }
    HOCCL_Result r = HOCCL_SUCCESS;
    if (f->path == HOCCL_PATH_NONE && taken(f) && hoccl_observe(&hoccl_flow_slot(f)->offer.tag) == f->number) {
        if (hoccl_flow_slot(f)->offer.kind != HOCCL_MEMORY_DETOUR)
            return take_offer(gpu, f, moved);
        r = hoccl_detour_receive_step(gpu, f, moved);
    }
    r = r ? r : hoccl_flow_wait_peer(f);
    return answered(f) ? take_answer(f) : r;
}

static HOCCL_Result receive_step(struct hoccl_gpu *gpu, struct hoccl_flow *f, bool *moved)
{
    if (f->state == HOCCL_FLOW_WAITING)
        return receive_waiting(f, moved);
    if (f->state == HOCCL_FLOW_OFFERED)
        return receive_offered(gpu, f, moved);
    if (f->path == HOCCL_PATH_PUSH)
        return hoccl_direct_dispatch(gpu, f, moved);
    return f->path == HOCCL_PATH_PULL ? hoccl_direct_step(gpu, f, moved) : hoccl_staged_receive_step(gpu, f, moved);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

void hoccl_flow_expect(const struct hoccl_flow *flow)
{
    const char *end = (const char *)(&flow->transfer[0] + 1);
    for (const char *line = (const char *)flow; line < (const char *)&flow->dispatch; line += HOCCL_CACHE_LINE)
        hoccl_expect(line);
    for (const char *line = (const char *)&flow->transfer[0]; line < end; line += HOCCL_CACHE_LINE)
        hoccl_expect(line);
    hoccl_expect(&flow->detour);
    if (flow->is_send || flow->peer->far)
        return;
    const struct hoccl_slot *s = hoccl_flow_slot(flow);
    hoccl_expect(&s->grant);
    hoccl_expect(&s->grant_memory);
    hoccl_expect(&s->receipt);
}

bool hoccl_flow_foretell(struct hoccl_flow *flow)
{
    return flow->peer->far && hoccl_wired_foretell(flow);
}

HOCCL_Result hoccl_flow_step(struct hoccl_gpu *gpu, struct hoccl_flow *flow, bool *moved)
{
    if (flow->state == HOCCL_FLOW_DONE || flow->state == HOCCL_FLOW_FAILED)
        return HOCCL_SUCCESS;
    if (flow->peer->far)
        return hoccl_wired_step(flow, moved);
    return flow->is_send ? send_step(gpu, flow, moved) : receive_step(gpu, flow, moved);
}

bool hoccl_flow_busy(const struct hoccl_flow *flow)
{
    bool preparing = flow->view && hoccl_observe(&flow->view->state) == HOCCL_STAGE_PREPARING;
    bool opening = flow->mapping && hoccl_observe(&flow->mapping->state) == HOCCL_MAPPING_OPENING;
    bool aside = flow->detour.started != flow->detour.landed;
    return flow->state == HOCCL_FLOW_MOVING || flow->state == HOCCL_FLOW_OPENING || preparing || opening || aside || flow->wire.copying;
}

static struct hoccl_engine *engine_of(struct hoccl_gpu *gpu, const struct hoccl_flow *f)
{
    if (f->path == HOCCL_PATH_STAGED)
        return hoccl_staged_engine(gpu, f);
    return &gpu->engine[f->path == HOCCL_PATH_PUSH ? HOCCL_PUSH : HOCCL_PULL];
}

uint64_t hoccl_flow_ends(const struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    const struct hoccl_transfer *t = &flow->transfer[0];
    if (flow->foreseen || !flow->is_send || flow->path != HOCCL_PATH_PUSH || t->given < t->bytes || !t->flight)
        return 0;
    flow->foreseen = true;
    return hoccl_engine_ends(&gpu->engine[HOCCL_PUSH]);
}

void hoccl_flow_cancel(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    if (flow->peer->far)
        hoccl_wired_cancel(flow);
    if (flow->state != HOCCL_FLOW_MOVING && !flow->detour.open)
        return;
    if (flow->path == HOCCL_PATH_SELF) {
        hoccl_self_cancel(gpu, flow);
        return;
    }
    for (int i = 0; i < HOCCL_FLOW_STAGES; i++)
        if (flow->transfer[i].link.next)
            hoccl_engine_cancel(engine_of(gpu, flow), &flow->transfer[i]);
}

static bool in_flight(const struct hoccl_flow *f)
{
    unsigned flight = 0;
    for (int i = 0; i < HOCCL_FLOW_STAGES; i++)
        flight += f->transfer[i].flight;
    return flight != 0;
}

/* Nothing of this end's is with the driver any more; give back what was taken. */
static bool own_end_quiet(struct hoccl_gpu *gpu, struct hoccl_flow *f)
{
    if (in_flight(f) || (f->mapping && hoccl_observe(&f->mapping->state) == HOCCL_MAPPING_OPENING))
        return false;
    if (f->view && hoccl_observe(&f->view->state) == HOCCL_STAGE_PREPARING)
        return false;
    if (hoccl_observe(&f->dispatch.state) == HOCCL_DISPATCH_PENDING)
        return false;
    if (f->mapping)
        hoccl_mapping_put(&gpu->mappings, f->mapping);
    f->mapping = NULL;
    hoccl_detour_quiet(gpu, f);
    if (f->path == HOCCL_PATH_SELF)
        hoccl_self_give_back(f);
    return true;
}

/* Sender: may the receiver's engine still be reading? A thread of this process has no mapping that would keep the memory. */
static bool is_pulled(const struct hoccl_flow *f)
{
    uint32_t tag = hoccl_observe(&hoccl_flow_slot(f)->receipt.tag);
    bool offered = f->path == HOCCL_PATH_PULL && f->state == HOCCL_FLOW_OFFERED && f->memory.kind == HOCCL_MEMORY_ADDRESS;
    return offered && tag != f->number && tag != HOCCL_RECEIPT_LEFT(f->number) && !hoccl_link_gone(&f->peer->link);
}

/* A send that the peer has granted is answered, so that the peer need not wait for more. */
static bool drain_send(struct hoccl_flow *f)
{
    if (is_pulled(f))
        return false;
    if (f->state != HOCCL_FLOW_WAITING || granted(f))
        hoccl_flow_answer(f, HOCCL_ANSWER_FAILED);
    f->state = HOCCL_FLOW_FAILED;
    return true;
}

/* Receiver: it reads nothing of the sender's any more, perhaps has not begun. The receipt of a pull that is over stays what it is. */
static void leave_sender(const struct hoccl_flow *f)
{
    struct hoccl_receipt *r = &hoccl_flow_slot(f)->receipt;
    if (hoccl_peek(&r->tag) != f->number)
        hoccl_publish(&r->tag, HOCCL_RECEIPT_LEFT(f->number));
}

bool hoccl_flow_drain(struct hoccl_gpu *gpu, struct hoccl_flow *flow)
{
    if (flow->peer->far)
        return hoccl_wired_drain(flow);
    if (flow->state == HOCCL_FLOW_DONE || flow->state == HOCCL_FLOW_FAILED)
        return own_end_quiet(gpu, flow);
    if (!own_end_quiet(gpu, flow))
        return false;
    if (flow->is_send)
        return drain_send(flow);
    if (flow->state != HOCCL_FLOW_WAITING)
        leave_sender(flow);
    if (flow->state != HOCCL_FLOW_WAITING && !answered(flow) && !withdraw(flow) && !hoccl_board_quiet(flow->peer->board) &&
        !hoccl_link_gone(&flow->peer->link))
        return false;
    hoccl_staged_give_back(flow);
    flow->state = HOCCL_FLOW_FAILED;
    return true;
}
