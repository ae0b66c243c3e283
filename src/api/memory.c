/* SPDX-License-Identifier: Apache-2.0 */
/* Memory calls: of the current GPU, or of device 0 as the CUDA runtime has it. */
#include "hoccl.h"

#include "base/error.h"
#include "base/setting.h"
#include "device/buffer.h"

static HOCCL_Result allocate(void **ptr, size_t bytes)
{
    struct hoccl_device device;
    if (!ptr)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "the pointer's address is NULL");
    if (!bytes) {
        *ptr = NULL;
        return HOCCL_SUCCESS;
    }
    HOCCL_Result r = hoccl_settings_load_once();
    if (!r)
        r = hoccl_driver_load();
    if (!r)
        r = hoccl_device_open(0, &device);
    return r ? r : hoccl_buffer_open(&device, bytes, ptr);
}

HOCCL_Result HOCCL_MemAlloc(void **ptr, size_t bytes)
{
    HOCCL_Result r = allocate(ptr, bytes);
    return r ? hoccl_fail_context(r, "HOCCL_MemAlloc") : r;
}

HOCCL_Result HOCCL_MemFree(void *ptr)
{
    HOCCL_Result r = ptr ? hoccl_buffer_close(ptr) : HOCCL_SUCCESS;
    return r ? hoccl_fail_context(r, "HOCCL_MemFree") : r;
}
