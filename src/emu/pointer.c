/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pointer attributes. cuPointerGetAttribute refuses a pointer that no range holds (pageable host memory, freed GPU
 * memory) with CUDA_ERROR_INVALID_VALUE; the plural form succeeds and answers zeros for it, as the real driver does.
 */
#include "device.h"
#include "memory.h"

#include <string.h>

/* An attribute's value, in the widest type, and how many bytes of it the caller gets. */
struct answer {
    uint64_t value;
    size_t bytes;
};

static bool is_host(const struct emu_range *range)
{
    return range->kind == EMU_HOST_ALLOC || range->kind == EMU_HOST_REGISTERED;
}

static int ordinal_of(const struct emu_range *range)
{
    struct emu_device *dev = is_host(range) ? range->ctx->dev : emu_device_of_gpu(emu_range_gpu(range));
    return dev ? dev->ordinal : range->ctx ? range->ctx->dev->ordinal : -1;
}

static unsigned handle_types(const struct emu_range *range)
{
    return range->kind == EMU_VMM ? range->store->handle_types : 0;
}

static bool answer_range(const struct emu_range *r, CUpointer_attribute attribute, struct answer *out)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *out = (struct answer){r->base, 8};
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *out = (struct answer){r->size, 8};
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *out = (struct answer){r->id, 8};
        return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *out = (struct answer){CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 4};
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *out = (struct answer){handle_types(r), 8};
        return true;
    default:
        return false;
    }
}

static bool answer_pointer(const struct emu_range *r, CUpointer_attribute attribute, CUdeviceptr p, struct answer *out)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *out = (struct answer){(uintptr_t)r->ctx, sizeof(CUcontext)};
        return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *out = (struct answer){is_host(r) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE, 4};
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *out = (struct answer){p, 8};
        return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *out = (struct answer){is_host(r) || r->kind == EMU_MANAGED ? p : 0, 8};
        return is_host(r) || r->kind == EMU_MANAGED;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *out = (struct answer){r->sync_memops, 4};
        return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *out = (struct answer){r->kind == EMU_MANAGED, 4};
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *out = (struct answer){(uint64_t)ordinal_of(r), 4};
        return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *out = (struct answer){r->kind == EMU_ALLOC, 4};
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *out = (struct answer){1, 4};
        return true;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *out = (struct answer){r->kind == EMU_ALLOC || r->store->rdma, 4};
        return true;
    default:
        return answer_range(r, attribute, out);
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct answer answer;
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = emu_range_at(ptr);
    if (!data || !range || !answer_pointer(range, attribute, ptr, &answer))
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(data, &answer.value, answer.bytes); /* little endian: the low bytes */
    return emu_leave(CUDA_SUCCESS);
}

static size_t width_of(CUpointer_attribute attribute)
{
    static struct emu_range none;
    struct answer answer;
    if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER)
        return sizeof(void *);
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ||
        attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE)
        return 4;
    return answer_pointer(&none, attribute, 0, &answer) ? answer.bytes : 0;
}

CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!n || !attributes || !data)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    struct emu_range *range = emu_range_at(ptr);
    for (unsigned i = 0; i < n; i++) {
        struct answer answer = {0, 0};
        size_t bytes = width_of(attributes[i]);
        if (!bytes)
            return emu_leave(CUDA_ERROR_INVALID_VALUE);
        if (!range || !answer_pointer(range, attributes[i], ptr, &answer))
            answer.value = !range && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? (uint64_t)-2 : 0;
        memcpy(data[i], &answer.value, bytes);
    }
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct emu_range *range = emu_range_at(ptr);
    if (!value || !range || is_host(range) || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    range->sync_memops = *(const int *)value != 0;
    return emu_leave(CUDA_SUCCESS);
}
