/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that the calling thread's open group will finalize or destroy at its end. */
#ifndef HOCCL_NCCL_END_H
#define HOCCL_NCCL_END_H

#include "nccl/error.h"

#include <stdbool.h>

/* All of them, in the order of the calls; the first error. ncclInProgress: a non-blocking one is on its way. */
ncclResult_t shim_end_end(void);

/* The group has failed: none of them. */
void shim_end_drop(void);

bool shim_end_pending(void);

#endif
