/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memsets. Whether the real ones need SMs has not been measured; here they do, so that a path that relies on them
 * beside a kernel that holds every SM is found out. They return at once, as they do on GPU memory.
 */
#include "copy.h"

CUresult emu_set_fill(CUcontext ctx, const CUDA_MEMSET_NODE_PARAMS *p, struct emu_op *op)
{
    unsigned size = p->elementSize;
    if ((size != 1 && size != 2 && size != 4) || !p->width || !p->height || p->width > SIZE_MAX / size ||
        p->dst % size || (p->height > 1 && p->pitch < p->width * size))
        return CUDA_ERROR_INVALID_VALUE;
    struct emu_range *range = emu_range_at(p->dst);
    if (!range || !emu_range_span(p->dst, p->pitch * (p->height - 1) + p->width * size))
        return CUDA_ERROR_INVALID_VALUE;
    struct emu_device *dev = emu_device_of_gpu(emu_range_gpu(range));
    *op = (struct emu_op){.kind = EMU_OP_SET, .dev = dev && dev->contexts ? dev : ctx->dev};
    op->copy = (struct emu_copy){.dst = {p->dst, p->pitch, p->pitch * p->height},
                                 .width = p->width * size,
                                 .height = p->height,
                                 .depth = 1,
                                 .fill = p->value,
                                 .fill_size = size,
                                 .engine = EMU_COMPUTE,
                                 .on_sm = true};
    return CUDA_SUCCESS;
}

static CUresult set(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned size, size_t n, size_t height,
                    CUstream handle)
{
    CUcontext ctx;
    CUDA_MEMSET_NODE_PARAMS p = {dst, pitch, value, size, n, height};
    struct emu_op pattern;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream s = emu_stream_check(handle, ctx);
    if (!s)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!n || !height)
        return emu_leave(CUDA_SUCCESS);
    result = emu_set_fill(ctx, &p, &pattern);
    if (result != CUDA_SUCCESS)
        return emu_leave(result);
    emu_hazard_pass();
    struct emu_op *op = emu_op_new(s, EMU_OP_SET);
    if (!op)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *op = pattern;
    op->stream = s;
    return emu_leave(emu_enqueue(op, 1u << EMU_COMPUTE));
}

CUresult cuMemsetD8(CUdeviceptr dst, unsigned char value, size_t n)
{
    return set(dst, n, value, 1, n, 1, NULL);
}

CUresult cuMemsetD16(CUdeviceptr dst, unsigned short value, size_t n)
{
    return set(dst, n * 2, value, 2, n, 1, NULL);
}

CUresult cuMemsetD32(CUdeviceptr dst, unsigned int value, size_t n)
{
    return set(dst, n * 4, value, 4, n, 1, NULL);
}

CUresult cuMemsetD2D8(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height)
{
    return set(dst, pitch, value, 1, width, height, NULL);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream s)
{
    return set(dst, n, value, 1, n, 1, s);
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t n, CUstream s)
{
    return set(dst, n * 2, value, 2, n, 1, s);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t n, CUstream s)
{
    return set(dst, n * 4, value, 4, n, 1, s);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream s)
{
    return set(dst, pitch, value, 1, width, height, s);
}
