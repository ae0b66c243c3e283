/* SPDX-License-Identifier: Apache-2.0 */
/* See near_bus.h. */
#include "near_bus.h"

#include "base/error.h"

#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct near_count near_counts;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hoccl_list regions = {&regions, &regions}; /* under lock, as near_counts' regions are */

static void need(CUresult r, const char *what)
{
    if (!r)
        return;
    fprintf(stderr, "near: %s: CUresult %d\n", what, (int)r);
    abort();
}

const struct near_region *near_region_at(uint64_t address)
{
    const struct near_region *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct hoccl_list *l = regions.next; l != &regions && !found; l = l->next) {
        const struct near_region *r = hoccl_entry(l, struct near_region, link);
        if (address >= r->address && address - r->address < r->bytes)
            found = r;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Access to memory that is not opened piece by piece (let_in), again and again: that is no harm. */
static void enable(CUdeviceptr there)
{
    CUcontext context;
    int device;
    need(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there), "whose memory");
    need(cuDevicePrimaryCtxRetain(&context, device), "a context");
    cuCtxEnablePeerAccess(context, 0);
}

/* By the engine of the GPU that the bytes are on, or else of that which they go to. */
static void copy_by_engine(CUdeviceptr to, CUdeviceptr from, size_t bytes, bool gpu_to, bool gpu_from)
{
    static CUstream streams[16];
    int device;
    CUcontext context;
    need(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, gpu_from ? from : to), "whose memory");
    if (device >= (int)(sizeof streams / sizeof *streams))
        abort();
    need(cuDevicePrimaryCtxRetain(&context, device), "a context");
    need(cuCtxSetCurrent(context), "a context");
    if (gpu_to && gpu_from)
        enable(to);
    if (!streams[device])
        need(cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING), "a stream");
    CUresult r = !gpu_to     ? cuMemcpyDtoHAsync((void *)(uintptr_t)to, from, bytes, streams[device])
                 : !gpu_from ? cuMemcpyHtoDAsync(to, (void *)(uintptr_t)from, bytes, streams[device])
                             : cuMemcpyDtoDAsync(to, from, bytes, streams[device]);
    need(r, "a copy");
    need(cuStreamSynchronize(streams[device]), "a copy");
}

void near_copy(const struct hoccl_write *w)
{
    uint64_t to = w->to.address + w->to_offset, from = w->from->key.address + w->offset;
    const struct near_region *there = near_region_at(to), *here = w->from->own;
    if (!there)
        abort();
    if (there->gpu || here->gpu)
        copy_by_engine(to, from, w->bytes, there->gpu, here->gpu);
    else
        memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, w->bytes);
}

/* Every GPU may touch it. */
static void let_in(CUdeviceptr address, size_t bytes)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    int n, legacy = 0;
    if (!cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) && legacy)
        return;
    need(cuDeviceGetCount(&n), "devices");
    for (access.location.id = 0; access.location.id < n; access.location.id++)
        need(cuMemSetAccess(address, bytes, &access, 1), "access");
}

/* As the weather allows. */
static HOCCL_Result refuse_region(const struct hoccl_region_source *source)
{
    pthread_mutex_lock(&lock);
    bool bad = near.fail_region && !--near.fail_region;
    pthread_mutex_unlock(&lock);
    if (bad)
        return hoccl_fail(HOCCL_ERR_MEMORY, "the test lets this region not be registered");
    if (source->dmabuf >= 0 && (near.no_dmabuf || fcntl(source->dmabuf, F_GETFD) < 0))
        return hoccl_fail(HOCCL_ERR_DEVICE, "the test takes no dma-buf");
    if (source->gpu && source->dmabuf < 0 && near.no_address)
        return hoccl_fail(HOCCL_ERR_DEVICE, "the test takes no address on a GPU");
    if (source->gpu && !near.on_gpu)
        return hoccl_fail(HOCCL_ERR_DEVICE, "the test takes no memory of GPUs");
    return HOCCL_SUCCESS;
}

/* The GPU that reads what is written there is the one of who registers it. */
static void note_gpu(struct near_region *r)
{
    int device, order;
    CUdevice reader;
    let_in(r->address, r->bytes);
    need(cuCtxGetDevice(&reader), "who registers");
    need(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, r->address), "whose memory");
    need(cuDeviceGetAttribute(&order, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, device), "its order");
    r->unordered = order < (device == reader ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
                                             : CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES);
}

HOCCL_Result near_region_add(struct hoccl_endpoint *e, const struct hoccl_region_source *source, struct hoccl_region *region)
{
    (void)e;
    HOCCL_Result bad = refuse_region(source);
    if (bad)
        return bad;
    struct near_region *r = hoccl_alloc(sizeof *r, "a region");
    if (!r)
        return HOCCL_ERR_MEMORY;
    *r = (struct near_region){.address = (uintptr_t)source->address, .bytes = source->bytes, .gpu = source->gpu};
    if (r->gpu)
        note_gpu(r);
    pthread_mutex_lock(&lock);
    hoccl_list_append(&regions, &r->link);
    *(!r->gpu ? &near_counts.hosts : source->dmabuf < 0 ? &near_counts.addresses : &near_counts.dmabufs) += 1;
    pthread_mutex_unlock(&lock);
    *region = (struct hoccl_region){.key = {r->address, NEAR_KEY}, .own = r};
    return HOCCL_SUCCESS;
}

void near_region_remove(struct hoccl_endpoint *e, struct hoccl_region *region)
{
    struct near_region *r = region->own;
    (void)e;
    pthread_mutex_lock(&lock);
    hoccl_list_remove(&r->link);
    pthread_mutex_unlock(&lock);
    free(r);
    region->key.key = 0;
}
