/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that the calling thread's open group will make at its end. */
#ifndef HOCCL_NCCL_MAKE_H
#define HOCCL_NCCL_MAKE_H

#include "nccl/error.h"

#include <stdbool.h>

/* End HOCCL's group, and with it make what the group has asked for: now, or, if all of it is non-blocking, in a thread
 * (ncclInProgress). On an error nothing is made and nothing posted. */
ncclResult_t shim_make_end(void);

/* The group has failed: make nothing, and let the ranks that would split with this one know. HOCCL's group is open. */
void shim_make_drop(void);

bool shim_make_pending(void);

#endif
