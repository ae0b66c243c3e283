/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver says of each kind of memory: the answers decide how a buffer is classified (p2p/memory.c) and what the
 * emulated driver must answer. One line a pointer; one GPU is enough. usage: attributes */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)

static const char *name(CUresult r)
{
    const char *s = "?";
    cuGetErrorName(r, &s);
    return r ? s : "ok";
}

static void check(CUresult r, const char *what)
{
    if (!r)
        return;
    printf("%s: %s\n", what, name(r));
    exit(1);
}

static void tell(const char *what, CUdeviceptr p)
{
    unsigned int type = 0;
    int ordinal = -9, legacy = -9, managed = -9, mapped = -9;
    unsigned long long id = 0, handles = 0;
    CUdeviceptr start = 0, base = 0;
    size_t size = 0, bytes = 0;
    CUmemGenericAllocationHandle h = 0;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_BUFFER_ID,        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE,       CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED,       CU_POINTER_ATTRIBUTE_MAPPED,
                                   CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    void *values[] = {&type, &ordinal, &id, &start, &size, &legacy, &managed, &mapped, &handles};
    CUresult r = cuPointerGetAttributes(9, names, values, p);
    CUresult q = cuMemGetAddressRange(&base, &bytes, p);
    CUresult t = cuMemRetainAllocationHandle(&h, (void *)p);
    printf("%-34s %s type %u dev %d id %llu start %+lld size %zu legacy %d managed %d mapped %d handles %llu | range %s %+lld %zu | retain %s\n",
           what, name(r), type, ordinal, id, (long long)(start - p), size, legacy, managed, mapped, handles, name(q),
           (long long)(base - p), bytes, name(t));
    if (!t)
        cuMemRelease(h);
}

static CUmemGenericAllocationHandle segment(size_t n, int handle_types)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = (CUmemAllocationHandleType)handle_types,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle h;
    check(cuMemCreate(&h, n, &p, 0), "cuMemCreate");
    return h;
}

static void map(CUdeviceptr at, size_t n, CUmemGenericAllocationHandle h)
{
    CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(cuMemMap(at, n, 0, h, 0), "map");
    check(cuMemSetAccess(at, n, &a, 1), "access");
}

int main(void)
{
    CUcontext c;
    CUdeviceptr a, b, va, pool, managed;
    CUstream s;
    void *host;
    check(cuInit(0), "init");
    check(cuDevicePrimaryCtxRetain(&c, 0), "context");
    check(cuCtxSetCurrent(c), "context");
    check(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
    check(cuMemAlloc(&a, 4096), "alloc");
    check(cuMemAlloc(&b, 4096), "alloc");
    tell("cuMemAlloc 4 KiB", a);
    tell("cuMemAlloc 4 KiB + 100", a + 100);
    tell("second cuMemAlloc 4 KiB", b);
    check(cuMemFree(a), "free");
    tell("freed", a);
    check(cuMemAlloc(&a, 4096), "alloc");
    tell("allocated again", a);
    check(cuMemAddressReserve(&va, 64 * MIB, 0, 0, 0), "reserve");
    tell("reserved only", va);
    CUmemGenericAllocationHandle h0 = segment(2 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    map(va, 2 * MIB, h0);
    map(va + 2 * MIB, 20 * MIB, segment(20 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    map(va + 22 * MIB, 4 * MIB, segment(4 * MIB, CU_MEM_HANDLE_TYPE_NONE));
    tell("VMM fd segment 0", va + 4096);
    tell("VMM fd segment 1", va + 4 * MIB);
    tell("VMM segment 2, no handle type", va + 23 * MIB);
    tell("VMM behind the last", va + 27 * MIB);
    check(cuMemUnmap(va, 2 * MIB), "unmap");
    tell("VMM unmapped", va + 4096);
    map(va, 2 * MIB, h0);
    tell("VMM the same handle mapped again", va + 4096);
    check(cuMemUnmap(va, 2 * MIB), "unmap");
    map(va, 2 * MIB, segment(2 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    tell("VMM another handle mapped there", va + 4096);
    check(cuMemAllocAsync(&pool, MIB, s), "pool");
    check(cuStreamSynchronize(s), "pool");
    tell("cuMemAllocAsync", pool + 16);
    check(cuMemHostAlloc(&host, MIB, 0), "host");
    tell("cuMemHostAlloc", (CUdeviceptr)(uintptr_t)host + 16);
    void *m = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tell("pageable", (CUdeviceptr)(uintptr_t)m);
    check(cuMemHostRegister(m, MIB, 0), "register");
    tell("registered", (CUdeviceptr)(uintptr_t)m + 16);
    check(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL), "managed");
    tell("managed", managed);
    return 0;
}
