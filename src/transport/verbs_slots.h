/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory for frames, cut into slots: taken, given back, grown a slab at a time up to a fixed most. */
#ifndef HOCCL_TRANSPORT_VERBS_SLOTS_H
#define HOCCL_TRANSPORT_VERBS_SLOTS_H

#include "transport/ibv.h"

#define HOCCL_SLOT_BYTES 576 /* a frame, in whole cache lines */
#define HOCCL_SLAB_SLOTS 256
#define HOCCL_SLABS_MAX 64

struct hoccl_slots {
    const struct hoccl_ibv *ibv;
    struct ibv_pd *pd;
    int most, made, slabs; /* slots at most, slots and slabs now */
    int spare;             /* how many are on the stack */
    int *stack;            /* of `most` */
    struct {
        char *memory;
        struct ibv_mr *mr;
    } slab[HOCCL_SLABS_MAX];
};

/* The first slab is made at once, so that a limit of locked memory shows early. */
HOCCL_Result hoccl_slots_init(struct hoccl_slots *slots, const struct hoccl_ibv *ibv, struct ibv_pd *pd, int most);
void hoccl_slots_fini(struct hoccl_slots *slots);

/* A slot, or −1: all are in use, or no more memory can be registered (error set). */
int hoccl_slots_take(struct hoccl_slots *slots);
void hoccl_slots_give(struct hoccl_slots *slots, int slot);

void *hoccl_slots_at(const struct hoccl_slots *slots, int slot);
struct ibv_sge hoccl_slots_sge(const struct hoccl_slots *slots, int slot, size_t bytes);

#endif
