/* SPDX-License-Identifier: Apache-2.0 */
/* Reflection: what a rank sends to itself is pushed back by another rank of its node, its mirror, so that no engine pulls and both
 * directions of the link stay busy (self.c says why that matters).
 *
 *   rank r: a large message to itself                           rank p, r's mirror, whatever its application does
 *   no reflection of the pair is under way
 *   ask ← its buffer, the area that it has mapped; tag ← n,
 *   knocks + 1, p's bell ─────────────────────────────────────▶ opens the buffer
 *                        ◀───────────────────────────────────── (a range that it does not know: wanted ← n
 *   its descriptors; sent ← n ────────────────────────────────▶  takes them)
 *                                                               its process may copy now (mirror.c), slots of its area are free:
 *                        ◀───────────────────────────────────── reply ← slots, key; drained ← 0; ready ← n
 *   maps the area (its descriptor came before `ready`)
 *   chunk c: buffer ──push──▶ slot[c mod k]
 *   place[c mod k] ← where it belongs; filled ← c + 1 ────────▶ slot[c mod k] ──push──▶ r's buffer
 *                        ◀───────────────────────────────────── drained ← c + 1
 *   all is back, or it has given up, and nothing of its own
 *   is on the way to the slots: tag ← n + 1 ──────────────────▶ gives its engine no more of it; the slots are free
 *                        ◀───────────────────────────────────── nothing moves any more: status; answer ← n
 *
 * The mirror may answer at any time, also before the end (its communicator ends or has failed, a copy was refused, it needs its
 * process for itself). So every n is answered, unless the mirror's process has ended. Then r takes the chunks from `drained` on
 * another way. The slots stay r's until n + 1, for r may be pushing into them; only then they are given to others.
 *
 * What makes it safe: the mirror writes chunk c only after `filled` > c, so r may use its buffer as it likes while filled = drained,
 * and in any case after the answer or the end of the mirror's process. Of an ask r writes nothing between its tag and its answer but
 * sent, filled, places, and in the end the tag. n is even and grows by 2; it goes round after 2^31 reflections, and no word says an
 * old n then: the answer to n sets `ready` and `wanted` to n + 1, an ask sets `sent` so.
 *
 * Writers: ask and memory r, reply the mirror. Both stand in the mirror's board. */
#ifndef HOCCL_P2P_REFLECTION_H
#define HOCCL_P2P_REFLECTION_H

#include "base/atomic.h"

#include <stdint.h>

#define HOCCL_MIRROR_PLACES 4u /* chunks of a reflection that have a place at once */

struct hoccl_reflection_ask {
    uint32_t tag;    /* n: published last; n + 1: published at the end */
    uint32_t filled; /* chunks that stand in their places, counted from the first */
    uint32_t sent;   /* n: the range's descriptors are on the parcel socket */
    uint16_t kind;   /* enum hoccl_memory_kind of the buffer: IPC, RANGE */
    uint16_t flow_kind; /* enum hoccl_flow_kind and */
    uint64_t buffer, base, offset; /* as in a grant */
    uint64_t bytes;     /* of the message */
    uint64_t operation; /* number of the collective that the message is a part of */
    uint64_t key;       /* of the mirror's area that is mapped here; 0: none */
} __attribute__((aligned(HOCCL_CACHE_LINE)));

struct hoccl_reflection_reply {
    uint32_t answer; /* n: this end is quiet; published last of all */
    uint32_t status; /* enum hoccl_reflection_status */
    uint32_t ready;  /* n: published behind the rest, and behind the area's descriptor */
    uint32_t wanted; /* n: descriptors of the buffer's range, please */
    uint32_t drained; /* chunks that are back */
    uint32_t count, span; /* places, and slots of each */
    uint16_t slot[HOCCL_MIRROR_PLACES]; /* the first of each place */
    uint64_t key;    /* of the area */
} __attribute__((aligned(HOCCL_CACHE_LINE)));

enum hoccl_reflection_status {
    HOCCL_REFLECTION_DONE = 1, /* everything that had been filled is back */
    HOCCL_REFLECTION_OFF,      /* not now, or not to the end */
    HOCCL_REFLECTION_NEVER,    /* not between these two */
};

struct hoccl_reflection {
    struct hoccl_reflection_ask ask;
    struct {
        uint64_t at, bytes; /* of the chunk in the message; rewritten when it has been drained */
    } place[HOCCL_MIRROR_PLACES];
    uint8_t memory[HOCCL_CACHE_LINE]; /* IPC: the handle; r */
    struct hoccl_reflection_reply reply;
};

_Static_assert(sizeof(struct hoccl_reflection) == 4 * HOCCL_CACHE_LINE, "four lines: the asking rank's three, the mirror's");

/* Bytes of each chunk but the last: eight or more of them, as far as they stay worth an engine's while. */
static inline uint64_t hoccl_reflection_chunk(uint64_t bytes)
{
    const uint64_t least = (uint64_t)4 << 20, most = (uint64_t)16 << 20, round = (uint64_t)64 << 10;
    uint64_t n = (bytes / 8 + round - 1) / round * round;
    return n < least ? least : n < most ? n : most;
}

#define HOCCL_REFLECTION_LEAST ((uint64_t)16 << 20) /* smaller messages are over before the mirror has looked */

#endif
