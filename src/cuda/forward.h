/* SPDX-License-Identifier: Apache-2.0 */
/* What a forwarder needs: its name as the driver exports it, the driver's entry once found, and what to return when
 * there is none. */
#ifndef HOCCL_FORWARD_H
#define HOCCL_FORWARD_H

#include "cuda.h"

struct hoccl_forward {
    const char *name;
    void *entry; /* written once by whoever finds it first, always the same value; atomic */
};

#define HOCCL_NAME_OF(name) #name
#define HOCCL_FORWARD(name)                                                                                            \
    {                                                                                                                  \
        HOCCL_NAME_OF(name), NULL                                                                                      \
    }

/* The chosen driver's entry for this forwarder, NULL if there is no driver or it lacks the function. */
void *hoccl_cuda_find(struct hoccl_forward *self);

/* The error for a call that cannot be forwarded. */
CUresult hoccl_cuda_missing(const struct hoccl_forward *self);

#endif
