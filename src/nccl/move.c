/* SPDX-License-Identifier: Apache-2.0 */
/* The operations: handle and type are translated, HOCCL does the rest. */
#include "nccl/comm.h"
#include "nccl/export.h"
#include "nccl/group.h"
#include "nccl/swap.h"

static ncclResult_t translate(ncclDataType_t type, const char *call, HOCCL_Datatype *out)
{
    static const HOCCL_Datatype types[] = {HOCCL_INT8, HOCCL_UINT8, HOCCL_INT32, HOCCL_UINT32, HOCCL_INT64,    HOCCL_UINT64,
                                           HOCCL_FP16, HOCCL_FP32,  HOCCL_FP64,  HOCCL_BF16,   HOCCL_FP8_E4M3, HOCCL_FP8_E5M2};
    _Static_assert(sizeof types / sizeof *types == ncclNumTypes, "one for each of NCCL's");
    if ((unsigned)type >= ncclNumTypes)
        return shim_fail(ncclInvalidArgument, "%s: datatype %d is unknown", call, (int)type);
    *out = types[type];
    return ncclSuccess;
}

/* The communicator and the type of a call. */
static ncclResult_t begin(ncclComm_t comm, ncclDataType_t type, const char *call, HOCCL_Comm *hoccl, HOCCL_Datatype *hoccl_type)
{
    ncclResult_t r = shim_comm_get(comm, call, hoccl);
    if (!r)
        r = translate(type, call, hoccl_type);
    if (r)
        shim_count_refused();
    return shim_group_note(r);
}

ncclResult_t pncclSend(const void *buf, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
    HOCCL_Comm c;
    HOCCL_Datatype t;
    ncclResult_t r = begin(comm, datatype, "ncclSend", &c, &t);
    return r ? r : shim_group_taken(SHIM_SEND, HOCCL_Send(buf, count, t, peer, c, stream), "ncclSend");
}
NCCL_EXPORT(Send);

ncclResult_t pncclRecv(void *buf, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
    HOCCL_Comm c;
    HOCCL_Datatype t;
    ncclResult_t r = begin(comm, datatype, "ncclRecv", &c, &t);
    return r ? r : shim_group_taken(SHIM_RECV, HOCCL_Recv(buf, count, t, peer, c, stream), "ncclRecv");
}
NCCL_EXPORT(Recv);

ncclResult_t pncclAllGather(const void *sendbuf, void *recvbuf, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                            cudaStream_t stream)
{
    HOCCL_Comm c;
    HOCCL_Datatype t;
    ncclResult_t r = begin(comm, datatype, "ncclAllGather", &c, &t);
    return r ? r : shim_group_taken(SHIM_ALLGATHER, HOCCL_AllGather(sendbuf, recvbuf, count, t, c, stream), "ncclAllGather");
}
NCCL_EXPORT(AllGather);

static size_t element_size(ncclDataType_t type)
{
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    _Static_assert(sizeof bytes == ncclNumTypes, "one for each of NCCL's");
    return bytes[type];
}

ncclResult_t pncclAlltoAll(const void *sendbuf, void *recvbuf, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                           cudaStream_t stream)
{
    HOCCL_Comm c;
    HOCCL_Datatype t;
    ncclResult_t r = begin(comm, datatype, "ncclAlltoAll", &c, &t);
    if (r)
        return r;
    if (sendbuf != recvbuf || !count || !sendbuf)
        return shim_group_taken(SHIM_ALLTOALL, HOCCL_Alltoall(sendbuf, recvbuf, count, t, c, stream), "ncclAlltoAll");
    if (count > SIZE_MAX / element_size(datatype))
        r = shim_fail(ncclInvalidArgument, "ncclAlltoAll: %zu elements are more than an address space", count);
    else
        r = shim_swap(recvbuf, count * element_size(datatype), comm, c, stream);
    if (r)
        shim_count_refused();
    return shim_group_note(r);
}
NCCL_EXPORT(AlltoAll);

ncclResult_t pncclBroadcast(const void *sendbuf, void *recvbuf, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream)
{
    HOCCL_Comm c;
    HOCCL_Datatype t;
    ncclResult_t r = begin(comm, datatype, "ncclBroadcast", &c, &t);
    return r ? r : shim_group_taken(SHIM_BROADCAST, HOCCL_Broadcast(sendbuf, recvbuf, count, t, root, c, stream), "ncclBroadcast");
}
NCCL_EXPORT(Broadcast);

ncclResult_t pncclBcast(void *buf, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
    return pncclBroadcast(buf, buf, count, datatype, root, comm, stream);
}
NCCL_EXPORT(Bcast);

ncclResult_t pncclGather(const void *sendbuf, void *recvbuf, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                         cudaStream_t stream)
{
    HOCCL_Comm c;
    HOCCL_Datatype t;
    ncclResult_t r = begin(comm, datatype, "ncclGather", &c, &t);
    return r ? r : shim_group_taken(SHIM_GATHER, HOCCL_Gather(sendbuf, recvbuf, count, t, root, c, stream), "ncclGather");
}
NCCL_EXPORT(Gather);

ncclResult_t pncclScatter(const void *sendbuf, void *recvbuf, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                          cudaStream_t stream)
{
    HOCCL_Comm c;
    HOCCL_Datatype t;
    ncclResult_t r = begin(comm, datatype, "ncclScatter", &c, &t);
    return r ? r : shim_group_taken(SHIM_SCATTER, HOCCL_Scatter(sendbuf, recvbuf, count, t, root, c, stream), "ncclScatter");
}
NCCL_EXPORT(Scatter);
