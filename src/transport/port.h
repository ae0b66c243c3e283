/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA ports of this machine, and the one that an endpoint uses. */
#ifndef HOCCL_TRANSPORT_PORT_H
#define HOCCL_TRANSPORT_PORT_H

#include "transport/gid.h"
#include "transport/ibv.h"
#include "transport/transport.h"
#include "transport/verbs_setting.h"

/* A port as it was when it was looked at. */
struct hoccl_port_view {
    char device[HOCCL_NIC_NAME];
    char interface[16];     /* the network interface that a port of RoCE belongs to, "" unknown */
    int number;             /* from 1 */
    bool active, ethernet;
    enum ibv_mtu mtu;
    uint16_t lid;
    int gids;
    struct hoccl_gid gid[HOCCL_GIDS_MAX];
};

/* All ports; free *views with free(). The number, or −1 with the error set: no libibverbs, or no device (DEVICE). */
int hoccl_port_list(struct hoccl_port_view **views);

/* The place in `views` of the port to use: one that HOCCL_NIC (`names`: "mlx5_0", "mlx5_0:1,eth2", "^mlx5_2"; "" any) allows
 * and that is active, the `nearest` device by topology (or NULL) before others, else in the order of `names`. −1 with the error
 * set (DEVICE, naming what there is). Pure. */
int hoccl_port_choose(const struct hoccl_port_view *views, int n, const char *names, const char *nearest);

/* The devices with an active port that HOCCL_NIC (`names`) allows, each once, in the order of `views`: their number, at most
 * `most`. Pure. */
int hoccl_port_devices(const struct hoccl_port_view *views, int n, const char *names, char (*devices)[HOCCL_NIC_NAME], int most);

/* An opened port. `here` changes when the port's addresses do; its owner says under which lock. */
struct hoccl_port {
    const struct hoccl_ibv *ibv;
    struct ibv_context *context;
    struct ibv_device_attr limits;
    uint32_t message_most;  /* bytes of one work request */
    uint16_t pkey;          /* the value behind the index */
    struct hoccl_port_view here;
    struct hoccl_gid gid;   /* the address it uses */
};

HOCCL_Result hoccl_port_open(const char *names, const char *nearest, const struct hoccl_verbs_setting *setting,
                             struct hoccl_port *port);
void hoccl_port_close(struct hoccl_port *port);

/* Look again, after an event: state, addresses, packet size. The port is left as it was if an address is no more there. */
HOCCL_Result hoccl_port_refresh(struct hoccl_port *port, const struct hoccl_verbs_setting *setting);

/* "rxe0 port 1 (RoCE v2, 10.0.0.1)" */
void hoccl_port_text(const struct hoccl_port *port, char *text, size_t bytes);

#endif
