/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator's ranks on other nodes: connecting to them, telling them how this rank fares, leaving them.
 *
 * In one of at most HOCCL_CONNECT_MAX ranks every pair connects while it is made. In a larger one, a sparse one, only the
 * tree does by which boot/gather.h exchanges packets (agreement at the end of start-up, splits): at most five connections a
 * rank, be there 64 ranks or thousands. Of the other ranks the card (address, token) is kept, and a pair connects when either
 * of them posts its first flow with the other:
 *
 *   this rank posts                          its peer has posted nothing, or has at the same time
 *   far NEW → JOINING, summon ─────────────▶ CALLED(id): the wire finds the far of that id among its latent ones
 *   HELLO, CLAIM, … ◀──────────────────────▶ NEW → JOINING, summon; HELLO, STATUS if it has failed, TOTALS if it has said so
 *                   ◀─── declined ────────── no far of that id: it has ended the communicator
 *                   ── refused, silent ──    its process has ended: BROKEN, as any connection that cannot be made
 *
 * The peer's progress thread answers, so its application need not be in a call. What a rank would have told a peer that it has no
 * connection to (STATUS, TOTALS) waits in that far's queue and is the first thing that it hears behind HELLO, if ever it
 * connects. So a failure reaches who has to do with this rank, then or later, and nobody else; a rank with nothing to say to
 * another never connects to it, not at the end either. No call can come before the far is in the list: who calls has seen
 * the agreement, which this rank has taken part in after its list was made.
 *
 *   calling thread                                     progress thread
 *   hoccl_abroad_open: one hoccl_far a rank, filled in
 *   attach ──────────────────────────────────────────▶ hoccl_abroad_step: joins them, but the latent ones
 *   hoccl_abroad_meet: waits until those are OPEN
 *   hoccl_gather ── packets, `talking` ──────────────▶ carries them over the connections (pairs of sockets here, so that
 *                                                      the exchange is the same as within a node)
 *   …
 *   hoccl_abroad_part: `parting` ────────────────────▶ lets what was given leave, closes
 *                                ◀─────────── `parted` */
#ifndef HOCCL_CORE_ABROAD_H
#define HOCCL_CORE_ABROAD_H

#include "p2p/far.h"

struct hoccl_comm;

enum hoccl_parting { HOCCL_PARTING_NOT, HOCCL_PARTING_WHOLE, HOCCL_PARTING_SOON }; /* SOON: cut off what does not go at once */

struct hoccl_abroad {
    int count;           /* ranks on other nodes; constant once attached */
    bool sparse;         /* most of them connect at first use; constant */
    uint32_t begun;      /* progress thread: 1: the connections have been begun, the latent ones are known */
    uint32_t final;      /* calling thread: the peers' counters stand for good */
    uint32_t talking;    /* any thread: exchanges under way */
    uint32_t talked;     /* any thread: exchanges that have ended */
    uint32_t parting;    /* the thread that ends the communicator: enum hoccl_parting */
    uint32_t parted;     /* progress thread: no connection is left */
    /* Progress thread. */
    bool said_final;
    bool told;           /* that the communicator has failed here */
    uint32_t carried;    /* `talked` when everything had last been carried */
    uint64_t parting_at;
    uint64_t cut;        /* bytes that were cut off; before `parted` */
};

/* After the exchange of cards: prepare a connection to each rank that is not here (`here`). endpoints: by rank; a name for
 * texts and the number of the pair's connection are asked for. */
struct hoccl_abroad_peer {
    bool here;
    uint64_t id; /* low bit off */
    const struct hoccl_endpoint_card *card;
    const char *failure; /* why it has no endpoint */
};
/* After an error the others have been opened all the same, so that they can be told. */
HOCCL_Result hoccl_abroad_open(struct hoccl_comm *comm, const struct hoccl_abroad_peer *peers);

#define HOCCL_REFUSAL ((uint64_t)10000000000) /* ns: how long a rank that cannot go on waits for ranks that it wants to tell */

/* Wait until the connections that are made now stand, at most `timeout` ns, naming who is missing every 30 s; `check` may end it. */
HOCCL_Result hoccl_abroad_meet(struct hoccl_comm *comm, uint64_t timeout, HOCCL_Result (*check)(void *), void *arg);

/* For hoccl_gather: its packets have to be carried. `arg` is the communicator. */
void hoccl_abroad_stir(void *arg, bool begins);

/* For hoccl_gather: what has broken the connection to a rank, else NULL. */
const char *hoccl_abroad_why(void *arg, int rank);

/* Calling thread: nothing more will be posted. */
void hoccl_abroad_end_posting(struct hoccl_comm *comm);

/* Progress thread. */
void hoccl_abroad_step(struct hoccl_comm *comm);
bool hoccl_abroad_idle(const struct hoccl_comm *comm);
void hoccl_abroad_tell(struct hoccl_comm *comm, enum hoccl_board_state state);

/* End all connections, while still attached. PEER if bytes of completed sends could not leave (WHOLE only). */
HOCCL_Result hoccl_abroad_part(struct hoccl_comm *comm, enum hoccl_parting how);

/* Detached: free them. */
void hoccl_abroad_free(struct hoccl_comm *comm);

#endif
