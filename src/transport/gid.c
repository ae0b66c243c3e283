/* SPDX-License-Identifier: Apache-2.0 */
/* A port of RoCE has an address for each IP address of its interface, in each version of the protocol; only one kind passes
 * routers. Their order in the table differs from host to host, and containers see tables with holes. */
#include "transport/gid.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

static bool is_ipv4(const union ibv_gid *g)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return !memcmp(g->raw, prefix, sizeof prefix);
}

static bool is_link_local(const union ibv_gid *g)
{
    if (is_ipv4(g))
        return g->raw[12] == 169 && g->raw[13] == 254;
    return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

/* 0: not to be used. */
static int rank(const struct hoccl_gid *g, bool ethernet)
{
    static const union ibv_gid zero;
    if (!memcmp(&g->gid, &zero, sizeof zero))
        return 0;
    if (!ethernet)
        return 1;
    if (g->type != IBV_GID_TYPE_ROCE_V2)
        return 0;
    if (is_link_local(&g->gid))
        return is_ipv4(&g->gid) ? 2 : 1;
    return is_ipv4(&g->gid) ? 4 : 3;
}

static void list(const struct hoccl_gid *table, int n, char *text, size_t bytes)
{
    char address[INET6_ADDRSTRLEN];
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < n && used < bytes; i++)
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s%d: %s %s", i ? ", " : "", table[i].index,
                             hoccl_gid_type_text(table[i].type), hoccl_gid_text(&table[i].gid, address, sizeof address));
    if (!n)
        snprintf(text, bytes, "empty");
}

int hoccl_gid_choose(const struct hoccl_gid *table, int n, bool ethernet, int wanted, const char *port)
{
    int best = -1;
    char text[256];
    for (int i = 0; i < n; i++) {
        if (wanted >= 0 && table[i].index == wanted)
            return i;
        if (wanted < 0 && rank(&table[i], ethernet) > (best < 0 ? 0 : rank(&table[best], ethernet)))
            best = i;
    }
    if (best >= 0)
        return best;
    list(table, n, text, sizeof text);
    if (wanted >= 0)
        hoccl_fail(HOCCL_ERR_DEVICE, "%s has no address %d, as HOCCL_VERBS=gid=%d demands; its table: %s", port, wanted,
                   wanted, text);
    else
        hoccl_fail(HOCCL_ERR_DEVICE,
                   "%s has no address for %s; its table: %s. Give its interface an IP address, or name an "
                   "entry by HOCCL_VERBS=gid=INDEX",
                   port, ethernet ? "RoCE v2" : "InfiniBand", text);
    return -1;
}

bool hoccl_gid_agree(const struct hoccl_gid *a, const struct hoccl_gid *b)
{
    if (a->type != b->type)
        return false;
    return a->type != IBV_GID_TYPE_ROCE_V2 || is_ipv4(&a->gid) == is_ipv4(&b->gid);
}

const char *hoccl_gid_text(const union ibv_gid *gid, char *text, size_t bytes)
{
    bool four = is_ipv4(gid);
    if (!inet_ntop(four ? AF_INET : AF_INET6, gid->raw + (four ? 12 : 0), text, (socklen_t)bytes))
        snprintf(text, bytes, "?");
    return text;
}

const char *hoccl_gid_type_text(enum ibv_gid_type type)
{
    switch (type) {
    case IBV_GID_TYPE_IB:
        return "InfiniBand";
    case IBV_GID_TYPE_ROCE_V1:
        return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
        return "RoCE v2";
    }
    return "of an unknown type";
}

enum ibv_mtu hoccl_mtu_choose(enum ibv_mtu here, enum ibv_mtu there, int setting)
{
    int least = here < there ? (int)here : (int)there;
    while (setting && least > IBV_MTU_256 && 128 << least > setting)
        least--;
    return (enum ibv_mtu)least;
}
