/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "transport/tcp_address.h"

#include "base/error.h"
#include "base/setting.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- this host's addresses --------------------------------------------------------------------------------------- */

/* Names that container and virtual machine software gives; such a network rarely leads to another node. */
static bool sounds_virtual(const char *name)
{
    static const char *const begin[] = {"docker", "veth", "virbr", "br-", "vnet", "tap", "tun", "cni", "flannel", "cali",
                                        "cilium", "lxc", "lxd", "podman", "vmnet", "vboxnet", "kube", "wg", "tailscale", "zt"};
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        if (!strncmp(name, begin[i], strlen(begin[i])))
            return true;
    return false;
}

/* Mbit/s; 0 where the driver does not say. */
static unsigned link_speed(const char *name)
{
    struct ethtool_cmd c = {.cmd = ETHTOOL_GSET};
    struct ifreq r = {.ifr_data = (char *)&c};
    unsigned speed = 0;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    if (!ioctl(fd, SIOCETHTOOL, &r))
        speed = (unsigned)c.speed_hi << 16 | c.speed;
    close(fd);
    return speed > INT32_MAX ? 0 : speed; /* SPEED_UNKNOWN is −1 */
}

static uint8_t logarithm(unsigned n)
{
    return n ? (uint8_t)(31 - __builtin_clz(n)) : 0;
}

/* Is `name` this interface, or an RDMA device ("mlx5_0", "mlx5_0:1") that it belongs to? */
static bool is_called(const char *interface, const char *name, size_t n)
{
    char path[256];
    if (strlen(interface) == n && !strncmp(interface, name, n))
        return true;
    n = strcspn(name, ":,") < n ? strcspn(name, ":,") : n;
    if (n > 60 || memchr(name, '/', n))
        return false;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s/device/net/%s", (int)n, name, interface);
    return !access(path, F_OK);
}

static bool is_listed(const char *interface, const char *list)
{
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (is_called(interface, p, strcspn(p, ",")))
            return true;
    return false;
}

static uint8_t class_of(const struct ifaddrs *i, bool near)
{
    if (near)
        return TCP_NEAR;
    if (i->ifa_flags & IFF_LOOPBACK)
        return TCP_LOOPBACK;
    if (sounds_virtual(i->ifa_name))
        return TCP_VIRTUAL;
    return i->ifa_flags & IFF_RUNNING ? TCP_PLAIN : TCP_NO_CARRIER;
}

static uint8_t bits(const uint8_t *mask, int bytes)
{
    int n = 0;
    for (int i = 0; i < bytes; i++)
        n += __builtin_popcount(mask[i]);
    return (uint8_t)n;
}

/* false: not an address by which a peer could reach this host. */
static bool read_address(const struct ifaddrs *i, struct tcp_address *a)
{
    if (!i->ifa_addr || !i->ifa_netmask || !(i->ifa_flags & IFF_UP))
        return false;
    if (i->ifa_addr->sa_family == AF_INET) {
        a->family = 4;
        memcpy(a->bytes, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, 4);
        a->prefix = bits((const uint8_t *)&((const struct sockaddr_in *)(const void *)i->ifa_netmask)->sin_addr, 4);
        return true;
    }
    if (i->ifa_addr->sa_family != AF_INET6)
        return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(six))
        return false;
    a->family = 6;
    memcpy(a->bytes, six, 16);
    a->prefix = bits((const uint8_t *)&((const struct sockaddr_in6 *)(const void *)i->ifa_netmask)->sin6_addr, 16);
    return true;
}

static int by_quality(const void *left, const void *right)
{
    const struct tcp_address *a = &((const struct tcp_interface *)left)->address;
    const struct tcp_address *b = &((const struct tcp_interface *)right)->address;
    if (a->class != b->class)
        return a->class - b->class;
    if (a->speed != b->speed)
        return b->speed - a->speed;
    return a->family - b->family;
}

