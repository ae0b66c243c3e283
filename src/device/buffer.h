/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the application: of the kind that every path of HOCCL can use, found again by its address. */
#ifndef HOCCL_DEVICE_BUFFER_H
#define HOCCL_DEVICE_BUFFER_H

#include "device/device.h"

/* At least `bytes` (not 0) of the device's memory. Errors: MEMORY, DEVICE. */
HOCCL_Result hoccl_buffer_open(const struct hoccl_device *device, size_t bytes, void **address);

/* Unmap and forget. Errors: ARGUMENT (no buffer begins there), DEVICE. */
HOCCL_Result hoccl_buffer_close(void *address);

/* The buffer that these bytes lie in; false: in none. Cheap where there are no buffers. */
bool hoccl_buffer_find(const void *address, size_t bytes, uintptr_t *base, size_t *all);

#endif
