/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor: the one thread that stands for all GPUs of the process. What takes no time (writes, satisfied waits,
 * events) is run by emu_pump(), by whoever has the lock: the executor, or a caller that has just enqueued, so that
 * no thread has to wake up for it. Copies, memsets and kernels take time and are the executor's alone.
 *
 * Asleep when nothing is queued. While waits are parked it must look at memory that anybody may write: every 20 us
 * at first, then ever more rarely, each time after a sixteenth of the time since something happened, at last every
 * 5 ms. So a flag is seen late by 6 % of the time it took to come, and waits that stand for long cost next to nothing.
 */
#define _GNU_SOURCE
#include "device.h"

#include <sys/prctl.h>
#include <time.h>

#define POLL_MIN 20000u
#define CONTENDED 100000u
#define POLL_MAX 5000000u

static bool started, asleep;
static uint64_t moved_ns; /* when something last happened */

/* An operation that starts for the first time may be held back a little, as a function of the seed. */
static bool delayed(struct emu_op *op, uint64_t now)
{
    if (!emu.set.delay_us)
        return false;
    if (!op->timed) {
        op->timed = true;
        op->not_before = now + emu_random((uint64_t)op->dev->gpu, op->classes, op->seq) % (emu.set.delay_us * 1000ull);
    }
    return now < op->not_before;
}

static bool start_work(struct emu_op *op, uint64_t now)
{
    if (op->kind == EMU_OP_COPY && op->copy.engine == EMU_COMPUTE && !op->copy.on_sm) {
        emu_copy_at_once(op);
        return true;
    }
    if (op->kind == EMU_OP_COPY && !op->copy.on_sm) {
        emu_copy_prepare(op);
        op->state = EMU_READY;
        return false;
    }
    if (!emu_sm_try(op, now))
        return false;
    if (op->kind != EMU_OP_KERNEL)
        emu_copy_prepare(op);
    op->state = EMU_RUNNING;
    return op->kind == EMU_OP_KERNEL && op->launch.end_ns <= now;
}

/* HOCCL_EMU_LOOK_MS: a GPU looks again at what a wait stands for after a time, or, if it stands in a compute channel, when
 * something else has gone through one. */
static bool looks(const struct emu_op *op, uint64_t now)
{
    bool stirred = (op->classes & (1u << EMU_COMPUTE)) && op->compute != op->dev->compute;
    return !emu.set.look_ms || !op->parked || stirred || now >= op->looked + emu.set.look_ms * 1000000ull;
}

static bool run_wait(struct emu_op *op, uint64_t now)
{
    if (!looks(op, now))
        return false;
    if (emu_memop_run(op))
        return true;
    op->looked = now;
    op->compute = op->dev->compute;
    if (!op->parked) {
        op->parked = true;
        emu.parked++;
        moved_ns = emu_now();
    }
    return false;
}

/* True: it is done. */
static bool start(struct emu_op *op, uint64_t now)
{
    switch (op->kind) {
    case EMU_OP_COPY:
    case EMU_OP_SET:
    case EMU_OP_KERNEL:
        return start_work(op, now);
    case EMU_OP_WRITE:
    case EMU_OP_BARRIER:
        return emu_memop_run(op);
    case EMU_OP_WAIT:
        return run_wait(op, now);
    case EMU_OP_RECORD:
        emu_event_record(op);
        return true;
    case EMU_OP_AFTER:
        return emu_event_passed(op);
    case EMU_OP_HOST:
        op->state = EMU_RUNNING;
        emu_host_run(op);
        return false;
    case EMU_OP_RETIRE:
        emu_pool_retire(op->retire);
        return true;
    }
    return true;
}

/* Runs the stream's first operation if that takes no time; true: it is gone. */
static bool advance(CUstream s, uint64_t now)
{
    struct emu_op *op = s->head;
    if (op->state == EMU_RUNNING && op->kind == EMU_OP_KERNEL && op->launch.end_ns <= now) {
        emu_sm_done(op);
        emu_op_done(op);
        return true;
    }
    if (op->state != EMU_QUEUED || !emu_op_may_start(op) || (!s->ctx->error && delayed(op, now)))
        return false;
    bool broken = s->ctx->error != CUDA_SUCCESS && op->kind != EMU_OP_RECORD;
    if (!broken && !start(op, now))
        return false;
    if (op->kind == EMU_OP_KERNEL && op->state == EMU_RUNNING)
        emu_sm_done(op);
    emu_op_done(op);
    return true;
}

void emu_pump(void)
{
    uint64_t now = emu_now();
    for (bool again = true; again;) {
        again = false;
        for (CUstream s = emu.busy, next; s; s = next) {
            next = s->next_busy;
            bool more = true;
            while (more) {
                bool last = s->head && !s->head->next;
                more = advance(s, now);
                again |= more;
                more = more && !last; /* a drained stream may be gone */
            }
        }
        if (again)
            moved_ns = now;
    }
}

/* When something will happen by itself: a kernel ends, a delayed operation may start. */
static uint64_t next_event(uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (CUstream s = emu.busy; s; s = s->next_busy) {
        const struct emu_op *op = s->head;
        uint64_t at = UINT64_MAX;
        if (op->kind == EMU_OP_KERNEL && op->state == EMU_RUNNING)
            at = op->launch.end_ns;
        else if (op->timed && op->state == EMU_QUEUED && op->not_before > now)
            at = op->not_before;
        if (at < next)
            next = at;
    }
    return next;
}

static uint64_t poll_after(uint64_t now)
{
    uint64_t wait = now > moved_ns ? (now - moved_ns) / 16 : 0;
    return wait < POLL_MIN ? POLL_MIN : wait > POLL_MAX ? POLL_MAX : wait;
}

static void sleep_until(uint64_t when)
{
    asleep = true;
    if (when == UINT64_MAX) {
        pthread_cond_wait(&emu.work, &emu.lock);
    } else {
        struct timespec t = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};
        pthread_cond_timedwait(&emu.work, &emu.lock, &t);
    }
    asleep = false;
}

static void *executor(void *arg)
{
    (void)arg;
    prctl(PR_SET_TIMERSLACK, 1000);
    pthread_mutex_lock(&emu.lock);
    for (;;) {
        emu.contended = false;
        uint64_t before = emu_now(); /* a delay that ends during the pump is still to come */
        emu_pump();
        uint64_t now = emu_now(), next = next_event(before);
        if (emu_engines_step(now, &next))
            continue;
        if (emu.contended && now + CONTENDED < next)
            next = now + CONTENDED;
        if (emu.parked && now + poll_after(now) < next)
            next = now + poll_after(now);
        if (next > now)
            sleep_until(next);
    }
    return NULL;
}

void emu_kick(void)
{
    if (!started) {
        started = true;
        emu_thread_start(executor, NULL, "emu-gpu");
    } else if (asleep) {
        pthread_cond_signal(&emu.work);
    }
}
