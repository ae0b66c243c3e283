/* SPDX-License-Identifier: Apache-2.0 */
/* Words of host memory that the GPU and the CPU both see, one a cache line (paper §3.2, "flag pool"). */
#ifndef HOCCL_STREAM_FLAG_H
#define HOCCL_STREAM_FLAG_H

#include "device/device.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct hoccl_flag {
    uint32_t *host;     /* read with hoccl_observe, written with hoccl_publish: a GPU is at the other end */
    CUdeviceptr device; /* the same word for the GPU */
};

/* The three flags of a stream's handshake (handshake.h). They stay together and keep their parts for ever, and `end`
 * never goes down: a wait that an earlier user left on its stream then still passes. */
struct hoccl_flag_set {
    struct hoccl_flag start, start16, end;
};

/* A set that was given back and that a stream may still write to: operations of an aborted communicator stand on it. */
struct hoccl_flag_debt {
    struct hoccl_flag_set set;
    uint32_t last; /* the last start signal; it is clean when that has come */
    bool gated;    /* by start16 */
};

struct hoccl_flag_pool {
    char *base;
    CUdeviceptr device;
    pthread_mutex_t lock;
    int free;      /* under lock: how many single lines are free */
    int *lines;    /* under lock: their numbers, a stack */
    int free_sets; /* under lock, as above */
    struct hoccl_flag_set *sets;
    int debts; /* under lock */
    struct hoccl_flag_debt *debt;
};

/* The memory is registered once. The context must be current. */
HOCCL_Result hoccl_flag_pool_open(struct hoccl_flag_pool *pool);

/* Unregistering waits for every parked stream of the process, so call this only inside hoccl_parking_quiet. */
void hoccl_flag_pool_close(struct hoccl_flag_pool *pool);

/* No stream can write to any set that has been given back. */
bool hoccl_flag_pool_clean(struct hoccl_flag_pool *pool);

/* A handshake's set: the words keep their values. Giving it back says which start signal was the last one enqueued. */
HOCCL_Result hoccl_flag_set_take(struct hoccl_flag_pool *pool, struct hoccl_flag_set *set);
void hoccl_flag_set_give(struct hoccl_flag_pool *pool, const struct hoccl_flag_debt *debt);

/* More than half of the sets are taken: who has some that are idle uses these again. */
bool hoccl_flag_sets_scarce(struct hoccl_flag_pool *pool);

/* A line; its word keeps the value it had when it was given back. MEMORY if the pool is used up. */
HOCCL_Result hoccl_flag_take(struct hoccl_flag_pool *pool, struct hoccl_flag *flag);
void hoccl_flag_give(struct hoccl_flag_pool *pool, struct hoccl_flag *flag);

#endif
