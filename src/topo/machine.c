/* SPDX-License-Identifier: Apache-2.0 */
/* The one file that knows hwloc. It loads this machine or an XML file, finds GPUs and NICs in the tree
 *
 *     machine ─ socket, NUMA node ─ host bridge ─ root port ─ switch ─┬─ port ─ GPU
 *                                                                     ├─ port ─ GPU
 *                                                                     └─ port ─ NIC (an OpenFabrics device below it)
 *
 * and measures the ways between them by walking up. Two devices with a common bridge whose upstream side is PCI are
 * below one switch, with a common host bridge below one root. (hwloc's own common ancestor compares depths, which are
 * special values for I/O objects.)
 *
 * Ranks of a node may be confined to different cores, and still must see the same machine: disallowed parts are kept.
 */
#include "topo/machine.h"

#include "base/error.h"

#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VENDOR_NVIDIA 0x10de
#define CLASS_DISPLAY_VGA 0x0300
#define CLASS_DISPLAY_3D 0x0302
#define PORT_ACTIVE 4 /* IBV_PORT_ACTIVE */

/* ---- loading ------------------------------------------------------------------------------------------------------
 */

/* The version that an XML file claims: 1 where none is written, 0 if it is no topology. */
static int xml_version(const char *file)
{
    char head[1024] = "";
    FILE *f = fopen(file, "re");
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f)
        fclose(f);
    head[n] = 0;
    const char *tag = strstr(head, "<topology");
    if (!tag)
        return 0;
    return !strncmp(tag, "<topology version=\"", 19) ? atoi(tag + 19) : 1;
}

static HOCCL_Result unreadable(const char *file)
{
    int version = xml_version(file);
    if (version > 2)
        return hoccl_fail(HOCCL_ERR_ARGUMENT,
                          "topology file %s: it is version %d of hwloc's XML, and the hwloc that HOCCL uses here reads "
                          "versions 1 and 2: record the machine with lstopo of hwloc 2",
                          file, version);
    return hoccl_fail(HOCCL_ERR_ARGUMENT, "topology file %s: %s: record the machine with \"lstopo FILE.xml\"", file,
                      version ? "it is damaged" : "it is no XML file of hwloc");
}

/* Keep out hwloc's plugins that would start CUDA, OpenCL or an X client, and that for PCI: without it hwloc reads PCI
 * devices from sysfs itself, which does not leak. Refusing one that is not installed is an error of no interest. */
static void keep_quiet(hwloc_topology_t t)
{
    static const char *const plugins[] = {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl", "pci"};
    for (size_t i = 0; i < sizeof plugins / sizeof *plugins; i++)
        hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugins[i]);
}

/* What to keep: bridges and PCI devices of use, and all OS devices, for NICs made in software count as unimportant. */
static int set_filters(hwloc_topology_t t)
{
    return hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) ||
           hwloc_topology_set_type_filter(t, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL) ||
           hwloc_topology_set_cache_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE) ||
           hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
}

static HOCCL_Result load_into(hwloc_topology_t t, const char *file)
{
    FILE *f = file ? fopen(file, "re") : NULL;
    if (file && !f)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "topology file %s: %m", file);
    if (f)
        fclose(f);
    keep_quiet(t);
    if (set_filters(t))
        return hoccl_fail(HOCCL_ERR_SYSTEM, "hwloc refuses its settings: %m");
    if (file && hwloc_topology_set_xml(t, file))
        return unreadable(file);
    if (!hwloc_topology_load(t))
        return HOCCL_SUCCESS;
    return file ? unreadable(file) : hoccl_fail(HOCCL_ERR_SYSTEM, "hwloc cannot read this machine's topology: %m");
}

static HOCCL_Result load(const char *file, hwloc_topology_t *out)
{
    hwloc_topology_t t;
    if (hwloc_topology_init(&t))
        return hoccl_fail(HOCCL_ERR_SYSTEM, "hwloc_topology_init: %m");
    HOCCL_Result r = load_into(t, file);
    if (r)
        hwloc_topology_destroy(t);
    else
        *out = t;
    return r;
}

/* ---- finding devices
 * ------------------------------------------------------------------------------------------------- */

static struct hoccl_pci pci_of(hwloc_obj_t o)
{
    const struct hwloc_pcidev_attr_s *p = &o->attr->pcidev;
    return (struct hoccl_pci){p->domain, p->bus, p->dev, p->func};
}

