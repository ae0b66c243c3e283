/* SPDX-License-Identifier: Apache-2.0 */
/* The submitter's loop. It spins for a moment after work (a small message must not pay for a wake-up), then sleeps on
 * its doorbell. */
#define _GNU_SOURCE
#include "p2p/submitter.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/patience.h"
#include "base/setting.h"
#include "base/thread.h"
#include "p2p/mapping.h"
#include "p2p/stage.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

#define PLAIN_H2D ((size_t)64 << 10)

static CUresult write_flag(const struct hoccl_job *j)
{
    if (j->direction == HOCCL_HOST) {
        hoccl_publish(j->host_flag, j->value);
        return CUDA_SUCCESS;
    }
    return hoccl_driver.StreamWriteValue32(j->stream, j->flag, j->value, 0);
}

/* A plain H2D copy of less than 32 KiB goes through a compute channel, where it needs an SM's turn and can be stuck behind
 * parked waits; a copy of two rows goes through the engine at any size (measured). An odd
 * size is two such copies, the second a byte further on: what both write is the same. One byte cannot be two rows: it is
 * the one copy that stays plain. */
static CUresult copy_rows(const struct hoccl_job *j)
{
    size_t half = j->bytes / 2;
    const char *from = (const char *)(uintptr_t)j->from;
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = from,
                          .srcPitch = half,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = j->to,
                          .dstPitch = half,
                          .WidthInBytes = half,
                          .Height = 2};
    CUresult r = hoccl_driver.Memcpy2DAsync(&rows, j->stream);
    if (r || j->bytes % 2 == 0)
        return r;
    rows.srcHost = from + 1;
    rows.dstDevice = j->to + 1;
    return hoccl_driver.Memcpy2DAsync(&rows, j->stream);
}

