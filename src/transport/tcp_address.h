/* SPDX-License-Identifier: Apache-2.0 */
/* By which addresses this host can be reached over TCP, and in which order to try those of a peer.
 *
 * Nobody can know from here which address a peer reaches: an interface may be up and lead nowhere, and docker0 has the same
 * address on every host. So an endpoint publishes all it has, best first; who dials tries them, and a hello proves that
 * the right process has answered (tcp_dial.c). The order only decides what is tried first. */
#ifndef HOCCL_TRANSPORT_TCP_ADDRESS_H
#define HOCCL_TRANSPORT_TCP_ADDRESS_H

#include "transport/transport.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define TCP_INTERFACES 64
#define TCP_CANDIDATES 16

/* Best first. NEAR: named by the setting, or next to the GPU; VIRTUAL: of containers, virtual machines and tunnels. */
enum tcp_address_class { TCP_NEAR, TCP_PLAIN, TCP_NO_CARRIER, TCP_VIRTUAL, TCP_LOOPBACK };

struct tcp_address {
    uint8_t family;  /* 4 or 6 */
    uint8_t prefix;  /* bits of its subnet */
    uint8_t class;   /* enum tcp_address_class */
    uint8_t speed;   /* of the interface: binary logarithm of Mbit/s, 0: not known */
    uint8_t bytes[16];
};

struct tcp_interface {
    char name[IF_NAMESIZE];
    unsigned mbits;  /* per second; 0: not known */
    struct tcp_address address;
};

struct tcp_interfaces {
    int count;
    bool named;      /* HOCCL_NIC names what may be used: connections are bound to it, too */
    struct tcp_interface list[TCP_INTERFACES]; /* best first */
};

/* What travels in hoccl_endpoint_card. */
struct tcp_card {
    uint64_t token, proof; /* random numbers of the listener */
    uint16_t port;
    uint8_t lanes;
    uint8_t bytes;         /* of the list that are used: addresses without the bytes that IPv4 does not need */
    uint8_t list[HOCCL_ENDPOINT_CARD_BYTES - 8 - 20];
};
_Static_assert(sizeof(struct tcp_card) == HOCCL_ENDPOINT_CARD_BYTES - 8, "fills the card");

struct tcp_candidate {
    struct sockaddr_storage to, from;
    socklen_t bytes;
    bool bound;      /* to `from`, its port 0 */
    unsigned order;
};

/* The addresses of this host that `setting` (HOCCL_NIC: "eth0,mlx5_0", "^docker0", "") allows; `near` (may be NULL) is the
 * device that should come first. ARGUMENT if the setting names what is not here, with what is. Also for hoccl-info. */
HOCCL_Result hoccl_tcp_interfaces_read(const char *setting, const char *near, struct tcp_interfaces *out);

/* "eth0 10.0.0.1/24 10 Gbit/s, docker0 172.17.0.1/16 (virtual)": as many as fit. */
void hoccl_tcp_interfaces_text(const struct tcp_interfaces *all, char *text, size_t bytes);

/* Write the addresses into the card, as many as fit, or read them in the order in which to try them; their number. */
void hoccl_tcp_card_fill(struct tcp_card *card, const struct tcp_interfaces *own);
int hoccl_tcp_card_candidates(const struct tcp_card *card, const struct tcp_interfaces *own,
                              struct tcp_candidate candidate[TCP_CANDIDATES]);

/* "10.0.0.1:1234", "[fd00::1]:1234" */
const char *hoccl_tcp_address_text(const struct sockaddr_storage *address, char *text, size_t bytes);

/* Both ends of a connected socket: "10.0.0.1:1234 to 10.0.0.2:5678". */
void hoccl_tcp_socket_text(int fd, char *text, size_t bytes);

#endif
