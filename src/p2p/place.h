/* SPDX-License-Identifier: Apache-2.0 */
/* Where the slots of a GPU lie, and which NIC carries them (paper §3.3.1): best of all next to the NIC, on the symmetric GPU ḡ,
 * another one below the same PCIe switch. Only engines and the NIC touch them there: no context is made on ḡ, and the host's
 * memory is left alone.
 *
 *   the topology has this GPU and a ḡ ─▶ ḡ is visible here, within reach, has GPUDirect RDMA, and what a NIC writes into it
 *   can be flushed where that is demanded ─▶ memory can be made there, and what is pushed there comes back ─▶ the transport
 *   registers it: as a dma-buf over PCIe, as a dma-buf, by its address (a peer-memory module)
 *
 * Where ḡ is hidden from this process, a rank on ḡ makes the memory (loan.h); the rest is the same.
 *
 * Each step that fails is said once, with what can be done, and the slots lie in pinned host memory. */
#ifndef HOCCL_P2P_PLACE_H
#define HOCCL_P2P_PLACE_H

#include "device/device.h"
#include "p2p/loan.h"
#include "topo/pci.h"
#include "transport/transport.h"

struct hoccl_wire;

struct hoccl_place {
    char nic[HOCCL_NIC_NAME]; /* the NIC to ask for, "" none: the transport's own choice */
    char how[96];             /* why this one */
    int other;                /* ḡ, an ordinal; −1: slots are in host memory, */
    char why[256];            /* for this reason, */
    char hidden[HOCCL_PCI_TEXT]; /* unless it is that ḡ, at this PCI address, is hidden, and a loan comes; "" it is not */
    char name[64];            /* ḡ in words */
    bool flush;               /* on ḡ: what has arrived there is flushed before it is read */
};

/* What can be said for this GPU without making anything. `turn` spreads ranks over NICs whose place is unknown. */
void hoccl_place_find(const struct hoccl_transport *transport, const struct hoccl_device *device, int turn,
                      struct hoccl_place *place);

/* A rank on the hidden ḡ has given memory there, or refuses: may the slots lie in it? If not, the place says why. */
bool hoccl_place_accept(const struct hoccl_transport *transport, const struct hoccl_loan *loan, struct hoccl_place *place);

/* The GPU `other` (an ordinal) in place of ḡ: other, flush, or why not. */
void hoccl_place_try(const struct hoccl_transport *transport, const struct hoccl_device *device, int other,
                     struct hoccl_place *place);

/* Register memory of a GPU in one of these ways, the best first. `source` says what: by address, or with a dma-buf of this kind, which
 * stays the caller's. The error says why not. */
#define HOCCL_PLACE_WAYS 3u
HOCCL_Result hoccl_place_register(struct hoccl_wire *wire, unsigned way, struct hoccl_region_source source, struct hoccl_region *region);

/* Make the wire's pools and register them, on place.other or else in host memory; wire->slots says where they are. Under the
 * GPU table's lock, the context current. */
HOCCL_Result hoccl_place_pools(struct hoccl_wire *wire);

#endif
