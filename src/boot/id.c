/* SPDX-License-Identifier: Apache-2.0 */
/* Making and reading unique ids. The addresses are all that this host is known by, best first: IPv4 of every interface
 * that is up, then IPv6 but for link-local ones (they mean nothing elsewhere), then loopback; what does not fit is left
 * out. Nobody can know from here which of them the others can reach, so they try. */
#include "boot/id.h"

#include "base/error.h"
#include "boot/node.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const char magic[8] = "HOCCLID1";

/* FNV-1a. */
static uint64_t hash(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static uint64_t this_host(void)
{
    char boot_id[40] = "";
    hoccl_node_boot_id(boot_id, sizeof boot_id);
    return hash(boot_id, strlen(boot_id));
}

/* Append an address if it fits below `limit` bytes of the list. */
static size_t add(struct hoccl_id *id, size_t at, size_t limit, uint8_t family, const void *address)
{
    size_t n = family == 4 ? 4 : 16;
    if (at + 1 + n > limit)
        return at;
    id->list[at] = family;
    memcpy(id->list + at + 1, address, n);
    id->addresses++;
    return at + 1 + n;
}

static size_t add_interface(struct hoccl_id *id, size_t at, const struct ifaddrs *i, int family)
{
    const size_t limit = sizeof id->list - 5; /* loopback always fits */
    if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
        return at;
    if (family == AF_INET)
        return add(id, at, limit, 4, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr);
    const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr;
    return IN6_IS_ADDR_LINKLOCAL(a) ? at : add(id, at, limit, 6, a);
}

HOCCL_Result hoccl_id_make(struct hoccl_id *id)
{
    struct ifaddrs *all = NULL;
    size_t at = 0;
    memset(id, 0, sizeof *id);
    memcpy(id->magic, magic, sizeof id->magic);
    if (getrandom(id->secret, sizeof id->secret, 0) != sizeof id->secret ||
        getrandom(id->proof, sizeof id->proof, 0) != sizeof id->proof)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "getrandom: %m");
    id->host = this_host();
    id->pid = (int32_t)getpid();
    if (!getifaddrs(&all)) {
        for (const struct ifaddrs *i = all; i; i = i->ifa_next)
            at = add_interface(id, at, i, AF_INET);
        for (const struct ifaddrs *i = all; i; i = i->ifa_next)
            at = add_interface(id, at, i, AF_INET6);
        freeifaddrs(all);
    }
    const struct in_addr loopback = {htonl(INADDR_LOOPBACK)};
    add(id, at, sizeof id->list, 4, &loopback);
    return HOCCL_SUCCESS;
}

void hoccl_id_seal(struct hoccl_id *id, uint16_t port, HOCCL_UniqueId *out)
{
    id->port = port;
    id->check = hash(id, offsetof(struct hoccl_id, check));
    memcpy(out, id, sizeof *out);
}

HOCCL_Result hoccl_id_read(const HOCCL_UniqueId *in, struct hoccl_id *id)
{
    memcpy(id, in, sizeof *id);
    if (memcmp(id->magic, magic, sizeof id->magic) || id->check != hash(id, offsetof(struct hoccl_id, check)))
        return hoccl_fail(HOCCL_ERR_ARGUMENT,
                          "the unique id was not made by HOCCL_GetUniqueId of this version, or not all of its %zu bytes have "
                          "arrived",
                          sizeof *in);
    return HOCCL_SUCCESS;
}

bool hoccl_id_is_near(const struct hoccl_id *id)
{
    return id->host == this_host();
}

bool hoccl_id_address(const struct hoccl_id *id, int i, struct sockaddr_storage *address, socklen_t *bytes)
{
    size_t at = 0;
    if (i >= id->addresses)
        return false;
    while (i--)
        at += id->list[at] == 4 ? 5 : 17;
    memset(address, 0, sizeof *address);
    if (id->list[at] == 4) {
        struct sockaddr_in *a = (struct sockaddr_in *)address;
        a->sin_family = AF_INET;
        a->sin_port = htons(id->port);
        memcpy(&a->sin_addr, id->list + at + 1, 4);
        *bytes = sizeof *a;
    } else {
        struct sockaddr_in6 *a = (struct sockaddr_in6 *)address;
        a->sin6_family = AF_INET6;
        a->sin6_port = htons(id->port);
        memcpy(&a->sin6_addr, id->list + at + 1, 16);
        *bytes = sizeof *a;
    }
    return true;
}

bool hoccl_address_is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* An IPv4 caller of an IPv6 listener is shown as what it is. */
const char *hoccl_address_text(const struct sockaddr_storage *address, char *text, size_t bytes)
{
    char name[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    bool is_v4 = address->ss_family == AF_INET;
    if (is_v4)
        inet_ntop(AF_INET, &v4->sin_addr, name, sizeof name);
    else if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, name, sizeof name);
    else
        inet_ntop(AF_INET6, &v6->sin6_addr, name, sizeof name);
    snprintf(text, bytes, strchr(name, ':') ? "[%s]:%d" : "%s:%d", name, ntohs(is_v4 ? v4->sin_port : v6->sin6_port));
    return text;
}
