/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hoccl-plan: shows how HOCCL would schedule a collective, without a GPU.
 *
 * Reads a topology and a traffic matrix, makes the plan that production would use and the alternatives, and prints
 * stages, loads, times and the ratio to the lower bound; on request it runs the plan in virtual time and draws it.
 */
#include "hoccl_plan_tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_SVG = 256, OPT_JSON, OPT_SIMULATE, OPT_NO_OVERLAP, OPT_NO_RELAY, OPT_NO_SELF, OPT_PAIRS, OPT_NODES, OPT_METHOD,
       OPT_ALL, OPT_SWEEP, OPT_RATE, OPT_GRANTS };

static const char usage[] =
"Usage: hoccl-plan [OPTION]... TOPOLOGY TRAFFIC\n"
"Show how HOCCL schedules a collective: stages, loads, predicted time, ratio to the lower bound.\n"
"\n"
"TOPOLOGY is NODESxGPUS (2x8), a file, or a machine recorded with lstopo --of xml:\n"
"  node 0-3 8       the GPUs of a node, one line a node\n"
"  pair 0 1         symmetric GPUs; what no line mentions is paired with its neighbour\n"
"  host 2           no symmetric GPU: staged in host memory\n"
"  outside 3        the symmetric GPU is no rank\n"
"TRAFFIC is a CSV file of bytes (row: sender, column: receiver) or a pattern with parameters:\n"
"  uniform random zipf sparse block hotrow hotcol permutation stochastic pair\n"
"  line=BYTES       longest row or column, 4GiB        seed=N      1\n"
"  skew=X           of zipf, 1.2                       percent=N   entries of sparse, 12\n"
"  factor=N         of hotrow and hotcol, 16           block=N     of block, the first node's GPUs\n"
"  zero=N           rows and columns without traffic, 0\n"
"  for example: zipf,line=1GiB,seed=7,skew=0.8\n"
"\n"
"  -m, --machine NAME    h800 (the paper's testbed) or h200; h800\n"
"      --rate LINE=BYTES bytes a second of nvlink, nic, pcie, push or pull instead of the machine's\n"
"      --nodes N         the topology N times, as N nodes\n"
"      --pairs KIND      adjacent, none (host memory), outside (for GPUs without a neighbour); adjacent\n"
"      --no-self         the diagonal does not move\n"
"      --no-relay        do not use other GPUs' NICs\n"
"      --method NAME     auto, rotation, peel (Algorithm 1) or list; auto shows all and marks production's;\n"
"                        turns: one node as the runtime moves it, which follows no plan there\n"
"      --simulate        run the plan in virtual time\n"
"      --grants          simulate the wires without a plan, by the receivers' grants\n"
"      --no-overlap      simulate forwarding and wire one after the other\n"
"      --sweep           simulate 2 MiB to 1 GiB of a pattern and print a table\n"
"      --all-stages      print every stage\n"
"      --json            print everything as JSON\n"
"      --svg FILE        draw a timeline of each GPU's engines (up to 64 GPUs)\n"
"  -h, --help            print this\n"
"\n"
"Exit status: 0, 1 if something is wrong with the input, 2 if with the command line.\n";

struct arguments {
	const char *svg, *method;
	bool json, simulate, no_self, pairs, sweep;
	int copies, lone;
};

static int parse_pairs(struct arguments *a, const char *text)
{
	a->pairs = strcmp(text, "none") != 0;
	a->lone = strcmp(text, "outside") ? HOCCL_PAIR_HOST : HOCCL_PAIR_OUTSIDE;
	return strcmp(text, "none") && strcmp(text, "outside") && strcmp(text, "adjacent") ? -1 : 0;
}

