/* SPDX-License-Identifier: Apache-2.0 */
/* See hold.h. */
#include "stream/hold.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"

#include <string.h>

#define FORGOTTEN (100 * HOCCL_MS)

void hoccl_hold_init(struct hoccl_hold *hold, struct hoccl_flag_pool *flags)
{
    memset(hold, 0, sizeof *hold);
    pthread_mutex_init(&hold->lock, NULL);
    hold->flags = flags;
}

void hoccl_hold_fini(struct hoccl_hold *hold)
{
    if (!hold->flags)
        return;
    for (uint32_t i = 0; i < hold->marks; i++)
        hoccl_flag_set_give(hold->flags, &(struct hoccl_flag_debt){.set = hold->mark[i].set, .last = hold->mark[i].last});
    pthread_mutex_destroy(&hold->lock);
}

/* ---- the calling thread ------------------------------------------------------------------------------------------ */

static bool odd(uint32_t value)
{
    return value & 1;
}

/* Under lock. */
static struct hoccl_hold_mark *find(struct hoccl_hold *h, unsigned long long stream_id)
{
    for (uint32_t i = 0; i < h->marks; i++)
        if (h->mark[i].stream_id == stream_id)
            return &h->mark[i];
    return NULL;
}

/* Under lock: a mark of a stream that is in no phase and has written all it had to. */
static struct hoccl_hold_mark *reuse(struct hoccl_hold *h)
{
    for (uint32_t i = 0; i < h->marks; i++)
        if (!h->mark[i].depth && hoccl_observe(h->mark[i].set.start.host) == h->mark[i].last)
            return &h->mark[i];
    return NULL;
}

/* Under lock. The word begins even, above anything that was waited for there. */
static HOCCL_Result take(struct hoccl_hold *h, unsigned long long stream_id, struct hoccl_hold_mark **mark)
{
    struct hoccl_hold_mark *m = h->marks < HOCCL_HOLD_STREAMS ? &h->mark[h->marks] : reuse(h);
    if (!m)
        return hoccl_fail(HOCCL_ERR_USAGE, "more than %d streams are in foreground phases of one communicator", HOCCL_HOLD_STREAMS);
    if (m == &h->mark[h->marks]) {
        HOCCL_Result r = hoccl_flag_set_take(h->flags, &m->set);
        if (r)
            return r;
        m->last = m->seen = (hoccl_peek(m->set.start.host) + 1) & ~1u;
        hoccl_publish(m->set.start.host, m->last);
        hoccl_publish(&h->marks, h->marks + 1);
    }
    m->stream_id = stream_id;
    *mark = m;
    return HOCCL_SUCCESS;
}

static HOCCL_Result identify(CUstream stream, unsigned long long *id)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult e = hoccl_driver.StreamIsCapturing(stream, &status);
    if (e == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (!e && status != CU_STREAM_CAPTURE_STATUS_NONE))
        return hoccl_fail(HOCCL_ERR_UNSUPPORTED, "stream %p is capturing a graph: phases cannot be captured", (void *)stream);
    return hoccl_driver_check(e ? e : hoccl_driver.StreamGetId(stream, id), "stream %p", (void *)stream);
}

static HOCCL_Result enqueue(struct hoccl_hold_mark *m, CUstream stream)
{
    HOCCL_Result r = hoccl_driver_check(hoccl_driver.StreamWriteValue32(stream, m->set.start.device, m->last + 1, 0),
                                        "enqueueing on stream %p", (void *)stream);
    m->last += !r;
    return r;
}

HOCCL_Result hoccl_hold_begin(struct hoccl_hold *hold, CUstream stream)
{
    unsigned long long id;
    HOCCL_Result r = identify(stream, &id);
    if (r)
        return r;
    pthread_mutex_lock(&hold->lock);
    struct hoccl_hold_mark *m = find(hold, id);
    if (!m)
        r = take(hold, id, &m);
    if (!r && !m->depth)
        r = enqueue(m, stream);
    if (!r)
        m->depth++;
    pthread_mutex_unlock(&hold->lock);
    return r;
}

HOCCL_Result hoccl_hold_end(struct hoccl_hold *hold, CUstream stream)
{
    unsigned long long id;
    HOCCL_Result r = identify(stream, &id);
    if (r)
        return r;
    pthread_mutex_lock(&hold->lock);
    struct hoccl_hold_mark *m = find(hold, id);
    if (!m || !m->depth)
        r = hoccl_fail(HOCCL_ERR_USAGE, "stream %p is in no foreground phase: HOCCL_ForegroundBegin comes first", (void *)stream);
    if (!r && m->depth == 1)
        r = enqueue(m, stream);
    if (!r)
        m->depth--;
    pthread_mutex_unlock(&hold->lock);
    return r;
}

