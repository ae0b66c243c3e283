/* SPDX-License-Identifier: Apache-2.0 */
/* Every port is looked at, one is chosen by name and state, and its device opened once more for good. */
#include "transport/port.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- looking ----------------------------------------------------------------------------------------------------- */

/* The library fills what the structure had before it grew; the rest stays zero. */
static int query(const struct hoccl_ibv *ibv, struct ibv_context *context, int number, struct ibv_port_attr *attr)
{
    memset(attr, 0, sizeof *attr);
    return ibv->query_port(context, (uint8_t)number, (struct _compat_ibv_port_attr *)attr);
}

/* Entries that cannot be read or are empty are holes. */
static int read_gids(const struct hoccl_ibv *ibv, struct ibv_context *context, int number, int length,
                     struct hoccl_port_view *v)
{
    static const union ibv_gid zero;
    struct hoccl_gid *out = v->gid;
    int n = 0;
    for (int i = 0; i < length && n < HOCCL_GIDS_MAX; i++) {
        struct ibv_gid_entry entry = {0};
        if (ibv->query_gid_ex(context, (uint32_t)number, (uint32_t)i, &entry, 0, sizeof entry) ||
            !memcmp(&entry.gid, &zero, sizeof zero))
            continue;
        out[n++] = (struct hoccl_gid){entry.gid, i, (enum ibv_gid_type)entry.gid_type};
        if (entry.ndev_ifindex && !*v->interface)
            if_indextoname(entry.ndev_ifindex, v->interface);
    }
    return n;
}

static int look(const struct hoccl_ibv *ibv, struct ibv_context *context, const char *device, int number,
                struct hoccl_port_view *v)
{
    struct ibv_port_attr attr;
    int e = query(ibv, context, number, &attr);
    if (e)
        return e;
    *v = (struct hoccl_port_view){.number = number,
                                  .active = attr.state == IBV_PORT_ACTIVE,
                                  .mtu = attr.active_mtu,
                                  .ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET,
                                  .lid = attr.lid};
    snprintf(v->device, sizeof v->device, "%s", device);
    v->gids = read_gids(ibv, context, number, attr.gid_tbl_len, v);
    return 0;
}

/* The ports of one device, behind the `n` there are; the new number. A device that cannot be opened is logged and left out.
 */
static int look_at_device(const struct hoccl_ibv *ibv, struct ibv_device *device, struct hoccl_port_view **views, int n)
{
    const char *name = ibv->get_device_name(device);
    struct ibv_device_attr attr;
    struct ibv_context *context = ibv->open_device(device);
    if (!context) {
        hoccl_log(HOCCL_LOG_INFO, "RDMA device %s cannot be opened: %s", name, strerror(errno));
        return n;
    }
    int ports = ibv->query_device(context, &attr) ? 0 : attr.phys_port_cnt;
    struct hoccl_port_view *more = realloc(*views, ((size_t)n + (size_t)ports + 1) * sizeof *more);
    if (more) {
        *views = more;
        for (int i = 1; i <= ports; i++)
            n += !look(ibv, context, name, i, &more[n]);
    }
    ibv->close_device(context);
    return n;
}

int hoccl_port_list(struct hoccl_port_view **views)
{
    const struct hoccl_ibv *ibv = hoccl_ibv_load();
    int devices = 0, n = 0;
    if (!ibv)
        return -1;
    struct ibv_device **list = ibv->get_device_list(&devices);
    *views = NULL;
    for (int i = 0; list && i < devices; i++)
        n = look_at_device(ibv, list[i], views, n);
    if (list)
        ibv->free_device_list(list);
    if (n)
        return n;
    free(*views);
    *views = NULL;
    if (devices)
        hoccl_fail(HOCCL_ERR_DEVICE,
                   "none of the %d RDMA devices of this machine can be opened: is /dev/infiniband there (in a "
                   "container: --device=/dev/infiniband), and may this user open it?",
                   devices);
    else
        hoccl_fail(HOCCL_ERR_DEVICE,
                   "no RDMA device on this machine (libibverbs finds none: is the card's driver loaded, and "
                   "ibverbs-providers installed?); HOCCL_NET=tcp needs none");
    return -1;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* Does "device", "device:port" or "interface" of n characters name this port? */
static bool names_port(const char *name, size_t n, const struct hoccl_port_view *v)
{
    char full[80];
    size_t bare = strlen(v->device);
    if (bare == n && !strncmp(name, v->device, n))
        return true;
    if (n && strlen(v->interface) == n && !strncmp(name, v->interface, n))
        return true;
    size_t all = (size_t)snprintf(full, sizeof full, "%s:%d", v->device, v->number);
    return all == n && !strncmp(name, full, n);
}

/* The place of the port in the list, −1 if it is not there. */
static int place(const char *list, const struct hoccl_port_view *v)
{
    for (int i = 0; *list; i++) {
        size_t n = strcspn(list, ",");
        if (names_port(list, n, v))
            return i;
        list += n + (list[n] == ',');
    }
    return -1;
}

static void list_ports(const struct hoccl_port_view *views, int n, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < n && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s:%d (%s)", i ? ", " : "", views[i].device, views[i].number,
                                 views[i].active ? "active" : "down");
}

