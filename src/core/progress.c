/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread's half of the core: from a start signal to an end flag (paper §3.2, Figure 4).
 *
 *   inbox ──▶ turns queue up behind their stream ──start flag──▶ flows run ──all done──▶ end flags
 *
 * Only the first turn of a stream can be reached next, so only it is watched. A group that spans streams runs when all
 * of them have arrived, and all are released together. */
#include "core/progress.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "core/lines.h"
#include "p2p/precedence.h"
#include "stream/parking.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPECTED 4 /* flows of an operation that are brought near: of more, the first ones */
#define EARLY 16   /* most flows of an operation whose ends may agree before their streams are there: of more, that hides nothing */

static void free_op(struct hoccl_comm *comm, struct hoccl_op *op)
{
    free(op);
    hoccl_fetch_add(&comm->unfinished, -1u);
}

/* The next of its stream. */
static void watch(struct hoccl_comm *comm, struct hoccl_comm_stream *stream)
{
    const struct hoccl_op *op = hoccl_entry(stream->queue.next, struct hoccl_op_turn, link)->op;
    hoccl_list_append(&comm->watched, &stream->link);
    for (int i = 0; i < op->flows && i < EXPECTED; i++)
        hoccl_flow_expect(&op->flow[i]);
}

/* The streams go on; those that hold no other operation are parked no longer. The end flags come first. */
static void release(struct hoccl_comm *comm, struct hoccl_op *op)
{
    int left = 0;
    bool bare = false;
    for (int i = 0; i < op->turns; i++) {
        hoccl_turn_release(&op->turn[i].turn);
        if (op->turn[i].turn.gated)
            hoccl_gate_unbar(&comm->gpu->gate);
        else
            bare = true;
        if (op->turn[i].turn.queued)
            hoccl_handshake_unqueue(op->turn[i].turn.handshake, &comm->gpu->gate);
    }
    if (bare)
        hoccl_nudge_give(&comm->gpu->nudge, &comm->gpu->submitter);
    for (int i = 0; i < op->turns; i++) {
        struct hoccl_op_turn *t = &op->turn[i];
        struct hoccl_list *q = &t->stream->queue;
        bool first = q->next == &t->link;
        hoccl_list_remove(&t->link);
        if (hoccl_list_empty(q))
            hoccl_list_remove(&t->stream->busy);
        else if (first && !comm->failed)
            watch(comm, t->stream);
        left += __atomic_sub_fetch(&t->stream->handshake.outstanding, 1, __ATOMIC_ACQ_REL) == 0;
    }
    if (left)
        hoccl_parking_leave(left);
}

/* ---- the normal way ---------------------------------------------------------------------------------------------- */

/* To a rank that is not connected yet the way is the longer one: it is begun before the stream gets there. */
static void call_peers(const struct hoccl_op *op)
{
    for (int i = 0; i < op->flows; i++)
        if (op->flow[i].peer->far)
            hoccl_far_need(op->flow[i].peer->far);
}

static void enqueue(struct hoccl_comm *comm, struct hoccl_op *op)
{
    if (comm->abroad.sparse && !comm->failed)
        call_peers(op);
    for (int i = 0; i < op->turns; i++) {
        struct hoccl_op_turn *t = &op->turn[i];
        struct hoccl_comm_stream *s = t->stream;
        bool first = hoccl_list_empty(&s->queue);
        hoccl_list_append(&s->queue, &t->link);
        if (first) {
            hoccl_list_append(&comm->busy_streams, &s->busy);
            watch(comm, s);
        }
    }
}

static bool has_begun(const struct hoccl_op *op)
{
    return op->reached == op->turns;
}

/* The first operation of each stream that has not begun: what goes to other nodes is agreed upon meanwhile (p2p/early.h). */
static bool foretell(struct hoccl_comm *comm)
{
    bool moved = false;
    comm->untold = false;
    for (struct hoccl_list *l = comm->busy_streams.next; l != &comm->busy_streams; l = l->next) {
        const struct hoccl_list *q = &hoccl_entry(l, struct hoccl_comm_stream, busy)->queue;
        struct hoccl_list *t = q->next;
        if (has_begun(hoccl_entry(t, struct hoccl_op_turn, link)->op))
            t = t->next;
        struct hoccl_op *op = t == q ? NULL : hoccl_entry(t, struct hoccl_op_turn, link)->op;
        for (int i = 0; op && op->flows <= EARLY && i < op->flows; i++)
            moved |= hoccl_flow_foretell(&op->flow[i]);
    }
    return moved;
}

