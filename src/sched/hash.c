/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's hash: ranks compare it before they trust one another's order (it travels in the first grant).
 * FNV-1a over 64-bit values in plan order; not cryptographic.
 */
#include "sched/plan.h"

static uint64_t mix(uint64_t hash, uint64_t value)
{
	for (int i = 0; i < 64; i += 8)
		hash = (hash ^ (value >> i & 0xff)) * UINT64_C(0x100000001b3);
	return hash;
}

uint64_t hoccl_plan_hash(const struct hoccl_plan *plan)
{
	uint64_t hash = mix(UINT64_C(0xcbf29ce484222325), plan->method);

	for (size_t i = 0; i < plan->wires; i++) {
		const struct hoccl_plan_wire *w = &plan->wire[i];

		hash = mix(hash, (uint64_t)w->path.src << 48 | (uint64_t)w->path.dst << 32 |
				 (uint64_t)w->path.out << 16 | (uint64_t)w->path.in);
		hash = mix(hash, w->bytes);
		hash = mix(hash, w->offset);
		hash = mix(hash, w->start_ns);
		hash = mix(hash, w->stage);
	}
	for (size_t i = 0; i < plan->locals; i++) {
		const struct hoccl_local *l = &plan->local[i];

		hash = mix(hash, (uint64_t)(uint16_t)l->src << 48 | (uint64_t)(uint16_t)l->dst << 32 | l->stage);
		hash = mix(hash, l->bytes);
		hash = mix(hash, l->offset);
	}
	return mix(hash, plan->makespan_ns);
}
