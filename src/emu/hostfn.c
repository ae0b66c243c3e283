/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host functions: one thread runs them all, one after another, as the real driver may. So one that sleeps holds up
 * the others, of any stream, but no engine.
 */
#include "device.h"

#include <stdlib.h>

struct call {
    struct call *next;
    struct emu_op *op;
};

static struct call *first, **last = &first;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool started;

static void *runner(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&emu.lock);
    for (;;) {
        while (!first)
            pthread_cond_wait(&wake, &emu.lock);
        struct call *call = first;
        first = call->next;
        if (!first)
            last = &first;
        struct emu_op *op = call->op;
        free(call);
        pthread_mutex_unlock(&emu.lock);
        op->host.fn(op->host.arg);
        pthread_mutex_lock(&emu.lock);
        emu_op_done(op);
        emu_pump();
        emu_kick();
    }
    return NULL;
}

void emu_host_run(struct emu_op *op)
{
    struct call *call = malloc(sizeof *call);
    if (!call)
        abort(); /* a stream that never goes on would be worse */
    *call = (struct call){NULL, op};
    *last = call;
    last = &call->next;
    if (!started)
        emu_thread_start(runner, NULL, "emu-host");
    started = true;
    pthread_cond_signal(&wake);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *arg)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream s = emu_stream_check(handle, ctx);
    if (!s || !fn)
        return emu_leave(s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    emu_hazard_pass();
    struct emu_op *op = emu_op_new(s, EMU_OP_HOST);
    if (!op)
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->host.fn = fn;
    op->host.arg = arg;
    return emu_leave(emu_enqueue(op, 0));
}