/* Every name of the list is an interface that is there. */
static HOCCL_Result check_names(const char *list, const struct ifaddrs *all)
{
    char known[256] = "";
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t n = strcspn(p, ",");
        bool found = !n;
        for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next)
            found = is_called(i->ifa_name, p, n);
        if (found)
            continue;
        for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
            size_t used = strlen(known);
            if (i->ifa_addr && i->ifa_addr->sa_family == AF_PACKET)
                snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", i->ifa_name);
        }
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_NIC=%s: there is no network interface %.*s on this host; there are %s",
                          hoccl_settings.nic, (int)n, p, known);
    }
    return HOCCL_SUCCESS;
}

/* If there are more than fit, the worst is left out. */
static void add_interface(struct tcp_interfaces *out, const struct ifaddrs *i, const char *near)
{
    struct tcp_interface t = {.mbits = 0};
    if (!read_address(i, &t.address))
        return;
    snprintf(t.name, sizeof t.name, "%s", i->ifa_name);
    t.address.class = class_of(i, out->named || (near && is_called(i->ifa_name, near, strlen(near))));
    t.mbits = link_speed(i->ifa_name);
    t.address.speed = logarithm(t.mbits);
    if (out->count < TCP_INTERFACES) {
        out->list[out->count++] = t;
        return;
    }
    struct tcp_interface *worst = out->list;
    for (int k = 1; k < out->count; k++)
        if (by_quality(&out->list[k], worst) > 0)
            worst = &out->list[k];
    if (by_quality(&t, worst) < 0)
        *worst = t;
}

HOCCL_Result hoccl_tcp_interfaces_read(const char *setting, const char *near, struct tcp_interfaces *out)
{
    struct ifaddrs *all = NULL;
    bool except = *setting == '^';
    const char *names = setting + except;
    HOCCL_Result r = HOCCL_SUCCESS;
    if (getifaddrs(&all))
        return hoccl_fail(HOCCL_ERR_SYSTEM, "the network interfaces of this host cannot be listed: getifaddrs: %m");
    out->count = 0;
    out->named = *names && !except;
    if (out->named)
        r = check_names(names, all);
    for (const struct ifaddrs *i = all; i && !r; i = i->ifa_next)
        if (!*names || is_listed(i->ifa_name, names) != except)
            add_interface(out, i, near);
    freeifaddrs(all);
    if (r)
        return r;
    if (!out->count && *names)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "HOCCL_NIC=%s leaves no interface that is up and has an address", setting);
    if (!out->count)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "no network interface of this host is up and has an address");
    qsort(out->list, (size_t)out->count, sizeof *out->list, by_quality);
    return HOCCL_SUCCESS;
}

void hoccl_tcp_interfaces_text(const struct tcp_interfaces *all, char *text, size_t bytes)
{
    static const char *const words[] = {"", "", " (no carrier)", " (virtual)", ""};
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < all->count && at < bytes; i++) {
        const struct tcp_address *a = &all->list[i].address;
        char name[INET6_ADDRSTRLEN] = "?", speed[32] = "";
        inet_ntop(a->family == 4 ? AF_INET : AF_INET6, a->bytes, name, sizeof name);
        if (all->list[i].mbits)
            snprintf(speed, sizeof speed, " %g Gbit/s", (double)all->list[i].mbits / 1000);
        int n = snprintf(text + at, bytes - at, "%s%s %s/%d%s%s", i ? ", " : "", all->list[i].name, name, a->prefix, speed,
                         words[a->class]);
        at += n > 0 ? (size_t)n : 0;
    }
}

/* ---- the card ---------------------------------------------------------------------------------------------------- */

static size_t packed(const struct tcp_address *a)
{
    return a->family == 4 ? 8 : 20;
}

void hoccl_tcp_card_fill(struct tcp_card *card, const struct tcp_interfaces *own)
{
    card->bytes = 0;
    for (int i = 0; i < own->count; i++) {
        const struct tcp_address *a = &own->list[i].address;
        if (card->bytes + packed(a) > sizeof card->list)
            continue;
        memcpy(card->list + card->bytes, a, packed(a));
        card->bytes = (uint8_t)(card->bytes + packed(a));
    }
}

static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned n)
{
    unsigned whole = n / 8, rest = n % 8;
    return !memcmp(a, b, whole) && (!rest || !((a[whole] ^ b[whole]) >> (8 - rest)));
}

