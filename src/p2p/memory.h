/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's buffers: is this a range of our GPU's memory, and how may a peer reach it? */
#ifndef HOCCL_P2P_MEMORY_H
#define HOCCL_P2P_MEMORY_H

#include "device/device.h"
#include "p2p/mailbox.h"

#include <pthread.h>

/* What a peer needs to know of a buffer. */
struct hoccl_memory {
    uint64_t buffer; /* id of the allocation, unique in the process for ever */
    uint64_t base;   /* of the allocation */
    uint64_t offset; /* of the buffer in it */
    struct hoccl_grant_memory export; /* filled only when asked for */
};

/* Handles that this GPU's allocations have been given, so that the driver is asked once an allocation. */
struct hoccl_exports {
    pthread_mutex_t lock;
    struct hoccl_export {
        uint64_t buffer;
        struct hoccl_grant_memory memory;
    } entries[64];
    unsigned next; /* the one to be replaced next */
};

void hoccl_exports_open(struct hoccl_exports *exports);
void hoccl_exports_close(struct hoccl_exports *exports);

/* Check a range; with `export`, make it reachable for other processes. Calling thread; makes only calls that return
 * while streams are parked. Errors: ARGUMENT (pageable host memory, another GPU's memory, a range beyond its allocation,
 * freed memory), UNSUPPORTED (memory that cannot be exported, pinned host memory). */
HOCCL_Result hoccl_memory_check(const struct hoccl_device *device, struct hoccl_exports *exports, const void *address,
                                size_t bytes, bool export, struct hoccl_memory *memory);

#endif