static bool is_gpu(hwloc_obj_t o)
{
    const struct hwloc_pcidev_attr_s *p = &o->attr->pcidev;
    return p->vendor_id == VENDOR_NVIDIA && (p->class_id == CLASS_DISPLAY_3D || p->class_id == CLASS_DISPLAY_VGA);
}

static bool is_nic(hwloc_obj_t o)
{
    return o->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
}

/* The one NUMA node beside an object, −1 if there are several. */
static int numa_of(hwloc_topology_t t, hwloc_obj_t o)
{
    hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(t, o);
    return hwloc_bitmap_weight(place->nodeset) == 1 ? hwloc_bitmap_first(place->nodeset) : -1;
}

/* List the machine's GPUs if the caller did not; else count those that the caller left out. */
static HOCCL_Result list_gpus(hwloc_topology_t t, struct hoccl_topo *topo)
{
    int n = 0, asked = topo->gpus;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_pcidev(t, o));)
        n += is_gpu(o);
    if (!asked && n) {
        topo->gpu = hoccl_alloc((size_t)n * sizeof *topo->gpu, "the topology's GPUs");
        if (!topo->gpu)
            return HOCCL_ERR_MEMORY;
    }
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_pcidev(t, o));) {
        struct hoccl_pci pci = pci_of(o);
        if (!is_gpu(o))
            continue;
        if (!asked)
            topo->gpu[topo->gpus++].pci = pci;
        else if (hoccl_topo_find(topo, &pci) < 0)
            topo->others++;
    }
    return HOCCL_SUCCESS;
}

/* The CPUs beside an object; "" where that would be those of a whole machine with several NUMA nodes. */
static char *cpus_of(hwloc_topology_t t, hwloc_obj_t o)
{
    char *text = NULL;
    if (!o || numa_of(t, o) < 0)
        return hoccl_alloc(1, "a GPU's CPUs");
    hwloc_bitmap_list_asprintf(&text, hwloc_get_non_io_ancestor_obj(t, o)->cpuset);
    if (!text)
        hoccl_fail(HOCCL_ERR_MEMORY, "no memory for a GPU's CPUs");
    return text;
}

static HOCCL_Result describe_gpu(hwloc_topology_t t, struct hoccl_topo_gpu *gpu, hwloc_obj_t *object)
{
    const struct hoccl_pci *p = &gpu->pci;
    hwloc_obj_t o = hwloc_get_pcidev_by_busid(t, p->domain, p->bus, p->device, p->function);
    gpu->found = o;
    gpu->numa = o ? numa_of(t, o) : -1;
    gpu->cpus = cpus_of(t, o);
    if (!gpu->cpus)
        return HOCCL_ERR_MEMORY;
    *object = o;
    return HOCCL_SUCCESS;
}

/* hwloc writes Port1State, Port2State, … */
static void count_ports(hwloc_obj_t o, struct hoccl_topo_nic *nic)
{
    const char *state;
    char key[32];
    for (int port = 1; snprintf(key, sizeof key, "Port%dState", port), (state = hwloc_obj_get_info_by_name(o, key));
         port++) {
        nic->ports = port;
        nic->active += atoi(state) == PORT_ACTIVE;
    }
}

static void describe_nic(hwloc_topology_t t, hwloc_obj_t o, struct hoccl_topo_nic *nic)
{
    hwloc_obj_t pci = o;
    while (pci && pci->type != HWLOC_OBJ_PCI_DEVICE)
        pci = pci->parent;
    snprintf(nic->name, sizeof nic->name, "%s", o->name ? o->name : "?");
    nic->numa = numa_of(t, o);
    nic->on_pci = pci;
    if (pci)
        nic->pci = pci_of(pci);
    count_ports(o, nic);
}

/* ---- the ways between them
 * ------------------------------------------------------------------------------------------- */

static bool is_below(hwloc_obj_t o, hwloc_obj_t bridge)
{
    while (o && o != bridge)
        o = o->parent;
    return o;
}

static int levels_above(hwloc_obj_t o)
{
    int n = 0;
    while ((o = o->parent))
        n++;
    return n;
}