static int parse_rate(struct hoccl_machine *m, const char *text)
{
	static const struct {
		const char *name;
		enum hoccl_line first, last;
	} lines[] = {
		{"nvlink=", HOCCL_LINE_NVLINK_OUT, HOCCL_LINE_NVLINK_IN}, {"nic=", HOCCL_LINE_NIC_OUT, HOCCL_LINE_NIC_IN},
		{"pcie=", HOCCL_LINE_PCIE_OUT, HOCCL_LINE_PCIE_IN}, {"push=", HOCCL_LINE_PUSH, HOCCL_LINE_PUSH},
		{"pull=", HOCCL_LINE_PULL, HOCCL_LINE_PULL},
	};
	uint64_t rate;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		size_t length = strlen(lines[i].name);

		if (strncmp(text, lines[i].name, length) != 0)
			continue;
		if (!hoccl_bytes_parse(text + length, &rate) || rate < 100000000 || rate > UINT64_C(100000000000000))
			return -1;
		for (int l = lines[i].first; l <= (int)lines[i].last; l++)
			m->rate[l] = hoccl_rate_of(rate);
		return 0;
	}
	return -1;
}

static int parse_machine(struct hoccl_machine *m, const char *text)
{
	const struct hoccl_machine *found = hoccl_machine_find(text);

	if (found)
		*m = *found;
	return found ? 0 : -1;
}

static int parse_count(int *count, const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (!*text || *end || value < 1 || value > HOCCL_SCHED_MAX_GPUS)
		return -1;
	*count = (int)value;
	return 0;
}

/* One option; -1: its value is wrong. */
static int parse_option(struct hoccl_tool *t, struct arguments *a, int option, const char *value)
{
	switch (option) {
	case 'm':
		return parse_machine(&t->machine, value);
	case OPT_RATE:
		return parse_rate(&t->machine, value);
	case OPT_NODES:
		return parse_count(&a->copies, value);
	case OPT_PAIRS:
		return parse_pairs(a, value);
	case OPT_METHOD:
		a->method = value;
		return strcmp(value, "auto") && strcmp(value, "rotation") && strcmp(value, "peel") &&
		       strcmp(value, "list") && strcmp(value, "turns") ? -1 : 0;
	case OPT_SVG:
		a->svg = value;
		return 0;
	case OPT_JSON:
		a->json = true;
		return 0;
	case OPT_SIMULATE:
		a->simulate = true;
		return 0;
	case OPT_GRANTS:
		t->grants = true;
		return 0;
	case OPT_NO_OVERLAP:
		t->overlap = false;
		a->simulate = true;
		return 0;
	case OPT_NO_RELAY:
		t->relay = false;
		return 0;
	case OPT_NO_SELF:
		a->no_self = true;
		return 0;
	case OPT_ALL:
		t->all_stages = true;
		return 0;
	case OPT_SWEEP:
		a->sweep = a->simulate = true;
		return 0;
	default:
		return -1;
	}
}

/* 0: go on; otherwise the exit status, plus 1. */
static int parse(struct hoccl_tool *t, struct arguments *a, int argc, char **argv)
{
	static const struct option options[] = {
		{"machine", required_argument, NULL, 'm'}, {"rate", required_argument, NULL, OPT_RATE},
		{"nodes", required_argument, NULL, OPT_NODES}, {"pairs", required_argument, NULL, OPT_PAIRS},
		{"no-self", no_argument, NULL, OPT_NO_SELF}, {"no-relay", no_argument, NULL, OPT_NO_RELAY},
		{"method", required_argument, NULL, OPT_METHOD}, {"simulate", no_argument, NULL, OPT_SIMULATE},
		{"no-overlap", no_argument, NULL, OPT_NO_OVERLAP}, {"sweep", no_argument, NULL, OPT_SWEEP},
		{"all-stages", no_argument, NULL, OPT_ALL}, {"grants", no_argument, NULL, OPT_GRANTS}, {"json", no_argument, NULL, OPT_JSON},
		{"svg", required_argument, NULL, OPT_SVG}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
	};
	int option, index = 0;

	while ((option = getopt_long(argc, argv, "m:h", options, &index)) != -1) {
		if (option == 'h') {
			fputs(usage, stdout);
			return 1;
		}
		if (option == '?') {
			fprintf(stderr, "Try 'hoccl-plan --help'.\n");
			return 3;
		}
		if (parse_option(t, a, option, optarg)) {
			fprintf(stderr, "hoccl-plan: %s%s: \"%s\" is not understood\n", option == 'm' ? "" : "--",
				option == 'm' ? "-m" : options[index].name, optarg);
			return 3;
		}
	}
	if (argc - optind != 2) {
		fprintf(stderr, "hoccl-plan: a topology and a traffic matrix are needed\nTry 'hoccl-plan --help'.\n");
		return 3;
	}
	if (a->sweep && (a->svg || t->grants)) {
		fprintf(stderr, "hoccl-plan: --sweep goes with neither --svg nor --grants\n");
		return 3;
	}
	t->topology = argv[optind];
	t->matrix = argv[optind + 1];
	return 0;
}

