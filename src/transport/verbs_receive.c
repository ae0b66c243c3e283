/* SPDX-License-Identifier: Apache-2.0 */
/* Receives. All connections of an endpoint share them: each is promised a window, and so many receives (and three more, see
 * verbs_wire.h) are posted to one shared queue. The more are promised already, the smaller a new window, so that memory has
 * an end: 32 each for the first 230 peers, 2 at least for 1,000. A card without shared queues has the receives of a
 * connection posted to each of its queue pairs instead. */
#include "transport/verbs.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_MOST 32
#define WINDOW_LEAST 2
#define WINDOW_SHARE 256 /* of what is left */

static int least(int a, int b)
{
    return a < b ? a : b;
}

HOCCL_Result hoccl_receive_open(struct hoccl_endpoint *e)
{
    const struct ibv_device_attr *limits = &e->port.limits;
    bool shared = limits->max_srq > 0 && !hoccl_verbs_fault.no_srq;
    int most = least(HOCCL_RECEIVES_MOST, limits->max_cqe - e->budget);
    if (shared) {
        most = least(most, limits->max_srq_wr);
        struct ibv_srq_init_attr attr = {.attr = {.max_wr = (uint32_t)most, .max_sge = 1}};
        e->srq = e->ibv->create_srq(e->pd, &attr);
        if (!e->srq)
            hoccl_log(HOCCL_LOG_INFO, "%s makes no shared receive queue (%s): every queue pair has receives of its own",
                      e->port.here.device, strerror(errno));
    }
    HOCCL_Result r = hoccl_slots_init(&e->receives, e->ibv, e->pd, most);
    if (r)
        return r;
    e->owner = hoccl_alloc((size_t)e->receives.most * sizeof *e->owner, "receives");
    return e->owner ? HOCCL_SUCCESS : HOCCL_ERR_MEMORY;
}

/* Post it to the shared queue, or to that queue pair. */
static int post(struct hoccl_endpoint *e, int slot, struct ibv_qp *qp)
{
    struct ibv_recv_wr *bad, wr = {.wr_id = 1ull << 63 | (unsigned)slot, .num_sge = 1};
    struct ibv_sge sge = hoccl_slots_sge(&e->receives, slot, HOCCL_FRAME_MOST);
    wr.sg_list = &sge;
    if (e->srq)
        return ibv_post_srq_recv(e->srq, &wr, &bad);
    e->owner[slot] = qp->qp_num;
    return ibv_post_recv(qp, &wr, &bad);
}

/* Post new ones: the slots are taken from the pool. */
static HOCCL_Result post_more(struct hoccl_endpoint *e, int n, struct ibv_qp *qp)
{
    for (; n > 0; n--) {
        int slot = hoccl_slots_take(&e->receives);
        if (slot < 0)
            return e->receives.made < e->receives.most
                       ? HOCCL_ERR_MEMORY
                       : hoccl_fail(HOCCL_ERR_MEMORY,
                                    "all %d receives of %s are promised to %d peers already: more take several endpoints",
                                    e->receives.most, e->port.here.device, e->count);
        int status = post(e, slot, qp);
        if (status) {
            hoccl_slots_give(&e->receives, slot);
            return hoccl_fail(HOCCL_ERR_DEVICE, "%s takes no more receives: %s", e->port.here.device, strerror(status));
        }
        e->posted += e->srq ? 1 : 0;
    }
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_receive_keep(struct hoccl_endpoint *e, unsigned *window)
{
    int share = (e->receives.most - e->kept) / WINDOW_SHARE;
    share = share > WINDOW_MOST ? WINDOW_MOST : share < WINDOW_LEAST ? WINDOW_LEAST : share;
    share = least(share, e->queue_depth - HOCCL_WIRE_BEYOND);
    if (e->srq) {
        HOCCL_Result r = post_more(e, e->kept + share + HOCCL_WIRE_BEYOND - e->posted, NULL);
        if (r)
            return r;
    }
    e->kept += share + HOCCL_WIRE_BEYOND;
    *window = (unsigned)share;
    return HOCCL_SUCCESS;
}

void hoccl_receive_release(struct hoccl_endpoint *e, unsigned window)
{
    e->kept -= (int)window + HOCCL_WIRE_BEYOND;
}

HOCCL_Result hoccl_receive_fill(struct hoccl_queue *q, unsigned n)
{
    return q->endpoint->srq ? HOCCL_SUCCESS : post_more(q->endpoint, (int)n, q->qp);
}

/* Those that are still posted to it; what has come by it is given back when it has been seen. */
void hoccl_receive_forget(struct hoccl_endpoint *e, uint32_t number)
{
    for (int i = 0; i < e->receives.made; i++)
        if (e->owner[i] == number) {
            e->owner[i] = 0;
            hoccl_slots_give(&e->receives, i);
        }
}

void hoccl_receive_again(struct hoccl_endpoint *e, int slot, uint32_t number)
{
    const struct hoccl_queue *q = e->srq ? NULL : hoccl_queue_find(e, number);
    e->owner[slot] = 0;
    if (!e->srq && !q) {
        hoccl_slots_give(&e->receives, slot);
        return;
    }
    int status = post(e, slot, q ? q->qp : NULL);
    if (status)
        hoccl_log(HOCCL_LOG_ERROR, "%s takes a receive no more: %s", e->port.here.device, strerror(status));
}
