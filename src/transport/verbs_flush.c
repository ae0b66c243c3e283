/* SPDX-License-Identifier: Apache-2.0 */
/* Flush: where a GPU does not order what RDMA writes before what it reads later, the card reads a byte of that memory back.
 * The read goes over the bus behind the writes, and its answer is back when they are done. It needs a queue pair of the
 * endpoint to itself, made at the first flush; the byte goes into a slot that nobody looks at. */
#include "transport/verbs.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The card is its own peer: nothing here waits. */
static bool make_loop(struct hoccl_endpoint *e)
{
    struct hoccl_queue *q;
    const char *step;
    if (hoccl_queue_make(e, NULL, HOCCL_LOOP, &q))
        return false;
    struct hoccl_offer own = hoccl_offer_of_port(e);
    own.number[0] = q->qp->qp_num;
    own.sequence[0] = q->sequence;
    if (!hoccl_queue_connect(q, &own, &own, 0, &step)) {
        hoccl_fail(HOCCL_ERR_DEVICE, "%s connects no queue pair to itself (to %s): %s", e->port.here.device, step,
                   strerror(errno));
        hoccl_queue_free(q);
        return false;
    }
    e->loop = q;
    return true;
}

/* It will not be done: true if there is room to say so. */
static bool give_up(struct hoccl_endpoint *e, uint64_t tag, const char *why)
{
    if (!hoccl_news_room(e))
        return false;
    hoccl_news_add_flushed(e, tag, why);
    return true;
}

bool hoccl_verbs_flush(struct hoccl_endpoint *e, const struct hoccl_region *region, size_t offset, uint64_t tag)
{
    const struct ibv_mr *mr = region->own;
    if (!e->loop && !make_loop(e))
        return give_up(e, tag, hoccl_error_text());
    int slot = hoccl_queue_room(e->loop, 1) ? hoccl_slots_take(&e->sends) : -1;
    if (slot < 0)
        return false;
    struct ibv_sge sge = hoccl_slots_sge(&e->sends, slot, 1);
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {region->key.address + offset, mr->rkey}};
    struct hoccl_flight f = {.kind = HOCCL_FLIGHT_FLUSH, .slot = slot, .tag = tag};
    int status = hoccl_queue_post(e->loop, &wr, f);
    if (!status)
        return true;
    hoccl_slots_give(&e->sends, slot);
    return give_up(e, tag, strerror(status));
}

/* Poll finds the end of the connections in its next round of heartbeats. */
void hoccl_flush_failed(struct hoccl_endpoint *e, enum ibv_wc_status status)
{
    struct hoccl_queue *q = e->loop;
    char why[sizeof e->fatal];
    pthread_mutex_lock(&e->port_lock);
    if (!*e->fatal) /* the first cause is the one that tells something */
        snprintf(e->fatal, sizeof e->fatal, "reading its own memory, to flush what has arrived: %s", e->ibv->wc_status_str(status));
    memcpy(why, e->fatal, sizeof why);
    pthread_mutex_unlock(&e->port_lock);
    e->next_beat = 0;
    for (; q->first != q->next; q->first++) {
        const struct hoccl_flight *f = &q->flights[q->first % q->depth];
        hoccl_slots_give(&e->sends, f->slot);
        e->flying--;
        hoccl_news_add_flushed(e, f->tag, why);
    }
}
