/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_PLAN_TOOL_H
#define HOCCL_PLAN_TOOL_H

#include "hoccl_plan_pattern.h"
#include "hoccl_plan_sim.h"
#include "sched/choice.h"
#include "sched/plan.h"

#include <stdio.h>

/* What the parts of hoccl-plan share. */
struct hoccl_tool_result {
	const char *name;
	struct hoccl_plan *plan;
	uint64_t planning_ns;
	bool simulated;
	struct hoccl_sim_result sim;
};

enum { HOCCL_TOOL_ROTATION, HOCCL_TOOL_PEEL, HOCCL_TOOL_LIST, HOCCL_TOOL_TURNS, HOCCL_TOOL_METHODS };

/* The wires by grants: in the rotation's order, the longest first, the largest totals first, in a plan's order. */
enum { HOCCL_TOOL_STAGES, HOCCL_TOOL_LONGEST, HOCCL_TOOL_TOTALS, HOCCL_TOOL_PLAN, HOCCL_TOOL_GRANTS };
extern const char *const hoccl_tool_grants[HOCCL_TOOL_GRANTS];

struct hoccl_tool {
	struct hoccl_layout layout;
	struct hoccl_machine machine;
	struct hoccl_pattern pattern;	/* name NULL: the matrix is from a file */
	const char *topology, *matrix;	/* as given */
	uint64_t *c;
	uint64_t size;			/* bytes that a bandwidth refers to: the longest line */
	struct hoccl_traffic *traffic;
	bool relay, overlap, all_stages, grants;
	struct hoccl_tool_result result[HOCCL_TOOL_METHODS];
	uint64_t granted_ns[HOCCL_TOOL_GRANTS], wire_bound_ns;	/* with `grants` */
	int chosen;			/* index of what production would use, or of what was asked for */
};

/* A line of --sweep. */
#define HOCCL_TOOL_SIZES 10
struct hoccl_tool_size {
	uint64_t bytes, simulated_ns, planned_ns, bound_ns;
};

/* Topology: "2x8", a file, or hwloc XML (one machine, taken `copies` times). `lone`: what a GPU without pair gets. */
int hoccl_input_topology(struct hoccl_layout *layout, const char *text, int copies, int lone, bool pairs,
			 struct hoccl_plan_error *error);
int hoccl_input_hwloc(const char *path, int *gpus, int *pair, int lone, struct hoccl_plan_error *error);

/* Reads gpus × gpus entries. */
int hoccl_input_matrix(const char *path, int gpus, uint64_t *c, struct hoccl_plan_error *error);

/* A rotation as a plan, for printing and simulation. */
int hoccl_rotation_expand(struct hoccl_plan **plan, const struct hoccl_layout *layout,
			  const struct hoccl_machine *machine, uint64_t bytes, uint64_t *planning_ns,
			  struct hoccl_plan_error *error);

/* One node as the runtime moves it: each GPU pushes to the next ones in turn and its own piece last, without a barrier or grants. */
int hoccl_turns_expand(struct hoccl_plan **plan, const struct hoccl_traffic *traffic, const struct hoccl_machine *machine,
		       struct hoccl_plan_error *error);

/* What a stage moves, and of each domain the GPU with the most to do: its bytes one way, and how long they take. */
enum hoccl_domain { HOCCL_DOMAIN_NIC, HOCCL_DOMAIN_PCIE, HOCCL_DOMAIN_NVLINK, HOCCL_DOMAIN_COPY, HOCCL_DOMAINS };
extern const char *const hoccl_domains[HOCCL_DOMAINS];

struct hoccl_stage_load {
	uint64_t wire_bytes, local_bytes;
	size_t wires, locals;
	uint64_t domain_ns[HOCCL_DOMAINS], domain_bytes[HOCCL_DOMAINS];
	int domain_gpu[HOCCL_DOMAINS];
};

/* `load`: room for one a GPU. */
void hoccl_stage_load(const struct hoccl_tool *tool, const struct hoccl_plan *plan, uint32_t stage, struct hoccl_load *load,
		      struct hoccl_stage_load *sum);

void hoccl_print_text(const struct hoccl_tool *tool, FILE *file);
int hoccl_print_json(const struct hoccl_tool *tool, FILE *file);
int hoccl_print_sizes(const struct hoccl_tool_size sizes[HOCCL_TOOL_SIZES], FILE *file);
int hoccl_print_sizes_json(const struct hoccl_tool *tool, const struct hoccl_tool_size sizes[HOCCL_TOOL_SIZES], FILE *file);

/* Simulates the chosen plan and draws what each engine does. */
int hoccl_print_svg(const struct hoccl_tool *tool, const char *path, struct hoccl_plan_error *error);

uint64_t hoccl_tool_clock(void);

#endif
