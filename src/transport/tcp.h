/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP transport is reached through transport.h; this is for its tests. */
#ifndef HOCCL_TRANSPORT_TCP_H
#define HOCCL_TRANSPORT_TCP_H

/* I/O threads of endpoints opened from now on; 0, as at first: chosen by the cores. */
extern int hoccl_tcp_threads;

/* Bytes of a lane's send buffer, where the peer is near. */
#define HOCCL_TCP_SEND_BUFFER (512 << 10)

#endif
