/* SPDX-License-Identifier: Apache-2.0 */
/* The machine: what the driver and the topology say, put together by PCI id. */
#include "hoccl_info.h"

#include "base/error.h"
#include "device/driver.h"
#include "p2p/place.h"
#include "topo/topo.h"

#include <hoccl_cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MOST_GPUS 64

/* A GPU as the driver describes it; without a driver only the PCI id is known, from the topology. */
struct gpu {
    struct hoccl_pci pci;
    char name[96], uuid[48];
    size_t memory;
};

struct machine {
    int gpus;
    struct gpu gpu[MOST_GPUS];
    bool driver;             /* the list comes from the driver, and its index is CUDA's ordinal */
    struct hoccl_topo *topo; /* NULL: not readable */
};

/* ---- what the driver says
 * -------------------------------------------------------------------------------------------- */

static void uuid_text(const CUuuid *uuid, char text[48])
{
    const unsigned char *u = (const unsigned char *)uuid->bytes;
    snprintf(text, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static HOCCL_Result ask_gpu(int ordinal, struct gpu *gpu)
{
    char pci[32];
    CUuuid uuid;
    HOCCL_Result r =
        hoccl_driver_check(cuDeviceGetName(gpu->name, sizeof gpu->name, ordinal), "name of GPU %d", ordinal);
    if (!r)
        r = hoccl_driver_check(cuDeviceGetPCIBusId(pci, sizeof pci, ordinal), "PCI id of GPU %d", ordinal);
    if (!r)
        r = hoccl_driver_check(hoccl_driver.DeviceGetUuid(&uuid, ordinal), "UUID of GPU %d", ordinal);
    if (!r)
        r = hoccl_driver_check(cuDeviceTotalMem(&gpu->memory, ordinal), "memory of GPU %d", ordinal);
    if (r)
        return r;
    uuid_text(&uuid, gpu->uuid);
    if (!hoccl_pci_parse(pci, &gpu->pci))
        return hoccl_fail(HOCCL_ERR_DEVICE, "GPU %d: the driver calls it \"%s\", which is no PCI id", ordinal, pci);
    return HOCCL_SUCCESS;
}

static HOCCL_Result ask_driver(struct machine *m)
{
    int n = 0;
    HOCCL_Result r = hoccl_driver_load();
    if (!r)
        r = hoccl_driver_check(cuDeviceGetCount(&n), "number of GPUs");
    if (r)
        return r;
    for (int i = 0; !r && i < n && i < MOST_GPUS; i++)
        r = ask_gpu(i, &m->gpu[i]);
    if (r)
        return r;
    m->gpus = n < MOST_GPUS ? n : MOST_GPUS;
    m->driver = true;
    return HOCCL_SUCCESS;
}

/* {"name", "kind": real | emulated | none, "usable", "cuda", "error"} */
static json_t *driver(struct machine *m)
{
    uint64_t work;
    int version = 0;
    HOCCL_Result r = ask_driver(m);
    const char *kind = !hoccl_cuda_driver() ? "none" : hoccl_cuda_sm_work(&work) ? "emulated" : "real";
    json_t *o = json_pack("{s:s, s:s, s:b, s:n, s:o}", "name", hoccl_cuda_driver_name(), "kind", kind, "usable", !r,
                          "cuda", "error", info_string(r ? hoccl_error_text() : NULL));
    if (!r && cuDriverGetVersion(&version) == CUDA_SUCCESS)
        json_object_set_new(o, "cuda", json_sprintf("%d.%d", version / 1000, version % 1000 / 10));
    return o;
}

/* [[true, false], …]: may row's GPU read and write column's memory? */
static json_t *peer_access(const struct machine *m)
{
    json_t *rows = json_array();
    for (int a = 0; a < m->gpus; a++) {
        json_t *row = json_array();
        for (int b = 0; b < m->gpus; b++) {
            int yes = a == b;
            if (a != b && cuDeviceCanAccessPeer(&yes, a, b) != CUDA_SUCCESS)
                yes = 0;
            json_array_append_new(row, json_boolean(yes));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

/* ---- what the topology says
 * ------------------------------------------------------------------------------------------ */

static json_t *number_or_null(int n)
{
    return n < 0 ? json_null() : json_integer(n);
}

/* The topology's index of a GPU, and the other way round: several devices of CUDA can be one GPU (MIG). */
static int in_topo(const struct machine *m, int gpu)
{
    return m->topo ? hoccl_topo_find(m->topo, &m->gpu[gpu].pci) : -1;
}

static int of_topo(const struct machine *m, int index)
{
    for (int i = 0; index >= 0 && i < m->gpus; i++)
        if (in_topo(m, i) == index)
            return i;
    return -1;
}

/* {"machine", "locality": known | unknown, "other_gpus", "error"} */
static json_t *topology(struct machine *m, const char *file)
{
    struct hoccl_pci pci[MOST_GPUS];
    for (int i = 0; i < m->gpus; i++)
        pci[i] = m->gpu[i].pci;
    if (hoccl_topo_open(file, pci, m->gpus, &m->topo))
        return json_pack("{s:n, s:s, s:i, s:o}", "machine", "locality", "unknown", "other_gpus", 0, "error",
                         info_string(hoccl_error_text()));
    for (int i = m->gpus; i < m->topo->gpus && i < MOST_GPUS; i++, m->gpus++)
        m->gpu[i].pci = m->topo->gpu[i].pci;
    return json_pack("{s:o, s:s, s:i, s:n}", "machine", info_string(m->topo->machine), "locality",
                     m->topo->flat ? "unknown" : "known", "other_gpus", m->topo->others, "error");
}

static json_t *distance(bool known, enum hoccl_topo_distance d)
{
    return info_string(known ? hoccl_topo_distance_text(d) : NULL);
}

/* Where a GPU stands and with whom it works, added to its description. */
static void add_place(json_t *o, const struct machine *m, int gpu)
{
    int t = in_topo(m, gpu);
    const struct hoccl_topo_gpu *g = t < 0 ? NULL : &m->topo->gpu[t];
    bool nic = g && g->nic >= 0;
    json_object_set_new(o, "in_topology", json_boolean(g && g->found));
    json_object_set_new(o, "numa", number_or_null(g ? g->numa : -1));
    json_object_set_new(o, "cpus", info_string(g && *g->cpus ? g->cpus : NULL));
    json_object_set_new(o, "symmetric", number_or_null(g ? of_topo(m, g->symmetric) : -1));
    json_object_set_new(o, "nic", info_string(nic ? m->topo->nic[g->nic].name : NULL));
    json_object_set_new(o, "nic_distance",
                        distance(nic && g->found, nic ? hoccl_topo_gpu_nic(m->topo, t, g->nic) : HOCCL_TOPO_SYSTEM));
}

/* {"transport", "nic", "nic_reason", "place": gpu | hidden | host, "gpu", "flush", "why"}: where the slots for transfers to other
 * nodes would be made, if the driver and the NIC agree when it comes to that ("hidden": on a GPU that is not shown here, if one of
 * the ranks is on it); null: without a driver or a transport. */
static json_t *slots(const struct machine *m, const struct hoccl_transport *t, int gpu)
{
    struct hoccl_device device = {.ordinal = gpu};
    struct hoccl_place p;
    if (!m->driver || !t || hoccl_driver.DeviceGetPCIBusId(device.pci, sizeof device.pci, gpu))
        return json_null();
    hoccl_place_find(t, &device, gpu, &p);
    return json_pack("{s:s, s:o, s:o, s:s, s:o, s:b, s:o}", "transport", t->name, "nic", info_string(*p.nic ? p.nic : NULL),
                     "nic_reason", info_string(*p.nic ? p.how : NULL), "place", p.other >= 0 ? "gpu" : *p.hidden ? "hidden" : "host", "gpu",
                     number_or_null(p.other), "flush", p.other >= 0 && p.flush, "why", info_string(p.other < 0 ? p.why : NULL));
}

static json_t *gpus(const struct machine *m)
{
    const struct hoccl_transport *t = m->driver ? hoccl_transport_choose() : NULL;
    json_t *all = json_array();
    for (int i = 0; i < m->gpus; i++) {
        const struct gpu *g = &m->gpu[i];
        char pci[HOCCL_PCI_TEXT];
        hoccl_pci_format(&g->pci, pci);
        json_t *o = json_pack("{s:i, s:o, s:o, s:s, s:o}", "index", i, "name", info_string(m->driver ? g->name : NULL),
                              "uuid", info_string(m->driver ? g->uuid : NULL), "pci", pci, "memory",
                              m->driver ? json_integer((json_int_t)g->memory) : json_null());
        add_place(o, m, i);
        json_object_set_new(o, "slots", slots(m, t, i));
        json_array_append_new(all, o);
    }
    return all;
}

/* {"gpu_gpu": [[…]], "gpu_nic": [[…]]}, each a text, or null: one GPU, or not in the topology. */
static json_t *distances(const struct machine *m)
{
    json_t *to_gpus = json_array(), *to_nics = json_array();
    for (int a = 0; a < m->gpus; a++) {
        json_t *row = json_array(), *nics = json_array();
        int x = in_topo(m, a);
        bool found = x >= 0 && m->topo->gpu[x].found;
        for (int b = 0; b < m->gpus; b++) {
            int y = in_topo(m, b);
            bool known = found && y >= 0 && x != y && m->topo->gpu[y].found;
            json_array_append_new(row, distance(known, known ? hoccl_topo_gpu_gpu(m->topo, x, y) : HOCCL_TOPO_SYSTEM));
        }
        for (int n = 0; x >= 0 && n < m->topo->nics; n++)
            json_array_append_new(nics, distance(found, hoccl_topo_gpu_nic(m->topo, x, n)));
        json_array_append_new(to_gpus, row);
        json_array_append_new(to_nics, nics);
    }
    return json_pack("{s:o, s:o}", "gpu_gpu", to_gpus, "gpu_nic", to_nics);
}

static json_t *nics(const struct machine *m)
{
    json_t *all = json_array();
    for (int i = 0; m->topo && i < m->topo->nics; i++) {
        const struct hoccl_topo_nic *n = &m->topo->nic[i];
        char pci[HOCCL_PCI_TEXT];
        hoccl_pci_format(&n->pci, pci);
        json_array_append_new(all, json_pack("{s:o, s:o, s:o, s:o, s:o, s:i}", "name", info_string(n->name), "pci",
                                             info_string(n->on_pci ? pci : NULL), "numa", number_or_null(n->numa),
                                             "ports", number_or_null(n->ports ? n->ports : -1), "active_ports",
                                             number_or_null(n->ports ? n->active : -1), "gpus", n->gpus));
    }
    return all;
}

int info_machine(json_t *document, const char *file)
{
    static struct machine m; /* large */
    json_object_set_new(document, "driver", file ? json_null() : driver(&m));
    json_object_set_new(document, "topology", topology(&m, file));
    json_object_set_new(document, "gpus", gpus(&m));
    json_object_set_new(document, "peer_access", m.driver ? peer_access(&m) : json_null());
    json_object_set_new(document, "distances", distances(&m));
    json_object_set_new(document, "nics", nics(&m));
    int status = m.topo ? 0 : -1;
    hoccl_topo_close(m.topo);
    return status;
}
