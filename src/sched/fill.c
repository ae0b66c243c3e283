/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVLink traffic of the user's own (native) in the slack of the stages (Algorithm 1, lines 2 and 8).
 *
 * A wire at 50 GB/s leaves most of an NVLink of 200 GB/s or more unused, even with both forwarding copies on it. NVLink
 * is a switch: what counts are the sums of each GPU's lines, and chunks interleave, so the native part of a stage need
 * not be a matching; it has to fit beside the forwarding copies on every line it touches. The longest lines go first,
 * as early as they can, in as few pieces as they can. What fits nowhere makes extra stages at the end (extra.c).
 */
#include "sched/fill.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_STARTS 4	/* a flow is split only for a piece worth this many start-ups */

int hoccl_fill_init(struct hoccl_fill *f, const struct hoccl_traffic *t, const struct hoccl_machine *machine)
{
	const struct hoccl_layout *layout = t->layout;
	size_t cells = 0, gpus = (size_t)layout->gpus;

	f->traffic = t;
	f->machine = machine;
	f->item = NULL;
	f->items = f->room = 0;
	for (int n = 0; n < layout->nodes; n++) {
		f->block[n] = cells;
		cells += (size_t)hoccl_layout_size(layout, n) * (size_t)hoccl_layout_size(layout, n);
	}
	memset(f->row, 0, gpus * sizeof(f->row[0]));
	memset(f->column, 0, gpus * sizeof(f->column[0]));
	f->left = malloc(cells * sizeof(*f->left));
	if (!f->left)
		return HOCCL_PLAN_MEMORY;
	for (size_t g = 0; g < gpus; g++) {
		int n = layout->node[g], size = hoccl_layout_size(layout, n);
		uint64_t *row = f->left + f->block[n] + (size_t)layout->local[g] * (size_t)size;

		for (int j = 0; j < size; j++) {
			int v = layout->member[layout->first[n] + j];

			row[j] = t->c[g * gpus + (size_t)v];
			f->row[g] += row[j];
			f->column[v] += row[j];
		}
	}
	return 0;
}

void hoccl_fill_fini(struct hoccl_fill *f)
{
	free(f->left);
	free(f->item);
	f->left = NULL;
	f->item = NULL;
}

uint64_t *hoccl_fill_cell(const struct hoccl_fill *f, int u, int v)
{
	const struct hoccl_layout *layout = f->traffic->layout;
	int n = layout->node[u];

	return f->left + f->block[n] + (size_t)layout->local[u] * (size_t)hoccl_layout_size(layout, n) +
	       (size_t)layout->local[v];
}

static int add_item(struct hoccl_fill *f, uint32_t stage, int u, int v, uint64_t bytes, uint64_t left)
{
	uint64_t whole = f->traffic->c[(size_t)u * (size_t)f->traffic->layout->gpus + (size_t)v];

	if (f->items == f->room) {
		size_t room = f->room ? 2 * f->room : 256;
		struct hoccl_local *larger = realloc(f->item, room * sizeof(*larger));

		if (!larger)
			return HOCCL_PLAN_MEMORY;
		f->item = larger;
		f->room = room;
	}
	f->item[f->items++] = (struct hoccl_local){bytes, whole - left, stage, (int16_t)u, (int16_t)v};
	return 0;
}

int hoccl_fill_take(struct hoccl_fill *f, uint32_t stage, int u, int v, uint64_t bytes)
{
	uint64_t *left = hoccl_fill_cell(f, u, v);

	if (add_item(f, stage, u, v, bytes, *left))
		return HOCCL_PLAN_MEMORY;
	*left -= bytes;
	f->row[u] -= bytes;
	f->column[v] -= bytes;
	return 0;
}

static int distance(const struct hoccl_layout *layout, int from, int to)
{
	int ahead = layout->local[to] - layout->local[from];

	return ahead > 0 ? ahead : ahead + hoccl_layout_size(layout, layout->node[from]);
}

static bool precedes(const struct hoccl_layout *layout, int from, const uint64_t *key, int a, int b)
{
	if (key[a] != key[b])
		return key[a] > key[b];
	return distance(layout, from, a) < distance(layout, from, b);
}

/*
 * The GPUs of a node by descending `key`; among equals those that follow `from` first, so that rows of equal traffic
 * make matchings and do not all begin with the same column. Shell sort.
 */
