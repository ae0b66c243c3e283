/* SPDX-License-Identifier: Apache-2.0 */
/* Staging: a place that is on neither buffer, through which bytes pass when neither end can open the other's memory, or
 * when both are on one GPU (a copy within a GPU would run on its SMs).
 *
 *   HOST  slots in the receiver's board: the sender's engine copies D2H, the receiver's H2D; any two ranks of a node
 *   GPU   slots on a GPU that is neither end's, but that the receiver's process sees: the sender pushes there, the
 *         receiver pulls. The sender is sent its descriptor at first use, and names in its offers what it still has
 *         mapped. Copies between ranks that share a GPU object (self.c) use the memory as it is
 *
 * The receiver gives the slots, to flows only whose both ends are running, so every slot given drains and a fixed pool
 * serves any number of flows. */
#ifndef HOCCL_P2P_STAGE_H
#define HOCCL_P2P_STAGE_H

#include "device/device.h"
#include "p2p/mailbox.h"
#include "stream/gate.h"

enum hoccl_stage_kind { HOCCL_STAGE_HOST, HOCCL_STAGE_GPU };

enum hoccl_stage_state { HOCCL_STAGE_NEW, HOCCL_STAGE_PREPARING, HOCCL_STAGE_READY, HOCCL_STAGE_FAILED };

/* A staging area as one GPU object uses it. NEW ──(progress thread)──▶ PREPARING ──(submitter)──▶ READY | FAILED */
struct hoccl_stage_view {
    enum hoccl_stage_kind kind;
    uint32_t state;
    CUresult result;    /* why FAILED; 0: no host memory */
    char *host;         /* HOST: where it is mapped */
    size_t bytes;
    int fd;             /* HOST, of the own board: where its memory is reserved; else −1 */
    const struct hoccl_device *device;
    int other;          /* GPU: ordinal of the GPU it is on; −1: there is none */
    CUuuid uuid;        /* GPU: that GPU's */
    const struct hoccl_gate *gate;   /* GPU: with the next one, to see whether bytes arrive there (reach.h) */
    struct hoccl_flag_pool *flags;
    bool confirmed;     /* GPU: they do, as far as that could be tried */
    uint64_t key;       /* GPU: the driver's id of the memory, by which other processes know it; submitter, before READY */
    struct hoccl_device_memory memory; /* GPU */
};

/* Slots that are free, of an area this rank or GPU object owns. */
struct hoccl_stage {
    struct hoccl_stage_view view;
    uint32_t free; /* bit i: slot i */
};

#define HOCCL_GPU_STAGE_BYTES ((size_t)4 << 20) /* a slot on a GPU: larger, for its engines are faster */
#define HOCCL_GPU_STAGE_SLOTS 8

void hoccl_stage_init_host(struct hoccl_stage *stage, char *host, int fd);
void hoccl_stage_init_gpu(struct hoccl_stage *stage, const struct hoccl_device *device, int other,
                          const struct hoccl_gate *gate, struct hoccl_flag_pool *flags);

/* Take up to `most` runs of `span` slots (a power of two), by the first of each; the number taken, 0 if none is free. */
unsigned hoccl_stage_take(struct hoccl_stage *stage, unsigned most, unsigned span, uint16_t *slots);
void hoccl_stage_give(struct hoccl_stage *stage, unsigned count, unsigned span, const uint16_t *slots);

/* Bytes of a slot; the first slot's address as a copy needs it (a host or device address). */
size_t hoccl_stage_slot_bytes(enum hoccl_stage_kind kind);
CUdeviceptr hoccl_stage_base(const struct hoccl_stage_view *view);

/* Submitter: reserve and register the host area, or make the memory on the other GPU. */
void hoccl_stage_view_prepare(struct hoccl_stage_view *view);

/* Memory on another GPU; nothing of it may be in use. Its calls return also while streams are parked. */
void hoccl_stage_close_gpu(struct hoccl_stage *stage);

/* A board's mapping is not needed any more: unregister what the driver has of it, then unmap, at the next quiet moment.
 * `ready`: its staging area was registered here. */
void hoccl_stage_discard(struct hoccl_board *board, size_t bytes, bool ready);

#endif
