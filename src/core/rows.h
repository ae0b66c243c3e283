/* SPDX-License-Identifier: Apache-2.0 */
/* Agreeing on an Alltoallv: all ranks tell each other what they send, see that it is what the others expect, and come to
 * the same plan. */
#ifndef HOCCL_CORE_ROWS_H
#define HOCCL_CORE_ROWS_H

#include "core/comm.h"
#include "sched/choice.h"

/* What one rank brings: bytes by rank. */
struct hoccl_rows {
    const uint64_t *sends, *receives;
    size_t element_size; /* for texts */
};

/* Collective over `comm`, whose busy mark is held; waits for the other ranks, at most HOCCL_INIT_TIMEOUT. Running operations go on.
 * `choice` (to be ended by hoccl_choice_fini) says whether there is a plan to go by, the same on all ranks; one line at info
 * says why. MISMATCH on all ranks if one does not expect what another sends. An error leaves the communicator good. */
HOCCL_Result hoccl_rows_agree(struct hoccl_comm *comm, const struct hoccl_rows *rows, struct hoccl_choice *choice);

/* Tests: costs of the network to go by instead of the real ones. NULL: the real ones. */
extern const struct hoccl_grants_cost *hoccl_rows_cost;

/* This rank cannot take part, for the reason in the calling thread's error text: the others, who wait for it, fail. */
void hoccl_rows_refuse(struct hoccl_comm *comm);

#endif
