/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_BASE_CLOCK_H
#define HOCCL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* For tests, before there is any thread: whose time it is instead of the machine's. */
extern uint64_t (*hoccl_clock)(void);

/* Nanoseconds of the monotonic clock. */
static inline uint64_t hoccl_now(void)
{
    struct timespec t;
    if (hoccl_clock)
        return hoccl_clock();
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* When the progress thread's present turn of its loop began, which is a microsecond or so ago; to any other thread, now. For
 * patience and the like: reading the clock takes as long as looking at three flags. A time that was read with hoccl_now may be later
 * than this one. */
extern __thread uint64_t hoccl_turn_began;

static inline uint64_t hoccl_recently(void)
{
    return hoccl_turn_began ? hoccl_turn_began : hoccl_now();
}

/* The time of day `ns` from now, for the waits of pthread. */
static inline struct timespec hoccl_deadline(uint64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    ns += (uint64_t)t.tv_nsec;
    t.tv_sec += (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return t;
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
