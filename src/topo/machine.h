/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a machine with hwloc: inside src/topo/ only. */
#ifndef HOCCL_TOPO_MACHINE_H
#define HOCCL_TOPO_MACHINE_H

#include "topo/topo.h"

/* Of two ways of one kind that one is shorter whose ends share more: switches behind switches, nodes of one socket. */
struct hoccl_topo_path {
    enum hoccl_topo_distance distance;
    int depth; /* of the lowest bridge or place that has both below it */
};

/* Fill everything but `symmetric`, `nic` and `flat`. topo->gpu[].pci holds what was asked for; with topo->gpus 0 the
 * machine's GPUs are put there. What has been allocated stays in `topo` also on errors. */
HOCCL_Result hoccl_topo_read(const char *file, struct hoccl_topo *topo);

/* The way between two devices, GPUs counted first, then NICs. */
static inline const struct hoccl_topo_path *hoccl_topo_path(const struct hoccl_topo *topo, int a, int b)
{
    return &topo->path[a * (topo->gpus + topo->nics) + b];
}

/* Below 0: `a` is the nearer one. */
static inline int hoccl_topo_nearer(const struct hoccl_topo_path *a, const struct hoccl_topo_path *b)
{
    return a->distance != b->distance ? (int)a->distance - (int)b->distance : b->depth - a->depth;
}

/* Set every `symmetric`: choose.c. */
void hoccl_topo_choose_symmetric(struct hoccl_topo *topo);

#endif
