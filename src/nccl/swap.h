/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAll in place: HOCCL refuses it, and programs of NCCL do it. */
#ifndef HOCCL_NCCL_SWAP_H
#define HOCCL_NCCL_SWAP_H

#include "nccl/error.h"

/* buf holds a piece of `bytes` for each rank; afterwards, in stream order, a piece of each rank. At once, or at the end of
 * the calling thread's open group. */
ncclResult_t shim_swap(void *buf, size_t bytes, ncclComm_t comm, HOCCL_Comm hoccl, cudaStream_t stream);

/* The group has ended: do those it holds, all together. */
ncclResult_t shim_swap_end(void);

/* The group has failed: none of them. */
void shim_swap_drop(void);

#endif
