/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a communicator on the progress thread. */
#ifndef HOCCL_CORE_PROGRESS_H
#define HOCCL_CORE_PROGRESS_H

#include "core/comm.h"

/* Take new operations, watch streams, advance flows, release. True if anything moved. */
bool hoccl_comm_step(struct hoccl_comm *comm);

/* Another thread has brought something that no step has taken up yet. */
bool hoccl_comm_news(const struct hoccl_comm *comm);

/* Nothing to do until somebody rings. */
bool hoccl_comm_idle(const struct hoccl_comm *comm);

/* Called now and then: is the GPU's engine or submitter stuck? Then the communicator fails. */
void hoccl_comm_check_stuck(struct hoccl_comm *comm, uint64_t now);

#endif
