/* SPDX-License-Identifier: Apache-2.0 */
/* While a communicator is made: ranks of a node make slots for one another on GPUs that the other does not see. p2p/loan.h
 * says what travels; here, who gives to whom. */
#ifndef HOCCL_CORE_LEND_H
#define HOCCL_CORE_LEND_H

#include "core/comm.h"
#include "p2p/loan.h"

/* Of one rank, from its card. */
struct hoccl_lend_peer {
    const char *pci;   /* its GPU's address on the bus */
    const char *wants; /* that of the hidden GPU on which its slots are to lie; "" none */
};

/* What this rank has given, until nobody needs its hold any more. */
struct hoccl_lending {
    struct hoccl_lent *lent;
    int count;
};

/* Collective among the ranks of the node, once their sockets are open: `peers` has all ranks of the communicator. `so_far`: how this rank
 * has fared; one that has failed refuses, and does not wait. Waits at most HOCCL_INIT_TIMEOUT for its own slots' memory, naming
 * whom it waits for every 30 s; `check`: may the waiting go on? BOOTSTRAP if the giver is gone or does not come. That none is given is no
 * error: slots are in host memory then. */
HOCCL_Result hoccl_comm_lend(struct hoccl_comm *comm, const struct hoccl_lend_peer *peers, HOCCL_Result so_far,
                             HOCCL_Result (*check)(void *arg), void *arg, struct hoccl_lending *lending);

void hoccl_comm_lend_end(struct hoccl_comm *comm, struct hoccl_lending *lending);

#endif