/* A pattern has a known name before its first comma; everything else is a file. */
static bool is_pattern(const char *text)
{
	size_t length = strcspn(text, ",");

	for (int i = 0; hoccl_pattern_names[i]; i++)
		if (strlen(hoccl_pattern_names[i]) == length && !strncmp(text, hoccl_pattern_names[i], length))
			return true;
	return false;
}

static uint64_t longest_line(const struct hoccl_tool *t)
{
	size_t gpus = (size_t)t->layout.gpus;
	uint64_t longest = 0;

	for (size_t i = 0; i < gpus; i++) {
		uint64_t row = 0, column = 0;

		for (size_t k = 0; k < gpus; k++) {
			row += t->c[i * gpus + k];
			column += t->c[k * gpus + i];
		}
		longest = row > longest ? row : longest;
		longest = column > longest ? column : longest;
	}
	return longest;
}

/* Fills C from the file or the pattern. */
static int read_traffic(struct hoccl_tool *t, const struct arguments *a, struct hoccl_plan_error *error)
{
	int gpus = t->layout.gpus, status;

	status = t->pattern.name ? hoccl_pattern_fill(&t->pattern, &t->layout, t->c, error) :
				   hoccl_input_matrix(t->matrix, gpus, t->c, error);
	if (status)
		return status;
	t->size = longest_line(t);
	for (int g = 0; g < gpus && a->no_self; g++)
		t->c[(size_t)g * (size_t)gpus + (size_t)g] = 0;
	return hoccl_traffic_init(t->traffic, &t->layout, t->c, error);
}

static bool is_uniform(const struct hoccl_tool *t)
{
	int cells = t->layout.gpus * t->layout.gpus;

	for (int i = 1; i < cells; i++)
		if (t->c[i] != t->c[0])
			return false;
	return true;
}

static int plan_once(struct hoccl_tool *t, enum hoccl_plan_method method, struct hoccl_tool_result *r,
		     struct hoccl_plan_error *error)
{
	struct hoccl_plan_options options = {method, t->relay};
	uint64_t begin = hoccl_tool_clock();
	int status = hoccl_plan_make(&r->plan, &t->layout, &t->machine, t->c, &options, error);

	r->planning_ns = hoccl_tool_clock() - begin;
	return status;
}

/* The second of two runs counts where they are short: the first also pays for the memory. */
static int make_plan(struct hoccl_tool *t, enum hoccl_plan_method method, struct hoccl_tool_result *r,
		     struct hoccl_plan_error *error)
{
	int status = plan_once(t, method, r, error);

	if (status || r->planning_ns > 100000000)
		return status;
	hoccl_plan_free(r->plan);
	r->plan = NULL;
	return plan_once(t, method, r, error);
}

static bool asked(const struct arguments *a, const char *name)
{
	return !strcmp(a->method, "auto") || !strcmp(a->method, name);
}

