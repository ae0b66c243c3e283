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
#include "p2p/mapping.h"

#include <errno.h>
#include <string.h>

static CUresult write_flag(const struct hoccl_job *j)
{
    return hoccl_driver.StreamWriteValue32(j->stream, j->flag, j->value, 0);
}

/* Copy, then the flag behind it in the same stream: the engine is a queue, so flag n means that chunk n has landed. A
 * refused copy still gets its flag, for the counter must go on; `result` tells. */
static CUresult run_copy(struct hoccl_submitter *s, const struct hoccl_job *j)
{
    CUresult flag = CUDA_SUCCESS;
    if (hoccl_settings.test_break == HOCCL_BREAK_LOCAL_COPY)
        hoccl_driver.MemcpyDtoDAsync(s->scratch, s->scratch + 16, 16, j->stream);
    if (hoccl_settings.test_break == HOCCL_BREAK_EARLY_FLAG)
        flag = write_flag(j);
    CUresult copy = hoccl_driver.MemcpyDtoDAsync(j->to, j->from, j->bytes, j->stream);
    hoccl_publish(j->result, (uint32_t)copy);
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

static void *loop(void *arg)
{
    struct hoccl_submitter *s = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    uint64_t since = hoccl_now();
    CUresult r = hoccl_driver.CtxSetCurrent(s->device->context);
    if (r)
        hoccl_publish(&s->broken, (uint32_t)r);
    hoccl_driver.ThreadExchangeStreamCaptureMode(&mode);
    for (;;) {
        if (empty(s)) {
            if (hoccl_observe(&s->stop))
                break;
            rest(s, &since);
            continue;
        }
        struct hoccl_job j = s->jobs[s->head % HOCCL_JOBS];
        run(s, &j);
        hoccl_publish(&s->head, s->head + 1);
        since = hoccl_now();
    }
    return NULL;
}

HOCCL_Result hoccl_submitter_open(struct hoccl_submitter *s, const struct hoccl_device *device, CUdeviceptr scratch)
{
    memset(s, 0, sizeof *s);
    s->device = device;
    s->scratch = scratch;
    int e = pthread_create(&s->thread, NULL, loop, s);
    if (e)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "starting the submitter thread: %s", strerror(e));
    return HOCCL_SUCCESS;
}

bool hoccl_submitter_close(struct hoccl_submitter *s, uint64_t timeout)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(timeout / HOCCL_S);
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
