/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From C to a plan.
 *
 *      C ──traffic──▶ loads, bound ──wires──▶ R ──┬─peel──▶ stages ──fill──▶ Σ τ ──┐
 *                                                 └─list──▶ times ───windows──▶ makespan ──▶ the better
 *
 * Both schedules end in a makespan without barriers, which is what execution does: a rank starts its next part as soon
 * as its own last one and its peers' are done. Stages run that way keep their order on every NIC. Production peels
 * where that is affordable and the list schedule leaves something to gain.
 */
#include "sched/plan.h"

#include <stdlib.h>
#include <string.h>

#define PEEL_GPUS 16		/* peeling is affordable up to here, or */
#define PEEL_ENTRIES 1024	/* with at most this many transfers */
#define SECOND_LIST_ENTRIES 6144
#define SECOND_LIST_GAIN 32	/* a second try if the first is more than 1/32 above the bound */
#define GOOD_LIST 128		/* a list schedule within 1/128 of the bound is not worth improving */

struct maker {
	const struct hoccl_layout *layout;
	const struct hoccl_machine *machine;
	struct hoccl_traffic traffic;
	struct hoccl_wires wires;
	struct hoccl_list list;		/* the list schedule */
	struct hoccl_peel peel;
	struct hoccl_list loose;	/* the stages' parts, without barriers */
	uint64_t peel_ns;		/* makespan of the stages without barriers */
	struct hoccl_windows windows;	/* of the list schedule, and its native traffic */
	struct hoccl_fill fill;
};

