/* SPDX-License-Identifier: Apache-2.0 */
/* See order.h. Requests are few, and answered nearly in their order: lists do. */
#include "p2p/order.h"

#include "base/clock.h"

#include <stdio.h>

bool hoccl_order_demands_flush(int ordinal, bool own)
{
    int order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
    if (hoccl_driver.DeviceGetAttribute(&order, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, ordinal))
        return true;
    return order < (own ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER : CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES);
}

void hoccl_order_open(struct hoccl_order *order, const struct hoccl_transport *transport, struct hoccl_endpoint *endpoint)
{
    order->transport = transport;
    order->endpoint = endpoint;
    hoccl_list_init(&order->waiting);
    hoccl_list_init(&order->given);
}

static bool give(struct hoccl_order *order, struct hoccl_order_request *r)
{
    if (!order->transport->flush(order->endpoint, r->region, r->offset, r->number))
        return false;
    hoccl_list_remove(&r->link);
    hoccl_list_append(&order->given, &r->link);
    return true;
}

void hoccl_order_flush(struct hoccl_order *order, struct hoccl_order_request *request)
{
    if (hoccl_order_is_idle(order))
        order->moved_at = hoccl_now();
    bool first = hoccl_list_empty(&order->waiting);
    request->number = ++order->count;
    hoccl_list_init(&request->link);
    hoccl_list_append(&order->waiting, &request->link);
    if (first)
        give(order, request);
}

bool hoccl_order_step(struct hoccl_order *order)
{
    bool moved = false;
    while (!hoccl_list_empty(&order->waiting) && give(order, hoccl_entry(order->waiting.next, struct hoccl_order_request, link)))
        moved = true;
    return moved;
}

static void end(struct hoccl_order_request *r, const char *why)
{
    hoccl_list_remove(&r->link);
    r->done(r, why);
}

/* One that is not found has been given up. */
void hoccl_order_hear(struct hoccl_order *order, const struct hoccl_transport_event *event)
{
    for (struct hoccl_list *l = order->given.next; l != &order->given; l = l->next) {
        struct hoccl_order_request *r = hoccl_entry(l, struct hoccl_order_request, link);
        if (r->number != event->tag)
            continue;
        order->moved_at = hoccl_now();
        end(r, event->text);
        return;
    }
}

void hoccl_order_check(struct hoccl_order *order, uint64_t now, uint64_t since, uint64_t limit)
{
    uint64_t last = order->moved_at > since ? order->moved_at : since;
    char why[128];
    if (hoccl_order_is_idle(order) || now <= last || now - last <= limit)
        return;
    snprintf(why, sizeof why, "the NIC has not flushed what it has written for %llu s (HOCCL_TIMEOUT)",
             (unsigned long long)(limit / HOCCL_S));
    while (!hoccl_list_empty(&order->waiting))
        end(hoccl_entry(order->waiting.next, struct hoccl_order_request, link), why);
    while (!hoccl_list_empty(&order->given))
        end(hoccl_entry(order->given.next, struct hoccl_order_request, link), why);
}
