/* SPDX-License-Identifier: Apache-2.0 */
/* A handle names the allocation, not the address (B21), so the offset travels beside it; the cache's key is the
 * driver's buffer id, which is never used twice, so memory that was freed and allocated again at the same address is
 * another key (B25). */
#include "p2p/memory.h"

#include "base/error.h"

#include <string.h>

struct attributes {
    unsigned int type;
    int ordinal;
    unsigned long long buffer;
    CUdeviceptr start;
    size_t bytes;
    int legacy;
    int managed;
    unsigned long long handles; /* CUmemAllocationHandleType bits it can be exported as */
};

static HOCCL_Result query(const void *address, struct attributes *a)
{
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                   CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    void *values[] = {&a->type, &a->ordinal, &a->buffer, &a->start, &a->bytes, &a->legacy, &a->managed, &a->handles};
    memset(a, 0, sizeof *a);
    return hoccl_driver_check(
        hoccl_driver.PointerGetAttributes(sizeof names / sizeof *names, names, values, (CUdeviceptr)(uintptr_t)address),
        "asking the driver about the buffer %p", address);
}

static HOCCL_Result classify(const struct hoccl_device *device, const void *address, size_t bytes, const struct attributes *a)
{
    uintptr_t p = (uintptr_t)address;
    if (a->managed)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "buffer %p is managed memory, which moves: pass device or pinned host memory",
                          address);
    if (a->type != CU_MEMORYTYPE_DEVICE && a->type != CU_MEMORYTYPE_HOST)
        return hoccl_fail(HOCCL_ERR_ARGUMENT,
                          "buffer %p is no memory that the driver knows: pageable host memory (malloc, stack), or device "
                          "memory that has been freed; pass memory of GPU %d or pinned host memory",
                          address, device->ordinal);
    if (a->type == CU_MEMORYTYPE_DEVICE && a->ordinal != device->ordinal)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "buffer %p is memory of GPU %d, and this rank is bound to GPU %d", address,
                          a->ordinal, device->ordinal);
    if ((a->legacy || a->type == CU_MEMORYTYPE_HOST) && (p < a->start || p - a->start > a->bytes || bytes > a->bytes - (p - a->start)))
        return hoccl_fail(HOCCL_ERR_ARGUMENT,
                          "buffer %p and %zu bytes reach beyond its allocation (%zu bytes at %p)", address, bytes, a->bytes,
                          (void *)(uintptr_t)a->start);
    return HOCCL_SUCCESS;
}

void hoccl_exports_open(struct hoccl_exports *exports)
{
    memset(exports, 0, sizeof *exports);
    pthread_mutex_init(&exports->lock, NULL);
}

void hoccl_exports_close(struct hoccl_exports *exports)
{
    pthread_mutex_destroy(&exports->lock);
}

/* Memory without a legacy handle may be a range over several segments, and the driver's "range" is then the reserved one,
 * mapped or not: so walk the segments, each a mapping of its own with an id of its own. */
static HOCCL_Result walk(const struct hoccl_device *device, const void *address, size_t bytes, struct hoccl_memory *m)
{
    CUdeviceptr start = (CUdeviceptr)(uintptr_t)address, at = start, base;
    size_t n;
    if (bytes > UINT64_MAX - start)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "buffer %p and %zu bytes reach beyond its memory, and beyond the address space", address, bytes);
    m->buffer = HOCCL_RANGE_SEED;
    m->range = true;
    m->bytes = 0;
    while (at < start + bytes) {
        struct attributes a;
        HOCCL_Result r = query((const void *)(uintptr_t)at, &a);
        if (r)
            return r;
        if (a.type != CU_MEMORYTYPE_DEVICE || a.ordinal != device->ordinal || hoccl_driver.MemGetAddressRange(&base, &n, at))
            return hoccl_fail(HOCCL_ERR_ARGUMENT, "buffer %p and %zu bytes reach beyond its memory: nothing of GPU %d is mapped at %p",
                              address, bytes, device->ordinal, (void *)(uintptr_t)at);
        if (!m->bytes)
            m->base = base;
        m->buffer = hoccl_range_id(m->buffer, a.buffer, n);
        m->bytes += n;
        m->range &= (a.handles & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
        at = base + n;
    }
    m->offset = start - m->base;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_memory_check(const struct hoccl_device *device, const void *address, size_t bytes,
                                struct hoccl_memory *memory)
{
    struct attributes a;
    HOCCL_Result r = query(address, &a);
    if (!r)
        r = classify(device, address, bytes, &a);
    if (r)
        return r;
    *memory = (struct hoccl_memory){.host = a.type == CU_MEMORYTYPE_HOST,
                                    .legacy = a.type == CU_MEMORYTYPE_DEVICE && a.legacy,
                                    .buffer = a.buffer,
                                    .base = a.start,
                                    .offset = (uintptr_t)address - a.start};
    return memory->host || memory->legacy ? HOCCL_SUCCESS : walk(device, address, bytes, memory);
}

HOCCL_Result hoccl_memory_id(const void *address, uint64_t *buffer)
{
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    unsigned long long id = 0;
    void *value = &id;
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.PointerGetAttributes(1, &name, &value, (CUdeviceptr)(uintptr_t)address),
                                        "asking the driver about the buffer %p", address);
    *buffer = id;
    return r;
}

HOCCL_Result hoccl_memory_segment(const struct hoccl_device *device, uintptr_t at, struct hoccl_memory_segment *segment)
{
    struct attributes a;
    HOCCL_Result r = query((const void *)at, &a);
    CUdeviceptr base = a.start;
    size_t bytes = a.bytes;
    if (!r)
        r = classify(device, (const void *)at, 1, &a);
    if (!r && a.type == CU_MEMORYTYPE_DEVICE && !a.legacy)
        r = hoccl_driver_check(hoccl_driver.MemGetAddressRange(&base, &bytes, at), "asking for the segment at %p", (void *)at);
    if (!r)
        *segment = (struct hoccl_memory_segment){base, bytes, a.buffer, a.type == CU_MEMORYTYPE_HOST};
    return r;
}

static HOCCL_Result find_or_make(struct hoccl_exports *x, struct hoccl_memory *m)
{
    const unsigned n = sizeof x->entries / sizeof *x->entries;
    CUipcMemHandle handle;
    _Static_assert(sizeof handle == sizeof m->handle, "a handle fits its line");
    for (unsigned i = 0; i < n; i++)
        if (x->entries[i].buffer == m->buffer) {
            m->handle = x->entries[i].handle;
            return HOCCL_SUCCESS;
        }
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.IpcGetMemHandle(&handle, m->base), "cuIpcGetMemHandle");
    if (r)
        return r;
    struct hoccl_export *e = &x->entries[x->next++ % n];
    e->buffer = m->buffer;
    memcpy(&e->handle, &handle, sizeof handle);
    m->handle = e->handle;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_memory_reach(struct hoccl_exports *exports, bool same_process, struct hoccl_memory *memory)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    memory->kind = memory->host ? HOCCL_MEMORY_HOST : HOCCL_MEMORY_CLOSED;
    if (memory->range)
        memory->kind = HOCCL_MEMORY_RANGE;
    if (!memory->legacy || memory->host)
        return r;
    if (same_process) {
        memory->kind = HOCCL_MEMORY_ADDRESS;
        return r;
    }
    pthread_mutex_lock(&exports->lock);
    r = find_or_make(exports, memory);
    pthread_mutex_unlock(&exports->lock);
    if (!r)
        memory->kind = HOCCL_MEMORY_IPC;
    return r;
}
