/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a topology: read the machine, see whether its tree says anything, then choose. */
#include "topo/topo.h"

#include "base/atomic.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "topo/machine.h"

#include <stdlib.h>

/* Put the GPUs asked for into the topology, each once. */
static HOCCL_Result take_gpus(struct hoccl_topo *topo, const struct hoccl_pci *gpus, int n)
{
    if (!n)
        return HOCCL_SUCCESS;
    topo->gpu = hoccl_alloc((size_t)n * sizeof *topo->gpu, "the topology's GPUs");
    if (!topo->gpu)
        return HOCCL_ERR_MEMORY;
    for (int i = 0; i < n; i++)
        if (hoccl_topo_find(topo, &gpus[i]) < 0)
            topo->gpu[topo->gpus++].pci = gpus[i];
    return HOCCL_SUCCESS;
}

/* The tree says nothing if every GPU is as far from every other GPU and NIC, below no common switch, and the NUMA nodes
 * do not differ either: so look virtual machines that put every device on a root bus or port of its own. */
static bool is_flat(const struct hoccl_topo *topo)
{
    int devices = topo->gpus + topo->nics;
    if (!topo->gpus || devices < 2)
        return false;
    for (int nic = 0; nic < topo->nics; nic++)
        if (topo->nic[nic].numa != topo->gpu[0].numa)
            return false;
    for (int a = 0; a < topo->gpus; a++) {
        if (topo->gpu[a].numa != topo->gpu[0].numa)
            return false;
        for (int b = a + 1; b < devices; b++) {
            enum hoccl_topo_distance d = hoccl_topo_path(topo, a, b)->distance;
            if (d == HOCCL_TOPO_SAME_SWITCH || d != hoccl_topo_path(topo, 0, 1)->distance)
                return false;
        }
    }
    return true;
}

static void tell(const struct hoccl_topo *topo)
{
    static uint32_t told;
    if (topo->flat && hoccl_take(&told, 0, 1))
        hoccl_log(
            HOCCL_LOG_INFO,
            "locality unknown: the PCI tree of %s tells no difference between %d GPUs and %d NICs, so NICs are spread "
            "over ranks (HOCCL_TOPO_FILE can name a better topology)",
            topo->machine, topo->gpus, topo->nics);
}

HOCCL_Result hoccl_topo_open(const char *file, const struct hoccl_pci *gpus, int n, struct hoccl_topo **topo)
{
    struct hoccl_topo *t = hoccl_alloc(sizeof *t, "the topology");
    if (!t)
        return HOCCL_ERR_MEMORY;
    if (!file && *hoccl_settings.topo_file)
        file = hoccl_settings.topo_file;
    HOCCL_Result r = take_gpus(t, gpus, n);
    if (!r)
        r = hoccl_topo_read(file, t);
    if (r) {
        hoccl_topo_close(t);
        return r;
    }
    t->flat = is_flat(t);
    hoccl_topo_choose_symmetric(t);
    hoccl_topo_choose_nics(t, NULL);
    tell(t);
    *topo = t;
    return HOCCL_SUCCESS;
}

void hoccl_topo_close(struct hoccl_topo *topo)
{
    if (!topo)
        return;
    for (int i = 0; i < topo->gpus; i++)
        free(topo->gpu[i].cpus);
    free(topo->gpu);
    free(topo->nic);
    free(topo->path);
    free(topo);
}

int hoccl_topo_find(const struct hoccl_topo *topo, const struct hoccl_pci *pci)
{
    for (int i = 0; i < topo->gpus; i++)
        if (hoccl_pci_equal(&topo->gpu[i].pci, pci))
            return i;
    return -1;
}

enum hoccl_topo_distance hoccl_topo_gpu_gpu(const struct hoccl_topo *topo, int a, int b)
{
    return hoccl_topo_path(topo, a, b)->distance;
}

enum hoccl_topo_distance hoccl_topo_gpu_nic(const struct hoccl_topo *topo, int gpu, int nic)
{
    return hoccl_topo_path(topo, gpu, topo->gpus + nic)->distance;
}

const char *hoccl_topo_distance_text(enum hoccl_topo_distance distance)
{
    static const char *const text[] = {"same switch", "same root", "same NUMA node", "across the system"};
    return text[distance];
}
