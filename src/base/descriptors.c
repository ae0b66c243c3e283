/* SPDX-License-Identifier: Apache-2.0 */
/* See descriptors.h. */
#define _GNU_SOURCE
#include "base/descriptors.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_MS 1000
#define CONTROL CMSG_SPACE(HOCCL_DESCRIPTORS_MOST * sizeof(int))

bool hoccl_descriptors_send(int socket, const void *message, size_t bytes, const int *fds, unsigned count)
{
    char control[CONTROL] = {0};
    struct iovec v = {(void *)message, bytes};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd f = {.fd = socket, .events = POLLOUT};
    if (count) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    while (sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)bytes) {
        if (errno != EAGAIN && errno != EINTR)
            return false;
        int n = poll(&f, 1, SEND_MS);
        if (!n || (n < 0 && errno != EINTR))
            return false;
    }
    return true;
}

int hoccl_descriptors_take(int socket, void *message, size_t bytes, int *fds, unsigned *count)
{
    char control[CONTROL];
    struct iovec v = {message, bytes};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *count = 0;
    ssize_t n = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        *count = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), *count * sizeof(int));
    }
    if (n == (ssize_t)bytes && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return 1;
    hoccl_descriptors_close(fds, *count);
    *count = 0;
    return -1;
}

void hoccl_descriptors_close(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
}
