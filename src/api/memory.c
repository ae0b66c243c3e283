/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about memory. */
#include "hoccl.h"

#include "base/error.h"
#include "core/allocate.h"

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
