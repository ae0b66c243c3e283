/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of slots: one chunk's place each, between an engine and the network (paper §3.2 "buffer states", §3.3.1). A GPU
 * object has two, out and in, whatever the number of its peers and communicators.
 *
 *   out:  FREE ──a granted chunk──▶ COPYING ──the engine has filled it──▶ FILLED ──write() took it──▶ WRITING ──WRITTEN──▶ FREE
 *   in:   FREE ──granted──▶ GRANTED ──ARRIVED──▶ COPYING ──the engine has emptied it──▶ FREE
 *                              ├──ARRIVED, on a GPU that demands it──▶ FLUSHING ──flushed──▶ COPYING (order.h)
 *                              └──ARRIVED, early──▶ HELD ──the receive's stream gets there──▶ FLUSHING or COPYING
 *
 * Chunks of registered memory (registered.c) are counted in two more pools, whose slots have no memory and are not copied:
 *
 *   out:  FREE ──a granted chunk──▶ FILLED ──write() took it──▶ WRITING ──WRITTEN──▶ FREE
 *   in:   FREE ──granted──▶ GRANTED ──ARRIVED──▶ FREE, or FLUSHING ──flushed──▶ FREE
 *
 * Every arrow is the progress thread's; what lets it go on (the engine's flag, the transport's event) is not.
 *
 * Why a fixed pool always drains: an out slot is taken only against a grant, that is when a slot at the receiver waits for
 * just this chunk; so each arrow out of COPYING, FILLED and WRITING needs an engine or the network and nothing that
 * another slot holds. A slot is granted only to a receive that its stream has reached and whose sender has claimed it, so
 * the sender's stream has reached the send, its bytes are there, and the copy out of the in slot has a buffer to go to.
 * So no slot waits for a slot, and a sender that waits for a grant holds none. A few in slots, HOCCL_POOL_EARLY at most, are
 * granted before the two streams are there (early.h); these may stay as long as the application likes, and all others
 * drain without them. */
#ifndef HOCCL_P2P_POOL_H
#define HOCCL_P2P_POOL_H

#include "base/list.h"
#include "p2p/engine.h"
#include "p2p/order.h"
#include "transport/transport.h"

#define HOCCL_POOL_SLOT ((size_t)1 << 20) /* see pipe.h */
#define HOCCL_POOL_SLOTS 60u              /* 60 MiB each way; on a GPU all of its memory that HOCCL takes stays below 160 MiB */
#define HOCCL_POOL_EARLY 16u              /* of them at most, in, for receives that one of the two streams has not reached */
#define HOCCL_POOL_BYTES (HOCCL_POOL_SLOT * HOCCL_POOL_SLOTS)

enum hoccl_pool_place { HOCCL_POOL_HOST, HOCCL_POOL_GPU, HOCCL_POOL_USER };

enum hoccl_pool_state {
    HOCCL_POOL_FREE,
    HOCCL_POOL_GRANTED,
    HOCCL_POOL_HELD,
    HOCCL_POOL_FLUSHING,
    HOCCL_POOL_COPYING,
    HOCCL_POOL_FILLED,
    HOCCL_POOL_WRITING,
};

struct hoccl_far;
struct hoccl_flow;

struct hoccl_pool_slot {
    struct hoccl_list link; /* FREE: in the pool; COPYING: in the wire's list of copies; FILLED: in the connection's queue */
    enum hoccl_pool_state state;
    uint16_t number;         /* with HOCCL_PLACE_USER in the pools of chunks of registered memory */
    uint16_t generation;     /* in: of its last grant */
    bool cancelled;          /* COPYING: no more of it is given to the engine */
    struct hoccl_far *far;   /* whose connection; NULL: gone */
    struct hoccl_flow *flow; /* GRANTED, HELD, FLUSHING, COPYING; NULL: given up. Of registered memory: always */
    uint32_t chunk, bytes;
    uint32_t word;           /* out: the place at the other end, as granted, */
    struct hoccl_region_key to; /* and where that is */
    uint64_t to_offset;
    const struct hoccl_region *from; /* out: what the network reads */
    size_t from_offset;
    enum hoccl_direction direction;
    struct hoccl_transfer transfer;
    struct hoccl_order_request order; /* FLUSHING */
};

struct hoccl_pool {
    enum hoccl_pool_place place;
    char *host;                        /* HOST */
    struct hoccl_device_memory memory; /* GPU */
    struct hoccl_region region;        /* as the endpoint knows it */
    struct hoccl_list free;
    unsigned count, idle;              /* slots; free ones */
    struct hoccl_pool_slot slot[HOCCL_POOL_SLOTS];
};

/* Memory for the slots: pinned on the host, or on GPU `other` (an ordinal) within reach of NICs, for copies by `device`, whose context must be
 * current. */
HOCCL_Result hoccl_pool_open(struct hoccl_pool *pool, const struct hoccl_device *device, enum hoccl_pool_place place, int other,
                             const char *what);

/* The same in memory of a GPU that another process has made for it: `bytes` of the descriptor `fd`, the
 * caller's to close. */
HOCCL_Result hoccl_pool_open_lent(struct hoccl_pool *pool, const struct hoccl_device *device, int fd, size_t bytes);

/* The same without memory, for chunks of registered memory. */
void hoccl_pool_open_user(struct hoccl_pool *pool);

/* Frees it; host memory only inside hoccl_parking_quiet. Nothing if it is not open. */
void hoccl_pool_close(struct hoccl_pool *pool);

static inline bool hoccl_pool_is_open(const struct hoccl_pool *pool)
{
    return pool->count != 0;
}

/* What a transport registers. */
struct hoccl_region_source hoccl_pool_source(const struct hoccl_pool *pool);

/* The one used last, or the one used longest ago; NULL: none is free. */
struct hoccl_pool_slot *hoccl_pool_take(struct hoccl_pool *pool);
struct hoccl_pool_slot *hoccl_pool_take_cold(struct hoccl_pool *pool);
void hoccl_pool_give(struct hoccl_pool *pool, struct hoccl_pool_slot *slot);

/* Where a slot is, as a copy needs it, and which engine moves between it and a buffer (in host memory or not). */
CUdeviceptr hoccl_pool_address(const struct hoccl_pool *pool, const struct hoccl_pool_slot *slot);
enum hoccl_direction hoccl_pool_direction(const struct hoccl_pool *pool, bool out, bool host);

#endif
