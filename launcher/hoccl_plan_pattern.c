/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traffic patterns by name. Random ones come from one xorshift generator, so that a seed is a matrix.
 *
 * stochastic is the hardest for a scheduler: all lines of a domain are equally long, so none may ever be idle. It is a
 * sum of random permutations: between nodes of equal size such that every entry leaves its node, and as many within
 * the nodes as their size is of the whole; with nodes of different sizes, plain permutations without fixed points.
 */
#include "hoccl_plan_pattern.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const hoccl_pattern_names[] = {
	"uniform", "random", "zipf", "sparse", "block", "hotrow", "hotcol", "permutation", "stochastic", "pair", NULL,
};

struct source {
	uint64_t state;
};

static uint64_t next(struct source *s)
{
	s->state ^= s->state << 13;
	s->state ^= s->state >> 7;
	s->state ^= s->state << 17;
	return s->state * UINT64_C(2685821657736338717);
}

static uint64_t below(struct source *s, uint64_t limit)
{
	return (next(s) >> 11) % limit;
}

static uint64_t size(struct source *s)
{
	return 1 + below(s, UINT64_C(1) << 32);
}

static void shuffle(struct source *s, int *order, int count)
{
	for (int i = 0; i < count; i++)
		order[i] = i;
	for (int i = count - 1; i > 0; i--) {
		int k = (int)below(s, (uint64_t)i + 1), other = order[k];

		order[k] = order[i];
		order[i] = other;
	}
}

void hoccl_pattern_init(struct hoccl_pattern *p, const char *name)
{
	*p = (struct hoccl_pattern){
		.name = name, .line = UINT64_C(4) << 30, .seed = 1, .skew = 1.2, .percent = 12, .factor = 16,
	};
}

bool hoccl_bytes_parse(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGT";
	char *end;
	uint64_t factor = 1;

	if (*text < '0' || *text > '9')
		return false;
	uint64_t value = strtoull(text, &end, 10);
	char digits[24];

	snprintf(digits, sizeof(digits), "%" PRIu64, value);	/* strtoull saturates silently but for errno */
	while (*text == '0' && text[1] >= '0' && text[1] <= '9')
		text++;
	if ((size_t)(end - text) != strlen(digits) || strncmp(text, digits, (size_t)(end - text)) != 0)
		return false;
	const char *unit = *end ? strchr(units, *end) : NULL;

	if (unit) {
		end++;
		bool binary = *end == 'i';

		end += binary;
		for (const char *u = units; u <= unit; u++)
			factor *= binary ? 1024 : 1000;
	}
	if (*end == 'B')
		end++;
	if (*end || __builtin_mul_overflow(value, factor, bytes))
		return false;
	return true;
}

static bool parse_number(const char *text, uint64_t most, uint64_t *value)
{
	return hoccl_bytes_parse(text, value) && *value <= most;
}

static int parse_key(struct hoccl_pattern *p, const char *key, const char *value, struct hoccl_plan_error *error)
{
	uint64_t number = 0;
	char *end;

	if (!strcmp(key, "skew")) {
		p->skew = strtod(value, &end);
		if (*value && !*end && p->skew >= 0 && p->skew <= 10)
			return 0;
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "skew=%s is not a number from 0 to 10", value);
	}
	bool good = parse_number(value, INT64_MAX, &number);

	if (good && !strcmp(key, "line") && number)
		p->line = number;
	else if (good && !strcmp(key, "seed"))
		p->seed = number;
	else if (good && !strcmp(key, "percent") && number <= 100)
		p->percent = (unsigned int)number;
	else if (good && !strcmp(key, "factor") && number && number <= 1000000)
		p->factor = (unsigned int)number;
	else if (good && !strcmp(key, "block") && number <= HOCCL_SCHED_MAX_GPUS)
		p->block = (int)number;
	else if (good && !strcmp(key, "zero") && number <= HOCCL_SCHED_MAX_GPUS)
		p->zero = (int)number;
	else
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "pattern %s: %s=%s is not understood", p->name, key,
				       value);
	return 0;
}

