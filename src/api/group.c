/* SPDX-License-Identifier: Apache-2.0 */
/* Groups. A call checks its own arguments at once; what is right waits here for the outermost End, which posts all of it
 * together. The first failing call of a group makes End return its error and post nothing. */
#include "api/group.h"

#include "api/handle.h"
#include "api/make.h"
#include "base/error.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    HOCCL_Comm handle;
    struct hoccl_request request;
};

static __thread struct {
    int depth;
    size_t count, room;
    struct entry *entries;
    HOCCL_Result failed; /* the first error inside the group */
    char text[HOCCL_ERROR_TEXT];
} group;

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

/* The arguments that need no communicator. */
static HOCCL_Result check(const void *buf, size_t count, HOCCL_Datatype datatype, size_t *bytes, uint32_t *size)
{
    size_t s = element_size(datatype);
    if (!s)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "datatype %d is unknown", (int)datatype);
    if (count > SIZE_MAX / s)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "count %zu of elements of %zu bytes is more than an address space", count, s);
    if (count && !buf)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "the buffer is NULL and the count is %zu", count);
    *bytes = count * s;
    *size = (uint32_t)s;
    return HOCCL_SUCCESS;
}

static HOCCL_Result grow(void)
{
    size_t room = group.room ? 2 * group.room : 32;
    struct entry *e = realloc(group.entries, room * sizeof *e);
    if (!e)
        return hoccl_fail(HOCCL_ERR_MEMORY, "no host memory for a group of %zu operations", room);
    group.entries = e;
    group.room = room;
    return HOCCL_SUCCESS;
}

static HOCCL_Result fill(struct entry *e, HOCCL_Comm comm, const void *buf, size_t count, HOCCL_Datatype datatype)
{
    size_t bytes = 0;
    uint32_t size = 0;
    HOCCL_Result r = check(buf, count, datatype, &bytes, &size);
    e->handle = comm;
    e->request.address = buf;
    e->request.header = (struct hoccl_flow_header){.bytes = bytes, .kind = HOCCL_FLOW_SEND_RECV, .element_size = size};
    return r;
}

/* With the communicator taken: check the rest; outside a group post at once. */
static HOCCL_Result take(struct entry *e)
{
    HOCCL_Result r = hoccl_handle_enter(e->handle, &e->request.comm);
    if (r)
        return r;
    r = hoccl_request_check(&e->request);
    if (!r && !group.depth)
        r = hoccl_post(&e->request, 1);
    hoccl_handle_leave(e->handle, e->request.comm);
    return r;
}

static HOCCL_Result keep(const struct entry *e)
{
    if (group.count == group.room) {
        HOCCL_Result r = grow();
        if (r)
            return r;
    }
    group.entries[group.count++] = *e;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_group_add(HOCCL_Comm comm, const void *buf, size_t count, HOCCL_Datatype datatype, int peer,
                             HOCCL_Stream stream, bool is_send)
{
    struct entry e = {.request = {.stream = stream, .is_send = is_send, .peer = peer}};
    HOCCL_Result r = fill(&e, comm, buf, count, datatype);
    if (!r)
        r = take(&e);
    if (r)
        hoccl_fail_context(r, "%s", is_send ? "HOCCL_Send" : "HOCCL_Recv");
    if (!group.depth)
        return r;
    if (!r)
        r = keep(&e);
    return hoccl_group_note(r);
}

/* Take every communicator of the group; the requests' pointers are set anew, for a handle may have gone meanwhile. */
static HOCCL_Result enter_all(size_t *taken)
{
    for (size_t i = 0; i < group.count; i++) {
        struct entry *e = &group.entries[i];
        size_t j = 0;
        while (group.entries[j].handle != e->handle)
            j++;
        if (j < i) {
            e->request.comm = group.entries[j].request.comm;
            continue;
        }
        HOCCL_Result r = hoccl_handle_enter(e->handle, &e->request.comm);
        if (!r && (r = hoccl_comm_error(e->request.comm)))
            hoccl_handle_leave(e->handle, e->request.comm);
        if (r)
            return r;
        *taken = i + 1;
    }
    return HOCCL_SUCCESS;
}

static void leave_all(size_t taken)
{
    for (size_t i = 0; i < taken; i++) {
        size_t j = 0;
        while (group.entries[j].handle != group.entries[i].handle)
            j++;
        if (j == i)
            hoccl_handle_leave(group.entries[i].handle, group.entries[i].request.comm);
    }
}

static HOCCL_Result post_entries(void)
{
    struct hoccl_request *requests = hoccl_alloc(group.count * sizeof *requests, "a group");
    size_t taken = 0;
    if (!requests)
        return HOCCL_ERR_MEMORY;
    HOCCL_Result r = enter_all(&taken);
    for (size_t i = 0; i < group.count; i++)
        requests[i] = group.entries[i].request;
    if (!r)
        r = hoccl_post(requests, group.count);
    leave_all(taken);
    free(requests);
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
        r = post_entries();
    if (r && !group.failed)
        hoccl_fail_context(r, "HOCCL_GroupEnd");
    hoccl_make_forget();
    free(group.entries);
    memset(&group, 0, sizeof group);
    return r;
}
