/* SPDX-License-Identifier: Apache-2.0 */
/* A slot's number is its slab's times the slots of a slab, plus its place there; free ones stand on a stack. */
#include "transport/verbs_slots.h"

#include "base/error.h"
#include "transport/verbs_region.h"

#include <stdlib.h>
#include <string.h>

static HOCCL_Result grow(struct hoccl_slots *s)
{
    size_t bytes = (size_t)HOCCL_SLAB_SLOTS * HOCCL_SLOT_BYTES;
    struct ibv_mr *mr;
    char *memory = aligned_alloc(4096, bytes);
    if (!memory)
        return hoccl_fail(HOCCL_ERR_MEMORY, "no memory for %zu bytes of message buffers", bytes);
    memset(memory, 0, bytes);
    HOCCL_Result r = hoccl_memory_register(s->ibv, s->pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE, "message buffers", &mr);
    if (r) {
        free(memory);
        return r;
    }
    s->slab[s->slabs].memory = memory;
    s->slab[s->slabs++].mr = mr;
    for (int i = 0; i < HOCCL_SLAB_SLOTS; i++)
        s->stack[s->spare++] = s->made + HOCCL_SLAB_SLOTS - 1 - i;
    s->made += HOCCL_SLAB_SLOTS;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_slots_init(struct hoccl_slots *slots, const struct hoccl_ibv *ibv, struct ibv_pd *pd, int most)
{
    int slabs = (most + HOCCL_SLAB_SLOTS - 1) / HOCCL_SLAB_SLOTS;
    slabs = slabs < 1 ? 1 : slabs > HOCCL_SLABS_MAX ? HOCCL_SLABS_MAX : slabs;
    *slots = (struct hoccl_slots){.ibv = ibv, .pd = pd, .most = slabs * HOCCL_SLAB_SLOTS};
    slots->stack = hoccl_alloc((size_t)slots->most * sizeof *slots->stack, "message buffers");
    if (!slots->stack)
        return HOCCL_ERR_MEMORY;
    HOCCL_Result r = grow(slots);
    if (r)
        hoccl_slots_fini(slots);
    return r;
}

void hoccl_slots_fini(struct hoccl_slots *slots)
{
    for (int i = 0; i < slots->slabs; i++) {
        slots->ibv->dereg_mr(slots->slab[i].mr);
        free(slots->slab[i].memory);
    }
    free(slots->stack);
    *slots = (struct hoccl_slots){0};
}

int hoccl_slots_take(struct hoccl_slots *slots)
{
    if (!slots->spare && (slots->made == slots->most || grow(slots)))
        return -1;
    return slots->stack[--slots->spare];
}

void hoccl_slots_give(struct hoccl_slots *slots, int slot)
{
    slots->stack[slots->spare++] = slot;
}

void *hoccl_slots_at(const struct hoccl_slots *slots, int slot)
{
    return slots->slab[slot / HOCCL_SLAB_SLOTS].memory + (size_t)(slot % HOCCL_SLAB_SLOTS) * HOCCL_SLOT_BYTES;
}

struct ibv_sge hoccl_slots_sge(const struct hoccl_slots *slots, int slot, size_t bytes)
{
    return (struct ibv_sge){(uintptr_t)hoccl_slots_at(slots, slot), (uint32_t)bytes,
                            slots->slab[slot / HOCCL_SLAB_SLOTS].mr->lkey};
}
