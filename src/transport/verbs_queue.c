/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: made, connected, posted to, ended. Work requests of a queue pair complete in order, so what is under way is
 * a ring, and a completion stands for everything in front of it: parts of a large write and frames need not ask for one of
 * their own. */
#include "transport/verbs.h"

#include "base/clock.h"
#include "base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- the table by number ----------------------------------------------------------------------------------------- */

static unsigned place_of(const struct hoccl_endpoint *e, uint32_t number)
{
    return (number * 2654435761u) & (e->table_size - 1);
}

static void enter(struct hoccl_endpoint *e, struct hoccl_queue *q)
{
    unsigned i = place_of(e, q->qp->qp_num);
    while (e->table[i])
        i = (i + 1) & (e->table_size - 1);
    e->table[i] = q;
}

static HOCCL_Result add(struct hoccl_endpoint *e, struct hoccl_queue *q)
{
    if (e->table_used * 2 >= e->table_size) {
        unsigned size = e->table_size ? e->table_size * 2 : 64, old = e->table_size;
        struct hoccl_queue **bigger = hoccl_alloc(size * sizeof(*bigger), "a table of queue pairs"), **all = e->table;
        if (!bigger)
            return HOCCL_ERR_MEMORY;
        e->table = bigger;
        e->table_size = size;
        for (unsigned i = 0; i < old; i++)
            if (all[i])
                enter(e, all[i]);
        free(all);
    }
    enter(e, q);
    e->table_used++;
    return HOCCL_SUCCESS;
}

/* What stood behind it in a row is entered again, so that no search ends too early. */
static void take_out(struct hoccl_endpoint *e, const struct hoccl_queue *q)
{
    unsigned mask = e->table_size - 1, i = place_of(e, q->qp->qp_num);
    while (e->table[i] != q)
        i = (i + 1) & mask;
    e->table[i] = NULL;
    e->table_used--;
    for (i = (i + 1) & mask; e->table[i]; i = (i + 1) & mask) {
        struct hoccl_queue *moved = e->table[i];
        e->table[i] = NULL;
        enter(e, moved);
    }
}

