/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Native traffic that fits beside no wire: extra stages at the end, and all there is within a single node.
 *
 * Beside wires native flows have plenty of room and may share links. Alone they are what everybody waits for, and then
 * sharing is bad: two engines that push to one GPU each get half, while each does one copy at a time and so cannot use
 * the rest of its own link meanwhile. So here the paper's matching components (Algorithm 1, line 2) are used: each
 * node's remainder is peeled like the wires are, with the rate of a push, or list-scheduled where the node is large.
 * A self copy stands for its push (u, ū); its pull runs on another engine. Nodes do not wait for one another.
 */
#include "sched/fill.h"
#include "sched/peel.h"

#include <stdlib.h>
#include <string.h>

#define ONE_STAGE_STARTS 16	/* below this many start-ups' worth on the longest line one stage holds all */
#define PEEL_GPUS 16		/* of a node; larger ones are list-scheduled */

struct extra {
	struct hoccl_fill *fill;
	struct hoccl_extra *out;
	struct hoccl_rate rate;		/* of a push alone */
	uint32_t first;
	int node, size;
	uint64_t *r;			/* size × size */
	struct hoccl_load *load;
	uint64_t *tau;			/* of this node's stages */
};

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

void hoccl_extra_fini(struct hoccl_extra *extra)
{
	free(extra->tau);
	extra->tau = NULL;
}

static int member(const struct extra *x, int i)
{
	const struct hoccl_layout *layout = x->fill->traffic->layout;

	return layout->member[layout->first[x->node] + i];
}

/* The receiver's place in r of a self copy of u: that of ū, or u itself where ū is no rank. */
static int self_place(const struct extra *x, int u)
{
	const struct hoccl_layout *layout = x->fill->traffic->layout;

	return layout->pair[u] >= 0 ? layout->local[layout->pair[u]] : layout->local[u];
}

/* r from what is left; self copies through host memory stay out of it. Returns the longest line. */
static uint64_t read_node(struct extra *x)
{
	const struct hoccl_layout *layout = x->fill->traffic->layout;
	uint64_t row[HOCCL_SCHED_MAX_GPUS] = {0}, column[HOCCL_SCHED_MAX_GPUS] = {0}, longest = 0;

	memset(x->r, 0, (size_t)x->size * (size_t)x->size * sizeof(*x->r));
	for (int i = 0; i < x->size; i++)
		for (int j = 0; j < x->size; j++) {
			int u = member(x, i), v = member(x, j), place = u == v ? self_place(x, u) : j;
			uint64_t bytes = *hoccl_fill_cell(x->fill, u, v);

			if (u == v && layout->pair[u] == HOCCL_PAIR_HOST)
				continue;
			x->r[i * x->size + place] += bytes;
			row[i] += bytes;
			column[place] += bytes;
		}
	for (int i = 0; i < x->size; i++)
		longest = later(longest, later(row[i], column[i]));
	return longest;
}

/* Gives (u, v) to a stage and its lines. */
static int take(struct extra *x, uint32_t stage, int u, int v, uint64_t bytes)
{
	if (!bytes)
		return 0;
	hoccl_load_local(x->load, x->fill->traffic->layout, u, v, bytes);
	return hoccl_fill_take(x->fill, x->first + stage, u, v, bytes);
}

/* A part of r: native bytes first, then the self copy that shares its cell. */
static int take_part(struct extra *x, uint32_t stage, const struct hoccl_part *part)
{
	int u = member(x, part->out), v = member(x, part->in);
	uint64_t native = u == v ? 0 : *hoccl_fill_cell(x->fill, u, v);
	uint64_t bytes = part->bytes < native ? part->bytes : native;
	int status = take(x, stage, u, v, bytes);

	return status ? status : take(x, stage, u, u, part->bytes - bytes);
}

/* Self copies of GPUs staged in host memory: another pair of engines, so all at once. */
static int take_host_self(struct extra *x)
{
	const struct hoccl_layout *layout = x->fill->traffic->layout;
	int status = 0;

	for (int i = 0; i < x->size && !status; i++) {
		int u = member(x, i);

		if (layout->pair[u] == HOCCL_PAIR_HOST)
			status = take(x, 0, u, u, *hoccl_fill_cell(x->fill, u, u));
	}
	return status;
}

