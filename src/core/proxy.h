/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread of a GPU: one for all communicators that use it. It makes no driver
 * call that can hang. */
#ifndef HOCCL_CORE_PROXY_H
#define HOCCL_CORE_PROXY_H

#include "core/comm.h"

/* Attach to the GPU's progress thread, started at first use. */
HOCCL_Result hoccl_proxy_attach(struct hoccl_comm *comm);

/* Wait until the thread no longer touches the communicator; the last one out ends the thread. */
void hoccl_proxy_detach(struct hoccl_comm *comm);

/* There is news for the thread. */
void hoccl_proxy_ring(struct hoccl_comm *comm);

#endif
