/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Broadcast: pieces down trees (the paper has none; its section 3.4 rules apply: a piece crosses to a node once, and a
 * GPU has one copy of it to receive).
 *
 *      node 0 (root r)             node 1                    node 2
 *      r ──▶ a ──▶ b               c ──▶ d ──▶ e             f ──▶ g        ──▶ within a node, over NVLink
 *            ╚═══════════════════▶ ║                         ▲              ══▶ over the wire
 *                                  ╚═════════════════════════╝
 *
 * Nodes are a tree, and the ranks of each node are one: position p's parent is (p − 1) / ways, so one way is a chain
 * (every link carries the message once: long messages, in many pieces) and many ways are the root sending to all (short
 * ones). Position 0 of a node is the rank by which the piece comes in. With rails that is another rank for each piece,
 * round robin, so that all NICs of a node carry a share; in the root's node the ranks other than the root are a ring
 * that begins there. Without rails it is always the same rank and the root itself sends over the wire.
 *
 * The model: a piece is passed on when it has come whole, so
 *
 *      time = (steps of the first piece) + (pieces − 1) × (the busiest link's time for a piece)
 */
#include "sched/broadcast.h"

#define LEAST_PIECE (UINT64_C(256) << 10)
#define ALIGNED 4096	/* pieces begin at multiples of it */

/* ---- the trees --------------------------------------------------------------------------------------------------- */

static int node_of(const struct hoccl_broadcast *b, int rank)
{
	return b->layout ? b->layout->node[rank] : 0;
}

static int nodes_of(const struct hoccl_broadcast *b)
{
	return b->layout ? b->layout->nodes : 1;
}

static int size_of(const struct hoccl_broadcast *b, int node)
{
	return b->layout ? hoccl_layout_size(b->layout, node) : b->ranks;
}

static int local_of(const struct hoccl_broadcast *b, int rank)
{
	return b->layout ? b->layout->local[rank] : rank;
}

static int member(const struct hoccl_broadcast *b, int node, int local)
{
	return b->layout ? b->layout->member[b->layout->first[node] + local] : local;
}

/* Where a node's tree of this piece begins: in the root's node behind the root, whose place is the last. */
static int start_of(const struct hoccl_broadcast *b, int node, uint32_t piece)
{
	int start = b->rails ? (int)(piece % (uint32_t)size_of(b, node)) : 0;

	if (node != node_of(b, b->root))
		return start;
	return start == size_of(b, node) - 1 ? 0 : start;
}

/* Ranks of the root's node other than the root, from the one behind it on, are a ring of size − 1. */
static int place_of(const struct hoccl_broadcast *b, int rank, uint32_t piece)
{
	int node = node_of(b, rank), size = size_of(b, node), start = start_of(b, node, piece);

	if (node != node_of(b, b->root))
		return (local_of(b, rank) - start + size) % size;
	if (rank == b->root)
		return 0;
	int behind = (local_of(b, rank) - local_of(b, b->root) - 1 + size) % size;

	return 1 + (behind - start + size - 1) % (size - 1);
}

static int rank_at(const struct hoccl_broadcast *b, int node, int place, uint32_t piece)
{
	int size = size_of(b, node), start = start_of(b, node, piece);

	if (node != node_of(b, b->root))
		return member(b, node, (start + place) % size);
	if (!place)
		return b->root;
	int behind = (start + place - 1) % (size - 1);

	return member(b, node, (local_of(b, b->root) + 1 + behind) % size);
}

/* By whom the piece leaves a node: by whom it came in, and in the root's node by each in turn, the root the last. */
static int speaker(const struct hoccl_broadcast *b, int node, uint32_t piece)
{
	int size = size_of(b, node);
	bool root_speaks = !b->rails || (int)(piece % (uint32_t)size) == size - 1;

	return rank_at(b, node, node == node_of(b, b->root) && !root_speaks, piece);
}

/* Nodes in their order from the root's on. */
static int node_place(const struct hoccl_broadcast *b, int node)
{
	return (node - node_of(b, b->root) + nodes_of(b)) % nodes_of(b);
}

static int node_at(const struct hoccl_broadcast *b, int place)
{
	return (node_of(b, b->root) + place) % nodes_of(b);
}

int hoccl_broadcast_from(const struct hoccl_broadcast *b, int rank, uint32_t piece)
{
	int node = node_of(b, rank), place = place_of(b, rank, piece);

	if (rank == b->root)
		return -1;
	if (place)
		return rank_at(b, node, (place - 1) / b->rank_ways, piece);
	return speaker(b, node_at(b, (node_place(b, node) - 1) / b->node_ways), piece);
}

/* How many children a place has in a tree of `size` places. */
static int children(int place, int ways, int size)
{
	int64_t first = (int64_t)place * ways + 1;

	return first >= size ? 0 : size - first < ways ? (int)(size - first) : ways;
}

int hoccl_broadcast_to(const struct hoccl_broadcast *b, int rank, uint32_t piece, int i)
{
	int node = node_of(b, rank), place = place_of(b, rank, piece);
	bool speaks = nodes_of(b) > 1 && speaker(b, node, piece) == rank;
	int away = speaks ? children(node_place(b, node), b->node_ways, nodes_of(b)) : 0;

	if (i < away)
		return rank_at(b, node_at(b, node_place(b, node) * b->node_ways + 1 + i), 0, piece);
	if (i - away < children(place, b->rank_ways, size_of(b, node)))
		return rank_at(b, node, place * b->rank_ways + 1 + i - away, piece);
	return -1;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static int depth(int size, int ways)
{
	int steps = 0;

	for (int place = size - 1; place > 0; place = (place - 1) / ways)
		steps++;
	return steps;
}

static void cut(struct hoccl_broadcast *b, uint32_t pieces)
{
	uint64_t size = b->bytes / pieces + (b->bytes % pieces != 0);

	if (pieces > 1)
		size = (size + ALIGNED - 1) / ALIGNED * ALIGNED;
	b->piece_bytes = size;
	b->pieces = size ? (uint32_t)(b->bytes / size + (b->bytes % size != 0)) : 0;
}

static int largest_node(const struct hoccl_broadcast *b)
{
	int most = 0;

	for (int n = 0; n < nodes_of(b); n++)
		most = size_of(b, n) > most ? size_of(b, n) : most;
	return most;
}

static int least(int a, int b)
{
	return a < b ? a : b;
}

/* Rails pay where the pieces fill them; a node of one rank has none. */
static uint64_t predict(const struct hoccl_broadcast *b, const struct hoccl_machine *m, int largest)
{
	uint64_t hop = m->copy_ns + m->seen_ns, size = b->piece_bytes;
	uint64_t push = m->copy_ns + hoccl_rate_time(&m->rate[HOCCL_LINE_PUSH], size);
	uint64_t wire = m->wire_ns + hoccl_rate_time(hoccl_machine_wire(m), size);
	uint64_t ranks = (uint64_t)least(b->rank_ways, largest - 1) * push;
	uint64_t nodes = (uint64_t)least(b->node_ways, nodes_of(b) - 1) * wire;
	uint64_t first = (uint64_t)depth(largest, b->rank_ways) * (hop + ranks);
	uint64_t busiest = b->rails ? nodes / (uint64_t)largest : nodes;

	first += (uint64_t)depth(nodes_of(b), b->node_ways) * (3 * hop + nodes); /* a copy, the wire, a copy */
	if (b->rails)
		first += hop + push;
	return first + (b->pieces - 1) * (ranks > busiest ? ranks : busiest);
}

static void consider(struct hoccl_broadcast *best, struct hoccl_broadcast b, const struct hoccl_machine *machine, int largest)
{
	b.ns = predict(&b, machine, largest);
	if (b.ns < best->ns)
		*best = b;
}

void hoccl_broadcast_plan(struct hoccl_broadcast *b, const struct hoccl_layout *layout, int ranks,
			  const struct hoccl_machine *machine, int root, uint64_t bytes)
{
	static const int ways[] = {8, 4, 2, 1};
	struct hoccl_broadcast best = {.layout = layout, .ranks = ranks, .root = root, .bytes = bytes, .ns = UINT64_MAX};
	struct hoccl_broadcast x = best;
	int largest = largest_node(&x), nodes = nodes_of(&x) > 1 ? 4 : 1;

	best.node_ways = best.rank_ways = 8;
	for (uint32_t pieces = 1; pieces <= HOCCL_BROADCAST_PIECES && bytes; pieces *= 2) {
		if (pieces > 1 && bytes / pieces < LEAST_PIECE)
			break;
		cut(&x, pieces);
		for (int i = 0; i < nodes * 4; i++) {
			x.rank_ways = ways[i % 4];
			x.node_ways = ways[i / 4];
			for (int rails = 0; rails < (nodes > 1 && (int)x.pieces >= largest && largest > 1 ? 2 : 1); rails++) {
				x.rails = rails;
				consider(&best, x, machine, largest);
			}
		}
	}
	*b = best;
}
