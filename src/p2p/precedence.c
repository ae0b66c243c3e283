/* SPDX-License-Identifier: Apache-2.0 */
/* See precedence.h. */
#include "p2p/precedence.h"

static bool counts(const struct hoccl_flow *f, bool is_send)
{
    return f->is_send == is_send && f->peer->far && f->header.bytes && !f->header.whole;
}

static bool is_uneven(const struct hoccl_flow *flows, int n, bool is_send)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++) {
        if (!counts(&flows[i], is_send))
            continue;
        if (bytes && flows[i].header.bytes != bytes)
            return true;
        bytes = flows[i].header.bytes;
    }
    return false;
}

void hoccl_precedence_judge(struct hoccl_flow *flows, int n)
{
    for (int is_send = 0; is_send < 2; is_send++) {
        bool uneven = is_uneven(flows, n, is_send);
        for (int i = 0; i < n && uneven; i++)
            flows[i].wire.uneven |= counts(&flows[i], is_send);
    }
}

static uint64_t left(const struct hoccl_flow *f)
{
    const struct hoccl_flow_wire *p = &f->wire;
    return (uint64_t)(p->chunks - (f->is_send ? p->started : p->granted)) * p->chunk;
}

static bool before(const struct hoccl_flow *a, const struct hoccl_flow *b)
{
    uint64_t x = a->wire.uneven ? left(a) : 0, y = b->wire.uneven ? left(b) : 0;
    return x == y ? a->order < b->order : x > y;
}

/* From the end, since what comes late belongs there more often than not. */
void hoccl_precedence_insert(struct hoccl_list *list, struct hoccl_flow *flow)
{
    struct hoccl_list *place = list;
    for (struct hoccl_list *l = list->prev; l != list; l = l->prev) {
        const struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, wire.turn);
        if (f->op != flow->op)
            continue;
        if (before(f, flow)) {
            place = l->next;
            break;
        }
        place = l;
    }
    hoccl_list_append(place, &flow->wire.turn);
}
