/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives that only move data, but Broadcast: each call is one set of flows, put in the order in which a rank's
 * engines and NIC are to take them.
 *
 *   one node        1        2        3              rank r sends to r + 1, r + 2, … and receives from r − 1, r − 2, …,
 *   rank 0 sends    ▶ 1      ▶ 2      ▶ 3            so in each step every GPU pushes to one and receives from one;
 *   rank 1 sends    ▶ 2      ▶ 3      ▶ 0            step 0 is the rank's own piece
 *   rank 2 sends    ▶ 3      ▶ 0      ▶ 1
 *   rank 3 sends    ▶ 0      ▶ 1      ▶ 2
 *
 *   several nodes   the same for the peers on this node, and for those on others the planner's stages (sched/rotate.h): in
 *                   each of them a GPU sends to one and receives from one. The two go side by side, over NVLink and
 *                   over the wire; p2p/engine.c and p2p/wire.c each keep to the order of their flows here.
 *
 *   AllGather       the same for the node; a piece crosses to each other node once, to the rank in the same place, which passes
 *                   it on to the others there when it has landed
 *
 * A rotation needs no exchange and is the optimum for equal pieces; the wires of unequal ones are put in order by what the
 * ranks have left (p2p/wire.h).
 *
 * With a root, a rank and the next one have a flow in any case, of 0 bytes where nothing is to be moved: it carries the
 * collective's number and root, and as every rank is compared with the next, ranks that name different roots find out. */
#include "api/group.h"
#include "api/overlap.h"
#include "base/error.h"
#include "base/setting.h"
#include "sched/rotate.h"

/* One collective's arguments. */
struct collective {
    struct hoccl_slices send, receive;
    bool in_place; /* the own piece may stand already where it is received */
    bool same;     /* everyone gets the same piece of a rank: what has come to a node can be passed on there */
};

/* What is being made. */
struct making {
    struct hoccl_call *call;
    const struct collective *what;
    int rank, size, root;
    size_t sent, received; /* bytes so far */
    struct hoccl_slice own; /* stays where it is; 0 bytes if it moves */
};

static bool has(const struct making *m, bool is_send, int peer)
{
    return hoccl_slices_has(is_send ? &m->what->send : &m->what->receive, m->rank, peer, m->root);
}

/* Where there is nothing to move, does a flow of 0 bytes compare the two ranks' roots? */
static bool checks(const struct making *m, bool is_send, int peer)
{
    return m->root >= 0 && peer == (is_send ? m->rank + 1 : m->rank - 1);
}

static HOCCL_Result get(struct making *m, bool is_send, int peer, struct hoccl_slice *slice)
{
    *slice = (struct hoccl_slice){0};
    if (!has(m, is_send, peer))
        return HOCCL_SUCCESS;
    return hoccl_slices_get(is_send ? &m->what->send : &m->what->receive, peer, m->call->element_size,
                            is_send ? "send" : "receive", is_send ? &m->sent : &m->received, slice);
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
    struct hoccl_slice s = {0};
    HOCCL_Result r = HOCCL_SUCCESS;
    if (has(m, is_send, peer))
        r = get(m, is_send, peer, &s);
    else if (!checks(m, is_send, peer))
        return HOCCL_SUCCESS;
    return r ? r : hoccl_call_add(m->call, is_send, peer, s.address, s.bytes);
}

/* A step's receive stands before its send: granting is what the peer waits for. */
static HOCCL_Result add_step(struct making *m, int from, int to)
{
    HOCCL_Result r = from < 0 ? HOCCL_SUCCESS : add_flow(m, false, from);
    return r || to < 0 ? r : add_flow(m, true, to);
}

/* ---- several nodes, the same for all ----------------------------------------------------------------------------- */

/* The rank of a node to which the piece of a rank of another node comes: of equal nodes, the one in the same place. */
static int entry(const struct hoccl_layout *l, int node, int source)
{
    return l->member[l->first[node] + l->local[source] % hoccl_layout_size(l, node)];
}

