/* SPDX-License-Identifier: Apache-2.0 */
/* Where this machine's GPUs and NICs stand: which of them share a PCIe switch, which GPU is whose symmetric GPU, which
 * NIC is whose nearest (paper §3.3.1). Read once, constant afterwards; hwloc stays behind machine.c.
 *
 * All ranks of a node come to the same answers if they give the same GPUs in the same order: those of the node's ranks,
 * never those that one process happens to see. */
#ifndef HOCCL_TOPO_TOPO_H
#define HOCCL_TOPO_TOPO_H

#include "hoccl.h"
#include "topo/pci.h"

#include <stdbool.h>

/* What the way between two devices passes, nearest first. */
enum hoccl_topo_distance {
    HOCCL_TOPO_SAME_SWITCH, /* a PCIe switch (or one root port): the data does not meet the CPU */
    HOCCL_TOPO_SAME_ROOT,   /* one host bridge */
    HOCCL_TOPO_SAME_NUMA,   /* host bridges of one NUMA node or socket */
    HOCCL_TOPO_SYSTEM,      /* the interconnect between sockets, or unknown */
};

struct hoccl_topo_gpu {
    struct hoccl_pci pci;
    bool found;    /* false: the topology does not have it (it is emulated, or a virtual machine hides it) */
    int numa;      /* its NUMA node as the operating system numbers them, −1 unknown */
    char *cpus;    /* the CPUs beside it, "0-15,32-47"; "" unknown */
    int symmetric; /* index of its symmetric GPU, −1 none; always mutual */
    int nic;       /* index of its NIC, −1 none */
};

struct hoccl_topo_nic {
    char name[64]; /* as libibverbs calls it */
    bool on_pci;   /* false: made in software */
    struct hoccl_pci pci;
    int numa;
    int ports, active; /* how many there are, and were active when the topology was made; 0 ports: unknown */
    int gpus;          /* how many of the GPUs use it */
};

struct hoccl_topo {
    int gpus, nics;
    struct hoccl_topo_gpu *gpu;
    struct hoccl_topo_nic *nic;
    int others;                   /* GPUs of the machine that are not among the above */
    bool flat;                    /* nothing tells one device's place from another's, as in most virtual machines */
    char machine[96];             /* whose topology this is: a host name, or the file */
    struct hoccl_topo_path *path; /* [(gpus + nics)²], GPUs first */
};

/* Read the topology from `file` (an XML file of hwloc 1 or 2; NULL: HOCCL_TOPO_FILE, or else this machine) and answer
 * for the `n` GPUs `gpus`, in this order without repetitions; n = 0: for all NVIDIA GPUs of the topology. A GPU that
 * the topology does not have is no error. Errors: ARGUMENT (a file that hwloc cannot read), SYSTEM, MEMORY. */
HOCCL_Result hoccl_topo_open(const char *file, const struct hoccl_pci *gpus, int n, struct hoccl_topo **topo);
void hoccl_topo_close(struct hoccl_topo *topo);

/* Index of the GPU, −1 if there is none. */
int hoccl_topo_find(const struct hoccl_topo *topo, const struct hoccl_pci *pci);

enum hoccl_topo_distance hoccl_topo_gpu_gpu(const struct hoccl_topo *topo, int a, int b);
enum hoccl_topo_distance hoccl_topo_gpu_nic(const struct hoccl_topo *topo, int gpu, int nic);

/* "same switch", … */
const char *hoccl_topo_distance_text(enum hoccl_topo_distance distance);

/* Choose every GPU's NIC anew among those with usable[nic] (NULL: all, as hoccl_topo_open did): a transport calls it
 * once it knows which NICs are up and wanted. The nearest; of several equally near ones the least used. */
void hoccl_topo_choose_nics(struct hoccl_topo *topo, const bool *usable);

#endif
