/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of hoccl.h that are not about groups. No policy here: arguments, handles, and the core. */
#include "hoccl.h"

#include "api/group.h"
#include "api/handle.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"

#include <pthread.h>

#define LEAVE_TIMEOUT (500 * HOCCL_MS) /* of the two seconds that an abort may take */

static pthread_mutex_t world_lock = PTHREAD_MUTEX_INITIALIZER;
static enum { NEW, OPEN, ENDED } world_state; /* under world_lock */
static struct hoccl_boot boot;

static HOCCL_Result open_world(void)
{
    struct hoccl_comm *comm;
    HOCCL_Comm handle;
    HOCCL_Result r = hoccl_settings_load_once();
    if (!r)
        r = hoccl_boot_open(&boot);
    if (!r)
        r = hoccl_comm_open(&boot, &comm);
    return r ? r : hoccl_handle_make(comm, true, &handle);
}

HOCCL_Result HOCCL_Init(void)
{
    HOCCL_Result r = hoccl_handle_check_process();
    if (r)
        return hoccl_fail_context(r, "HOCCL_Init");
    pthread_mutex_lock(&world_lock);
    if (world_state == NEW)
        r = open_world();
    else
        r = hoccl_fail(HOCCL_ERR_USAGE, world_state == OPEN ? "HOCCL_Init has been called already"
                                                            : "HOCCL cannot be started again after HOCCL_Finalize");
    if (r)
        hoccl_fail_context(r, "HOCCL_Init");
    else
        world_state = OPEN;
    pthread_mutex_unlock(&world_lock);
    return r;
}

static HOCCL_Result refuse_posts(struct hoccl_comm *comm)
{
    if (hoccl_observe(&comm->finalized))
        return HOCCL_SUCCESS;
    if (!hoccl_take(&comm->busy, 0, 1))
        return hoccl_fail(HOCCL_ERR_USAGE, "another thread is in a call of HOCCL_COMM_WORLD: it has to return first");
    hoccl_publish(&comm->finalized, 1);
    hoccl_comm_end_posting(comm);
    hoccl_publish(&comm->busy, 0);
    return HOCCL_SUCCESS;
}

/* After this nobody posts: the peers learn how many operations there are. An error leaves everything as it was. */
static HOCCL_Result end_posting(void)
{
    struct hoccl_comm *comm = NULL;
    if (hoccl_handle_use(HOCCL_COMM_WORLD, &comm))
        return HOCCL_SUCCESS; /* it has been aborted */
    HOCCL_Result r = refuse_posts(comm);
    hoccl_handle_unuse(HOCCL_COMM_WORLD);
    return r;
}

static HOCCL_Result close_world(void)
{
    struct hoccl_comm *comm = NULL;
    HOCCL_Result r = hoccl_handle_use(HOCCL_COMM_WORLD, &comm);
    if (r)
        return HOCCL_SUCCESS; /* it has been aborted; there is nothing left to free */
    hoccl_comm_wait(comm);
    hoccl_handle_unuse(HOCCL_COMM_WORLD);
    r = hoccl_handle_retire(HOCCL_COMM_WORLD, LEAVE_TIMEOUT, NULL, &comm);
    return r ? r : hoccl_comm_close(comm);
}

HOCCL_Result HOCCL_Finalize(void)
{
    HOCCL_Result r = hoccl_handle_check_process();
    if (r)
        return hoccl_fail_context(r, "HOCCL_Finalize");
    pthread_mutex_lock(&world_lock);
    if (world_state != OPEN)
        r = hoccl_fail(HOCCL_ERR_USAGE, world_state == NEW ? "HOCCL_Init has not been called" : "HOCCL_Finalize has been called already");
    else if (hoccl_group_is_open())
        r = hoccl_fail(HOCCL_ERR_USAGE, "a group is open in this thread: HOCCL_GroupEnd comes first");
    else
        r = end_posting();
    bool ends = world_state == OPEN && !r;
    if (ends) {
        r = close_world();
        boot.ops->close(&boot);
        world_state = ENDED;
    }
    if (r)
        hoccl_fail_context(r, "HOCCL_Finalize");
    pthread_mutex_unlock(&world_lock);
    return r;
}

enum fact { SIZE, RANK, DEVICE };

static HOCCL_Result ask(HOCCL_Comm comm, enum fact fact, int *out, const char *call)
{
    struct hoccl_comm *c;
    if (!out)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "%s: the result's address is NULL", call);
    HOCCL_Result r = hoccl_handle_use(comm, &c);
    if (r)
        return hoccl_fail_context(r, "%s", call);
    *out = fact == SIZE ? c->size : fact == RANK ? c->rank : c->gpu->device.ordinal;
    hoccl_handle_unuse(comm);
    return HOCCL_SUCCESS;
}

HOCCL_Result HOCCL_CommSize(HOCCL_Comm comm, int *size)
{
    return ask(comm, SIZE, size, "HOCCL_CommSize");
}

HOCCL_Result HOCCL_CommRank(HOCCL_Comm comm, int *rank)
{
    return ask(comm, RANK, rank, "HOCCL_CommRank");
}

