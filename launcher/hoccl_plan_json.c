/* SPDX-License-Identifier: Apache-2.0 */
/* hoccl-plan's output for programs: everything of the plan, in nanoseconds and bytes. */
#include "hoccl_plan_tool.h"

#include <jansson.h>
#include <stdlib.h>

static json_t *integer(uint64_t value)
{
	return json_integer((json_int_t)(value > INT64_MAX ? INT64_MAX : value));
}

static void set(json_t *object, const char *key, uint64_t value)
{
	json_object_set_new(object, key, integer(value));
}

static json_t *wire_json(const struct hoccl_plan_wire *w)
{
	json_t *o = json_object();

	set(o, "src", (uint64_t)w->path.src);
	set(o, "dst", (uint64_t)w->path.dst);
	if (w->path.out != w->path.src)
		set(o, "out", (uint64_t)w->path.out);
	if (w->path.in != w->path.dst)
		set(o, "in", (uint64_t)w->path.in);
	set(o, "bytes", w->bytes);
	set(o, "offset", w->offset);
	set(o, "start_ns", w->start_ns);
	set(o, "end_ns", w->end_ns);
	return o;
}

static json_t *local_json(const struct hoccl_local *l)
{
	json_t *o = json_object();

	set(o, "src", (uint64_t)l->src);
	set(o, "dst", (uint64_t)l->dst);
	set(o, "bytes", l->bytes);
	set(o, "offset", l->offset);
	return o;
}

/* Of each domain the busiest GPU. */
static json_t *loads_json(const struct hoccl_stage_load *sum)
{
	json_t *loads = json_object();

	for (int d = 0; d < HOCCL_DOMAINS; d++) {
		json_t *o = json_object();

		set(o, "ns", sum->domain_ns[d]);
		set(o, "bytes", sum->domain_bytes[d]);
		if (sum->domain_bytes[d])
			set(o, "gpu", (uint64_t)sum->domain_gpu[d]);
		json_object_set_new(loads, hoccl_domains[d], o);
	}
	return loads;
}

/* `load`: room for one a GPU. */
static json_t *stages_json(const struct hoccl_tool *t, const struct hoccl_plan *plan, struct hoccl_load *load)
{
	json_t *stages = json_array();

	for (uint32_t s = 0; s < plan->stages; s++) {
		const struct hoccl_plan_stage *at = &plan->stage[s];
		struct hoccl_stage_load sum;
		json_t *o = json_object(), *wires = json_array(), *locals = json_array();

		for (size_t i = at->first_wire; i < at[1].first_wire; i++)
			json_array_append_new(wires, wire_json(&plan->wire[i]));
		for (size_t i = at->first_local; i < at[1].first_local; i++)
			json_array_append_new(locals, local_json(&plan->local[i]));
		set(o, "start_ns", at->start_ns);
		set(o, "ns", at->ns);
		hoccl_stage_load(t, plan, s, load, &sum);
		json_object_set_new(o, "loads", loads_json(&sum));
		json_object_set_new(o, "wires", wires);
		json_object_set_new(o, "native", locals);
		json_array_append_new(stages, o);
	}
	return stages;
}

static json_t *result_json(const struct hoccl_tool *t, const struct hoccl_tool_result *r)
{
	json_t *o = json_object();

	set(o, "makespan_ns", r->plan->makespan_ns);
	if (r->plan->sum_ns)
		set(o, "sum_tau_ns", r->plan->sum_ns);
	set(o, "stages", r->plan->stages);
	set(o, "planning_ns", r->planning_ns);
	if (r->plan->relay_bound_ns)
		json_object_set_new(o, "ratio", json_real((double)r->plan->makespan_ns /
							  (double)r->plan->relay_bound_ns));
	if (r->simulated) {
		set(o, "simulated_ns", r->sim.ns);
		if (r->sim.ns)
			json_object_set_new(o, "simulated_gb_s", json_real((double)t->size / (double)r->sim.ns));
	}
	return o;
}

static json_t *grants_json(const struct hoccl_tool *t)
{
	json_t *o = json_object();

	set(o, "wire_bound_ns", t->wire_bound_ns);
	for (int i = 0; i < HOCCL_TOOL_GRANTS; i++)
		set(o, hoccl_tool_grants[i], t->granted_ns[i]);
	return o;
}

static json_t *head_json(const struct hoccl_tool *t)
{
	json_t *root = json_object();

	json_object_set_new(root, "topology", json_string(t->topology));
	json_object_set_new(root, "machine", json_string(t->machine.name));
	json_object_set_new(root, "traffic", json_string(t->matrix));
	set(root, "gpus", (uint64_t)t->layout.gpus);
	set(root, "nodes", (uint64_t)t->layout.nodes);
	return root;
}

/* Frees it. */
static int print(json_t *root, FILE *file)
{
	int status = json_dumpf(root, file, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));

	fputc('\n', file);
	json_decref(root);
	return status;
}

int hoccl_print_sizes_json(const struct hoccl_tool *t, const struct hoccl_tool_size sizes[HOCCL_TOOL_SIZES], FILE *file)
{
	json_t *root = head_json(t), *array = json_array();

	for (const struct hoccl_tool_size *s = sizes; s < sizes + HOCCL_TOOL_SIZES; s++) {
		json_t *o = json_object();

		set(o, "longest_line_bytes", s->bytes);
		set(o, "simulated_ns", s->simulated_ns);
		set(o, "makespan_ns", s->planned_ns);
		set(o, "bound_ns", s->bound_ns);
		json_array_append_new(array, o);
	}
	json_object_set_new(root, "sizes", array);
	return print(root, file);
}

int hoccl_print_json(const struct hoccl_tool *t, FILE *file)
{
	const struct hoccl_plan *plan = t->result[t->chosen].plan;
	struct hoccl_load *load = malloc((size_t)t->layout.gpus * sizeof(*load));
	json_t *root, *results;

	if (!load)
		return -1;
	root = head_json(t);
	results = json_object();
	set(root, "longest_line_bytes", t->size);
	set(root, "bound_ns", plan->bound_ns);
	set(root, "relay_bound_ns", plan->relay_bound_ns);
	set(root, "relayed_bytes", plan->relayed);
	for (int i = 0; i < HOCCL_TOOL_METHODS; i++)
		if (t->result[i].plan)
			json_object_set_new(results, t->result[i].name, result_json(t, &t->result[i]));
	json_object_set_new(root, "schedules", results);
	if (t->grants)
		json_object_set_new(root, "by_grants_ns", grants_json(t));
	json_object_set_new(root, "chosen", json_string(t->result[t->chosen].name));
	json_object_set_new(root, "stages", stages_json(t, plan, load));
	free(load);
	return print(root, file);
}
