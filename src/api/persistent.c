/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that are started many times. A request is what the call of the operation would have posted: the call is made
 * with its requests kept instead (group.h), so that whatever it checks and plans stands in one place.
 *
 *   HOCCL_Gatherv_init …   arguments ─▶ HOCCL_Gatherv ─▶ checked requests, in their order ─▶ kept
 *   HOCCL_Alltoallv_init   arguments ─▶ HOCCL_Alltoallv ─▶ checked requests ─▶ all ranks exchange their rows and make a
 *                          plan, or none (planned.h) ─▶ kept
 *   HOCCL_Start            kept ─▶ are the buffers the same? ─▶ hoccl_post: numbers, start signal, wait
 *
 * A start copies what it posts, so any number of starts can be under way, and the request may be freed meanwhile. */
#include "api/group.h"
#include "api/handle.h"
#include "api/planned.h"
#include "api/request.h"
#include "base/error.h"

#include <stdlib.h>

static void forget(struct hoccl_kept *kept)
{
    free(kept->requests);
    free(kept->buffers);
    free(kept);
}

/* `kept` has the requests: the rest. */
static HOCCL_Result make(struct hoccl_kept *kept, HOCCL_Request *request)
{
    kept->buffers = hoccl_alloc((kept->count ? kept->count : 1) * sizeof *kept->buffers, "a request");
    if (!kept->buffers)
        return HOCCL_ERR_MEMORY;
    kept->buffer_count = hoccl_requests_buffers(kept->requests, kept->count, kept->buffers);
    return hoccl_request_make(kept, request);
}

/* The requests that the operation's call has made, whose result is `result`. `together`: all ranks make a plan of them; they
 * wait for this one, so they hear of an error here. */
static HOCCL_Result take(HOCCL_Result result, HOCCL_Comm comm, const HOCCL_Request *request, bool together, struct hoccl_kept *kept)
{
    HOCCL_Result r = result;
    kept->comm = comm;
    if (!r && !request)
        r = hoccl_fail(HOCCL_ERR_ARGUMENT, "the request's address is NULL");
    return together ? hoccl_planned(comm, r, &kept->requests, &kept->count) : r;
}

/* The end of an _init: `result` is that of the operation's call. */
static HOCCL_Result keep(HOCCL_Result result, const char *name, HOCCL_Comm comm, HOCCL_Request *request, bool together)
{
    struct hoccl_kept *kept = hoccl_alloc(sizeof *kept, "a request"), none = {0}, *k = kept ? kept : &none;
    HOCCL_Result own = hoccl_group_kept(result, &k->requests, &k->count), r = own;
    if (!r && !kept)
        r = hoccl_fail(HOCCL_ERR_MEMORY, "no host memory for a request");
    r = take(r, comm, request, together, k);
    if (!r)
        r = make(kept, request);
    if (!r)
        return r;
    free(none.requests);
    if (kept)
        forget(kept);
    return own ? r : hoccl_group_note(hoccl_fail_context(r, "%s", name));
}

HOCCL_Result HOCCL_Send_init(const void *buf, size_t count, HOCCL_Datatype datatype, int peer, HOCCL_Comm comm,
                             HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Send(buf, count, datatype, peer, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_Recv_init(void *buf, size_t count, HOCCL_Datatype datatype, int peer, HOCCL_Comm comm,
                             HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Recv(buf, count, datatype, peer, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_AllGather_init(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype,
                                  HOCCL_Comm comm, HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_AllGather(sendbuf, recvbuf, sendcount, datatype, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_AllGatherv_init(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                   const size_t *displs, HOCCL_Datatype datatype, HOCCL_Comm comm, HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_AllGatherv(sendbuf, sendcount, recvbuf, recvcounts, displs, datatype, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_Alltoall_init(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype, HOCCL_Comm comm,
                                 HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Alltoall(sendbuf, recvbuf, count, datatype, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_Alltoallv_init(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls, void *recvbuf,
                                  const size_t *recvcounts, const size_t *rdispls, HOCCL_Datatype datatype, HOCCL_Comm comm,
                                  HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Alltoallv(sendbuf, sendcounts, sdispls, recvbuf, recvcounts, rdispls, datatype, comm, NULL);
    return keep(r, __func__, comm, request, true);
}

HOCCL_Result HOCCL_Broadcast_init(const void *sendbuf, void *recvbuf, size_t count, HOCCL_Datatype datatype, int root,
                                  HOCCL_Comm comm, HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Broadcast(sendbuf, recvbuf, count, datatype, root, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_Gather_init(const void *sendbuf, void *recvbuf, size_t sendcount, HOCCL_Datatype datatype, int root,
                               HOCCL_Comm comm, HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Gather(sendbuf, recvbuf, sendcount, datatype, root, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_Gatherv_init(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *recvcounts,
                                const size_t *displs, HOCCL_Datatype datatype, int root, HOCCL_Comm comm,
                                HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Gatherv(sendbuf, sendcount, recvbuf, recvcounts, displs, datatype, root, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_Scatter_init(const void *sendbuf, void *recvbuf, size_t recvcount, HOCCL_Datatype datatype, int root,
                                HOCCL_Comm comm, HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Scatter(sendbuf, recvbuf, recvcount, datatype, root, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

HOCCL_Result HOCCL_Scatterv_init(const void *sendbuf, const size_t *sendcounts, const size_t *displs, void *recvbuf,
                                 size_t recvcount, HOCCL_Datatype datatype, int root, HOCCL_Comm comm, HOCCL_Request *request)
{
    hoccl_group_keep(__func__);
    HOCCL_Result r = HOCCL_Scatterv(sendbuf, sendcounts, displs, recvbuf, recvcount, datatype, root, comm, NULL);
    return keep(r, __func__, comm, request, false);
}

static HOCCL_Result start(struct hoccl_kept *kept, CUstream stream)
{
    struct hoccl_comm *comm;
    HOCCL_Result r = hoccl_handle_enter(kept->comm, &comm);
    if (r)
        return r;
    r = hoccl_requests_check_again(comm, stream, kept->buffers, kept->buffer_count);
    if (!r && kept->count)
        r = hoccl_group_add(kept->comm, comm, stream, kept->requests, kept->count);
    hoccl_handle_leave(kept->comm, comm);
    return r;
}

HOCCL_Result HOCCL_Start(HOCCL_Request request, HOCCL_Stream stream)
{
    struct hoccl_kept *kept;
    HOCCL_Result r = hoccl_request_use(request, &kept);
    if (!r) {
        r = start(kept, stream);
        hoccl_request_unuse(kept);
    }
    if (r)
        hoccl_fail_context(r, "HOCCL_Start");
    return hoccl_group_note(r);
}

HOCCL_Result HOCCL_RequestFree(HOCCL_Request request)
{
    struct hoccl_kept *kept;
    HOCCL_Result r = hoccl_request_retire(request, &kept);
    if (r)
        return hoccl_fail_context(r, "HOCCL_RequestFree");
    forget(kept);
    return HOCCL_SUCCESS;
}
