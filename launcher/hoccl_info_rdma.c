/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA ports as the transport verbs sees them. */
#include "hoccl_info.h"

#include "base/error.h"
#include "base/setting.h"
#include "transport/port.h"

#include <stdlib.h>

/* [{"index", "type", "address"}] */
static json_t *addresses(const struct hoccl_port_view *v)
{
    json_t *all = json_array();
    char text[64];
    for (int i = 0; i < v->gids; i++)
        json_array_append_new(all, json_pack("{s:i, s:s, s:s}", "index", v->gid[i].index, "type",
                                             hoccl_gid_type_text(v->gid[i].type), "address",
                                             hoccl_gid_text(&v->gid[i].gid, text, sizeof text)));
    return all;
}

/* The entry that HOCCL_VERBS names or that is best; null: none will do. */
static json_t *gid_index(const struct hoccl_port_view *v, const struct hoccl_verbs_setting *setting)
{
    int chosen = hoccl_gid_choose(v->gid, v->gids, v->ethernet, setting->gid, v->device);
    return chosen < 0 ? json_null() : json_integer(v->gid[chosen].index);
}

/* {"error", "used", "ports": [{"device", "port", "interface", "active", "layer", "mtu", "lid", "gid", "gids"}]}; "used":
 * place of the port that is used where no GPU's place says otherwise, or null. */
void info_rdma(json_t *document)
{
    struct hoccl_port_view *views = NULL;
    struct hoccl_verbs_setting setting = {.gid = -1};
    json_t *ports = json_array();
    HOCCL_Result r = hoccl_verbs_setting_read(hoccl_settings.verbs, hoccl_settings.timeout, &setting);
    int n = r ? 0 : hoccl_port_list(&views), used = n > 0 ? hoccl_port_choose(views, n, hoccl_settings.nic, NULL) : -1;
    json_t *error = info_string(used < 0 ? hoccl_error_text() : NULL);
    for (int i = 0; i < n; i++)
        json_array_append_new(ports, json_pack("{s:s, s:i, s:s, s:b, s:s, s:i, s:i, s:o, s:o}", "device", views[i].device,
                                               "port", views[i].number, "interface", views[i].interface, "active",
                                               views[i].active, "layer", views[i].ethernet ? "Ethernet" : "InfiniBand",
                                               "mtu", 128 << (int)views[i].mtu, "lid", views[i].lid, "gid",
                                               gid_index(&views[i], &setting), "gids", addresses(&views[i])));
    free(views);
    json_object_set_new(
        document, "rdma",
        json_pack("{s:o, s:o, s:o}", "error", error, "used", used < 0 ? json_null() : json_integer(used), "ports", ports));
}
