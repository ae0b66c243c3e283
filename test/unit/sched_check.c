/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The invariants of a plan, checked from outside (paper section 3.4, requirements 1-3), and an oracle for small G.
 * completeness: the parts of every flow cover it exactly once, and the loads of all parts are those of T;
 * degree: in a stage a NIC sends to one NIC and receives from one; in time, one transfer at once;
 * time: no stage is shorter than its longest line, the sums are right, and no plan is faster than the bound.
 */
#include "sched_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[256];

struct part {
	int src, dst;
	uint64_t offset, bytes;
};

static int compare(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	if (x->src != y->src)
		return x->src < y->src ? -1 : 1;
	if (x->dst != y->dst)
		return x->dst < y->dst ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static const char *check_parts(struct part *part, size_t parts, int gpus, const uint64_t *c)
{
	size_t i = 0;

	qsort(part, parts, sizeof(*part), compare);
	for (int u = 0; u < gpus; u++)
		for (int v = 0; v < gpus; v++) {
			uint64_t reached = 0;

			for (; i < parts && part[i].src == u && part[i].dst == v; i++) {
				if (part[i].offset != reached || !part[i].bytes)
					return "a flow has a gap, an overlap or an empty part";
				reached += part[i].bytes;
			}
			if (reached != c[(size_t)u * (size_t)gpus + (size_t)v]) {
				snprintf(text, sizeof(text), "flow (%d,%d) is not complete", u, v);
				return text;
			}
		}
	return i == parts ? NULL : "a part belongs to no flow";
}

static const char *check_complete(const struct hoccl_plan *p, int gpus, const uint64_t *c)
{
	size_t parts = 0;
	struct part *part = malloc((p->wires + p->locals + 1) * sizeof(*part));

	for (size_t i = 0; i < p->wires; i++)
		part[parts++] = (struct part){p->wire[i].path.src, p->wire[i].path.dst, p->wire[i].offset, p->wire[i].bytes};
	for (size_t i = 0; i < p->locals; i++)
		part[parts++] = (struct part){p->local[i].src, p->local[i].dst, p->local[i].offset, p->local[i].bytes};
	const char *fault = check_parts(part, parts, gpus, c);

	free(part);
	return fault;
}

/* The sum of all stages' T must be T (with the paths taken): every forwarding copy is in its stage. */
static const char *check_loads(const struct hoccl_plan *p, const struct hoccl_layout *layout,
			       const struct hoccl_machine *machine, const uint64_t *c)
{
	struct hoccl_load *sum = calloc((size_t)layout->gpus, sizeof(*sum));
	struct hoccl_traffic *t = malloc(sizeof(*t));
	const char *fault = NULL;

	for (size_t i = 0; i < p->wires; i++)
		hoccl_load_wire(sum, layout, &p->wire[i].path, p->wire[i].bytes);
	for (size_t i = 0; i < p->locals; i++)
		hoccl_load_local(sum, layout, p->local[i].src, p->local[i].dst, p->local[i].bytes);
	if (hoccl_traffic_init(t, layout, c, NULL))
		fault = "the matrix is not accepted a second time";
	else if (hoccl_load_time(t->load, layout->gpus, machine, NULL, NULL) != p->bound_ns)
		fault = "the bound is not that of T";
	else if (!p->relayed && memcmp(sum, t->load, (size_t)layout->gpus * sizeof(*sum)) != 0)
		fault = "the stages' loads do not add up to T";
	else if (hoccl_load_time(sum, layout->gpus, machine, NULL, NULL) != p->relay_bound_ns)
		fault = "the bound is not that of the paths taken";
	free(sum);
	free(t);
	return fault;
}

static const char *check_degrees(const struct hoccl_plan *p, int gpus)
{
	int to[HOCCL_SCHED_MAX_GPUS], from[HOCCL_SCHED_MAX_GPUS];

	for (uint32_t s = 0; s < p->stages && p->method == HOCCL_PLAN_PEEL; s++) {
		for (int g = 0; g < gpus; g++)
			to[g] = from[g] = -1;
		for (size_t i = p->stage[s].first_wire; i < p->stage[s + 1].first_wire; i++) {
			const struct hoccl_path *path = &p->wire[i].path;

			if (p->wire[i].stage != s)
				return "a wire is not in its stage";
			if ((to[path->out] >= 0 && to[path->out] != path->in) ||
			    (from[path->in] >= 0 && from[path->in] != path->out))
				return "a NIC has two transfers in a stage";
			to[path->out] = path->in;
			from[path->in] = path->out;
		}
	}
	return NULL;
}

/* Wires of a NIC are in order of time; the lists are sorted, so one pass is enough. */
static const char *check_times(const struct hoccl_plan *p, const struct hoccl_machine *machine)
{
	uint64_t busy[2][HOCCL_SCHED_MAX_GPUS] = {{0}}, end = 0;
	const struct hoccl_rate *rate = hoccl_machine_wire(machine);

	for (size_t i = 0; i < p->wires; i++) {
		const struct hoccl_plan_wire *w = &p->wire[i];

		if (w->start_ns < busy[0][w->path.out] || w->start_ns < busy[1][w->path.in])
			return "a NIC has two transfers at once";
		if (w->end_ns < w->start_ns || w->end_ns - w->start_ns + 1 < hoccl_rate_time(rate, w->bytes))
			return "a wire is faster than its NIC";
		busy[0][w->path.out] = busy[1][w->path.in] = w->end_ns;
		end = w->end_ns > end ? w->end_ns : end;
	}
	return p->method == HOCCL_PLAN_LIST && end > p->makespan_ns ? "the makespan is shorter than its wires" : NULL;
}

static const char *check_stage(const struct hoccl_plan *p, uint32_t s, const struct hoccl_layout *layout,
			       const struct hoccl_machine *machine, struct hoccl_load *load)
{
	memset(load, 0, (size_t)layout->gpus * sizeof(*load));
	for (size_t i = p->stage[s].first_wire; i < p->stage[s + 1].first_wire; i++)
		hoccl_load_wire(load, layout, &p->wire[i].path, p->wire[i].bytes);
	for (size_t i = p->stage[s].first_local; i < p->stage[s + 1].first_local; i++)
		hoccl_load_local(load, layout, p->local[i].src, p->local[i].dst, p->local[i].bytes);
	if (hoccl_load_time(load, layout->gpus, machine, NULL, NULL) + machine->start_ns > p->stage[s].ns)
		return "a stage is shorter than its longest line";
	return NULL;
}

static const char *check_stages(const struct hoccl_plan *p, const struct hoccl_layout *layout,
				const struct hoccl_machine *machine)
{
	struct hoccl_load *load = malloc((size_t)layout->gpus * sizeof(*load));
	const char *fault = NULL;
	uint64_t sum = 0;

	for (uint32_t s = 0; s < p->stages && !fault; s++) {
		if (s < p->extra)	/* extra stages are each node's own */
			fault = check_stage(p, s, layout, machine, load);
		if (p->stage[s].start_ns != sum)
			fault = "a stage does not begin where the last one ends";
		sum += p->stage[s].ns;
	}
	free(load);
	if (!fault && sum != p->sum_ns)
		fault = "the sum of the stages is wrong";
	return fault;
}

/* In an extra stage every GPU pushes to one and is pushed to by one, unless it is a single small one. */
static const char *check_extra(const struct hoccl_plan *p, const struct hoccl_layout *layout)
{
	int to[HOCCL_SCHED_MAX_GPUS], from[HOCCL_SCHED_MAX_GPUS];

	for (uint32_t s = p->extra + 1; s < p->stages; s++) {
		for (int g = 0; g < layout->gpus; g++)
			to[g] = from[g] = -1;
		for (size_t i = p->stage[s].first_local; i < p->stage[s + 1].first_local; i++) {
			const struct hoccl_local *l = &p->local[i];
			int v = l->src != l->dst || layout->pair[l->src] < 0 ? l->dst : layout->pair[l->src];

			if ((to[l->src] >= 0 && to[l->src] != v) || (from[v] >= 0 && from[v] != l->src))
				return "an extra stage is not a matching";
			to[l->src] = v;
			from[v] = l->src;
		}
	}
	return NULL;
}

const char *hoccl_check_plan(const struct hoccl_plan *p, const struct hoccl_layout *layout,
			     const struct hoccl_machine *machine, const uint64_t *c)
{
	const char *fault = check_complete(p, layout->gpus, c);

	if (!fault)
		fault = check_loads(p, layout, machine, c);
	if (!fault)
		fault = check_degrees(p, layout->gpus);
	if (!fault)
		fault = check_times(p, machine);
	if (!fault && p->method == HOCCL_PLAN_PEEL)
		fault = check_stages(p, layout, machine);
	if (!fault)
		fault = check_extra(p, layout);
	if (!fault && (p->makespan_ns < p->relay_bound_ns || p->relay_bound_ns > p->bound_ns))
		fault = "the plan is faster than the bound";
	return fault;
}

struct search {
	int flows, out[16], in[16];
	uint64_t ns[16], best;
	uint64_t free_at[2][4], left[2][4];
	bool done[16];
	long steps;
};

/* What the lines still need, at least. */
static uint64_t at_least(const struct search *s)
{
	uint64_t most = 0;

	for (int side = 0; side < 2; side++)
		for (int g = 0; g < 4; g++)
			if (s->free_at[side][g] + s->left[side][g] > most)
				most = s->free_at[side][g] + s->left[side][g];
	return most;
}

/* Depth first over the orders in which flows are started, each as early as it can. */
static void search_on(struct search *s, int started, uint64_t end)
{
	if (end >= s->best || at_least(s) >= s->best || --s->steps < 0)
		return;
	if (started == s->flows) {
		s->best = end;
		return;
	}
	for (int i = 0; i < s->flows; i++) {
		if (s->done[i])
			continue;
		uint64_t out = s->free_at[0][s->out[i]], in = s->free_at[1][s->in[i]];
		uint64_t stop = (out > in ? out : in) + s->ns[i];

		s->done[i] = true;
		s->free_at[0][s->out[i]] = s->free_at[1][s->in[i]] = stop;
		s->left[0][s->out[i]] -= s->ns[i];
		s->left[1][s->in[i]] -= s->ns[i];
		search_on(s, started + 1, stop > end ? stop : end);
		s->left[0][s->out[i]] += s->ns[i];
		s->left[1][s->in[i]] += s->ns[i];
		s->free_at[0][s->out[i]] = out;
		s->free_at[1][s->in[i]] = in;
		s->done[i] = false;
	}
}

uint64_t hoccl_check_optimum(const struct hoccl_layout *layout, const struct hoccl_machine *machine, const uint64_t *c)
{
	struct search s = {.best = UINT64_MAX, .steps = 2000000};
	int gpus = layout->gpus;

	for (int u = 0; u < gpus; u++)
		for (int v = 0; v < gpus; v++) {
			uint64_t bytes = c[u * gpus + v];

			if (!bytes || layout->node[u] == layout->node[v])
				continue;
			s.out[s.flows] = u;
			s.in[s.flows] = v;
			s.ns[s.flows] = hoccl_rate_time(hoccl_machine_wire(machine), bytes) + machine->start_ns;
			s.left[0][u] += s.ns[s.flows];
			s.left[1][v] += s.ns[s.flows++];
		}
	search_on(&s, 0, 0);
	return s.steps < 0 ? 0 : s.best;
}