struct hoccl_queue *hoccl_queue_find(struct hoccl_endpoint *e, uint32_t number)
{
    if (!e->table_size)
        return NULL;
    for (unsigned i = place_of(e, number); e->table[i]; i = (i + 1) & (e->table_size - 1))
        if (e->table[i]->qp->qp_num == number)
            return e->table[i];
    return NULL;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* What the peer's card may do by it. */
static unsigned access_flags(int lane)
{
    if (lane == HOCCL_LOOP)
        return IBV_ACCESS_REMOTE_READ;
    return lane == HOCCL_CONTROL ? 0 : IBV_ACCESS_REMOTE_WRITE;
}

static int to_init(struct hoccl_queue *q)
{
    struct hoccl_endpoint *e = q->endpoint;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .pkey_index = (uint16_t)e->setting.pkey,
                               .port_num = (uint8_t)e->port.here.number,
                               .qp_access_flags = access_flags(q->lane)};
    return e->ibv->modify_qp(q->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static HOCCL_Result make_pair(struct hoccl_queue *q)
{
    struct hoccl_endpoint *e = q->endpoint;
    struct ibv_qp_init_attr attr = {.send_cq = e->cq,
                                    .recv_cq = e->cq,
                                    .srq = e->srq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = (uint32_t)e->queue_depth,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1,
                                            .max_recv_wr = e->srq ? 0 : (uint32_t)e->queue_depth}};
    q->qp = e->ibv->create_qp(e->pd, &attr);
    if (!q->qp)
        return hoccl_fail(errno == ENOMEM ? HOCCL_ERR_MEMORY : HOCCL_ERR_DEVICE,
                          "the RDMA device %s makes no more queue pairs: %s (%d "
                          "connections so far, at most %d queue pairs; the limit of locked memory counts too, ulimit -l)",
                          e->port.here.device, strerror(errno), e->count, e->port.limits.max_qp);
    int status = to_init(q);
    if (status)
        return hoccl_fail(HOCCL_ERR_DEVICE, "a queue pair of %s cannot be set up: %s", e->port.here.device,
                          strerror(status));
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_queue_make(struct hoccl_endpoint *e, struct hoccl_connection *c, int lane, struct hoccl_queue **queue)
{
    struct hoccl_queue *q = hoccl_alloc(sizeof *q, "a queue pair");
    if (!q)
        return HOCCL_ERR_MEMORY;
    *q = (struct hoccl_queue){.endpoint = e,
                              .connection = c,
                              .lane = lane,
                              .depth = (unsigned)e->queue_depth,
                              .generation = ++e->generation & 0x7fffffff};
    if (getrandom(&q->sequence, sizeof q->sequence, 0) != sizeof q->sequence)
        q->sequence = q->generation * 2654435761u;
    q->sequence &= 0xffffff;
    q->flights = hoccl_alloc(q->depth * sizeof *q->flights, "a queue pair");
    HOCCL_Result r = q->flights ? make_pair(q) : HOCCL_ERR_MEMORY;
    if (!r)
        r = add(e, q);
    if (r) {
        if (q->qp)
            e->ibv->destroy_qp(q->qp);
        free(q->flights);
        free(q);
        return r;
    }
    *queue = q;
    return HOCCL_SUCCESS;
}

/* ---- connecting -------------------------------------------------------------------------------------------------- */

/* RoCE always has a global header; InfiniBand has one where the peer is in another subnet or has no LID. */
static struct ibv_ah_attr way(const struct hoccl_endpoint *e, const struct hoccl_offer *mine,
                              const struct hoccl_offer *theirs)
{
    struct ibv_ah_attr a = {
        .dlid = theirs->lid, .sl = (uint8_t)e->setting.service_level, .port_num = (uint8_t)e->port.here.number};
    if (mine->ethernet || !theirs->lid || memcmp(mine->gid, theirs->gid, 8) != 0) {
        a.is_global = 1;
        memcpy(a.grh.dgid.raw, theirs->gid, sizeof a.grh.dgid.raw);
        a.grh.sgid_index = (uint8_t)mine->gid_index;
        a.grh.hop_limit = 255;
        a.grh.traffic_class = (uint8_t)e->setting.traffic_class;
    }
    return a;
}

static int to_receive(struct hoccl_queue *q, const struct hoccl_offer *mine, const struct hoccl_offer *theirs, int place)
{
    struct hoccl_endpoint *e = q->endpoint;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .dest_qp_num = theirs->number[place],
                               .rq_psn = theirs->sequence[place],
                               .path_mtu = hoccl_mtu_choose((enum ibv_mtu)mine->mtu, (enum ibv_mtu)theirs->mtu, 0),
                               .max_dest_rd_atomic = 1,
                               .min_rnr_timer = 20 /* 10 ms */,
                               .ah_attr = way(e, mine, theirs)};
    return e->ibv->modify_qp(q->qp, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_send(struct hoccl_queue *q)
{
    const struct hoccl_verbs_setting *s = &q->endpoint->setting;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                               .timeout = (uint8_t)s->timeout,
                               .retry_cnt = (uint8_t)s->retry,
                               .rnr_retry = (uint8_t)s->rnr,
                               .sq_psn = q->sequence,
                               .max_rd_atomic = 1};
    return q->endpoint->ibv->modify_qp(q->qp, &attr,
                                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                           IBV_QP_MAX_QP_RD_ATOMIC);
}

bool hoccl_queue_connect(struct hoccl_queue *q, const struct hoccl_offer *mine, const struct hoccl_offer *theirs, int place,
                         const char **step)
{
    *step = "receive";
    errno = to_receive(q, mine, theirs, place);
    if (errno)
        return false;
    *step = "send";
    errno = to_send(q);
    return !errno;
}

/* ---- posting ----------------------------------------------------------------------------------------------------- */

bool hoccl_queue_room(const struct hoccl_queue *q, unsigned n)
{
    return hoccl_queue_flying(q) + n <= q->depth && q->endpoint->flying + (int)n <= q->endpoint->budget;
}

int hoccl_queue_post(struct hoccl_queue *q, struct ibv_send_wr *wr, struct hoccl_flight flight)
{
    struct ibv_send_wr *bad;
    wr->wr_id = (uint64_t)q->generation << 32 | q->next;
    bool silent = !(wr->send_flags & IBV_SEND_SIGNALED) && q->silent < HOCCL_SILENT_MOST;
    if (!silent)
        wr->send_flags |= IBV_SEND_SIGNALED;
    int status = ibv_post_send(q->qp, wr, &bad);
    if (status)
        return status;
    q->silent = silent ? q->silent + 1 : 0;
    q->flights[q->next++ % q->depth] = flight;
    q->endpoint->flying++;
    if (q->connection)
        q->connection->last = hoccl_now();
    return 0;
}

bool hoccl_queue_frame(struct hoccl_queue *q, enum hoccl_frame_kind kind, const void *payload, size_t bytes,
                       unsigned credits)
{
    struct hoccl_endpoint *e = q->endpoint;
    struct hoccl_frame frame = {.kind = (uint8_t)kind, .bytes = (uint16_t)bytes, .credits = credits};
    int slot = hoccl_queue_room(q, 1) ? hoccl_slots_take(&e->sends) : -1;
    if (slot < 0)
        return false;
    char *at = hoccl_slots_at(&e->sends, slot);
    memcpy(at, &frame, sizeof frame);
    if (bytes)
        memcpy(at + sizeof frame, payload, bytes);
    struct ibv_sge sge = hoccl_slots_sge(&e->sends, slot, sizeof frame + bytes);
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    int status = hoccl_queue_post(q, &wr, (struct hoccl_flight){.kind = HOCCL_FLIGHT_FRAME, .slot = slot});
    if (status)
        hoccl_slots_give(&e->sends, slot);
    return !status;
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

void hoccl_queue_halt(struct hoccl_queue *q)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    q->endpoint->ibv->modify_qp(q->qp, &attr, IBV_QP_STATE);
}

/* From here its number may be used again; completions that are still in the queue are known by their generation. */
void hoccl_queue_free(struct hoccl_queue *q)
{
    struct hoccl_endpoint *e = q->endpoint;
    uint32_t number = q->qp->qp_num;
    take_out(e, q);
    e->ibv->destroy_qp(q->qp);
    for (uint32_t i = q->first; i != q->next; i++) {
        const struct hoccl_flight *f = &q->flights[i % q->depth];
        if (f->kind == HOCCL_FLIGHT_FRAME || f->kind == HOCCL_FLIGHT_FLUSH)
            hoccl_slots_give(&e->sends, f->slot);
    }
    e->flying -= (int)hoccl_queue_flying(q);
    if (!e->srq)
        hoccl_receive_forget(e, number);
    if (q->window)
        hoccl_receive_release(e, q->window);
    free(q->flights);
    free(q);
}
