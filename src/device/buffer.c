/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers are made by cuMemCreate: unmapping waits for nobody, whereas cuMemFree behind a parked stream stops every copy of
 * the process. They can be exported as a descriptor, and RDMA can reach them where the driver offers it. */
#include "device/buffer.h"

#include "base/atomic.h"
#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>

struct buffer {
    struct buffer *next;
    CUdeviceptr address;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *buffers; /* under lock, but for the question whether there are any */

/* The own GPU must have access; the others get it where they can, for kernels and copies of the application. */
static HOCCL_Result allow(const struct hoccl_device *device, CUdeviceptr address, size_t bytes)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    int devices = 0, reaches;
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.MemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
    if (!r)
        r = hoccl_driver_check(hoccl_driver.DeviceGetCount(&devices), "cuDeviceGetCount");
    for (int i = 0; i < devices && !r; i++) {
        if (i == device->ordinal || hoccl_driver.DeviceCanAccessPeer(&reaches, i, device->ordinal) || !reaches)
            continue;
        access.location.id = i;
        hoccl_driver.MemSetAccess(address, bytes, &access, 1);
    }
    return r;
}

static HOCCL_Result map(const struct hoccl_device *device, struct buffer *b, CUmemGenericAllocationHandle handle)
{
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.MemAddressReserve(&b->address, b->bytes, 0, 0, 0), "cuMemAddressReserve");
    if (r)
        return r;
    r = hoccl_driver_check(hoccl_driver.MemMap(b->address, b->bytes, 0, handle, 0), "cuMemMap");
    if (r)
        goto unreserve;
    r = allow(device, b->address, b->bytes);
    if (!r)
        return HOCCL_SUCCESS;
    hoccl_driver.MemUnmap(b->address, b->bytes);
unreserve:
    hoccl_driver.MemAddressFree(b->address, b->bytes);
    return r;
}

HOCCL_Result hoccl_buffer_open(const struct hoccl_device *device, size_t bytes, void **address)
{
    CUmemAllocationProp kind = hoccl_device_memory_kind(device->ordinal, true);
    CUmemGenericAllocationHandle handle;
    size_t grain = 0;
    HOCCL_Result r = hoccl_driver_check(
        hoccl_driver.MemGetAllocationGranularity(&grain, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "granularity");
    if (r)
        return r;
    if (bytes > SIZE_MAX - grain)
        return hoccl_fail(HOCCL_ERR_MEMORY, "GPU %d has no %zu bytes", device->ordinal, bytes);
    struct buffer *b = hoccl_alloc(sizeof *b, "a buffer's entry");
    if (!b)
        return HOCCL_ERR_MEMORY;
    b->bytes = (bytes + grain - 1) / grain * grain;
    r = hoccl_device_memory_create(&kind, b->bytes, &handle);
    if (!r) {
        r = map(device, b, handle);
        hoccl_driver.MemRelease(handle); /* the mapping keeps the memory */
    }
    if (r) {
        free(b);
        return r;
    }
    *address = (void *)(uintptr_t)b->address;
    pthread_mutex_lock(&lock);
    b->next = buffers;
    hoccl_publish(&buffers, b);
    pthread_mutex_unlock(&lock);
    return HOCCL_SUCCESS;
}

bool hoccl_buffer_find(const void *address, size_t bytes, uintptr_t *base, size_t *all)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    if (!hoccl_peek(&buffers))
        return false;
    pthread_mutex_lock(&lock);
    const struct buffer *b = buffers;
    while (b && (at < b->address || at - b->address >= b->bytes || bytes > b->bytes - (at - b->address)))
        b = b->next;
    if (b) {
        *base = b->address;
        *all = b->bytes;
    }
    pthread_mutex_unlock(&lock);
    return b;
}

static struct buffer *take(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    struct buffer **link = &buffers;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct buffer *b = *link;
    if (b)
        hoccl_publish(link, b->next);
    pthread_mutex_unlock(&lock);
    return b;
}

HOCCL_Result hoccl_buffer_close(void *address)
{
    struct buffer *b = take((CUdeviceptr)(uintptr_t)address);
    if (!b)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "%p is not the beginning of memory from HOCCL_MemAlloc, or it has been freed", address);
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.MemUnmap(b->address, b->bytes), "unmapping %p", address);
    if (!r)
        r = hoccl_driver_check(hoccl_driver.MemAddressFree(b->address, b->bytes), "freeing the addresses at %p", address);
    free(b);
    return r;
}
