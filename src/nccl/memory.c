/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and its registration. HOCCL reaches any device memory without being told of it; what is registered goes to other nodes
 * without staging where the network can reach it. */
#include "nccl/comm.h"
#include "nccl/export.h"
#include "nccl/group.h"

#include <stdlib.h>

ncclResult_t pncclMemAlloc(void **ptr, size_t size)
{
    return shim_result(HOCCL_MemAlloc(ptr, size), "ncclMemAlloc");
}
NCCL_EXPORT(MemAlloc);

ncclResult_t pncclMemFree(void *ptr)
{
    return shim_result(HOCCL_MemFree(ptr), "ncclMemFree");
}
NCCL_EXPORT(MemFree);

static ncclResult_t check(const void *buf, size_t size, const void *out, const char *call)
{
    if (!out)
        return shim_fail(ncclInvalidArgument, "%s: the handle's address is NULL", call);
    if (!buf || !size)
        return shim_fail(ncclInvalidArgument, "%s: buffer %p of %zu bytes: there is nothing to register", call, buf, size);
    return ncclSuccess;
}

/* HOCCL's handle is the caller's; which of the two calls gave it is remembered here. */
static ncclResult_t remember(ncclComm_t comm, void *buf, size_t size, int is_window, const char *call, void **out)
{
    HOCCL_Comm hoccl;
    void *handle;
    ncclResult_t result = shim_comm_get(comm, call, &hoccl);
    if (!result)
        result = shim_result(HOCCL_CommRegister(hoccl, buf, size, &handle), call);
    if (result)
        return result;
    struct shim_registration *r = malloc(sizeof *r);
    struct shim_comm *c = r ? shim_comm_lock(comm, call) : NULL;
    if (!c) {
        HOCCL_CommDeregister(hoccl, handle);
        free(r);
        return r ? ncclInvalidArgument : shim_fail(ncclSystemError, "%s: no host memory", call);
    }
    r->handle = handle;
    r->is_window = is_window;
    r->next = c->registrations;
    c->registrations = r;
    *out = handle;
    shim_comm_unlock(c);
    return ncclSuccess;
}

static ncclResult_t forget(ncclComm_t comm, const void *handle, int is_window, const char *call)
{
    struct shim_comm *c = shim_comm_lock(comm, call);
    if (!c)
        return ncclInvalidArgument;
    struct shim_registration **link = &c->registrations;
    while (*link && ((*link)->handle != handle || (*link)->is_window != is_window))
        link = &(*link)->next;
    struct shim_registration *found = *link;
    HOCCL_Comm hoccl = c->hoccl;
    if (found)
        *link = found->next;
    shim_comm_unlock(c);
    if (found)
        HOCCL_CommDeregister(hoccl, found->handle);
    free(found);
    if (!found && handle)
        return shim_fail(ncclInvalidUsage, "%s: %p is no %s of this communicator, or has been given back", call, handle,
                         is_window ? "window" : "registration");
    return ncclSuccess;
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buf, size_t size, void **handle)
{
    ncclResult_t r = check(buf, size, handle, "ncclCommRegister");
    return shim_group_note(r ? r : remember(comm, buf, size, 0, "ncclCommRegister", handle));
}
NCCL_EXPORT(CommRegister);

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return shim_group_note(forget(comm, handle, 0, "ncclCommDeregister"));
}
NCCL_EXPORT(CommDeregister);

/* A window's handle is for kernels of the device interface, which is not there; for HOCCL's own operations it is registered
 * memory like any other. */
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buf, size_t size, ncclWindow_t *win, int flags)
{
    void *handle = NULL;
    ncclResult_t r = check(buf, size, win, "ncclCommWindowRegister");
    if (!r && flags & ~NCCL_WIN_COLL_SYMMETRIC)
        r = shim_fail(ncclInvalidArgument, "ncclCommWindowRegister: flags %#x: only NCCL_WIN_COLL_SYMMETRIC is known", (unsigned)flags);
    if (!r)
        r = remember(comm, buf, size, 1, "ncclCommWindowRegister", &handle);
    if (!r)
        *win = handle;
    return shim_group_note(r);
}
NCCL_EXPORT(CommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
    return shim_group_note(forget(comm, win, 1, "ncclCommWindowDeregister"));
}
NCCL_EXPORT(CommWindowDeregister);
