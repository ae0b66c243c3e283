/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and memsets on their way into a queue. */
#ifndef EMU_COPY_H
#define EMU_COPY_H

#include "device.h"
#include "memory.h"

/* Where a caller says that a side lies; the address decides where nothing is said. */
enum emu_place { EMU_ANYWHERE, EMU_ON_HOST, EMU_ON_DEVICE };

/* A copy as a caller describes it. */
struct emu_request {
    struct emu_side dst, src;
    enum emu_place dst_place, src_place;
    size_t width, height, depth;
    bool waits; /* the call returns when the bytes are there, unless they only move between GPUs */
};

/* Enters, checks, enqueues, waits if asked to, leaves. */
CUresult emu_copy_call(const struct emu_request *r, CUstream handle);
CUresult emu_copy_enqueue(CUcontext ctx, CUstream s, const struct emu_request *r); /* the lock is held */
CUresult emu_copy_fill(CUcontext ctx, const struct emu_request *r, struct emu_op *op, unsigned *classes);
CUresult emu_set_fill(CUcontext ctx, const CUDA_MEMSET_NODE_PARAMS *p, struct emu_op *op);
CUresult emu_request_box(const CUDA_MEMCPY3D *m, struct emu_request *r);
struct emu_request emu_request_line(CUdeviceptr dst, CUdeviceptr src, size_t bytes);

#endif
