/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of functions that programs built with a CUDA 12 header refer to, or that are asked for by their plain
 * name. Read behind cuda.h, whose macros for these names it takes back.
 */
#ifndef HOCCL_CUDA_OLDER_H
#define HOCCL_CUDA_OLDER_H

#include "cuda.h"

#undef cuDeviceGetUuid
#undef cuEventElapsedTime
#undef cuMemcpyBatchAsync
#undef cuDevicePrimaryCtxRelease
#undef cuGetProcAddress

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice dev);
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev);
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd);
CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
                                    CUstream hStream);
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                           cuuint64_t *id_out, CUgraph *graph_out,
                                           const CUgraphNode **dependencies_out, size_t *numDependencies_out);

#endif
