/* SPDX-License-Identifier: Apache-2.0 */
/* The table of GPU objects. */
#include "p2p/gpu.h"
#include "p2p/wire.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "stream/parking.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CLOSE_TIMEOUT (500 * HOCCL_MS)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hoccl_list table = {&table, &table}; /* under lock */

static struct hoccl_gpu *find(const struct hoccl_device *device)
{
    for (struct hoccl_list *l = table.next; l != &table; l = l->next) {
        struct hoccl_gpu *g = hoccl_entry(l, struct hoccl_gpu, link);
        if (g->device.context == device->context)
            return g;
    }
    return NULL;
}

/* The nth GPU that this process sees beside its own and that its engines can reach; −1 if there is none. */
static int other_gpu(const struct hoccl_device *device, int nth)
{
    int n = 0, reach = 0;
    if (hoccl_driver.DeviceGetCount(&n))
        return -1;
    for (int i = 1; i < n; i++) {
        int other = (device->ordinal + i) % n;
        if (!hoccl_driver.DeviceCanAccessPeer(&reach, device->ordinal, other) && reach && !nth--)
            return other;
    }
    return -1;
}

/* The parts that stay when the threads end: registered memory, device memory. */
static HOCCL_Result open_memory(struct hoccl_gpu *g)
{
    HOCCL_Result r = hoccl_flag_pool_open(&g->flags);
    if (r)
        return r;
    r = hoccl_gate_open(&g->gate, &g->device, other_gpu(&g->device, 0), &g->flags);
    if (r)
        hoccl_flag_pool_close(&g->flags);
    return r;
}

static HOCCL_Result open_threads(struct hoccl_gpu *g)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    int open = 0;
    while (open < HOCCL_DIRECTIONS && !r) {
        r = hoccl_engine_open(&g->engine[open], (enum hoccl_direction)open, &g->flags, &g->submitter);
        open += !r;
    }
    if (!r)
        r = hoccl_nudge_open(&g->nudge, &g->flags);
    if (!r && (r = hoccl_submitter_open(&g->submitter, &g->device, hoccl_gate_scratch(&g->gate))))
        hoccl_nudge_close(&g->nudge, &g->flags);
    if (r) {
        while (open--)
            hoccl_engine_close(&g->engine[open], &g->flags);
        return r;
    }
    hoccl_exports_open(&g->exports);
    for (int i = 0; i < HOCCL_GPU_STAGES; i++)
        hoccl_stage_init_gpu(&g->stage[i], &g->device, other_gpu(&g->device, i), &g->gate, &g->flags);
    g->ready = true;
    return HOCCL_SUCCESS;
}

static HOCCL_Result create(const struct hoccl_device *device, int turn, struct hoccl_gpu **gpu)
{
    struct hoccl_gpu *g = hoccl_alloc_lines(sizeof *g, "a GPU object");
    if (!g)
        return HOCCL_ERR_MEMORY;
    g->device = *device;
    g->turn = turn;
    HOCCL_Result r = open_memory(g);
    if (r) {
        free(g);
        return r;
    }
    hoccl_mappings_open(&g->mappings, &g->submitter);
    hoccl_list_append(&table, &g->link);
    *gpu = g;
    return HOCCL_SUCCESS;
}

