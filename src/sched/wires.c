/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relay: GPUs whose NIC has time carry part of what an overloaded neighbour sends or receives.
 *
 * Not in the paper; FAST and NCCL's PXN do it. In HOCCL it costs no further copy: the sender's push has to leave the
 * GPU anyway (zero SM), so it goes to a slot beside the other NIC instead of one on the symmetric GPU:
 *
 *      u ──push──▶ slot on w̄ ──NIC of w ══ NIC of x──▶ slot on x̄ ──pull──▶ v
 *
 * The own symmetric GPU's NIC does not help: both NICs would read slots on ū (a slot on u itself would be a copy within
 * one GPU, on SMs), and one PCIe link feeds little more than one NIC.
 * The level: a GPU keeps its own bytes up to it and gives the rest, destination by destination, to the NICs of its node
 * that are below it. The lowest level at which all find room is searched, but none below what the other lines need
 * anyway. Taken only if the bound of all lines, NVLink and PCIe included, gets better.
 */
#include "sched/wires.h"

#include <stdlib.h>
#include <string.h>

#define GAIN_PERCENT 2
#define LEAST_PIECE ((uint64_t)1 << 20)	/* what is not worth a connection of its own */
#define LARGEST_LOAD ((uint64_t)1 << 61)	/* with relay a line carries up to four line sums */

/* How a GPU's bytes of one direction are dealt to the NICs of its node. */
struct deal {
	uint64_t room[HOCCL_SCHED_MAX_GPUS];	/* bytes each NIC may still take from others */
	uint64_t keep[HOCCL_SCHED_MAX_GPUS];	/* bytes each GPU may still send over its own NIC */
	int next[HOCCL_SCHED_MAX_GPUS];		/* of each node: the first helper with room, a position in member[] */
};

struct builder {
	const struct hoccl_traffic *traffic;
	struct hoccl_piece *piece;
	size_t count, room;
	struct deal out, in;
};

/* Could every GPU of a node give away what it has above the level? Its own pair cannot take it. */
static bool level_fits(const struct hoccl_layout *layout, const uint64_t *bytes, int node, uint64_t level)
{
	unsigned __int128 room = 0, excess = 0;

	for (int i = layout->first[node]; i < layout->first[node + 1]; i++) {
		uint64_t own = bytes[layout->member[i]];

		room += own < level ? level - own : 0;
		excess += own > level ? own - level : 0;
	}
	if (excess > room)
		return false;
	for (int i = layout->first[node]; i < layout->first[node + 1]; i++) {
		int g = layout->member[i], pair = layout->pair[g];
		uint64_t own = bytes[g] > level ? bytes[g] - level : 0;
		uint64_t useless = pair >= 0 && bytes[pair] < level ? level - bytes[pair] : 0;

		if (own && own + (unsigned __int128)useless > room)
			return false;
	}
	return true;
}

/* The lowest level at which one direction of a node fits, to a part in 1024 of its busiest NIC. */
static uint64_t node_level(const struct hoccl_layout *layout, const uint64_t *bytes, int node, uint64_t least)
{
	uint64_t low = least, high = 0;

	for (int i = layout->first[node]; i < layout->first[node + 1]; i++)
		high = bytes[layout->member[i]] > high ? bytes[layout->member[i]] : high;
	uint64_t step = high / 1024 + 1;

	while (low + step < high) {
		uint64_t middle = low + (high - low) / 2;

		if (level_fits(layout, bytes, node, middle))
			high = middle;
		else
			low = middle;
	}
	return high;
}

/* The least that the busiest NIC must carry, whatever is relayed; in bytes. */
static uint64_t least_level(const struct hoccl_traffic *t, const struct hoccl_machine *machine)
{
	const struct hoccl_layout *layout = t->layout;
	uint64_t ns = 0;

	for (int g = 0; g < layout->gpus; g++)
		for (int l = 0; l < HOCCL_LINES; l++) {
			bool pcie = l == HOCCL_LINE_PCIE_OUT || l == HOCCL_LINE_PCIE_IN;
			bool fixed = l <= HOCCL_LINE_NVLINK_IN || (pcie && layout->pair[g] == HOCCL_PAIR_HOST);
			uint64_t line = fixed ? hoccl_rate_time(&machine->rate[l], t->load[g].bytes[l]) : 0;

			ns = line > ns ? line : ns;
		}
	uint64_t level = hoccl_rate_bytes(&machine->rate[HOCCL_LINE_NIC_OUT], ns);

	for (int n = 0; n < layout->nodes; n++) {
		uint64_t out = node_level(layout, t->off_out, n, level);

		level = out > level ? out : level;
		uint64_t in = node_level(layout, t->off_in, n, level);

		level = in > level ? in : level;
	}
	return level;
}

