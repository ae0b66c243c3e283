/* SPDX-License-Identifier: Apache-2.0 */
/* Groups. A call checks its own arguments at once; what is right waits here for the outermost End, which posts all of it
 * together. The first failing call of a group makes End return its error and post nothing. A call outside a group makes
 * its requests in the same place and posts them at once. */
#include "api/group.h"

#include "api/handle.h"
#include "api/make.h"
#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static __thread struct group {
    const char *name; /* of the call whose requests are kept; NULL: it is a group of the caller's */
    int depth;
    size_t count, room;
    HOCCL_Comm *handles; /* of each request; a handle may have gone when the group ends */
    struct hoccl_request *requests;
    HOCCL_Result failed; /* the first error inside the group */
    char text[HOCCL_ERROR_TEXT];
} group, aside; /* aside: the caller's, while requests are kept */

bool hoccl_group_is_open(void)
{
    return group.depth > 0;
}

HOCCL_Result hoccl_group_note(HOCCL_Result result)
{
    if (group.depth && result && !group.failed) {
        group.failed = result;
        memcpy(group.text, hoccl_error_text(), sizeof group.text);
    }
    return result;
}

static void clear(void)
{
    free(group.handles);
    free(group.requests);
    memset(&group, 0, sizeof group);
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

static size_t element_size(HOCCL_Datatype type)
{
    switch (type) {
    case HOCCL_INT8:
    case HOCCL_UINT8:
    case HOCCL_FP8_E4M3:
    case HOCCL_FP8_E5M2:
    case HOCCL_BYTE:
        return 1;
    case HOCCL_INT16:
    case HOCCL_UINT16:
    case HOCCL_FP16:
    case HOCCL_BF16:
        return 2;
    case HOCCL_INT32:
    case HOCCL_UINT32:
    case HOCCL_FP32:
        return 4;
    case HOCCL_INT64:
    case HOCCL_UINT64:
    case HOCCL_FP64:
    case HOCCL_COMPLEX64:
        return 8;
    case HOCCL_COMPLEX128:
        return 16;
    }
    return 0;
}

static HOCCL_Result grow(void)
{
    size_t room = group.room ? 2 * group.room : 32;
    struct hoccl_request *q = realloc(group.requests, room * sizeof *q);
    if (q)
        group.requests = q;
    HOCCL_Comm *h = q ? realloc(group.handles, room * sizeof *h) : NULL;
    if (!h)
        return hoccl_fail(HOCCL_ERR_MEMORY, "no host memory for a group of %zu operations", room);
    group.handles = h;
    group.room = room;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_call_add(struct hoccl_call *call, bool is_send, int peer, const void *address, size_t bytes)
{
    size_t i = group.count + call->count;
    if (i == group.room) {
        HOCCL_Result r = grow();
        if (r)
            return r;
    }
    group.handles[i] = call->handle;
    group.requests[i] = (struct hoccl_request){
        .comm = call->comm, .stream = call->stream, .is_send = is_send, .peer = peer, .address = address,
        .begins = !call->count && call->kind != HOCCL_FLOW_SEND_RECV,
        .header = {.bytes = bytes, .kind = (uint16_t)call->kind, .element_size = (uint16_t)call->element_size,
                   .root = call->root, .whole = call->whole}};
    call->count++;
    return HOCCL_SUCCESS;
}

void hoccl_call_after(struct hoccl_call *call, size_t index)
{
    size_t last = call->count - 1;
    group.requests[group.count + last].after = last - index;
}

const struct hoccl_request *hoccl_call_requests(const struct hoccl_call *call)
{
    return call->count ? group.requests + group.count : NULL;
}

/* With the communicator taken: make, check the rest; outside a group post at once. A collective of one rank can be
 * nothing at all. */
static HOCCL_Result run(struct hoccl_call *call, HOCCL_Result (*make)(struct hoccl_call *, const void *), const void *arguments)
{
    HOCCL_Result r = hoccl_comm_error(call->comm);
    if (!r)
        r = make(call, arguments);
    struct hoccl_request *q = group.requests + group.count;
    if (r || !call->count)
        return r;
    r = hoccl_requests_check(q, call->count, group.name != NULL);
    if (!r && !group.depth)
        r = hoccl_post(q, call->count);
    return r;
}

static HOCCL_Result take(struct hoccl_call *call, HOCCL_Result (*make)(struct hoccl_call *, const void *), const void *arguments)
{
    call->element_size = element_size(call->datatype);
    call->count = 0;
    if (!call->element_size)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "datatype %d is unknown", (int)call->datatype);
    HOCCL_Result r = hoccl_handle_enter(call->handle, &call->comm);
    if (r)
        return r;
    r = run(call, make, arguments);
    hoccl_handle_leave(call->handle, call->comm);
    return r;
}

HOCCL_Result hoccl_group_call(struct hoccl_call *call, HOCCL_Result (*make)(struct hoccl_call *, const void *),
                              const void *arguments)
{
    HOCCL_Result r = take(call, make, arguments);
    if (r)
        hoccl_fail_context(r, "%s", group.name ? group.name : call->name);
    if (!group.depth)
        clear();
    else if (!r)
        group.count += call->count;
    return hoccl_group_note(r);
}

/* ---- requests that are kept -------------------------------------------------------------------------------------- */

void hoccl_group_keep(const char *name)
{
    aside = group;
    group = (struct group){.name = name, .depth = 1};
}

HOCCL_Result hoccl_group_kept(HOCCL_Result result, struct hoccl_request **requests, size_t *count)
{
    if (!result) {
        *requests = group.requests;
        *count = group.count;
        group.requests = NULL;
    }
    clear();
    group = aside;
    return hoccl_group_note(result);
}

HOCCL_Result hoccl_group_add(HOCCL_Comm handle, struct hoccl_comm *comm, CUstream stream, struct hoccl_request *requests,
                             size_t count)
{
    for (size_t i = 0; i < count && !group.depth; i++) {
        requests[i].comm = comm;
        requests[i].stream = stream;
    }
    if (!group.depth)
        return hoccl_post(requests, count);
    while (group.room - group.count < count) {
        HOCCL_Result r = grow();
        if (r)
            return r;
    }
    for (size_t i = 0; i < count; i++) {
        struct hoccl_request *q = &group.requests[group.count];
        *q = requests[i];
        q->comm = comm;
        q->stream = stream;
        group.handles[group.count++] = handle;
    }
    return HOCCL_SUCCESS;
}

/* ---- the whole group --------------------------------------------------------------------------------------------- */

/* The communicators of the group, each once. */
struct members {
    HOCCL_Comm handle[HOCCL_GROUP_COMMS];
    struct hoccl_comm *comm[HOCCL_GROUP_COMMS];
    int count;
};

static HOCCL_Result enter(struct members *m, HOCCL_Comm handle)
{
    if (m->count == HOCCL_GROUP_COMMS)
        return hoccl_fail(HOCCL_ERR_USAGE, "a group over more than %d communicators", HOCCL_GROUP_COMMS);
    HOCCL_Result r = hoccl_handle_enter(handle, &m->comm[m->count]);
    if (r)
        return r;
    m->handle[m->count] = handle;
    return hoccl_comm_error(m->comm[m->count++]);
}

/* Take every communicator of the group; the requests' pointers are set anew, for a handle may have gone meanwhile. */
static HOCCL_Result enter_all(struct members *m)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    for (size_t i = 0; i < group.count && !r; i++) {
        int j = 0;
        while (j < m->count && m->handle[j] != group.handles[i])
            j++;
        if (j == m->count)
            r = enter(m, group.handles[i]);
        if (!r)
            group.requests[i].comm = m->comm[j];
    }
    return r;
}

static void leave_all(const struct members *m)
{
    for (int i = 0; i < m->count; i++)
        hoccl_handle_leave(m->handle[i], m->comm[i]);
}

static HOCCL_Result post_group(void)
{
    struct members m = {.count = 0};
    HOCCL_Result r = enter_all(&m);
    if (!r)
        r = hoccl_post(group.requests, group.count);
    leave_all(&m);
    return r;
}

HOCCL_Result HOCCL_GroupStart(void)
{
    group.depth++;
    return HOCCL_SUCCESS;
}

HOCCL_Result HOCCL_GroupEnd(void)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    if (!group.depth)
        return hoccl_fail(HOCCL_ERR_USAGE, "HOCCL_GroupEnd without HOCCL_GroupStart in this thread");
    if (--group.depth)
        return HOCCL_SUCCESS;
    if (group.failed) {
        hoccl_fail_again(group.failed, group.text);
        hoccl_make_refuse();
        r = hoccl_fail_again(group.failed, group.text);
    } else {
        r = hoccl_make_all();
    }
    if (!r && group.count)
        r = post_group();
    if (r && !group.failed)
        hoccl_fail_context(r, "HOCCL_GroupEnd");
    hoccl_make_forget();
    clear();
    return r;
}
