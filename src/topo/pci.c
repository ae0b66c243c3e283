/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing PCI names. CUDA writes capitals, sysfs and hwloc do not, so names are compared as numbers. */
#include "topo/pci.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool hoccl_pci_parse(const char *text, struct hoccl_pci *pci)
{
    unsigned domain = 0, bus, device, function;
    int end = 0;
    if (text[strspn(text, "0123456789abcdefABCDEF:.")])
        return false;
    if (sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4) {
        domain = 0;
        if (sscanf(text, "%2x:%2x.%1x%n", &bus, &device, &function, &end) != 3)
            return false;
    }
    if (text[end] || device > 0x1f || function > 7)
        return false;
    *pci = (struct hoccl_pci){domain, (uint8_t)bus, (uint8_t)device, (uint8_t)function};
    return true;
}

void hoccl_pci_format(const struct hoccl_pci *pci, char text[HOCCL_PCI_TEXT])
{
    snprintf(text, HOCCL_PCI_TEXT, "%04" PRIx32 ":%02x:%02x.%x", pci->domain, pci->bus, pci->device, pci->function & 7);
}

bool hoccl_pci_equal(const struct hoccl_pci *a, const struct hoccl_pci *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device && a->function == b->function;
}