static bool take_inbox(struct hoccl_comm *comm, struct hoccl_list *ops)
{
    hoccl_list_init(ops);
    if (!hoccl_observe(&comm->inbox_full))
        return false;
    pthread_mutex_lock(&comm->inbox_lock);
    hoccl_publish(&comm->inbox_full, 0);
    hoccl_list_move(ops, &comm->inbox);
    pthread_mutex_unlock(&comm->inbox_lock);
    return true;
}

static bool accept_new(struct hoccl_comm *comm)
{
    struct hoccl_list ops, *l;
    if (!take_inbox(comm, &ops))
        return false;
    comm->untold = comm->abroad.count;
    while ((l = hoccl_list_take(&ops)))
        enqueue(comm, hoccl_entry(l, struct hoccl_op, link));
    return true;
}

static void start(struct hoccl_comm *comm, struct hoccl_op *op)
{
    if (comm->abroad.count) {
        hoccl_precedence_judge(op->flow, op->flows);
        comm->untold = true;
    }
    hoccl_lines_start(&comm->running, op->flow, op->flows);
}

static bool watch_streams(struct hoccl_comm *comm)
{
    struct hoccl_list *l, *next;
    bool moved = false;
    for (l = comm->watched.next; l != &comm->watched; l = next) {
        struct hoccl_comm_stream *s = hoccl_entry(l, struct hoccl_comm_stream, link);
        struct hoccl_op_turn *t = hoccl_entry(s->queue.next, struct hoccl_op_turn, link);
        next = l->next;
        if (!hoccl_turn_reached(&t->turn))
            continue;
        hoccl_list_remove(&s->link);
        if (++t->op->reached == t->op->turns)
            start(comm, t->op);
        moved = true;
    }
    return moved;
}

/* A peer that fails over a mismatch says so in its answer to the flow concerned. Another flow may have been the first to
 * see that it has failed; the mismatch is the better error. */
static void fail_flows(struct hoccl_comm *comm, HOCCL_Result r)
{
    char text[HOCCL_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", hoccl_error_text());
    for (struct hoccl_list *l = comm->running.next; l != &comm->running && r == HOCCL_ERR_PEER; l = l->next)
        if (hoccl_flow_verdict(hoccl_entry(l, struct hoccl_flow, link)) == HOCCL_ERR_MISMATCH)
            r = HOCCL_ERR_MISMATCH;
    hoccl_comm_fail(comm, r == HOCCL_ERR_MISMATCH ? r : hoccl_fail_again(r, text));
}

/* What the operation still waits for may be one copy only, and the peer's, which is as far. */
static void foresee(struct hoccl_comm *comm, const struct hoccl_op *op, struct hoccl_flow *flow)
{
    uint64_t end = op->unfinished <= 2 && !op->turn[0].turn.gated ? hoccl_flow_ends(comm->gpu, flow) : 0;
    if (end)
        hoccl_nudge_foresee(&comm->gpu->nudge, end);
}

static bool run_flows(struct hoccl_comm *comm)
{
    struct hoccl_list *l, *next;
    bool any = false;
    for (l = comm->running.next; l != &comm->running; l = next) {
        struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, link);
        struct hoccl_op *op = f->op;
        bool moved = false;
        next = l->next;
        if (f->after && f->after->state != HOCCL_FLOW_DONE)
            continue;
        if (f->path == HOCCL_PATH_SELF && f->self.held)
            hoccl_self_hold(f, op->flow, op->flows, hoccl_recently());
        HOCCL_Result r = hoccl_flow_step(comm->gpu, f, &moved);
        any |= moved;
        if (r) {
            fail_flows(comm, r);
            return true;
        }
        if (f->state != HOCCL_FLOW_DONE) {
            foresee(comm, op, f);
            continue;
        }
        hoccl_list_remove(&f->link);
        hoccl_lines_advance(&comm->running, f);
        if (--op->unfinished)
            continue;
        release(comm, op);
        free_op(comm, op);
    }
    return any;
}

/* ---- after a failure --------------------------------------------------------------------------------------------- */

static void give_up(struct hoccl_comm *comm, struct hoccl_op *op)
{
    for (int i = 0; i < op->flows; i++)
        hoccl_flow_cancel(comm->gpu, &op->flow[i]);
    hoccl_list_append(&comm->draining, &op->link);
    release(comm, op);
}

