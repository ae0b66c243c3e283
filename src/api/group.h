/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's open group, and the way by which every call that communicates gets into it. */
#ifndef HOCCL_API_GROUP_H
#define HOCCL_API_GROUP_H

#include "core/post.h"

/* One call of hoccl.h, from its arguments to requests. */
struct hoccl_call {
    const char *name; /* for error texts */
    HOCCL_Comm handle;
    HOCCL_Stream stream;
    HOCCL_Datatype datatype;
    uint32_t kind; /* enum hoccl_flow_kind */
    int root;      /* −1: none */

    /* Set for `make`. */
    struct hoccl_comm *comm;
    size_t element_size;
    size_t count; /* requests made so far */
    uint64_t whole; /* `make` may set it: bytes of the message of which the next requests are parts; else 0 */
};

/* Make the call's requests and add them to the thread's group, or post them at once if no group is open. `make` checks
 * the arguments and adds with hoccl_call_add; the communicator is held meanwhile. After an error nothing is added. */
HOCCL_Result hoccl_group_call(struct hoccl_call *call,
                              HOCCL_Result (*make)(struct hoccl_call *call, const void *arguments), const void *arguments);

/* One more operation of the call: bytes at address to or from peer. */
HOCCL_Result hoccl_call_add(struct hoccl_call *call, bool is_send, int peer, const void *address, size_t bytes);

/* The operation added last starts when the call's operation `index` is done. */
void hoccl_call_after(struct hoccl_call *call, size_t index);

/* The requests that the call has made so far; call->count of them. */
const struct hoccl_request *hoccl_call_requests(const struct hoccl_call *call);

/* What is called between the two is checked and kept instead of posted, whatever group is open; `name` is who asks, for
 * error texts. The end gives the requests (the caller's to free; none: NULL) if `result`, of the call between, is success,
 * and returns it. */
void hoccl_group_keep(const char *name);
HOCCL_Result hoccl_group_kept(HOCCL_Result result, struct hoccl_request **requests, size_t *count);

/* Checked requests of one operation (count > 0) for `stream`: into the open group, else posted, and then `requests` is written to. The
 * communicator must have been entered. */
HOCCL_Result hoccl_group_add(HOCCL_Comm handle, struct hoccl_comm *comm, CUstream stream, struct hoccl_request *requests,
                             size_t count);

/* Is a group open in this thread? */
bool hoccl_group_is_open(void);

/* A call inside a group has this result: if it is an error, the group's End will return it. Returns it too. */
HOCCL_Result hoccl_group_note(HOCCL_Result result);

#endif
