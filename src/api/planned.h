/* SPDX-License-Identifier: Apache-2.0 */
/* Kept requests of an Alltoallv, put in the order of a plan that all ranks have made together (core/rows.h). */
#ifndef HOCCL_API_PLANNED_H
#define HOCCL_API_PLANNED_H

#include "core/post.h"

/* Collective over the communicator: `so_far` is how this rank has fared, with the calling thread's error text; the others
 * hear of an error. The requests are replaced (and freed) where a plan is followed. */
HOCCL_Result hoccl_planned(HOCCL_Comm handle, HOCCL_Result so_far, struct hoccl_request **requests, size_t *count);

#endif
