/* SPDX-License-Identifier: Apache-2.0 */
/* hoccl-plan's output for people: what was asked, the schedules side by side, the stages of the chosen one. */
#include "hoccl_plan_tool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STAGES 24

static const char *human(uint64_t bytes, char *text, size_t room)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)bytes;
	int unit = 0;

	for (; value >= 1024 && unit < 6; unit++)
		value /= 1024;
	snprintf(text, room, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
	return text;
}

static void print_pairs(const struct hoccl_layout *layout, FILE *file)
{
	int pairs = 0, host = 0, outside = 0;

	for (int g = 0; g < layout->gpus; g++) {
		pairs += layout->pair[g] > g;
		host += layout->pair[g] == HOCCL_PAIR_HOST;
		outside += layout->pair[g] == HOCCL_PAIR_OUTSIDE;
	}
	fprintf(file, "%d pair%s", pairs, pairs == 1 ? "" : "s");
	if (layout->gpus <= 16)
		for (int g = 0; g < layout->gpus; g++)
			if (layout->pair[g] > g)
				fprintf(file, " %d-%d", g, layout->pair[g]);
	if (host)
		fprintf(file, ", %d staged in host memory", host);
	if (outside)
		fprintf(file, ", %d with a symmetric GPU that is no rank", outside);
}

static void print_header(const struct hoccl_tool *t, FILE *file)
{
	const struct hoccl_plan *plan = t->result[t->chosen].plan;
	char text[32];
	enum hoccl_line line;
	int gpu;

	hoccl_load_time(t->traffic->load, t->layout.gpus, &t->machine, &gpu, &line);
	fprintf(file, "topology   %s: %d GPUs in %d node%s, ", t->topology, t->layout.gpus, t->layout.nodes,
		t->layout.nodes == 1 ? "" : "s");
	print_pairs(&t->layout, file);
	fprintf(file, "\nmachine    %s: NVLink %.1f GB/s, NIC %.1f GB/s, start-up %.1f us\n", t->machine.name,
		(double)t->machine.rate[HOCCL_LINE_NVLINK_OUT].bytes_per_s / 1e9,
		(double)t->machine.rate[HOCCL_LINE_NIC_OUT].bytes_per_s / 1e9, (double)t->machine.start_ns / 1e3);
	fprintf(file, "traffic    %s: longest line %s\n", t->matrix, human(t->size, text, sizeof(text)));
	fprintf(file, "bound      %.3f ms: %s of GPU %d, %s\n", (double)plan->bound_ns / 1e6, hoccl_line_name(line), gpu,
		human(t->traffic->load[gpu].bytes[line], text, sizeof(text)));
	if (plan->relayed)
		fprintf(file, "relay      %s over other GPUs' NICs: bound %.3f ms\n",
			human(plan->relayed, text, sizeof(text)), (double)plan->relay_bound_ns / 1e6);
	else
		fprintf(file, "relay      %s\n", t->relay ? "none (it would not be faster)" : "off");
}

static double ratio(uint64_t ns, const struct hoccl_plan *plan)
{
	return plan->relay_bound_ns ? (double)ns / (double)plan->relay_bound_ns : 1;
}

static void print_results(const struct hoccl_tool *t, FILE *file)
{
	fprintf(file, "\n%-10s%14s%8s%14s%8s%8s%14s%16s\n", "schedule", "makespan ms", "/bound", "sum tau ms", "/bound",
		"stages", "planning us", "simulated ms");
	for (int i = 0; i < HOCCL_TOOL_METHODS; i++) {
		const struct hoccl_tool_result *r = &t->result[i];

		if (!r->plan)
			continue;
		fprintf(file, "%-10s%14.3f%8.4f", r->name, (double)r->plan->makespan_ns / 1e6,
			ratio(r->plan->makespan_ns, r->plan));
		if (r->plan->sum_ns)
			fprintf(file, "%14.3f%8.4f%8" PRIu32, (double)r->plan->sum_ns / 1e6,
				ratio(r->plan->sum_ns, r->plan), r->plan->stages);
		else
			fprintf(file, "%14s%8s%8s", "-", "-", "-");
		fprintf(file, "%14.1f", (double)r->planning_ns / 1e3);
		if (r->simulated)
			fprintf(file, "%16.3f", (double)r->sim.ns / 1e6);
		fprintf(file, "%s\n", i == t->chosen ? "  *" : "");
	}
}

static double percent(const struct hoccl_stage_load *sum, uint64_t ns, enum hoccl_domain domain)
{
	return ns ? 100.0 * (double)sum->domain_ns[domain] / (double)ns : 0;
}

