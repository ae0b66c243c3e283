/* SPDX-License-Identifier: Apache-2.0 */
/* Non-blocking sockets and the addresses of this host, in the form that a card carries. */
#define _GNU_SOURCE
#include "transport/verbs_dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* FNV-1a over the boot id: different on every running kernel. */
static uint64_t host_hash(void)
{
    uint64_t h = 0xcbf29ce484222325u;
    char id[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, id, sizeof id);
    for (ssize_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)id[i]) * 0x100000001b3u;
    if (fd >= 0)
        close(fd);
    return h;
}

static bool is_loopback(bool v6, const uint8_t *bytes)
{
    static const uint8_t one[16] = {[15] = 1};
    return v6 ? !memcmp(bytes, one, sizeof one) : bytes[0] == 127;
}

/* An interface's address, if it is of the wanted kind. Link-local ones need a scope that another host does not know. */
static void add(struct hoccl_verbs_card *card, const struct ifaddrs *a, bool loopback)
{
    const void *bytes;
    bool v6 = a->ifa_addr->sa_family == AF_INET6;
    if (v6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)a->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(in6))
            return;
        bytes = in6;
    } else {
        bytes = &((const struct sockaddr_in *)(const void *)a->ifa_addr)->sin_addr;
    }
    if (card->addresses == HOCCL_WIRE_ADDRESSES || is_loopback(v6, bytes) != loopback)
        return;
    card->address[card->addresses].v6 = v6;
    memcpy(card->address[card->addresses++].bytes, bytes, v6 ? 16 : 4);
}

void hoccl_dial_addresses(struct hoccl_verbs_card *card)
{
    struct ifaddrs *all = NULL;
    card->host = host_hash();
    card->addresses = 0;
    if (getifaddrs(&all))
        return;
    for (int loopback = 0; loopback < 2; loopback++)
        for (const struct ifaddrs *a = all; a; a = a->ifa_next)
            if (a->ifa_addr && (a->ifa_flags & IFF_UP) && (a->ifa_addr->sa_family == AF_INET || a->ifa_addr->sa_family == AF_INET6))
                add(card, a, loopback);
    freeifaddrs(all);
}

static int listen_on(int family, uint16_t *port)
{
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6};
    struct sockaddr_in a4 = {.sin_family = AF_INET};
    struct sockaddr *a = family == AF_INET6 ? (struct sockaddr *)&a6 : (struct sockaddr *)&a4;
    socklen_t n = family == AF_INET6 ? sizeof a6 : sizeof a4;
    int off = 0, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, a, n) || listen(fd, SOMAXCONN) || getsockname(fd, a, &n)) {
        int e = errno;
        close(fd);
        errno = e;
        return -1;
    }
    *port = ntohs(family == AF_INET6 ? a6.sin6_port : a4.sin_port);
    return fd;
}

int hoccl_dial_listen(uint16_t *port)
{
    int fd = listen_on(AF_INET6, port);
    return fd < 0 ? listen_on(AF_INET, port) : fd;
}

static socklen_t address(const struct hoccl_verbs_card *card, int i, struct sockaddr_storage *out)
{
    struct sockaddr_in6 *a6 = (struct sockaddr_in6 *)out;
    struct sockaddr_in *a4 = (struct sockaddr_in *)out;
    memset(out, 0, sizeof *out);
    if (card->address[i].v6) {
        a6->sin6_family = AF_INET6;
        a6->sin6_port = htons(card->port);
        memcpy(&a6->sin6_addr, card->address[i].bytes, 16);
        return sizeof *a6;
    }
    a4->sin_family = AF_INET;
    a4->sin_port = htons(card->port);
    memcpy(&a4->sin_addr, card->address[i].bytes, 4);
    return sizeof *a4;
}

int hoccl_dial_connect(const struct hoccl_verbs_card *card, uint64_t own_host, int i)
{
    struct sockaddr_storage a;
    int one = 1;
    if (i >= card->addresses || i >= HOCCL_WIRE_ADDRESSES) {
        errno = ENOENT;
        return -1;
    }
    if (is_loopback(card->address[i].v6, card->address[i].bytes) && own_host != card->host) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    socklen_t n = address(card, i, &a);
    int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (const struct sockaddr *)&a, n) && errno != EINPROGRESS) {
        int e = errno;
        close(fd);
        errno = e;
        return -1;
    }
    return fd;
}

const char *hoccl_dial_text(const struct hoccl_verbs_card *card, int i, char *text, size_t bytes)
{
    char name[INET6_ADDRSTRLEN] = "?";
    inet_ntop(card->address[i].v6 ? AF_INET6 : AF_INET, card->address[i].bytes, name, sizeof name);
    snprintf(text, bytes, card->address[i].v6 ? "[%s]:%u" : "%s:%u", name, card->port);
    return text;
}
