/* SPDX-License-Identifier: Apache-2.0 */
/* How a write is dealt out over the lanes of a connection, and how what becomes of its pieces is one event at either end.
 *
 *   write ─cut─▶ piece ─▶ slot of lane 3 ══▶ region ─▶ news ARRIVED ─┐
 *                piece ─▶ slot of lane 1 ══▶ region ─▶ news ARRIVED ─┼▶ row of `in`:  left − bytes; 0: ARRIVED(word), once
 *                piece ─▶ slot of lane 2 ══▶ region ─▶ news ARRIVED ─┘
 *                          └─ with the kernel ─▶ news WRITTEN ────────▶ row of `out`: left − bytes; 0: WRITTEN(tag), once
 *
 * One socket moves some 2 GB/s, so a chunk of 1 MiB is half a millisecond on its way over one, and an eighth of that over eight:
 * a message's first and last chunks pass sooner, and fewer have to be on the way.
 *
 * Lanes: of those with room, in the order of the bytes before them, as many as let the write end first, that is, for which the
 * bytes before the last of them and its piece are least. So a lane that is stuck is given nothing more, and holds up only what it
 * has. A write goes whole, or not at all: no lane has room, or `out` has none.
 *
 * Rows: the writes of one sender that go in pieces are numbered. `out` has a row for each whose pieces are not all with the kernel.
 * `in` has one for each number up to the highest seen whose write is not whole, for pieces of later writes may come first:
 *
 *   a higher number is seen ──▶ NOT BEGUN (whole is 0) ──first piece──▶ BEGUN ──left is 0──▶ no row; ARRIVED
 *
 * So a piece without a row is of a write that is whole already, or never was: the stream is damaged, and the connection broken, as
 * by a piece that does not agree with one before it, or is more than was left, and by a goodbye before every row is gone.
 *
 * A write that is one piece has neither number nor row, and travels as a frame WRITE.
 *
 * Writer of every field: the endpoint's caller, in write and poll. I/O threads know a piece as a slot and as news only. */
#ifndef HOCCL_TRANSPORT_TCP_PIECES_H
#define HOCCL_TRANSPORT_TCP_PIECES_H

#include "transport/tcp_news.h"

/* A piece costs a header, two system calls, a wake-up and two news, some 5 µs in all, beside the 30 to 60 µs that its bytes take
 * through a socket's two copies: no lane is worth that for less. */
#define TCP_PIECE_LEAST ((size_t)128 << 10)

struct tcp_lane;

struct tcp_row {
    uint32_t number;
    uint64_t whole, left; /* bytes of the write, and of the pieces that are still missing */
    uint64_t mark;        /* out: tag; in: word */
};

struct tcp_rows {
    struct tcp_row *row;  /* in no order */
    uint32_t count, room;
};

struct tcp_pieces {
    struct tcp_lane *const *lane;   /* this and the next two by socket, from 1 on */
    uint64_t given[HOCCL_LANES_MAX + 1]; /* bytes */
    struct hoccl_lane_count count[HOCCL_LANES_MAX + 1];
    int lanes;
    int turn;                       /* socket that was given something last */
    uint32_t number;                /* of the last write that was given in pieces */
    uint32_t seen;                  /* highest that has come */
    struct tcp_rows out, in;
};

/* MEMORY. */
HOCCL_Result hoccl_tcp_pieces_open(struct tcp_pieces *pieces, struct tcp_lane *const *lane, int lanes);
void hoccl_tcp_pieces_close(struct tcp_pieces *pieces);

/* False: there is no room, and nothing was given. */
bool hoccl_tcp_pieces_write(struct tcp_pieces *pieces, const struct hoccl_write *write);

/* News WRITTEN: is all of the write with the kernel? Its tag then. */
bool hoccl_tcp_pieces_written(struct tcp_pieces *pieces, const struct tcp_news *news, uint64_t *tag);

/* News ARRIVED: is the write whole? *why, if the piece cannot be. */
bool hoccl_tcp_pieces_arrived(struct tcp_pieces *pieces, const struct tcp_news *news, const char **why);

#endif