static void deal_init(struct deal *deal, const struct hoccl_layout *layout, const uint64_t *bytes, uint64_t level)
{
	for (int g = 0; g < layout->gpus; g++) {
		deal->keep[g] = bytes[g] < level ? bytes[g] : level;
		deal->room[g] = level - deal->keep[g];
		if (bytes[g] > level && bytes[g] - level < LEAST_PIECE)
			deal->keep[g] = bytes[g];
	}
	for (int n = 0; n < layout->nodes; n++)
		deal->next[n] = layout->first[n];
}

/* The next NIC for a part of `bytes` of `gpu`'s, and (in *part) how much of them it takes. */
static int deal_next(struct deal *deal, const struct hoccl_layout *layout, int gpu, uint64_t bytes, uint64_t *part)
{
	int node = layout->node[gpu], end = layout->first[node + 1];

	if (deal->keep[gpu]) {
		*part = bytes < deal->keep[gpu] ? bytes : deal->keep[gpu];
		deal->keep[gpu] -= *part;
		return gpu;
	}
	while (deal->next[node] < end && deal->room[layout->member[deal->next[node]]] < LEAST_PIECE)
		deal->next[node]++;
	*part = bytes;
	for (int i = deal->next[node]; i < end; i++) {
		int helper = layout->member[i];

		if (helper == layout->pair[gpu] || helper == gpu || deal->room[helper] < LEAST_PIECE)
			continue;
		*part = bytes < deal->room[helper] ? bytes : deal->room[helper];
		deal->room[helper] -= *part;
		return helper;
	}
	return gpu;
}

static int add_piece(struct builder *b, const struct hoccl_path *path, uint64_t bytes, uint64_t offset)
{
	if (b->count == b->room) {
		size_t room = b->room ? 2 * b->room : 1024;
		struct hoccl_piece *larger = realloc(b->piece, room * sizeof(*larger));

		if (!larger)
			return HOCCL_PLAN_MEMORY;
		b->piece = larger;
		b->room = room;
	}
	b->piece[b->count++] = (struct hoccl_piece){*path, bytes, offset};
	return 0;
}

static int split_flow(struct builder *b, int u, int v, uint64_t bytes)
{
	const struct hoccl_layout *layout = b->traffic->layout;
	uint64_t offset = 0;

	while (offset < bytes) {
		uint64_t sent, taken;
		struct hoccl_path path = {.src = u, .dst = v};

		path.out = deal_next(&b->out, layout, u, bytes - offset, &sent);
		while (sent) {
			path.in = deal_next(&b->in, layout, v, sent, &taken);
			if (add_piece(b, &path, taken, offset))
				return HOCCL_PLAN_MEMORY;
			offset += taken;
			sent -= taken;
		}
	}
	return 0;
}

static int split_all(struct builder *b)
{
	const struct hoccl_layout *layout = b->traffic->layout;
	int gpus = layout->gpus;

	for (int u = 0; u < gpus; u++)
		for (int k = 1; k < gpus; k++) {	/* begin behind u, so that helpers of different rows differ */
			int v = (u + k) % gpus;
			uint64_t bytes = b->traffic->c[(size_t)u * (size_t)gpus + (size_t)v];

			if (bytes && layout->node[u] != layout->node[v] && split_flow(b, u, v, bytes))
				return HOCCL_PLAN_MEMORY;
		}
	return 0;
}

