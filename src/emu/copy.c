/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a copy: which engine, and in which class of channel.
 *
 *     from      to        class      done by
 *     own GPU   peer      push       push engine
 *     peer      own GPU   pull       pull engine
 *     GPU       host      D2H        D2H engine
 *     host      GPU       H2D        H2D engine; one row of less than 32 KiB: compute, the channel itself
 *     GPU       same GPU  compute    its SMs; without a context of this process on it: pull engine
 *
 * ("own" is the GPU of the stream.) Pageable host memory is read before the call returns, and a copy into it has
 * ended when the call returns: the thread that calls does these accesses, so a bad pointer is the caller's fault.
 */
#include "copy.h"
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define SMALL_H2D (32u << 10)

struct place {
    int gpu;
    bool pageable;
};

static size_t extent(const struct emu_side *side, const struct emu_request *r)
{
    return side->slice * (r->depth - 1) + side->pitch * (r->height - 1) + r->width;
}

/* Where a side lies; CUDA_ERROR_INVALID_VALUE for what is neither a range nor host memory. */
static CUresult locate(CUcontext ctx, const struct emu_side *side, enum emu_place said, const struct emu_request *r,
                       struct place *out)
{
    struct emu_range *range = emu_range_at(side->p);
    size_t bytes = extent(side, r);
    if (!side->p)
        return CUDA_ERROR_INVALID_VALUE;
    if (!range) {
        *out = (struct place){EMU_HOST, true};
        return said == EMU_ON_DEVICE || emu_space_ours(side->p) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    *out = (struct place){emu_range_gpu(range), false};
    if (said == EMU_ON_HOST && out->gpu != EMU_HOST && range->kind != EMU_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->kind == EMU_VMM && !(range->access >> ctx->dev->ordinal & 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (emu_range_span(side->p, bytes))
        return CUDA_SUCCESS;
    out->pageable = out->gpu == EMU_HOST; /* registered in part */
    return out->pageable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The process has a context there. */
static bool here(int gpu)
{
    const struct emu_device *dev = emu_device_of_gpu(gpu);
    return dev && dev->contexts;
}

/* Sets engine, SMs and device; returns the class of channel. A pull from a GPU on which the process has no context uses
 * the channels of pushes (measured: a push gate stops it). */
static unsigned route(struct emu_op *op, int src, int dst)
{
    struct emu_copy *c = &op->copy;
    int own = op->dev->gpu;
    c->engine = EMU_PUSH;
    if (dst == EMU_HOST)
        c->engine = EMU_D2H;
    else if (src == EMU_HOST)
        c->engine = c->height * c->depth == 1 && c->width < SMALL_H2D ? EMU_COMPUTE : EMU_H2D;
    else if (src == dst) {
        struct emu_device *dev = emu_device_of_gpu(src);
        c->on_sm = dev && dev->contexts;
        c->engine = c->on_sm ? EMU_COMPUTE : EMU_PULL;
        if (c->on_sm)
            op->dev = dev;
    } else if (dst == own)
        c->engine = EMU_PULL;
    return 1u << (c->engine == EMU_PULL && !here(src) ? EMU_PUSH : c->engine);
}

static void copy_rows(const struct emu_request *r, unsigned char *packed, const struct emu_side *side, bool out)
{
    for (size_t z = 0; z < r->depth; z++)
        for (size_t y = 0; y < r->height; y++) {
            unsigned char *row = (unsigned char *)(uintptr_t)(side->p + z * side->slice + y * side->pitch);
            memcpy(out ? row : packed, out ? packed : row, r->width);
            packed += r->width;
        }
}

static struct emu_side packed_side(void *p, const struct emu_request *r)
{
    return (struct emu_side){(CUdeviceptr)(uintptr_t)p, r->width, r->width * r->height};
}

/* Waits until the operation with this number has left the stream. */
static void wait_for(uint64_t stream_id, uint64_t seq)
{
    for (;;) {
        CUstream s = emu_stream_first();
        while (s && s->id != stream_id)
            s = s->next;
        if (!s || emu_stream_oldest(s) > seq)
            return;
        emu_wait();
    }
}

/* A copy into pageable memory: into a buffer of ours, which the caller's thread empties when it has ended. On the NULL stream the
 * caller waits for what is in front of it with the driver's lock held, on others not (measured). */
static CUresult into_pageable(CUcontext ctx, struct emu_op *op, const struct emu_request *r, unsigned classes)
{
    size_t bytes = r->width * r->height * r->depth;
    void *buffer = malloc(bytes);
    if (!buffer) {
        free(op->bounce);
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t id = op->stream->id;
    bool holds = op->stream->legacy && emu_stream_oldest(op->stream) <= emu.seq;
    op->copy.dst = packed_side(buffer, r);
    CUresult result = emu_enqueue(op, classes);
    uint64_t seq = emu.seq;
    if (holds)
        emu_hazard_hold();
    if (result == CUDA_SUCCESS)
        wait_for(id, seq);
    if (holds)
        emu_hazard_give();
    result = result == CUDA_SUCCESS ? ctx->error : result;
    pthread_mutex_unlock(&emu.lock);
    if (result == CUDA_SUCCESS)
        copy_rows(r, buffer, &r->dst, true);
    free(buffer);
    pthread_mutex_lock(&emu.lock);
    return result;
}

/* Takes the bytes of pageable memory now; false: out of memory. */
static bool from_pageable(struct emu_op *op, const struct emu_request *r)
{
    size_t bytes = r->width * r->height * r->depth;
    op->bounce = malloc(bytes ? bytes : 1);
    if (!op->bounce)
        return false;
    copy_rows(r, op->bounce, &r->src, false);
    op->copy.src = packed_side(op->bounce, r);
    return true;
}

/* The parts that depend on the description alone; pageable memory is named as it is. */
static CUresult describe(CUcontext ctx, const struct emu_request *r, struct emu_op *op, unsigned *classes,
                         struct place *src, struct place *dst)
{
    CUresult result = locate(ctx, &r->src, r->src_place, r, src);
    if (result == CUDA_SUCCESS)
        result = locate(ctx, &r->dst, r->dst_place, r, dst);
    if (result != CUDA_SUCCESS)
        return result;
    op->copy =
        (struct emu_copy){.dst = r->dst, .src = r->src, .width = r->width, .height = r->height, .depth = r->depth};
    *classes = route(op, src->gpu, dst->gpu);
    return CUDA_SUCCESS;
}

CUresult emu_copy_fill(CUcontext ctx, const struct emu_request *r, struct emu_op *op, unsigned *classes)
{
    struct place src, dst;
    return describe(ctx, r, op, classes, &src, &dst);
}

CUresult emu_copy_enqueue(CUcontext ctx, CUstream s, const struct emu_request *r)
{
    struct place src, dst;
    unsigned classes;
    if (!r->width || !r->height || !r->depth)
        return CUDA_SUCCESS;
    struct emu_op *op = emu_op_new(s, EMU_OP_COPY);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = describe(s->ctx, r, op, &classes, &src, &dst);
    bool later = s->capture != NULL; /* a graph reads and writes pageable memory when it runs */
    if (result == CUDA_SUCCESS && src.pageable && !later && !from_pageable(op, r))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(op);
        return result;
    }
    if (dst.pageable && !later)
        return into_pageable(ctx, op, r, classes);
    uint64_t id = s->id;
    result = emu_enqueue(op, classes);
    bool taken = src.pageable && !later; /* the call ends when the bytes are taken; they may land after it (measured) */
    if (result == CUDA_SUCCESS && r->waits && !taken && (src.gpu == EMU_HOST || dst.gpu == EMU_HOST)) {
        wait_for(id, emu.seq);
        result = ctx->error;
    }
    return result;
}

/* A synchronous copy waits for the blocking streams with the driver's lock held (measured). */
static void wait_for_blocking(CUcontext ctx, CUstream s)
{
    uint64_t last = emu.seq;
    if (!s->legacy)
        return;
    emu_hazard_hold();
    for (bool again = true; again;) {
        again = false;
        for (CUstream b = emu.busy; b && !again; b = b->next_busy)
            again = b->ctx == ctx && !(b->flags & CU_STREAM_NON_BLOCKING) && emu_stream_oldest(b) <= last;
        if (again)
            emu_wait();
    }
    emu_hazard_give();
}

CUresult emu_copy_call(const struct emu_request *r, CUstream handle)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream s = emu_stream_check(handle, ctx);
    if (!s)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    result = r->waits ? emu_capture_unsafe() : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return emu_leave(result);
    emu_hazard_pass();
    if (r->waits)
        wait_for_blocking(ctx, s);
    return emu_leave(emu_copy_enqueue(ctx, s, r));
}

struct emu_request emu_request_line(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return (struct emu_request){
        .dst = {dst, bytes, bytes}, .src = {src, bytes, bytes}, .width = bytes, .height = 1, .depth = 1};
}
