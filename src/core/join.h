/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators by unique id (HOCCL_GetUniqueId, HOCCL_CommInitRank). */
#ifndef HOCCL_CORE_JOIN_H
#define HOCCL_CORE_JOIN_H

#include "core/comm.h"

/* Make an id; this process serves the ranks that hold it, as long as HOCCL_INIT_TIMEOUT allows. */
HOCCL_Result hoccl_join_make_id(HOCCL_UniqueId *id);

/* ARGUMENT if it was not made so. */
HOCCL_Result hoccl_join_check_id(const HOCCL_UniqueId *id);

/* hoccl_comm_open among the ranks that hold the id. */
HOCCL_Result hoccl_join(const HOCCL_UniqueId *id, int size, int rank, struct hoccl_comm **comm);

#endif
