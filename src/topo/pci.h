/* SPDX-License-Identifier: Apache-2.0 */
/* The name of a device on the PCI bus: the one name of a GPU that CUDA, hwloc and sysfs share. */
#ifndef HOCCL_TOPO_PCI_H
#define HOCCL_TOPO_PCI_H

#include <stdbool.h>
#include <stdint.h>

struct hoccl_pci {
    uint32_t domain;
    uint8_t bus, device, function;
};

#define HOCCL_PCI_TEXT 20

/* "0000:5d:00.0", also in capitals, with a longer domain, or without one; false if it is none of these. */
bool hoccl_pci_parse(const char *text, struct hoccl_pci *pci);

/* "0000:5d:00.0" */
void hoccl_pci_format(const struct hoccl_pci *pci, char text[HOCCL_PCI_TEXT]);

bool hoccl_pci_equal(const struct hoccl_pci *a, const struct hoccl_pci *b);

#endif
