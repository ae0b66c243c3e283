/* SPDX-License-Identifier: Apache-2.0 */
/* Unit tests of the planner's parts: what the paper says of them, limits, errors. */
#include "sched/broadcast.h"
#include "sched/choice.h"
#include "sched/chunks.h"
#include "sched/collective.h"
#include "sched/plan.h"
#include "sched/rotate.h"
#include "sched_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)

static const struct hoccl_machine *h800(void)
{
	return hoccl_machine_find("h800");
}

static struct hoccl_layout *grid(int nodes, int each, int lone)
{
	struct hoccl_layout *layout = malloc(sizeof(*layout));

	assert_int_equal(hoccl_layout_grid(layout, nodes, each, lone, NULL), 0);
	return layout;
}

/* Figure 6: flows f1..f12 of the off-diagonal entries, row by row; a power of two each, so that sums can be read. */
static void fill_figure6(uint64_t *c)
{
	int f = 0;

	for (int i = 0; i < 16; i++)
		c[i] = i / 4 == i % 4 ? 0 : UINT64_C(1) << ++f;
}

static void test_paper_cell_1(void **state)
{
	struct hoccl_layout *layout = grid(2, 2, HOCCL_PAIR_HOST);
	struct hoccl_traffic *t = malloc(sizeof(*t));
	uint64_t c[16];

	(void)state;
	fill_figure6(c);
	assert_int_equal(hoccl_traffic_init(t, layout, c, NULL), 0);
	/* equation 5: F1 = f1 + f2' + f3' + f8'' + f11'' */
	assert_int_equal(hoccl_traffic_entry(t, 0, 1), 1 << 1 | 1 << 2 | 1 << 3 | 1 << 8 | 1 << 11);
	/* between nodes nothing is added */
	assert_int_equal(hoccl_traffic_entry(t, 0, 2), 1 << 2);
	assert_int_equal(hoccl_traffic_entry(t, 3, 1), 1 << 11);
	/* F12 = f12 + what 3 sends off its node + what 2 receives from the other */
	assert_int_equal(hoccl_traffic_entry(t, 3, 2), 1 << 12 | 1 << 10 | 1 << 11 | 1 << 2 | 1 << 5);
	free(t);
	free(layout);
}

/* The lines' loads are the row and column sums of T, and self copies go to the symmetric GPU and back. */
static void test_loads_are_lines_of_t(void **state)
{
	struct hoccl_layout *layout = grid(2, 4, HOCCL_PAIR_HOST);
	struct hoccl_traffic *t = malloc(sizeof(*t));
	uint64_t c[64];

	(void)state;
	for (int i = 0; i < 64; i++)
		c[i] = (uint64_t)(i * 7919 % 1000);
	assert_int_equal(hoccl_traffic_init(t, layout, c, NULL), 0);
	for (int g = 0; g < 8; g++) {
		uint64_t row = 0, column = 0, out = 0;

		for (int v = 0; v < 8; v++) {
			bool same = layout->node[g] == layout->node[v];

			row += same ? hoccl_traffic_entry(t, g, v) : 0;
			column += same ? hoccl_traffic_entry(t, v, g) : 0;
			out += same ? 0 : c[g * 8 + v];
		}
		assert_int_equal(t->load[g].bytes[HOCCL_LINE_NVLINK_OUT], row);
		assert_int_equal(t->load[g].bytes[HOCCL_LINE_NVLINK_IN], column);
		assert_int_equal(t->load[g].bytes[HOCCL_LINE_NIC_OUT], out);
	}
	free(t);
	free(layout);
}