static int make_results(struct hoccl_tool *t, const struct arguments *a, struct hoccl_plan_error *error)
{
	struct hoccl_tool_result *rotation = &t->result[HOCCL_TOOL_ROTATION], *peel = &t->result[HOCCL_TOOL_PEEL];
	struct hoccl_tool_result *list = &t->result[HOCCL_TOOL_LIST], automatic = {0};
	bool uniform = is_uniform(t);
	int status = 0;

	if (!strcmp(a->method, "rotation") && !uniform)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "a rotation needs a uniform matrix, its diagonal included");
	if (!strcmp(a->method, "turns")) {
		t->chosen = HOCCL_TOOL_TURNS;
		return t->layout.nodes == 1 ?
			hoccl_turns_expand(&t->result[t->chosen].plan, t->traffic, &t->machine, error) :
			hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "turns are those of one node, not of %d", t->layout.nodes);
	}
	if (asked(a, "rotation") && uniform)
		status = hoccl_rotation_expand(&rotation->plan, &t->layout, &t->machine, t->c[0],
					       &rotation->planning_ns, error);
	if (!status && asked(a, "peel"))
		status = make_plan(t, HOCCL_PLAN_PEEL, peel, error);
	if (!status && asked(a, "list"))
		status = make_plan(t, HOCCL_PLAN_LIST, list, error);
	t->chosen = rotation->plan ? HOCCL_TOOL_ROTATION : peel->plan ? HOCCL_TOOL_PEEL : HOCCL_TOOL_LIST;
	if (!status && !rotation->plan && peel->plan && list->plan) {
		status = make_plan(t, HOCCL_PLAN_AUTO, &automatic, error);
		if (!status && automatic.plan->method == HOCCL_PLAN_LIST)
			t->chosen = HOCCL_TOOL_LIST;
		hoccl_plan_free(automatic.plan);
	}
	return status;
}

static int simulate(struct hoccl_tool *t, struct hoccl_plan_error *error)
{
	int status = 0;

	for (int i = 0; i < HOCCL_TOOL_METHODS && !status; i++) {
		struct hoccl_tool_result *r = &t->result[i];
		struct hoccl_sim_options options = {.overlap = t->overlap, .turns = i == HOCCL_TOOL_TURNS};

		if (!r->plan)
			continue;
		status = hoccl_sim_run(r->plan, &t->layout, &t->machine, &options, &r->sim, error);
		r->simulated = !status;
	}
	return status;
}

static void free_results(struct hoccl_tool *t)
{
	static const char *const names[HOCCL_TOOL_METHODS] = {"rotation", "peel", "list", "turns"};

	for (int i = 0; i < HOCCL_TOOL_METHODS; i++) {
		hoccl_plan_free(t->result[i].plan);
		t->result[i] = (struct hoccl_tool_result){.name = names[i]};
	}
}

const char *const hoccl_tool_grants[HOCCL_TOOL_GRANTS] = {"stages", "longest", "totals", "plan"};

/* What the wires take as the runtime has them, without a plan and with the best one. */
static int by_grants(struct hoccl_tool *t, struct hoccl_plan_error *error)
{
	static const enum hoccl_grants_order orders[] = {HOCCL_GRANTS_IN_ORDER, HOCCL_GRANTS_LONGEST, HOCCL_GRANTS_TOTALS};
	struct hoccl_grants_cost cost = hoccl_grants_cost_of(&t->machine);
	struct hoccl_parts parts;
	struct hoccl_choice choice = {.plan_ns = 0};
	int status = hoccl_parts_of_matrix(&parts, &t->layout, t->c);

	if (status)
		return hoccl_plan_fail(error, status, "no memory for the traffic of %d GPUs", t->layout.gpus);
	t->wire_bound_ns = hoccl_grants_bound(&t->layout, &cost, &parts);
	for (int i = 0; i < HOCCL_TOOL_PLAN && !status; i++)
		status = hoccl_grants_run(&t->layout, &cost, &parts, orders[i], &t->granted_ns[i], error);
	if (!status)
		status = hoccl_choice_make(&choice, &t->layout, &cost, t->c, error);
	t->granted_ns[HOCCL_TOOL_PLAN] = choice.plan_ns;
	hoccl_choice_fini(&choice);
	hoccl_parts_fini(&parts);
	return status;
}

