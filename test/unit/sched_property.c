/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property test of the planner: random topologies, machines and traffic; every plan is checked from outside.
 * HOCCL_SCHED_CASES sets how many (100,000; with a sanitizer 4,000), HOCCL_SCHED_CASE runs a single one.
 * A case is its number: it decides everything. Of 100,000, 2,080 have 64 to 128 GPUs, 20 have 256, a third is doubly
 * stochastic. Two processes share the work.
 */
#include "hoccl_plan_pattern.h"
#include "hoccl_plan_sim.h"
#include "sched_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 2
#define LARGE_EVERY 48
#ifndef CASES
#define CASES 100000
#endif

struct test_case {
	unsigned long number;
	uint64_t state;
	struct hoccl_layout layout;
	struct hoccl_machine machine;
	struct hoccl_pattern pattern;
	uint64_t *c;
	const char *fault;
};

static uint64_t draw(struct test_case *t, uint64_t limit)
{
	t->state ^= t->state << 13;
	t->state ^= t->state >> 7;
	t->state ^= t->state << 17;
	return ((t->state * UINT64_C(2685821657736338717)) >> 11) % limit;
}

static int draw_gpus(struct test_case *t)
{
	if (t->number % 5000 == 4999)
		return 256;
	if (t->number % LARGE_EVERY == LARGE_EVERY - 1)
		return 64 + (int)draw(t, 3) * 32;
	return 1 + (int)draw(t, draw(t, 4) ? 16 : 32);
}

static void draw_layout(struct test_case *t)
{
	int gpus = draw_gpus(t), node[HOCCL_SCHED_MAX_GPUS], pair[HOCCL_SCHED_MAX_GPUS], each, nodes = 0;
	int kind = (int)draw(t, 5);

	each = 1 << draw(t, 4);
	for (int g = 0; g < gpus;) {
		int size = kind < 3 && gpus % each == 0 ? each : 1 + (int)draw(t, 9);

		for (; size && g < gpus; size--, g++)
			node[g] = nodes;
		nodes++;
	}
	for (int g = 0; g < gpus; g++)
		pair[g] = draw(t, 2) ? HOCCL_PAIR_HOST : HOCCL_PAIR_OUTSIDE;
	for (int g = 0; g + 1 < gpus && kind != 4; g++) {
		int other = g + 1 + (kind == 1 ? (int)draw(t, 3) : 0);

		if (other < gpus && node[other] == node[g] && pair[g] < 0 && pair[other] < 0) {
			pair[g] = other;
			pair[other] = g;
		}
	}
	if (hoccl_layout_make(&t->layout, gpus, node, pair, NULL))
		t->fault = "the topology is not accepted";
}

static void draw_machine(struct test_case *t)
{
	static const uint64_t starts[] = {0, 3800, 3800, 3800, 100000};

	t->machine = *hoccl_machine_find(draw(t, 2) ? "h800" : "h200");
	t->machine.start_ns = starts[draw(t, 5)];
	if (!draw(t, 8))	/* a slow NVLink, so that it is the bottleneck */
		t->machine.rate[HOCCL_LINE_NVLINK_OUT] = t->machine.rate[HOCCL_LINE_NVLINK_IN] =
			t->machine.rate[HOCCL_LINE_PUSH] = hoccl_rate_of(60000000000 + draw(t, 100000000000));
}

static void draw_pattern(struct test_case *t)
{
	int names = 0;

	while (hoccl_pattern_names[names])
		names++;
	hoccl_pattern_init(&t->pattern, draw(t, 3) ? hoccl_pattern_names[draw(t, (uint64_t)names)] : "stochastic");
	t->pattern.seed = t->number;
	t->pattern.line = UINT64_C(1) << (10 + draw(t, 25));
	if (!draw(t, 16))
		t->pattern.line = INT64_MAX - draw(t, 1000);
	t->pattern.skew = (double)draw(t, 8) / 4;
	t->pattern.percent = (unsigned int)draw(t, 100);
	t->pattern.block = (int)draw(t, 9);
	t->pattern.zero = draw(t, 3) ? 0 : (int)draw(t, 4);
}