static void test_overflow_names_the_entry(void **state)
{
	struct hoccl_layout *layout = grid(1, 4, HOCCL_PAIR_HOST);
	struct hoccl_plan_error error;
	struct hoccl_plan *plan = NULL;
	uint64_t c[16] = {0};

	(void)state;
	c[4] = c[6] = (uint64_t)1 << 62;
	assert_int_equal(hoccl_plan_make(&plan, layout, h800(), c, NULL, &error), HOCCL_PLAN_OVERFLOW);
	assert_non_null(strstr(error.text, "C[1,2]"));
	assert_non_null(strstr(error.text, "row 1"));
	assert_null(plan);
	c[6] = 0;
	c[12] = (uint64_t)1 << 62;
	assert_int_equal(hoccl_plan_make(&plan, layout, h800(), c, NULL, &error), HOCCL_PLAN_OVERFLOW);
	assert_non_null(strstr(error.text, "column 0"));
	c[12]--;
	assert_int_equal(hoccl_plan_make(&plan, layout, h800(), c, NULL, &error), 0);
	assert_null(hoccl_check_plan(plan, layout, h800(), c));
	hoccl_plan_free(plan);
	c[0] = UINT64_MAX;
	assert_int_equal(hoccl_plan_make(&plan, layout, h800(), c, NULL, &error), HOCCL_PLAN_OVERFLOW);
	assert_non_null(strstr(error.text, "C[0,0]"));
	free(layout);
}

static void expect_layout(int gpus, const int *node, const int *pair, const char *text)
{
	struct hoccl_layout *layout = malloc(sizeof(*layout));
	struct hoccl_plan_error error = {""};

	assert_int_equal(hoccl_layout_make(layout, gpus, node, pair, &error), HOCCL_PLAN_ARGUMENT);
	if (!strstr(error.text, text))
		fail_msg("\"%s\" does not contain \"%s\"", error.text, text);
	free(layout);
}

static void test_layout_errors(void **state)
{
	(void)state;
	expect_layout(0, (int[]){0}, (int[]){-1}, "0 GPUs");
	expect_layout(2, (int[]){0, 5}, (int[]){-1, -1}, "GPU 1: node 5");
	expect_layout(3, (int[]){0, 2, 2}, (int[]){-1, -1, -1}, "node 1 has no GPU");
	expect_layout(2, (int[]){0, 0}, (int[]){0, -1}, "its own symmetric GPU");
	expect_layout(2, (int[]){0, 0}, (int[]){1, -1}, "names 1 as symmetric");
	expect_layout(2, (int[]){0, 1}, (int[]){1, 0}, "nodes 0 and 1");
	expect_layout(2, (int[]){0, 0}, (int[]){7, -1}, "7 is unknown");
	expect_layout(1, (int[]){-1}, (int[]){-1}, "node -1");
}

static void test_rates(void **state)
{
	static const uint64_t speeds[] = {100000000, 48800000000, 200000000000, 333333333333, 100000000000000};

	(void)state;
	for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++) {
		struct hoccl_rate rate = hoccl_rate_of(speeds[i]);

		assert_int_equal(hoccl_rate_time(&rate, 0), 0);
		assert_in_range(hoccl_rate_time(&rate, speeds[i]), 1000000000, 1000000001);
		for (uint64_t ns = 1; ns < (uint64_t)1 << 60; ns = ns * 5 + 3) {
			uint64_t bytes = hoccl_rate_bytes(&rate, ns);

			if (bytes == UINT64_MAX)
				break;
			assert_true(hoccl_rate_time(&rate, bytes) <= ns);
			assert_true(hoccl_rate_time(&rate, bytes + 1) > ns);
		}
	}
	for (int l = 0; l < HOCCL_LINES; l++) {	/* the models' constants are what the function computes */
		struct hoccl_rate rate = hoccl_rate_of(h800()->rate[l].bytes_per_s);

		assert_int_equal(rate.ns_scaled, h800()->rate[l].ns_scaled);
	}
	assert_null(hoccl_machine_find("abacus"));
}