/* The piece of `source`, as it stands in the receive buffer. */
static HOCCL_Result add_piece(struct making *m, bool is_send, int peer, int source)
{
    struct hoccl_slice s;
    size_t again = 0; /* a piece that is passed on has been counted */
    HOCCL_Result r = hoccl_slices_get(&m->what->receive, source, m->call->element_size, "receive",
                                      is_send ? &again : &m->received, &s);
    return r ? r : hoccl_call_add(m->call, is_send, peer, s.address, s.bytes);
}

/* From node `from`: the pieces that come in by this rank, each passed on to the others of this node when it is here. */
static HOCCL_Result take_in(struct making *m, const struct hoccl_layout *l, int from)
{
    int node = l->node[m->rank], own = l->local[m->rank], size = hoccl_layout_size(l, node);
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int i = own; i < hoccl_layout_size(l, from) && !r; i += size) {
        int source = l->member[l->first[from] + i];
        size_t here = m->call->count;
        r = add_piece(m, false, source, source);
        for (int step = 1; step < size && !r; step++) {
            r = add_piece(m, true, l->member[l->first[node] + (own + step) % size], source);
            if (!r)
                hoccl_call_after(m->call, here);
        }
    }
    return r;
}

/* Those that come in by others of this node. For each of these, sender and receiver have them in the same order. */
static HOCCL_Result take_over(struct making *m, const struct hoccl_layout *l, int from)
{
    int node = l->node[m->rank], own = l->local[m->rank], size = hoccl_layout_size(l, node);
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int step = 1; step < size && !r; step++) {
        int local = (own - step + size) % size;
        for (int i = local; i < hoccl_layout_size(l, from) && !r; i += size)
            r = add_piece(m, false, l->member[l->first[node] + local], l->member[l->first[from] + i]);
    }
    return r;
}

static HOCCL_Result pass_on(struct making *m, const struct hoccl_layout *l)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int ahead = 1; ahead < l->nodes && !r; ahead++) {
        int node = l->node[m->rank], from = (node - ahead + l->nodes) % l->nodes;
        r = take_in(m, l, from);
        if (!r)
            r = add_flow(m, true, entry(l, (node + ahead) % l->nodes, m->rank));
        if (!r)
            r = take_over(m, l, from);
    }
    return r;
}

/* ---- */

static HOCCL_Result go_abroad(struct making *m, const struct hoccl_layout *l)
{
    struct hoccl_rotation rule = hoccl_rotation_rule(l);
    HOCCL_Result r = HOCCL_SUCCESS;
    for (uint32_t stage = 0; stage < rule.stages && !r; stage++)
        r = add_step(m, hoccl_rotation_from(&rule, m->rank, stage), hoccl_rotation_to(&rule, m->rank, stage));
    return r;
}

/* The place, among the ranks of a node, of the one that this rank sends to, or receives from, in a step of 1 … size − 1. A test's
 * fault: every rank turns to the same one, so that its link takes what all the others push. */
static int turn(int own, int step, int size, bool is_send)
{
    if (hoccl_settings.test_break == HOCCL_BREAK_NO_ROTATION)
        return step - (step <= own);
    return (is_send ? own + step : own - step + size) % size;
}

/* One node: the peers in turn. Several: first those on other nodes by the planner's stages, then those on this one. */
static HOCCL_Result rotate(struct making *m)
{
    const struct hoccl_layout *l = m->call->comm->layout;
    int size = l ? hoccl_layout_size(l, l->node[m->rank]) : m->size, own = l ? l->local[m->rank] : m->rank;
    const int16_t *member = l ? &l->member[l->first[l->node[m->rank]]] : NULL;
    HOCCL_Result r = add_own(m);
    if (!r && l)
        r = m->what->same ? pass_on(m, l) : go_abroad(m, l);
    for (int step = 1; step < size && !r; step++) {
        int from = turn(own, step, size, false), to = turn(own, step, size, true);
        r = add_step(m, member ? member[from] : from, member ? member[to] : to);
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
    struct hoccl_call call = {"HOCCL_AllGather", comm, stream, datatype, HOCCL_FLOW_ALLGATHER, -1, NULL, 0, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = sendcount},
                           .receive = {.buf = recvbuf, .count = sendcount, .step = sendcount},
                           .in_place = true, .same = true};
    return hoccl_group_call(&call, make, &c);
}

