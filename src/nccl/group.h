/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's open group. HOCCL's own group is open as long, and operations go into it at once. What NCCL
 * allows in a group and HOCCL does not take there waits in a list of the thread for the outermost end, in this order:
 *
 *   make.c   communicators to be made: HOCCL makes them at its end, with the contexts of their calls
 *   HOCCL_GroupEnd: all operations are posted together
 *   swap.c   AlltoAll in place, step by step
 *   end.c    communicators to be finalized or destroyed
 */
#ifndef HOCCL_NCCL_GROUP_H
#define HOCCL_NCCL_GROUP_H

#include "nccl/count.h"
#include "nccl/error.h"

#include <stdbool.h>

bool shim_group_is_open(void);

/* What a call returns inside a group: an error makes the group's end return it and do nothing. Returns it too. */
ncclResult_t shim_group_note(ncclResult_t result);

/* HOCCL has taken an operation (or refused it): count it when it is posted, which in a group is at its end. */
ncclResult_t shim_group_taken(enum shim_kind kind, HOCCL_Result result, const char *call);

#endif
