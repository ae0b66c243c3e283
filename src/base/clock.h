/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_BASE_CLOCK_H
#define HOCCL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of the monotonic clock. */
static inline uint64_t hoccl_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#define HOCCL_US ((uint64_t)1000)
#define HOCCL_MS ((uint64_t)1000000)
#define HOCCL_S ((uint64_t)1000000000)

static inline void hoccl_sleep(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / HOCCL_S), (long)(ns % HOCCL_S)};
    nanosleep(&t, NULL);
}

#endif
