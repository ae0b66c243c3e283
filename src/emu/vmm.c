/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: reservations of addresses, physical memory (stores) with handles, mappings of one into
 * the other, and access rights for each device. Memory on a GPU needs no context there. A descriptor that is
 * exported is the store's memfd; whether it may be exported was decided when it was made.
 */
#define _GNU_SOURCE
#include "device.h"
#include "memory.h"
#include "shared.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define GRAIN (2u << 20)

/* A handle is the address of one of these; it counts its holders. */
struct physical {
    struct physical *next;
    struct emu_store *store;
    int handles, maps;
    int charged; /* ordinal of the device whose memory it is, -1: none of ours */
};

struct reservation {
    struct reservation *next;
    CUdeviceptr base;
    size_t size;
};

static struct physical *physicals;
static struct reservation *reservations;

static struct physical *find(CUmemGenericAllocationHandle handle)
{
    struct physical *p = physicals;
    while (p && (uintptr_t)p != handle)
        p = p->next;
    return p && p->handles ? p : NULL;
}

static struct physical *of_store(const struct emu_store *store)
{
    struct physical *p = physicals;
    while (p && p->store != store)
        p = p->next;
    return p;
}

static struct physical *physical_new(struct emu_store *store, int charged)
{
    struct physical *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    *p = (struct physical){physicals, store, 1, 0, charged};
    physicals = p;
    return p;
}

static void physical_release(struct physical *p)
{
    if (p->handles || p->maps)
        return;
    struct physical **link = &physicals;
    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    if (p->charged >= 0)
        emu_memory_give(emu.device[p->charged], p->store->size);
    emu_store_put(p->store);
    free(p);
}

