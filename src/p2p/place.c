/* SPDX-License-Identifier: Apache-2.0 */
/* See place.h. */
#include "p2p/place.h"

#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "p2p/gpu.h"
#include "p2p/order.h"
#include "p2p/reach.h"
#include "p2p/wire.h"
#include "topo/topo.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NICS_MOST 64

/* ---- the NIC ----------------------------------------------------------------------------------------------------- */

static bool is_one_of(const char *name, char (*names)[HOCCL_NIC_NAME], int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

/* The machine does not change, so it is read once (a read takes tens of milliseconds): all its GPUs, so that every process comes
 * to the same answers. Under lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hoccl_topo *machine;              /* NULL: not read, or not readable */
static bool machine_read;
static char machine_file[HOCCL_SETTING_TEXT];   /* the setting that it was read by */

static struct hoccl_topo *read_machine(void)
{
    if (machine_read && !strcmp(machine_file, hoccl_settings.topo_file))
        return machine;
    hoccl_topo_close(machine);
    machine = NULL;
    machine_read = true;
    memcpy(machine_file, hoccl_settings.topo_file, sizeof machine_file);
    if (hoccl_topo_open(NULL, NULL, 0, &machine)) {
        hoccl_log(HOCCL_LOG_WARN, "NICs and symmetric GPUs are not chosen by topology: %s", hoccl_error_text());
        machine = NULL;
    }
    return machine;
}

/* The topology, its NICs chosen among those that the transport can use. */
static struct hoccl_topo *read_topology(char (*nics)[HOCCL_NIC_NAME], int n)
{
    struct hoccl_topo *topo = read_machine();
    bool usable[NICS_MOST] = {false};
    for (int i = 0; topo && i < topo->nics && i < NICS_MOST; i++)
        usable[i] = is_one_of(topo->nic[i].name, nics, n);
    if (topo && topo->nics <= NICS_MOST)
        hoccl_topo_choose_nics(topo, usable);
    return topo;
}

/* The nearest; where that is unknown, ranks take turns. */
static void find_nic(const struct hoccl_topo *topo, int gpu, char (*nics)[HOCCL_NIC_NAME], int n, int turn, struct hoccl_place *p)
{
    int nic = gpu < 0 ? -1 : topo->gpu[gpu].nic;
    if (nic >= 0) {
        snprintf(p->nic, sizeof p->nic, "%s", topo->nic[nic].name);
        snprintf(p->how, sizeof p->how, "%s", topo->flat ? "locality unknown, spread over GPUs"
                                                         : hoccl_topo_distance_text(hoccl_topo_gpu_nic(topo, gpu, nic)));
    } else if (n) {
        snprintf(p->nic, sizeof p->nic, "%s", nics[turn % n]);
        snprintf(p->how, sizeof p->how, n > 1 ? "locality unknown, spread over ranks" : "the only one");
    }
}

/* ---- the symmetric GPU ------------------------------------------------------------------------------------------- */

/* The device of that PCI address that this process sees; −1: none. */
static int ordinal_of(const struct hoccl_pci *pci)
{
    char text[32];
    struct hoccl_pci other;
    int n = 0;
    if (hoccl_driver.DeviceGetCount(&n))
        return -1;
    for (int i = 0; i < n; i++)
        if (!hoccl_driver.DeviceGetPCIBusId(text, sizeof text, i) && hoccl_pci_parse(text, &other) && hoccl_pci_equal(&other, pci))
            return i;
    return -1;
}

static bool has(int ordinal, CUdevice_attribute attribute)
{
    int value = 0;
    return !hoccl_driver.DeviceGetAttribute(&value, attribute, ordinal) && value;
}

void hoccl_place_try(const struct hoccl_transport *t, const struct hoccl_device *d, int other, struct hoccl_place *p)
{
    int reach = 0;
    p->flush = hoccl_order_demands_flush(other, false) && hoccl_settings.test_break != HOCCL_BREAK_NO_FLUSH;
    snprintf(p->name, sizeof p->name, "GPU %d", other);
    if (hoccl_driver.DeviceCanAccessPeer(&reach, d->ordinal, other) || !reach)
        snprintf(p->why, sizeof p->why, "GPU %d cannot access GPU %d", d->ordinal, other);
    else if (!has(other, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED))
        snprintf(p->why, sizeof p->why, "GPU %d has no GPUDirect RDMA", other);
    else if (p->flush && !t->flush)
        snprintf(p->why, sizeof p->why, "what is written into GPU %d must be flushed, and %s cannot do that", other, t->name);
    else
        p->other = other;
}

bool hoccl_place_accept(const struct hoccl_transport *t, const struct hoccl_loan *loan, struct hoccl_place *p)
{
    p->flush = loan->flush && hoccl_settings.test_break != HOCCL_BREAK_NO_FLUSH;
    snprintf(p->name, sizeof p->name, "GPU %s of rank %d", p->hidden, loan->rank);
    bool good = loan->given && (!p->flush || t->flush);
    if (!loan->given)
        snprintf(p->why, sizeof p->why, "the symmetric %s gives no memory: %s", p->name, loan->why);
    else if (!good)
        snprintf(p->why, sizeof p->why, "what is written into %s must be flushed, and %s cannot do that", p->name, t->name);
    return good;
}

static int find_other(const struct hoccl_topo *topo, int gpu, struct hoccl_place *p)
{
    int symmetric = gpu < 0 ? -1 : topo->gpu[gpu].symmetric;
    if (symmetric < 0) {
        snprintf(p->why, sizeof p->why, gpu < 0 || topo->flat
                 ? "where this GPU stands on the PCI bus is unknown (HOCCL_TOPO_FILE can name a topology)"
                 : "no other GPU is below this GPU's PCIe switch");
        return -1;
    }
    int other = ordinal_of(&topo->gpu[symmetric].pci);
    if (other >= 0)
        return other;
    hoccl_pci_format(&topo->gpu[symmetric].pci, p->hidden);
    snprintf(p->why, sizeof p->why, "the symmetric GPU %s is hidden from this process and no rank has it: let every rank see all GPUs "
             "(CUDA_VISIBLE_DEVICES, Slurm's --gpus-per-task) and choose its own by its local rank", p->hidden);
    return -1;
}

/* Under lock. */
static void find(const struct hoccl_transport *t, const struct hoccl_device *d, int turn, struct hoccl_place *p)
{
    char nics[NICS_MOST][HOCCL_NIC_NAME];
    struct hoccl_pci pci;
    int n = t->nics ? t->nics(nics, NICS_MOST) : 0;
    const struct hoccl_topo *topo = n || t->takes_gpu ? read_topology(nics, n) : NULL;
    int gpu = topo && hoccl_pci_parse(d->pci, &pci) ? hoccl_topo_find(topo, &pci) : -1;
    find_nic(topo, gpu, nics, n, turn, p);
    if (!t->takes_gpu) {
        snprintf(p->why, sizeof p->why, "%s takes no memory of GPUs", t->name);
        return;
    }
    int other = find_other(topo, gpu, p);
    if (other >= 0)
        hoccl_place_try(t, d, other, p);
}

void hoccl_place_find(const struct hoccl_transport *transport, const struct hoccl_device *device, int turn,
                      struct hoccl_place *place)
{
    *place = (struct hoccl_place){.other = -1};
    pthread_mutex_lock(&lock);
    find(transport, device, turn, place);
    pthread_mutex_unlock(&lock);
}

/* ---- the pools --------------------------------------------------------------------------------------------------- */

/* How a transport may get at memory of a GPU, best first. */
static const struct way {
    const char *name;
    bool dmabuf;
    unsigned long long flags;
} ways[] = {
    {"dma-buf over PCIe", true, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE},
    {"dma-buf", true, 0},
    {"peer memory", false, 0},
};

#define WAYS HOCCL_PLACE_WAYS
_Static_assert(WAYS == sizeof ways / sizeof *ways, "every way can be named");

/* What has been said once is not said again: place `bit` of what this wire has told. */
static void tell_once(struct hoccl_wire *w, unsigned bit, const char *name)
{
    if (!(w->told & 1u << bit))
        hoccl_log(HOCCL_LOG_INFO, "slots on %s: not by %s: %s", w->place.name, name, hoccl_error_text());
    w->told |= 1u << bit;
}

HOCCL_Result hoccl_place_register(struct hoccl_wire *wire, unsigned way, struct hoccl_region_source source, struct hoccl_region *region)
{
    const struct way *by = &ways[way];
    bool own = by->dmabuf && source.dmabuf < 0;
    if (own) {
        CUresult e = hoccl_driver.MemGetHandleForAddressRange(&source.dmabuf, (CUdeviceptr)(uintptr_t)source.address, source.bytes,
                                                              CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, by->flags);
        if (e)
            return hoccl_fail(HOCCL_ERR_DEVICE, "the driver gives none of its memory (%s)%s", hoccl_driver_error(e),
                              by->flags ? "" : ": that takes NVIDIA's open kernel modules and Linux 5.12");
    }
    HOCCL_Result r = wire->transport->region_add(wire->endpoint, &source, region);
    if (own)
        close(source.dmabuf);
    return r;
}

/* By the first way that works; of lent memory with the dma-bufs that came with it. */
static HOCCL_Result register_pool(struct hoccl_wire *w, struct hoccl_pool *pool, const char **name)
{
    HOCCL_Result r = HOCCL_ERR_DEVICE;
    for (unsigned i = 0; i < WAYS && r; i++) {
        struct hoccl_region_source source = hoccl_pool_source(pool);
        if (w->loan.given && ways[i].dmabuf)
            source.dmabuf = w->loan.dmabuf[i][pool == &w->in];
        r = hoccl_place_register(w, i, source, &pool->region);
        if (r)
            tell_once(w, i, ways[i].name);
        else
            *name = ways[i].name;
    }
    return r;
}

static HOCCL_Result open_both(struct hoccl_wire *w, enum hoccl_pool_place place)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    const struct hoccl_device *device = &w->gpu->device;
    if (!hoccl_pool_is_open(&w->out))
        r = hoccl_pool_open(&w->out, device, place, w->place.other, "what is sent to other nodes");
    if (!r && !hoccl_pool_is_open(&w->in))
        r = hoccl_pool_open(&w->in, device, place, w->place.other, "what comes from other nodes");
    return r;
}

