/* SPDX-License-Identifier: Apache-2.0 */
/* Words of host memory that the GPU and the CPU both see, one a cache line (paper §3.2, "flag pool"). */
#ifndef HOCCL_STREAM_FLAG_H
#define HOCCL_STREAM_FLAG_H

#include "device/device.h"

#include <pthread.h>
#include <stdint.h>

struct hoccl_flag {
    uint32_t *host;     /* read with hoccl_observe, written with hoccl_publish: a GPU is at the other end */
    CUdeviceptr device; /* the same word for the GPU */
};

struct hoccl_flag_pool {
    char *base;
    CUdeviceptr device;
    pthread_mutex_t lock;
    int free;      /* under lock: how many lines are free */
    int *lines;    /* under lock: their numbers, a stack */
};

/* The memory is registered once. The context must be current. */
HOCCL_Result hoccl_flag_pool_open(struct hoccl_flag_pool *pool);

/* Unregistering waits for every parked stream of the process, so call this only inside hoccl_parking_quiet. */
void hoccl_flag_pool_close(struct hoccl_flag_pool *pool);

/* A line; its word keeps the value it had when it was given back. MEMORY if the pool is used up. */
HOCCL_Result hoccl_flag_take(struct hoccl_flag_pool *pool, struct hoccl_flag *flag);
void hoccl_flag_give(struct hoccl_flag_pool *pool, struct hoccl_flag *flag);

#endif
