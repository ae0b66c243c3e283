/* SPDX-License-Identifier: Apache-2.0 */
/* What a joined connection sends: messages, writes over its lanes, credits. A write goes to the lane with the fewest work
 * requests under way; lanes that are full, or busy with the parts of a large write, are skipped. A large write's descriptor
 * stays with its lane until the last part is posted. */
#include "transport/verbs.h"

#include "base/atomic.h"

#include <endian.h>
#include <string.h>

/* ---- credits ----------------------------------------------------------------------------------------------------- */

/* Given back by the half window: at most two such frames are then under way (verbs_wire.h). */
void hoccl_connection_return(struct hoccl_connection *c)
{
    if (c->owed < (c->window + 1) / 2)
        return;
    if (hoccl_queue_frame(c->control, HOCCL_FRAME_CREDIT, NULL, 0, c->owed))
        c->owed = 0;
    else
        c->endpoint->poke = true;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Room stays for the transport's own frames: credits must not wait behind messages. */
bool hoccl_verbs_message(struct hoccl_connection *c, const void *bytes, size_t count)
{
    const struct hoccl_slots *s = &c->endpoint->sends;
    if (c->state != HOCCL_VERBS_JOINED || count > HOCCL_MESSAGE_BYTES || !c->credits || !hoccl_queue_room(c->control, 4) ||
        s->spare + s->most - s->made <= HOCCL_SEND_RESERVE)
        return false;
    if (!hoccl_queue_frame(c->control, HOCCL_FRAME_MESSAGE, bytes, count, c->owed))
        return false;
    c->owed = 0;
    c->credits--;
    return true;
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

/* `bytes` of the write from `at` on; the last part brings the word. */
static bool post_part(struct hoccl_queue *q, const struct hoccl_write *w, size_t at, size_t bytes)
{
    const struct ibv_mr *mr = w->from->own;
    bool last = at + bytes == w->bytes;
    struct ibv_sge sge = {w->from->key.address + w->offset + at, (uint32_t)bytes, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                             .send_flags = last ? IBV_SEND_SIGNALED : 0,
                             .imm_data = htobe32(w->word),
                             .wr.rdma = {w->to.address + w->to_offset + at, (uint32_t)w->to.key}};
    struct hoccl_flight f = {.kind = last ? HOCCL_FLIGHT_WRITE : HOCCL_FLIGHT_PART, .tag = w->tag, .bytes = w->bytes};
    int status = hoccl_queue_post(q, &wr, f);
    if (status)
        hoccl_connection_fail(q->connection, "%s: lane %d takes nothing more: %s", q->connection->name, q->lane,
                              strerror(status));
    return !status;
}

/* More parts of the lane's large write, as many as there is room for. */
static void push(struct hoccl_queue *q)
{
    size_t most = q->endpoint->part_most;
    while (q->large.bytes && hoccl_queue_room(q, 1)) {
        size_t rest = q->large.bytes - q->posted, bytes = rest < most ? rest : most;
        if (!post_part(q, &q->large, q->posted, bytes))
            return;
        q->posted += bytes;
        if (q->posted == q->large.bytes)
            q->large.bytes = 0;
    }
    if (q->large.bytes)
        q->endpoint->poke = true;
}

static bool begin_large(struct hoccl_queue *q, const struct hoccl_write *w)
{
    size_t most = q->endpoint->part_most;
    uint64_t before = (w->bytes - 1) / most * most;
    if (!hoccl_queue_frame(q, HOCCL_FRAME_PARTS, &before, sizeof before, 0))
        return false;
    q->large = *w;
    q->posted = 0;
    push(q);
    return true;
}

static struct hoccl_queue *choose_lane(struct hoccl_connection *c, unsigned room)
{
    struct hoccl_queue *best = NULL;
    for (int i = 0; i < c->lanes; i++) {
        struct hoccl_queue *q = c->lane[(c->turn + (unsigned)i) % (unsigned)c->lanes];
        if (!q->large.bytes && hoccl_queue_room(q, room) && (!best || hoccl_queue_flying(q) < hoccl_queue_flying(best)))
            best = q;
    }
    return best;
}

bool hoccl_verbs_write(struct hoccl_connection *c, const struct hoccl_write *w)
{
    bool large = w->bytes > c->endpoint->part_most;
    if (c->state != HOCCL_VERBS_JOINED || c->credits < 1u + large)
        return false;
    struct hoccl_queue *q = choose_lane(c, 1u + large);
    if (!q || !(large ? begin_large(q, w) : post_part(q, w, 0, w->bytes)))
        return false;
    c->credits -= 1u + large;
    c->turn = (unsigned)q->lane + 1;
    q->count.flight++;
    if (q->count.flight > q->count.most)
        q->count.most = q->count.flight;
    return true;
}

void hoccl_connection_resume(struct hoccl_connection *c)
{
    if (c->state != HOCCL_VERBS_JOINED)
        return;
    hoccl_connection_return(c);
    for (int i = 0; i < c->lanes && c->state == HOCCL_VERBS_JOINED; i++)
        push(c->lane[i]);
}

/* ---- asked from above -------------------------------------------------------------------------------------------- */

bool hoccl_verbs_idle(const struct hoccl_connection *c)
{
    bool idle = !c->control || !hoccl_queue_flying(c->control);
    for (int i = 0; i < c->made; i++)
        idle = idle && (!c->lane[i] || (!hoccl_queue_flying(c->lane[i]) && !c->lane[i]->large.bytes));
    return idle;
}

int hoccl_verbs_lanes(const struct hoccl_connection *c, struct hoccl_lane_count count[HOCCL_LANES_MAX])
{
    for (int i = 0; i < c->lanes; i++)
        count[i] = c->lane[i] ? c->lane[i]->count : c->counts[i];
    return c->lanes;
}
