/* SPDX-License-Identifier: Apache-2.0 */
/* Registration of memory with the card. From any thread. */
#ifndef HOCCL_TRANSPORT_VERBS_REGION_H
#define HOCCL_TRANSPORT_VERBS_REGION_H

#include "transport/ibv.h"
#include "transport/transport.h"

/* Host memory by address; `what` is for the text. MEMORY (the locked-memory limit), DEVICE with the cause and the remedy. */
HOCCL_Result hoccl_memory_register(const struct hoccl_ibv *ibv, struct ibv_pd *pd, void *address, size_t bytes, int access,
                                   const char *what, struct ibv_mr **mr);

/* A region that peers may write into, by its descriptor if it has one. Writes into it may pass one another on the bus where the
 * card can (relaxed ordering); the completion that announces them never passes them. */
HOCCL_Result hoccl_region_register(const struct hoccl_ibv *ibv, struct ibv_pd *pd, const struct hoccl_region_source *source,
                                   struct ibv_mr **mr);

#endif