/* Every pair of ranks exactly once, whole; who is sent to receives from that one; one wire in and out a stage. */
static void check_rotation(const struct hoccl_layout *layout, uint64_t bytes)
{
	int gpus = layout->gpus;
	uint64_t *moved = calloc((size_t)gpus * (size_t)gpus, sizeof(*moved));
	struct hoccl_rotation r;

	assert_int_equal(hoccl_rotation_init(&r, layout, h800(), bytes, NULL), 0);
	for (uint32_t s = 0; s < r.stages; s++)
		for (int g = 0; g < gpus; g++) {
			int to = hoccl_rotation_to(&r, g, s), peer;
			uint64_t offset, part;

			if (to >= 0) {
				assert_int_equal(hoccl_rotation_from(&r, to, s), g);
				assert_int_not_equal(layout->node[to], layout->node[g]);
				moved[g * gpus + to] += bytes;
			}
			for (int i = 0; hoccl_rotation_local(&r, g, s, i, &peer, &offset, &part); i++) {
				assert_int_equal(layout->node[peer], layout->node[g]);
				assert_int_equal(offset, moved[g * gpus + peer]);
				moved[g * gpus + peer] += part;
			}
		}
	for (int i = 0; i < gpus * gpus; i++)
		assert_int_equal(moved[i], bytes);
	assert_true(r.sum_ns >= r.bound_ns);
	free(moved);
}

static void test_rotation(void **state)
{
	static const int grids[][2] = {{1, 1}, {1, 2}, {1, 7}, {5, 1}, {2, 8}, {3, 3}, {8, 8}, {4, 2}};
	int node[] = {0, 0, 1, 1, 1, 2, 0, 2, 1}, pair[] = {1, 0, 3, 2, -1, -2, -1, -1, -2};
	struct hoccl_layout uneven;

	(void)state;
	for (size_t i = 0; i < sizeof(grids) / sizeof(grids[0]); i++) {
		struct hoccl_layout *layout = grid(grids[i][0], grids[i][1], HOCCL_PAIR_OUTSIDE);

		check_rotation(layout, 64 * MIB);
		check_rotation(layout, 5);
		free(layout);
	}
	assert_int_equal(hoccl_layout_make(&uneven, 9, node, pair, NULL), 0);
	check_rotation(&uneven, 12345);
}

/* Two nodes of eight, 1 GiB: the paper's Alltoall; 97.6 GB/s is what the NICs allow. */
static void test_rotation_reaches_the_bound(void **state)
{
	struct hoccl_layout *layout = grid(2, 8, HOCCL_PAIR_HOST);
	struct hoccl_rotation r;

	(void)state;
	assert_int_equal(hoccl_rotation_init(&r, layout, h800(), 64 * MIB, NULL), 0);
	assert_int_equal(r.stages, 8);
	assert_true(r.sum_ns <= r.bound_ns + 8 * h800()->start_ns + 8);
	assert_in_range(1024 * MIB * 100 / r.bound_ns, 9755, 9765);
	free(layout);
}

static void add_flows(struct hoccl_chunks *q, const uint64_t *bytes, int flows, bool by_size)
{
	assert_int_equal(hoccl_chunks_init(q, 4 * MIB), 0);
	for (int i = 0; i < flows; i++)
		assert_int_equal(hoccl_chunks_add(q, (uint64_t)i, bytes[i], by_size ? bytes[i] : 1), 0);
}

/* Weight = size: all flows end in the last round, one chunk each; in between each has had its share, to a chunk. */
static void test_chunks_end_together(void **state)
{
	const uint64_t bytes[] = {1024 * MIB, 16 * MIB, 100 * MIB + 1, 4 * MIB, 333 * MIB, 1};
	uint64_t given[6] = {0}, total = 0, sum = 0;
	int flows = 6, order = 0, end[6];
	struct hoccl_chunks q;
	struct hoccl_chunk chunk;

	(void)state;
	add_flows(&q, bytes, flows, true);
	for (int i = 0; i < flows; i++)
		total += bytes[i];
	while (hoccl_chunks_next(&q, &chunk, NULL, NULL)) {
		assert_int_equal(chunk.offset, given[chunk.id]);
		given[chunk.id] += chunk.bytes;
		sum += chunk.bytes;
		if (chunk.last)
			end[chunk.id] = order;
		order++;
		for (int i = 0; i < flows; i++) {
			double fair = (double)bytes[i] * (double)sum / (double)total;

			assert_true((double)given[i] < fair + 6 * 4.0 * MIB && (double)given[i] > fair - 6 * 4.0 * MIB);
		}
	}
	for (int i = 0; i < flows; i++) {
		assert_int_equal(given[i], bytes[i]);
		assert_true(end[i] >= order - flows);
	}
	hoccl_chunks_fini(&q);
}