bool hoccl_hold_inside(struct hoccl_hold *hold, unsigned long long stream_id)
{
    if (!hoccl_observe(&hold->marks))
        return false;
    pthread_mutex_lock(&hold->lock);
    const struct hoccl_hold_mark *m = find(hold, stream_id);
    bool inside = m && m->depth;
    pthread_mutex_unlock(&hold->lock);
    return inside;
}

void hoccl_hold_lift(struct hoccl_hold *hold)
{
    hoccl_publish(&hold->lifted, 1);
}

/* ---- the progress thread ----------------------------------------------------------------------------------------- */

/* By what peers call silence, a hold is short. */
static uint64_t longest(void)
{
    uint64_t quarter = hoccl_settings.timeout / 4;
    return hoccl_settings.pause < quarter ? hoccl_settings.pause : quarter;
}

static bool mark_holds(struct hoccl_hold *h, struct hoccl_hold_mark *m, uint64_t now)
{
    uint32_t value = hoccl_observe(m->set.start.host);
    if (value != m->seen) {
        h->owed += odd(value) && odd(m->seen); /* a phase has ended and another begun since the last look */
        m->seen = value;
        m->since = now;
        m->over = false;
    }
    if (odd(value) && !m->over && now - m->since > longest()) {
        m->over = true;
        if (!h->overruns++)
            hoccl_log(HOCCL_LOG_WARN, "a foreground phase has lasted for more than %llu ms (HOCCL_PAUSE): operations go on",
                      (unsigned long long)(longest() / HOCCL_MS));
    }
    return odd(value) && !m->over;
}

/* A pause is over, or was when nothing was left to wait. */
static void end_pause(struct hoccl_hold *h, uint64_t now)
{
    uint64_t ns = h->began ? now - h->began : 0;
    h->paused += ns;
    h->longest = ns > h->longest ? ns : h->longest;
    h->began = 0;
}

/* Nothing has been held up for a while: what the words were then says nothing of gaps. */
static void forget(struct hoccl_hold *h, uint32_t marks)
{
    for (uint32_t i = 0; i < marks; i++)
        h->mark[i].seen &= h->mark[i].over ? ~0u : ~1u;
    end_pause(h, h->looked);
    h->since = 0;
    h->owed = 0;
}

/* In phases that overlap or follow one another there may be no gap for long: then one chunk passes in each of the longest. */
static void count(struct hoccl_hold *h, bool holds, uint64_t now)
{
    if (!holds) {
        end_pause(h, now);
        h->since = 0;
        h->owed = 0;
    } else if (!h->since) {
        h->since = h->began = now;
        h->pauses++;
    } else if (now - h->since > longest()) {
        h->since = now;
        h->owed++;
    }
}

bool hoccl_hold_keeps(struct hoccl_hold *hold)
{
    uint32_t marks = hold ? hoccl_observe(&hold->marks) : 0;
    bool holds = false;
    if (!marks || hoccl_observe(&hold->lifted) || !hoccl_settings.pause)
        return false;
    uint64_t now = hoccl_now();
    if (now - hold->looked > FORGOTTEN)
        forget(hold, marks);
    hold->looked = now;
    for (uint32_t i = 0; i < marks; i++)
        holds |= mark_holds(hold, &hold->mark[i], now);
    count(hold, holds, now);
    return holds && !hold->owed;
}

void hoccl_hold_passed(struct hoccl_hold *hold)
{
    if (!hold || !hold->owed)
        return;
    hold->owed--;
    hold->passed++;
}

void hoccl_hold_say(const struct hoccl_hold *hold)
{
    uint64_t last = hold->began ? hold->looked - hold->began : 0, longest = last > hold->longest ? last : hold->longest;
    if (hold->pauses)
        hoccl_log(HOCCL_LOG_INFO, "foreground phases: this communicator's operations were held up %llu times, %llu µs in all, %llu at "
                  "most; %llu chunks went all the same, %llu phases lasted too long", (unsigned long long)hold->pauses,
                  (unsigned long long)((hold->paused + last) / HOCCL_US), (unsigned long long)(longest / HOCCL_US),
                  (unsigned long long)hold->passed, (unsigned long long)hold->overruns);
}
