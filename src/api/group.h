/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's open group. */
#ifndef HOCCL_API_GROUP_H
#define HOCCL_API_GROUP_H

#include "core/post.h"

/* Add a checked operation to the thread's group, or post it at once if no group is open. */
HOCCL_Result hoccl_group_add(HOCCL_Comm comm, const void *buf, size_t count, HOCCL_Datatype datatype, int peer,
                             HOCCL_Stream stream, bool is_send);

/* Is a group open in this thread? */
bool hoccl_group_is_open(void);

/* A call inside a group has this result: if it is an error, the group's End will return it. Returns it too. */
HOCCL_Result hoccl_group_note(HOCCL_Result result);

#endif
