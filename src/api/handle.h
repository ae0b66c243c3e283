/* SPDX-License-Identifier: Apache-2.0 */
/* Communicator handles: a number made of a place in a table and a generation, so that a handle of something destroyed is
 * an error and never a pointer to follow. */
#ifndef HOCCL_API_HANDLE_H
#define HOCCL_API_HANDLE_H

#include "core/comm.h"

/* USAGE in a child that was forked while there were communicators: it has none, and can make none. */
HOCCL_Result hoccl_handle_check_process(void);

/* Give a communicator a handle; `world` takes HOCCL_COMM_WORLD. USAGE if all are taken. */
HOCCL_Result hoccl_handle_make(struct hoccl_comm *comm, bool world, HOCCL_Comm *handle);

/* Take a communicator into use (it is not freed meanwhile) and give it back. ARGUMENT for a handle of nothing. */
HOCCL_Result hoccl_handle_use(HOCCL_Comm handle, struct hoccl_comm **comm);
void hoccl_handle_unuse(HOCCL_Comm handle);

/* The same for a call that posts: besides, one thread at a time. USAGE if another thread is in such a call, or if the
 * communicator has been finalized. */
HOCCL_Result hoccl_handle_enter(HOCCL_Comm handle, struct hoccl_comm **comm);
void hoccl_handle_leave(HOCCL_Comm handle, struct hoccl_comm *comm);

/* Make the handle invalid and wait until nobody uses the communicator, at most `timeout` ns. `stop` is called once in
 * between (NULL: nothing). ARGUMENT for a handle of nothing; TIMEOUT if somebody is still inside. */
HOCCL_Result hoccl_handle_retire(HOCCL_Comm handle, uint64_t timeout, void (*stop)(struct hoccl_comm *),
                                 struct hoccl_comm **comm);

#endif
