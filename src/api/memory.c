/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about memory. */
#include "hoccl.h"

#include "api/handle.h"
#include "base/error.h"
#include "core/allocate.h"
#include "core/register.h"

HOCCL_Result HOCCL_MemAlloc(void **ptr, size_t bytes)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    if (!ptr)
        r = hoccl_fail(HOCCL_ERR_ARGUMENT, "the pointer's address is NULL");
    else if (!bytes)
        *ptr = NULL;
    else
        r = hoccl_allocate(bytes, ptr);
    return r ? hoccl_fail_context(r, "HOCCL_MemAlloc") : r;
}

HOCCL_Result HOCCL_MemFree(void *ptr)
{
    HOCCL_Result r = ptr ? hoccl_allocate_undo(ptr) : HOCCL_SUCCESS;
    return r ? hoccl_fail_context(r, "HOCCL_MemFree") : r;
}

static HOCCL_Result register_checked(HOCCL_Comm comm, const void *buffer, size_t bytes, void **handle)
{
    struct hoccl_comm *c;
    if (!handle)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "the handle's address is NULL");
    if (!buffer || !bytes)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "buffer %p of %zu bytes: there is nothing to register", buffer, bytes);
    HOCCL_Result r = hoccl_handle_use(comm, &c);
    if (r)
        return r;
    r = hoccl_comm_register(c, buffer, bytes, handle);
    hoccl_handle_unuse(comm);
    return r;
}

HOCCL_Result HOCCL_CommRegister(HOCCL_Comm comm, void *buffer, size_t bytes, void **handle)
{
    HOCCL_Result r = register_checked(comm, buffer, bytes, handle);
    return r ? hoccl_fail_context(r, "HOCCL_CommRegister") : r;
}

HOCCL_Result HOCCL_CommDeregister(HOCCL_Comm comm, void *handle)
{
    struct hoccl_comm *c;
    HOCCL_Result r = hoccl_handle_use(comm, &c);
    if (!r) {
        r = handle ? hoccl_comm_deregister(c, handle) : HOCCL_SUCCESS;
        hoccl_handle_unuse(comm);
    }
    return r ? hoccl_fail_context(r, "HOCCL_CommDeregister") : r;
}