/* Counting sort of the pieces by (out, in), and R from them. */
static int index_pieces(struct hoccl_wires *w, const struct builder *b)
{
	size_t gpus = (size_t)w->layout->gpus, cells = gpus * gpus;

	w->own = calloc(cells, sizeof(*w->own));
	w->cell = calloc(cells + 2, sizeof(*w->cell));
	w->piece = malloc((b->count ? b->count : 1) * sizeof(*w->piece));
	if (!w->own || !w->cell || !w->piece)
		return HOCCL_PLAN_MEMORY;
	for (size_t i = 0; i < b->count; i++)
		w->cell[(size_t)b->piece[i].path.out * gpus + (size_t)b->piece[i].path.in + 2]++;
	for (size_t i = 2; i <= cells + 1; i++)
		w->cell[i] += w->cell[i - 1];
	for (size_t i = 0; i < b->count; i++) {
		const struct hoccl_piece *p = &b->piece[i];
		size_t at = (size_t)p->path.out * gpus + (size_t)p->path.in;

		w->piece[w->cell[at + 1]++] = *p;
		w->own[at] += p->bytes;
		if (p->path.out != p->path.src || p->path.in != p->path.dst)
			w->relayed += p->bytes;
	}
	w->pieces = b->count;
	w->r = w->own;
	return 0;
}

static int relay_loads(struct hoccl_wires *w, const struct hoccl_traffic *t)
{
	const struct hoccl_layout *layout = w->layout;
	int gpus = layout->gpus;

	w->load = calloc((size_t)gpus, sizeof(*w->load));
	if (!w->load)
		return HOCCL_PLAN_MEMORY;
	for (int n = 0; n < layout->nodes; n++)
		for (int i = layout->first[n]; i < layout->first[n + 1]; i++)
			for (int j = layout->first[n]; j < layout->first[n + 1]; j++) {
				int u = layout->member[i], v = layout->member[j];

				hoccl_load_local(w->load, layout, u, v, t->c[(size_t)u * (size_t)gpus + (size_t)v]);
			}
	for (size_t i = 0; i < w->pieces; i++)
		hoccl_load_wire(w->load, layout, &w->piece[i].path, w->piece[i].bytes);
	return 0;
}

static void direct(struct hoccl_wires *w, const struct hoccl_traffic *t)
{
	*w = (struct hoccl_wires){.layout = t->layout, .r = t->c};
}

static bool better(uint64_t now, uint64_t before)
{
	return now <= before - before / 100 * GAIN_PERCENT && now < before;
}

static int try_relay(struct hoccl_wires *w, const struct hoccl_traffic *t, uint64_t level)
{
	struct builder *b = calloc(1, sizeof(*b));
	int status = HOCCL_PLAN_MEMORY;

	if (!b)
		return status;
	b->traffic = t;
	deal_init(&b->out, t->layout, t->off_out, level);
	deal_init(&b->in, t->layout, t->off_in, level);
	status = split_all(b);
	if (!status)
		status = index_pieces(w, b);
	if (!status)
		status = relay_loads(w, t);
	free(b->piece);
	free(b);
	return status;
}

int hoccl_wires_init(struct hoccl_wires *w, const struct hoccl_traffic *t, const struct hoccl_machine *machine,
		     bool relay, struct hoccl_plan_error *error)
{
	int gpus = t->layout->gpus;
	uint64_t bound = hoccl_load_time(t->load, gpus, machine, NULL, NULL), most = 0;

	direct(w, t);
	for (int g = 0; g < gpus; g++) {
		most = t->off_out[g] > most ? t->off_out[g] : most;
		most = t->off_in[g] > most ? t->off_in[g] : most;
	}
	if (!relay || !most || most >= LARGEST_LOAD)
		return 0;
	uint64_t level = least_level(t, machine);

	if (level >= LARGEST_LOAD || !better(hoccl_rate_time(&machine->rate[HOCCL_LINE_NIC_OUT], level), bound))
		return 0;
	if (try_relay(w, t, level)) {
		hoccl_wires_fini(w);
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for the relay of %d GPUs", gpus);
	}
	if (!better(hoccl_load_time(w->load, gpus, machine, NULL, NULL), bound)) {
		hoccl_wires_fini(w);
		direct(w, t);
	}
	return 0;
}

void hoccl_wires_fini(struct hoccl_wires *w)
{
	free(w->own);
	free(w->cell);
	free(w->piece);
	free(w->load);
	*w = (struct hoccl_wires){0};
}
