/* SPDX-License-Identifier: Apache-2.0 */
/* The copy calls of the driver interface: each says what its sides are and hands the request on. */
#include "copy.h"

static CUdeviceptr host(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

static CUresult line(CUdeviceptr dst, enum emu_place dst_place, CUdeviceptr src, enum emu_place src_place, size_t bytes,
                     bool waits, CUstream s)
{
    struct emu_request r = emu_request_line(dst, src, bytes);
    r.dst_place = dst_place;
    r.src_place = src_place;
    r.waits = waits;
    return emu_copy_call(&r, s);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return line(dst, EMU_ANYWHERE, src, EMU_ANYWHERE, n, true, NULL);
}

CUresult cuMemcpyDtoD(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return line(dst, EMU_ON_DEVICE, src, EMU_ON_DEVICE, n, true, NULL);
}

CUresult cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t n)
{
    return line(host(dst), EMU_ON_HOST, src, EMU_ON_DEVICE, n, true, NULL);
}

CUresult cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t n)
{
    return line(dst, EMU_ON_DEVICE, host(src), EMU_ON_HOST, n, true, NULL);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s)
{
    return line(dst, EMU_ANYWHERE, src, EMU_ANYWHERE, n, false, s);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s)
{
    return line(dst, EMU_ON_DEVICE, src, EMU_ON_DEVICE, n, false, s);
}

CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t n, CUstream s)
{
    return line(host(dst), EMU_ON_HOST, src, EMU_ON_DEVICE, n, false, s);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t n, CUstream s)
{
    return line(dst, EMU_ON_DEVICE, host(src), EMU_ON_HOST, n, false, s);
}

/* The contexts only say which GPUs the addresses are of, and the addresses say that themselves. */
static CUresult peer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t n, bool waits,
                     CUstream s)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    bool good = emu_ctx_valid(dst_ctx) && emu_ctx_valid(src_ctx);
    if (emu_leave(good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    return line(dst, EMU_ANYWHERE, src, EMU_ANYWHERE, n, waits, s);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t n)
{
    return peer(dst, dst_ctx, src, src_ctx, n, true, NULL);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t n, CUstream s)
{
    return peer(dst, dst_ctx, src, src_ctx, n, false, s);
}

/* One side of a 2D or 3D description. */
static CUresult side_of(CUmemorytype type, const void *on_host, CUdeviceptr on_device, size_t pitch, size_t height,
                        const size_t at[3], const struct emu_request *r, struct emu_side *side, enum emu_place *place)
{
    if (type == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    *place = type == CU_MEMORYTYPE_HOST ? EMU_ON_HOST : type == CU_MEMORYTYPE_DEVICE ? EMU_ON_DEVICE : EMU_ANYWHERE;
    pitch = pitch ? pitch : at[0] + r->width;
    height = height ? height : at[1] + r->height;
    if (pitch < at[0] + r->width || height < at[1] + r->height)
        return CUDA_ERROR_INVALID_VALUE;
    side->pitch = pitch;
    side->slice = pitch * height;
    side->p = (type == CU_MEMORYTYPE_HOST ? host(on_host) : on_device) + at[2] * side->slice + at[1] * pitch + at[0];
    return CUDA_SUCCESS;
}

static CUresult request_peer(const CUDA_MEMCPY3D_PEER *m, struct emu_request *r)
{
    const size_t src_at[3] = {m->srcXInBytes, m->srcY, m->srcZ}, dst_at[3] = {m->dstXInBytes, m->dstY, m->dstZ};
    *r = (struct emu_request){.width = m->WidthInBytes, .height = m->Height, .depth = m->Depth};
    CUresult result = side_of(m->srcMemoryType, m->srcHost, m->srcDevice, m->srcPitch, m->srcHeight, src_at, r, &r->src,
                              &r->src_place);
    if (result != CUDA_SUCCESS)
        return result;
    return side_of(m->dstMemoryType, m->dstHost, m->dstDevice, m->dstPitch, m->dstHeight, dst_at, r, &r->dst,
                   &r->dst_place);
}

static CUresult box(const CUDA_MEMCPY3D_PEER *m, bool waits, CUstream s)
{
    struct emu_request r;
    CUresult result = request_peer(m, &r);
    r.waits = waits;
    return result == CUDA_SUCCESS ? emu_copy_call(&r, s) : result;
}

static CUresult plane(const CUDA_MEMCPY2D *m, bool waits, CUstream s)
{
    if (!m)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D_PEER b = {.srcXInBytes = m->srcXInBytes,
                            .srcY = m->srcY,
                            .srcMemoryType = m->srcMemoryType,
                            .srcHost = m->srcHost,
                            .srcDevice = m->srcDevice,
                            .srcPitch = m->srcPitch,
                            .dstXInBytes = m->dstXInBytes,
                            .dstY = m->dstY,
                            .dstMemoryType = m->dstMemoryType,
                            .dstHost = m->dstHost,
                            .dstDevice = m->dstDevice,
                            .dstPitch = m->dstPitch,
                            .WidthInBytes = m->WidthInBytes,
                            .Height = m->Height,
                            .Depth = 1};
    return box(&b, waits, s);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D *m)
{
    return plane(m, true, NULL);
}

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *m)
{
    return plane(m, true, NULL);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *m, CUstream s)
{
    return plane(m, false, s);
}

CUresult emu_request_box(const CUDA_MEMCPY3D *m, struct emu_request *r)
{
    CUDA_MEMCPY3D_PEER b = {.srcXInBytes = m->srcXInBytes,
                            .srcY = m->srcY,
                            .srcZ = m->srcZ,
                            .srcMemoryType = m->srcMemoryType,
                            .srcHost = m->srcHost,
                            .srcDevice = m->srcDevice,
                            .srcPitch = m->srcPitch,
                            .srcHeight = m->srcHeight,
                            .dstXInBytes = m->dstXInBytes,
                            .dstY = m->dstY,
                            .dstZ = m->dstZ,
                            .dstMemoryType = m->dstMemoryType,
                            .dstHost = m->dstHost,
                            .dstDevice = m->dstDevice,
                            .dstPitch = m->dstPitch,
                            .dstHeight = m->dstHeight,
                            .WidthInBytes = m->WidthInBytes,
                            .Height = m->Height,
                            .Depth = m->Depth};
    return request_peer(&b, r);
}

static CUresult volume(const CUDA_MEMCPY3D *m, bool waits, CUstream s)
{
    struct emu_request r;
    CUresult result = m ? emu_request_box(m, &r) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    r.waits = waits;
    return emu_copy_call(&r, s);
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D *m)
{
    return volume(m, true, NULL);
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D *m, CUstream s)
{
    return volume(m, false, s);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *m)
{
    return m ? box(m, true, NULL) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *m, CUstream s)
{
    return m ? box(m, false, s) : CUDA_ERROR_INVALID_VALUE;
}

/* Every entry is a copy by itself; the order among them is not promised, here it is that of the array. */
CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attrs, size_t *indices, size_t nattrs, CUstream s)
{
    if (!dsts || !srcs || !sizes || !count || !attrs || !indices || !nattrs || nattrs > count || indices[0])
        return CUDA_ERROR_INVALID_VALUE;
    if (!s || s == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < nattrs; i++)
        if (attrs[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
            attrs[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY || (i && indices[i] <= indices[i - 1]))
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult result = line(dsts[i], EMU_ANYWHERE, srcs[i], EMU_ANYWHERE, sizes[i], false, s);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
