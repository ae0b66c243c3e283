/* SPDX-License-Identifier: Apache-2.0 */
/* What libnccl.so.2 of version 2.28 and its callers agree on, as static assertions: test/nccl/abi.sh compiles them with our
 * header and, where it is installed, with NCCL's. */
#ifdef NCCL_HEADER
#include <nccl.h>
#else
#include "nccl/nccl_abi.h"
#endif

#include <stddef.h>

#define HOLDS(condition) _Static_assert(condition, #condition)

HOLDS(NCCL_MAJOR == 2 && NCCL_MINOR == 28);
#ifdef TWIST
HOLDS(NCCL_MAJOR == 3); /* the test must be able to fail */
#endif

HOLDS(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 && ncclInternalError == 3);
HOLDS(ncclInvalidArgument == 4 && ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7 && ncclNumResults == 8);
HOLDS(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3 && ncclInt64 == 4 && ncclUint64 == 5);
HOLDS(ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8 && ncclBfloat16 == 9 && ncclFloat8e4m3 == 10);
HOLDS(ncclFloat8e5m2 == 11 && ncclNumTypes == 12);
HOLDS(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4 && ncclNumOps == 5);
HOLDS(ncclMaxRedOp == 0x7fffffff && ncclScalarDevice == 0 && ncclScalarHostImmediate == 1);
HOLDS(NCCL_SPLIT_NOCOLOR == -1 && NCCL_WIN_DEFAULT == 0 && NCCL_WIN_COLL_SYMMETRIC == 1 && NCCL_UNDEF_FLOAT == -1.0f);
HOLDS(sizeof(ncclUniqueId) == 128 && _Alignof(ncclUniqueId) == 1);
HOLDS(sizeof(ncclResult_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclRedOp_t) == 4);

/* The initialiser has as many fields, of the same kinds. */
static const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
HOLDS(offsetof(ncclConfig_t, size) == 0);
HOLDS(offsetof(ncclConfig_t, magic) == 8);
HOLDS(offsetof(ncclConfig_t, version) == 12);
HOLDS(offsetof(ncclConfig_t, blocking) == 16);
HOLDS(offsetof(ncclConfig_t, cgaClusterSize) == 20);
HOLDS(offsetof(ncclConfig_t, minCTAs) == 24);
HOLDS(offsetof(ncclConfig_t, maxCTAs) == 28);
HOLDS(offsetof(ncclConfig_t, netName) == 32);
HOLDS(offsetof(ncclConfig_t, splitShare) == 40);
HOLDS(offsetof(ncclConfig_t, trafficClass) == 44);
HOLDS(offsetof(ncclConfig_t, commName) == 48);
HOLDS(offsetof(ncclConfig_t, collnetEnable) == 56);
HOLDS(offsetof(ncclConfig_t, CTAPolicy) == 60);
HOLDS(offsetof(ncclConfig_t, shrinkShare) == 64);
HOLDS(offsetof(ncclConfig_t, nvlsCTAs) == 68);
HOLDS(offsetof(ncclConfig_t, nChannelsPerNetPeer) == 72);
HOLDS(offsetof(ncclConfig_t, nvlinkCentricSched) == 76);
HOLDS(sizeof(ncclConfig_t) == 80);
HOLDS(sizeof(config) == sizeof(ncclConfig_t));
HOLDS(NCCL_CONFIG_UNDEF_INT == -2147483647 - 1);
HOLDS(offsetof(ncclSimInfo_t, size) == 0 && offsetof(ncclSimInfo_t, magic) == 8 && offsetof(ncclSimInfo_t, version) == 12);
HOLDS(offsetof(ncclSimInfo_t, estimatedTime) == 16 && sizeof(ncclSimInfo_t) == 24);

/* Every prototype of nccl.h. (nccl_device.h is C++.) */
#define IS(name, ...) HOLDS(__builtin_types_compatible_p(__typeof__(name), __VA_ARGS__))