static HOCCL_Result open_locked(const struct hoccl_device *device, int turn, struct hoccl_gpu **gpu)
{
    struct hoccl_gpu *g = find(device);
    HOCCL_Result r = HOCCL_SUCCESS;
    if (!g)
        r = create(device, turn, &g);
    if (!r && !g->ready)
        r = open_threads(g);
    if (r)
        return r;
    g->users++;
    *gpu = g;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_gpu_open(int local_rank, struct hoccl_gpu **gpu)
{
    struct hoccl_device device;
    bool pushed;
    HOCCL_Result r = hoccl_device_open(local_rank, &device);
    if (r)
        return r;
    r = hoccl_device_enter(&device, &pushed);
    if (!r) {
        pthread_mutex_lock(&lock);
        r = open_locked(&device, local_rank, gpu);
        pthread_mutex_unlock(&lock);
        hoccl_device_leave(pushed);
    }
    return r;
}

HOCCL_Result hoccl_gpu_open_wire(struct hoccl_gpu *gpu)
{
    pthread_mutex_lock(&lock);
    HOCCL_Result r = hoccl_wire_open(gpu);
    pthread_mutex_unlock(&lock);
    return r;
}

HOCCL_Result hoccl_gpu_equip_wire(struct hoccl_gpu *gpu)
{
    bool pushed;
    HOCCL_Result r = hoccl_device_enter(&gpu->device, &pushed);
    if (r)
        return r;
    pthread_mutex_lock(&lock);
    r = hoccl_wire_equip(gpu->wire);
    if (!r && gpu->wire->in.place == HOCCL_POOL_HOST)
        r = hoccl_gate_suit_wire(&gpu->gate, &gpu->device, other_gpu(&gpu->device, 0), gpu->settled);
    pthread_mutex_unlock(&lock);
    hoccl_device_leave(pushed);
    return r;
}

void hoccl_gpu_wants(struct hoccl_gpu *gpu, char pci[HOCCL_PCI_TEXT])
{
    const struct hoccl_wire *w = gpu->wire;
    pthread_mutex_lock(&lock);
    snprintf(pci, HOCCL_PCI_TEXT, "%s", w->endpoint && !w->equipped ? w->place.hidden : "");
    pthread_mutex_unlock(&lock);
}

void hoccl_gpu_accept_loan(struct hoccl_gpu *gpu, const struct hoccl_loan *loan)
{
    pthread_mutex_lock(&lock);
    hoccl_wire_accept_loan(gpu->wire, loan);
    pthread_mutex_unlock(&lock);
}

void hoccl_gpus_forget(const void *address)
{
    pthread_mutex_lock(&lock);
    for (struct hoccl_list *l = table.next; l != &table; l = l->next) {
        struct hoccl_gpu *g = hoccl_entry(l, struct hoccl_gpu, link);
        if (g->wire && g->wire->endpoint)
            hoccl_registry_forget(g->wire, address);
    }
    pthread_mutex_unlock(&lock);
}

void hoccl_gpu_settle(struct hoccl_gpu *gpu)
{
    pthread_mutex_lock(&lock);
    gpu->settled = true;
    pthread_mutex_unlock(&lock);
}

void hoccl_gpu_forgive(struct hoccl_gpu *gpu, uint64_t gap)
{
    gpu->resumed = hoccl_now();
    hoccl_log(HOCCL_LOG_INFO, "this process has not run for %llu ms: that does not count as standing still",
              (unsigned long long)(gap / HOCCL_MS));
}

static void free_memory(struct hoccl_gpu *g)
{
    bool pushed = false;
    HOCCL_Result entered = hoccl_device_enter(&g->device, &pushed);
    hoccl_mappings_close(&g->mappings);
    hoccl_wire_free(g->wire);
    hoccl_gate_close(&g->gate, &g->flags);
    hoccl_flag_pool_close(&g->flags);
    if (!entered)
        hoccl_device_leave(pushed);
    hoccl_list_remove(&g->link);
    free(g);
}

/* Called while nothing is parked: this object and those that had to be kept before. One whose flags a stream may still
 * write to (an aborted operation that the stream has not come to) is kept on. */
static void free_unused(void *arg)
{
    struct hoccl_list *next;
    (void)arg;
    for (struct hoccl_list *l = table.next; l != &table; l = next) {
        struct hoccl_gpu *g = hoccl_entry(l, struct hoccl_gpu, link);
        next = l->next;
        if (!g->users && !g->ready && hoccl_flag_pool_clean(&g->flags))
            free_memory(g);
    }
}

static HOCCL_Result close_locked(struct hoccl_gpu *g)
{
    if (--g->users)
        return HOCCL_SUCCESS;
    g->ready = g->settled = false;
    hoccl_wire_close(g->wire);
    if (!hoccl_submitter_close(&g->submitter, CLOSE_TIMEOUT)) {
        hoccl_list_remove(&g->link);
        return hoccl_fail(HOCCL_ERR_TIMEOUT,
                          "the CUDA driver has not returned from a copy's submission: another thread of this process may sit "
                          "in cudaFree, cudaFreeHost or a module load behind a stream that waits");
    }
    for (int i = 0; i < HOCCL_DIRECTIONS; i++)
        hoccl_engine_close(&g->engine[i], &g->flags);
    hoccl_nudge_close(&g->nudge, &g->flags);
    for (int i = 0; i < HOCCL_GPU_STAGES; i++)
        hoccl_stage_close_gpu(&g->stage[i]);
    hoccl_exports_close(&g->exports);
    if (!hoccl_parking_quiet(free_unused, NULL))
        hoccl_log(HOCCL_LOG_INFO, "streams of this process still wait elsewhere: the GPU's flags are kept for later");
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_gpu_close(struct hoccl_gpu *gpu)
{
    struct hoccl_device device = gpu->device;
    bool pushed = false;
    HOCCL_Result entered = hoccl_device_enter(&device, &pushed);
    pthread_mutex_lock(&lock);
    HOCCL_Result r = close_locked(gpu);
    pthread_mutex_unlock(&lock);
    if (!entered)
        hoccl_device_leave(pushed);
    return r;
}
