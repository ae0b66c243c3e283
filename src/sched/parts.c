/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a matrix or a plan to messages in order.
 *
 * Algorithm 1 cuts flows where it likes. A message of a few bytes costs as much as one of a chunk, and a copy from an odd
 * address more than one from an even one, so cuts are moved to the nearest multiple of a grain; a part that shrinks to
 * nothing is left out. Both ends compute the same.
 */
#include "sched/parts.h"

#include "sched/plan.h"
#include "sched/rotate.h"

#include <stdlib.h>

static int add(struct hoccl_parts *p, int src, int dst, uint64_t offset, uint64_t bytes)
{
	if (p->parts == p->room) {
		size_t room = p->room ? 2 * p->room : 64;
		struct hoccl_part_of *larger = realloc(p->part, room * sizeof(*larger));

		if (!larger)
			return HOCCL_PLAN_MEMORY;
		p->part = larger;
		p->room = room;
	}
	p->part[p->parts++] = (struct hoccl_part_of){bytes, offset, (int16_t)src, (int16_t)dst};
	return 0;
}

void hoccl_parts_fini(struct hoccl_parts *p)
{
	free(p->part);
	*p = (struct hoccl_parts){0};
}

int hoccl_parts_of_matrix(struct hoccl_parts *parts, const struct hoccl_layout *layout, const uint64_t *c)
{
	struct hoccl_rotation rule = hoccl_rotation_rule(layout);

	*parts = (struct hoccl_parts){0};
	for (uint32_t stage = 0; stage < rule.stages; stage++)
		for (int u = 0; u < layout->gpus; u++) {
			int v = hoccl_rotation_to(&rule, u, stage);
			uint64_t bytes = v < 0 ? 0 : c[(size_t)u * (size_t)layout->gpus + (size_t)v];

			if (bytes && add(parts, u, v, 0, bytes))
				return HOCCL_PLAN_MEMORY;
		}
	return 0;
}

/* Where a cut is moved to; the end of the flow stays. */
static uint64_t moved(uint64_t cut, uint64_t whole, uint64_t grain)
{
	uint64_t down = cut / grain * grain, near = cut - down < grain - grain / 2 ? down : down + grain;

	return cut == whole || near > whole ? whole : near;
}

int hoccl_parts_of_plan(struct hoccl_parts *parts, const struct hoccl_layout *layout, const uint64_t *c,
			const struct hoccl_plan *plan, uint64_t grain)
{
	*parts = (struct hoccl_parts){0};
	for (size_t i = 0; i < plan->wires; i++) {
		const struct hoccl_plan_wire *w = &plan->wire[i];
		int u = w->path.src, v = w->path.dst;
		uint64_t whole = c[(size_t)u * (size_t)layout->gpus + (size_t)v];
		uint64_t from = moved(w->offset, whole, grain), to = moved(w->offset + w->bytes, whole, grain);

		if (to > from && add(parts, u, v, from, to - from))
			return HOCCL_PLAN_MEMORY;
	}
	return 0;
}

uint64_t hoccl_parts_hash(const struct hoccl_parts *p)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < p->parts; i++) {
		const struct hoccl_part_of *x = &p->part[i];
		const uint64_t value[] = {(uint64_t)(uint16_t)x->src << 16 | (uint16_t)x->dst, x->offset, x->bytes};

		for (size_t k = 0; k < sizeof(value) / sizeof(value[0]); k++)
			for (int shift = 0; shift < 64; shift += 8)
				hash = (hash ^ (value[k] >> shift & 0xff)) * UINT64_C(0x100000001b3);
	}
	return hash;
}
