/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory: cuMemAllocAsync and the pools. Memory of the default pool can be exported in no way. Freed
 * memory goes when its stream gets there; nothing is kept back in a pool.
 */
#include "device.h"
#include "memory.h"

#include <stdlib.h>

struct CUmemPoolHandle_st {
    CUmemoryPool next;
    struct emu_device *dev;
    uint64_t threshold;
    bool default_pool;
};

static CUmemoryPool pools;

static CUmemoryPool pool_new(struct emu_device *dev)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->dev = dev;
    pool->next = pools;
    pools = pool;
    return pool;
}

static CUmemoryPool default_of(struct emu_device *dev)
{
    if (!dev->default_pool) {
        dev->default_pool = pool_new(dev);
        if (dev->default_pool)
            dev->default_pool->default_pool = true;
    }
    return dev->default_pool;
}

static CUmemoryPool find(CUmemoryPool handle)
{
    CUmemoryPool p = pools;
    while (p && p != handle)
        p = p->next;
    return p;
}

void emu_pool_retire(CUdeviceptr p)
{
    struct emu_range *range = emu_range_at(p);
    if (range && range->base == p && range->kind == EMU_POOL)
        emu_free_range(range);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool handle, CUstream stream)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUmemoryPool pool = find(handle);
    if (!out || !pool || !emu_stream_check(stream, ctx))
        return emu_leave(pool ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    return emu_leave(emu_alloc(pool->dev, ctx, size, EMU_POOL, out));
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUmemoryPool pool = ctx->dev->pool ? ctx->dev->pool : default_of(ctx->dev);
    emu_leave(CUDA_SUCCESS);
    return pool ? cuMemAllocFromPoolAsync(out, size, pool, stream) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream s = emu_stream_check(stream, ctx);
    struct emu_range *range = emu_range_at(p);
    if (!s || !range || range->base != p || range->kind != EMU_POOL)
        return emu_leave(s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    struct emu_op *op = emu_op_new(s, EMU_OP_RETIRE);
    if (!op)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->retire = p;
    return emu_leave(emu_enqueue(op, 0));
}

static CUresult enter_device(CUdevice dev, const void *out, struct emu_device **d)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *d = emu_device_at(dev);
    if (!*d || !out)
        return emu_leave(*d ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, out, &d);
    if (result != CUDA_SUCCESS)
        return result;
    *out = default_of(d);
    return emu_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, out, &d);
    if (result != CUDA_SUCCESS)
        return result;
    *out = d->pool ? d->pool : default_of(d);
    return emu_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, pool, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (!find(pool) || pool->dev != d)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    d->pool = pool;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_device *dev =
        props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? emu_device_at(props->location.id) : NULL;
    if (!out || !dev || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return emu_leave(CUDA_ERROR_NOT_SUPPORTED);
    *out = pool_new(dev);
    return emu_leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUmemoryPool pool = find(handle);
    if (!pool || pool->default_pool)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    CUmemoryPool *link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    if (pool->dev->pool == pool)
        pool->dev->pool = NULL;
    free(pool);
    return emu_leave(CUDA_SUCCESS);
}

static CUresult pool_known(CUmemoryPool pool)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return emu_leave(find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    (void)keep;
    return pool_known(pool);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attr, void *value)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUmemoryPool pool = find(handle);
    if (!pool || !value)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(cuuint64_t *)value;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attr, void *value)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUmemoryPool pool = find(handle);
    if (!pool || !value)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        *(int *)value = 1;
    else
        *(cuuint64_t *)value = attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? pool->threshold : 0;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    return map && count ? pool_known(pool) : CUDA_ERROR_INVALID_VALUE;
}
