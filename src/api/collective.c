/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives that only move data: each call is one set of flows, a pair of ranks always in both directions.
 *
 *   step            1        2        3              rank r sends to r + 1, r + 2, … and receives from r − 1, r − 2, …,
 *   rank 0 sends    ▶ 1      ▶ 2      ▶ 3            so in each step every GPU pushes to one and receives from one;
 *   rank 1 sends    ▶ 2      ▶ 3      ▶ 0            step 0 is the rank's own piece. A rotation needs no exchange and is
 *   rank 2 sends    ▶ 3      ▶ 0      ▶ 1            the optimum for equal pieces; unequal ones are put in order by the
 *   rank 3 sends    ▶ 0      ▶ 1      ▶ 2            receivers' grants.
 *
 * With a root, root is paired with every rank and the others with root only; where nothing is to be moved the flow has 0
 * bytes and still carries the collective's number and root. It costs no waiting, for root hears from every rank anyway,
 * and two ranks that name different roots find out, whereas two that only send to each other would wait for ever. */
#include "api/group.h"
#include "api/overlap.h"
#include "base/error.h"

/* One collective's arguments. */
struct collective {
    struct hoccl_slices send, receive;
    bool in_place; /* the own piece may stand already where it is received */
};

/* What is being made. */
struct making {
    struct hoccl_call *call;
    const struct collective *what;
    int rank, size, root;
    size_t sent, received; /* bytes so far */
    struct hoccl_slice own; /* stays where it is; 0 bytes if it moves */
};

static HOCCL_Result get(struct making *m, bool is_send, int peer, struct hoccl_slice *slice)
{
    const struct hoccl_slices *s = is_send ? &m->what->send : &m->what->receive;
    *slice = (struct hoccl_slice){0};
    if (!hoccl_slices_has(s, m->rank, peer, m->root))
        return HOCCL_SUCCESS;
    return hoccl_slices_get(s, peer, m->call->element_size, is_send ? "send" : "receive", is_send ? &m->sent : &m->received,
                            slice);
}

/* This rank's piece for itself: nothing, in place, or a flow to itself. Both sides of it are known here. */
static HOCCL_Result add_own(struct making *m)
{
    struct hoccl_slice from, to;
    HOCCL_Result r = get(m, true, m->rank, &from);
    if (!r)
        r = get(m, false, m->rank, &to);
    if (r)
        return r;
    if (from.bytes != to.bytes)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "rank %d sends %zu elements to itself and receives %zu from itself", m->rank,
                          from.bytes / m->call->element_size, to.bytes / m->call->element_size);
    if (!from.bytes)
        return HOCCL_SUCCESS;
    if (m->what->in_place && from.address == to.address) {
        m->own = from;
        return HOCCL_SUCCESS;
    }
    r = hoccl_call_add(m->call, false, m->rank, to.address, to.bytes);
    return r ? r : hoccl_call_add(m->call, true, m->rank, from.address, from.bytes);
}

static HOCCL_Result add_flow(struct making *m, bool is_send, int peer)
{
    struct hoccl_slice s;
    if (m->root >= 0 && m->rank != m->root && peer != m->root)
        return HOCCL_SUCCESS;
    HOCCL_Result r = get(m, is_send, peer, &s);
    return r ? r : hoccl_call_add(m->call, is_send, peer, s.address, s.bytes);
}

/* A step's receive stands before its send: granting is what the peer waits for. */
static HOCCL_Result rotate(struct making *m)
{
    HOCCL_Result r = add_own(m);
    for (int step = 1; step < m->size && !r; step++) {
        r = add_flow(m, false, (m->rank - step + m->size) % m->size);
        if (!r)
            r = add_flow(m, true, (m->rank + step) % m->size);
    }
    return r;
}

static HOCCL_Result make(struct hoccl_call *call, const void *arguments)
{
    const struct collective *what = arguments;
    struct making m = {.call = call, .what = what, .rank = call->comm->rank, .size = call->comm->size, .root = call->root};
    HOCCL_Result r = hoccl_slices_check(&what->send, m.rank, m.root, "send");
    if (!r)
        r = hoccl_slices_check(&what->receive, m.rank, m.root, "receive");
    if (!r)
        r = rotate(&m);
    return r ? r : hoccl_overlap_check(hoccl_call_requests(call), call->count, &m.own);
}

