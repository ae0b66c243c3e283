/* SPDX-License-Identifier: Apache-2.0 */
/* See stage.h. */
#define _GNU_SOURCE
#include "p2p/stage.h"

#include "base/error.h"
#include "base/log.h"
#include "p2p/reach.h"
#include "stream/parking.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void hoccl_stage_init_host(struct hoccl_stage *stage, char *host, int fd)
{
    *stage = (struct hoccl_stage){
        .view = {.kind = HOCCL_STAGE_HOST, .host = host, .bytes = HOCCL_STAGE_AREA, .fd = fd},
        .free = (1u << HOCCL_STAGE_SLOTS) - 1,
    };
}

/* Do bytes that are pushed there come back? */
static bool reached(const struct hoccl_stage_view *v, CUdeviceptr there)
{
    bool lost = !hoccl_reach_confirm(v->device, v->gate, v->flags, there);
    if (lost)
        hoccl_log(HOCCL_LOG_WARN, "what this GPU (%s) writes to GPU %d does not come back, although the driver says that it can "
                  "access it: host memory is used instead. An IOMMU or PCIe access control (ACS) may be in the way",
                  v->device->pci, v->other);
    return !lost;
}

/* Where hardware channels are few the look at what has come back, a D2H copy, could stand behind one that the program has queued
 * behind an operation: so it is made before there are operations. */
static void confirm_early(struct hoccl_stage_view *v)
{
    struct hoccl_device_memory line;
    if (v->gate->kind == HOCCL_GATE_NONE || hoccl_device_memory_open(v->device, v->other, HOCCL_REACH_LINE, &line))
        return;
    v->confirmed = reached(v, line.address);
    if (!v->confirmed) {
        v->result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        v->state = HOCCL_STAGE_FAILED;
    }
    hoccl_device_memory_close(&line);
}

void hoccl_stage_init_gpu(struct hoccl_stage *stage, const struct hoccl_device *device, int other,
                          const struct hoccl_gate *gate, struct hoccl_flag_pool *flags)
{
    *stage = (struct hoccl_stage){
        .view = {.kind = HOCCL_STAGE_GPU, .fd = -1, .device = device, .other = other, .gate = gate, .flags = flags,
                 .bytes = HOCCL_GPU_STAGE_SLOTS * HOCCL_GPU_STAGE_BYTES},
        .free = (1u << HOCCL_GPU_STAGE_SLOTS) - 1,
    };
    if (other >= 0 && hoccl_driver.DeviceGetUuid(&stage->view.uuid, other))
        stage->view.other = -1;
    if (stage->view.other >= 0)
        confirm_early(&stage->view);
}

unsigned hoccl_stage_take(struct hoccl_stage *stage, unsigned most, unsigned span, uint16_t *slots)
{
    uint32_t run = (1u << span) - 1;
    unsigned n = 0;
    for (unsigned slot = 0; slot + span <= 8 * sizeof stage->free && n < most; slot += span) {
        if ((stage->free & run << slot) != run << slot)
            continue;
        stage->free &= ~(run << slot);
        slots[n++] = (uint16_t)slot;
    }
    return n;
}

void hoccl_stage_give(struct hoccl_stage *stage, unsigned count, unsigned span, const uint16_t *slots)
{
    for (unsigned i = 0; i < count; i++)
        stage->free |= ((1u << span) - 1) << slots[i];
}

size_t hoccl_stage_slot_bytes(enum hoccl_stage_kind kind)
{
    return kind == HOCCL_STAGE_GPU ? HOCCL_GPU_STAGE_BYTES : HOCCL_STAGE_BYTES;
}

CUdeviceptr hoccl_stage_base(const struct hoccl_stage_view *view)
{
    return view->kind == HOCCL_STAGE_GPU ? view->memory.address : (CUdeviceptr)(uintptr_t)view->host;
}

/* Reserve first: memory that is missing is an error here and not a SIGBUS later. Ranks of one process share a mapping,
 * and whoever comes second finds it registered. */
static CUresult prepare_host(struct hoccl_stage_view *v)
{
    if (v->fd >= 0) {
        off_t end = lseek(v->fd, 0, SEEK_END);
        if (end < (off_t)v->bytes || posix_fallocate(v->fd, end - (off_t)v->bytes, (off_t)v->bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult r = hoccl_driver.MemHostRegister(v->host, v->bytes, CU_MEMHOSTREGISTER_PORTABLE);
    return r == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED ? CUDA_SUCCESS : r;
}

static CUresult prepare_gpu(struct hoccl_stage_view *v)
{
    CUpointer_attribute id = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    void *key = &v->key;
    if (hoccl_device_memory_open(v->device, v->other, v->bytes, &v->memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = hoccl_driver.PointerGetAttributes(1, &id, &key, v->memory.address);
    if (!r && !v->confirmed && !reached(v, v->memory.address))
        r = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (r)
        hoccl_device_memory_close(&v->memory);
    return r;
}

void hoccl_stage_view_prepare(struct hoccl_stage_view *view)
{
    view->result = view->kind == HOCCL_STAGE_HOST ? prepare_host(view) : prepare_gpu(view);
    hoccl_publish(&view->state, view->result ? HOCCL_STAGE_FAILED : HOCCL_STAGE_READY);
}

void hoccl_stage_close_gpu(struct hoccl_stage *stage)
{
    if (hoccl_observe(&stage->view.state) == HOCCL_STAGE_READY)
        hoccl_device_memory_close(&stage->view.memory);
    stage->view.state = HOCCL_STAGE_NEW;
}

/* ---- boards that nobody uses any more ----------------------------------------------------------------------------- */

struct discarded {
    struct discarded *next;
    struct hoccl_board *board;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct discarded *pile; /* under lock: registered, waiting for a quiet moment */

static void clear_pile(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    while (pile) {
        struct discarded *d = pile;
        pile = d->next;
        hoccl_driver.MemHostUnregister(hoccl_board_stage(d->board, d->bytes));
        hoccl_board_unmap(d->board, d->bytes);
        free(d);
    }
    pthread_mutex_unlock(&lock);
}

void hoccl_stage_discard(struct hoccl_board *board, size_t bytes, bool ready)
{
    struct discarded *d = ready ? hoccl_alloc(sizeof *d, "a board to be unmapped") : NULL;
    if (!ready)
        hoccl_board_unmap(board, bytes);
    if (d) {
        *d = (struct discarded){.board = board, .bytes = bytes};
        pthread_mutex_lock(&lock);
        d->next = pile;
        pile = d;
        pthread_mutex_unlock(&lock);
    }
    if (!hoccl_parking_quiet(clear_pile, NULL))
        hoccl_log(HOCCL_LOG_INFO, "streams of this process still wait elsewhere: %zu bytes of staging are freed later",
                  (size_t)HOCCL_STAGE_AREA);
}
