/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: the primary one of each device, counted, and others; each thread has a stack of current ones. A context
 * in which an engine met a bad address is broken: every later call in it returns that error.
 */
#include "device.h"

#include <stdlib.h>

#define STACK 64

static CUcontext contexts; /* all that are alive */
static CUcontext ended;    /* the others: their addresses must not come back as other contexts */
static __thread CUcontext stack[STACK];
static __thread int depth; /* of the stack; its top is current */

CUcontext emu_ctx_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

CUcontext emu_ctx_first(void)
{
    return contexts;
}

bool emu_ctx_valid(CUcontext ctx)
{
    CUcontext c = contexts;
    while (c && c != ctx)
        c = c->next;
    return c != NULL;
}

static CUcontext ctx_new(struct emu_device *dev, unsigned flags, bool primary)
{
    CUcontext ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return NULL;
    ctx->dev = dev;
    ctx->id = ++emu.ids;
    ctx->flags = flags;
    ctx->primary = primary;
    ctx->legacy = emu_stream_new(ctx, CU_STREAM_DEFAULT, 0);
    if (!ctx->legacy) {
        free(ctx);
        return NULL;
    }
    ctx->legacy->legacy = true;
    ctx->next = contexts;
    contexts = ctx;
    dev->contexts++;
    return ctx;
}

/* Work that has been enqueued is waited for, then streams and memory go; a thread that has it current finds it
 * destroyed. */
static void ctx_end(CUcontext ctx)
{
    emu_drain(NULL, ctx);
    CUcontext *link = &contexts;
    while (*link != ctx)
        link = &(*link)->next;
    *link = ctx->next;
    ctx->dev->contexts--;
    ctx->next = ended;
    ended = ctx;
    emu_streams_end(ctx);
    emu_memory_end(ctx);
}

static CUresult enter_device(CUdevice dev, struct emu_device **d)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    *d = emu_device_at(dev);
    return *d ? CUDA_SUCCESS : emu_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (!pctx)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (!d->primary)
        d->primary = ctx_new(d, d->primary_flags, true);
    if (!d->primary)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    d->primary_refs++;
    *pctx = d->primary;
    return emu_leave(CUDA_SUCCESS);
}

static void primary_end(struct emu_device *d)
{
    CUcontext ctx = d->primary;
    d->primary = NULL;
    d->primary_refs = 0;
    ctx_end(ctx);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (!d->primary)
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (--d->primary_refs == 0)
        primary_end(d);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (d->primary)
        primary_end(d);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    d->primary_flags = flags;
    if (d->primary)
        d->primary->flags = flags;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (!flags || !active)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = d->primary_flags;
    *active = d->primary != NULL;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxCreate(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
    struct emu_device *d;
    CUresult result = enter_device(dev, &d);
    if (result != CUDA_SUCCESS)
        return result;
    if (!pctx || params || depth == STACK)
        return emu_leave(params ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE);
    CUcontext ctx = ctx_new(d, flags, false);
    if (!ctx)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    stack[depth++] = ctx;
    *pctx = ctx;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_ctx_valid(ctx) || ctx->primary)
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    ctx_end(ctx);
    if (depth && stack[depth - 1] == ctx)
        depth--;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!pctx)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *pctx = emu_ctx_current();
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (ctx && !emu_ctx_valid(ctx))
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (depth)
        depth--;
    if (ctx)
        stack[depth++] = ctx;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_ctx_valid(ctx) || depth == STACK)
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = ctx;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!depth)
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    CUcontext ctx = stack[--depth];
    if (pctx)
        *pctx = ctx;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!device)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *device = ctx->dev->ordinal;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!ctx)
        ctx = emu_ctx_current();
    if (!emu_ctx_valid(ctx) || !id)
        return emu_leave(id ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
    *id = ctx->id;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!flags)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = ctx->flags;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (ctx && !emu_ctx_valid(ctx))
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!version)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *version = 3020;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    emu_drain(NULL, ctx);
    return emu_leave(ctx->error);
}

static CUresult change_peer(CUcontext peer, unsigned flags, bool on)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_ctx_valid(peer) || peer->dev == ctx->dev)
        return emu_leave(emu_ctx_valid(peer) ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_CONTEXT);
    if (flags)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (!emu.set.p2p)
        return emu_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    uint64_t bit = 1ull << peer->dev->ordinal;
    bool was = ctx->peers & bit;
    if (was == on)
        return emu_leave(on ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    ctx->peers ^= bit;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    return change_peer(peer, flags, true);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    return change_peer(peer, 0, false);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || (unsigned)limit >= CU_LIMIT_MAX)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    *value = 0;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    (void)value;
    return emu_leave((unsigned)limit < CU_LIMIT_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    bool known =
        target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
        (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER || scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
    return emu_leave(known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