static void clear_load(struct extra *x)
{
	for (int i = 0; i < x->size; i++)
		memset(&x->load[member(x, i)], 0, sizeof(*x->load));
}

/* τ of the stage whose loads were added since the last call. */
static uint64_t stage_time(struct extra *x)
{
	uint64_t ns = 0;

	for (int i = 0; i < x->size; i++)
		ns = later(ns, hoccl_load_time(&x->load[member(x, i)], 1, x->fill->machine, NULL, NULL));
	clear_load(x);
	return ns ? ns + x->fill->machine->start_ns : 0;
}

/* By distance, so that the receivers' turns do not all begin with the same sender; self copies last. */
static int take_all(struct extra *x)
{
	int status = 0;

	for (int ahead = 1; ahead <= x->size; ahead++)
		for (int i = 0; i < x->size && !status; i++) {
			int u = member(x, i), v = member(x, (i + ahead) % x->size);

			status = take(x, 0, u, v, *hoccl_fill_cell(x->fill, u, v));
		}
	return status;
}

/* A list schedule as stages: a part's stage is the one behind its ends' last. */
static int list_node(struct hoccl_peel *peel, const struct hoccl_demand *demand)
{
	uint32_t next[2][HOCCL_SCHED_MAX_GPUS] = {{0}};
	struct hoccl_list list;
	int status = hoccl_list_run(&list, demand, 4);

	*peel = (struct hoccl_peel){0};
	for (size_t i = 0; i < list.items && !status; i++) {
		const struct hoccl_slotted *item = &list.item[i];
		uint32_t stage = next[0][item->out] > next[1][item->in] ? next[0][item->out] : next[1][item->in];

		status = hoccl_peel_add(peel, item->out, item->in, item->bytes);
		if (status)
			break;
		peel->part[peel->parts - 1].stage = stage;
		next[0][item->out] = next[1][item->in] = stage + 1;
		peel->stages = stage + 1 > peel->stages ? stage + 1 : peel->stages;
	}
	hoccl_list_fini(&list);
	return status;
}

/* Without barriers: each engine and each receiver goes on when both can. */
static uint64_t loose_time(const struct extra *x, const struct hoccl_peel *peel)
{
	uint64_t free_at[2][HOCCL_SCHED_MAX_GPUS] = {{0}}, end = 0;

	for (size_t i = 0; i < peel->parts; i++) {
		const struct hoccl_part *part = &peel->part[i];
		uint64_t ns = later(free_at[0][part->out], free_at[1][part->in]) +
			      hoccl_rate_time(&x->rate, part->bytes) + x->fill->machine->start_ns;

		free_at[0][part->out] = free_at[1][part->in] = ns;
		end = later(end, ns);
	}
	return end;
}

static int take_stages(struct extra *x, const struct hoccl_peel *peel)
{
	for (uint32_t s = 0; s < peel->stages; s++) {
		int status = 0;

		for (size_t i = 0; i < peel->parts && !status; i++)
			if (peel->part[i].stage == s)
				status = take_part(x, s, &peel->part[i]);
		if (status)
			return status;
		x->tau[s] = stage_time(x);
	}
	return 0;
}

static int matchings(struct extra *x, uint32_t *stages, uint64_t *loose)
{
	struct hoccl_demand demand = {x->r, x->size, NULL, &x->rate, x->fill->machine->start_ns};
	struct hoccl_peel peel;
	int status = x->size <= PEEL_GPUS ? hoccl_peel_run(&peel, &demand) : list_node(&peel, &demand);

	if (!status) {
		free(x->tau);
		x->tau = calloc((size_t)peel.stages + 1, sizeof(*x->tau));
		status = x->tau ? take_host_self(x) : HOCCL_PLAN_MEMORY;
	}
	if (!status)
		status = take_stages(x, &peel);
	*stages = peel.stages;
	*loose = status ? 0 : loose_time(x, &peel);
	hoccl_peel_fini(&peel);
	return status;
}

static int one_stage(struct extra *x, uint32_t *stages, uint64_t *loose)
{
	free(x->tau);
	x->tau = calloc(1, sizeof(*x->tau));
	int status = x->tau ? take_all(x) : HOCCL_PLAN_MEMORY;

	if (!status)
		x->tau[0] = stage_time(x);
	*loose = status ? 0 : x->tau[0];
	*stages = *loose > 0;
	return status;
}