/* The lowest bridge or place that has both below it. */
static hwloc_obj_t common_place(hwloc_obj_t a, hwloc_obj_t b)
{
    hwloc_obj_t o = a;
    while (o->type == HWLOC_OBJ_PCI_DEVICE || o->type == HWLOC_OBJ_OS_DEVICE || !is_below(b, o))
        o = o->parent;
    return o;
}

/* One of two places contains the other, and it is less than the whole of a machine with several nodes. */
static bool same_numa(hwloc_topology_t t, hwloc_obj_t a, hwloc_obj_t b)
{
    hwloc_const_nodeset_t x = hwloc_get_non_io_ancestor_obj(t, a)->nodeset;
    hwloc_const_nodeset_t y = hwloc_get_non_io_ancestor_obj(t, b)->nodeset;
    hwloc_const_nodeset_t larger = hwloc_bitmap_isincluded(x, y) ? y : x;
    if (!hwloc_bitmap_isincluded(x, y) && !hwloc_bitmap_isincluded(y, x))
        return false;
    return hwloc_bitmap_weight(larger) == 1 || !hwloc_bitmap_isequal(larger, hwloc_get_root_obj(t)->nodeset);
}

static struct hoccl_topo_path path_between(hwloc_topology_t t, hwloc_obj_t a, hwloc_obj_t b)
{
    struct hoccl_topo_path path = {HOCCL_TOPO_SYSTEM, 0};
    if (!a || !b)
        return path;
    hwloc_obj_t common = common_place(a, b);
    path.depth = levels_above(common);
    if (common->type == HWLOC_OBJ_BRIDGE && common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
        path.distance = HOCCL_TOPO_SAME_SWITCH;
    else if (common->type == HWLOC_OBJ_BRIDGE)
        path.distance = HOCCL_TOPO_SAME_ROOT;
    else if (same_numa(t, a, b))
        path.distance = HOCCL_TOPO_SAME_NUMA;
    return path;
}

static HOCCL_Result measure(hwloc_topology_t t, struct hoccl_topo *topo, hwloc_obj_t *object)
{
    size_t n = (size_t)(topo->gpus + topo->nics);
    topo->path = hoccl_alloc((n * n + !n) * sizeof *topo->path, "the topology's paths");
    if (!topo->path)
        return HOCCL_ERR_MEMORY;
    for (size_t a = 0; a < n; a++)
        for (size_t b = 0; b < n; b++)
            topo->path[a * n + b] = path_between(t, object[a], object[b]);
    return HOCCL_SUCCESS;
}

/* ---- all of it
 * ------------------------------------------------------------------------------------------------------- */

static HOCCL_Result list_nics(hwloc_topology_t t, struct hoccl_topo *topo, int n, hwloc_obj_t *object)
{
    topo->nic = hoccl_alloc((size_t)(n + !n) * sizeof *topo->nic, "the topology's NICs");
    if (!topo->nic)
        return HOCCL_ERR_MEMORY;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_osdev(t, o));) {
        if (!is_nic(o))
            continue;
        object[topo->nics] = o;
        describe_nic(t, o, &topo->nic[topo->nics++]);
    }
    return HOCCL_SUCCESS;
}

static HOCCL_Result describe(hwloc_topology_t t, struct hoccl_topo *topo)
{
    int nics = 0;
    HOCCL_Result r = list_gpus(t, topo);
    if (r)
        return r;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_osdev(t, o));)
        nics += is_nic(o);
    hwloc_obj_t *object = hoccl_alloc((size_t)(topo->gpus + nics + 1) * sizeof *object, "the topology's devices");
    if (!object)
        return HOCCL_ERR_MEMORY;
    for (int i = 0; !r && i < topo->gpus; i++)
        r = describe_gpu(t, &topo->gpu[i], &object[i]);
    if (!r)
        r = list_nics(t, topo, nics, object + topo->gpus);
    if (!r)
        r = measure(t, topo, object);
    free(object);
    return r;
}

HOCCL_Result hoccl_topo_read(const char *file, struct hoccl_topo *topo)
{
    hwloc_topology_t t = NULL;
    HOCCL_Result r = load(file, &t);
    if (r)
        return r;
    const char *host = hwloc_obj_get_info_by_name(hwloc_get_root_obj(t), "HostName");
    snprintf(topo->machine, sizeof topo->machine, "%s", file ? file : host ? host : "this machine");
    r = describe(t, topo);
    hwloc_topology_destroy(t);
    return r;
}
