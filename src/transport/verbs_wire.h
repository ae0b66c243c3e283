/* SPDX-License-Identifier: Apache-2.0 */
/* What two ends of a verbs connection send each other: the wire format and nothing else. Numbers are in the hosts' order,
 * which is the same on all ranks of a job.
 *
 * 1. The exchange, over TCP to an address of the endpoint's card, which is as tcp's (tcp_address.h); by verbs_exchange.c:
 *
 *      lower rank (dials)                               higher rank (listens)
 *      ── HELLO{cookie, token, id}, offer ───────────▶  a wrong cookie or token: closed without a word
 *      ◀── WELCOME ──────────────────────────────────   at once: you have found the right one
 *                                                       … until its program makes the same connection; then it sets its
 *                                                       queue pairs up to receive and to send
 *      ◀── ANSWER, offer ────────────────────────────
 *      sets its queue pairs up; JOINED
 *      ── READY ─────────────────────────────────────▶  JOINED (or by the first thing that comes over RDMA)
 *
 *    Where the two have not agreed to connect, HELLO's purpose is SUMMONS, so that the higher rank is told that it is wanted; and a
 *    higher rank that is the first dials too and KNOCKS: its HELLO makes the lower one dial. Who has nobody for the pair answers
 *    DECLINED.
 *
 * 2. Over RDMA: a control queue pair carries frames, the lanes carry data.
 *
 *      control   SEND of a frame: MESSAGE, CREDIT, BYE. It cannot be written through, as it may outlive the connection
 *      lane      RDMA WRITE …, RDMA WRITE WITH IMMEDIATE (the word): a write, in parts where the card's largest message
 *                is smaller; in front of these a SEND of the frame PARTS. RDMA WRITE of no bytes: a heartbeat
 *
 * MESSAGE, PARTS and the write with the immediate each use one of the receives that the other end keeps for this
 * connection: its window, at first as many as its offer says. What has been received and handed on is given back as credits,
 * in any frame, by a CREDIT frame when it is half the window. CREDIT and BYE use receives beyond the window: at most 2 and
 * 1 are under way, as a CREDIT brings half a window and no more than one window can be owed. So no sender ever meets a
 * receiver without a receive. */
#ifndef HOCCL_TRANSPORT_VERBS_WIRE_H
#define HOCCL_TRANSPORT_VERBS_WIRE_H

#include "transport/transport.h"

#define HOCCL_WIRE_MAGIC 0x42524556u /* "VERB" */
#define HOCCL_WIRE_VERSION 2u
#define HOCCL_WIRE_BEYOND 3 /* receives beyond the window */

struct hoccl_wire_hello {
    uint32_t magic, version;
    uint8_t cookie[16];
    uint64_t token; /* of the card that was dialed: a listener of the same address and port on another host has another */
    uint64_t id;    /* of the connection, low bit cleared */
    uint32_t bytes; /* of the offer that follows */
    uint32_t purpose; /* enum hoccl_wire_purpose */
};

enum hoccl_wire_purpose { HOCCL_WIRE_JOINS, HOCCL_WIRE_SUMMONS, HOCCL_WIRE_KNOCKS };

enum hoccl_wire_kind { HOCCL_WIRE_WELCOME = 1, HOCCL_WIRE_ANSWER, HOCCL_WIRE_READY, HOCCL_WIRE_DECLINED };

struct hoccl_wire_word {
    uint32_t magic;
    uint32_t kind; /* enum hoccl_wire_kind; behind ANSWER the offer */
};

struct hoccl_offer {
    uint32_t window;                         /* receives that this end keeps for the other's sends */
    uint16_t lid, pkey, gid_index, zero;
    uint8_t ethernet, mtu, gid_type, lanes;  /* mtu: enum ibv_mtu */
    uint8_t gid[16];
    uint32_t number[1 + HOCCL_LANES_MAX];    /* of the queue pairs: control, then lanes */
    uint32_t sequence[1 + HOCCL_LANES_MAX];  /* first packet sequence number that this end sends */
    char device[32];
};

enum hoccl_frame_kind { HOCCL_FRAME_MESSAGE = 1, HOCCL_FRAME_CREDIT, HOCCL_FRAME_PARTS, HOCCL_FRAME_BYE };

struct hoccl_frame {
    uint8_t kind;     /* enum hoccl_frame_kind */
    uint8_t zero;
    uint16_t bytes;   /* that follow: MESSAGE the message; PARTS uint64_t, bytes of the write in front of the part with the
                       * immediate; BYE the reason as text, none: good order */
    uint32_t credits; /* given back */
};

#define HOCCL_FRAME_MOST (sizeof(struct hoccl_frame) + HOCCL_MESSAGE_BYTES)

_Static_assert(sizeof(struct hoccl_frame) == 8 && sizeof(struct hoccl_wire_hello) == 48, "no holes");
_Static_assert(sizeof(struct hoccl_offer) == 200, "no holes");

#endif
