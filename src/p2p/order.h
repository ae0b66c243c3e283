/* SPDX-License-Identifier: Apache-2.0 */
/* Order of what a NIC writes into a GPU's memory and what is read there afterwards. Of each GPU the driver says who sees such
 * a write as soon as the NIC reports it (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING):
 *
 *   NONE         nobody for sure
 *   OWNER        the GPU itself, but not another one that reads its memory
 *   ALL_DEVICES  everybody
 *
 * For all others the NIC has to flush: to read a byte of that memory, which goes over the bus behind its writes.
 *
 *   ARRIVED ──not demanded──────────────────────────────────────────▶ may be read
 *       └──hoccl_order_flush──▶ waiting ──room──▶ given ──FLUSHED──▶ done(): may be read, or never will be (why)
 *
 * An endpoint has one NIC. (Lanes over several would demand a flush by each of them on every GPU: what one reports says nothing
 * of what another has written.) Owner: the progress thread. */
#ifndef HOCCL_P2P_ORDER_H
#define HOCCL_P2P_ORDER_H

#include "base/list.h"
#include "device/device.h"
#include "transport/transport.h"

struct hoccl_order {
    const struct hoccl_transport *transport;
    struct hoccl_endpoint *endpoint;
    struct hoccl_list waiting, given;
    uint64_t count;    /* requests so far: the number of the last one, which is its tag */
    uint64_t moved_at; /* when one was last answered, or the first was begun, ns */
};

/* One request, its caller's until done() is called, once, with NULL or why it could not be done. */
struct hoccl_order_request {
    struct hoccl_list link;
    uint64_t number;
    const struct hoccl_region *region;
    size_t offset;
    void *owner; /* the caller's */
    void (*done)(struct hoccl_order_request *request, const char *why);
};

/* Must there be a flush before memory of the GPU `ordinal` is read that a NIC has written: by that GPU itself (`own`), or by
 * another one? True where the driver does not say. */
bool hoccl_order_demands_flush(int ordinal, bool own);

void hoccl_order_open(struct hoccl_order *order, const struct hoccl_transport *transport, struct hoccl_endpoint *endpoint);

/* What has arrived at `offset` in the region (constant until done) is to be read: done() may be called from within. */
void hoccl_order_flush(struct hoccl_order *order, struct hoccl_order_request *request);

/* Give the transport what it had no room for; true if it took any. */
bool hoccl_order_step(struct hoccl_order *order);

/* An event FLUSHED. */
void hoccl_order_hear(struct hoccl_order *order, const struct hoccl_transport_event *event);

/* Nothing has been answered since `limit` ns before `now`: every request ends so. `since`: what happened before does not count. */
void hoccl_order_check(struct hoccl_order *order, uint64_t now, uint64_t since, uint64_t limit);

static inline bool hoccl_order_is_idle(const struct hoccl_order *order)
{
    return hoccl_list_empty(&order->waiting) && hoccl_list_empty(&order->given);
}

#endif
