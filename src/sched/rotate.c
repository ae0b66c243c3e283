/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uniform patterns by rotation (design: paper section 3.4 needs no search where all entries are equal).
 *
 * Nodes of equal size n, N of them: stage s = (d, j), d = 1..N-1 nodes ahead, j = 0..n-1 places ahead:
 *
 *      (node a, place i) ──▶ (node a + d mod N, place i + j mod n)
 *
 * a permutation of all ranks in every stage, G - n stages, the least there can be. Nodes of different sizes: rank p
 * sends to p + s mod G over the sorted ranks; a stage's pairs within a node are left out (they are native traffic), so
 * some ranks rest in some stages. Native traffic is spread evenly: what a rank sends to its node's
 * peers, beginning with the next one, is one string of bytes of which every stage takes an equal length; so is its self
 * copy. A single node has no wires: stage s is the peer s + 1 places ahead, a permutation again, and the last stage the
 * self copies.
 */
#include "sched/rotate.h"

#include "sched/traffic.h"

#include <stdlib.h>
#include <string.h>

/* Place of a rank in the order of nodes, and the rank at a place. */
static int place(const struct hoccl_layout *layout, int rank)
{
	return layout->first[layout->node[rank]] + layout->local[rank];
}

static int peer_at(const struct hoccl_rotation *r, int rank, uint32_t stage, int sign)
{
	const struct hoccl_layout *layout = r->layout;
	int gpus = layout->gpus, size = hoccl_layout_size(layout, 0);

	if (layout->nodes == 1 || stage >= r->stages)
		return -1;
	if (layout->even) {
		int nodes = layout->nodes, ahead = 1 + (int)stage / size, places = (int)stage % size;
		int node = (layout->node[rank] + sign * ahead + nodes) % nodes;
		int local = (layout->local[rank] + sign * places + size) % size;

		return layout->member[layout->first[node] + local];
	}
	int peer = layout->member[(place(layout, rank) + sign * ((int)stage + 1) + gpus) % gpus];

	return layout->node[peer] == layout->node[rank] ? -1 : peer;
}

int hoccl_rotation_to(const struct hoccl_rotation *r, int rank, uint32_t stage)
{
	return peer_at(r, rank, stage, 1);
}

int hoccl_rotation_from(const struct hoccl_rotation *r, int rank, uint32_t stage)
{
	return peer_at(r, rank, stage, -1);
}

/* Where stage `stage` begins in a string of `length` bytes. */
static uint64_t cut(const struct hoccl_rotation *r, uint64_t length, uint32_t stage)
{
	return (uint64_t)((unsigned __int128)length * stage / r->stages);
}

static bool self_piece(const struct hoccl_rotation *r, int rank, uint32_t stage, int *peer, uint64_t *offset,
		       uint64_t *bytes)
{
	*peer = rank;
	*offset = cut(r, r->bytes, stage);
	*bytes = cut(r, r->bytes, stage + 1) - *offset;
	return *bytes;
}

bool hoccl_rotation_local(const struct hoccl_rotation *r, int rank, uint32_t stage, int i, int *peer,
			  uint64_t *offset, uint64_t *bytes)
{
	const struct hoccl_layout *layout = r->layout;
	int node = layout->node[rank], size = hoccl_layout_size(layout, node);

	if (!r->bytes || stage >= r->stages)
		return false;
	if (layout->nodes == 1) {
		*peer = layout->member[(layout->local[rank] + 1 + (int)stage) % size];
		*offset = 0;
		*bytes = r->bytes;
		return i == 0;
	}
	uint64_t length = r->bytes * (uint64_t)(size - 1);
	uint64_t begin = cut(r, length, stage), end = cut(r, length, stage + 1);
	uint64_t which = begin / r->bytes + (uint64_t)i, here = which * r->bytes;
	uint64_t from = here > begin ? here : begin, to = here + r->bytes < end ? here + r->bytes : end;

	if (begin == end || here >= end) {
		uint64_t pieces = begin == end ? 0 : (end - 1) / r->bytes - begin / r->bytes + 1;

		return (uint64_t)i == pieces && self_piece(r, rank, stage, peer, offset, bytes);
	}
	*peer = layout->member[layout->first[node] + (layout->local[rank] + 1 + (int)which) % size];
	*offset = from - here;
	*bytes = to - from;
	return true;
}