static void print_stages(const struct hoccl_tool *t, FILE *file)
{
	const struct hoccl_plan *plan = t->result[t->chosen].plan;
	struct hoccl_load *load = malloc((size_t)t->layout.gpus * sizeof(*load));
	uint32_t shown = t->all_stages || plan->stages <= MOST_STAGES ? plan->stages : MOST_STAGES;
	char wire[32], local[32];

	if (!load)
		return;
	fprintf(file, "\n%s of %s; loads are of the busiest GPU, in %% of the time\n",
		plan->method == HOCCL_PLAN_LIST ? "windows (wires by their start)" : "stages",
		t->result[t->chosen].name);
	fprintf(file, "%7s%12s%12s%7s%12s%7s%12s%6s%6s%7s%6s\n", "", "start ms", "tau ms", "wires", "bytes", "native",
		"bytes", "NIC", "PCIe", "NVLink", "copy");
	for (uint32_t s = 0; s < shown; s++) {
		struct hoccl_stage_load sum;
		uint64_t ns = plan->stage[s].ns;

		hoccl_stage_load(t, plan, s, load, &sum);
		fprintf(file, "%7" PRIu32 "%12.3f%12.3f%7zu%12s%7zu%12s%6.0f%6.0f%7.0f%6.0f\n", s,
			(double)plan->stage[s].start_ns / 1e6, (double)ns / 1e6, sum.wires,
			human(sum.wire_bytes, wire, sizeof(wire)), sum.locals,
			human(sum.local_bytes, local, sizeof(local)),
			percent(&sum, ns, HOCCL_DOMAIN_NIC),
			percent(&sum, ns, HOCCL_DOMAIN_PCIE),
			percent(&sum, ns, HOCCL_DOMAIN_NVLINK),
			percent(&sum, ns, HOCCL_DOMAIN_COPY));
	}
	if (shown < plan->stages)
		fprintf(file, "    ... %" PRIu32 " more (--all-stages shows them)\n", plan->stages - shown);
	free(load);
}

static void print_simulation(const struct hoccl_tool *t, FILE *file)
{
	const struct hoccl_tool_result *r = &t->result[t->chosen];
	static const char *const names[HOCCL_SIM_ENGINES] = {"push", "pull", "D2H", "H2D", "NIC out", "NIC in"};

	if (!r->simulated)
		return;
	fprintf(file, "\nsimulated  %.3f ms, launch included: %.1f GB/s of the longest line; %" PRIu64 " chunks%s\n",
		(double)r->sim.ns / 1e6, r->sim.ns ? (double)t->size / (double)r->sim.ns : 0, r->sim.chunks,
		t->overlap ? "" : "; forwarding and wire one after the other");
	fprintf(file, "busiest   ");
	for (int e = 0; e < HOCCL_SIM_ENGINES; e++)
		if (r->sim.busy_ns[e])
			fprintf(file, " %s %.0f %%", names[e], 100.0 * (double)r->sim.busy_ns[e] / (double)r->sim.ns);
	fprintf(file, "\n");
}

/* The same traffic between nodes without a plan. */
static void print_grants(const struct hoccl_tool *t, FILE *file)
{
	if (!t->grants)
		return;
	fprintf(file, "\nby grants ");
	for (int i = 0; i < HOCCL_TOOL_GRANTS; i++)
		fprintf(file, " %s %.3f ms (%.4f)", hoccl_tool_grants[i], (double)t->granted_ns[i] / 1e6,
			t->wire_bound_ns ? (double)t->granted_ns[i] / (double)t->wire_bound_ns : 1);
	fprintf(file, "\n           wires only, their bound %.3f ms\n", (double)t->wire_bound_ns / 1e6);
}

void hoccl_print_text(const struct hoccl_tool *t, FILE *file)
{
	print_header(t, file);
	print_results(t, file);
	print_simulation(t, file);
	print_grants(t, file);
	print_stages(t, file);
}

int hoccl_print_sizes(const struct hoccl_tool_size sizes[HOCCL_TOOL_SIZES], FILE *file)
{
	fprintf(file, "%12s%14s%14s%14s%10s\n", "bytes", "simulated us", "planned us", "bound us", "GB/s");
	for (const struct hoccl_tool_size *s = sizes; s < sizes + HOCCL_TOOL_SIZES; s++)
		fprintf(file, "%12" PRIu64 "%14.1f%14.1f%14.1f%10.1f\n", s->bytes, (double)s->simulated_ns / 1e3,
			(double)s->planned_ns / 1e3, (double)s->bound_ns / 1e3,
			s->simulated_ns ? (double)s->bytes / (double)s->simulated_ns : 0);
	return 0;
}