/* The device that a location means; NULL: not a device of ours. */
static struct emu_device *located(const CUmemLocation *where)
{
    return where->type == CU_MEM_LOCATION_TYPE_DEVICE ? emu_device_at(where->id) : NULL;
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !located(&prop->location))
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->allocFlags.gpuDirectRDMACapable && emu.set.rdma[located(&prop->location)->gpu] == EMU_RDMA_OFF)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    (void)option;
    if (!granularity)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    result = check_prop(prop);
    if (result == CUDA_SUCCESS)
        *granularity = GRAIN;
    return emu_leave(result);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = check_prop(prop);
    if (result != CUDA_SUCCESS)
        return emu_leave(result);
    if (!handle || !size || size % GRAIN || flags)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    struct emu_device *dev = located(&prop->location);
    if (!emu_memory_take(dev, size))
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    struct emu_store *store = emu_store_create(dev->gpu, size);
    struct physical *p = store ? physical_new(store, dev->ordinal) : NULL;
    if (!p) {
        if (store)
            emu_store_put(store);
        emu_memory_give(dev, size);
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    store->handle_types = prop->requestedHandleTypes;
    store->rdma = prop->allocFlags.gpuDirectRDMACapable;
    *handle = (uintptr_t)p;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *p = find(handle);
    if (!p)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    p->handles--;
    physical_release(p);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    (void)addr; /* a hint */
    if (!ptr || !size || size % GRAIN || flags || (alignment & (alignment - 1)))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    struct reservation *r = malloc(sizeof *r);
    CUdeviceptr base = r ? emu_space_reserve(size, alignment > GRAIN ? alignment : GRAIN) : 0;
    if (!base) {
        free(r);
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *r = (struct reservation){reservations, base, size};
    reservations = r;
    *ptr = base;
    return emu_leave(CUDA_SUCCESS);
}

/* The reservation that holds all of it. */
static struct reservation *reserved(CUdeviceptr ptr, size_t size)
{
    struct reservation *r = reservations;
    while (r && !(ptr >= r->base && size <= r->size && ptr - r->base <= r->size - size))
        r = r->next;
    return r;
}

static bool mapped_any(CUdeviceptr ptr, size_t size)
{
    struct emu_range *range = emu_range_next(ptr);
    return range && range->base < ptr + size;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct reservation *r = reserved(ptr, size);
    if (!r || r->base != ptr || r->size != size || mapped_any(ptr, size))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    struct reservation **link = &reservations;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    free(r);
    emu_space_retire(ptr, size);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *p = find(handle);
    if (!p || !size || size % GRAIN || offset || flags || size > p->store->size || !reserved(ptr, size))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    emu_store_get(p->store);
    struct emu_range *range = emu_range_add(ptr, size, EMU_VMM, p->store);
    if (!range) {
        emu_store_put(p->store);
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    p->maps++;
    return emu_leave(CUDA_SUCCESS);
}

/* Whole mappings between ptr and ptr + size, one behind the other, fill it. */
static bool whole_mappings(CUdeviceptr ptr, size_t size)
{
    CUdeviceptr at = ptr;
    while (at < ptr + size) {
        struct emu_range *range = emu_range_at(at);
        if (!range || range->base != at || range->kind != EMU_VMM || range->size > ptr + size - at)
            return false;
        at += range->size;
    }
    return size > 0;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!whole_mappings(ptr, size))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    for (CUdeviceptr at = ptr; at < ptr + size;) {
        struct emu_range *range = emu_range_at(at);
        struct physical *p = of_store(range->store);
        at += range->size;
        emu_range_expose(range, false);
        emu_range_remove(range);
        p->maps--;
        physical_release(p);
    }
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!desc || !count || !whole_mappings(ptr, size))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        if (!located(&desc[i].location))
            return emu_leave(CUDA_ERROR_INVALID_DEVICE);
    for (CUdeviceptr at = ptr; at < ptr + size;) {
        struct emu_range *range = emu_range_at(at);
        for (size_t i = 0; i < count; i++) {
            uint64_t bit = 1ull << desc[i].location.id;
            bool on = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            if (on && !emu.set.p2p && emu_range_gpu(range) != emu.device[desc[i].location.id]->gpu)
                return emu_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
            range->access = on ? range->access | bit : range->access & ~bit;
        }
        emu_range_expose(range, range->access != 0);
        at += range->size;
    }
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = emu_range_at(ptr);
    if (!flags || !location || !located(location) || !range || range->kind != EMU_VMM)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = range->access >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *p = find(handle);
    if (!prop || !p)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    struct emu_device *dev = emu_device_of_gpu(p->store->gpu);
    *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = (CUmemAllocationHandleType)p->store->handle_types,
                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev ? dev->ordinal : -1}};
    prop->allocFlags.gpuDirectRDMACapable = p->store->rdma;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct physical *p = find(handle);
    if (!out || !p || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(p->store->handle_types & (unsigned)type))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    int fd = fcntl(p->store->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return emu_leave(CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)out = fd;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os, CUmemAllocationHandleType type)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    int fd = fcntl((int)(intptr_t)os, F_DUPFD_CLOEXEC, 0);
    struct emu_store *store = fd < 0 ? NULL : emu_store_import(fd);
    if (!store)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    struct physical *p = of_store(store);
    if (p) {
        emu_store_put(store);
        p->handles++;
    } else {
        p = physical_new(store, -1);
    }
    if (!p) {
        emu_store_put(store);
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *handle = (uintptr_t)p;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = emu_range_at((CUdeviceptr)(uintptr_t)addr);
    if (!handle || !range || range->kind != EMU_VMM)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    struct physical *p = of_store(range->store);
    p->handles++;
    *handle = (uintptr_t)p;
    return emu_leave(CUDA_SUCCESS);
}

/* Does this GPU give such a dma-buf of its memory? */
static bool gives(int gpu, bool pcie)
{
    return gpu < 0 || emu.set.rdma[gpu] >= (pcie ? EMU_RDMA_PCIE : EMU_RDMA_DMABUF);
}

/* Stands for a dma-buf: a descriptor of the same memory. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
                                       unsigned long long flags)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = emu_range_at(ptr);
    if (!handle || !range || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || range->store->fd < 0 || !size ||
        ptr % 4096 || size % 4096 || !emu_range_span(ptr, size) ||
        (flags & ~(unsigned long long)CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (!gives(emu_range_gpu(range), flags))
        return emu_leave(CUDA_ERROR_NOT_SUPPORTED);
    int fd = fcntl(range->store->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return emu_leave(CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)handle = fd;
    return emu_leave(CUDA_SUCCESS);
}