/* Every stream that holds an operation goes on, and every operation that some stream holds is given up. */
static void let_go(struct hoccl_comm *comm)
{
    struct hoccl_list *l;
    for (l = comm->busy_streams.next; l != &comm->busy_streams; l = l->next)
        hoccl_handshake_release_all(&hoccl_entry(l, struct hoccl_comm_stream, busy)->handshake);
    hoccl_list_init(&comm->watched);
    hoccl_list_init(&comm->running);
    while (!hoccl_list_empty(&comm->busy_streams)) {
        struct hoccl_comm_stream *s = hoccl_entry(comm->busy_streams.next, struct hoccl_comm_stream, busy);
        give_up(comm, hoccl_entry(s->queue.next, struct hoccl_op_turn, link)->op);
    }
}

/* Carry the failure out, once: tell the peers why, then let every stream go. */
static void fail_now(struct hoccl_comm *comm)
{
    bool aborted = hoccl_observe(&comm->abort);
    comm->failed = true;
    if (hoccl_observe(&comm->error))
        hoccl_board_say(comm->board, HOCCL_BOARD_FAILED, comm->error_text);
    else if (aborted)
        hoccl_board_say(comm->board, HOCCL_BOARD_ABORTED, NULL);
    hoccl_abroad_tell(comm, hoccl_board_state(comm->board));
    accept_new(comm);
    let_go(comm);
    if (!aborted)
        hoccl_log(HOCCL_LOG_INFO, "the communicator has failed: %s", comm->error_text);
}

static bool sends_quiet(const struct hoccl_op *op)
{
    for (int i = 0; i < op->flows; i++)
        if (op->flow[i].is_send && op->flow[i].state != HOCCL_FLOW_FAILED && op->flow[i].state != HOCCL_FLOW_DONE)
            return false;
    return true;
}

static bool drain_op(struct hoccl_comm *comm, struct hoccl_op *op)
{
    bool quiet = true;
    for (int i = 0; i < op->flows; i++)
        quiet &= op->flow[i].state == HOCCL_FLOW_DONE || hoccl_flow_drain(comm->gpu, &op->flow[i]);
    return quiet;
}

static void drain(struct hoccl_comm *comm)
{
    struct hoccl_list *l, *next;
    bool quiet = true;
    if (accept_new(comm))
        let_go(comm);
    for (l = comm->draining.next; l != &comm->draining; l = next) {
        struct hoccl_op *op = hoccl_entry(l, struct hoccl_op, link);
        next = l->next;
        bool done = drain_op(comm, op);
        quiet &= done || sends_quiet(op);
        if (!done)
            continue;
        hoccl_list_remove(l);
        free_op(comm, op);
    }
    if (quiet)
        hoccl_board_say_quiet(comm->board);
    hoccl_publish(&comm->drained, hoccl_list_empty(&comm->draining) ? 1 : 0);
}

/* ---- */

bool hoccl_comm_step(struct hoccl_comm *comm)
{
    if (!comm->failed && (hoccl_observe(&comm->error) || hoccl_observe(&comm->abort)))
        fail_now(comm);
    hoccl_abroad_step(comm);
    if (comm->failed) {
        drain(comm);
        return false;
    }
    bool moved = accept_new(comm);
    moved |= watch_streams(comm);
    moved |= run_flows(comm);
    if (comm->untold && !moved)
        moved = foretell(comm);
    return moved;
}

bool hoccl_comm_news(const struct hoccl_comm *comm)
{
    return hoccl_observe(&comm->inbox_full) || (!comm->failed && (hoccl_observe(&comm->error) || hoccl_observe(&comm->abort)));
}

bool hoccl_comm_idle(const struct hoccl_comm *comm)
{
    if (hoccl_comm_news(comm) || !hoccl_abroad_idle(comm))
        return false;
    if (comm->failed)
        return hoccl_list_empty(&comm->draining);
    return hoccl_observe(&comm->unfinished) == 0;
}

/* A flow that waits for this process's engines or submitter; NULL if none does. */
static const struct hoccl_flow *waiting_flow(const struct hoccl_comm *comm)
{
    for (struct hoccl_list *l = comm->running.next; l != &comm->running; l = l->next) {
        const struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, link);
        if (hoccl_flow_busy(f))
            return f;
    }
    return NULL;
}

