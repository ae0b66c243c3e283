/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's address space. GPU memory lives in address ranges that the CPU cannot touch (PROT_NONE) and that no
 * other mapping can get, neither while they are in use nor afterwards: a stale pointer faults in the CPU and is
 * refused by the driver, and never silently means somebody else's memory. HOCCL_EMU_REUSE=1 gives a retired address
 * out again for the next allocation of its size, as real drivers do, for tests of caches that are keyed by address.
 */
#define _GNU_SOURCE
#include "memory.h"

#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Ranges in order of address. */
static struct emu_range **ranges;
static size_t count, room;

/* Every reservation ever made, in order of address; touching ones are one. */
struct span {
    CUdeviceptr base, end;
};
static struct span *spans;
static size_t nspans, span_room;

/* Retired addresses that may be had again. */
static struct span *retired;
static size_t nretired, retired_room;

/* The array with room for one more than used; NULL: out of memory. */
static void *grown(void *array, size_t *have, size_t used, size_t item)
{
    if (used < *have)
        return array;
    void *p = realloc(array, (*have ? *have * 2 : 64) * item);
    if (p)
        *have = *have ? *have * 2 : 64;
    return p;
}

/* The first span that ends behind p. */
static size_t span_after(CUdeviceptr p)
{
    size_t low = 0, high = nspans;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (spans[mid].end <= p)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void span_add(CUdeviceptr base, CUdeviceptr end)
{
    size_t i = span_after(base);
    if (i > 0 && spans[i - 1].end == base) {
        spans[i - 1].end = end;
        return;
    }
    if (i < nspans && spans[i].base == end) {
        spans[i].base = base;
        return;
    }
    struct span *more = grown(spans, &span_room, nspans, sizeof *spans);
    if (!more)
        abort(); /* a reservation that is not known could be taken for a host pointer */
    spans = more;
    memmove(spans + i + 1, spans + i, (nspans - i) * sizeof *spans);
    spans[i] = (struct span){base, end};
    nspans++;
}

bool emu_space_ours(CUdeviceptr p)
{
    size_t i = span_after(p);
    return i < nspans && spans[i].base <= p;
}

static CUdeviceptr reuse(size_t size, size_t align)
{
    for (size_t i = nretired; i-- > 0;)
        if (retired[i].end - retired[i].base == size && retired[i].base % align == 0) {
            CUdeviceptr base = retired[i].base;
            retired[i] = retired[--nretired];
            return base;
        }
    return 0;
}

/* The mapping is made by the system call itself: nobody ever touches it, so no sanitizer need know of it. */
CUdeviceptr emu_space_reserve(size_t size, size_t align)
{
    CUdeviceptr base = emu.set.reuse ? reuse(size, align) : 0;
    if (base)
        return base;
    if (size > ((size_t)1 << 46))
        return 0;
    long p = syscall(SYS_mmap, NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == -1)
        return 0;
    span_add((CUdeviceptr)p, (CUdeviceptr)p + size + align);
    return ((CUdeviceptr)p + align - 1) / align * align;
}

void emu_space_retire(CUdeviceptr base, size_t size)
{
    if (!emu.set.reuse)
        return;
    struct span *more = grown(retired, &retired_room, nretired, sizeof *retired);
    if (!more)
        return;
    retired = more;
    retired[nretired++] = (struct span){base, base + size};
}

/* The first range that ends behind p. */
static size_t range_after(CUdeviceptr p)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (ranges[mid]->base + ranges[mid]->size <= p)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct emu_range *emu_range_at(CUdeviceptr p)
{
    size_t i = range_after(p);
    return i < count && ranges[i]->base <= p ? ranges[i] : NULL;
}

struct emu_range *emu_range_next(CUdeviceptr p)
{
    size_t i = range_after(p);
    return i < count ? ranges[i] : NULL;
}

/* Takes over the caller's reference to the store. NULL: overlaps another range, or out of memory. */
struct emu_range *emu_range_add(CUdeviceptr base, size_t size, enum emu_range_kind kind, struct emu_store *store)
{
    size_t i = range_after(base);
    if (i < count && ranges[i]->base < base + size)
        return NULL;
    struct emu_range **more = grown(ranges, &room, count, sizeof *ranges);
    if (!more)
        return NULL;
    ranges = more;
    struct emu_range *range = calloc(1, sizeof *range);
    if (!range)
        return NULL;
    range->base = base;
    range->size = size;
    range->kind = kind;
    range->store = store;
    range->id = ++emu.ids;
    memmove(ranges + i + 1, ranges + i, (count - i) * sizeof *ranges);
    ranges[i] = range;
    count++;
    return range;
}

void emu_range_remove(struct emu_range *range)
{
    size_t i = range_after(range->base);
    memmove(ranges + i, ranges + i + 1, (count - i - 1) * sizeof *ranges);
    count--;
    emu_store_put(range->store);
    free(range);
}

void emu_range_expose(const struct emu_range *range, bool on)
{
    int gpu = range->store->gpu;
    if (!emu.set.peermem || range->store->fd < 0 || (gpu >= 0 && emu.set.rdma[gpu] == EMU_RDMA_OFF))
        return;
    if (on)
        mmap((void *)(uintptr_t)range->base, range->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             range->store->fd, (off_t)range->offset);
    else
        mmap((void *)(uintptr_t)range->base, range->size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

int emu_range_gpu(const struct emu_range *range)
{
    return range->store->gpu;
}

bool emu_range_span(CUdeviceptr p, size_t bytes)
{
    CUdeviceptr end = p + bytes;
    if (end < p)
        return false;
    for (size_t i = range_after(p); p < end; i++) {
        if (i == count || ranges[i]->base > p)
            return false;
        p = ranges[i]->base + ranges[i]->size;
    }
    return true;
}

unsigned char *emu_range_bytes(CUdeviceptr p, size_t *left, struct emu_store **store)
{
    struct emu_range *range = emu_range_at(p);
    if (!range || emu_store_dead(range->store))
        return NULL;
    *left = range->base + range->size - p;
    *store = range->store;
    return range->store->bytes + range->offset + (p - range->base);
}