/* Pools that an earlier endpoint had on a GPU are not for this one. */
static void leave_gpu(struct hoccl_pool *pool)
{
    if (hoccl_pool_is_open(pool) && pool->place == HOCCL_POOL_GPU)
        hoccl_pool_close(pool);
}

static HOCCL_Result open_lent(struct hoccl_wire *w)
{
    const struct hoccl_device *device = &w->gpu->device;
    leave_gpu(&w->out);
    leave_gpu(&w->in);
    HOCCL_Result r = hoccl_pool_open_lent(&w->out, device, w->loan.memory[0], w->loan.bytes);
    return r ? r : hoccl_pool_open_lent(&w->in, device, w->loan.memory[1], w->loan.bytes);
}

/* Memory there that answers. */
static HOCCL_Result open_there(struct hoccl_wire *w)
{
    struct hoccl_gpu *g = w->gpu;
    HOCCL_Result r = w->loan.given ? open_lent(w) : open_both(w, HOCCL_POOL_GPU);
    if (!r && !hoccl_reach_confirm(&g->device, &g->gate, &g->flags, w->in.memory.address))
        r = hoccl_fail(HOCCL_ERR_DEVICE, "what GPU %d pushes there does not come back, although the driver says that it can access it: "
                       "an IOMMU or PCIe access control (ACS) may be in the way", g->device.ordinal);
    return r;
}

