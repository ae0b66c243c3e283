/* SPDX-License-Identifier: Apache-2.0 */
/* ncclConfig_t: what of it HOCCL obeys. */
#ifndef HOCCL_NCCL_CONFIG_H
#define HOCCL_NCCL_CONFIG_H

#include "nccl/error.h"

#include <stdbool.h>

/* Check it as NCCL does, and say whether calls are to block: `inherited` where nothing is set or config is NULL. What is
 * about CTAs, channels and networks has no counterpart and is passed over. Errors: ncclInvalidArgument. */
ncclResult_t shim_config_read(const ncclConfig_t *config, bool inherited, const char *call, bool *blocking);

#endif
