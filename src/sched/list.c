/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list schedule: execution has no barrier between stages, so a NIC may start its next transfer the moment both of
 * its ends are free. Among what could start, the line with the longest remaining work goes first, and it takes the
 * partner with the longest remaining work. This is what production uses above 16 GPUs, and what the grants of an
 * Alltoallv without exchanged rows come to.
 *
 * Events in virtual time: a heap of running transfers; at each end two lines become free and look for a partner among
 * the free lines of the other side (sets as bit words, so that the usual case costs a few word operations).
 */
#include "sched/list.h"

#include "sched/bits.h"

#include <stdlib.h>
#include <string.h>

#define CANDIDATES 32	/* partners looked at for one start; heavy ones apart, where there may be more than 64 */
#define HEAVY_PART 8	/* a line is heavy if less than this part of the longest has gone from it */

struct running {
	uint64_t end_ns;
	int16_t out, in;
};

struct lister {
	const struct hoccl_demand *demand;
	struct hoccl_list *list;
	int gpus, words, active;
	uint64_t now;
	uint64_t *ns;		/* gpus × gpus: time of each transfer */
	uint64_t *todo[2];	/* gpus × words: partners for which there is still a transfer */
	uint64_t *free[2];	/* words: idle lines */
	uint64_t *heavy[2];	/* words: lines that decide when all ends */
	unsigned int long_first;
	int until_heavy;	/* starts until heavy[] is looked for again */
	uint64_t left[2][HOCCL_SCHED_MAX_GPUS];	/* remaining work of each line, ns */
	struct running heap[HOCCL_SCHED_MAX_GPUS];
};

struct pick {
	uint64_t score;
	int line, seen;
};

static uint64_t turn_right(uint64_t word, int by)
{
	return by ? word >> by | word << (64 - by) : word;
}

static bool earlier(const struct running *a, const struct running *b)
{
	return a->end_ns != b->end_ns ? a->end_ns < b->end_ns : a->out < b->out;
}

