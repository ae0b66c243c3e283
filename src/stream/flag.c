/* SPDX-License-Identifier: Apache-2.0 */
/* One registered mapping, cut into cache lines. */
#include "stream/flag.h"

#include "base/atomic.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINES 4096
#define BYTES ((size_t)LINES * HOCCL_CACHE_LINE)

HOCCL_Result hoccl_flag_pool_open(struct hoccl_flag_pool *pool)
{
    struct hoccl_flag_pool p = {.free = LINES};
    HOCCL_Result r;
    p.lines = hoccl_alloc(LINES * sizeof *p.lines, "flags");
    if (!p.lines)
        return HOCCL_ERR_MEMORY;
    p.base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p.base == MAP_FAILED) {
        r = hoccl_fail(HOCCL_ERR_MEMORY, "no memory for %zu bytes of flags: %m", BYTES);
        goto free_lines;
    }
    r = hoccl_driver_check(
        hoccl_driver.MemHostRegister(p.base, BYTES, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "registering %zu bytes of host memory for flags", BYTES);
    if (r)
        goto unmap;
    r = hoccl_driver_check(hoccl_driver.MemHostGetDevicePointer(&p.device, p.base, 0), "the GPU's address of the flags");
    if (r)
        goto unregister;
    for (int i = 0; i < LINES; i++)
        p.lines[i] = LINES - 1 - i;
    pthread_mutex_init(&p.lock, NULL);
    *pool = p;
    return HOCCL_SUCCESS;
unregister:
    hoccl_driver.MemHostUnregister(p.base);
unmap:
    munmap(p.base, BYTES);
free_lines:
    free(p.lines);
    return r;
}

void hoccl_flag_pool_close(struct hoccl_flag_pool *pool)
{
    hoccl_driver.MemHostUnregister(pool->base);
    munmap(pool->base, BYTES);
    free(pool->lines);
    pthread_mutex_destroy(&pool->lock);
    memset(pool, 0, sizeof *pool);
}

HOCCL_Result hoccl_flag_take(struct hoccl_flag_pool *pool, struct hoccl_flag *flag)
{
    int line = -1;
    pthread_mutex_lock(&pool->lock);
    if (pool->free)
        line = pool->lines[--pool->free];
    pthread_mutex_unlock(&pool->lock);
    if (line < 0)
        return hoccl_fail(HOCCL_ERR_MEMORY, "all %d flags are in use: too many streams and communicators on one GPU", LINES);
    flag->host = (uint32_t *)(pool->base + (size_t)line * HOCCL_CACHE_LINE);
    flag->device = pool->device + (CUdeviceptr)line * HOCCL_CACHE_LINE;
    return HOCCL_SUCCESS;
}

void hoccl_flag_give(struct hoccl_flag_pool *pool, struct hoccl_flag *flag)
{
    if (!flag->host)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->lines[pool->free++] = (int)(((char *)flag->host - pool->base) / HOCCL_CACHE_LINE);
    pthread_mutex_unlock(&pool->lock);
    flag->host = NULL;
}