void hoccl_plan_free(struct hoccl_plan *plan)
{
	if (!plan)
		return;
	free(plan->wire);
	free(plan->local);
	free(plan->stage);
	free(plan);
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The stages' parts at the times they have when each NIC goes on as soon as both ends can. */
static int loosen(struct maker *m)
{
	const struct hoccl_rate *rate = hoccl_machine_wire(m->machine);
	uint64_t free_at[2][HOCCL_SCHED_MAX_GPUS] = {{0}};

	m->loose.item = malloc((m->peel.parts ? m->peel.parts : 1) * sizeof(*m->loose.item));
	if (!m->loose.item)
		return HOCCL_PLAN_MEMORY;
	for (size_t i = 0; i < m->peel.parts; i++) {
		const struct hoccl_part *part = &m->peel.part[i];
		uint64_t start = later(free_at[0][part->out], free_at[1][part->in]);
		uint64_t end = start + hoccl_rate_time(rate, part->bytes) + m->machine->start_ns;

		free_at[0][part->out] = free_at[1][part->in] = end;
		m->loose.item[i] = (struct hoccl_slotted){part->bytes, start, end, part->out, part->in};
		m->loose.end_ns = later(m->loose.end_ns, end);
	}
	m->loose.items = m->peel.parts;
	return 0;
}

/* Makespan of the stages: the native traffic is placed as beside a list schedule, only to see how long all takes. */
static int time_peel(struct maker *m)
{
	struct hoccl_fill *fill = malloc(sizeof(*fill));
	struct hoccl_windows windows;
	int status = fill ? hoccl_fill_init(fill, &m->traffic, m->machine) : HOCCL_PLAN_MEMORY;

	if (status) {
		free(fill);
		return status;
	}
	status = hoccl_fill_windows(fill, &m->wires, &m->loose, &windows);
	m->peel_ns = windows.end_ns;
	hoccl_extra_fini(&windows.extra);
	hoccl_fill_fini(fill);
	free(fill);
	return status;
}

static struct hoccl_demand demand_of(const struct maker *m)
{
	return (struct hoccl_demand){m->wires.r, m->layout->gpus, m->layout, hoccl_machine_wire(m->machine),
				     m->machine->start_ns};
}

/* A second list schedule in another order, where the first leaves something to gain and that is cheap. */
static int try_again(struct maker *m, uint64_t bound, const struct hoccl_demand *demand)
{
	struct hoccl_list other;

	if (m->list.items > SECOND_LIST_ENTRIES || m->list.end_ns <= bound + bound / SECOND_LIST_GAIN)
		return 0;
	int status = hoccl_list_run(&other, demand, 2);

	if (status)
		return status;
	if (other.end_ns < m->list.end_ns) {
		struct hoccl_list first = m->list;

		m->list = other;
		other = first;
	}
	hoccl_list_fini(&other);
	return 0;
}

static int run_list(struct maker *m, uint64_t bound)
{
	struct hoccl_demand demand = demand_of(m);
	int status = hoccl_list_run(&m->list, &demand, 4);

	if (!status)
		status = try_again(m, bound, &demand);
	if (status)
		return status;
	status = hoccl_fill_init(&m->fill, &m->traffic, m->machine);
	if (!status)
		status = hoccl_fill_windows(&m->fill, &m->wires, &m->list, &m->windows);
	return status;
}

static int run_peel(struct maker *m)
{
	struct hoccl_demand demand = demand_of(m);
	int status = hoccl_peel_run(&m->peel, &demand);

	if (status)
		return status;
	status = loosen(m);
	if (!status)
		status = time_peel(m);
	return status;
}

static bool worth_peeling(const struct maker *m, uint64_t bound)
{
	if (m->layout->gpus > PEEL_GPUS && m->list.items > PEEL_ENTRIES)
		return false;
	return m->windows.end_ns > bound + bound / GOOD_LIST;
}

/* Makes what is asked for; *method becomes what the plan will hold. */
static int run_methods(struct maker *m, enum hoccl_plan_method *method, uint64_t bound)
{
	enum hoccl_plan_method asked = *method;
	int status = asked == HOCCL_PLAN_PEEL ? 0 : run_list(m, bound);

	*method = HOCCL_PLAN_LIST;
	if (status || asked == HOCCL_PLAN_LIST)
		return status;
	if (asked == HOCCL_PLAN_AUTO && !worth_peeling(m, bound))
		return 0;
	status = run_peel(m);
	if (!status && (asked == HOCCL_PLAN_PEEL || m->peel_ns < m->windows.end_ns))
		*method = HOCCL_PLAN_PEEL;
	return status;
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

/* Turns the chosen schedule's transfers into parts of flows. */
static int emit_wires(struct maker *m, struct hoccl_plan *plan, const struct hoccl_list *list)
{
	size_t gpus = (size_t)m->layout->gpus, room = list->items;
	bool whole = plan->method == HOCCL_PLAN_LIST;
	uint64_t *sent = whole && !m->wires.piece ? NULL : calloc(gpus * gpus, sizeof(*sent));
	int status = 0;

	plan->wire = malloc((room ? room : 1) * sizeof(*plan->wire));
	if (!plan->wire || (!sent && !(whole && !m->wires.piece)))
		status = HOCCL_PLAN_MEMORY;
	for (size_t i = 0; i < list->items && !status; i++) {
		const struct hoccl_slotted *item = &list->item[i];
		size_t cell = (size_t)item->out * gpus + (size_t)item->in;
		uint64_t done = sent ? sent[cell] : 0;
		struct hoccl_plan_wire wire = {
			{item->out, item->in, item->out, item->in}, item->bytes, done, item->start_ns, item->end_ns,
			whole ? (uint32_t)(item->start_ns / m->windows.ns) : m->peel.part[i].stage,
		};

		if (sent)
			sent[cell] += item->bytes;
		status = m->wires.piece ? add_pieces(plan, &room, &m->wires, &wire, done) :
					  add_wire(plan, &room, &wire);
	}
	free(sent);
	return status;
}

/* Where each stage's entries begin; both lists are by stage. */
static void index_stages(struct hoccl_plan *plan)
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

static int alloc_stages(struct hoccl_plan *plan, uint32_t stages)
{
	plan->stage = calloc((size_t)stages + 2, sizeof(*plan->stage));
	plan->stages = stages;
	return plan->stage ? 0 : HOCCL_PLAN_MEMORY;
}

static int more_stages(struct hoccl_plan *plan, uint32_t stages)
{
	struct hoccl_plan_stage *larger = realloc(plan->stage, ((size_t)stages + 2) * sizeof(*larger));

	if (!larger)
		return HOCCL_PLAN_MEMORY;
	plan->stage = larger;
	return 0;
}

static void take_locals(struct hoccl_plan *plan, struct hoccl_fill *fill)
{
	plan->local = fill->item;
	plan->locals = fill->items;
	fill->item = NULL;
}

/* Extra stages behind stage `first`, which begins at start_ns. */
static void take_extra(struct hoccl_plan *plan, uint32_t first, uint64_t start_ns, const struct hoccl_extra *extra)
{
	plan->extra = first;
	plan->stages = first + extra->stages;
	for (uint32_t s = 0; s < extra->stages; s++) {
		plan->stage[first + s].start_ns = start_ns;
		plan->stage[first + s].ns = extra->tau[s];
		start_ns += extra->tau[s];
	}
}

static int finish_list(struct maker *m, struct hoccl_plan *plan)
{
	const struct hoccl_windows *w = &m->windows;

	if (emit_wires(m, plan, &m->list) || alloc_stages(plan, w->count + w->extra.stages))
		return HOCCL_PLAN_MEMORY;
	take_locals(plan, &m->fill);
	plan->makespan_ns = later(w->end_ns, plan->relay_bound_ns);
	for (uint32_t s = 0; s < w->count; s++) {
		uint64_t end = (s + 1) * w->ns;

		plan->stage[s].start_ns = s * w->ns;
		plan->stage[s].ns = (end < m->list.end_ns ? end : m->list.end_ns) - s * w->ns;
	}
	take_extra(plan, w->count, m->list.end_ns, &w->extra);
	index_stages(plan);
	return 0;
}

/* τ of each stage from the loads of its parts; then its native traffic. */
static int time_stages(struct maker *m, struct hoccl_plan *plan, struct hoccl_fill *fill, struct hoccl_load *load)
{
	size_t size = (size_t)m->layout->gpus * sizeof(*load);
	uint32_t wires = m->peel.stages;

	index_stages(plan);
	for (uint32_t s = 0; s < wires; s++) {
		memset(load, 0, size);
		for (size_t i = plan->stage[s].first_wire; i < plan->stage[s + 1].first_wire; i++)
			hoccl_load_wire(load, m->layout, &plan->wire[i].path, plan->wire[i].bytes);
		uint64_t ns = hoccl_load_time(load, m->layout->gpus, m->machine, NULL, NULL);

		if (hoccl_fill_stage(fill, s, ns, load, false))
			return HOCCL_PLAN_MEMORY;
		plan->stage[s].ns = ns + m->machine->start_ns;
		plan->stage[s].start_ns = plan->sum_ns;
		plan->sum_ns += plan->stage[s].ns;
	}
	return 0;
}

static int finish_peel(struct maker *m, struct hoccl_plan *plan, struct hoccl_fill *fill)
{
	struct hoccl_load *load = malloc((size_t)m->layout->gpus * sizeof(*load));
	struct hoccl_extra extra = {0};
	uint32_t wires = m->peel.stages;
	int status = HOCCL_PLAN_MEMORY;

	if (load && !emit_wires(m, plan, &m->loose) && !alloc_stages(plan, wires))
		status = time_stages(m, plan, fill, load);
	free(load);
	if (!status)
		status = hoccl_fill_extra(fill, wires, &extra);
	if (!status)
		status = more_stages(plan, wires + extra.stages);
	if (!status) {
		take_extra(plan, wires, plan->sum_ns, &extra);
		take_locals(plan, fill);
		index_stages(plan);
		plan->sum_ns += extra.sum_ns;
		plan->makespan_ns = later(m->peel_ns, plan->relay_bound_ns);
		if (plan->sum_ns < plan->makespan_ns)	/* with barriers it would be no slower */
			plan->makespan_ns = plan->sum_ns;
	}
	hoccl_extra_fini(&extra);
	return status;
}

static int finish(struct maker *m, struct hoccl_plan *plan)
{
	struct hoccl_fill *fill = NULL;
	int status;

	plan->relayed = m->wires.relayed;
	if (plan->method == HOCCL_PLAN_LIST) {
		status = finish_list(m, plan);
	} else {
		fill = malloc(sizeof(*fill));
		status = fill ? hoccl_fill_init(fill, &m->traffic, m->machine) : HOCCL_PLAN_MEMORY;
		if (!status) {
			status = finish_peel(m, plan, fill);
			hoccl_fill_fini(fill);
		}
		free(fill);
	}
	return status;
}

static void maker_free(struct maker *m)
{
	hoccl_list_fini(&m->list);
	hoccl_list_fini(&m->loose);
	hoccl_peel_fini(&m->peel);
	hoccl_wires_fini(&m->wires);
	hoccl_fill_fini(&m->fill);
	hoccl_extra_fini(&m->windows.extra);
	free(m);
}

static int make(struct maker *m, struct hoccl_plan *plan, const uint64_t *c,
		const struct hoccl_plan_options *options, struct hoccl_plan_error *error)
{
	int status = hoccl_traffic_init(&m->traffic, m->layout, c, error);

	if (!status)
		status = hoccl_traffic_bound(&m->traffic, m->machine, &plan->bound_ns, error);
	if (!status)
		status = hoccl_wires_init(&m->wires, &m->traffic, m->machine, !options || options->relay, error);
	if (status)
		return status;
	plan->relay_bound_ns = m->wires.load ?
		hoccl_load_time(m->wires.load, m->layout->gpus, m->machine, NULL, NULL) : plan->bound_ns;
	plan->method = options ? options->method : HOCCL_PLAN_AUTO;
	status = run_methods(m, &plan->method, plan->relay_bound_ns);
	if (!status)
		status = finish(m, plan);
	return status ? hoccl_plan_fail(error, status, "no memory for the plan of %d GPUs", m->layout->gpus) : 0;
}

int hoccl_plan_make(struct hoccl_plan **out, const struct hoccl_layout *layout, const struct hoccl_machine *machine,
		    const uint64_t *c, const struct hoccl_plan_options *options, struct hoccl_plan_error *error)
{
	if (options && options->method == HOCCL_PLAN_ROTATION)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "a rotation is not made from a matrix");
	struct hoccl_plan *plan = calloc(1, sizeof(*plan));
	struct maker *m = malloc(sizeof(*m));

	if (!plan || !m) {
		free(m);
		free(plan);
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for a plan of %d GPUs", layout->gpus);
	}
	m->layout = layout;
	m->machine = machine;
	m->wires = (struct hoccl_wires){0};
	m->list = m->loose = (struct hoccl_list){0};
	m->peel = (struct hoccl_peel){0};
	m->windows.extra.tau = NULL;
	m->fill.left = NULL;
	m->fill.item = NULL;
	m->fill.items = 0;
	int status = make(m, plan, c, options, error);

	maker_free(m);
	if (status)
		hoccl_plan_free(plan);
	else
		*out = plan;
	return status;
}
