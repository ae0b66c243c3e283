/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of NCCL has two names: pncclName, and ncclName, which a profiler may take and call the other. A file
 * defines the first and says NCCL_EXPORT for the second. */
#ifndef HOCCL_NCCL_EXPORT_H
#define HOCCL_NCCL_EXPORT_H

#include "nccl/nccl_abi.h"

#define NCCL_EXPORT(name)                                                                                                  \
    extern __typeof__(nccl##name) nccl##name __attribute__((weak, alias("pnccl" #name), visibility("default")))

#endif