int hoccl_pattern_parse(struct hoccl_pattern *p, char *text, struct hoccl_plan_error *error)
{
	char *save = NULL, *word = strtok_r(text, ",", &save);

	hoccl_pattern_init(p, word ? word : "");
	for (word = strtok_r(NULL, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		char *value = strchr(word, '=');

		if (!value)
			return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "pattern %s: %s has no value", p->name,
					       word);
		*value = '\0';
		int status = parse_key(p, word, value + 1, error);

		if (status)
			return status;
	}
	for (int i = 0; hoccl_pattern_names[i]; i++)
		if (!strcmp(p->name, hoccl_pattern_names[i]))
			return 0;
	return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "there is no pattern %s", p->name);
}

static void fill_random(struct source *s, int gpus, uint64_t *c)
{
	for (int i = 0; i < gpus * gpus; i++)
		c[i] = i / gpus == i % gpus ? 0 : size(s);
}

/* Cells in random order get 1/rank^skew. */
static int fill_zipf(const struct hoccl_pattern *p, struct source *s, int gpus, uint64_t *c)
{
	int *order = malloc((size_t)gpus * (size_t)gpus * sizeof(*order));

	if (!order)
		return HOCCL_PLAN_MEMORY;
	shuffle(s, order, gpus * gpus);
	for (int i = 0; i < gpus * gpus; i++) {
		int cell = order[i];

		c[cell] = cell / gpus == cell % gpus ? 0 : (uint64_t)(1e15 / pow(i + 1, p->skew)) + 1;
	}
	free(order);
	return 0;
}

static void fill_sparse(const struct hoccl_pattern *p, struct source *s, int gpus, uint64_t *c)
{
	for (int i = 0; i < gpus * gpus; i++)
		c[i] = i / gpus != i % gpus && below(s, 100) < p->percent ? size(s) : 0;
}

static void fill_block(const struct hoccl_pattern *p, struct source *s, const struct hoccl_layout *layout, uint64_t *c)
{
	int gpus = layout->gpus, block = p->block ? p->block : hoccl_layout_size(layout, 0);

	for (int u = 0; u < gpus; u++)
		for (int v = 0; v < gpus; v++)
			c[u * gpus + v] = u != v && u / block == v / block ? size(s) : 0;
}

static void fill_hot(const struct hoccl_pattern *p, struct source *s, int gpus, bool column, uint64_t *c)
{
	int hot = (int)below(s, (uint64_t)gpus);

	fill_random(s, gpus, c);
	for (int k = 0; k < gpus; k++) {
		uint64_t *cell = column ? &c[k * gpus + hot] : &c[hot * gpus + k];

		*cell *= p->factor;
	}
}

static void fill_permutation(struct source *s, int gpus, uint64_t *c)
{
	int order[HOCCL_SCHED_MAX_GPUS];

	shuffle(s, order, gpus);
	for (int i = 0; i < gpus && gpus > 1; i++)
		c[order[i] * gpus + order[(i + 1) % gpus]] = size(s);
}

/* One permutation whose every entry leaves its node: nodes in a random cycle, places within them at random. */
static void add_between(struct source *s, const struct hoccl_layout *layout, uint64_t weight, uint64_t *c)
{
	int nodes = layout->nodes, each = hoccl_layout_size(layout, 0);
	int cycle[HOCCL_SCHED_MAX_GPUS], places[HOCCL_SCHED_MAX_GPUS];
	int ahead = 1 + (int)below(s, (uint64_t)nodes - 1);

	shuffle(s, cycle, nodes);
	for (int i = 0; i < nodes; i++) {
		const int16_t *from = layout->member + layout->first[cycle[i]];
		const int16_t *to = layout->member + layout->first[cycle[(i + ahead) % nodes]];

		shuffle(s, places, each);
		for (int k = 0; k < each; k++)
			c[from[k] * layout->gpus + to[places[k]]] += weight;
	}
}

static void add_within(struct source *s, const struct hoccl_layout *layout, int node, uint64_t weight, uint64_t *c)
{
	int each = hoccl_layout_size(layout, node), order[HOCCL_SCHED_MAX_GPUS];
	const int16_t *member = layout->member + layout->first[node];

	if (each < 2)
		return;
	int ahead = 1 + (int)below(s, (uint64_t)each - 1);

	shuffle(s, order, each);
	for (int i = 0; i < each; i++)
		c[member[order[i]] * layout->gpus + member[order[(i + ahead) % each]]] += weight;
}

