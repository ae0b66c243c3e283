/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a port's addresses, and which packet size: pure functions over what the port says. */
#ifndef HOCCL_TRANSPORT_GID_H
#define HOCCL_TRANSPORT_GID_H

#include "hoccl.h"

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>

#define HOCCL_GIDS_MAX 256 /* of a port that are looked at */

/* An entry of a port's table; the table may have holes, which are not handed over. */
struct hoccl_gid {
    union ibv_gid gid;
    int index;
    enum ibv_gid_type type;
};

/* The place in `table` of the address to use on a port that is InfiniBand or Ethernet: the entry `wanted` by index, or for −1
 * the best: on InfiniBand the first; on Ethernet RoCE v2 over IPv4, then over IPv6 with a routable (global, ULA) address,
 * then over link-local ones, which reach one network only. −1 with the error set (DEVICE; it lists the table) if there is none;
 * RoCE v1 is used where `wanted` names it. */
int hoccl_gid_choose(const struct hoccl_gid *table, int n, bool ethernet, int wanted, const char *port);

/* Can a packet go from one address to the other at all (both IPv4 or both IPv6, both of one RoCE version)? */
bool hoccl_gid_agree(const struct hoccl_gid *a, const struct hoccl_gid *b);

/* "10.0.0.1" for an IPv4 address in IPv6's form, else as IPv6. */
const char *hoccl_gid_text(const union ibv_gid *gid, char *text, size_t bytes);
/* "InfiniBand", "RoCE v1", "RoCE v2" */
const char *hoccl_gid_type_text(enum ibv_gid_type type);

/* The packet size both ends and the setting (bytes, 0: none) allow. */
enum ibv_mtu hoccl_mtu_choose(enum ibv_mtu here, enum ibv_mtu there, int setting);

#endif
