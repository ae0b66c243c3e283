/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints size and field offsets of every structure of the driver interface that HOCCL knows. Built against two
 * headers by cuda_header.sh, which compares what the two programs print.
 */
#include <cuda.h>
#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field) printf("%s.%s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field))

static void show_cuuuid(void)
{
    SIZE(CUuuid);
    FIELD(CUuuid, bytes);
}

static void show_cuipcmemhandle(void)
{
    SIZE(CUipcMemHandle);
    FIELD(CUipcMemHandle, reserved);
}

static void show_cuipceventhandle(void)
{
    SIZE(CUipcEventHandle);
    FIELD(CUipcEventHandle, reserved);
}

static void show_cuda_memcpy2d(void)
{
    SIZE(CUDA_MEMCPY2D);
    FIELD(CUDA_MEMCPY2D, srcXInBytes);
    FIELD(CUDA_MEMCPY2D, srcY);
    FIELD(CUDA_MEMCPY2D, srcMemoryType);
    FIELD(CUDA_MEMCPY2D, srcHost);
    FIELD(CUDA_MEMCPY2D, srcDevice);
    FIELD(CUDA_MEMCPY2D, srcArray);
    FIELD(CUDA_MEMCPY2D, srcPitch);
    FIELD(CUDA_MEMCPY2D, dstXInBytes);
    FIELD(CUDA_MEMCPY2D, dstY);
    FIELD(CUDA_MEMCPY2D, dstMemoryType);
    FIELD(CUDA_MEMCPY2D, dstHost);
    FIELD(CUDA_MEMCPY2D, dstDevice);
    FIELD(CUDA_MEMCPY2D, dstArray);
    FIELD(CUDA_MEMCPY2D, dstPitch);
    FIELD(CUDA_MEMCPY2D, WidthInBytes);
    FIELD(CUDA_MEMCPY2D, Height);
}

static void show_cuda_memcpy3d(void)
{
    SIZE(CUDA_MEMCPY3D);
    FIELD(CUDA_MEMCPY3D, srcXInBytes);
    FIELD(CUDA_MEMCPY3D, srcY);
    FIELD(CUDA_MEMCPY3D, srcZ);
    FIELD(CUDA_MEMCPY3D, srcLOD);
    FIELD(CUDA_MEMCPY3D, srcMemoryType);
    FIELD(CUDA_MEMCPY3D, srcHost);
    FIELD(CUDA_MEMCPY3D, srcDevice);
    FIELD(CUDA_MEMCPY3D, srcArray);
    FIELD(CUDA_MEMCPY3D, reserved0);
    FIELD(CUDA_MEMCPY3D, srcPitch);
    FIELD(CUDA_MEMCPY3D, srcHeight);
    FIELD(CUDA_MEMCPY3D, dstXInBytes);
    FIELD(CUDA_MEMCPY3D, dstY);
    FIELD(CUDA_MEMCPY3D, dstZ);
    FIELD(CUDA_MEMCPY3D, dstLOD);
    FIELD(CUDA_MEMCPY3D, dstMemoryType);
    FIELD(CUDA_MEMCPY3D, dstHost);
    FIELD(CUDA_MEMCPY3D, dstDevice);
    FIELD(CUDA_MEMCPY3D, dstArray);
    FIELD(CUDA_MEMCPY3D, reserved1);
    FIELD(CUDA_MEMCPY3D, dstPitch);
    FIELD(CUDA_MEMCPY3D, dstHeight);
    FIELD(CUDA_MEMCPY3D, WidthInBytes);
    FIELD(CUDA_MEMCPY3D, Height);
    FIELD(CUDA_MEMCPY3D, Depth);
}

static void show_cuda_memcpy3d_peer(void)
{
    SIZE(CUDA_MEMCPY3D_PEER);
    FIELD(CUDA_MEMCPY3D_PEER, srcXInBytes);
    FIELD(CUDA_MEMCPY3D_PEER, srcY);
    FIELD(CUDA_MEMCPY3D_PEER, srcZ);
    FIELD(CUDA_MEMCPY3D_PEER, srcLOD);
    FIELD(CUDA_MEMCPY3D_PEER, srcMemoryType);
    FIELD(CUDA_MEMCPY3D_PEER, srcHost);
    FIELD(CUDA_MEMCPY3D_PEER, srcDevice);
    FIELD(CUDA_MEMCPY3D_PEER, srcArray);
    FIELD(CUDA_MEMCPY3D_PEER, srcContext);
    FIELD(CUDA_MEMCPY3D_PEER, srcPitch);
    FIELD(CUDA_MEMCPY3D_PEER, srcHeight);
    FIELD(CUDA_MEMCPY3D_PEER, dstXInBytes);
    FIELD(CUDA_MEMCPY3D_PEER, dstY);
    FIELD(CUDA_MEMCPY3D_PEER, dstZ);
    FIELD(CUDA_MEMCPY3D_PEER, dstLOD);
    FIELD(CUDA_MEMCPY3D_PEER, dstMemoryType);
    FIELD(CUDA_MEMCPY3D_PEER, dstHost);
    FIELD(CUDA_MEMCPY3D_PEER, dstDevice);
    FIELD(CUDA_MEMCPY3D_PEER, dstArray);
    FIELD(CUDA_MEMCPY3D_PEER, dstContext);
    FIELD(CUDA_MEMCPY3D_PEER, dstPitch);
    FIELD(CUDA_MEMCPY3D_PEER, dstHeight);
    FIELD(CUDA_MEMCPY3D_PEER, WidthInBytes);
    FIELD(CUDA_MEMCPY3D_PEER, Height);
    FIELD(CUDA_MEMCPY3D_PEER, Depth);
}

