/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels and the SMs. An SM has 2,048 thread slots and 228 KiB of shared memory; a block takes its threads or its
 * share of the memory, counted in slots, whichever is more. A kernel starts when one block of it fits, takes all the
 * slots it can use, and takes as many times its time as it needs rounds. Copies within a GPU and memsets need slots
 * as well: with all taken they wait. The kernels known by name:
 *
 *     hold(.u64 ns)   every block watches the clock for ns
 *     nop             ends at once; nop(.u64 p) stores the word 7 at p first
 *
 * Whatever starts here is a piece of SM work and is counted.
 */
#include "device.h"
#include "memory.h"
#include "module.h"
#include "shared.h"

#include <stdlib.h>
#include <string.h>

#define SM_SLOTS 2048u
#define SM_SHARED (228u << 10)
#define COPY_SLOTS 512u /* a copy within a GPU runs with little, but not with nothing */

static uint64_t block_slots(unsigned threads, size_t shared)
{
    uint64_t slots = (threads + 31) / 32 * 32, by_memory = (shared * SM_SLOTS + SM_SHARED - 1) / SM_SHARED;
    return slots > by_memory ? slots : by_memory;
}

static void store_seven(struct emu_op *op)
{
    size_t left;
    struct emu_store *store;
    void *at = emu_range_bytes(op->launch.flag, &left, &store);
    if (at)
        __atomic_store_n((uint32_t *)at, 7u, __ATOMIC_RELEASE);
    else
        emu_ctx_fail(op->stream->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
}

bool emu_sm_try(struct emu_op *op, uint64_t now)
{
    bool kernel = op->kind == EMU_OP_KERNEL;
    uint64_t want = kernel ? op->launch.slots : COPY_SLOTS, least = kernel ? op->launch.block : COPY_SLOTS;
    op->held = emu_slots_take(op->dev, want, least);
    if (!op->held)
        return false;
    op->dev->sm_work++;
    if (!kernel)
        return true;
    if (op->launch.flag)
        store_seven(op);
    op->launch.end_ns = now + op->launch.ns * ((want + op->held - 1) / op->held);
    return true;
}

void emu_sm_done(struct emu_op *op)
{
    emu_slots_give(op->dev, op->held);
    op->held = 0;
}

/* What the launch does, by the function's name and parameters; CUDA_ERROR_NOT_SUPPORTED for others. */
static CUresult read_launch(CUfunction fn, void **params, struct emu_launch *launch)
{
    bool hold = !strcmp(fn->name, "hold"), nop = !strcmp(fn->name, "nop");
    if (!hold && !nop)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((hold && fn->params != 1) || fn->params > 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (fn->params && (!params || !params[0]))
        return CUDA_ERROR_INVALID_VALUE;
    if (hold)
        memcpy(&launch->ns, params[0], sizeof launch->ns);
    else if (fn->params)
        memcpy(&launch->flag, params[0], sizeof launch->flag);
    return CUDA_SUCCESS;
}

/* A function's first launch may load it, which is as bad as loading a module. */
static void load_lazily(CUcontext ctx, CUfunction fn)
{
    if (!emu.set.lazy || fn->loaded)
        return;
    fn->loaded = true;
    emu_hazard_take(ctx->dev);
    emu_hazard_give();
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream handle, void **params,
                        void **extra)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream s = emu_stream_check(handle, ctx);
    CUfunction fn = emu_function_check(f);
    struct emu_launch launch = {.slots = 0};
    uint64_t threads = (uint64_t)bx * by * bz, blocks = (uint64_t)gx * gy * gz;
    if (!s || !fn || s->ctx != ctx)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!threads || threads > 1024 || !blocks || shared > (227u << 10) || extra)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    result = read_launch(fn, params, &launch);
    if (result != CUDA_SUCCESS)
        return emu_leave(result);
    load_lazily(ctx, fn);
    emu_hazard_pass();
    struct emu_op *op = emu_op_new(s, EMU_OP_KERNEL);
    if (!op)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    launch.block = block_slots((unsigned)threads, shared);
    launch.slots = launch.block * blocks;
    op->launch = launch;
    return emu_leave(emu_enqueue(op, 1u << EMU_COMPUTE));
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attrib, int value)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_function_check(f))
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    bool known = attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                     ? value >= 0 && value <= 227 << 10
                     : attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    return emu_leave(known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attrib, CUfunction f)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_function_check(f) || !value)
        return emu_leave(value ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    *value = attrib == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared)
{
    CUresult result = emu_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!emu_function_check(f) || !blocks || threads < 1 || threads > 1024)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t slots = block_slots((unsigned)threads, shared), fit = SM_SLOTS / slots;
    *blocks = fit > 32 ? 32 : (int)fit;
    return emu_leave(CUDA_SUCCESS);
}