HOCCL_Result HOCCL_AllGatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                              const size_t *displs, HOCCL_Datatype datatype, HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_AllGatherv", comm, stream, datatype, HOCCL_FLOW_ALLGATHER, -1, NULL, 0, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = sendcount},
                           .receive = {.buf = recvbuf, .arrays = true, .counts = recvcounts, .displs = displs},
                           .in_place = true, .same = true};
    return hoccl_group_call(&call, make, &c);
}

HOCCL_Result HOCCL_Alltoall(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype, HOCCL_Comm comm,
                            HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Alltoall", comm, stream, datatype, HOCCL_FLOW_ALLTOALL, -1, NULL, 0, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = count, .step = count},
                           .receive = {.buf = recvbuf, .count = count, .step = count}};
    return hoccl_group_call(&call, make, &c);
}

HOCCL_Result HOCCL_Alltoallv(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls, void *recvbuf,
                             const size_t *recvcounts, const size_t *rdispls, HOCCL_Datatype datatype, HOCCL_Comm comm,
                             HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Alltoallv", comm, stream, datatype, HOCCL_FLOW_ALLTOALL, -1, NULL, 0, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .arrays = true, .counts = sendcounts, .displs = sdispls},
                           .receive = {.buf = recvbuf, .arrays = true, .counts = recvcounts, .displs = rdispls}};
    return hoccl_group_call(&call, make, &c);
}

/* ---- with a root ------------------------------------------------------------------------------------------------- */

HOCCL_Result HOCCL_Gather(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype, int root,
                          HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Gather", comm, stream, datatype, HOCCL_FLOW_GATHER, root, NULL, 0, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = sendcount, .with = HOCCL_WITH_ROOT},
                           .receive = {.buf = recvbuf, .count = sendcount, .step = sendcount, .with = HOCCL_WITH_AT_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}

HOCCL_Result HOCCL_Gatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                           const size_t *displs, HOCCL_Datatype datatype, int root, HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Gatherv", comm, stream, datatype, HOCCL_FLOW_GATHER, root, NULL, 0, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = sendcount, .with = HOCCL_WITH_ROOT},
                           .receive = {.buf = recvbuf, .arrays = true, .counts = recvcounts, .displs = displs,
                                       .with = HOCCL_WITH_AT_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}

HOCCL_Result HOCCL_Scatter(const void *sendbuf, void *recvbuf, size_t recvcount, HOCCL_Datatype datatype, int root,
                           HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Scatter", comm, stream, datatype, HOCCL_FLOW_SCATTER, root, NULL, 0, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .count = recvcount, .step = recvcount, .with = HOCCL_WITH_AT_ROOT},
                           .receive = {.buf = recvbuf, .count = recvcount, .with = HOCCL_WITH_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}

HOCCL_Result HOCCL_Scatterv(const void *sendbuf, const size_t *sendcounts, const size_t *displs, void *recvbuf,
                            size_t recvcount, HOCCL_Datatype datatype, int root, HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Scatterv", comm, stream, datatype, HOCCL_FLOW_SCATTER, root, NULL, 0, 0, 0};
    struct collective c = {.send = {.buf = sendbuf, .arrays = true, .counts = sendcounts, .displs = displs,
                                    .with = HOCCL_WITH_AT_ROOT},
                           .receive = {.buf = recvbuf, .count = recvcount, .with = HOCCL_WITH_ROOT},
                           .in_place = true};
    return hoccl_group_call(&call, make_rooted, &c);
}
