/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU a rank is bound to, and what it is called everywhere: by UUID and PCI id, never by ordinal. */
#ifndef HOCCL_DEVICE_DEVICE_H
#define HOCCL_DEVICE_DEVICE_H

#include "device/driver.h"

#include <stdbool.h>

struct hoccl_device {
    CUdevice ordinal;
    CUcontext context;
    char name[64];
    char pci[16];
    CUuuid uuid;
};

/* The device of the calling thread's current context; without one, the primary context of device
 * (local_rank mod devices), made current. It stays to the process's end, as with the CUDA runtime: the caller's streams
 * and buffers live in it and outlive communicators. Needs hoccl_driver_load. Errors: DEVICE. */
HOCCL_Result hoccl_device_open(int local_rank, struct hoccl_device *device);

/* Make the device's context current for a moment; `pushed` says what hoccl_device_leave has to undo. */
HOCCL_Result hoccl_device_enter(const struct hoccl_device *device, bool *pushed);
void hoccl_device_leave(bool pushed);

/* How memory of GPU `where` (an ordinal) is asked for: exportable as a descriptor and, with `rdma`, within reach of NICs, if the
 * GPU has that. */
CUmemAllocationProp hoccl_device_memory_kind(int where, bool rdma);

/* cuMemCreate of that; what NICs cannot reach if the driver refuses the other. Errors: MEMORY (nothing left), DEVICE. */
HOCCL_Result hoccl_device_memory_create(CUmemAllocationProp *kind, size_t bytes, CUmemGenericAllocationHandle *handle);

/* A piece of GPU memory, made by cuMemCreate so that freeing it never waits for parked streams; its descriptor can be
 * sent to other processes. */
struct hoccl_device_memory {
    CUdeviceptr address;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
};
/* On GPU `where` (an ordinal, the device's own or another; no context is needed there), for copies by `device`; the second
 * within reach of NICs, if the GPU has that. */
HOCCL_Result hoccl_device_memory_open(const struct hoccl_device *device, int where, size_t bytes,
                                      struct hoccl_device_memory *memory);
HOCCL_Result hoccl_device_memory_open_rdma(const struct hoccl_device *device, int where, size_t bytes,
                                           struct hoccl_device_memory *memory);
/* What another process has made and exported as the descriptor `fd`, on a GPU that may be hidden from this one. It lives as long
 * as any process holds it. The descriptor stays the caller's. */
HOCCL_Result hoccl_device_memory_import(const struct hoccl_device *device, int fd, size_t bytes, struct hoccl_device_memory *memory);
void hoccl_device_memory_close(struct hoccl_device_memory *memory);

#endif