/* Equal weights: 1 MiB beside 1 GiB ends within twice its own time, and a flow that comes later is not behind. */
static void test_chunks_small_beside_huge(void **state)
{
	const uint64_t bytes[] = {1024 * MIB, 16 * MIB};
	struct hoccl_chunk chunk;
	struct hoccl_chunks q;
	int count = 0, late = 0;

	(void)state;
	add_flows(&q, bytes, 2, false);
	do {
		assert_true(hoccl_chunks_next(&q, &chunk, NULL, NULL));
		count++;
	} while (chunk.id != 1 || !chunk.last);
	assert_true(count <= 8);
	for (int i = 0; i < 20; i++)
		assert_true(hoccl_chunks_next(&q, &chunk, NULL, NULL));
	assert_int_equal(hoccl_chunks_add(&q, 2, 8 * MIB, 1), 0);
	do {
		assert_true(hoccl_chunks_next(&q, &chunk, NULL, NULL));
		late++;
	} while (chunk.id != 2 || !chunk.last);
	assert_true(late <= 4);
	hoccl_chunks_fini(&q);
}

static bool only_odd(void *context, uint64_t id)
{
	(void)context;
	return id & 1;
}

static void test_chunks_ready(void **state)
{
	const uint64_t bytes[] = {8 * MIB, 8 * MIB, 8 * MIB};
	struct hoccl_chunk chunk;
	struct hoccl_chunks q;

	(void)state;
	add_flows(&q, bytes, 3, true);
	for (int i = 0; i < 2; i++) {
		assert_true(hoccl_chunks_next(&q, &chunk, only_odd, NULL));
		assert_int_equal(chunk.id, 1);
	}
	assert_false(hoccl_chunks_next(&q, &chunk, only_odd, NULL));
	assert_true(hoccl_chunks_next(&q, &chunk, NULL, NULL));
	assert_int_equal(chunk.id, 0);
	hoccl_chunks_fini(&q);
	assert_int_equal(hoccl_chunks_init(&q, 0), 0);
	assert_int_equal(hoccl_chunks_add(&q, 9, 0, 0), 0);
	assert_false(hoccl_chunks_next(&q, &chunk, NULL, NULL));
	hoccl_chunks_fini(&q);
}

static void test_chunks_rest(void **state)
{
	(void)state;
	assert_int_equal(hoccl_chunks_rest(1000, 100), 0);
	assert_int_equal(hoccl_chunks_rest(1000, 50), 1000);
	assert_int_equal(hoccl_chunks_rest(1000, 80), 250);
	assert_int_equal(hoccl_chunks_rest(1000, 0), 99000);
}

static void test_collectives(void **state)
{
	const uint64_t bytes[] = {1, 2, 3};
	struct hoccl_collective x = {HOCCL_COLLECTIVE_ALLGATHERV, 3, 1, bytes, true};
	struct hoccl_plan_error error;
	uint64_t c[9];

	(void)state;
	assert_int_equal(hoccl_collective_matrix(&x, c, &error), 0);
	assert_memory_equal(c, ((uint64_t[]){0, 1, 1, 2, 0, 2, 3, 3, 0}), sizeof(c));
	x.kind = HOCCL_COLLECTIVE_GATHERV;
	x.in_place = false;
	assert_int_equal(hoccl_collective_matrix(&x, c, &error), 0);
	assert_memory_equal(c, ((uint64_t[]){0, 1, 0, 0, 2, 0, 0, 3, 0}), sizeof(c));
	x.kind = HOCCL_COLLECTIVE_SCATTERV;
	assert_int_equal(hoccl_collective_matrix(&x, c, &error), 0);
	assert_memory_equal(c, ((uint64_t[]){0, 0, 0, 1, 2, 3, 0, 0, 0}), sizeof(c));
	x.kind = HOCCL_COLLECTIVE_BROADCAST;
	assert_int_equal(hoccl_collective_matrix(&x, c, &error), 0);
	assert_memory_equal(c, ((uint64_t[]){0, 0, 0, 1, 0, 1, 0, 0, 0}), sizeof(c));
	assert_false(hoccl_collective_uniform(&x));
	x.root = 3;
	assert_int_equal(hoccl_collective_matrix(&x, c, &error), HOCCL_PLAN_ARGUMENT);
	assert_non_null(strstr(error.text, "root 3"));
}

