/* SPDX-License-Identifier: Apache-2.0 */
/* What near.c writes into: registered memory of the host and of GPUs, and how bytes get from one into another. */
#ifndef CONFORM_NEAR_BUS_H
#define CONFORM_NEAR_BUS_H

#include "base/list.h"
#include "near.h"

#define NEAR_KEY 0x6e656172u

/* Regions of all endpoints. */
struct near_region {
    struct hoccl_list link;
    uint64_t address;
    size_t bytes;
    bool gpu;
    bool unordered; /* the GPU that reads it may see a NIC's writes late */
};

HOCCL_Result near_region_add(struct hoccl_endpoint *e, const struct hoccl_region_source *source, struct hoccl_region *region);
void near_region_remove(struct hoccl_endpoint *e, struct hoccl_region *region);

/* What lies at that address; NULL: nothing that is registered. */
const struct near_region *near_region_at(uint64_t address);

/* By memcpy, or by a copy engine if an end is on a GPU; done when it returns. One thread at a time. */
void near_copy(const struct hoccl_write *write);

#endif
