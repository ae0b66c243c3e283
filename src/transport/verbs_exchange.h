/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange by which two ends learn of each other's queue pairs (verbs_wire.h, 1), over TCP. It has no thread of its own:
 * the endpoint's helper thread waits for its sockets and steps it (verbs_watch.c). A connection's part in it is a call.
 *
 *   call of the lower rank    CONNECTING ──▶ GREETING ──▶ ASKING ──answer──▶ DONE
 *                                 ▲ next address │ (refused, silent, closed)    all arrows: the helper thread
 *                                 └──────────────┘
 *   call of the higher rank   WAITING ──hello comes, or came already──▶ ANSWERED ──ready──▶ DONE
 *   that it is the first in   CONNECTING ──▶ GREETING ──▶ WAITING, as next; a hello that comes ends the knocking
 *   any of them ──no address left, closed, HOCCL_INIT_TIMEOUT──▶ FAILED
 *
 * Everything is under the exchange's lock, but the function `ready`, which may take long; who cancels a call waits for it. */
#ifndef HOCCL_TRANSPORT_VERBS_EXCHANGE_H
#define HOCCL_TRANSPORT_VERBS_EXCHANGE_H

#include "base/list.h"
#include "transport/tcp_address.h"
#include "transport/verbs_wire.h"

#include <poll.h>
#include <pthread.h>

enum hoccl_call_state {
    HOCCL_CALL_CONNECTING, HOCCL_CALL_GREETING, HOCCL_CALL_ASKING, /* dials */
    HOCCL_CALL_WAITING, HOCCL_CALL_ANSWERED,                       /* is dialled */
    HOCCL_CALL_DONE, HOCCL_CALL_FAILED,
};

struct hoccl_call {
    /* Set by the owner before the start. */
    uint64_t id;
    const char *name;             /* of the peer, for texts */
    bool summons;                 /* the peer need not know of it */
    struct hoccl_offer mine;
    struct tcp_card peer;
    /* On the helper thread, when `theirs` has come: make the queue pairs ready to receive and to send. false: *why. */
    bool (*ready)(struct hoccl_call *call, char *why, size_t bytes);
    /* Written by the helper thread. */
    struct hoccl_offer theirs;
    uint32_t prepared;            /* 1 (published): `ready` has returned true, `theirs` counts */
    uint32_t outcome;             /* 0, or DONE, FAILED (published) */
    char text[480];               /* why it failed */
    /* Of the exchange. */
    struct hoccl_list link;
    enum hoccl_call_state state;
    bool busy;                    /* in `ready` */
    int fd, address;              /* which of the peer's addresses, best first; beyond the last: second round */
    size_t got;
    uint64_t deadline, step_deadline;
    char buffer[sizeof(struct hoccl_wire_word) + sizeof(struct hoccl_offer)];
};

struct hoccl_exchange {
    uint8_t cookie[16];
    uint64_t token;
    int listener;
    uint16_t port;
    struct tcp_interfaces own;    /* every network of this host will do */
    pthread_mutex_t lock;
    pthread_cond_t rest;          /* a call is no longer busy */
    struct hoccl_list calls;      /* not DONE or FAILED */
    struct hoccl_list guests;     /* sockets that have been accepted and belong to no call yet */
    int strangers;                /* guests without a right hello */
    uint64_t paused_until;        /* no descriptors: nobody is let in, else 0 */
    uint32_t news;                /* outcomes and summonses published so far */
};

/* Listen, and say in the card where; the network of `device` (or NULL) is tried first. ARGUMENT (HOCCL_PORTS), SYSTEM. */
HOCCL_Result hoccl_exchange_open(struct hoccl_exchange *x, const uint8_t cookie[16], const char *device,
                                 struct tcp_card *card);
void hoccl_exchange_close(struct hoccl_exchange *x);

/* Any thread. The outcome comes by `outcome`, after a step. The helper thread is to be woken after start. */
void hoccl_exchange_start(struct hoccl_exchange *x, struct hoccl_call *call);
void hoccl_exchange_cancel(struct hoccl_exchange *x, struct hoccl_call *call);

/* Any thread. A pair that has been summoned here and had no call then; each summons is told once. false: none. */
bool hoccl_exchange_called(struct hoccl_exchange *x, uint64_t *id);
/* Who has called for this pair so far is told that nobody is here. */
void hoccl_exchange_decline(struct hoccl_exchange *x, uint64_t id);

/* The helper thread: what to wait for (at most `most`; the number) and until when; then what can be done at once. */
int hoccl_exchange_wants(struct hoccl_exchange *x, struct pollfd *fds, int most, uint64_t *deadline);
void hoccl_exchange_step(struct hoccl_exchange *x);

#endif