static void fill_sockaddr(const struct tcp_address *a, uint16_t port, struct sockaddr_storage *out, socklen_t *bytes)
{
    memset(out, 0, sizeof *out);
    if (a->family == 4) {
        struct sockaddr_in *s = (struct sockaddr_in *)out;
        s->sin_family = AF_INET;
        s->sin_port = htons(port);
        memcpy(&s->sin_addr, a->bytes, 4);
        *bytes = sizeof *s;
    } else {
        struct sockaddr_in6 *s = (struct sockaddr_in6 *)out;
        s->sin6_family = AF_INET6;
        s->sin6_port = htons(port);
        memcpy(&s->sin6_addr, a->bytes, 16);
        *bytes = sizeof *s;
    }
}

/* Class first, then a subnet shared, then speed. An address that is this host's own as well is a duplicate, or the peer is
 * on this host: last. */
static void rate(const struct tcp_address *a, const struct tcp_interfaces *own, struct tcp_candidate *c)
{
    bool subnet = false, mine = false;
    const struct tcp_address *from = NULL;
    socklen_t n;
    for (int i = 0; i < own->count; i++) {
        const struct tcp_address *o = &own->list[i].address;
        if (o->family != a->family)
            continue;
        bool same = same_bits(a->bytes, o->bytes, o->prefix);
        mine |= same_bits(a->bytes, o->bytes, o->family == 4 ? 32 : 128) && o->class != TCP_LOOPBACK;
        if (!from || (same && !subnet))
            from = o;
        subnet |= same;
    }
    c->order = mine * 1000u + a->class * 100u + !subnet * 50u + (a->speed < 49 ? 49u - a->speed : 0);
    c->bound = own->named && from;
    if (c->bound)
        fill_sockaddr(from, 0, &c->from, &n);
}

static int by_order(const void *left, const void *right)
{
    const struct tcp_candidate *a = left, *b = right;
    return (a->order > b->order) - (a->order < b->order);
}

int hoccl_tcp_card_candidates(const struct tcp_card *card, const struct tcp_interfaces *own,
                              struct tcp_candidate candidate[TCP_CANDIDATES])
{
    int count = 0;
    size_t end = card->bytes < sizeof card->list ? card->bytes : sizeof card->list;
    for (size_t at = 0; at + 8 <= end && count < TCP_CANDIDATES;) {
        struct tcp_address a = {0};
        size_t n = packed((const struct tcp_address *)(card->list + at));
        if (at + n > end)
            break;
        memcpy(&a, card->list + at, n);
        at += n;
        fill_sockaddr(&a, card->port, &candidate[count].to, &candidate[count].bytes);
        rate(&a, own, &candidate[count]);
        count += candidate[count].bound || !own->named; /* else: of a family that the interfaces named here do not have */
    }
    qsort(candidate, (size_t)count, sizeof *candidate, by_order);
    return count;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* An IPv4 caller of an IPv6 listener is shown as what it is. */
const char *hoccl_tcp_address_text(const struct sockaddr_storage *address, char *text, size_t bytes)
{
    char name[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    bool is_four = address->ss_family == AF_INET;
    if (is_four)
        inet_ntop(AF_INET, &four->sin_addr, name, sizeof name);
    else if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        inet_ntop(AF_INET, six->sin6_addr.s6_addr + 12, name, sizeof name);
    else
        inet_ntop(AF_INET6, &six->sin6_addr, name, sizeof name);
    snprintf(text, bytes, strchr(name, ':') ? "[%s]:%d" : "%s:%d", name, ntohs(is_four ? four->sin_port : six->sin6_port));
    return text;
}

void hoccl_tcp_socket_text(int fd, char *text, size_t bytes)
{
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t n = sizeof a, k = sizeof b;
    char from[80] = "?", to[80] = "?";
    if (!getsockname(fd, (struct sockaddr *)&a, &n))
        hoccl_tcp_address_text(&a, from, sizeof from);
    if (!getpeername(fd, (struct sockaddr *)&b, &k))
        hoccl_tcp_address_text(&b, to, sizeof to);
    snprintf(text, bytes, "%s to %s", from, to);
}
