/* SPDX-License-Identifier: Apache-2.0 */
/* The older versions of functions (cuda_older.h), as thin calls of the present ones. */
#include "emu.h"

#pragma GCC visibility push(default)
#include "cuda_older.h"
#pragma GCC visibility pop

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    return cuDeviceGetUuid_v2(uuid, dev);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    return cuDevicePrimaryCtxRelease_v2(dev);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    return cuCtxCreate(pctx, NULL, flags, dev);
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(ms, start, end);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attrs, size_t *indices, size_t nattrs, size_t *failed, CUstream s)
{
    CUresult result = cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, indices, nattrs, s);
    if (result != CUDA_SUCCESS && failed)
        *failed = SIZE_MAX; /* the failure is of no one entry, as far as is known */
    return result;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count)
{
    return cuStreamGetCaptureInfo(s, status, id, graph, dependencies, NULL, count);
}