HOCCL_Result HOCCL_CommDevice(HOCCL_Comm comm, int *device)
{
    return ask(comm, DEVICE, device, "HOCCL_CommDevice");
}

HOCCL_Result HOCCL_CommGetAsyncError(HOCCL_Comm comm, HOCCL_Result *error)
{
    struct hoccl_comm *c;
    if (!error)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_CommGetAsyncError: the result's address is NULL");
    HOCCL_Result r = hoccl_handle_use(comm, &c);
    if (r)
        return hoccl_fail_context(r, "HOCCL_CommGetAsyncError");
    *error = hoccl_comm_error(c);
    hoccl_handle_unuse(comm);
    return HOCCL_SUCCESS;
}

HOCCL_Result HOCCL_CommAbort(HOCCL_Comm comm)
{
    struct hoccl_comm *c;
    HOCCL_Result r = hoccl_handle_retire(comm, LEAVE_TIMEOUT, hoccl_comm_stop, &c);
    if (!r)
        r = hoccl_comm_abort(c);
    return r ? hoccl_fail_context(r, "HOCCL_CommAbort") : r;
}

static HOCCL_Result mark(HOCCL_Comm comm, HOCCL_Stream stream, const char *call,
                         HOCCL_Result (*enqueue)(struct hoccl_hold *, CUstream))
{
    struct hoccl_comm *c;
    bool pushed;
    HOCCL_Result r = hoccl_handle_use(comm, &c);
    if (r)
        return hoccl_fail_context(r, "%s", call);
    r = hoccl_comm_error(c);
    if (!r)
        r = hoccl_device_enter(&c->gpu->device, &pushed);
    if (!r) {
        r = enqueue(&c->hold, stream);
        hoccl_device_leave(pushed);
    }
    hoccl_handle_unuse(comm);
    return r ? hoccl_fail_context(r, "%s", call) : r;
}

HOCCL_Result HOCCL_ForegroundBegin(HOCCL_Comm background, HOCCL_Stream stream)
{
    return mark(background, stream, "HOCCL_ForegroundBegin", hoccl_hold_begin);
}

HOCCL_Result HOCCL_ForegroundEnd(HOCCL_Comm background, HOCCL_Stream stream)
{
    return mark(background, stream, "HOCCL_ForegroundEnd", hoccl_hold_end);
}

/* Send and Recv: one request. */
struct message {
    const void *buf;
    size_t count;
    int peer;
    bool is_send;
};

static HOCCL_Result make_message(struct hoccl_call *call, const void *arguments)
{
    const struct message *m = arguments;
    if (m->count > SIZE_MAX / call->element_size)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "count %zu of elements of %zu bytes is more than an address space", m->count,
                          call->element_size);
    if (m->count && !m->buf)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "the buffer is NULL and the count is %zu", m->count);
    return hoccl_call_add(call, m->is_send, m->peer, m->buf, m->count * call->element_size);
}

HOCCL_Result HOCCL_Send(const void *buf, size_t count, HOCCL_Datatype datatype, int peer, HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Send", comm, stream, datatype, HOCCL_FLOW_SEND_RECV, -1, NULL, 0, 0, 0};
    struct message m = {buf, count, peer, true};
    return hoccl_group_call(&call, make_message, &m);
}

HOCCL_Result HOCCL_Recv(void *buf, size_t count, HOCCL_Datatype datatype, int peer, HOCCL_Comm comm, HOCCL_Stream stream)
{
    struct hoccl_call call = {"HOCCL_Recv", comm, stream, datatype, HOCCL_FLOW_SEND_RECV, -1, NULL, 0, 0, 0};
    struct message m = {buf, count, peer, false};
    return hoccl_group_call(&call, make_message, &m);
}

const char *HOCCL_GetErrorString(HOCCL_Result result)
{
    switch (result) {
    case HOCCL_SUCCESS:
        return "success";
    case HOCCL_ERR_ARGUMENT:
        return "invalid argument";
    case HOCCL_ERR_USAGE:
        return "invalid usage";
    case HOCCL_ERR_UNSUPPORTED:
        return "not supported";
    case HOCCL_ERR_MEMORY:
        return "out of memory";
    case HOCCL_ERR_SYSTEM:
        return "system error";
    case HOCCL_ERR_DEVICE:
        return "CUDA driver error";
    case HOCCL_ERR_BOOTSTRAP:
        return "start-up error";
    case HOCCL_ERR_MISMATCH:
        return "the two ends disagree";
    case HOCCL_ERR_PEER:
        return "peer error";
    case HOCCL_ERR_TIMEOUT:
        return "timeout";
    case HOCCL_ERR_INTERNAL:
        return "internal error";
    }
    return "unknown result";
}

const char *HOCCL_GetLastError(void)
{
    return hoccl_error_text();
}

HOCCL_Result HOCCL_GetVersion(int *version)
{
    if (!version)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_GetVersion: the result's address is NULL");
    *version = 10000 * HOCCL_VERSION_MAJOR + 100 * HOCCL_VERSION_MINOR + HOCCL_VERSION_PATCH;
    return HOCCL_SUCCESS;
}
