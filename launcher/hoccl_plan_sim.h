/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_PLAN_SIM_H
#define HOCCL_PLAN_SIM_H

#include "sched/plan.h"

/* Runs a plan in virtual time on the machine model, chunk by chunk. */

/* The rows of a timeline. */
enum hoccl_sim_engine {
	HOCCL_SIM_PUSH,
	HOCCL_SIM_PULL,
	HOCCL_SIM_D2H,
	HOCCL_SIM_H2D,
	HOCCL_SIM_WIRE_OUT,
	HOCCL_SIM_WIRE_IN,
	HOCCL_SIM_ENGINES,
};

/* What an engine did: one chunk (the caller may merge neighbours). */
struct hoccl_sim_event {
	enum hoccl_sim_engine engine;
	int gpu;
	bool native;		/* traffic within the node */
	int src, dst;		/* of the flow */
	uint32_t stage;
	uint64_t start_ns, end_ns, bytes;
};

struct hoccl_sim_options {
	bool overlap;		/* forwarding beside the wire; without: push all of a stage, then wire, then pull */
	bool turns;		/* the plan is one node's, and moves as the runtime does it: launcher/hoccl_plan_sim_turns.c */
	void (*trace)(void *context, const struct hoccl_sim_event *event);
	void *context;
};

struct hoccl_sim_result {
	uint64_t ns;		/* launch included */
	uint64_t chunks;
	uint64_t busy_ns[HOCCL_SIM_ENGINES];	/* of the busiest GPU */
};

int hoccl_sim_run(const struct hoccl_plan *plan, const struct hoccl_layout *layout, const struct hoccl_machine *machine,
		  const struct hoccl_sim_options *options, struct hoccl_sim_result *result,
		  struct hoccl_plan_error *error);

#endif
