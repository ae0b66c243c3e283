/* SPDX-License-Identifier: Apache-2.0 */
/* Who works with whom: symmetric GPUs and nearest NICs, from the distances alone.
 *
 * Distances in a tree are such that the closest free pair may always be joined first: that pairs GPUs below the
 * innermost switch before those of an outer one, and leaves at most one GPU alone below each outermost switch. */
#include "topo/machine.h"

static bool pairable(const struct hoccl_topo *topo, int a, int b)
{
    return topo->gpu[a].symmetric < 0 && topo->gpu[b].symmetric < 0 &&
           hoccl_topo_path(topo, a, b)->distance == HOCCL_TOPO_SAME_SWITCH;
}

/* The closest pair that is still free, of equal ones the first in order; false if there is none. */
static bool closest_pair(const struct hoccl_topo *topo, int *first, int *second)
{
    const struct hoccl_topo_path *best = NULL;
    for (int a = 0; a < topo->gpus; a++)
        for (int b = a + 1; b < topo->gpus; b++) {
            const struct hoccl_topo_path *p = hoccl_topo_path(topo, a, b);
            if (!pairable(topo, a, b) || (best && hoccl_topo_nearer(p, best) >= 0))
                continue;
            best = p;
            *first = a;
            *second = b;
        }
    return best;
}

void hoccl_topo_choose_symmetric(struct hoccl_topo *topo)
{
    int a, b;
    for (int i = 0; i < topo->gpus; i++)
        topo->gpu[i].symmetric = -1;
    while (closest_pair(topo, &a, &b)) {
        topo->gpu[a].symmetric = b;
        topo->gpu[b].symmetric = a;
    }
}

static const struct hoccl_topo_path *to_nic(const struct hoccl_topo *topo, int gpu, int nic)
{
    return hoccl_topo_path(topo, gpu, topo->gpus + nic);
}

/* Is NIC `a` the better one for the GPU? One made in software (Soft-RoCE) is of use only where there is no other. */
static bool better(const struct hoccl_topo *topo, int gpu, int a, int b)
{
    if (topo->nic[a].on_pci != topo->nic[b].on_pci)
        return topo->nic[a].on_pci;
    return hoccl_topo_nearer(to_nic(topo, gpu, a), to_nic(topo, gpu, b)) < 0;
}

/* Is no usable NIC better? */
static bool candidate(const struct hoccl_topo *topo, int gpu, int nic, const bool *usable)
{
    if (usable && !usable[nic])
        return false;
    for (int other = 0; other < topo->nics; other++)
        if ((!usable || usable[other]) && better(topo, gpu, other, nic))
            return false;
    return true;
}

static int candidates(const struct hoccl_topo *topo, int gpu, const bool *usable)
{
    int n = 0;
    for (int nic = 0; nic < topo->nics; nic++)
        n += candidate(topo, gpu, nic, usable);
    return n;
}

static void choose_nic(struct hoccl_topo *topo, int gpu, const bool *usable)
{
    int best = -1;
    for (int nic = 0; nic < topo->nics; nic++)
        if (candidate(topo, gpu, nic, usable) && (best < 0 || topo->nic[nic].gpus < topo->nic[best].gpus))
            best = nic;
    topo->gpu[gpu].nic = best;
    if (best >= 0)
        topo->nic[best].gpus++;
}

/* GPUs with little choice come first, so that those with more can evade them. */
void hoccl_topo_choose_nics(struct hoccl_topo *topo, const bool *usable)
{
    for (int nic = 0; nic < topo->nics; nic++)
        topo->nic[nic].gpus = 0;
    for (int n = 0; n <= topo->nics; n++)
        for (int gpu = 0; gpu < topo->gpus; gpu++)
            if (candidates(topo, gpu, usable) == n)
                choose_nic(topo, gpu, usable);
}
