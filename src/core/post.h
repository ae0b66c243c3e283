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
 * the driver is asked about once. `kept`: they will be posted later, on another stream, and theirs counts for nothing. */
HOCCL_Result hoccl_requests_check(struct hoccl_request *requests, size_t n, bool kept);

/* The allocations of checked requests, to see later whether they are still the same. */
struct hoccl_kept_buffer {
    uintptr_t low, high;
    uint64_t buffer; /* struct hoccl_memory's */
    bool whole;      /* one allocation with one id: else all segments have to be looked at */
};

/* Into `kept`, which has room for n; how many there are. */
size_t hoccl_requests_buffers(const struct hoccl_request *requests, size_t n, struct hoccl_kept_buffer *kept);

/* Before requests that were checked once are posted on this stream: ARGUMENT if a buffer has been freed since, whatever is
 * at its address now, UNSUPPORTED if the stream is capturing. */
HOCCL_Result hoccl_requests_check_again(struct hoccl_comm *comm, CUstream stream, const struct hoccl_kept_buffer *kept,
                                        size_t n);

#define HOCCL_GROUP_COMMS 8

/* Post n requests (n > 0) of at most HOCCL_GROUP_COMMS communicators together: every start signal is enqueued before any
 * wait. The busy marks must be held. An error before anything was posted leaves the communicators good. */
HOCCL_Result hoccl_post(const struct hoccl_request *requests, size_t n);

#endif