/* Does HOCCL_NIC allow this port? *order: its place in the list. */
static bool allowed(const char *names, const struct hoccl_port_view *v, int *order)
{
    bool exclude = *names == '^';
    *order = place(names + exclude, v);
    return v->active && (!*names || (*order >= 0) != exclude);
}

int hoccl_port_devices(const struct hoccl_port_view *views, int n, const char *names, char (*devices)[HOCCL_NIC_NAME], int most)
{
    int count = 0, order;
    for (int i = 0; i < n && count < most; i++) {
        bool known = count && !strcmp(devices[count - 1], views[i].device); /* a device's ports stand side by side */
        if (!known && allowed(names, &views[i], &order))
            snprintf(devices[count++], HOCCL_NIC_NAME, "%s", views[i].device);
    }
    return count;
}

int hoccl_port_choose(const struct hoccl_port_view *views, int n, const char *names, const char *nearest)
{
    char text[256];
    int best = -1, best_order = 0, order;
    for (int i = 0; i < n; i++) {
        if (!allowed(names, &views[i], &order))
            continue;
        if (nearest && !strcmp(views[i].device, nearest))
            order = -2;
        if (best < 0 || order < best_order) {
            best = i;
            best_order = order;
        }
    }
    if (best >= 0)
        return best;
    list_ports(views, n, text, sizeof text);
    hoccl_fail(HOCCL_ERR_DEVICE, "no active RDMA port%s%s; there are: %s",
               *names ? " that HOCCL_NIC allows, which is " : "", names, text);
    return -1;
}

/* ---- the port of an endpoint ------------------------------------------------------------------------------------- */

HOCCL_Result hoccl_port_refresh(struct hoccl_port *port, const struct hoccl_verbs_setting *setting)
{
    struct hoccl_port_view now;
    struct ibv_port_attr attr;
    __be16 pkey = 0;
    char name[80];
    snprintf(name, sizeof name, "%s port %d", port->here.device, port->here.number);
    int e = query(port->ibv, port->context, port->here.number, &attr);
    if (!e)
        e = look(port->ibv, port->context, port->here.device, port->here.number, &now);
    if (e)
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s cannot be queried: %s", name, strerror(e));
    int chosen = hoccl_gid_choose(now.gid, now.gids, now.ethernet, setting->gid, name);
    if (chosen < 0)
        return HOCCL_ERR_DEVICE;
    if (port->ibv->query_pkey(port->context, (uint8_t)now.number, setting->pkey, &pkey))
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s has no partition key %d (HOCCL_VERBS=pkey=INDEX)", name, setting->pkey);
    port->here.active = now.active; /* device and number stay, and may be read without a lock */
    port->here.mtu = now.mtu;
    port->here.lid = now.lid;
    port->here.gids = now.gids;
    memcpy(port->here.gid, now.gid, sizeof now.gid);
    port->gid = now.gid[chosen];
    port->pkey = be16toh(pkey);
    port->message_most = attr.max_msg_sz;
    return HOCCL_SUCCESS;
}

static HOCCL_Result open_device(struct hoccl_port *port)
{
    int devices = 0;
    struct ibv_device **list = port->ibv->get_device_list(&devices);
    for (int i = 0; list && i < devices && !port->context; i++)
        if (!strcmp(port->ibv->get_device_name(list[i]), port->here.device))
            port->context = port->ibv->open_device(list[i]);
    if (list)
        port->ibv->free_device_list(list);
    if (!port->context)
        return hoccl_fail(HOCCL_ERR_DEVICE, "RDMA device %s cannot be opened: %m", port->here.device);
    if (port->ibv->query_device(port->context, &port->limits))
        return hoccl_fail(HOCCL_ERR_DEVICE, "RDMA device %s does not say its limits: %m", port->here.device);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_port_open(const char *names, const char *nearest, const struct hoccl_verbs_setting *setting,
                             struct hoccl_port *out)
{
    struct hoccl_port port = {.ibv = hoccl_ibv_load()};
    struct hoccl_port_view *views = NULL;
    int n = port.ibv ? hoccl_port_list(&views) : -1;
    int chosen = n < 0 ? -1 : hoccl_port_choose(views, n, names, nearest);
    HOCCL_Result r = chosen < 0 ? HOCCL_ERR_DEVICE : HOCCL_SUCCESS;
    if (!r) {
        port.here = views[chosen];
        r = open_device(&port);
    }
    free(views);
    if (!r)
        r = hoccl_port_refresh(&port, setting);
    if (r)
        hoccl_port_close(&port);
    else
        *out = port;
    return r;
}

void hoccl_port_close(struct hoccl_port *port)
{
    if (port->context)
        port->ibv->close_device(port->context);
    port->context = NULL;
}

void hoccl_port_text(const struct hoccl_port *port, char *text, size_t bytes)
{
    char address[64];
    snprintf(text, bytes, "%s port %d (%s, %s%s)", port->here.device, port->here.number,
             hoccl_gid_type_text(port->gid.type), hoccl_gid_text(&port->gid.gid, address, sizeof address),
             port->here.active ? "" : ", down");
}