static void add_diagonal(struct test_case *t)
{
	int gpus = t->layout.gpus;

	if (t->pattern.line > UINT64_C(1) << 60 || draw(t, 3))
		return;
	for (int g = 0; g < gpus; g++)
		t->c[g * gpus + g] = draw(t, t->pattern.line);
}

/* Sound, repeatable, and (with lines long enough for start-ups not to count) near the bound. */
static struct hoccl_plan *make(struct test_case *t, enum hoccl_plan_method method, bool relay)
{
	struct hoccl_plan_options options = {method, relay};
	struct hoccl_plan_error error = {""};
	struct hoccl_plan *plan = NULL, *again = NULL;

	if (hoccl_plan_make(&plan, &t->layout, &t->machine, t->c, &options, &error)) {
		fprintf(stderr, "%s\n", error.text);
		t->fault = "no plan";
		return NULL;
	}
	t->fault = hoccl_check_plan(plan, &t->layout, &t->machine, t->c);
	if (!t->fault && !draw(t, 16)) {
		if (hoccl_plan_make(&again, &t->layout, &t->machine, t->c, &options, &error) ||
		    hoccl_plan_hash(plan) != hoccl_plan_hash(again))
			t->fault = "the same plan is not the same";
		hoccl_plan_free(again);
	}
	return plan;
}

static uint64_t flows_most(const struct test_case *t)
{
	int gpus = t->layout.gpus, most = 0;

	for (int i = 0; i < gpus; i++) {
		int row = 0, column = 0;

		for (int k = 0; k < gpus; k++) {
			row += t->c[i * gpus + k] != 0;
			column += t->c[k * gpus + i] != 0;
		}
		most = row > most ? row : most;
		most = column > most ? column : most;
	}
	return (uint64_t)most;
}

/*
 * Lines that wires and native traffic share, and that are hardly faster than the NIC: the wires are ordered without
 * regard to them, so the plan may be a good deal above the bound. A self copy through host memory is one such case, an
 * NVLink that does not carry two wires' forwarding copies another.
 */
static bool shared_line_slow(const struct test_case *t)
{
	const struct hoccl_rate *rate = t->machine.rate;

	if (rate[HOCCL_LINE_NVLINK_OUT].bytes_per_s < 2 * rate[HOCCL_LINE_NIC_OUT].bytes_per_s * 3 / 2)
		return true;
	for (int g = 0; g < t->layout.gpus; g++)
		if (t->layout.pair[g] == HOCCL_PAIR_HOST && t->c[g * t->layout.gpus + g])
			return true;
	return false;
}

/* A list schedule never takes twice the bound and its start-ups; production at up to 16 GPUs is near the bound. */
static const char *check_quality(const struct test_case *t, const struct hoccl_plan *plan)
{
	uint64_t starts = (2 * flows_most(t) + 40) * t->machine.start_ns;
	uint64_t over = plan->makespan_ns > plan->relay_bound_ns ? plan->makespan_ns - plan->relay_bound_ns : 0;

	if (over > 2 * plan->relay_bound_ns + 4 * starts + 1000)
		return "the plan takes more than three times the bound";
	if (t->layout.gpus <= 8 && !shared_line_slow(t) && t->machine.start_ns <= 3800 && plan->bound_ns > 20000000 &&
	    over > plan->relay_bound_ns / (plan->relayed ? 10 : 50))
		return "more than 1.02 times the bound (1.1 with relay) at 8 GPUs";
	return NULL;
}

