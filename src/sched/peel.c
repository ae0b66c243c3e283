/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Algorithm 1 of the paper (section 3.4), its RDMA side: R is peeled into stages, each a matching.
 *
 * L is the longest line (row or column sum) of what is left. A stage of length d is lossless if L falls by d, that is
 * if every line longer than L - d is served for as long as it takes. So: look for a matching of entries ≥ θ that covers
 * all lines > L - θ; the stage's length is then the largest for which nothing is lost (at least θ); lines that are not
 * needed are filled with what they have. When there is no such matching, θ is lowered by a quarter. Birkhoff and von
 * Neumann: for θ small enough there always is one. The matching is kept from stage to stage.
 *
 * Each stage costs a start-up, and the stages get shorter. Whenever θ has halved the cost of finishing with whole
 * entries (tail.c) is computed; the best such point is where peeling stops.
 */
#include "sched/peel.h"

#include "sched/bits.h"
#include "sched/matching.h"

#include <stdlib.h>
#include <string.h>

#define TAIL_BEGINS 32	/* the tail is tried once θ is below this many start-ups' worth of bytes */

struct peeler {
	const struct hoccl_demand *demand;
	struct hoccl_peel *peel;
	struct hoccl_matching matching;
	int gpus;
	uint64_t *r;			/* residual */
	uint64_t *saved, *scratch;	/* residual at the best end so far, and for trying one */
	uint64_t *alive;		/* gpus × words: entries that are not zero */
	uint64_t line[2][HOCCL_SCHED_MAX_GPUS];
	uint64_t longest, theta, spent_ns, best_ns;
	size_t best_parts;
	uint32_t best_stages;
};

int hoccl_peel_add(struct hoccl_peel *peel, int out, int in, uint64_t bytes)
{
	if (peel->parts == peel->room) {
		size_t room = peel->room ? 2 * peel->room : 512;
		struct hoccl_part *larger = realloc(peel->part, room * sizeof(*larger));

		if (!larger)
			return HOCCL_PLAN_MEMORY;
		peel->part = larger;
		peel->room = room;
	}
	peel->part[peel->parts++] = (struct hoccl_part){bytes, peel->stages, (int16_t)out, (int16_t)in};
	return 0;
}

void hoccl_peel_fini(struct hoccl_peel *peel)
{
	free(peel->part);
	*peel = (struct hoccl_peel){0};
}

static int peeler_init(struct peeler *p)
{
	size_t gpus = (size_t)p->demand->gpus, cells = gpus * gpus, words = (size_t)hoccl_bits_words((int)gpus);

	p->gpus = (int)gpus;
	p->best_ns = UINT64_MAX;
	p->r = malloc((3 * cells + gpus * words) * sizeof(*p->r));
	if (!p->r || hoccl_matching_init(&p->matching, p->gpus))
		return HOCCL_PLAN_MEMORY;
	p->saved = p->r + cells;
	p->scratch = p->saved + cells;
	p->alive = p->scratch + cells;
	memset(p->alive, 0, gpus * words * sizeof(*p->alive));
	for (int u = 0; u < p->gpus; u++)
		for (int v = 0; v < p->gpus; v++) {
			uint64_t bytes = hoccl_demand_bytes(p->demand, u, v);

			p->r[(size_t)u * gpus + (size_t)v] = bytes;
			p->line[0][u] += bytes;
			p->line[1][v] += bytes;
			p->theta = bytes > p->theta ? bytes : p->theta;
			if (bytes)
				hoccl_bits_set(p->alive + (size_t)u * words, v);
		}
	return 0;
}

static void find_longest(struct peeler *p)
{
	p->longest = 0;
	for (int side = 0; side < 2; side++)
		for (int i = 0; i < p->gpus; i++)
			p->longest = p->line[side][i] > p->longest ? p->line[side][i] : p->longest;
}

static void mark_needed(struct peeler *p)
{
	uint64_t limit = p->longest > p->theta ? p->longest - p->theta : 0;

	for (int side = 0; side < 2; side++) {
		memset(p->matching.need[side], 0, (size_t)p->matching.words * sizeof(uint64_t));
		for (int i = 0; i < p->gpus; i++)
			if (p->line[side][i] > limit)
				hoccl_bits_set(p->matching.need[side], i);
	}
}

static void build_edges(struct peeler *p)
{
	hoccl_matching_clear_edges(&p->matching);
	for (int u = 0; u < p->gpus; u++) {
		const uint64_t *row = p->r + (size_t)u * (size_t)p->gpus;

		for (int v = 0; v < p->gpus; v++)
			if (row[v] >= p->theta)
				hoccl_matching_add_edge(&p->matching, u, v);
	}
	hoccl_matching_prune(&p->matching);
}

/* The longest stage of this matching that loses nothing. */
static uint64_t stage_length(const struct peeler *p)
{
	const struct hoccl_matching *m = &p->matching;
	uint64_t length = p->longest;

	for (int u = 0; u < p->gpus; u++) {
		int v = m->mate[0][u];
		uint64_t line = p->line[0][u], limit;

		if (v >= 0 && p->line[1][v] > line)
			line = p->line[1][v];
		limit = p->longest - line + (v < 0 ? 0 : p->r[(size_t)u * (size_t)p->gpus + (size_t)v]);
		length = limit < length ? limit : length;
	}
	for (int v = 0; v < p->gpus; v++)
		if (m->mate[1][v] < 0 && p->longest - p->line[1][v] < length)
			length = p->longest - p->line[1][v];
	return length;
}