static HOCCL_Result make_rooted(struct hoccl_call *call, const void *arguments)
{
    if (call->root < 0 || call->root >= call->comm->size)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "root %d: the communicator has ranks 0 to %d", call->root, call->comm->size - 1);
    return make(call, arguments);
}

/* ---- every rank to every rank ------------------------------------------------------------------------------------ */

HOCCL_Result HOCCL_AllGather(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype, HOCCL_Comm comm,
                             HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_AllGather", comm, stream, datatype, HOCCL_FLOW_ALLGATHER, -1, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = sendcount},
                           .receive = {.buf = recvbuf, .count = sendcount, .step = sendcount},
                           .in_place = true};
    return hoccl_group_call(&call, make, &c);
}

HOCCL_Result HOCCL_AllGatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                              const size_t *displs, HOCCL_Datatype datatype, HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_AllGatherv", comm, stream, datatype, HOCCL_FLOW_ALLGATHER, -1, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = sendcount},
                           .receive = {.buf = recvbuf, .arrays = true, .counts = recvcounts, .displs = displs},
                           .in_place = true};
    return hoccl_group_call(&call, make, &c);
}

HOCCL_Result HOCCL_Alltoall(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype, HOCCL_Comm comm,
                            HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Alltoall", comm, stream, datatype, HOCCL_FLOW_ALLTOALL, -1, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = count, .step = count},
                           .receive = {.buf = recvbuf, .count = count, .step = count}};
    return hoccl_group_call(&call, make, &c);
}

HOCCL_Result HOCCL_Alltoallv(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls, void *recvbuf,
                             const size_t *recvcounts, const size_t *rdispls, HOCCL_Datatype datatype, HOCCL_Comm comm,
                             HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Alltoallv", comm, stream, datatype, HOCCL_FLOW_ALLTOALL, -1, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .arrays = true, .counts = sendcounts, .displs = sdispls},
                           .receive = {.buf = recvbuf, .arrays = true, .counts = recvcounts, .displs = rdispls}};
    return hoccl_group_call(&call, make, &c);
}

/* ---- with a root ------------------------------------------------------------------------------------------------- */

/* For now root sends to each rank in turn, so its push engine moves count × (size − 1). A pipelined tree, in which the
 * others pass chunks on, comes with the scheduler. */
HOCCL_Result HOCCL_Broadcast(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype, int root,
                             HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Broadcast", comm, stream, datatype, HOCCL_FLOW_BROADCAST, root, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = count, .with = HOCCL_WITH_AT_ROOT},
                           .receive = {.buf = recvbuf, .count = count, .with = HOCCL_WITH_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}

HOCCL_Result HOCCL_Gather(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype, int root,
                          HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Gather", comm, stream, datatype, HOCCL_FLOW_GATHER, root, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = sendcount, .with = HOCCL_WITH_ROOT},
                           .receive = {.buf = recvbuf, .count = sendcount, .step = sendcount, .with = HOCCL_WITH_AT_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}

HOCCL_Result HOCCL_Gatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                           const size_t *displs, HOCCL_Datatype datatype, int root, HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Gatherv", comm, stream, datatype, HOCCL_FLOW_GATHER, root, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = sendcount, .with = HOCCL_WITH_ROOT},
                           .receive = {.buf = recvbuf, .arrays = true, .counts = recvcounts, .displs = displs,
                                       .with = HOCCL_WITH_AT_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}

HOCCL_Result HOCCL_Scatter(const void *sendbuf, void *recvbuf, size_t recvcount, HOCCL_Datatype datatype, int root,
                           HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Scatter", comm, stream, datatype, HOCCL_FLOW_SCATTER, root, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = recvcount, .step = recvcount, .with = HOCCL_WITH_AT_ROOT},
                           .receive = {.buf = recvbuf, .count = recvcount, .with = HOCCL_WITH_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}

HOCCL_Result HOCCL_Scatterv(const void *sendbuf, const size_t *sendcounts, const size_t *displs, void *recvbuf,
                            size_t recvcount, HOCCL_Datatype datatype, int root, HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Scatterv", comm, stream, datatype, HOCCL_FLOW_SCATTER, root, NULL, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .arrays = true, .counts = sendcounts, .displs = displs,
                                    .with = HOCCL_WITH_AT_ROOT},
                           .receive = {.buf = recvbuf, .count = recvcount, .with = HOCCL_WITH_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}
