/* SPDX-License-Identifier: Apache-2.0 */
/* Every memory order that HOCCL uses, in one place.
 *
 * A word that another agent (thread, process, GPU) reads is written with hoccl_publish and read with hoccl_observe:
 * what the writer stored before the publish is seen by who observed the new value. hoccl_peek orders nothing; it is for
 * words whose value is all that is wanted (statistics, "has anything changed?"). */
#ifndef HOCCL_BASE_ATOMIC_H
#define HOCCL_BASE_ATOMIC_H

#include <stdbool.h>
#include <stdint.h>

#define HOCCL_CACHE_LINE 64

#define hoccl_publish(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
#define hoccl_observe(word) __atomic_load_n((word), __ATOMIC_ACQUIRE)
#define hoccl_peek(word) __atomic_load_n((word), __ATOMIC_RELAXED)
#define hoccl_poke(word, value) __atomic_store_n((word), (value), __ATOMIC_RELAXED)
#define hoccl_fetch_add(word, value) __atomic_fetch_add((word), (value), __ATOMIC_ACQ_REL)
#define hoccl_exchange(word, value) __atomic_exchange_n((word), (value), __ATOMIC_ACQ_REL)

/* Take a word that is `from` and make it `to`; false if somebody else was faster. */
static inline bool hoccl_take(uint32_t *word, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* The word is `value` or more from now on. */
static inline void hoccl_at_least(uint64_t *word, uint64_t value)
{
    uint64_t seen = hoccl_peek(word);
    while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Counters that wrap: has `value` reached `goal`? The GPU compares in the same way (CU_STREAM_WAIT_VALUE_GEQ). */
static inline bool hoccl_reached(uint32_t value, uint32_t goal)
{
    return (int32_t)(value - goal) >= 0;
}

/* The same on the low 16 bits, for start signals that a copy brings (stream/handshake.c). */
static inline bool hoccl_reached16(uint32_t value, uint32_t goal)
{
    return (int16_t)(value - goal) >= 0;
}

/* The caller will soon write to the line that holds this byte, and another thread or process has it now: it may come meanwhile. Nobody
 * else should be using it just then, for it is taken from them. */
static inline void hoccl_expect(const void *at)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)at)); /* __builtin_prefetch would ask for a copy to read from */
#else
    __builtin_prefetch(at, 1);
#endif
}

static inline void hoccl_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif
