/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that the caller keeps (HOCCL_Alltoallv_init and so on), and their handles: as with communicators (handle.h), a
 * handle of something freed is an error and never a pointer to follow. */
#ifndef HOCCL_API_REQUEST_H
#define HOCCL_API_REQUEST_H

#include "core/post.h"

/* Written when it is made, and then by who has entered the communicator: hoccl_post sets stream and communicator. */
struct hoccl_kept {
    HOCCL_Comm comm;
    struct hoccl_request *requests;
    size_t count;
    struct hoccl_kept_buffer *buffers;
    size_t buffer_count;
    unsigned users; /* threads that are starting it; request.c's */
};

/* Give it a handle. MEMORY, or USAGE if all are taken; then it is the caller's still. */
HOCCL_Result hoccl_request_make(struct hoccl_kept *kept, HOCCL_Request *request);

/* Take it into use (it is not freed meanwhile), and give it back. ARGUMENT for a handle of nothing. */
HOCCL_Result hoccl_request_use(HOCCL_Request request, struct hoccl_kept **kept);
void hoccl_request_unuse(struct hoccl_kept *kept);

/* Make the handle invalid: `kept` is the caller's to free. ARGUMENT, or USAGE while somebody uses it. */
HOCCL_Result hoccl_request_retire(HOCCL_Request request, struct hoccl_kept **kept);

#endif
