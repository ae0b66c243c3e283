/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binary interface of libnccl.so.2, version 2.28: names, numbers, layouts and prototypes, written down here so that
 * the library is built where NCCL is not installed. test/nccl/abi.c holds every line of it against NCCL's own header
 * where there is one. It stands for nccl.h and for the host functions of nccl_device.h in HOCCL's own programs, and is not
 * installed: an application is compiled against NCCL's header.
 */
#ifndef HOCCL_NCCL_ABI_H
#define HOCCL_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
    ncclNumResults,
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
    ncclNumTypes,
} ncclDataType_t;

typedef enum { ncclSum = 0, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps, ncclMaxRedOp = 0x7fffffff } ncclRedOp_t;
typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_SIM_INFO_MAGIC 0x74685283u
#define NCCL_UNDEF_FLOAT (-1.0f)
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_WIN_DEFAULT 0
#define NCCL_WIN_COLL_SYMMETRIC 1

/* A caller compiled against an older header passes a shorter one and says so in `size`. */
typedef struct ncclConfig_v22800 {
    size_t size;
    unsigned int magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
} ncclConfig_t;

/* An initialiser: nothing set. */
#define NCCL_CONFIG_INITIALIZER                                                                                            \
    {                                                                                                                      \
        sizeof(ncclConfig_t), NCCL_CONFIG_MAGIC, NCCL_VERSION_CODE, INT_MIN, INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN,     \
            INT_MIN, NULL, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN                                            \
    }

typedef struct ncclSimInfo_v22200 {
    size_t size;
    unsigned int magic, version;
    float estimatedTime;
} ncclSimInfo_t;

/* Of nccl_device.h. */
typedef struct ncclTeam {
    int nRanks, rank, stride;
} ncclTeam_t;
struct ncclDevComm;
struct ncclDevCommRequirements;
struct ncclDevResourceRequirements;
struct ncclGinBarrierHandle;
struct ncclLsaBarrierHandle;
struct ncclLLA2AHandle;

/* X(result, name, (arguments)): every function that exists as ncclName and as pncclName. */
#define NCCL_FUNCTIONS(X)                                                                                                  \
    X(ncclResult_t, MemAlloc, (void **, size_t))                                                                           \
    X(ncclResult_t, MemFree, (void *))                                                                                     \
    X(ncclResult_t, GetVersion, (int *))                                                                                   \
    X(ncclResult_t, GetUniqueId, (ncclUniqueId *))                                                                         \
    X(ncclResult_t, CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                            \
    X(ncclResult_t, CommInitRank, (ncclComm_t *, int, ncclUniqueId, int))                                                  \
    X(ncclResult_t, CommInitAll, (ncclComm_t *, int, const int *))                                                         \
    X(ncclResult_t, CommInitRankScalable, (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *))                   \
    X(ncclResult_t, CommFinalize, (ncclComm_t))                                                                            \
    X(ncclResult_t, CommDestroy, (ncclComm_t))                                                                             \
    X(ncclResult_t, CommAbort, (ncclComm_t))                                                                               \
    X(ncclResult_t, CommRevoke, (ncclComm_t, int))                                                                         \
    X(ncclResult_t, CommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))                                       \
    X(ncclResult_t, CommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))                               \
    X(const char *, GetErrorString, (ncclResult_t))                                                                        \
    X(const char *, GetLastError, (ncclComm_t))                                                                            \
    X(void, ResetDebugInit, (void))                                                                                        \
    X(ncclResult_t, CommGetAsyncError, (ncclComm_t, ncclResult_t *))                                                       \
    X(ncclResult_t, CommCount, (const ncclComm_t, int *))                                                                  \
    X(ncclResult_t, CommCuDevice, (const ncclComm_t, int *))                                                               \
    X(ncclResult_t, CommUserRank, (const ncclComm_t, int *))                                                               \
    X(ncclResult_t, CommRegister, (const ncclComm_t, void *, size_t, void **))                                             \
    X(ncclResult_t, CommDeregister, (const ncclComm_t, void *))                                                            \
    X(ncclResult_t, CommWindowRegister, (ncclComm_t, void *, size_t, ncclWindow_t *, int))                                 \
    X(ncclResult_t, CommWindowDeregister, (ncclComm_t, ncclWindow_t))                                                      \
    X(ncclResult_t, RedOpCreatePreMulSum, (ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t))      \
    X(ncclResult_t, RedOpDestroy, (ncclRedOp_t, ncclComm_t))                                                               \
    X(ncclResult_t, Reduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))    \
    X(ncclResult_t, AllReduce, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))      \
    X(ncclResult_t, ReduceScatter, (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))  \
    X(ncclResult_t, Bcast, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                                \
    X(ncclResult_t, Broadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))              \
    X(ncclResult_t, AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))                   \
    X(ncclResult_t, AlltoAll, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))                    \
    X(ncclResult_t, Gather, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                 \
    X(ncclResult_t, Scatter, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                \
    X(ncclResult_t, Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                           \
    X(ncclResult_t, Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                                 \
    X(ncclResult_t, GroupStart, (void))                                                                                    \
    X(ncclResult_t, GroupEnd, (void))                                                                                      \
    X(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t *))

/* The same of nccl_device.h. */
#define NCCL_DEVICE_FUNCTIONS(X)                                                                                           \
    X(ncclResult_t, DevCommCreate, (ncclComm_t, struct ncclDevCommRequirements const *, struct ncclDevComm *))             \
    X(ncclResult_t, DevCommDestroy, (ncclComm_t, struct ncclDevComm const *))                                              \
    X(ncclTeam_t, TeamWorld, (ncclComm_t))                                                                                 \
    X(ncclTeam_t, TeamLsa, (ncclComm_t))                                                                                   \
    X(ncclTeam_t, TeamRail, (ncclComm_t))                                                                                  \
    X(int, TeamRankToWorld, (ncclComm_t, ncclTeam_t, int))                                                                 \
    X(int, TeamRankToLsa, (ncclComm_t, ncclTeam_t, int))                                                                   \
    X(ncclResult_t, GinBarrierCreateRequirement,                                                                           \
      (ncclComm_t, ncclTeam_t, int, struct ncclGinBarrierHandle *, struct ncclDevResourceRequirements *))                  \
    X(ncclResult_t, LsaBarrierCreateRequirement,                                                                           \
      (ncclTeam_t, int, struct ncclLsaBarrierHandle *, struct ncclDevResourceRequirements *))                              \
    X(int, LLA2ACalcSlots, (int, int))                                                                                     \
    X(ncclResult_t, LLA2ACreateRequirement, (int, int, struct ncclLLA2AHandle *, struct ncclDevResourceRequirements *))

#define NCCL_DECLARE(result, name, arguments)                                                                              \
    __attribute__((visibility("default"))) result nccl##name arguments;                                                    \
    __attribute__((visibility("default"))) result pnccl##name arguments;
NCCL_FUNCTIONS(NCCL_DECLARE)
NCCL_DEVICE_FUNCTIONS(NCCL_DECLARE)
#undef NCCL_DECLARE
__attribute__((visibility("default"))) void ncclResetDebugInitInternal(void);

#ifdef __cplusplus
}
#endif
#endif
