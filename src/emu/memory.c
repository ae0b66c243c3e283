/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuMemAlloc and host memory. Host memory is used in place: its address in the process is its address for the GPUs.
 * What frees or unregisters memory waits for the GPU under the driver's lock (hazard.c).
 */
#define _GNU_SOURCE
#include "memory.h"
#include "device.h"
#include "graph.h"
#include "shared.h"

#include <sys/mman.h>
#include <unistd.h>

#define GRAIN (2u << 20) /* of addresses, as on the real device */

CUresult emu_alloc(struct emu_device *dev, CUcontext ctx, size_t size, enum emu_range_kind kind, CUdeviceptr *out)
{
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (!emu_memory_take(dev, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t span = (size + GRAIN - 1) / GRAIN * GRAIN;
    CUdeviceptr base = emu_space_reserve(span, GRAIN);
    struct emu_store *store = base ? emu_store_create(dev->gpu, size) : NULL;
    struct emu_range *range = store ? emu_range_add(base, size, kind, store) : NULL;
    if (!range) {
        if (store)
            emu_store_put(store);
        emu_memory_give(dev, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    store->pool = kind == EMU_POOL;
    range->ctx = ctx;
    emu_range_expose(range, true);
    *out = base;
    return CUDA_SUCCESS;
}

void emu_free_range(struct emu_range *range)
{
    struct emu_device *dev = emu_device_of_gpu(emu_range_gpu(range));
    CUdeviceptr base = range->base;
    size_t size = range->size;
    if (dev)
        emu_memory_give(dev, size);
    emu_range_expose(range, false);
    emu_store_mark_freed(range->store);
    emu_range_remove(range);
    emu_space_retire(base, (size + GRAIN - 1) / GRAIN * GRAIN);
}

void emu_memory_end(CUcontext ctx)
{
    struct emu_range *range;
    for (CUdeviceptr at = 0; (range = emu_range_next(at)) != NULL;) {
        at = range->base + range->size;
        if (range->ctx == ctx && (range->kind == EMU_ALLOC || range->kind == EMU_POOL))
            emu_free_range(range);
    }
}

CUresult cuMemAlloc(CUdeviceptr *dptr, size_t size)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!dptr)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    result = emu_capture_unsafe();
    if (result != CUDA_SUCCESS)
        return emu_leave(result);
    emu_hazard_pass();
    return emu_leave(emu_alloc(ctx->dev, ctx, size, EMU_ALLOC, dptr));
}

CUresult cuMemAllocPitch(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = (width + 511) / 512 * 512;
    if (bytes < width || height > SIZE_MAX / bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemAlloc(dptr, bytes * height);
    if (result == CUDA_SUCCESS)
        *pitch = bytes;
    return result;
}

/* Managed memory is a store whose range the CPU can touch; it does not migrate. */
CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t size, unsigned int flags)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!dptr || !size || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct emu_store *store = p == MAP_FAILED ? NULL : emu_store_host(p, size);
    struct emu_range *range = store ? emu_range_add((CUdeviceptr)(uintptr_t)p, size, EMU_MANAGED, store) : NULL;
    if (!range)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    store->gpu = ctx->dev->gpu;
    range->ctx = ctx;
    *dptr = range->base;
    return emu_leave(CUDA_SUCCESS);
}

static CUresult free_managed(struct emu_range *range)
{
    void *p = (void *)(uintptr_t)range->base;
    size_t size = range->size;
    emu_range_remove(range);
    munmap(p, size);
    return CUDA_SUCCESS;
}

/* The memory of a broken context can be freed. */
CUresult cuMemFree(CUdeviceptr dptr)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS || !dptr)
        return result == CUDA_SUCCESS ? emu_leave(CUDA_SUCCESS) : result;
    struct emu_range *range = emu_range_at(dptr);
    bool ours = range && range->base == dptr &&
                (range->kind == EMU_ALLOC || range->kind == EMU_MANAGED || range->kind == EMU_POOL);
    result = ours ? emu_capture_unsafe() : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return emu_leave(result);
    emu_hazard_take(emu_device_of_gpu(emu_range_gpu(range)));
    range = emu_range_at(dptr); /* somebody else may have freed it while this call waited */
    if (!range || range->base != dptr)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (range->kind == EMU_MANAGED)
        result = free_managed(range);
    else
        emu_free_range(range);
    emu_hazard_give();
    return emu_leave(result);
}