/* Gives open rows their largest entry towards an open column. */
static void fill_open(struct peeler *p)
{
	struct hoccl_matching *m = &p->matching;

	for (int w = 0; w < m->words; w++)
		for (uint64_t rows = m->open[0][w]; rows; rows &= rows - 1) {
			int u = w * 64 + hoccl_bits_first(rows), best = -1;
			const uint64_t *row = p->r + (size_t)u * (size_t)p->gpus;

			for (int k = 0; k < m->words; k++) {
				uint64_t both = p->alive[(size_t)u * (size_t)m->words + (size_t)k] & m->open[1][k];

				for (; both; both &= both - 1) {
					int v = k * 64 + hoccl_bits_first(both);

					if (best < 0 || row[v] > row[best])
						best = v;
				}
			}
			if (best >= 0)
				hoccl_matching_join(m, u, best);
		}
}

static int take_stage(struct peeler *p, uint64_t length)
{
	struct hoccl_matching *m = &p->matching;

	for (int u = 0; u < p->gpus; u++) {
		int v = m->mate[0][u];

		if (v < 0)
			continue;
		uint64_t *left = &p->r[(size_t)u * (size_t)p->gpus + (size_t)v];
		uint64_t bytes = *left < length ? *left : length;

		if (hoccl_peel_add(p->peel, u, v, bytes))
			return HOCCL_PLAN_MEMORY;
		*left -= bytes;
		p->line[0][u] -= bytes;
		p->line[1][v] -= bytes;
		if (!*left)
			hoccl_bits_clear(p->alive + (size_t)u * (size_t)m->words, v);
		if (*left < p->theta) {
			hoccl_matching_drop_edge(m, u, v);
			hoccl_matching_part(m, u);
		}
	}
	p->peel->stages++;
	p->spent_ns += hoccl_demand_time(p->demand, length);
	return 0;
}

/* The least that the rest can cost: its longest line, and a start-up for each entry of the fullest row. */
static uint64_t rest_at_least(const struct peeler *p, bool tail)
{
	int words = p->matching.words, most = 1;

	for (int u = 0; u < p->gpus && tail; u++) {
		int entries = 0;

		for (int w = 0; w < words; w++)
			entries += __builtin_popcountll(p->alive[(size_t)u * (size_t)words + (size_t)w]);
		most = entries > most ? entries : most;
	}
	return p->longest ? hoccl_rate_time(p->demand->rate, p->longest) + (uint64_t)most * p->demand->start_ns : 0;
}

/* What would it cost to end here? Remembers the residual if that is the best so far. */
static int try_end(struct peeler *p)
{
	size_t bytes = (size_t)p->gpus * (size_t)p->gpus * sizeof(uint64_t);
	uint64_t ns;

	if (p->spent_ns + rest_at_least(p, true) >= p->best_ns)
		return 0;
	memcpy(p->scratch, p->r, bytes);
	if (hoccl_tail_run(NULL, p->scratch, p->demand, &ns))
		return HOCCL_PLAN_MEMORY;
	if (p->spent_ns + ns >= p->best_ns)
		return 0;
	p->best_ns = p->spent_ns + ns;
	p->best_parts = p->peel->parts;
	p->best_stages = p->peel->stages;
	memcpy(p->saved, p->r, bytes);
	return 0;
}

static int peel_on(struct peeler *p)
{
	uint64_t start = hoccl_rate_bytes(p->demand->rate, p->demand->start_ns);
	uint64_t floor = start / 4 + 1, next_try = TAIL_BEGINS * start;

	find_longest(p);
	build_edges(p);
	while (p->longest && p->theta >= floor && p->spent_ns + rest_at_least(p, false) < p->best_ns) {
		mark_needed(p);
		if (hoccl_matching_cover(&p->matching)) {
			uint64_t length = stage_length(p);

			fill_open(p);
			if (take_stage(p, length))
				return HOCCL_PLAN_MEMORY;
			hoccl_matching_prune(&p->matching);
			find_longest(p);
			continue;
		}
		if (p->theta <= next_try) {
			if (try_end(p))
				return HOCCL_PLAN_MEMORY;
			next_try = p->theta / 2;
		}
		p->theta -= p->theta / 4 + 1;
		build_edges(p);
	}
	return try_end(p);
}

int hoccl_peel_run(struct hoccl_peel *peel, const struct hoccl_demand *demand)
{
	struct peeler *p = calloc(1, sizeof(*p));
	uint64_t ns;

	*peel = (struct hoccl_peel){0};
	if (!p)
		return HOCCL_PLAN_MEMORY;
	p->demand = demand;
	p->peel = peel;
	int status = peeler_init(p);

	if (!status)
		status = peel_on(p);
	if (!status) {
		peel->parts = p->best_parts;
		peel->stages = p->best_stages;
		status = hoccl_tail_run(peel, p->saved, demand, &ns);
	}
	hoccl_matching_fini(&p->matching);
	free(p->r);
	free(p);
	if (status)
		hoccl_peel_fini(peel);
	return status;
}
