/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcast: the message in pieces, each down a tree of ranks (sched/broadcast.h has the trees and chooses their shape by
 * size: the root to all for a short one, a chain in many pieces for a long one; across nodes each piece crosses once).
 *
 *   root      send 0 ─────▶ send 1 ─────▶ …       A rank passes a piece on when it has landed: each send waits for its
 *   rank 1       receive 0 ▶ receive 1 ▶ …        receive (flow.h, `after`). At most WINDOW pieces of a rank are under
 *                   send 0 ────▶ send 1 ▶ …       way; the next one waits for the one WINDOW before it.
 *
 * Ranks that name different roots or counts see different trees and would wait for one another for ever. So every rank
 * compares root and whole size with the rank behind it, first of all and waiting for nothing: in a flow of 0 bytes, unless root
 * sends there anyway. As the ranks are a chain of such pairs, two that differ are found wherever they are. */
#include "api/group.h"
#include "api/overlap.h"
#include "base/error.h"
#include "sched/broadcast.h"

#define WINDOW 8u

struct message {
    const void *from; /* read at root only */
    void *to;
    size_t count;
};

struct making {
    struct hoccl_call *call;
    struct hoccl_broadcast shape;
    int rank;
    const char *at;                        /* where pieces are read, and at other ranks than root written first */
    size_t first[HOCCL_BROADCAST_PIECES];  /* of each piece, the first request */
};

/* One piece: from whom, then to whom. */
static HOCCL_Result add_piece(struct making *m, uint32_t piece)
{
    const struct hoccl_broadcast *b = &m->shape;
    uint64_t at = piece * b->piece_bytes, left = b->bytes - at;
    size_t bytes = left < b->piece_bytes ? left : b->piece_bytes, first = m->call->count;
    int from = hoccl_broadcast_from(b, m->rank, piece), to;
    HOCCL_Result r = HOCCL_SUCCESS;
    if (from >= 0)
        r = hoccl_call_add(m->call, false, from, m->at + at, bytes);
    if (!r && from >= 0 && piece >= WINDOW)
        hoccl_call_after(m->call, m->first[piece - WINDOW]);
    for (int i = 0; !r && (to = hoccl_broadcast_to(b, m->rank, piece, i)) >= 0; i++) {
        r = hoccl_call_add(m->call, true, to, m->at + at, bytes);
        if (!r && from >= 0)
            hoccl_call_after(m->call, first);
        else if (!r && piece >= WINDOW)
            hoccl_call_after(m->call, m->first[piece - WINDOW]);
    }
    m->first[piece] = first;
    return r;
}

/* Is the first flow from rank r to the next one a piece that waits for nothing at either end? */
static bool sends_at_once(const struct hoccl_broadcast *b, int r)
{
    for (uint32_t piece = 0; piece < b->pieces && piece < WINDOW && r == b->root; piece++)
        if (hoccl_broadcast_from(b, r + 1, piece) == r)
            return true;
    return false;
}

static HOCCL_Result add_checks(struct making *m)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    if (m->rank > 0 && !sends_at_once(&m->shape, m->rank - 1))
        r = hoccl_call_add(m->call, false, m->rank - 1, NULL, 0);
    if (!r && m->rank + 1 < m->call->comm->size && !sends_at_once(&m->shape, m->rank))
        r = hoccl_call_add(m->call, true, m->rank + 1, NULL, 0);
    return r;
}

/* Out of place, root's own copy, the last: the others wait for what is in front of it. */
static HOCCL_Result add_own(struct making *m, const struct hoccl_slice *from, const struct hoccl_slice *to)
{
    m->call->whole = 0;
    HOCCL_Result r = hoccl_call_add(m->call, false, m->rank, to->address, to->bytes);
    return r ? r : hoccl_call_add(m->call, true, m->rank, from->address, from->bytes);
}

static HOCCL_Result check(const struct hoccl_call *call, const struct message *what, struct hoccl_slice *from,
                          struct hoccl_slice *to)
{
    const struct hoccl_slices send = {.buf = what->from, .count = what->count},
                              receive = {.buf = what->to, .count = what->count};
    size_t sent = 0, received = 0;
    if (call->root < 0 || call->root >= call->comm->size)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "root %d: the communicator has ranks 0 to %d", call->root, call->comm->size - 1);
    HOCCL_Result r = hoccl_slices_get(&receive, 0, call->element_size, "receive", &received, to);
    if (!r && call->comm->rank == call->root)
        r = hoccl_slices_get(&send, 0, call->element_size, "send", &sent, from);
    return r;
}

static HOCCL_Result make(struct hoccl_call *call, const void *arguments)
{
    const struct hoccl_comm *c = call->comm;
    struct hoccl_slice from = {0}, to, nothing = {0};
    struct making m = {.call = call, .rank = c->rank};
    bool root = c->rank == call->root;
    HOCCL_Result r = check(call, arguments, &from, &to);
    if (r)
        return r;
    hoccl_broadcast_plan(&m.shape, c->layout, c->size, hoccl_machine_find("h200"), call->root, to.bytes);
    m.at = root ? from.address : to.address;
    call->whole = to.bytes;
    r = add_checks(&m);
    for (uint32_t piece = 0; piece < m.shape.pieces && !r; piece++)
        r = add_piece(&m, piece);
    if (!r && root && from.address != to.address)
        r = add_own(&m, &from, &to);
    return r || !root ? r : hoccl_overlap_check(hoccl_call_requests(call), call->count, &nothing);
}

HOCCL_Result HOCCL_Broadcast(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype, int root,
                             HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Broadcast", comm, stream, datatype, HOCCL_FLOW_BROADCAST, root, NULL, 0, 0, 0};
    struct message m = {sendbuf, recvbuf, count};
    return hoccl_group_call(&call, make, &m);
}