static void show_cuda_memset_node_params(void)
{
    SIZE(CUDA_MEMSET_NODE_PARAMS);
    FIELD(CUDA_MEMSET_NODE_PARAMS, dst);
    FIELD(CUDA_MEMSET_NODE_PARAMS, pitch);
    FIELD(CUDA_MEMSET_NODE_PARAMS, value);
    FIELD(CUDA_MEMSET_NODE_PARAMS, elementSize);
    FIELD(CUDA_MEMSET_NODE_PARAMS, width);
    FIELD(CUDA_MEMSET_NODE_PARAMS, height);
}

static void show_cumemlocation(void)
{
    SIZE(CUmemLocation);
    FIELD(CUmemLocation, type);
    FIELD(CUmemLocation, id);
}

static void show_cumemaccessdesc(void)
{
    SIZE(CUmemAccessDesc);
    FIELD(CUmemAccessDesc, location);
    FIELD(CUmemAccessDesc, flags);
}

static void show_cumemallocationprop(void)
{
    SIZE(CUmemAllocationProp);
    FIELD(CUmemAllocationProp, type);
    FIELD(CUmemAllocationProp, requestedHandleTypes);
    FIELD(CUmemAllocationProp, location);
    FIELD(CUmemAllocationProp, win32HandleMetaData);
    FIELD(CUmemAllocationProp, allocFlags.compressionType);
    FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
    FIELD(CUmemAllocationProp, allocFlags.usage);
    FIELD(CUmemAllocationProp, allocFlags.reserved);
}

static void show_cumempoolprops(void)
{
    SIZE(CUmemPoolProps);
    FIELD(CUmemPoolProps, allocType);
    FIELD(CUmemPoolProps, handleTypes);
    FIELD(CUmemPoolProps, location);
    FIELD(CUmemPoolProps, win32SecurityAttributes);
    FIELD(CUmemPoolProps, maxSize);
    FIELD(CUmemPoolProps, usage);
    FIELD(CUmemPoolProps, reserved);
}

static void show_cumemcpyattributes(void)
{
    SIZE(CUmemcpyAttributes);
    FIELD(CUmemcpyAttributes, srcAccessOrder);
    FIELD(CUmemcpyAttributes, srcLocHint);
    FIELD(CUmemcpyAttributes, dstLocHint);
    FIELD(CUmemcpyAttributes, flags);
}

static void show_cugraphedgedata(void)
{
    SIZE(CUgraphEdgeData);
    FIELD(CUgraphEdgeData, from_port);
    FIELD(CUgraphEdgeData, to_port);
    FIELD(CUgraphEdgeData, type);
    FIELD(CUgraphEdgeData, reserved);
}

static void show_custreambatchmemopparams(void)
{
    SIZE(CUstreamBatchMemOpParams);
    FIELD(CUstreamBatchMemOpParams, operation);
    FIELD(CUstreamBatchMemOpParams, pad);
    FIELD(CUstreamBatchMemOpParams, waitValue.operation);
    FIELD(CUstreamBatchMemOpParams, waitValue.address);
    FIELD(CUstreamBatchMemOpParams, waitValue.value);
    FIELD(CUstreamBatchMemOpParams, waitValue.value64);
    FIELD(CUstreamBatchMemOpParams, waitValue.flags);
    FIELD(CUstreamBatchMemOpParams, waitValue.alias);
    FIELD(CUstreamBatchMemOpParams, writeValue.operation);
    FIELD(CUstreamBatchMemOpParams, writeValue.address);
    FIELD(CUstreamBatchMemOpParams, writeValue.value);
    FIELD(CUstreamBatchMemOpParams, writeValue.value64);
    FIELD(CUstreamBatchMemOpParams, writeValue.flags);
    FIELD(CUstreamBatchMemOpParams, writeValue.alias);
    FIELD(CUstreamBatchMemOpParams, flushRemoteWrites.operation);
    FIELD(CUstreamBatchMemOpParams, flushRemoteWrites.flags);
    FIELD(CUstreamBatchMemOpParams, memoryBarrier.operation);
    FIELD(CUstreamBatchMemOpParams, memoryBarrier.flags);
}

int main(void)
{
    show_cuuuid();
    show_cuipcmemhandle();
    show_cuipceventhandle();
    show_cuda_memcpy2d();
    show_cuda_memcpy3d();
    show_cuda_memcpy3d_peer();
    show_cuda_memset_node_params();
    show_cumemlocation();
    show_cumemaccessdesc();
    show_cumemallocationprop();
    show_cumempoolprops();
    show_cumemcpyattributes();
    show_cugraphedgedata();
    show_custreambatchmemopparams();
    return 0;
}
