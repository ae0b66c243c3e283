/* SPDX-License-Identifier: Apache-2.0 */
/* See group.h. */
#include "nccl/group.h"

#include "nccl/end.h"
#include "nccl/export.h"
#include "nccl/make.h"
#include "nccl/swap.h"

#include <string.h>

static __thread struct {
    int depth;
    ncclResult_t failed; /* the first error inside the group */
    char text[SHIM_TEXT];
    unsigned long taken[SHIM_KINDS];
} group;

bool shim_group_is_open(void)
{
    return group.depth > 0;
}

ncclResult_t shim_group_note(ncclResult_t result)
{
    if (result && result != ncclInProgress && group.depth && !group.failed) {
        group.failed = result;
        memcpy(group.text, shim_text(), sizeof group.text);
    }
    return result;
}

ncclResult_t shim_group_taken(enum shim_kind kind, HOCCL_Result result, const char *call)
{
    if (result)
        shim_count_refused();
    else if (group.depth)
        group.taken[kind]++;
    else
        shim_count(kind, 1);
    return result ? shim_group_note(shim_result(result, call)) : ncclSuccess;
}

static void count(void)
{
    for (int i = 0; i < SHIM_KINDS; i++)
        if (group.taken[i])
            shim_count((enum shim_kind)i, group.taken[i]);
}

/* HOCCL's group ends and posts nothing: a group in which a call has failed does that, so let one fail. */
static void drop(void)
{
    shim_make_drop();
    shim_swap_drop();
    shim_end_drop();
    HOCCL_Send(NULL, 0, HOCCL_BYTE, 0, HOCCL_COMM_NULL, NULL);
    HOCCL_GroupEnd();
}

static ncclResult_t finish(void)
{
    ncclResult_t made = shim_make_end(); /* ncclInProgress: in the background */
    ncclResult_t r = made == ncclInProgress ? ncclSuccess : made;
    if (r) {
        shim_swap_drop();
        shim_end_drop();
        return r;
    }
    count();
    r = shim_swap_end();
    ncclResult_t ended = shim_end_end();
    return r ? r : ended && ended != ncclInProgress ? ended : made ? made : ended;
}

ncclResult_t pncclGroupStart(void)
{
    if (!group.depth) {
        HOCCL_Result r = HOCCL_GroupStart();
        if (r)
            return shim_result(r, "ncclGroupStart");
    }
    group.depth++;
    return ncclSuccess;
}
NCCL_EXPORT(GroupStart);

ncclResult_t pncclGroupEnd(void)
{
    ncclResult_t r;
    if (!group.depth)
        return shim_fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart in this thread");
    if (group.depth > 1) {
        group.depth--;
        return ncclSuccess;
    }
    group.depth = 0;
    if (group.failed) {
        drop();
        r = shim_fail(group.failed, "%s", group.text);
    } else {
        r = finish();
    }
    memset(&group, 0, sizeof group);
    return r;
}
NCCL_EXPORT(GroupEnd);

/* There is no model of how long a group takes, which NCCL's structure can say: the estimate stays undefined. */
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    ncclResult_t r = ncclSuccess;
    if (!group.depth)
        return shim_fail(ncclInvalidUsage, "ncclGroupSimulateEnd without ncclGroupStart in this thread");
    if (info && info->magic != NCCL_SIM_INFO_MAGIC)
        r = shim_fail(ncclInvalidArgument, "ncclGroupSimulateEnd: the structure was not set with NCCL_SIM_INFO_INITIALIZER");
    if (!r && (shim_make_pending() || shim_end_pending()))
        r = shim_fail(ncclInvalidUsage, "ncclGroupSimulateEnd: a group that makes or ends communicators cannot be simulated");
    if (group.depth > 1) {
        group.depth--;
        return shim_group_note(r);
    }
    drop();
    if (group.failed)
        r = shim_fail(group.failed, "%s", group.text);
    if (!r && info && info->size >= offsetof(ncclSimInfo_t, estimatedTime) + sizeof info->estimatedTime)
        info->estimatedTime = NCCL_UNDEF_FLOAT;
    memset(&group, 0, sizeof group);
    return r;
}
NCCL_EXPORT(GroupSimulateEnd);
