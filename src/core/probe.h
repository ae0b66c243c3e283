/* SPDX-License-Identifier: Apache-2.0 */
/* Does what one GPU writes arrive at the other? Drivers say yes also where an IOMMU or a switch's access control sends the
 * bytes elsewhere, so peer access is believed only after it has been seen (design rule; NCCL and UCX users report such
 * machines as silent corruption). */
#ifndef HOCCL_CORE_PROBE_H
#define HOCCL_CORE_PROBE_H

#include "boot/gather.h"
#include "core/comm.h"

/* Collective among the ranks of this node while the communicator is made: `gather` names them, its call and its first
 * step; three steps are used. peers[] of GPUs between which bytes got lost are marked `closed`, with a warning. An error is
 * only that of the exchange: what cannot be tried is believed, as before. */
HOCCL_Result hoccl_comm_probe(struct hoccl_comm *comm, const struct hoccl_gather *gather);

#endif