static void add_any(struct source *s, int gpus, uint64_t weight, uint64_t *c)
{
	int order[HOCCL_SCHED_MAX_GPUS], ahead = 1 + (int)below(s, (uint64_t)gpus - 1);

	shuffle(s, order, gpus);
	for (int i = 0; i < gpus; i++)
		c[order[i] * gpus + order[(i + ahead) % gpus]] += weight;
}

static void fill_stochastic(struct source *s, const struct hoccl_layout *layout, uint64_t *c)
{
	int gpus = layout->gpus;

	for (int k = 0; k < 4 * gpus && gpus > 1; k++) {
		uint64_t weight = 1 + below(s, 1000000);

		if (layout->even && layout->nodes > 1)
			add_between(s, layout, weight, c);
		else
			add_any(s, gpus, weight, c);
	}
	for (int k = 0; layout->even && layout->nodes > 1 && k < 4 * hoccl_layout_size(layout, 0); k++) {
		uint64_t weight = 1 + below(s, 1000000);

		for (int n = 0; n < layout->nodes; n++)
			add_within(s, layout, n, weight, c);
	}
}

static void zero_lines(const struct hoccl_pattern *p, struct source *s, int gpus, uint64_t *c)
{
	for (int k = 0; k < p->zero; k++) {
		int row = (int)below(s, (uint64_t)gpus), column = (int)below(s, (uint64_t)gpus);

		for (int i = 0; i < gpus; i++)
			c[row * gpus + i] = c[i * gpus + column] = 0;
	}
}

/* Scales C so that its longest line has `line` bytes. */
static void scale(uint64_t line, int gpus, uint64_t *c)
{
	uint64_t most = 0;

	for (int i = 0; i < gpus; i++) {
		uint64_t row = 0, column = 0;

		for (int k = 0; k < gpus; k++) {
			row += c[i * gpus + k];
			column += c[k * gpus + i];
		}
		most = row > most ? row : most;
		most = column > most ? column : most;
	}
	for (int i = 0; i < gpus * gpus && most; i++)
		c[i] = (uint64_t)((unsigned __int128)c[i] * line / most);
}

int hoccl_pattern_fill(const struct hoccl_pattern *p, const struct hoccl_layout *layout, uint64_t *c,
		       struct hoccl_plan_error *error)
{
	int gpus = layout->gpus, status = 0;
	struct source s = {p->seed * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(88172645463325252)};

	s.state += s.state == 0;
	for (int i = 0; i < 8; i++)
		next(&s);
	memset(c, 0, (size_t)gpus * (size_t)gpus * sizeof(*c));
	if (!strcmp(p->name, "uniform"))
		for (int i = 0; i < gpus * gpus; i++)
			c[i] = 1;
	else if (!strcmp(p->name, "random"))
		fill_random(&s, gpus, c);
	else if (!strcmp(p->name, "zipf"))
		status = fill_zipf(p, &s, gpus, c);
	else if (!strcmp(p->name, "sparse"))
		fill_sparse(p, &s, gpus, c);
	else if (!strcmp(p->name, "block"))
		fill_block(p, &s, layout, c);
	else if (!strcmp(p->name, "hotrow") || !strcmp(p->name, "hotcol"))
		fill_hot(p, &s, gpus, p->name[3] == 'c', c);
	else if (!strcmp(p->name, "permutation"))
		fill_permutation(&s, gpus, c);
	else if (!strcmp(p->name, "stochastic"))
		fill_stochastic(&s, layout, c);
	else if (!strcmp(p->name, "pair"))
		c[gpus - 1] = 1;
	else
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "there is no pattern %s", p->name);
	if (status)
		return hoccl_plan_fail(error, status, "no memory for a pattern of %d GPUs", gpus);
	zero_lines(p, &s, gpus, c);
	scale(p->line, gpus, c);
	return 0;
}
