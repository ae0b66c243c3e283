/* SPDX-License-Identifier: Apache-2.0 */
/* From checked requests, one for each rank and direction, to those of a plan. What stays on the node keeps its order; what
 * crosses becomes the plan's parts, each a message of its own. A pair has the same parts in the same order at both ends, so
 * they match as any messages do, and the order of a rank's parts is the order of its requests, by which the wire goes
 * (p2p/precedence.h).
 *
 *   to 1: 12 MiB ┐      plan: stage 1  0 → 1  8 MiB      requests: to itself, then  to 1: 8 MiB (of 12)
 *   to 2:  4 MiB ┘            stage 2  0 → 2  4 MiB                                  to 2: 4 MiB (of 4)
 *                             stage 3  0 → 1  4 MiB                                  to 1: 4 MiB (of 12), then those of the node */
#include "api/planned.h"

#include "api/handle.h"
#include "base/error.h"
#include "core/rows.h"

#include <stdlib.h>
#include <string.h>

/* The requests of one rank by direction and peer. */
struct table {
    const struct hoccl_comm *comm;
    const struct hoccl_request *requests;
    size_t count;
    const struct hoccl_request **to[2]; /* [is_send][peer]; NULL: none */
    uint64_t *bytes[2];                 /* the same */
};

static HOCCL_Result table_open(struct table *t, const struct hoccl_comm *comm, const struct hoccl_request *requests, size_t count)
{
    size_t size = (size_t)comm->size;
    *t = (struct table){.comm = comm, .requests = requests, .count = count};
    t->to[0] = hoccl_alloc(2 * size * sizeof *t->to[0], "a plan");
    t->bytes[0] = hoccl_alloc(2 * size * sizeof *t->bytes[0], "a plan");
    if (!t->to[0] || !t->bytes[0])
        return HOCCL_ERR_MEMORY;
    t->to[1] = t->to[0] + size;
    t->bytes[1] = t->bytes[0] + size;
    for (size_t i = 0; i < count; i++) {
        const struct hoccl_request *q = &requests[i];
        t->to[q->is_send][q->peer] = q;
        t->bytes[q->is_send][q->peer] = q->header.bytes;
    }
    return HOCCL_SUCCESS;
}

static void table_close(struct table *t)
{
    free(t->to[0]);
    free(t->bytes[0]);
}

static bool crosses(const struct table *t, const struct hoccl_request *q)
{
    const struct hoccl_layout *l = t->comm->layout;
    return l->node[q->peer] != l->node[t->comm->rank] && q->header.bytes;
}

static bool is_own(const struct hoccl_comm *comm, const struct hoccl_part_of *p, bool is_send)
{
    return (is_send ? p->src : p->dst) == comm->rank;
}

static struct hoccl_request part_of(const struct hoccl_request *whole, const struct hoccl_part_of *p)
{
    struct hoccl_request q = *whole;
    q.address = (const char *)q.address + p->offset;
    q.memory.offset += p->offset;
    q.header.whole = q.header.bytes;
    q.header.bytes = p->bytes;
    return q;
}

/* Into `made`, which has room; how many. `own`: those to itself, or the others that do not cross. */
static size_t copy_rest(const struct table *t, bool own, struct hoccl_request *made)
{
    size_t n = 0;
    for (size_t i = 0; i < t->count; i++)
        if (!crosses(t, &t->requests[i]) && (t->requests[i].peer == t->comm->rank) == own)
            made[n++] = t->requests[i];
    return n;
}

/* A part's receive stands before a send of the same place, as in all collectives. `bytes` counts down. */
static size_t copy_parts(const struct table *t, const struct hoccl_parts *parts, struct hoccl_request *made)
{
    size_t n = 0;
    for (const struct hoccl_part_of *p = parts->part; p < parts->part + parts->parts; p++)
        for (int is_send = 0; is_send < 2; is_send++) {
            int peer = is_send ? p->dst : p->src;
            if (!is_own(t->comm, p, is_send))
                continue;
            made[n++] = part_of(t->to[is_send][peer], p);
            t->bytes[is_send][peer] -= p->bytes;
        }
    return n;
}

/* A plan that leaves a byte out, or moves one twice, is never started. */
static HOCCL_Result check_complete(const struct table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        const struct hoccl_request *q = &t->requests[i];
        if (crosses(t, q) && t->bytes[q->is_send][q->peer])
            return hoccl_fail(HOCCL_ERR_INTERNAL, "the plan does not cover the %zu bytes %s rank %d", (size_t)q->header.bytes,
                              q->is_send ? "to" : "from", q->peer);
    }
    return HOCCL_SUCCESS;
}

static size_t count_own(const struct hoccl_comm *comm, const struct hoccl_parts *parts)
{
    size_t n = 0;
    for (size_t i = 0; i < parts->parts; i++)
        n += is_own(comm, &parts->part[i], true) || is_own(comm, &parts->part[i], false);
    return n;
}

static HOCCL_Result follow(const struct table *t, const struct hoccl_parts *parts, struct hoccl_request **requests, size_t *count)
{
    size_t most = t->count + count_own(t->comm, parts), n;
    struct hoccl_request *made = hoccl_alloc(most * sizeof *made, "a plan");
    if (!made)
        return HOCCL_ERR_MEMORY;
    n = copy_rest(t, true, made);
    n += copy_parts(t, parts, made + n);
    n += copy_rest(t, false, made + n);
    HOCCL_Result r = check_complete(t);
    if (r) {
        free(made);
        return r;
    }
    for (size_t i = 0; i < n; i++)
        made[i].begins = !i;
    free(*requests);
    *requests = made;
    *count = n;
    return HOCCL_SUCCESS;
}

/* A rank that cannot follow what all have agreed on would be waited for in every start: so it fails the communicator. */
static HOCCL_Result agree(struct hoccl_comm *comm, struct hoccl_request **requests, size_t *count)
{
    struct hoccl_choice choice = {0};
    struct table t;
    HOCCL_Result r = table_open(&t, comm, *requests, *count);
    if (r) {
        hoccl_rows_refuse(comm);
    } else {
        struct hoccl_rows rows = {t.bytes[1], t.bytes[0], *count ? (*requests)->header.element_size : 1};
        r = hoccl_rows_agree(comm, &rows, &choice);
    }
    if (!r && choice.planned && (r = follow(&t, &choice.parts, requests, count)))
        hoccl_comm_fail(comm, r);
    hoccl_choice_fini(&choice);
    table_close(&t);
    return r;
}

HOCCL_Result hoccl_planned(HOCCL_Comm handle, HOCCL_Result so_far, struct hoccl_request **requests, size_t *count)
{
    char text[HOCCL_ERROR_TEXT];
    struct hoccl_comm *comm;
    memcpy(text, hoccl_error_text(), sizeof text);
    HOCCL_Result r = hoccl_handle_enter(handle, &comm);
    if (so_far)
        hoccl_fail_again(so_far, text);
    if (r)
        return so_far ? so_far : r;
    if (so_far)
        hoccl_rows_refuse(comm);
    else
        r = agree(comm, requests, count);
    hoccl_handle_leave(handle, comm);
    return so_far ? hoccl_fail_again(so_far, text) : r;
}
