/* SPDX-License-Identifier: Apache-2.0 */
/* See nudge.h. */
#include "p2p/nudge.h"

#include "base/atomic.h"
#include "base/setting.h"

HOCCL_Result hoccl_nudge_open(struct hoccl_nudge *n, struct hoccl_flag_pool *flags)
{
    *n = (struct hoccl_nudge){.given = (uint32_t)hoccl_settings.first_sequence};
    HOCCL_Result r = hoccl_flag_take(flags, &n->seen);
    if (r)
        return r;
    hoccl_publish(n->seen.host, n->given);
    r = hoccl_driver_check(hoccl_driver.StreamCreateWithPriority(&n->stream, CU_STREAM_NON_BLOCKING, 0),
                           "a stream that makes the GPU look at flags");
    if (r)
        hoccl_flag_give(flags, &n->seen);
    return r;
}

void hoccl_nudge_close(struct hoccl_nudge *n, struct hoccl_flag_pool *flags)
{
    hoccl_driver.StreamDestroy(n->stream);
    if (hoccl_observe(n->seen.host) == n->given)
        hoccl_flag_give(flags, &n->seen);
}

void hoccl_nudge_give(struct hoccl_nudge *n, struct hoccl_submitter *submitter)
{
    n->due = 0;
    if (n->given - hoccl_observe(n->seen.host) >= HOCCL_NUDGES || hoccl_settings.test_break == HOCCL_BREAK_NO_NUDGE)
        return;
    struct hoccl_job job = {.kind = HOCCL_JOB_NUDGE, .stream = n->stream, .flag = n->seen.device, .value = n->given + 1};
    n->given += hoccl_submitter_give(submitter, &job);
}

void hoccl_nudge_foresee(struct hoccl_nudge *n, uint64_t end)
{
    uint64_t due = end - HOCCL_NUDGE_LEAD;
    if (!n->due || due < n->due)
        n->due = due;
}

/* Not in front of a copy that waits to be submitted. */
void hoccl_nudge_step(struct hoccl_nudge *n, struct hoccl_submitter *submitter, uint64_t now)
{
    if (!n->due || now < n->due)
        return;
    n->due = 0;
    if (hoccl_submitter_idle(submitter))
        hoccl_nudge_give(n, submitter);
}
