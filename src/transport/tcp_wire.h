/* SPDX-License-Identifier: Apache-2.0 */
/* What goes over the sockets of a connection, and nothing else.
 *
 *   the lower rank dials                              the higher rank listens
 *   ── tcp_hello, on each socket ──────────────────▶  a stranger, or another process's address: closed
 *   ◀── tcp_answer ─────────────────────────────────  at once: "it is me"
 *   ◀── frame WELCOME ──────────────────────────────  when join has been called there and all sockets have come
 *   ◀── frames ─────────────────────────────────────▶
 *   ── frame GOODBYE, end of the stream ───────────▶  each end when it closes, on each socket
 *
 * Where the ends have not agreed to connect, a hello for socket 0 is a SUMMONS: if join has not been called there, it is told that
 * it is wanted. A higher rank that is the first cannot dial; it KNOCKS at the lower one's listener, with a socket that carries
 * nothing more and stays until the connection stands or the lower rank's end is seen on it.
 *   ◀── frame DECLINED ─────────────────────────────  instead of WELCOME: there is nobody here for this pair
 *
 * Socket 0 carries messages, beats and nothing large; sockets 1 … lanes carry writes. Numbers are in the host's order:
 * ranks of different orders cannot share a GPU's data anyway, and the magic then fails. */
#ifndef HOCCL_TRANSPORT_TCP_WIRE_H
#define HOCCL_TRANSPORT_TCP_WIRE_H

#include <stdint.h>

#define TCP_VERSION 2u
#define TCP_HELLO_MAGIC 0x48434f48u /* "HOCH" */
#define TCP_ANSWER_MAGIC 0x41434f48u
#define TCP_FRAME_MAGIC 0x46434f48u

enum tcp_purpose { TCP_JOINS, TCP_SUMMONS, TCP_KNOCKS };

struct tcp_hello {
    uint32_t magic;
    uint32_t version;
    uint8_t cookie[16]; /* of the job */
    uint64_t token;     /* of the listener, from its card: whom the caller means */
    uint64_t id;        /* of the connection, its low bit off */
    uint32_t attempt;   /* of socket 0; the other sockets name the attempt that they belong to */
    uint16_t socket;    /* 0 … lanes */
    uint8_t lanes;
    uint8_t purpose;    /* enum tcp_purpose */
};
_Static_assert(sizeof(struct tcp_hello) == 48, "wire format");

struct tcp_answer {
    uint32_t magic;
    uint32_t version;
    uint64_t proof;     /* of the listener, from its card: that it is the one meant */
};
_Static_assert(sizeof(struct tcp_answer) == 16, "wire format");

enum tcp_frame_kind { TCP_WELCOME = 1, TCP_MESSAGE, TCP_WRITE, TCP_BEAT, TCP_GOODBYE, TCP_DECLINED };

struct tcp_frame {
    uint32_t magic;
    uint32_t kind;      /* enum tcp_frame_kind */
    uint64_t bytes;     /* that follow: MESSAGE, WRITE */
    uint64_t key;       /* WRITE: of the region */
    uint64_t address;   /* WRITE: in the receiver's memory, inside the region */
    uint32_t word;      /* WRITE: for the receiver */
    uint32_t zero;
};
_Static_assert(sizeof(struct tcp_frame) == 40, "wire format");

#endif
