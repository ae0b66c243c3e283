/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that a communicator has been told of. */
#ifndef HOCCL_CORE_REGISTER_H
#define HOCCL_CORE_REGISTER_H

#include "core/comm.h"

/* See HOCCL_CommRegister and HOCCL_CommDeregister; the handle is not NULL. Any thread. */
HOCCL_Result hoccl_comm_register(struct hoccl_comm *comm, const void *buffer, size_t bytes, void **handle);
HOCCL_Result hoccl_comm_deregister(struct hoccl_comm *comm, void *handle);

/* The communicator ends. */
void hoccl_comm_deregister_all(struct hoccl_comm *comm);

#endif
