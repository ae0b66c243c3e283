/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with file descriptors (SCM_RIGHTS) over a Unix socket that keeps messages whole (SOCK_SEQPACKET). */
#ifndef HOCCL_BASE_DESCRIPTORS_H
#define HOCCL_BASE_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>

#define HOCCL_DESCRIPTORS_MOST 64

/* Send it with copies of `count` descriptors; waits for room for a second at most. False: errno says why not. */
bool hoccl_descriptors_send(int socket, const void *message, size_t bytes, const int *fds, unsigned count);

/* Take one message of just so many bytes, if there is one: 1; 0: none; −1: the other end has gone, or what came is none, and
 * what came with it is closed. fds: room for HOCCL_DESCRIPTORS_MOST, the caller's to close. Never blocks. */
int hoccl_descriptors_take(int socket, void *message, size_t bytes, int *fds, unsigned *count);

void hoccl_descriptors_close(const int *fds, unsigned count);

#endif