static CUresult copy(const struct hoccl_job *j)
{
    switch (j->direction) {
    case HOCCL_PUSH:
    case HOCCL_PULL:
        return hoccl_driver.MemcpyDtoDAsync(j->to, j->from, j->bytes, j->stream);
    case HOCCL_D2H:
        return hoccl_driver.MemcpyDtoHAsync((void *)(uintptr_t)j->to, j->from, j->bytes, j->stream);
    case HOCCL_H2D:
        if (j->bytes > 1 && j->bytes < PLAIN_H2D)
            return copy_rows(j);
        return hoccl_driver.MemcpyHtoDAsync(j->to, (const void *)(uintptr_t)j->from, j->bytes, j->stream);
    case HOCCL_HOST:
        memcpy((void *)(uintptr_t)j->to, (const void *)(uintptr_t)j->from, j->bytes);
        return CUDA_SUCCESS;
    case HOCCL_DIRECTIONS:
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Copy, then the flag behind it in the same stream: the engine is a queue, so flag n means that chunk n has landed. A
 * refused copy still gets its flag, for the counter must go on; `result` tells. */
static CUresult run_copy(struct hoccl_submitter *s, const struct hoccl_job *j)
{
    CUresult flag = CUDA_SUCCESS;
    if (hoccl_settings.test_break == HOCCL_BREAK_LOCAL_COPY && j->direction != HOCCL_HOST)
        hoccl_driver.MemcpyDtoDAsync(s->scratch, s->scratch + 16, 16, j->stream);
    if (hoccl_settings.test_break == HOCCL_BREAK_EARLY_FLAG)
        flag = write_flag(j);
    hoccl_publish(j->result, (uint32_t)copy(j));
    if (hoccl_settings.test_break != HOCCL_BREAK_EARLY_FLAG)
        flag = write_flag(j);
    return flag;
}

static void run(struct hoccl_submitter *s, const struct hoccl_job *j)
{
    CUresult r = CUDA_SUCCESS;
    hoccl_publish(&s->busy_since, hoccl_now());
    switch (j->kind) {
    case HOCCL_JOB_COPY:
        r = run_copy(s, j);
        break;
    case HOCCL_JOB_OPEN:
        hoccl_mapping_open(j->mapping);
        break;
    case HOCCL_JOB_CLOSE:
        hoccl_mapping_close(j->mapping);
        break;
    case HOCCL_JOB_PREPARE:
        hoccl_stage_view_prepare(j->view);
        break;
    case HOCCL_JOB_DISPATCH:
        hoccl_dispatch_run(j->dispatch);
        break;
    case HOCCL_JOB_NUDGE: /* a hint: nothing waits for it */
        hoccl_driver.StreamWriteValue32(j->stream, j->flag, j->value, 0);
        break;
    }
    if (r)
        hoccl_publish(&s->broken, (uint32_t)r);
    hoccl_publish(&s->busy_since, (uint64_t)0);
}

static bool empty(const struct hoccl_submitter *s)
{
    return hoccl_observe(&s->tail) == hoccl_peek(&s->head);
}

static void rest(struct hoccl_submitter *s, uint64_t *since)
{
    if (hoccl_patience(since))
        return;
    hoccl_doorbell_announce(&s->bell);
    if (empty(s) && !hoccl_observe(&s->stop))
        hoccl_doorbell_sleep(&s->bell, 0);
    else
        hoccl_doorbell_cancel(&s->bell);
    *since = hoccl_now();
}

bool hoccl_submitter_step(struct hoccl_submitter *s)
{
    if (empty(s))
        return false;
    struct hoccl_job j = s->jobs[s->head % HOCCL_JOBS];
    run(s, &j);
    hoccl_publish(&s->head, s->head + 1);
    return true;
}

static void *loop(void *arg)
{
    struct hoccl_submitter *s = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    uint64_t since = hoccl_now();
    CUresult r = hoccl_driver.CtxSetCurrent(s->device->context);
    prctl(PR_SET_NAME, "hoccl-submit");
    if (r)
        hoccl_publish(&s->broken, (uint32_t)r);
    hoccl_driver.ThreadExchangeStreamCaptureMode(&mode);
    for (;;) {
        if (hoccl_submitter_step(s)) {
            since = hoccl_now();
            continue;
        }
        if (hoccl_observe(&s->stop))
            break;
        rest(s, &since);
    }
    return NULL;
}

HOCCL_Result hoccl_submitter_open(struct hoccl_submitter *s, const struct hoccl_device *device, CUdeviceptr scratch)
{
    memset(s, 0, sizeof *s);
    s->device = device;
    s->scratch = scratch;
    int e = hoccl_thread_create(&s->thread, NULL, loop, s);
    if (e)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "starting the submitter thread: %s", strerror(e));
    return HOCCL_SUCCESS;
}

bool hoccl_submitter_close(struct hoccl_submitter *s, uint64_t timeout)
{
    struct timespec until = hoccl_deadline(timeout);
    hoccl_publish(&s->stop, 1);
    hoccl_doorbell_ring(&s->bell);
    return pthread_timedjoin_np(s->thread, NULL, &until) == 0;
}

bool hoccl_submitter_give(struct hoccl_submitter *s, const struct hoccl_job *job)
{
    uint32_t tail = hoccl_peek(&s->tail);
    if (tail - hoccl_observe(&s->head) == HOCCL_JOBS)
        return false;
    s->jobs[tail % HOCCL_JOBS] = *job;
    hoccl_publish(&s->tail, tail + 1);
    hoccl_doorbell_ring(&s->bell);
    const struct hoccl_job *next = &s->jobs[(tail + 1) % HOCCL_JOBS];
    hoccl_expect(next);
    hoccl_expect((const char *)(next + 1) - 1);
    return true;
}

bool hoccl_submitter_idle(const struct hoccl_submitter *s)
{
    return hoccl_observe(&s->head) == hoccl_peek(&s->tail);
}

uint64_t hoccl_submitter_stuck(const struct hoccl_submitter *s, uint64_t now)
{
    uint64_t since = hoccl_observe(&s->busy_since);
    return since && now > since ? now - since : 0;
}
