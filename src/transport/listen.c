/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "transport/listen.h"

#include "base/error.h"
#include "base/setting.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* HOCCL_PORTS: "" any, "first-last", "port". */
static HOCCL_Result read_ports(unsigned *first, unsigned *last)
{
    char end;
    const char *t = hoccl_settings.ports;
    *first = *last = 0;
    if (!*t)
        return HOCCL_SUCCESS;
    int n = sscanf(t, "%5u-%5u%c", first, last, &end);
    if (n == 1 && strspn(t, "0123456789") == strlen(t))
        *last = *first;
    else if (n != 2)
        *first = 0;
    if (!*first || *first > *last || *last > 65535)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_PORTS=%s cannot be read: it takes FIRST-LAST, two ports from 1 to 65535", t);
    return HOCCL_SUCCESS;
}

/* A socket of both families where the host has IPv6, else of IPv4. */
static int listen_on(unsigned port)
{
    int one = 1, zero = 0;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_six = fd >= 0 && !setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (!is_six) {
        if (fd >= 0)
            close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four, is_six ? sizeof six : sizeof four) ||
        listen(fd, 4096)) {
        int e = errno;
        close(fd);
        errno = e;
        return -1;
    }
    return fd;
}

/* Begins at a random place of the range: the processes of a node would else try the same ports in the same order. */
HOCCL_Result hoccl_listen(int *out, uint16_t *port)
{
    unsigned first, last, start = 0;
    int fd = -1;
    HOCCL_Result r = read_ports(&first, &last);
    if (r)
        return r;
    if (getrandom(&start, sizeof start, 0) != sizeof start)
        start = 0;
    unsigned count = last - first + 1;
    for (unsigned i = 0; i < count && fd < 0; i++)
        fd = listen_on(first + (start + i) % count);
    if (fd < 0 && first)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "HOCCL_PORTS=%s: no port of these can be listened on (%m): each GPU of a node and "
                          "process needs one", hoccl_settings.ports);
    if (fd < 0)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "TCP: listening on any port: %m");
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n)) {
        r = hoccl_fail(HOCCL_ERR_SYSTEM, "TCP: getsockname: %m");
        close(fd);
        return r;
    }
    *port = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port : ((struct sockaddr_in6 *)&a)->sin6_port);
    *out = fd;
    return HOCCL_SUCCESS;
}
