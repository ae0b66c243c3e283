/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuDeviceGetAttribute: an H200's figures, as a table; those that a setting or the device decides stand in the
 * function. An attribute that is not in the table is 0, as most are on the real device.
 */
#include "device.h"

#define A(name) CU_DEVICE_ATTRIBUTE_##name

static const struct {
    CUdevice_attribute attribute;
    int value;
} fixed[] = {
    {A(MAX_THREADS_PER_BLOCK), 1024},
    {A(MAX_BLOCK_DIM_X), 1024},
    {A(MAX_BLOCK_DIM_Y), 1024},
    {A(MAX_BLOCK_DIM_Z), 64},
    {A(MAX_GRID_DIM_X), 2147483647},
    {A(MAX_GRID_DIM_Y), 65535},
    {A(MAX_GRID_DIM_Z), 65535},
    {A(MAX_SHARED_MEMORY_PER_BLOCK), 49152},
    {A(TOTAL_CONSTANT_MEMORY), 65536},
    {A(WARP_SIZE), 32},
    {A(MAX_REGISTERS_PER_BLOCK), 65536},
    {A(CLOCK_RATE), 1980000},
    {A(CAN_MAP_HOST_MEMORY), 1},
    {A(CONCURRENT_KERNELS), 1},
    {A(ECC_ENABLED), 1},
    {A(MEMORY_CLOCK_RATE), 3201000},
    {A(GLOBAL_MEMORY_BUS_WIDTH), 6144},
    {A(L2_CACHE_SIZE), 62914560},
    {A(MAX_THREADS_PER_MULTIPROCESSOR), 2048},
    {A(ASYNC_ENGINE_COUNT), 3},
    {A(UNIFIED_ADDRESSING), 1},
    {A(COMPUTE_CAPABILITY_MAJOR), 9},
    {A(COMPUTE_CAPABILITY_MINOR), 0},
    {A(STREAM_PRIORITIES_SUPPORTED), 1},
    {A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR), 233472},
    {A(MAX_REGISTERS_PER_MULTIPROCESSOR), 65536},
    {A(MANAGED_MEMORY), 1},
    {A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), 1},
    {A(CAN_USE_STREAM_MEM_OPS_V1), 1},
    {A(CAN_USE_64_BIT_STREAM_MEM_OPS_V1), 1},
    {A(CAN_USE_STREAM_WAIT_VALUE_NOR_V1), 1},
    {A(CAN_USE_64_BIT_STREAM_MEM_OPS), 1},
    {A(CAN_USE_STREAM_WAIT_VALUE_NOR), 1},
    {A(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 232448},
    {A(HOST_REGISTER_SUPPORTED), 1},
    {A(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1},
    {A(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1},
    {A(MAX_BLOCKS_PER_MULTIPROCESSOR), 32},
    {A(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS), CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST},
    {A(MEMORY_POOLS_SUPPORTED), 1},
    {A(MEMPOOL_SUPPORTED_HANDLE_TYPES), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {A(IPC_EVENT_SUPPORTED), 1},
    {A(HOST_NUMA_ID), 0},
    {A(NUMA_ID), -1},
};

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_device *d = emu_device_at(dev);
    if (!d || !pi || (int)attrib < 1)
        return emu_leave(d ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE);
    *pi = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (fixed[i].attribute == attrib)
            *pi = fixed[i].value;
    if (attrib == A(MULTIPROCESSOR_COUNT))
        *pi = (int)emu.set.sms;
    else if (attrib == A(GPU_DIRECT_RDMA_SUPPORTED) || attrib == A(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        *pi = emu.set.rdma[d->gpu] != EMU_RDMA_OFF;
    else if (attrib == A(GPU_DIRECT_RDMA_WRITES_ORDERING))
        *pi = emu.set.order[d->gpu];
    else if (attrib == A(DMA_BUF_SUPPORTED))
        *pi = emu.set.rdma[d->gpu] >= EMU_RDMA_DMABUF;
    else if (attrib == A(PCI_BUS_ID))
        *pi = d->pci_bus;
    else if (attrib == A(PCI_DEVICE_ID))
        *pi = d->pci_device;
    else if (attrib == A(PCI_DOMAIN_ID))
        *pi = d->pci_domain;
    return emu_leave(CUDA_SUCCESS);
}
