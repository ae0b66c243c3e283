/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the application, of the GPU that is current in its thread. */
#ifndef HOCCL_CORE_ALLOCATE_H
#define HOCCL_CORE_ALLOCATE_H

#include "hoccl.h"

#include <stddef.h>

/* See HOCCL_MemAlloc and HOCCL_MemFree; neither takes 0 bytes or NULL. */
HOCCL_Result hoccl_allocate(size_t bytes, void **address);
HOCCL_Result hoccl_allocate_undo(void *address);

#endif