/* Memory on a GPU may be freed at any time, but what a copy that hangs still uses is not. */
static HOCCL_Result place_on_gpu(struct hoccl_wire *w)
{
    const char *out = "", *in = "";
    HOCCL_Result r = open_there(w);
    if (r)
        tell_once(w, WAYS, "memory there");
    if (!r)
        r = register_pool(w, &w->out, &out);
    if (r)
        goto close;
    r = register_pool(w, &w->in, &in);
    if (r)
        goto unregister;
    snprintf(w->slots, sizeof w->slots, "on %s by %s%s", w->place.name, in, w->place.flush ? ", flushed" : "");
    return HOCCL_SUCCESS;
unregister:
    w->transport->region_remove(w->endpoint, &w->out.region);
close:
    hoccl_pool_close(&w->out);
    hoccl_pool_close(&w->in);
    snprintf(w->place.why, sizeof w->place.why, "%s will not do, as said before", w->place.name);
    return r;
}

static HOCCL_Result place_in_host_memory(struct hoccl_wire *w)
{
    leave_gpu(&w->out);
    leave_gpu(&w->in);
    HOCCL_Result r = open_both(w, HOCCL_POOL_HOST);
    if (r)
        return r;
    struct hoccl_region_source out = hoccl_pool_source(&w->out), in = hoccl_pool_source(&w->in);
    r = w->transport->region_add(w->endpoint, &out, &w->out.region);
    if (r)
        return r;
    r = w->transport->region_add(w->endpoint, &in, &w->in.region);
    if (r)
        w->transport->region_remove(w->endpoint, &w->out.region);
    else
        snprintf(w->slots, sizeof w->slots, "in host memory (%.*s)", (int)sizeof w->slots - 20, w->place.why);
    return r;
}

/* Pushes that gates stop would stop the slots too. */
static bool try_gpu(struct hoccl_wire *w)
{
    if ((w->place.other < 0 && !w->loan.given) || (hoccl_pool_is_open(&w->in) && w->in.place == HOCCL_POOL_HOST))
        return false;
    if (!hoccl_gate_bars_push(&w->gpu->gate))
        return true;
    snprintf(w->place.why, sizeof w->place.why, "gates are pushes");
    return false;
}

HOCCL_Result hoccl_place_pools(struct hoccl_wire *wire)
{
    if (try_gpu(wire) && !place_on_gpu(wire))
        return HOCCL_SUCCESS;
    wire->place.flush = false;
    return place_in_host_memory(wire);
}