/* τ: one entry in and out on the wire, with its forwarding copies, and an equal share of the traffic within the node. */
static uint64_t stage_time(const struct hoccl_rotation *r, const struct hoccl_machine *machine,
			   struct hoccl_load *load)
{
	const struct hoccl_layout *layout = r->layout;

	memset(load, 0, (size_t)layout->gpus * sizeof(load[0]));
	for (int g = 0; g < layout->gpus; g++) {
		uint64_t peers = (uint64_t)hoccl_layout_size(layout, layout->node[g]) - 1;
		uint64_t native = (peers * r->bytes + r->stages - 1) / r->stages;

		if (layout->nodes > 1)
			hoccl_load_ends(load, layout, g, r->bytes, r->bytes);
		load[g].bytes[HOCCL_LINE_PUSH] += native;
		load[g].bytes[HOCCL_LINE_NVLINK_OUT] += native;
		load[g].bytes[HOCCL_LINE_NVLINK_IN] += native;
		hoccl_load_local(load, layout, g, g, (r->bytes + r->stages - 1) / r->stages);
	}
	return hoccl_load_time(load, layout->gpus, machine, NULL, NULL);
}

/* Of a single node: one entry to a peer, or the self copies of all. */
static uint64_t node_time(const struct hoccl_rotation *r, const struct hoccl_machine *machine, bool self,
			  struct hoccl_load *load)
{
	const struct hoccl_layout *layout = r->layout;

	memset(load, 0, (size_t)layout->gpus * sizeof(load[0]));
	for (int i = 0; i < layout->gpus; i++) {
		int next = layout->member[(i + 1) % layout->gpus], g = layout->member[i];

		hoccl_load_local(load, layout, g, self ? g : next, r->bytes);
	}
	return hoccl_load_time(load, layout->gpus, machine, NULL, NULL) + machine->start_ns;
}

static uint32_t stage_count(const struct hoccl_layout *layout)
{
	int size = hoccl_layout_size(layout, 0);

	if (layout->nodes == 1)
		return (uint32_t)size;
	return (uint32_t)(layout->even ? layout->gpus - size : layout->gpus - 1);
}

struct hoccl_rotation hoccl_rotation_rule(const struct hoccl_layout *layout)
{
	return (struct hoccl_rotation){.layout = layout, .stages = stage_count(layout)};
}

static int init(struct hoccl_rotation *r, const struct hoccl_machine *machine, struct hoccl_traffic *traffic,
		struct hoccl_plan_error *error)
{
	const struct hoccl_layout *layout = r->layout;
	bool single = layout->nodes == 1;
	int status = hoccl_traffic_uniform(traffic, layout, r->bytes, error);

	if (!status)
		status = hoccl_traffic_bound(traffic, machine, &r->bound_ns, error);
	if (status || !r->bytes)
		return status;
	struct hoccl_load *load = traffic->load;	/* not needed any more */

	r->stages = stage_count(layout);
	r->stage_ns = single ? node_time(r, machine, false, load) : stage_time(r, machine, load) + machine->start_ns;
	r->self_ns = single ? node_time(r, machine, true, load) : r->stage_ns;
	r->sum_ns = (r->stages - 1) * r->stage_ns + r->self_ns;
	return 0;
}

int hoccl_rotation_init(struct hoccl_rotation *rotation, const struct hoccl_layout *layout,
			const struct hoccl_machine *machine, uint64_t bytes, struct hoccl_plan_error *error)
{
	struct hoccl_rotation r = {.layout = layout, .bytes = bytes};
	struct hoccl_traffic *traffic = malloc(sizeof(*traffic));
	int status;

	if (!traffic)
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for a rotation of %d GPUs", layout->gpus);
	status = init(&r, machine, traffic, error);
	free(traffic);
	if (!status)
		*rotation = r;
	return status;
}
