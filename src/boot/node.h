/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks share this host and its memory, decided by evidence: the same boot id, and a descriptor that arrives
 * over an abstract Unix socket. The sockets stay open: when a process ends, however it ends, its end closes. */
#ifndef HOCCL_BOOT_NODE_H
#define HOCCL_BOOT_NODE_H

#include "boot/boot.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a rank says of its host in the start-up blob. */
struct hoccl_node_card {
    char boot_id[40];
    char host[64];
    char socket[48];    /* abstract name, without the leading zero byte */
    uint8_t cookie[16]; /* who knows it may connect */
    uint64_t process;   /* a random number of this process: equal means the same address space */
    uint64_t network;   /* inode of its network namespace: names of sockets are known within it; 0: unknown */
    int32_t pid;
};

struct hoccl_listener {
    int fd;
    struct hoccl_node_card card;
};

/* The boot id of this host; "" if it has none. */
void hoccl_node_boot_id(char *text, size_t bytes);

/* For tests (HOCCL_TEST_NODE): which node a rank is to think it is on: "2": rank mod 2; "3+5": the first 3 ranks on one, the
 * rest on another. *node is −1 without the setting. ARGUMENT if it cannot be read. */
HOCCL_Result hoccl_node_pretended(const char *setting, int rank, int *node);

/* Be on that node: another boot id and host name. Nothing for −1. */
void hoccl_node_pretend(struct hoccl_node_card *card, int node);

HOCCL_Result hoccl_listener_open(struct hoccl_listener *listener);
void hoccl_listener_close(struct hoccl_listener *listener);

struct hoccl_link {
    bool local;             /* it answered: the same node */
    int fd;                 /* the open socket to it; −1 for this rank itself and for ranks elsewhere */
    int gift;               /* the descriptor it gave; the caller closes it */
    int parcels;            /* a second socket, on which descriptors of memory travel (p2p/parcel.c); −1 as fd */
};

/* Collective among the ranks whose boot id is ours: connect to each, give the descriptor `gift`, take
 * theirs.
 * cards: all `size` ranks'; links: size entries, filled. A rank that cannot be reached by the socket (another network
 * namespace) is not local. Waits at most `timeout` ns for ranks that have not come, naming them every 30 s; one that has
 * given up is noticed at once. On error everything is closed. */
HOCCL_Result hoccl_node_connect(struct hoccl_boot *boot, struct hoccl_listener *listener, const struct hoccl_node_card *cards,
                                int gift, uint64_t timeout, struct hoccl_link *links);
void hoccl_node_disconnect(struct hoccl_link *links, int size);

/* Has the process at the other end gone? Never blocks. */
bool hoccl_link_gone(const struct hoccl_link *link);

#endif
