/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream memory operations: a write is one atomic store behind everything in front of it, a wait one atomic load,
 * again and again. GEQ is cyclic: the difference is taken as a signed number of the operand's width.
 */
#include "device.h"
#include "memory.h"

#include <stdlib.h>

static bool satisfied32(uint32_t have, uint32_t want, unsigned flags)
{
    switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return (int32_t)(have - want) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return have == want;
    case CU_STREAM_WAIT_VALUE_AND:
        return (have & want) != 0;
    default:
        return (uint32_t) ~(have | want) != 0;
    }
}

static bool satisfied64(uint64_t have, uint64_t want, unsigned flags)
{
    switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return (int64_t)(have - want) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return have == want;
    case CU_STREAM_WAIT_VALUE_AND:
        return (have & want) != 0;
    default:
        return ~(have | want) != 0;
    }
}

static bool run_wide(const struct emu_op *op, uint64_t *at)
{
    if (op->kind == EMU_OP_WAIT)
        return satisfied64(__atomic_load_n(at, __ATOMIC_ACQUIRE), op->mem.value, op->mem.flags);
    __atomic_store_n(at, op->mem.value, __ATOMIC_RELEASE);
    return true;
}

bool emu_memop_run(struct emu_op *op)
{
    size_t left;
    struct emu_store *store;
    if (op->kind == EMU_OP_BARRIER)
        return true;
    void *at = emu_range_bytes(op->mem.address, &left, &store);
    if (!at) {
        emu_ctx_fail(op->stream->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
        return true;
    }
    if (op->mem.wide)
        return run_wide(op, at);
    if (op->kind == EMU_OP_WAIT)
        return satisfied32(__atomic_load_n((uint32_t *)at, __ATOMIC_ACQUIRE), (uint32_t)op->mem.value, op->mem.flags);
    __atomic_store_n((uint32_t *)at, (uint32_t)op->mem.value, __ATOMIC_RELEASE);
    return true;
}

/* Memory of another GPU of this process needs peer access, unless a mapping of its own gives it. */
static bool may_access(CUcontext ctx, const struct emu_range *range)
{
    int gpu = emu_range_gpu(range);
    struct emu_device *dev = emu_device_of_gpu(gpu);
    if (gpu == EMU_HOST || gpu == ctx->dev->gpu || range->kind == EMU_IPC || range->kind == EMU_MANAGED)
        return true;
    if (range->kind == EMU_VMM)
        return range->access >> ctx->dev->ordinal & 1;
    return dev && (ctx->peers >> dev->ordinal & 1);
}

/* A batch entry as an operation; NULL and the error in result. */
static struct emu_op *memop_new(CUstream s, const CUstreamBatchMemOpParams *p, CUresult *result)
{
    enum emu_kind kind;
    bool wide = p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    *result = CUDA_ERROR_INVALID_VALUE;
    switch ((int)p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        kind = EMU_OP_WAIT;
        break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        kind = EMU_OP_WRITE;
        break;
    case CU_STREAM_MEM_OP_BARRIER:
        kind = EMU_OP_BARRIER;
        break;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        *result = CUDA_ERROR_NOT_SUPPORTED;
        return NULL;
    default:
        return NULL;
    }
    struct emu_range *range = emu_range_at(p->waitValue.address);
    if (kind != EMU_OP_BARRIER && (!range || p->waitValue.address % (wide ? 8 : 4) || !may_access(s->ctx, range)))
        return NULL;
    if (kind == EMU_OP_WAIT && (p->waitValue.flags & CU_STREAM_WAIT_VALUE_FLUSH)) {
        *result = CUDA_ERROR_NOT_SUPPORTED;
        return NULL;
    }
    struct emu_op *op = emu_op_new(s, kind);
    *result = op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (op && kind != EMU_OP_BARRIER)
        op->mem = (struct emu_memop){p->waitValue.address, wide ? p->waitValue.value64 : p->waitValue.value,
                                     p->waitValue.flags, wide};
    return op;
}

static bool has_wait(const CUstreamBatchMemOpParams *params, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (params[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
            params[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            return true;
    return false;
}

/* Room for all first, so that nothing of another thread gets between them. */
static CUresult enqueue_batch(CUstream s, unsigned count, const CUstreamBatchMemOpParams *params)
{
    while (emu.waiting >= EMU_WAITING_MAX && !s->waits && !s->capture && has_wait(params, count))
        emu_wait();
    CUresult result = emu_enqueue_room(s, count < EMU_QUEUE_UNITS ? count : EMU_QUEUE_UNITS);
    struct emu_op *first = NULL, **link = &first;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        *link = memop_new(s, &params[i], &result);
        if (*link)
            link = &(*link)->next;
    }
    while (first) {
        struct emu_op *op = first;
        first = op->next;
        op->next = NULL;
        if (result == CUDA_SUCCESS)
            result = emu_enqueue(op, 0);
        else
            free(op);
    }
    return result;
}

CUresult cuStreamBatchMemOp(CUstream handle, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream s = emu_stream_check(handle, ctx);
    if (!s)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!params || flags || !count || count > 256)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    return emu_leave(enqueue_batch(s, count, params));
}

static CUresult one(CUstream s, CUstreamBatchMemOpType type, CUdeviceptr addr, uint64_t value, unsigned flags)
{
    CUstreamBatchMemOpParams p = {.waitValue = {.operation = type, .address = addr, .value64 = value, .flags = flags}};
    return cuStreamBatchMemOp(s, 1, &p, 0);
}

CUresult cuStreamWriteValue32(CUstream s, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    return one(s, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}

CUresult cuStreamWaitValue32(CUstream s, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    return one(s, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}

CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    return one(s, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}

CUresult cuStreamWaitValue64(CUstream s, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    return one(s, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}
