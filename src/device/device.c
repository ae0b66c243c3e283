/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing and describing the rank's GPU. The current context decides, as for every CUDA library; only a program that
 * has none gets one from us (paper §3; design: one GPU a rank). */
#include "device/device.h"

#include "base/error.h"

#include <string.h>

static HOCCL_Result describe(struct hoccl_device *d)
{
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.DeviceGetName(d->name, sizeof d->name, d->ordinal), "cuDeviceGetName");
    if (!r)
        r = hoccl_driver_check(hoccl_driver.DeviceGetPCIBusId(d->pci, sizeof d->pci, d->ordinal), "cuDeviceGetPCIBusId");
    if (!r)
        r = hoccl_driver_check(hoccl_driver.DeviceGetUuid(&d->uuid, d->ordinal), "cuDeviceGetUuid");
    return r;
}

static HOCCL_Result retain(int local_rank, struct hoccl_device *d)
{
    int n = 0;
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.DeviceGetCount(&n), "cuDeviceGetCount");
    if (r)
        return r;
    r = hoccl_driver_check(hoccl_driver.DeviceGet(&d->ordinal, local_rank % n), "cuDeviceGet(%d)", local_rank % n);
    if (r)
        return r;
    r = hoccl_driver_check(hoccl_driver.DevicePrimaryCtxRetain(&d->context, d->ordinal), "primary context of GPU %d",
                           d->ordinal);
    if (!r)
        r = hoccl_driver_check(hoccl_driver.CtxSetCurrent(d->context), "cuCtxSetCurrent");
    return r;
}

HOCCL_Result hoccl_device_open(int local_rank, struct hoccl_device *device)
{
    struct hoccl_device d = {0};
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.CtxGetCurrent(&d.context), "cuCtxGetCurrent");
    if (r)
        return r;
    if (d.context)
        r = hoccl_driver_check(hoccl_driver.CtxGetDevice(&d.ordinal), "cuCtxGetDevice");
    else
        r = retain(local_rank, &d);
    if (!r)
        r = describe(&d);
    if (!r)
        *device = d;
    return r;
}

HOCCL_Result hoccl_device_enter(const struct hoccl_device *device, bool *pushed)
{
    CUcontext current = NULL;
    *pushed = false;
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.CtxGetCurrent(&current), "cuCtxGetCurrent");
    if (r || current == device->context)
        return r;
    r = hoccl_driver_check(hoccl_driver.CtxPushCurrent(device->context), "cuCtxPushCurrent");
    *pushed = !r;
    return r;
}

void hoccl_device_leave(bool pushed)
{
    CUcontext c;
    if (pushed)
        hoccl_driver.CtxPopCurrent(&c);
}

CUmemAllocationProp hoccl_device_memory_kind(int where, bool rdma)
{
    CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = where}};
    int has = 0;
    if (rdma && !hoccl_driver.DeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, where))
        kind.allocFlags.gpuDirectRDMACapable = has != 0;
    return kind;
}

/* The driver may refuse what it has announced (a container without the NIC's module); plain memory does then. */
HOCCL_Result hoccl_device_memory_create(CUmemAllocationProp *kind, size_t bytes, CUmemGenericAllocationHandle *handle)
{
    CUresult e = hoccl_driver.MemCreate(handle, bytes, kind, 0);
    if (e && e != CUDA_ERROR_OUT_OF_MEMORY && kind->allocFlags.gpuDirectRDMACapable) {
        kind->allocFlags.gpuDirectRDMACapable = 0;
        e = hoccl_driver.MemCreate(handle, bytes, kind, 0);
    }
    if (e == CUDA_ERROR_OUT_OF_MEMORY)
        return hoccl_fail(HOCCL_ERR_MEMORY, "GPU %d has no %zu bytes left (CUDA_ERROR_OUT_OF_MEMORY)", kind->location.id, bytes);
    return hoccl_driver_check(e, "%zu bytes of GPU %d", bytes, kind->location.id);
}

/* A place for it among our addresses, where the device's engines may use it. The handle is released if that cannot be had. */
static HOCCL_Result map(const struct hoccl_device *device, struct hoccl_device_memory *m)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.MemAddressReserve(&m->address, m->bytes, 0, 0, 0), "cuMemAddressReserve");
    if (r)
        goto release;
    r = hoccl_driver_check(hoccl_driver.MemMap(m->address, m->bytes, 0, m->handle, 0), "cuMemMap");
    if (r)
        goto unreserve;
    r = hoccl_driver_check(hoccl_driver.MemSetAccess(m->address, m->bytes, &access, 1), "cuMemSetAccess");
    if (!r)
        return r;
    hoccl_driver.MemUnmap(m->address, m->bytes);
unreserve:
    hoccl_driver.MemAddressFree(m->address, m->bytes);
release:
    hoccl_driver.MemRelease(m->handle);
    return r;
}

static HOCCL_Result open_memory(const struct hoccl_device *device, int where, bool rdma, size_t bytes,
                                struct hoccl_device_memory *memory)
{
    struct hoccl_device_memory m = {0};
    size_t grain = 0;
    CUmemAllocationProp kind = hoccl_device_memory_kind(where, rdma);
    HOCCL_Result r = hoccl_driver_check(
        hoccl_driver.MemGetAllocationGranularity(&grain, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity");
    if (r)
        return r;
    m.bytes = (bytes + grain - 1) / grain * grain;
    r = hoccl_device_memory_create(&kind, m.bytes, &m.handle);
    if (!r)
        r = map(device, &m);
    if (!r)
        *memory = m;
    return r;
}

HOCCL_Result hoccl_device_memory_import(const struct hoccl_device *device, int fd, size_t bytes, struct hoccl_device_memory *memory)
{
    struct hoccl_device_memory m = {.bytes = bytes};
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.MemImportFromShareableHandle(&m.handle, (void *)(intptr_t)fd,
                                                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                                        "cuMemImportFromShareableHandle");
    if (!r)
        r = map(device, &m);
    if (!r)
        *memory = m;
    return r;
}

HOCCL_Result hoccl_device_memory_open(const struct hoccl_device *device, int where, size_t bytes,
                                      struct hoccl_device_memory *memory)
{
    return open_memory(device, where, false, bytes, memory);
}

HOCCL_Result hoccl_device_memory_open_rdma(const struct hoccl_device *device, int where, size_t bytes,
                                           struct hoccl_device_memory *memory)
{
    return open_memory(device, where, true, bytes, memory);
}

void hoccl_device_memory_close(struct hoccl_device_memory *memory)
{
    if (!memory->bytes)
        return;
    hoccl_driver.MemUnmap(memory->address, memory->bytes);
    hoccl_driver.MemAddressFree(memory->address, memory->bytes);
    hoccl_driver.MemRelease(memory->handle);
    memset(memory, 0, sizeof *memory);
}
