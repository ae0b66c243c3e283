/* SPDX-License-Identifier: Apache-2.0 */
/* What two ranks of different nodes tell one another: the messages on their connection (transport/transport.h keeps each
 * whole and all in order), and the word that comes with each chunk. The users are far.c and wire.c.
 *
 *   both            ── HELLO{pool} ──▶                 the first message each way: where the peer may be written into
 *
 *   sender                                             receiver
 *   its stream has reached send n
 *                   ── CLAIM n{header} ─────────────▶  its stream has reached receive n: compares the headers
 *                   ◀───────────── ANSWER n{MISMATCH, header} ──   they differ: both ends fail, with both values
 *                   ◀───────────── ANSWER n{DONE} ──               zero bytes: done
 *                   ◀───────────── GRANT n{chunk, slots} ──        slots of its in pool; the k-th place granted to a
 *   engine: chunk k ─▶ out slot                                    flow is for the flow's k-th chunk
 *                   ══ write: chunk k, word ═══════════▶  in slot: engine: ─▶ the user's buffer
 *   the last chunk has left the buffer: done           the last chunk has landed: done
 *
 *   Before a stream has reached its end of the flow (early.h):
 *                   ── CLAIM n{early, header} ──────▶
 *                   ◀────── GRANT n{early, chunk, slots} ──        while few slots are so given; early if the receive's stream
 *   the stream reaches send n                                      has not reached it: its chunks stay in their slots
 *                   ── REACHED n ───────────────────▶              said if places are missing still
 *
 *   Registered memory takes no slots, at either end by itself, and chunk by chunk:
 *                   ◀───────────── INTO n{chunk, region, offset, words} ──   the receive's buffer is registered
 *   (its buffer is registered: chunk k as it is)
 *                   ══ write: chunk k, word ═══════════▶  the user's buffer, at offset + k × chunk of the region
 *
 *   any time        ── STATUS{state, text} ──▶         the communicator has failed here, or was aborted
 *                   ── TOTALS{sends, receives} ──▶     this rank posts no more, and so much it has posted
 *                   ── PACKET{…} ──▶                   a piece of what boot/gather.h sends (splits, agreement)
 *                   ── ALIVE ──▶                       I hold grants of yours and am busy elsewhere
 *
 * The sender of a message is its only writer. All ranks of a job have one byte order (HELLO's version shows it). */
#ifndef HOCCL_P2P_WORDS_H
#define HOCCL_P2P_WORDS_H

#include "p2p/mailbox.h"
#include "transport/transport.h"

#define HOCCL_WORDS_VERSION 4u
#define HOCCL_GRANT_MOST 32u /* chunks that a flow can have granted at once, and so in one GRANT or INTO */
#define HOCCL_PLACE_USER 0x8000u /* in a place's number: not a slot, but the chunk's own place in the user's memory */

enum hoccl_word_kind {
    HOCCL_WORD_HELLO = 1,
    HOCCL_WORD_CLAIM,
    HOCCL_WORD_GRANT,
    HOCCL_WORD_ANSWER,
    HOCCL_WORD_STATUS,
    HOCCL_WORD_TOTALS,
    HOCCL_WORD_PACKET,
    HOCCL_WORD_ALIVE,
    HOCCL_WORD_INTO,
    HOCCL_WORD_REACHED,
};

struct hoccl_word_head {
    uint16_t kind;
    uint16_t count;  /* CLAIM: 1 if early; GRANT, INTO: chunks; ANSWER: enum hoccl_answer_status; STATUS: enum hoccl_board_state; PACKET: bytes here */
    uint32_t number; /* HELLO: version; CLAIM, GRANT, INTO, ANSWER, REACHED: of the flow; PACKET: bytes of the packet still to come, these
                      * included */
};

struct hoccl_word_hello {
    struct hoccl_word_head head;
    struct hoccl_region_key pool; /* the in pool */
    uint64_t slot_bytes;
    uint32_t slots;
    uint32_t rank; /* in the communicator */
};

struct hoccl_word_claim {
    struct hoccl_word_head head;
    struct hoccl_flow_header header;
};

struct hoccl_word_grant {
    struct hoccl_word_head head;
    uint32_t chunk;                  /* bytes of each chunk but the last; the same in all grants of a flow */
    uint32_t early;                  /* 1: the receive's stream has not reached it */
    uint32_t slot[HOCCL_GRANT_MOST]; /* what comes back with the chunk: number | generation << 16 */
};

struct hoccl_word_into {
    struct hoccl_word_head head;
    uint32_t chunk;                  /* as in GRANT */
    uint32_t reserved;               /* 0 */
    struct hoccl_region_key region;
    uint64_t offset;                 /* of the flow's first byte in the region, modulo 2⁶⁴: it may stand before it, in another */
    uint32_t slot[HOCCL_GRANT_MOST]; /* what comes back with each chunk: number | generation << 16 */
};

struct hoccl_word_answer {
    struct hoccl_word_head head;
    struct hoccl_flow_header header; /* the receiver's */
};

struct hoccl_word_status {
    struct hoccl_word_head head;
    char text[HOCCL_STATUS_TEXT];
};

struct hoccl_word_totals {
    struct hoccl_word_head head;
    uint32_t sends, receives; /* numbers behind the last ones (mailbox.h, hoccl_totals) */
};

#define HOCCL_PACKET_PIECE 496

struct hoccl_word_packet {
    struct hoccl_word_head head;
    char bytes[HOCCL_PACKET_PIECE];
};

_Static_assert(sizeof(struct hoccl_word_status) <= HOCCL_MESSAGE_BYTES, "a status is one message");
_Static_assert(sizeof(struct hoccl_word_packet) <= HOCCL_MESSAGE_BYTES, "a piece is one message");

/* A slot by number, and its generation: a chunk for a grant that has ended meanwhile is recognised. */
static inline uint32_t hoccl_slot_word(unsigned slot, unsigned generation)
{
    return (slot & 0xffff) | (uint32_t)generation << 16;
}

#endif