/* Longer than HOCCL_TIMEOUT, and so long has the process run without being stopped. */
static bool too_long(const struct hoccl_gpu *g, uint64_t still, uint64_t now)
{
    return still > hoccl_settings.timeout && now > g->resumed + hoccl_settings.timeout;
}

static bool stalled(const struct hoccl_gpu *g, enum hoccl_direction d, uint64_t now)
{
    return too_long(g, hoccl_engine_stalled(&g->engine[d], now), now);
}

/* The submitter sits in the driver; or an engine stands still, and it has done so for most of that time. */
static bool submitter_stuck(const struct hoccl_gpu *g, uint64_t now)
{
    uint64_t since = hoccl_submitter_stuck(&g->submitter, now);
    bool still = too_long(g, since, now);
    for (int i = 0; i < HOCCL_DIRECTIONS && !still; i++)
        still = since > hoccl_settings.timeout / 2 && stalled(g, (enum hoccl_direction)i, now);
    return still;
}

/* What stands still, and why; SUCCESS if nothing does. */
static HOCCL_Result find_stuck(const struct hoccl_gpu *g, uint64_t now)
{
    static const char *const engines[] = {"push", "pull", "D2H", "H2D", "host"};
    uint32_t broken = hoccl_observe(&g->submitter.broken);
    unsigned long long limit = hoccl_settings.timeout / HOCCL_S;
    if (broken)
        return hoccl_driver_check((CUresult)broken, "enqueueing on the copy engine");
    if (submitter_stuck(g, now))
        return hoccl_fail(HOCCL_ERR_TIMEOUT,
                          "the CUDA driver has not returned from a copy's submission for %llu s (HOCCL_TIMEOUT): another thread "
                          "of this process sits in cudaFree, cudaFreeHost, a module load (as at a kernel's first launch), or a copy to pageable memory on the default stream, "
                          "behind a stream that waits; the streams have been released (HOCCL_BLOCKING=on avoids it)", limit);
    if (g->gate.kind == HOCCL_GATE_H2D && hoccl_gate_barred(&g->gate) && stalled(g, HOCCL_H2D, now))
        return hoccl_fail(HOCCL_ERR_TIMEOUT,
                          "copies from host memory stand behind the gates of streams that wait, for %llu s (HOCCL_TIMEOUT): set "
                          "CUDA_DEVICE_MAX_CONNECTIONS=32, or HOCCL_GATE=push, or use memory that can be opened by other processes",
                          limit);
    if (g->gate.kind == HOCCL_GATE_COMPUTE && hoccl_gate_barred(&g->gate) && stalled(g, HOCCL_H2D, now))
        return hoccl_fail(HOCCL_ERR_TIMEOUT,
                          "a copy of one byte from host memory stands behind streams that wait, for %llu s (HOCCL_TIMEOUT): it needs the "
                          "channels of kernels; set CUDA_DEVICE_MAX_CONNECTIONS=32", limit);
    if (g->gate.kind != HOCCL_GATE_NONE && hoccl_gate_barred(&g->gate) && stalled(g, HOCCL_D2H, now))
        return hoccl_fail(HOCCL_ERR_TIMEOUT,
                          "copies to host memory stand behind what is queued behind operations (the program's own copies to host memory or, "
                          "with one GPU in sight, other operations), for %llu s (HOCCL_TIMEOUT): set "
                          "CUDA_DEVICE_MAX_CONNECTIONS=32, or queue that when the operation has completed", limit);
    for (int i = 0; i < HOCCL_DIRECTIONS; i++)
        if (stalled(g, (enum hoccl_direction)i, now))
            return hoccl_fail(HOCCL_ERR_TIMEOUT, "the %s engine of this rank's GPU has not moved for %llu s (HOCCL_TIMEOUT)",
                              engines[i], limit);
    return HOCCL_SUCCESS;
}

void hoccl_comm_check_stuck(struct hoccl_comm *comm, uint64_t now)
{
    const struct hoccl_flow *f = comm->failed ? NULL : waiting_flow(comm);
    HOCCL_Result r = f ? find_stuck(comm->gpu, now) : HOCCL_SUCCESS;
    char name[160];
    if (!r)
        return;
    hoccl_fail_context(r, "%s, %llu of %llu bytes moved", hoccl_flow_name(f, name, sizeof name),
                       (unsigned long long)hoccl_flow_moved(f), (unsigned long long)f->header.bytes);
    hoccl_comm_fail(comm, r);
}
