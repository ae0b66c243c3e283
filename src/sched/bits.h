/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_BITS_H
#define HOCCL_SCHED_BITS_H

#include <stdbool.h>
#include <stdint.h>

/* Sets of GPUs as arrays of 64-bit words. */
static inline int hoccl_bits_words(int count)
{
	return (count + 63) / 64;
}

static inline void hoccl_bits_set(uint64_t *set, int i)
{
	set[i >> 6] |= (uint64_t)1 << (i & 63);
}

static inline void hoccl_bits_clear(uint64_t *set, int i)
{
	set[i >> 6] &= ~((uint64_t)1 << (i & 63));
}

static inline bool hoccl_bits_test(const uint64_t *set, int i)
{
	return set[i >> 6] >> (i & 63) & 1;
}

/* The lowest member of a word that is not zero. */
static inline int hoccl_bits_first(uint64_t word)
{
	return __builtin_ctzll(word);
}

#endif
