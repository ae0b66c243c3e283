/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL binds a communicator to the current device, HOCCL to the current context. A program of the CUDA runtime has for
 * each device the primary context, and cudaSetDevice makes it current, so they mean the same; a thread that has set
 * no device is on device 0. Calls may be made while another device is current: what they need of the driver stands here.
 */
#ifndef HOCCL_NCCL_CONTEXT_H
#define HOCCL_NCCL_CONTEXT_H

#include "nccl/nccl_abi.h"

#include <stdbool.h>

typedef struct CUctx_st *shim_context;

/* The current context; without one the primary context of device 0, which is not made current. NULL: there is no driver
 * or no device, and HOCCL will say so. */
shim_context shim_context_here(void);

/* How many devices there are; the primary context of one, which stays to the process's end. Errors: ncclUnhandledCudaError. */
ncclResult_t shim_context_devices(int *count);
ncclResult_t shim_context_of(int device, shim_context *context);

/* Make the context current (NULL: nothing), and undo it. */
bool shim_context_enter(shim_context context);
void shim_context_leave(bool entered);

/* The number of a stream, which, unlike its handle, is never given out again. */
ncclResult_t shim_context_stream(shim_context context, cudaStream_t stream, unsigned long long *id);

#endif
