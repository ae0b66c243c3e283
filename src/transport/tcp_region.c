/* SPDX-License-Identifier: Apache-2.0 */
/* A key is (number << 16 | place); numbers begin anywhere, so that a key of another process finds nothing. Blocks of places are made when needed and stay, so that a place can be looked up
 * without a lock.
 *
 *   I/O thread: inside + 1 ── key still the same? ── use it ── inside − 1
 *   remove:     key ← 0 (exchange) ── inside 0? ── the place is free
 *
 * Both look at `inside` by an exchange, so one comes first: the thread sees key 0, or the remover sees the thread. */
#include "transport/tcp_region.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"

#include <stdlib.h>
#include <sys/random.h>

void hoccl_tcp_regions_init(struct tcp_regions *regions)
{
    uint32_t first = 0;
    pthread_mutex_init(&regions->lock, NULL);
    if (getrandom(&first, sizeof first, 0) != sizeof first)
        first = (uint32_t)hoccl_now();
    regions->last = (uint64_t)first << 8;
}

void hoccl_tcp_regions_fini(struct tcp_regions *regions)
{
    for (int i = 0; i < TCP_REGION_BLOCKS; i++)
        free(regions->block[i]);
    pthread_mutex_destroy(&regions->lock);
}

static struct tcp_region *place(struct tcp_regions *regions, unsigned at)
{
    struct tcp_region *block = hoccl_observe(&regions->block[at / TCP_REGION_BLOCK]);
    return block ? &block[at % TCP_REGION_BLOCK] : NULL;
}

static bool in_use(const struct tcp_region *r)
{
    return hoccl_peek(&r->key) || hoccl_observe(&r->inside);
}

/* A place without a region, or −1; under the lock. */
static int free_place(struct tcp_regions *regions)
{
    unsigned at = 0;
    while (at < regions->places && in_use(place(regions, at)))
        at++;
    if (at == TCP_REGION_BLOCK * TCP_REGION_BLOCKS) {
        hoccl_fail(HOCCL_ERR_MEMORY, "%u regions are registered with the TCP transport: no room for another", at);
        return -1;
    }
    if (!place(regions, at)) {
        struct tcp_region *block = hoccl_alloc(TCP_REGION_BLOCK * sizeof *block, "the table of regions");
        if (!block)
            return -1;
        hoccl_publish(&regions->block[at / TCP_REGION_BLOCK], block);
    }
    if (at == regions->places)
        regions->places++;
    return (int)at;
}

HOCCL_Result hoccl_tcp_region_add(struct tcp_regions *regions, uint64_t address, uint64_t bytes, uint64_t *key)
{
    pthread_mutex_lock(&regions->lock);
    int at = free_place(regions);
    if (at >= 0) {
        struct tcp_region *r = place(regions, (unsigned)at);
        r->address = address;
        r->bytes = bytes;
        *key = ++regions->last << 16 | (unsigned)at;
        hoccl_publish(&r->key, *key);
    }
    pthread_mutex_unlock(&regions->lock);
    return at < 0 ? HOCCL_ERR_MEMORY : HOCCL_SUCCESS;
}

void hoccl_tcp_region_remove(struct tcp_regions *regions, uint64_t key)
{
    struct tcp_region *r = place(regions, key & 0xffff);
    hoccl_exchange(&r->key, (uint64_t)0);
    while (hoccl_fetch_add(&r->inside, 0u))
        hoccl_sleep(10 * HOCCL_US);
}

struct tcp_region *hoccl_tcp_region_enter(struct tcp_regions *regions, uint64_t key, uint64_t address, uint64_t bytes,
                                          const char **why)
{
    struct tcp_region *r = key ? place(regions, key & 0xffff) : NULL;
    *why = "its key is unknown here: the region was removed, or never was";
    if (!r)
        return NULL;
    hoccl_fetch_add(&r->inside, 1u);
    if (hoccl_observe(&r->key) == key) {
        if (address >= r->address && bytes <= r->bytes && address - r->address <= r->bytes - bytes)
            return r;
        *why = "it is not inside its region";
    }
    hoccl_tcp_region_leave(r);
    return NULL;
}

void hoccl_tcp_region_leave(struct tcp_region *region)
{
    hoccl_fetch_add(&region->inside, -1u);
}