CUresult cuMemGetInfo(size_t *free, size_t *total)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!free || !total)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *total = emu.set.memory;
    *free = emu_memory_free(ctx->dev);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = emu_range_at(dptr);
    if (!range)
        return emu_leave(CUDA_ERROR_NOT_FOUND);
    if (pbase)
        *pbase = range->base;
    if (psize)
        *psize = range->size;
    return emu_leave(CUDA_SUCCESS);
}

/* A range of host memory at p; on failure nothing is kept. */
static CUresult add_host(CUcontext ctx, void *p, size_t size, enum emu_range_kind kind, unsigned flags)
{
    struct emu_store *store = emu_store_host(p, size);
    struct emu_range *range = store ? emu_range_add((CUdeviceptr)(uintptr_t)p, size, kind, store) : NULL;
    if (!range) {
        if (store)
            emu_store_put(store);
        return store ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->ctx = ctx;
    range->flags = flags;
    if (kind == EMU_HOST_ALLOC)
        emu_store_fill(store);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pp, size_t size, unsigned int flags)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!pp || !size || flags > 7)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    emu_hazard_pass();
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    result = add_host(ctx, p, size, EMU_HOST_ALLOC, flags);
    if (result != CUDA_SUCCESS)
        munmap(p, size);
    else
        *pp = p;
    return emu_leave(result);
}

CUresult cuMemAllocHost(void **pp, size_t size)
{
    return cuMemHostAlloc(pp, size, 0);
}

CUresult cuMemFreeHost(void *p)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS || !p)
        return result == CUDA_SUCCESS ? emu_leave(CUDA_SUCCESS) : result;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    struct emu_range *range = emu_range_at(at);
    if (!range || range->base != at || range->kind != EMU_HOST_ALLOC)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    emu_hazard_take(range->ctx->dev); /* the streams of its own GPU (measured) */
    range = emu_range_at(at);
    if (range && range->base == at) {
        size_t size = range->size;
        emu_range_remove(range);
        munmap(p, size);
    }
    emu_hazard_give();
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemHostRegister(void *p, size_t size, unsigned int flags)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!p || !size || flags > 15 || emu_space_ours((CUdeviceptr)(uintptr_t)p))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return emu_leave(CUDA_ERROR_NOT_SUPPORTED);
    emu_hazard_pass();
    return emu_leave(add_host(ctx, p, size, EMU_HOST_REGISTERED, flags));
}

CUresult cuMemHostUnregister(void *p)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    struct emu_range *range = emu_range_at(at);
    if (!p || !range || range->base != at || range->kind != EMU_HOST_REGISTERED)
        return emu_leave(p ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE);
    emu_hazard_take(NULL);
    range = emu_range_at(at);
    if (range && range->base == at)
        emu_range_remove(range);
    emu_hazard_give();
    return emu_leave(CUDA_SUCCESS);
}

/* The host range that p lies in, or NULL. */
static struct emu_range *host_range(const void *p)
{
    struct emu_range *range = emu_range_at((CUdeviceptr)(uintptr_t)p);
    if (range && range->kind != EMU_HOST_ALLOC && range->kind != EMU_HOST_REGISTERED)
        return NULL;
    return range;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *dptr, void *p, unsigned int flags)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!dptr || flags || !host_range(p))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *dptr = (CUdeviceptr)(uintptr_t)p;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *p)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = host_range(p);
    if (!flags || !range || range->kind != EMU_HOST_ALLOC)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = range->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return emu_leave(CUDA_SUCCESS);
}