static int do_all(struct hoccl_tool *t, const struct arguments *a, struct hoccl_plan_error *error)
{
	int status;

	free_results(t);
	status = read_traffic(t, a, error);
	if (!status)
		status = make_results(t, a, error);
	if (!status && a->simulate)
		status = simulate(t, error);
	if (!status && t->grants)
		status = by_grants(t, error);
	return status;
}

static int unwritten(struct hoccl_plan_error *error)
{
	return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "standard output could not be written");
}

/* Bandwidth over sizes, as in the paper's Figures 7 and 8. */
static int sweep(struct hoccl_tool *t, const struct arguments *a, struct hoccl_plan_error *error)
{
	struct hoccl_tool_size sizes[HOCCL_TOOL_SIZES];
	uint64_t line = UINT64_C(2) << 20;
	int status = 0;

	if (!t->pattern.name)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "--sweep needs a pattern, not a file");
	for (int i = 0; i < HOCCL_TOOL_SIZES && !status; i++, line *= 2) {
		t->pattern.line = line;
		status = do_all(t, a, error);
		const struct hoccl_tool_result *r = &t->result[t->chosen];

		if (!status)
			sizes[i] = (struct hoccl_tool_size){t->size, r->sim.ns, r->plan->makespan_ns, r->plan->bound_ns};
	}
	if (status)
		return status;
	status = a->json ? hoccl_print_sizes_json(t, sizes, stdout) : hoccl_print_sizes(sizes, stdout);
	return status || fflush(stdout) || ferror(stdout) ? unwritten(error) : 0;
}

static int output(struct hoccl_tool *t, const struct arguments *a, struct hoccl_plan_error *error)
{
	int status = 0;

	if (a->svg)
		status = hoccl_print_svg(t, a->svg, error);
	if (status)
		return status;
	if (a->json)
		status = hoccl_print_json(t, stdout);
	else
		hoccl_print_text(t, stdout);
	return status || fflush(stdout) || ferror(stdout) ? unwritten(error) : 0;
}

static int run(struct hoccl_tool *t, const struct arguments *a, struct hoccl_plan_error *error)
{
	char *words = strdup(t->matrix);
	int status = words ? 0 : hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory");

	if (!status)
		status = hoccl_input_topology(&t->layout, t->topology, a->copies, a->lone, a->pairs, error);
	if (!status && is_pattern(t->matrix))
		status = hoccl_pattern_parse(&t->pattern, words, error);
	if (!status) {
		t->c = calloc((size_t)t->layout.gpus * (size_t)t->layout.gpus, sizeof(*t->c));
		t->traffic = malloc(sizeof(*t->traffic));
		if (!t->c || !t->traffic)
			status = hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for %d GPUs", t->layout.gpus);
	}
	if (!status && a->sweep)
		status = sweep(t, a, error);
	else if (!status && !(status = do_all(t, a, error)))
		status = output(t, a, error);
	free_results(t);
	free(t->c);
	free(t->traffic);
	free(words);
	return status;
}

int main(int argc, char **argv)
{
	static struct hoccl_tool tool;
	struct arguments arguments = {.method = "auto", .pairs = true, .copies = 1, .lone = HOCCL_PAIR_HOST};
	struct hoccl_plan_error error = {""};

	tool.machine = *hoccl_machine_find("h800");
	tool.relay = tool.overlap = true;
	free_results(&tool);
	int done = parse(&tool, &arguments, argc, argv);

	if (done)
		return done - 1;
	if (run(&tool, &arguments, &error)) {
		fprintf(stderr, "hoccl-plan: %s\n", error.text);
		return 1;
	}
	return 0;
}
