/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's memory that the network reads and writes itself (registered.c uses it): what is registered with a GPU's
 * endpoint, whatever communicator asked for it.
 *
 *   a handle of HOCCL_CommRegister ─┐                  ┌─▶ region of an allocation, or of one segment of a range
 *   memory of HOCCL_MemAlloc ───────┼─▶ registration ──┼─▶ the next segment's
 *   a flow that is under way ───────┘                  └─▶ …
 *
 * A region is made once for an allocation or segment, known by the driver's id of it, and removed when no registration has
 * it any more. A registration is found by flows while somebody holds it, and lives until the last flow has ended: so memory
 * is withdrawn from the network only when nothing of this rank is on the way to or from it.
 *
 * Memory that was freed meanwhile has another id, or none, when the driver is asked about a buffer again: then the
 * registration is dropped, whoever holds it, and never used. Memory of HOCCL_MemAlloc is registered when it is first used with
 * another node, for only then is there an endpoint to register it with; HOCCL_MemFree withdraws it.
 *
 * What cannot be registered is no error: its flows go by slots. */
#ifndef HOCCL_P2P_REGISTRY_H
#define HOCCL_P2P_REGISTRY_H

#include "base/list.h"
#include "p2p/memory.h"
#include "transport/transport.h"

struct hoccl_wire;

/* Of all fields: under the registry's lock; what a flow reads of a registration that it has taken is constant. */
struct hoccl_segment {
    struct hoccl_list link; /* in the registry's segments */
    uintptr_t low, high;    /* the allocation's bytes */
    uintptr_t base;         /* the region's first byte: that of GPU memory begins with a page */
    uint64_t buffer;        /* the driver's id */
    bool flush;             /* what a NIC has written is flushed before it counts (order.h) */
    unsigned users;         /* registrations */
    struct hoccl_region region;
};

struct hoccl_registration {
    struct hoccl_list link; /* in the registry's registrations; alone: dropped, no flow finds it any more */
    uint64_t number;        /* never used twice */
    unsigned holders;       /* handles, and 1 for memory of HOCCL_MemAlloc */
    unsigned flows;
    uintptr_t low, high;    /* its segments, side by side */
    unsigned count;         /* of segments; 0: memory of HOCCL_MemAlloc that cannot be registered, so that it is tried once */
    struct hoccl_segment *segment[];
};

struct hoccl_registry {
    pthread_mutex_t lock;
    struct hoccl_list registrations, segments;
    uint32_t known; /* registrations in the list; may be looked at without the lock */
    uint64_t last;  /* number of the last one */
};

void hoccl_registry_init(struct hoccl_registry *registry);

/* No communicator is left: whatever is still there is removed from the endpoint. */
void hoccl_registry_close(struct hoccl_wire *wire);

/* One holder more of the registration of a checked buffer; made if there is none. Any thread, the context current. The error
 * says why it cannot be registered, and what to do. */
HOCCL_Result hoccl_registry_hold(struct hoccl_wire *wire, const struct hoccl_memory *memory, const void *address, size_t bytes,
                                 uint64_t *number);

/* One holder less; nothing if it has been dropped already. */
void hoccl_registry_release(struct hoccl_wire *wire, uint64_t number);

/* Memory of HOCCL_MemAlloc is about to be freed. */
void hoccl_registry_forget(struct hoccl_wire *wire, const void *address);

/* The number of the registration that a checked buffer lies in, 0: none. Calling thread, the context current: this is where
 * stale registrations are found, and where memory of HOCCL_MemAlloc is registered. */
uint64_t hoccl_registry_look(struct hoccl_wire *wire, const struct hoccl_memory *memory, const void *address, size_t bytes);

/* For a flow: the registration, if it still is one, and back. */
struct hoccl_registration *hoccl_registry_take(struct hoccl_wire *wire, uint64_t number);
void hoccl_registry_put(struct hoccl_wire *wire, struct hoccl_registration *registration);

/* The segment that holds all of these bytes (not 0); NULL: they lie in several, or outside. */
const struct hoccl_segment *hoccl_registration_find(const struct hoccl_registration *registration, uintptr_t address, size_t bytes);

/* Regions that the process's endpoints have for callers' memory now, for tests. */
extern uint32_t hoccl_registry_regions;

#endif