/* Splitting can beat the optimum without splitting; not splitting well must not lose more than a little. */
static const char *check_optimum(const struct test_case *t, const struct hoccl_plan *plan)
{
	uint64_t best = hoccl_check_optimum(&t->layout, &t->machine, t->c), slack = 8 * t->machine.start_ns + 100;

	if (!best || plan->relayed || shared_line_slow(t))
		return NULL;
	best = best > plan->bound_ns ? best : plan->bound_ns;
	if (plan->makespan_ns > best + best / 50 + slack) {
		fprintf(stderr, "makespan %" PRIu64 ", optimum %" PRIu64 "\n", plan->makespan_ns, best);
		return "production is worse than the optimum";
	}
	return NULL;
}

static const char *check_simulation(const struct test_case *t, const struct hoccl_plan *plan, bool overlap)
{
	struct hoccl_sim_options options = {.overlap = overlap};
	struct hoccl_plan_error error = {""};
	struct hoccl_sim_result result;

	if (hoccl_sim_run(plan, &t->layout, &t->machine, &options, &result, &error)) {
		fprintf(stderr, "%s\n", error.text);
		return "the simulation failed";
	}
	if (result.ns + result.ns / 1000 + 1000 < plan->relay_bound_ns)
		return "the simulation is faster than the bound";
	return NULL;
}

static void check_methods(struct test_case *t)
{
	bool relay = draw(t, 2), both = !draw(t, t->layout.gpus < 256 ? 4 : 8);
	bool small = t->layout.gpus <= 16 && t->pattern.line <= UINT64_C(1) << 28;
	struct hoccl_plan *plan = make(t, HOCCL_PLAN_AUTO, relay);

	if (!t->fault)
		t->fault = check_quality(t, plan);
	if (!t->fault && t->layout.gpus <= 4)
		t->fault = check_optimum(t, plan);
	if (!t->fault && small && !draw(t, 8))
		t->fault = check_simulation(t, plan, draw(t, 2));
	hoccl_plan_free(plan);
	for (enum hoccl_plan_method m = HOCCL_PLAN_PEEL; m <= HOCCL_PLAN_LIST && !t->fault && both; m++)
		hoccl_plan_free(make(t, m, relay));
}

/* NULL, or what is wrong. */
static const char *run_case(unsigned long number)
{
	struct test_case *t = calloc(1, sizeof(*t));
	const char *fault;

	t->number = number;
	t->state = (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
	for (int i = 0; i < 4; i++)
		draw(t, 2);
	draw_layout(t);
	draw_machine(t);
	draw_pattern(t);
	t->c = malloc((size_t)t->layout.gpus * (size_t)t->layout.gpus * sizeof(*t->c));
	if (!t->fault && hoccl_pattern_fill(&t->pattern, &t->layout, t->c, NULL))
		t->fault = "no pattern";
	if (!t->fault) {
		add_diagonal(t);
		check_methods(t);
	}
	fault = t->fault;
	if (fault)
		fprintf(stderr, "case %lu (%d GPUs, %d nodes, %s, line %" PRIu64 "): %s\n", number, t->layout.gpus,
			t->layout.nodes, t->pattern.name, t->pattern.line, fault);
	free(t->c);
	free(t);
	return fault;
}

/* In blocks, of which each has a large case (draw_gpus). */
static int run_share(unsigned long cases, unsigned long worker)
{
	for (unsigned long i = 0; i < cases; i++)
		if (i / LARGE_EVERY % WORKERS == worker && run_case(i))
			return 1;
	return 0;
}

int main(void)
{
	const char *cases = getenv("HOCCL_SCHED_CASES"), *single = getenv("HOCCL_SCHED_CASE");
	unsigned long count = cases ? strtoul(cases, NULL, 10) : CASES;
	int failed = 0, status;

	if (single)
		return run_case(strtoul(single, NULL, 10)) != NULL;
	for (unsigned long worker = 0; worker < WORKERS; worker++) {
		pid_t child = fork();

		if (child < 0)
			return 99;
		if (!child)
			exit(run_share(count, worker));
	}
	for (int worker = 0; worker < WORKERS; worker++)
		failed |= wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status);
	if (!failed)
		printf("%lu cases\n", count);
	return failed;
}
