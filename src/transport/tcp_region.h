/* SPDX-License-Identifier: Apache-2.0 */
/* The regions of an endpoint: what the I/O threads may touch.
 *
 * An I/O thread enters a region before each system call that reads or writes in it and leaves it afterwards; a region that
 * is removed lets nobody in any more and is gone when the last has left, which takes one call that never blocks. Keys are
 * never used again, so an old one finds nothing. */
#ifndef HOCCL_TRANSPORT_TCP_REGION_H
#define HOCCL_TRANSPORT_TCP_REGION_H

#include "transport/transport.h"

#include <pthread.h>

#define TCP_REGION_BLOCK 256
#define TCP_REGION_BLOCKS 256

struct tcp_region {
    uint64_t key;       /* 0: none; written by who adds and removes */
    uint64_t address, bytes; /* written before the key is, constant while somebody is inside */
    uint32_t inside;    /* I/O threads in it, each counting itself */
};

struct tcp_regions {
    pthread_mutex_t lock; /* of who adds and removes */
    struct tcp_region *block[TCP_REGION_BLOCKS];
    unsigned places;      /* used so far, and free ones among them */
    uint64_t last;        /* number of the last key */
};

void hoccl_tcp_regions_init(struct tcp_regions *regions);
void hoccl_tcp_regions_fini(struct tcp_regions *regions);

/* MEMORY if there are too many. */
HOCCL_Result hoccl_tcp_region_add(struct tcp_regions *regions, uint64_t address, uint64_t bytes, uint64_t *key);
void hoccl_tcp_region_remove(struct tcp_regions *regions, uint64_t key);

/* The region of `key` if [address, address + bytes) lies in it, else NULL and *why. */
struct tcp_region *hoccl_tcp_region_enter(struct tcp_regions *regions, uint64_t key, uint64_t address, uint64_t bytes,
                                          const char **why);
void hoccl_tcp_region_leave(struct tcp_region *region);

#endif
