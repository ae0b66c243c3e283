/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's buffers: is this a range of our GPU's memory, and how may a peer reach it? */
#ifndef HOCCL_P2P_MEMORY_H
#define HOCCL_P2P_MEMORY_H

#include "device/device.h"
#include "p2p/mailbox.h"

#include <pthread.h>

/* A buffer, and how the other end can reach it. */
struct hoccl_memory {
    bool host;       /* pinned host memory */
    bool legacy;     /* its allocation has a legacy IPC handle */
    bool range;      /* segments that can be exported as descriptors */
    uint32_t kind;   /* enum hoccl_memory_kind, once exported */
    uint64_t buffer; /* id of the allocation, unique in the process for ever; of a range: made of its segments' ids */
    uint64_t base;   /* of the allocation, or of the range's first segment */
    uint64_t bytes;  /* range: of all its segments */
    uint64_t offset; /* of the buffer in it */
    struct hoccl_handle handle; /* kind IPC */
    uint64_t registered; /* for other nodes: number of the registration that the buffer lies in (registry.h); 0: none */
};

/* An allocation, or one segment of a range. */
struct hoccl_memory_segment {
    uintptr_t base;
    size_t bytes;
    uint64_t buffer;
    bool host;
};

/* The id of a range is made of its segments' ids and sizes, in order, from the seed on. */
#define HOCCL_RANGE_SEED 0xcbf29ce484222325u

static inline uint64_t hoccl_range_id(uint64_t id, uint64_t buffer, uint64_t bytes)
{
    const uint64_t prime = 0x100000001b3u;
    return ((id ^ buffer) * prime ^ bytes) * prime;
}

/* Handles that this GPU's allocations have been given, so that the driver is asked once an allocation. */
struct hoccl_exports {
    pthread_mutex_t lock;
    struct hoccl_export {
        uint64_t buffer;
        struct hoccl_handle handle;
    } entries[64];
    unsigned next; /* the one to be replaced next */
};

void hoccl_exports_open(struct hoccl_exports *exports);
void hoccl_exports_close(struct hoccl_exports *exports);

/* Check a range. Calling thread; makes only calls that return while streams are parked. Errors: ARGUMENT (pageable host
 * memory, managed memory, another GPU's memory, a range beyond its allocation, freed memory). */
HOCCL_Result hoccl_memory_check(const struct hoccl_device *device, const void *address, size_t bytes,
                                struct hoccl_memory *memory);

/* The id of the allocation at an address, 0 if the driver knows none there: one question, and one answer, to the driver. */
HOCCL_Result hoccl_memory_id(const void *address, uint64_t *buffer);

/* What holds the byte at this address: pinned host memory or memory of this GPU. As hoccl_memory_check. */
HOCCL_Result hoccl_memory_segment(const struct hoccl_device *device, uintptr_t at, struct hoccl_memory_segment *segment);

/* How can the other end reach it? Sets kind and, for another process, the handle. Never blocks; any thread. */
HOCCL_Result hoccl_memory_reach(struct hoccl_exports *exports, bool same_process, struct hoccl_memory *memory);

#endif