static int do_node(struct extra *x)
{
	const struct hoccl_machine *machine = x->fill->machine;
	uint64_t longest = read_node(x), loose = 0, sum = 0;
	uint64_t least = ONE_STAGE_STARTS * hoccl_rate_bytes(&x->rate, machine->start_ns);
	uint32_t stages = 0;
	int status;

	clear_load(x);
	status = longest <= least ? one_stage(x, &stages, &loose) : matchings(x, &stages, &loose);
	for (uint32_t s = 0; s < stages && !status; s++)
		sum += x->tau[s];
	if (!status && sum > x->out->sum_ns) {
		uint64_t *other = x->out->tau;

		x->out->tau = x->tau;
		x->tau = other;
		x->out->sum_ns = sum;
	}
	x->out->loose_ns = later(x->out->loose_ns, loose < sum ? loose : sum);
	if (stages > x->out->stages)
		x->out->stages = stages;
	return status;
}

/* Items were added node by node; the plan wants them by stage. */
static int sort_items(struct hoccl_fill *f, size_t from, uint32_t first, uint32_t stages)
{
	size_t count = f->items - from, *place = calloc((size_t)stages + 1, sizeof(*place));
	struct hoccl_local *sorted = malloc((count ? count : 1) * sizeof(*sorted));

	if (place && sorted) {
		for (size_t i = 0; i < count; i++)
			place[f->item[from + i].stage - first + 1]++;
		for (uint32_t s = 1; s < stages; s++)
			place[s] += place[s - 1];
		for (size_t i = 0; i < count; i++)
			sorted[place[f->item[from + i].stage - first]++] = f->item[from + i];
		if (count)
			memcpy(f->item + from, sorted, count * sizeof(*sorted));
	}
	int status = place && sorted ? 0 : HOCCL_PLAN_MEMORY;

	free(place);
	free(sorted);
	return status;
}

/* The critical node may have fewer stages than another: its τ list is filled up with zeros. */
static int pad_tau(struct hoccl_extra *out)
{
	uint64_t *tau = calloc((size_t)out->stages + 1, sizeof(*tau)), sum = 0;

	if (!tau)
		return HOCCL_PLAN_MEMORY;
	for (uint32_t s = 0; s < out->stages && sum < out->sum_ns; s++) {
		tau[s] = out->tau[s];
		sum += tau[s];
	}
	free(out->tau);
	out->tau = tau;
	return 0;
}

static bool node_empty(const struct hoccl_fill *f, int node)
{
	const struct hoccl_layout *layout = f->traffic->layout;

	for (int i = layout->first[node]; i < layout->first[node + 1]; i++)
		if (f->row[layout->member[i]])
			return false;
	return true;
}

int hoccl_fill_extra(struct hoccl_fill *f, uint32_t first, struct hoccl_extra *out)
{
	const struct hoccl_layout *layout = f->traffic->layout;
	const struct hoccl_rate *push = &f->machine->rate[HOCCL_LINE_PUSH];
	const struct hoccl_rate *link = &f->machine->rate[HOCCL_LINE_NVLINK_OUT];
	struct extra x = {.fill = f, .out = out, .first = first};
	size_t most = 0, from = f->items;
	int status = 0;

	*out = (struct hoccl_extra){0};
	x.rate = push->bytes_per_s < link->bytes_per_s ? *push : *link;
	for (int n = 0; n < layout->nodes; n++)
		if (!node_empty(f, n) && (size_t)hoccl_layout_size(layout, n) > most)
			most = (size_t)hoccl_layout_size(layout, n);
	if (!most)
		return 0;
	x.r = malloc(most * most * sizeof(*x.r));
	x.load = malloc((size_t)layout->gpus * sizeof(*x.load));
	if (!x.r || !x.load)
		status = HOCCL_PLAN_MEMORY;
	for (x.node = 0; x.node < layout->nodes && !status; x.node++) {
		x.size = hoccl_layout_size(layout, x.node);
		status = node_empty(f, x.node) ? 0 : do_node(&x);
	}
	if (!status)
		status = sort_items(f, from, first, out->stages);
	if (!status)
		status = pad_tau(out);
	free(x.r);
	free(x.load);
	free(x.tau);
	if (status)
		hoccl_extra_fini(out);
	return status;
}