static void sort_members(const struct hoccl_layout *layout, int node, int from, const uint64_t *key, int16_t *order)
{
	int size = hoccl_layout_size(layout, node), start = layout->local[from] + 1;
	const int16_t *member = layout->member + layout->first[node];

	for (int i = 0; i < size; i++)
		order[i] = member[start + i < size ? start + i : start + i - size];
	for (int gap = size > 16 ? size / 2 : 1; gap; gap /= 2)
		for (int i = gap; i < size; i++) {
			int16_t g = order[i];
			int k = i;

			for (; k >= gap && precedes(layout, from, key, g, order[k - gap]); k -= gap)
				order[k] = order[k - gap];
			order[k] = g;
		}
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t free_on(const struct hoccl_load *load, const uint64_t *capacity, int gpu, enum hoccl_line line)
{
	uint64_t used = load[gpu].bytes[line];

	return used < capacity[line] ? capacity[line] - used : 0;
}

/* How many bytes (u, v) can take beside what is there: the least of the lines it touches (hoccl_load_local). */
static uint64_t free_for(const struct hoccl_layout *layout, const struct hoccl_load *load, const uint64_t *capacity,
			 int u, int v)
{
	int pair = layout->pair[u];

	if (u == v && pair == HOCCL_PAIR_HOST)
		return least(free_on(load, capacity, u, HOCCL_LINE_PCIE_OUT),
			     free_on(load, capacity, u, HOCCL_LINE_PCIE_IN));
	uint64_t room = least(free_on(load, capacity, u, HOCCL_LINE_PUSH),
			      least(free_on(load, capacity, u, HOCCL_LINE_NVLINK_OUT),
				    free_on(load, capacity, v, HOCCL_LINE_NVLINK_IN)));

	if (u != v)
		return room;
	room = least(room, free_on(load, capacity, u, HOCCL_LINE_PULL));
	if (pair < 0)
		return room;
	return least(room, least(free_on(load, capacity, pair, HOCCL_LINE_NVLINK_IN),
				 free_on(load, capacity, pair, HOCCL_LINE_NVLINK_OUT)));
}

struct span {
	uint32_t stage;
	uint64_t capacity[HOCCL_LINES];
	uint64_t start;		/* bytes of engine time that a piece's start-up takes */
	uint64_t crumb;		/* smaller pieces are not cut off */
};

static int fill_cell(struct hoccl_fill *f, const struct span *span, struct hoccl_load *load, int u, int v)
{
	const struct hoccl_layout *layout = f->traffic->layout;
	uint64_t *left = hoccl_fill_cell(f, u, v);

	if (!*left)
		return 0;
	uint64_t room = free_for(layout, load, span->capacity, u, v);
	uint64_t bytes = room < span->start ? 0 : least(*left, room - span->start);

	if (!bytes || (bytes < *left && bytes < span->crumb))
		return 0;
	hoccl_load_local(load, layout, u, v, bytes);
	load[u].bytes[HOCCL_LINE_PUSH] += span->start;
	return hoccl_fill_take(f, span->stage, u, v, bytes);
}

static int fill_node(struct hoccl_fill *f, const struct span *span, struct hoccl_load *load, int node)
{
	const struct hoccl_layout *layout = f->traffic->layout;
	int16_t rows[HOCCL_SCHED_MAX_GPUS], columns[HOCCL_SCHED_MAX_GPUS];
	int size = hoccl_layout_size(layout, node);

	uint64_t columns_left[HOCCL_SCHED_MAX_GPUS];

	for (int i = layout->first[node]; i < layout->first[node + 1]; i++)
		columns_left[layout->member[i]] = f->column[layout->member[i]];
	sort_members(layout, node, layout->member[layout->first[node]], f->row, rows);
	for (int i = 0; i < size && f->row[rows[i]]; i++) {
		sort_members(layout, node, rows[i], columns_left, columns);
		for (int j = 0; j < size && f->row[rows[i]]; j++)
			if (fill_cell(f, span, load, rows[i], columns[j]))
				return HOCCL_PLAN_MEMORY;
	}
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

int hoccl_fill_stage(struct hoccl_fill *f, uint32_t stage, uint64_t span_ns, struct hoccl_load *load, bool start)
{
	struct span span = {.stage = stage};
	uint64_t start_bytes = hoccl_rate_bytes(&f->machine->rate[HOCCL_LINE_PUSH], f->machine->start_ns);

	for (int l = 0; l < HOCCL_LINES; l++)
		span.capacity[l] = hoccl_rate_bytes(&f->machine->rate[l], span_ns);
	span.start = start ? start_bytes : 0;
	span.crumb = LEAST_STARTS * start_bytes;
	for (int n = 0; n < f->traffic->layout->nodes; n++)
		if (!node_empty(f, n) && fill_node(f, &span, load, n))
			return HOCCL_PLAN_MEMORY;
	return 0;
}