static void heap_push(struct lister *l, struct running item)
{
	int i = l->active++;

	while (i && earlier(&item, &l->heap[(i - 1) / 2])) {
		l->heap[i] = l->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	l->heap[i] = item;
}

static struct running heap_pop(struct lister *l)
{
	struct running top = l->heap[0], last = l->heap[--l->active];
	int i = 0;

	for (int child = 1; child < l->active; child = 2 * i + 1) {
		if (child + 1 < l->active && earlier(&l->heap[child + 1], &l->heap[child]))
			child++;
		if (earlier(&last, &l->heap[child]))
			break;
		l->heap[i] = l->heap[child];
		i = child;
	}
	l->heap[i] = last;
	return top;
}

static uint64_t score(const struct lister *l, int side, int x, int y)
{
	size_t u = (size_t)(side ? y : x), v = (size_t)(side ? x : y);

	return l->left[1 - side][y] + l->long_first * l->ns[u * (size_t)l->gpus + v];
}

/* The best of the partners in `set`, one word of the free ones, which begins at line `base`. */
static void pick_from(const struct lister *l, int side, int x, uint64_t set, int base, struct pick *pick)
{
	int turn = x & 63;

	for (set = turn_right(set, turn); set && pick->seen < CANDIDATES; set &= set - 1, pick->seen++) {
		int y = base + ((hoccl_bits_first(set) + turn) & 63);
		uint64_t value = score(l, side, x, y);

		if (value > pick->score) {
			pick->score = value;
			pick->line = y;
		}
	}
}

/*
 * The free partner of line x with the longest remaining work, long transfers preferred; -1 when there is none. Of many,
 * only the heavy ones and some that follow x are looked at: where most lines are free, most are equally good.
 */
static int pick(const struct lister *l, int side, int x)
{
	const uint64_t *todo = l->todo[side] + (size_t)x * (size_t)l->words, *idle = l->free[1 - side];
	const uint64_t *heavy = l->heavy[1 - side];
	struct pick best = {0, -1, 0};

	for (int w = 0; w < l->words && l->words > 1; w++)
		if (todo[w] & idle[w] & heavy[w])
			pick_from(l, side, x, todo[w] & idle[w] & heavy[w], w * 64, &best);
	best.seen = 0;
	for (int i = 0, w = x / 64; i < l->words && best.seen < CANDIDATES; i++, w = w + 1 < l->words ? w + 1 : 0)
		if (todo[w] & idle[w])
			pick_from(l, side, x, todo[w] & idle[w], w * 64, &best);
	return best.line;
}

/* Lines with nearly as much left as any; none where they are many. Looked for once in as many starts as lines. */
static void find_heavy(struct lister *l)
{
	uint64_t most = 0;
	int count = 0;

	for (int side = 0; side < 2; side++) {
		memset(l->heavy[side], 0, (size_t)l->words * sizeof(uint64_t));
		for (int g = 0; g < l->gpus; g++)
			most = l->left[side][g] > most ? l->left[side][g] : most;
	}
	for (int side = 0; side < 2; side++)
		for (int g = 0; g < l->gpus && count < CANDIDATES; g++)
			if (l->left[side][g] > most - most / HEAVY_PART) {
				hoccl_bits_set(l->heavy[side], g);
				count++;
			}
	if (count == CANDIDATES) {
		memset(l->heavy[0], 0, (size_t)l->words * sizeof(uint64_t));
		memset(l->heavy[1], 0, (size_t)l->words * sizeof(uint64_t));
	}
}

static void begin(struct lister *l, int u, int v)
{
	size_t cell = (size_t)u * (size_t)l->gpus + (size_t)v;
	uint64_t bytes = l->demand->r[cell], ns = l->ns[cell];
	struct hoccl_list *list = l->list;

	hoccl_bits_clear(l->free[0], u);
	hoccl_bits_clear(l->free[1], v);
	hoccl_bits_clear(l->todo[0] + (size_t)u * (size_t)l->words, v);
	hoccl_bits_clear(l->todo[1] + (size_t)v * (size_t)l->words, u);
	l->left[0][u] -= ns;
	l->left[1][v] -= ns;
	list->item[list->items++] = (struct hoccl_slotted){bytes, l->now, l->now + ns, (int16_t)u, (int16_t)v};
	heap_push(l, (struct running){l->now + ns, (int16_t)u, (int16_t)v});
	if (--l->until_heavy <= 0) {
		find_heavy(l);
		l->until_heavy = l->gpus;
	}
}

/* Lines that have become free, each as id × 2 + side. */
static void sort_by_left(const struct lister *l, int *line, int count)
{
	for (int i = 1; i < count; i++) {
		int x = line[i], k = i;
		uint64_t left = l->left[x & 1][x >> 1];

		for (; k && l->left[line[k - 1] & 1][line[k - 1] >> 1] < left; k--)
			line[k] = line[k - 1];
		line[k] = x;
	}
}

static void start_from(struct lister *l, int *line, int count)
{
	sort_by_left(l, line, count);
	for (int i = 0; i < count; i++) {
		int side = line[i] & 1, x = line[i] >> 1;

		if (!l->left[side][x] || !hoccl_bits_test(l->free[side], x))
			continue;
		int y = pick(l, side, x);

		if (y >= 0)
			begin(l, side ? y : x, side ? x : y);
	}
}

static void run_events(struct lister *l)
{
	int line[2 * HOCCL_SCHED_MAX_GPUS], count = 0;

	for (int g = 0; g < l->gpus; g++) {
		line[count++] = 2 * g;
		line[count++] = 2 * g + 1;
		hoccl_bits_set(l->free[0], g);
		hoccl_bits_set(l->free[1], g);
	}
	find_heavy(l);
	l->until_heavy = l->gpus;
	start_from(l, line, count);
	while (l->active) {
		l->now = l->heap[0].end_ns;
		for (count = 0; l->active && l->heap[0].end_ns == l->now;) {
			struct running done = heap_pop(l);

			hoccl_bits_set(l->free[0], done.out);
			hoccl_bits_set(l->free[1], done.in);
			line[count++] = 2 * done.out;
			line[count++] = 2 * done.in + 1;
		}
		start_from(l, line, count);
	}
	l->list->end_ns = l->now;
}

/* Work and partners of every line; returns the number of transfers. */
static size_t read_matrix(struct lister *l)
{
	const struct hoccl_layout *layout = l->demand->layout;
	size_t items = 0;

	for (int u = 0; u < l->gpus; u++) {
		const uint64_t *row = l->demand->r + (size_t)u * (size_t)l->gpus;
		uint64_t *todo = l->todo[0] + (size_t)u * (size_t)l->words, sum = 0;
		int node = layout ? layout->node[u] : -1;

		for (int v = 0; v < l->gpus; v++) {
			if (!row[v] || (layout && layout->node[v] == node))
				continue;
			uint64_t ns = hoccl_demand_time(l->demand, row[v]);

			l->ns[(size_t)u * (size_t)l->gpus + (size_t)v] = ns;
			hoccl_bits_set(todo, v);
			hoccl_bits_set(l->todo[1] + (size_t)v * (size_t)l->words, u);
			sum += ns;
			l->left[1][v] += ns;
			items++;
		}
		l->left[0][u] = sum;
	}
	return items;
}

int hoccl_list_run(struct hoccl_list *list, const struct hoccl_demand *demand, unsigned int long_first)
{
	struct lister *l = calloc(1, sizeof(*l));
	int gpus = demand->gpus, words = hoccl_bits_words(gpus);
	uint64_t *bits = calloc(2 * ((size_t)gpus + 2) * (size_t)words, sizeof(*bits));
	uint64_t *ns = malloc((size_t)gpus * (size_t)gpus * sizeof(*ns));
	int status = HOCCL_PLAN_MEMORY;

	*list = (struct hoccl_list){0};
	if (!l || !bits || !ns)
		goto out;
	l->ns = ns;
	l->demand = demand;
	l->list = list;
	l->long_first = long_first;
	l->gpus = gpus;
	l->words = words;
	for (int side = 0; side < 2; side++) {
		l->todo[side] = bits + (size_t)side * (size_t)gpus * (size_t)words;
		l->free[side] = bits + (2 * (size_t)gpus + (size_t)side) * (size_t)words;
		l->heavy[side] = bits + (2 * (size_t)gpus + 2 + (size_t)side) * (size_t)words;
	}
	size_t items = read_matrix(l);

	list->item = malloc((items ? items : 1) * sizeof(*list->item));
	if (!list->item)
		goto out;
	run_events(l);
	status = 0;
out:
	free(bits);
	free(ns);
	free(l);
	return status;
}

void hoccl_list_fini(struct hoccl_list *list)
{
	free(list->item);
	*list = (struct hoccl_list){0};
}
