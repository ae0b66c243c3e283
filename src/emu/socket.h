/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors over abstract Unix sockets: they have no name in the file system and go with their last process. */
#ifndef EMU_SOCKET_H
#define EMU_SOCKET_H

#include <stdbool.h>

#define EMU_PATIENCE_MS 5000

int emu_socket_listen(const char *name);  /* -1 and errno: EADDRINUSE if somebody has the name */
int emu_socket_connect(const char *name); /* -1: nobody, or somebody else's process */
bool emu_socket_same_user(int socket);
bool emu_socket_readable(int socket); /* within EMU_PATIENCE_MS */

/* One byte (how many descriptors) and up to two descriptors; receive gives how many, at most most, -1: none came. */
void emu_socket_send(int socket, const int *fds, int count);
int emu_socket_receive(int socket, int *fds, int most);

#endif
