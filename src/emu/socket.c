/* SPDX-License-Identifier: Apache-2.0 */
/* See socket.h. Sequenced packets: a message is whole or absent. Only processes of one user talk to each other. */
#define _GNU_SOURCE
#include "socket.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST 2

static socklen_t address_of(const char *name, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%s", name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int emu_socket_listen(const char *name)
{
    struct sockaddr_un a;
    socklen_t size = address_of(name, &a);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&a, size) || listen(fd, 128))) {
        close(fd);
        return -1;
    }
    return fd;
}

bool emu_socket_same_user(int socket)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) && (peer.uid == geteuid() || peer.uid == 0);
}

int emu_socket_connect(const char *name)
{
    struct sockaddr_un a;
    socklen_t size = address_of(name, &a);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (connect(fd, (struct sockaddr *)&a, size) || !emu_socket_same_user(fd))) {
        close(fd);
        return -1;
    }
    return fd;
}

bool emu_socket_readable(int socket)
{
    struct pollfd p = {socket, POLLIN, 0};
    return poll(&p, 1, EMU_PATIENCE_MS) == 1;
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(MOST * sizeof(int))];
};

void emu_socket_send(int socket, const int *fds, int count)
{
    char byte = (char)count;
    union control control;
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    memset(&control, 0, sizeof control);
    if (count > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE((size_t)count * sizeof *fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)count * sizeof *fds);
        memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof *fds);
    }
    if (sendmsg(socket, &msg, MSG_NOSIGNAL) < 0)
        return; /* the other side has gone: its loss */
}

int emu_socket_receive(int socket, int *fds, int most)
{
    char byte = 0;
    union control control;
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (recvmsg(socket, &msg, MSG_CMSG_CLOEXEC) != 1 || byte < 1 || byte > most)
        return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS ||
        c->cmsg_len != CMSG_LEN((size_t)byte * sizeof *fds))
        return -1;
    memcpy(fds, CMSG_DATA(c), (size_t)byte * sizeof *fds);
    return byte;
}
