/* SPDX-License-Identifier: Apache-2.0 */
/* Whose memory: that of the current context's GPU, or of device 0 as the CUDA runtime has it. It needs no communicator. */
#include "core/allocate.h"

#include "base/setting.h"
#include "device/buffer.h"
#include "p2p/gpu.h"

HOCCL_Result hoccl_allocate(size_t bytes, void **address)
{
    struct hoccl_device device;
    HOCCL_Result r = hoccl_settings_load_once();
    if (!r)
        r = hoccl_driver_load();
    if (!r)
        r = hoccl_device_open(0, &device);
    return r ? r : hoccl_buffer_open(&device, bytes, address);
}

HOCCL_Result hoccl_allocate_undo(void *address)
{
    hoccl_gpus_forget(address);
    return hoccl_buffer_close(address);
}
