/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of Algorithm 1: many small remainders, for which exact peeling would spend more on start-up than on bytes.
 *
 * A stage here moves whole entries, and its length is the largest of them. A bipartite graph whose lines have at most
 * d entries falls apart into d matchings (König): each must cover all lines that still have the most entries. Large
 * entries are put together, so that their stages are few: the matching starts from the largest entries, is repaired
 * until it covers what it must, and is then filled up with entries that do not make the stage longer.
 */
#include "sched/bits.h"
#include "sched/matching.h"
#include "sched/peel.h"

#include <stdlib.h>
#include <string.h>

struct tail {
	uint64_t *r;
	int gpus;
	struct hoccl_matching matching;
	int degree[2][HOCCL_SCHED_MAX_GPUS];
};

static void count_entries(struct tail *t)
{
	memset(t->degree, 0, sizeof(t->degree));
	for (int u = 0; u < t->gpus; u++)
		for (int v = 0; v < t->gpus; v++)
			if (t->r[(size_t)u * (size_t)t->gpus + (size_t)v]) {
				t->degree[0][u]++;
				t->degree[1][v]++;
				hoccl_matching_add_edge(&t->matching, u, v);
			}
}

/* Marks the lines that have the most entries; returns how many those are. */
static int mark_needed(struct tail *t)
{
	int most = 0;

	for (int side = 0; side < 2; side++)
		for (int i = 0; i < t->gpus; i++)
			most = t->degree[side][i] > most ? t->degree[side][i] : most;
	for (int side = 0; side < 2; side++) {
		memset(t->matching.need[side], 0, (size_t)t->matching.words * sizeof(uint64_t));
		for (int i = 0; i < t->gpus && most; i++)
			if (t->degree[side][i] == most)
				hoccl_bits_set(t->matching.need[side], i);
	}
	return most;
}

/* The largest entry of row u, at most `limit`, whose column is open; -1 when there is none. */
static int largest_open(const struct tail *t, int u, uint64_t limit)
{
	const struct hoccl_matching *m = &t->matching;
	const uint64_t *row = t->r + (size_t)u * (size_t)t->gpus, *edges = m->edges[0] + (size_t)u * (size_t)m->words;
	int best = -1;

	for (int w = 0; w < m->words; w++)
		for (uint64_t both = edges[w] & m->open[1][w]; both; both &= both - 1) {
			int v = w * 64 + hoccl_bits_first(both);

			if (row[v] <= limit && (best < 0 || row[v] > row[best]))
				best = v;
		}
	return best;
}

static void join_largest(struct tail *t, uint64_t limit, bool needed_only)
{
	struct hoccl_matching *m = &t->matching;

	for (int w = 0; w < m->words; w++) {
		uint64_t rows = m->open[0][w] & (needed_only ? m->need[0][w] : ~UINT64_C(0));

		for (; rows; rows &= rows - 1) {
			int u = w * 64 + hoccl_bits_first(rows), v = largest_open(t, u, limit);

			if (v >= 0)
				hoccl_matching_join(m, u, v);
		}
	}
}

static uint64_t largest_matched(const struct tail *t)
{
	uint64_t largest = 0;

	for (int u = 0; u < t->gpus; u++) {
		int v = t->matching.mate[0][u];
		uint64_t bytes = v < 0 ? 0 : t->r[(size_t)u * (size_t)t->gpus + (size_t)v];

		largest = bytes > largest ? bytes : largest;
	}
	return largest;
}

/* Moves the matched entries into a stage of `peel`. */
static int take_stage(struct tail *t, struct hoccl_peel *peel)
{
	struct hoccl_matching *m = &t->matching;
	int status = 0;

	for (int u = 0; u < t->gpus; u++) {
		int v = m->mate[0][u];

		if (v < 0)
			continue;
		uint64_t *bytes = &t->r[(size_t)u * (size_t)t->gpus + (size_t)v];

		if (peel && !status)
			status = hoccl_peel_add(peel, u, v, *bytes);
		*bytes = 0;
		t->degree[0][u]--;
		t->degree[1][v]--;
		hoccl_matching_part(m, u);
		hoccl_matching_drop_edge(m, u, v);
	}
	if (peel) {
		peel->stages++;
		peel->merged++;
	}
	return status;
}

int hoccl_tail_run(struct hoccl_peel *peel, uint64_t *r, const struct hoccl_demand *demand, uint64_t *ns)
{
	struct tail t = {.r = r, .gpus = demand->gpus};
	int status = hoccl_matching_init(&t.matching, t.gpus);

	if (status)
		return status;
	*ns = 0;
	count_entries(&t);
	while (!status && mark_needed(&t)) {
		join_largest(&t, UINT64_MAX, true);
		hoccl_matching_cover(&t.matching);
		uint64_t longest = largest_matched(&t);

		join_largest(&t, longest, false);
		*ns += hoccl_demand_time(demand, longest);
		status = take_stage(&t, peel);
	}
	hoccl_matching_fini(&t.matching);
	return status;
}