/* One GPU sends nearly all: its node's other NICs help, and the switch turns that off. */
static void test_relay(void **state)
{
	struct hoccl_layout *layout = grid(2, 8, HOCCL_PAIR_HOST);
	struct hoccl_plan_options options = {HOCCL_PLAN_AUTO, true};
	struct hoccl_plan *with = NULL, *without = NULL;
	uint64_t c[256] = {0};

	(void)state;
	for (int v = 8; v < 16; v++)
		c[v] = 128 * MIB;
	assert_int_equal(hoccl_plan_make(&with, layout, h800(), c, &options, NULL), 0);
	options.relay = false;
	assert_int_equal(hoccl_plan_make(&without, layout, h800(), c, &options, NULL), 0);
	assert_null(hoccl_check_plan(with, layout, h800(), c));
	assert_null(hoccl_check_plan(without, layout, h800(), c));
	assert_true(with->relayed && !without->relayed);
	assert_true(with->makespan_ns * 3 < without->makespan_ns);
	for (size_t i = 0; i < with->wires; i++)	/* both would read slots on GPU 1 */
		assert_int_not_equal(with->wire[i].path.out, 1);
	hoccl_plan_free(with);
	hoccl_plan_free(without);
	free(layout);
}

/* The same bits on every machine, compiler and run. */
static void test_golden_plan(void **state)
{
	static const uint64_t golden[] = {UINT64_C(0x7bb9d13c09cf196f), UINT64_C(0x424da3338701c0d2)};
	struct hoccl_layout *layout = grid(3, 4, HOCCL_PAIR_HOST);
	uint64_t c[144], x = 1;

	(void)state;
	for (int i = 0; i < 144; i++) {
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		c[i] = i % 13 ? x >> 36 : 0;
	}
	for (int method = HOCCL_PLAN_PEEL; method <= HOCCL_PLAN_LIST; method++) {
		struct hoccl_plan_options options = {(enum hoccl_plan_method)method, true};
		struct hoccl_plan *plan = NULL;

		assert_int_equal(hoccl_plan_make(&plan, layout, h800(), c, &options, NULL), 0);
		assert_int_equal(hoccl_plan_hash(plan), golden[method - HOCCL_PLAN_PEEL]);
		hoccl_plan_free(plan);
	}
	free(layout);
}

static void test_nothing_to_do(void **state)
{
	struct hoccl_layout *layout = grid(2, 2, HOCCL_PAIR_HOST);
	struct hoccl_plan *plan = NULL;
	uint64_t c[16] = {0};

	(void)state;
	assert_int_equal(hoccl_plan_make(&plan, layout, h800(), c, NULL, NULL), 0);
	assert_int_equal(plan->stages, 0);
	assert_int_equal(plan->makespan_ns, 0);
	hoccl_plan_free(plan);
	free(layout);
}

/* `sizes` ranks on so many nodes, dealt out in turn. */
static struct hoccl_layout *uneven(const int *sizes, int nodes)
{
	struct hoccl_layout *layout = malloc(sizeof(*layout));
	int node[64], pair[64], left[8], gpus = 0;

