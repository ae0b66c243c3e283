/* SPDX-License-Identifier: Apache-2.0 */
/* Dialing, for the lower rank of a connection, and knocking, for a higher one that is the first; I/O thread 0's. See tcp_dial.c. */
#ifndef HOCCL_TRANSPORT_TCP_DIAL_H
#define HOCCL_TRANSPORT_TCP_DIAL_H

#include "transport/tcp_door.h"

/* What is due; *due becomes earlier if the meeting has to be looked at before. May end in hoccl_tcp_door_result. */
void hoccl_tcp_dial_step(struct tcp_door *door, struct tcp_meeting *meeting, uint64_t now, uint64_t *due);

/* Forget all calls of the meeting. */
void hoccl_tcp_dial_stop(struct tcp_door *door, struct tcp_meeting *meeting);

#endif
