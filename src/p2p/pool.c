/* SPDX-License-Identifier: Apache-2.0 */
/* See pool.h. Free slots are a stack: the one used last is the one still in the caches. Sockets are faster so; an engine that writes into
 * what a core has in its cache is slower (256 KiB: 16 µs against 8, H200). */
#define _GNU_SOURCE
#include "p2p/pool.h"

#include "base/error.h"
#include "p2p/words.h"

#include <sys/mman.h>

_Static_assert(HOCCL_POOL_BYTES <= (size_t)64 << 20, "a pool stays within its budget");

static HOCCL_Result open_host(struct hoccl_pool *pool, const char *what)
{
    void *p = mmap(NULL, HOCCL_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hoccl_fail(HOCCL_ERR_MEMORY, "%zu bytes of host memory for %s: %m", HOCCL_POOL_BYTES, what);
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.MemHostRegister(p, HOCCL_POOL_BYTES, CU_MEMHOSTREGISTER_PORTABLE),
                                        "pinning %zu bytes of host memory for %s", HOCCL_POOL_BYTES, what);
    if (r) {
        munmap(p, HOCCL_POOL_BYTES);
        return r;
    }
    pool->host = p;
    return HOCCL_SUCCESS;
}

static void make_slots(struct hoccl_pool *pool, unsigned mark)
{
    pool->count = HOCCL_POOL_SLOTS;
    hoccl_list_init(&pool->free);
    for (unsigned i = pool->count; i-- > 0;) {
        pool->slot[i].number = (uint16_t)(i | mark);
        hoccl_list_init(&pool->slot[i].link);
        hoccl_pool_give(pool, &pool->slot[i]);
    }
}

HOCCL_Result hoccl_pool_open(struct hoccl_pool *pool, const struct hoccl_device *device, enum hoccl_pool_place place, int other,
                             const char *what)
{
    struct hoccl_pool p = {.place = place};
    HOCCL_Result r = place == HOCCL_POOL_HOST ? open_host(&p, what) : hoccl_device_memory_open_rdma(device, other, HOCCL_POOL_BYTES, &p.memory);
    if (r)
        return r;
    *pool = p;
    make_slots(pool, 0);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_pool_open_lent(struct hoccl_pool *pool, const struct hoccl_device *device, int fd, size_t bytes)
{
    struct hoccl_pool p = {.place = HOCCL_POOL_GPU};
    HOCCL_Result r = hoccl_device_memory_import(device, fd, bytes, &p.memory);
    if (r)
        return r;
    *pool = p;
    make_slots(pool, 0);
    return HOCCL_SUCCESS;
}

void hoccl_pool_open_user(struct hoccl_pool *pool)
{
    *pool = (struct hoccl_pool){.place = HOCCL_POOL_USER};
    make_slots(pool, HOCCL_PLACE_USER);
}

void hoccl_pool_close(struct hoccl_pool *pool)
{
    if (!hoccl_pool_is_open(pool))
        return;
    if (pool->place == HOCCL_POOL_HOST) {
        hoccl_driver.MemHostUnregister(pool->host);
        munmap(pool->host, HOCCL_POOL_BYTES);
    } else if (pool->place == HOCCL_POOL_GPU) {
        hoccl_device_memory_close(&pool->memory);
    }
    pool->count = 0;
}

struct hoccl_region_source hoccl_pool_source(const struct hoccl_pool *pool)
{
    return (struct hoccl_region_source){.address = pool->place == HOCCL_POOL_HOST ? pool->host : (void *)(uintptr_t)pool->memory.address,
                                        .bytes = HOCCL_POOL_BYTES, .gpu = pool->place == HOCCL_POOL_GPU, .dmabuf = -1};
}

static struct hoccl_pool_slot *take(struct hoccl_pool *pool, struct hoccl_list *l)
{
    if (hoccl_list_empty(&pool->free))
        return NULL;
    hoccl_list_remove(l);
    pool->idle--;
    return hoccl_entry(l, struct hoccl_pool_slot, link);
}

struct hoccl_pool_slot *hoccl_pool_take(struct hoccl_pool *pool)
{
    return take(pool, pool->free.next);
}

struct hoccl_pool_slot *hoccl_pool_take_cold(struct hoccl_pool *pool)
{
    return take(pool, pool->free.prev);
}

void hoccl_pool_give(struct hoccl_pool *pool, struct hoccl_pool_slot *slot)
{
    slot->state = HOCCL_POOL_FREE;
    slot->far = NULL;
    slot->flow = NULL;
    slot->cancelled = false;
    hoccl_list_remove(&slot->link);
    hoccl_list_append(pool->free.next, &slot->link); /* in front of the first */
    pool->idle++;
}

CUdeviceptr hoccl_pool_address(const struct hoccl_pool *pool, const struct hoccl_pool_slot *slot)
{
    CUdeviceptr base = pool->place == HOCCL_POOL_HOST ? (CUdeviceptr)(uintptr_t)pool->host : pool->memory.address;
    return base + slot->number * HOCCL_POOL_SLOT;
}

enum hoccl_direction hoccl_pool_direction(const struct hoccl_pool *pool, bool out, bool host)
{
    if (pool->place == HOCCL_POOL_HOST)
        return host ? HOCCL_HOST : out ? HOCCL_D2H : HOCCL_H2D;
    return host ? out ? HOCCL_H2D : HOCCL_D2H : out ? HOCCL_PUSH : HOCCL_PULL;
}
