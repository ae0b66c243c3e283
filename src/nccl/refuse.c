/* SPDX-License-Identifier: Apache-2.0 */
/* What is not here: each says why, and doc/nccl.md has the list. An application finds them when it loads. */
#include "nccl/count.h"
#include "nccl/export.h"
#include "nccl/group.h"

static ncclResult_t refuse(const char *call, const char *why)
{
    shim_count_refused();
    return shim_group_note(shim_fail(ncclInvalidUsage, "%s %s", call, why));
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static const char needs_sms[] = "needs SMs; reductions go to NCCL in a later part";

ncclResult_t pncclAllReduce(const void *sendbuf, void *recvbuf, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)datatype, (void)op, (void)comm, (void)stream;
    return refuse("ncclAllReduce", needs_sms);
}
NCCL_EXPORT(AllReduce);

ncclResult_t pncclReduce(const void *sendbuf, void *recvbuf, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)datatype, (void)op, (void)root, (void)comm, (void)stream;
    return refuse("ncclReduce", needs_sms);
}
NCCL_EXPORT(Reduce);

ncclResult_t pncclReduceScatter(const void *sendbuf, void *recvbuf, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream)
{
    (void)sendbuf, (void)recvbuf, (void)count, (void)datatype, (void)op, (void)comm, (void)stream;
    return refuse("ncclReduceScatter", needs_sms);
}
NCCL_EXPORT(ReduceScatter);

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
                                       ncclComm_t comm)
{
    (void)op, (void)scalar, (void)datatype, (void)residence, (void)comm;
    return refuse("ncclRedOpCreatePreMulSum", needs_sms);
}
NCCL_EXPORT(RedOpCreatePreMulSum);

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    (void)op, (void)comm;
    return refuse("ncclRedOpDestroy", needs_sms);
}
NCCL_EXPORT(RedOpDestroy);

/* ---- failure handling -------------------------------------------------------------------------------------------- */

static const char comes_later[] = "comes with HOCCL's failure handling: abort the communicator and make a new one of the ranks that are left";

ncclResult_t pncclCommShrink(ncclComm_t comm, int *exclude, int count, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
    (void)comm, (void)exclude, (void)count, (void)config, (void)flags;
    if (newcomm)
        *newcomm = NULL;
    return refuse("ncclCommShrink", comes_later);
}
NCCL_EXPORT(CommShrink);

ncclResult_t pncclCommRevoke(ncclComm_t comm, int flags)
{
    (void)comm, (void)flags;
    return refuse("ncclCommRevoke", comes_later);
}
NCCL_EXPORT(CommRevoke);

/* ---- the device interface ---------------------------------------------------------------------------------------- */

static const char is_device[] = "belongs to the device interface, in which the caller's kernels communicate: HOCCL has none, for it takes no SM";

ncclResult_t pncclDevCommCreate(ncclComm_t comm, struct ncclDevCommRequirements const *requirements, struct ncclDevComm *out)
{
    (void)comm, (void)requirements, (void)out;
    return refuse("ncclDevCommCreate", is_device);
}
NCCL_EXPORT(DevCommCreate);

ncclResult_t pncclDevCommDestroy(ncclComm_t comm, struct ncclDevComm const *device_comm)
{
    (void)comm, (void)device_comm;
    return refuse("ncclDevCommDestroy", is_device);
}
NCCL_EXPORT(DevCommDestroy);

ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int barriers, struct ncclGinBarrierHandle *handle,
                                              struct ncclDevResourceRequirements *requirements)
{
    (void)comm, (void)team, (void)barriers, (void)handle, (void)requirements;
    return refuse("ncclGinBarrierCreateRequirement", is_device);
}
NCCL_EXPORT(GinBarrierCreateRequirement);

ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int barriers, struct ncclLsaBarrierHandle *handle,
                                              struct ncclDevResourceRequirements *requirements)
{
    (void)team, (void)barriers, (void)handle, (void)requirements;
    return refuse("ncclLsaBarrierCreateRequirement", is_device);
}
NCCL_EXPORT(LsaBarrierCreateRequirement);

ncclResult_t pncclLLA2ACreateRequirement(int blocks, int slots, struct ncclLLA2AHandle *handle,
                                         struct ncclDevResourceRequirements *requirements)
{
    (void)blocks, (void)slots, (void)handle, (void)requirements;
    return refuse("ncclLLA2ACreateRequirement", is_device);
}
NCCL_EXPORT(LLA2ACreateRequirement);

/* These have no result to refuse with. No team and no slots are what an application can see. */

static const ncclTeam_t no_team;

ncclTeam_t pncclTeamLsa(ncclComm_t comm)
{
    (void)comm;
    refuse("ncclTeamLsa", is_device);
    return no_team;
}
NCCL_EXPORT(TeamLsa);

ncclTeam_t pncclTeamRail(ncclComm_t comm)
{
    (void)comm;
    refuse("ncclTeamRail", is_device);
    return no_team;
}
NCCL_EXPORT(TeamRail);

int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank)
{
    (void)comm, (void)team, (void)rank;
    refuse("ncclTeamRankToLsa", is_device);
    return -1;
}
NCCL_EXPORT(TeamRankToLsa);

int pncclLLA2ACalcSlots(int elements, int element_size)
{
    (void)elements, (void)element_size;
    refuse("ncclLLA2ACalcSlots", is_device);
    return 0;
}
NCCL_EXPORT(LLA2ACalcSlots);

/* The team of all ranks is known without any device. */

ncclTeam_t pncclTeamWorld(ncclComm_t comm)
{
    ncclTeam_t team = {.stride = 1};
    if (pncclCommCount(comm, &team.nRanks) || pncclCommUserRank(comm, &team.rank))
        return no_team;
    return team;
}
NCCL_EXPORT(TeamWorld);

int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank)
{
    int own;
    return pncclCommUserRank(comm, &own) ? -1 : own + (rank - team.rank) * team.stride;
}
NCCL_EXPORT(TeamRankToWorld);

/* ---- nothing to do ----------------------------------------------------------------------------------------------- */

/* HOCCL reads HOCCL_DEBUG once, and NCCL_DEBUG is read again at each error. */
void pncclResetDebugInit(void)
{
}
NCCL_EXPORT(ResetDebugInit);

void ncclResetDebugInitInternal(void)
{
}
