/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Covering matchings in a bipartite graph, with sets as bit words.
 *
 * A stage of Algorithm 1 must serve every line (row or column) that is so long that it would otherwise set the length
 * of the rest. By Mendelsohn and Dulmage, rows that can be covered and columns that can be covered can be covered
 * together. The search starts at an uncovered line and alternates: any edge to the other side, the matched edge back.
 * It ends at an open line of the other side (one more pair), or else at a line of its own side that need not be
 * covered (that one gives its partner up). Breadth first, each line once: O(G²/64) words for one search.
 */
#include "sched/matching.h"

#include "sched/bits.h"
#include "sched/error.h"

#include <stdlib.h>
#include <string.h>

int hoccl_matching_init(struct hoccl_matching *m, int gpus)
{
	size_t words = (size_t)hoccl_bits_words(gpus), lines = (size_t)gpus;
	uint64_t *bits = calloc(2 * lines * words + 5 * words, sizeof(*bits));
	int16_t *ids = malloc(5 * lines * sizeof(*ids));

	if (!bits || !ids) {
		free(bits);
		free(ids);
		return HOCCL_PLAN_MEMORY;
	}
	m->gpus = gpus;
	m->words = (int)words;
	for (int side = 0; side < 2; side++) {
		m->edges[side] = bits + (size_t)side * lines * words;
		m->need[side] = bits + 2 * lines * words + (size_t)side * words;
		m->open[side] = bits + 2 * lines * words + (2 + (size_t)side) * words;
		m->mate[side] = ids + (size_t)side * lines;
		m->from[side] = ids + (2 + (size_t)side) * lines;
		for (int i = 0; i < gpus; i++) {
			m->mate[side][i] = -1;
			hoccl_bits_set(m->open[side], i);
		}
	}
	m->seen = bits + 2 * lines * words + 4 * words;
	m->queue = ids + 4 * lines;
	return 0;
}

void hoccl_matching_fini(struct hoccl_matching *m)
{
	free(m->edges[0]);
	free(m->mate[0]);
}

void hoccl_matching_clear_edges(struct hoccl_matching *m)
{
	memset(m->edges[0], 0, 2 * (size_t)m->gpus * (size_t)m->words * sizeof(uint64_t));
}

void hoccl_matching_add_edge(struct hoccl_matching *m, int u, int v)
{
	hoccl_bits_set(m->edges[0] + (size_t)u * (size_t)m->words, v);
	hoccl_bits_set(m->edges[1] + (size_t)v * (size_t)m->words, u);
}

void hoccl_matching_drop_edge(struct hoccl_matching *m, int u, int v)
{
	hoccl_bits_clear(m->edges[0] + (size_t)u * (size_t)m->words, v);
	hoccl_bits_clear(m->edges[1] + (size_t)v * (size_t)m->words, u);
}

void hoccl_matching_join(struct hoccl_matching *m, int u, int v)
{
	m->mate[0][u] = (int16_t)v;
	m->mate[1][v] = (int16_t)u;
	hoccl_bits_clear(m->open[0], u);
	hoccl_bits_clear(m->open[1], v);
}

void hoccl_matching_part(struct hoccl_matching *m, int u)
{
	int v = m->mate[0][u];

	if (v < 0)
		return;
	m->mate[0][u] = m->mate[1][v] = -1;
	hoccl_bits_set(m->open[0], u);
	hoccl_bits_set(m->open[1], v);
}

void hoccl_matching_prune(struct hoccl_matching *m)
{
	for (int u = 0; u < m->gpus; u++)
		if (m->mate[0][u] >= 0 && !hoccl_bits_test(m->edges[0] + (size_t)u * (size_t)m->words, m->mate[0][u]))
			hoccl_matching_part(m, u);
}

/* Gives x (of `side`) the partner y, x's old partner to the line through which x was reached, and so on to the start. */
static void flip(struct hoccl_matching *m, int side, int x, int y)
{
	while (y >= 0) {
		int next = m->mate[side][x];

		m->mate[side][x] = (int16_t)y;
		m->mate[1 - side][y] = (int16_t)x;
		hoccl_bits_clear(m->open[side], x);
		hoccl_bits_clear(m->open[1 - side], y);
		y = next;
		if (y >= 0)
			x = m->from[1 - side][y];
	}
}

/* Takes the partner of `loser`, which need not be covered, for the line through which it was reached. */
static void take_over(struct hoccl_matching *m, int side, int loser)
{
	int y = m->mate[side][loser], x = m->from[1 - side][y];

	m->mate[side][loser] = -1;
	hoccl_bits_set(m->open[side], loser);
	flip(m, side, x, y);
}

/* One search from the uncovered line `start`; what it may reach is marked in seen[]. */
static bool cover_line(struct hoccl_matching *m, int side, int start)
{
	int words = m->words, head = 0, tail = 0, loser = -1;

	memset(m->seen, 0, (size_t)words * sizeof(uint64_t));
	m->queue[tail++] = (int16_t)start;
	while (head < tail) {
		int x = m->queue[head++];
		const uint64_t *edges = m->edges[side] + (size_t)x * (size_t)words;

		for (int w = 0; w < words; w++) {
			uint64_t fresh = edges[w] & ~m->seen[w], open = fresh & m->open[1 - side][w];

			if (open) {
				flip(m, side, x, w * 64 + hoccl_bits_first(open));
				return true;
			}
			m->seen[w] |= fresh;
			for (; fresh; fresh &= fresh - 1) {
				int y = w * 64 + hoccl_bits_first(fresh), owner = m->mate[1 - side][y];

				m->from[1 - side][y] = (int16_t)x;
				if (loser < 0 && !hoccl_bits_test(m->need[side], owner))
					loser = owner;
				m->queue[tail++] = (int16_t)owner;
			}
		}
	}
	if (loser < 0)
		return false;
	take_over(m, side, loser);
	return true;
}

bool hoccl_matching_cover(struct hoccl_matching *m)
{
	for (int side = 0; side < 2; side++)
		for (int w = 0; w < m->words; w++) {
			uint64_t todo = m->need[side][w] & m->open[side][w];

			for (; todo; todo &= todo - 1)
				if (!cover_line(m, side, w * 64 + hoccl_bits_first(todo)))
					return false;
		}
	return true;
}

void hoccl_matching_extend(struct hoccl_matching *m)
{
	for (int w = 0; w < m->words; w++)
		for (uint64_t todo = m->open[0][w]; todo; todo &= todo - 1) {
			int u = w * 64 + hoccl_bits_first(todo);
			const uint64_t *edges = m->edges[0] + (size_t)u * (size_t)m->words;

			for (int k = 0; k < m->words; k++) {
				uint64_t both = edges[k] & m->open[1][k];

				if (both) {
					hoccl_matching_join(m, u, k * 64 + hoccl_bits_first(both));
					break;
				}
			}
		}
}