	memcpy(left, sizes, (size_t)nodes * sizeof(left[0]));
	for (int more = 1; more;) {
		more = 0;
		for (int n = 0; n < nodes; n++)
			if (left[n] && left[n]--) {
				node[gpus] = n;
				pair[gpus++] = HOCCL_PAIR_HOST;
				more = 1;
			}
	}
	assert_int_equal(hoccl_layout_make(layout, gpus, node, pair, NULL), 0);
	return layout;
}

/* One piece from the root on: it comes to everybody once, from whom they expect it, and to each other node once. */
static void follow(const struct hoccl_broadcast *b, uint32_t piece)
{
	int queue[64], head = 0, tail = 0, crossings = 0, to;
	bool has[64] = {false};

	queue[tail++] = b->root;
	has[b->root] = true;
	assert_int_equal(hoccl_broadcast_from(b, b->root, piece), -1);
	while (head < tail) {
		int rank = queue[head++];

		for (int i = 0; (to = hoccl_broadcast_to(b, rank, piece, i)) >= 0; i++) {
			assert_false(has[to]);
			assert_int_equal(hoccl_broadcast_from(b, to, piece), rank);
			has[to] = true;
			crossings += b->layout && b->layout->node[to] != b->layout->node[rank];
			queue[tail++] = to;
		}
	}
	assert_int_equal(tail, b->ranks);
	assert_int_equal(crossings, b->layout ? b->layout->nodes - 1 : 0);
}

static void test_broadcast_trees(void **state)
{
	static const int sizes[][4] = {{1, 1, 1, 1}, {4, 4, 4, 4}, {1, 5, 2, 6}, {3, 1, 1, 2}, {7, 2, 3, 1}};

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (int nodes = 1; nodes <= 4; nodes++) {
			struct hoccl_layout *layout = uneven(sizes[s], nodes);
			struct hoccl_broadcast b;

			for (int root = 0; root < layout->gpus; root++)
				for (int shape = 0; shape < 50; shape++) {
					hoccl_broadcast_plan(&b, shape % 7 ? layout : NULL, layout->gpus, h800(), root, 64 * MIB);
					b.rails = shape & 1;
					b.node_ways = 1 + shape / 2 % 4;
					b.rank_ways = 1 + shape / 3 % 5;
					for (uint32_t piece = 0; piece < 9; piece++)
						follow(&b, piece);
				}
			free(layout);
		}
}

/* The pieces are the message; a short one goes from the root to all, a long one along chains, in many pieces. */
static void test_broadcast_shapes(void **state)
{
	struct hoccl_layout *layout = grid(2, 8, HOCCL_PAIR_HOST);
	static const uint64_t sizes[] = {0, 1, 4095, 1000 * 1000, 64 * MIB + 1, UINT64_C(1) << 40, UINT64_MAX};
	struct hoccl_broadcast b;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		hoccl_broadcast_plan(&b, layout, 16, h800(), 3, sizes[i]);
		assert_true(b.pieces <= HOCCL_BROADCAST_PIECES);
		assert_int_equal(b.pieces == 0, sizes[i] == 0);
		if (sizes[i])
			assert_true((unsigned __int128)(b.pieces - 1) * b.piece_bytes < sizes[i] &&
				    (unsigned __int128)b.pieces * b.piece_bytes >= sizes[i]);
	}
	hoccl_broadcast_plan(&b, NULL, 8, h800(), 0, 1000);
	assert_true(b.pieces == 1 && b.rank_ways >= 7);
	hoccl_broadcast_plan(&b, NULL, 8, h800(), 0, 1024 * MIB);
	assert_true(b.pieces >= 32 && b.rank_ways == 1);
	hoccl_broadcast_plan(&b, layout, 16, h800(), 0, 1024 * MIB);
	assert_true(b.pieces >= 32 && b.rank_ways == 1 && b.rails);
	free(layout);
}

/* Sums of permutations: all lines are equally long. */
static void fill_lines(uint64_t *c, int gpus, int count, uint64_t seed)
{
	for (int k = 0; k < count; k++)
		for (int u = 0; u < gpus; u++)
			c[u * gpus + (u * 3 + 1 + k * (k + (int)seed)) % gpus] += MIB * (uint64_t)(20 + (k * 37) % 50) + 12345 * (uint64_t)k;
}

