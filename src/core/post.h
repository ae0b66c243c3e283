/* SPDX-License-Identifier: Apache-2.0 */
/* From checked requests to operations on streams: the calling thread's half of the core. */
#ifndef HOCCL_CORE_POST_H
#define HOCCL_CORE_POST_H

#include "core/comm.h"

struct hoccl_request {
    struct hoccl_comm *comm;
    CUstream stream;
    bool is_send;
    int peer;
    bool begins; /* the first request of a collective: hoccl_post gives it and those behind it the next number */
    size_t after; /* it starts when the one so many requests before it in the same call is done; 0: at once */
    const void *address;
    struct hoccl_flow_header header;
    struct hoccl_memory memory;
};

/* Check what can be checked at the call; fills in the memory. The n requests (n > 0) are one operation: of one
 * communicator, whose busy mark is held, on one stream, with one buffer for all sends and one for all receives, which
 * the driver is asked about once. */
HOCCL_Result hoccl_requests_check(struct hoccl_request *requests, size_t n);

/* Post n requests (n > 0) of any communicators together: every start signal is enqueued before any wait. The busy marks
 * must be held. An error before anything was posted leaves the communicators good. */
HOCCL_Result hoccl_post(const struct hoccl_request *requests, size_t n);

#endif