IS(ncclMemAlloc, ncclResult_t(void **, size_t));
IS(pncclMemAlloc, ncclResult_t(void **, size_t));
IS(ncclMemFree, ncclResult_t(void *));
IS(pncclMemFree, ncclResult_t(void *));
IS(ncclGetVersion, ncclResult_t(int *));
IS(pncclGetVersion, ncclResult_t(int *));
IS(ncclGetUniqueId, ncclResult_t(ncclUniqueId *));
IS(pncclGetUniqueId, ncclResult_t(ncclUniqueId *));
IS(ncclCommInitRankConfig, ncclResult_t(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));
IS(pncclCommInitRankConfig, ncclResult_t(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *));
IS(ncclCommInitRank, ncclResult_t(ncclComm_t *, int, ncclUniqueId, int));
IS(pncclCommInitRank, ncclResult_t(ncclComm_t *, int, ncclUniqueId, int));
IS(ncclCommInitAll, ncclResult_t(ncclComm_t *, int, const int *));
IS(pncclCommInitAll, ncclResult_t(ncclComm_t *, int, const int *));
IS(ncclCommInitRankScalable, ncclResult_t(ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *));
IS(pncclCommInitRankScalable, ncclResult_t(ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *));
IS(ncclCommFinalize, ncclResult_t(ncclComm_t));
IS(pncclCommFinalize, ncclResult_t(ncclComm_t));
IS(ncclCommDestroy, ncclResult_t(ncclComm_t));
IS(pncclCommDestroy, ncclResult_t(ncclComm_t));
IS(ncclCommAbort, ncclResult_t(ncclComm_t));
IS(pncclCommAbort, ncclResult_t(ncclComm_t));
IS(ncclCommRevoke, ncclResult_t(ncclComm_t, int));
IS(pncclCommRevoke, ncclResult_t(ncclComm_t, int));
IS(ncclCommSplit, ncclResult_t(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *));
IS(pncclCommSplit, ncclResult_t(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *));
IS(ncclCommShrink, ncclResult_t(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int));
IS(pncclCommShrink, ncclResult_t(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int));
IS(ncclGetErrorString, const char *(ncclResult_t));
IS(pncclGetErrorString, const char *(ncclResult_t));
IS(ncclGetLastError, const char *(ncclComm_t));
IS(pncclGetLastError, const char *(ncclComm_t));
IS(ncclResetDebugInit, void(void));
IS(pncclResetDebugInit, void(void));
IS(ncclCommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t *));
IS(pncclCommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t *));
IS(ncclCommCount, ncclResult_t(const ncclComm_t, int *));
IS(pncclCommCount, ncclResult_t(const ncclComm_t, int *));
IS(ncclCommCuDevice, ncclResult_t(const ncclComm_t, int *));
IS(pncclCommCuDevice, ncclResult_t(const ncclComm_t, int *));
IS(ncclCommUserRank, ncclResult_t(const ncclComm_t, int *));
IS(pncclCommUserRank, ncclResult_t(const ncclComm_t, int *));
IS(ncclCommRegister, ncclResult_t(const ncclComm_t, void *, size_t, void **));
IS(pncclCommRegister, ncclResult_t(const ncclComm_t, void *, size_t, void **));
IS(ncclCommDeregister, ncclResult_t(const ncclComm_t, void *));
IS(pncclCommDeregister, ncclResult_t(const ncclComm_t, void *));
IS(ncclCommWindowRegister, ncclResult_t(ncclComm_t, void *, size_t, ncclWindow_t *, int));
IS(pncclCommWindowRegister, ncclResult_t(ncclComm_t, void *, size_t, ncclWindow_t *, int));
IS(ncclCommWindowDeregister, ncclResult_t(ncclComm_t, ncclWindow_t));
IS(pncclCommWindowDeregister, ncclResult_t(ncclComm_t, ncclWindow_t));
IS(ncclRedOpCreatePreMulSum, ncclResult_t(ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t));
IS(pncclRedOpCreatePreMulSum, ncclResult_t(ncclRedOp_t *, void *, ncclDataType_t, ncclScalarResidence_t, ncclComm_t));
IS(ncclRedOpDestroy, ncclResult_t(ncclRedOp_t, ncclComm_t));
IS(pncclRedOpDestroy, ncclResult_t(ncclRedOp_t, ncclComm_t));
IS(ncclReduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t));
IS(pncclReduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t));
IS(ncclAllReduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));
IS(pncclAllReduce, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));
IS(ncclReduceScatter, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));
IS(pncclReduceScatter, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t));
IS(ncclBcast, ncclResult_t(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(pncclBcast, ncclResult_t(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(ncclBroadcast, ncclResult_t(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(pncclBroadcast, ncclResult_t(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(ncclAllGather, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));
IS(pncclAllGather, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));
IS(ncclAlltoAll, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));
IS(pncclAlltoAll, ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t));
IS(ncclGather, ncclResult_t(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(pncclGather, ncclResult_t(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(ncclScatter, ncclResult_t(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(pncclScatter, ncclResult_t(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(ncclSend, ncclResult_t(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(pncclSend, ncclResult_t(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(ncclRecv, ncclResult_t(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(pncclRecv, ncclResult_t(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t));
IS(ncclGroupStart, ncclResult_t(void));
IS(pncclGroupStart, ncclResult_t(void));
IS(ncclGroupEnd, ncclResult_t(void));
IS(pncclGroupEnd, ncclResult_t(void));
IS(ncclGroupSimulateEnd, ncclResult_t(ncclSimInfo_t *));
IS(pncclGroupSimulateEnd, ncclResult_t(ncclSimInfo_t *));