/* Every flow in parts that follow one another, cut at multiples of the grain; and all ranks come to the same. */
static void test_plan_in_parts(void **state)
{
	enum { GPUS = 8 };
	struct hoccl_layout *layout = grid(GPUS, 1, HOCCL_PAIR_HOST);
	struct hoccl_grants_cost cost = hoccl_grants_cost_of(h800());
	struct hoccl_choice choice, again;
	uint64_t c[GPUS * GPUS] = {0}, at[GPUS * GPUS] = {0}, grain = UINT64_C(64) << 10;

	(void)state;
	fill_lines(c, GPUS, 7, 2);
	assert_int_equal(hoccl_choice_make(&choice, layout, &cost, c, NULL), 0);
	assert_int_equal(hoccl_choice_make(&again, layout, &cost, c, NULL), 0);
	assert_true(choice.bound_ns && choice.grants_ns >= choice.bound_ns && choice.plan_ns >= choice.bound_ns);
	assert_int_equal(hoccl_parts_hash(&choice.parts), hoccl_parts_hash(&again.parts));
	for (size_t i = 0; i < choice.parts.parts; i++) {
		const struct hoccl_part_of *p = &choice.parts.part[i];
		int cell = p->src * GPUS + p->dst;

		assert_true(p->bytes > 0 && p->offset == at[cell] && p->offset % grain == 0);
		at[cell] += p->bytes;
	}
	for (int i = 0; i < GPUS * GPUS; i++)
		assert_int_equal(at[i], i / GPUS == i % GPUS ? 0 : c[i]);
	again.parts.part[again.parts.parts - 1].bytes--;
	assert_int_not_equal(hoccl_parts_hash(&choice.parts), hoccl_parts_hash(&again.parts));
	hoccl_choice_fini(&choice);
	hoccl_choice_fini(&again);
	free(layout);
}

/* One sender: nothing is gained by a plan. Nothing at all: nothing is planned. */
static void test_no_plan(void **state)
{
	struct hoccl_layout *layout = grid(4, 1, HOCCL_PAIR_HOST);
	struct hoccl_grants_cost cost = hoccl_grants_cost_of(h800());
	struct hoccl_choice choice;
	uint64_t c[16] = {0, 64 * MIB, 32 * MIB, 5};

	(void)state;
	assert_int_equal(hoccl_choice_make(&choice, layout, &cost, c, NULL), 0);
	assert_false(choice.planned);
	assert_true(choice.grants_ns >= choice.bound_ns && choice.bound_ns > 0);
	hoccl_choice_fini(&choice);
	memset(c, 0, sizeof(c));
	assert_int_equal(hoccl_choice_make(&choice, layout, &cost, c, NULL), 0);
	assert_false(choice.planned);
	assert_int_equal(choice.bound_ns, 0);
	hoccl_choice_fini(&choice);
	free(layout);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paper_cell_1),
		cmocka_unit_test(test_loads_are_lines_of_t),
		cmocka_unit_test(test_overflow_names_the_entry),
		cmocka_unit_test(test_layout_errors),
		cmocka_unit_test(test_rates),
		cmocka_unit_test(test_rotation),
		cmocka_unit_test(test_rotation_reaches_the_bound),
		cmocka_unit_test(test_chunks_end_together),
		cmocka_unit_test(test_chunks_small_beside_huge),
		cmocka_unit_test(test_chunks_ready),
		cmocka_unit_test(test_chunks_rest),
		cmocka_unit_test(test_collectives),
		cmocka_unit_test(test_relay),
		cmocka_unit_test(test_golden_plan),
		cmocka_unit_test(test_nothing_to_do),
		cmocka_unit_test(test_plan_in_parts),
		cmocka_unit_test(test_no_plan),
		cmocka_unit_test(test_broadcast_trees),
		cmocka_unit_test(test_broadcast_shapes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
