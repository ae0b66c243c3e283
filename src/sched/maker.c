/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of plan making that both schedules use: from NIC-to-NIC transfers to parts of flows, and the stage table. */
#include "sched/maker.h"

#include <stdlib.h>
#include <string.h>

struct hoccl_demand hoccl_maker_demand(const struct hoccl_maker *m)
{
	return (struct hoccl_demand){m->wires.r, m->layout->gpus, m->layout, hoccl_machine_wire(m->machine),
				     m->machine->start_ns};
}

static int add_wire(struct hoccl_plan *plan, size_t *room, const struct hoccl_plan_wire *wire)
{
	if (plan->wires == *room) {
		size_t more = *room ? 2 * *room : 64;
		struct hoccl_plan_wire *larger = realloc(plan->wire, more * sizeof(*larger));

		if (!larger)
			return HOCCL_PLAN_MEMORY;
		plan->wire = larger;
		*room = more;
	}
	plan->wire[plan->wires++] = *wire;
	return 0;
}

/* The pieces of a cell that the next `wire->bytes` of it consist of; `done` is how much of the cell was sent before. */
static int add_pieces(struct hoccl_plan *plan, size_t *room, const struct hoccl_wires *wires,
		      const struct hoccl_plan_wire *wire, uint64_t done)
{
	size_t cell = (size_t)wire->path.out * (size_t)wires->layout->gpus + (size_t)wire->path.in;
	uint64_t left = wire->bytes, clock = wire->start_ns, span = wire->end_ns - wire->start_ns;

	for (uint32_t i = wires->cell[cell]; i < wires->cell[cell + 1] && left; i++) {
		const struct hoccl_piece *piece = &wires->piece[i];

		if (done >= piece->bytes) {
			done -= piece->bytes;
			continue;
		}
		uint64_t bytes = piece->bytes - done < left ? piece->bytes - done : left;
		struct hoccl_plan_wire part = {piece->path, bytes, piece->offset + done, clock, 0, wire->stage};

		left -= bytes;
		done = 0;
		clock = wire->end_ns - (uint64_t)((unsigned __int128)span * left / wire->bytes);
		part.end_ns = clock;
		if (add_wire(plan, room, &part))
			return HOCCL_PLAN_MEMORY;
	}
	return 0;
}

int hoccl_maker_wires(struct hoccl_maker *m, struct hoccl_plan *plan, const struct hoccl_list *list,
		      const struct hoccl_peel *stage_of, uint64_t window_ns)
{
	size_t gpus = (size_t)m->layout->gpus, room = list->items;
	bool whole = !stage_of && !m->wires.piece;	/* then every transfer is a flow */
	uint64_t *sent = whole ? NULL : calloc(gpus * gpus, sizeof(*sent));
	int status = 0;

	plan->wire = malloc((room ? room : 1) * sizeof(*plan->wire));
	if (!plan->wire || (!sent && !whole))
		status = HOCCL_PLAN_MEMORY;
	for (size_t i = 0; i < list->items && !status; i++) {
		const struct hoccl_slotted *item = &list->item[i];
		size_t cell = (size_t)item->out * gpus + (size_t)item->in;
		uint64_t done = sent ? sent[cell] : 0;
		struct hoccl_plan_wire wire = {
			{item->out, item->in, item->out, item->in}, item->bytes, done, item->start_ns, item->end_ns,
			stage_of ? stage_of->part[i].stage : (uint32_t)(item->start_ns / window_ns),
		};

		if (sent)
			sent[cell] += item->bytes;
		status = m->wires.piece ? add_pieces(plan, &room, &m->wires, &wire, done) :
					  add_wire(plan, &room, &wire);
	}
	free(sent);
	return status;
}

void hoccl_maker_index(struct hoccl_plan *plan)
{
	size_t wire = 0, local = 0;

	for (uint32_t s = 0; s <= plan->stages; s++) {
		while (wire < plan->wires && plan->wire[wire].stage < s)
			wire++;
		while (local < plan->locals && plan->local[local].stage < s)
			local++;
		plan->stage[s].first_wire = wire;
		plan->stage[s].first_local = local;
	}
	plan->stage[plan->stages].first_wire = plan->wires;
	plan->stage[plan->stages].first_local = plan->locals;
}

int hoccl_maker_stages(struct hoccl_plan *plan, uint32_t stages)
{
	struct hoccl_plan_stage *larger = realloc(plan->stage, ((size_t)stages + 2) * sizeof(*larger));

	if (!larger)
		return HOCCL_PLAN_MEMORY;
	memset(larger + plan->stages, 0, ((size_t)stages + 2 - plan->stages) * sizeof(*larger));
	plan->stage = larger;
	plan->stages = stages;
	return 0;
}

void hoccl_maker_extra(struct hoccl_plan *plan, uint32_t first, uint64_t start_ns, const struct hoccl_extra *extra,
		       struct hoccl_fill *fill)
{
	plan->extra = first;
	for (uint32_t s = 0; s < extra->stages; s++) {
		plan->stage[first + s].start_ns = start_ns;
		plan->stage[first + s].ns = extra->tau[s];
		start_ns += extra->tau[s];
	}
	plan->local = fill->item;
	plan->locals = fill->items;
	fill->item = NULL;
}
