/* SPDX-License-Identifier: Apache-2.0 */
/* One registered mapping, cut into cache lines: sets of three, then single ones. */
#include "stream/flag.h"

#include "base/atomic.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINES 4096
#define SETS 1024
#define SINGLES (LINES - 3 * SETS) /* behind the sets */
#define BYTES ((size_t)LINES * HOCCL_CACHE_LINE)

static struct hoccl_flag line(const struct hoccl_flag_pool *pool, int i)
{
    return (struct hoccl_flag){.host = (uint32_t *)(pool->base + (size_t)i * HOCCL_CACHE_LINE),
                               .device = pool->device + (CUdeviceptr)i * HOCCL_CACHE_LINE};
}

HOCCL_Result hoccl_flag_pool_open(struct hoccl_flag_pool *pool)
{
    struct hoccl_flag_pool p = {.free = SINGLES, .free_sets = SETS};
    HOCCL_Result r = HOCCL_ERR_MEMORY;
    p.lines = hoccl_alloc(SINGLES * sizeof *p.lines, "flags");
    p.sets = hoccl_alloc(SETS * sizeof *p.sets, "flags");
    p.debt = hoccl_alloc(SETS * sizeof *p.debt, "flags");
    if (!p.lines || !p.sets || !p.debt)
        goto free_lines;
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
    for (int i = 0; i < SINGLES; i++)
        p.lines[i] = LINES - 1 - i;
    for (int i = 0; i < SETS; i++)
        p.sets[i] = (struct hoccl_flag_set){line(&p, 3 * i), line(&p, 3 * i + 1), line(&p, 3 * i + 2)};
    pthread_mutex_init(&p.lock, NULL);
    *pool = p;
    return HOCCL_SUCCESS;
unregister:
    hoccl_driver.MemHostUnregister(p.base);
unmap:
    munmap(p.base, BYTES);
free_lines:
    free(p.lines);
    free(p.sets);
    free(p.debt);
    return r;
}

void hoccl_flag_pool_close(struct hoccl_flag_pool *pool)
{
    hoccl_driver.MemHostUnregister(pool->base);
    munmap(pool->base, BYTES);
    free(pool->lines);
    free(pool->sets);
    free(pool->debt);
    pthread_mutex_destroy(&pool->lock);
    memset(pool, 0, sizeof *pool);
}

HOCCL_Result hoccl_flag_take(struct hoccl_flag_pool *pool, struct hoccl_flag *flag)
{
    int i = -1;
    pthread_mutex_lock(&pool->lock);
    if (pool->free)
        i = pool->lines[--pool->free];
    pthread_mutex_unlock(&pool->lock);
    if (i < 0)
        return hoccl_fail(HOCCL_ERR_MEMORY, "all %d flags are in use: too many communicators on one GPU", SINGLES);
    *flag = line(pool, i);
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

/* ---- sets -------------------------------------------------------------------------------------------------------- */

static bool paid(const struct hoccl_flag_debt *d)
{
    if (d->gated)
        return hoccl_reached16(hoccl_observe(d->set.start16.host), d->last);
    return hoccl_reached(hoccl_observe(d->set.start.host), d->last);
}

/* Under lock: sets whose streams have passed are free again. */
static void collect(struct hoccl_flag_pool *pool)
{
    for (int i = 0; i < pool->debts;) {
        if (!paid(&pool->debt[i])) {
            i++;
            continue;
        }
        pool->sets[pool->free_sets++] = pool->debt[i].set;
        pool->debt[i] = pool->debt[--pool->debts];
    }
}

bool hoccl_flag_pool_clean(struct hoccl_flag_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    collect(pool);
    bool clean = pool->debts == 0;
    pthread_mutex_unlock(&pool->lock);
    return clean;
}

HOCCL_Result hoccl_flag_set_take(struct hoccl_flag_pool *pool, struct hoccl_flag_set *set)
{
    bool found;
    pthread_mutex_lock(&pool->lock);
    collect(pool);
    found = pool->free_sets > 0;
    if (found)
        *set = pool->sets[--pool->free_sets];
    pthread_mutex_unlock(&pool->lock);
    if (found)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_MEMORY, "all %d flags of streams are in use: every communicator on a GPU keeps one for each stream it has "
                      "been used on; destroy communicators that are no longer needed, or use fewer", SETS);
}

bool hoccl_flag_sets_scarce(struct hoccl_flag_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    collect(pool);
    bool scarce = pool->free_sets < SETS / 2;
    pthread_mutex_unlock(&pool->lock);
    return scarce;
}

void hoccl_flag_set_give(struct hoccl_flag_pool *pool, const struct hoccl_flag_debt *debt)
{
    pthread_mutex_lock(&pool->lock);
    pool->debt[pool->debts++] = *debt;
    collect(pool);
    pthread_mutex_unlock(&pool->lock);
}
