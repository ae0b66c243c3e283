/* SPDX-License-Identifier: Apache-2.0 */
/* Rules written out as plans, so that they can be printed, drawn and simulated like the others. */
#include "hoccl_plan_tool.h"

#include "sched/rotate.h"

#include <stdlib.h>
#include <time.h>

uint64_t hoccl_tool_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void expand_wires(struct hoccl_plan *plan, const struct hoccl_rotation *r, uint32_t stage)
{
	for (int g = 0; g < r->layout->gpus; g++) {
		int to = hoccl_rotation_to(r, g, stage);

		if (to < 0)
			continue;
		plan->wire[plan->wires++] = (struct hoccl_plan_wire){
			.path = {g, to, g, to}, .bytes = r->bytes, .stage = stage,
			.start_ns = stage * r->stage_ns, .end_ns = (stage + 1) * r->stage_ns,
		};
	}
}

static void expand_locals(struct hoccl_plan *plan, const struct hoccl_rotation *r, uint32_t stage)
{
	for (int g = 0; g < r->layout->gpus; g++) {
		uint64_t offset, bytes;
		int peer;

		for (int i = 0; hoccl_rotation_local(r, g, stage, i, &peer, &offset, &bytes); i++)
			plan->local[plan->locals++] = (struct hoccl_local){bytes, offset, stage, (int16_t)g,
									   (int16_t)peer};
	}
}

static size_t count_locals(const struct hoccl_rotation *r)
{
	size_t count = 0;

	for (uint32_t s = 0; s < r->stages; s++)
		for (int g = 0; g < r->layout->gpus; g++) {
			uint64_t offset, bytes;
			int peer;

			for (int i = 0; hoccl_rotation_local(r, g, s, i, &peer, &offset, &bytes); i++)
				count++;
		}
	return count;
}

static int expand(struct hoccl_plan *plan, const struct hoccl_rotation *r)
{
	plan->wire = malloc(((size_t)r->stages * (size_t)r->layout->gpus + 1) * sizeof(*plan->wire));
	plan->local = malloc((count_locals(r) + 1) * sizeof(*plan->local));
	plan->stage = calloc((size_t)r->stages + 1, sizeof(*plan->stage));
	if (!plan->wire || !plan->local || !plan->stage)
		return HOCCL_PLAN_MEMORY;
	for (uint32_t s = 0; s < r->stages; s++) {
		plan->stage[s] = (struct hoccl_plan_stage){
			hoccl_rotation_time(r, s), s * r->stage_ns, plan->wires, plan->locals,
		};
		expand_wires(plan, r, s);
		expand_locals(plan, r, s);
	}
	plan->stage[r->stages] = (struct hoccl_plan_stage){0, r->sum_ns, plan->wires, plan->locals};
	plan->method = HOCCL_PLAN_ROTATION;
	plan->stages = r->stages;
	plan->extra = r->layout->nodes > 1 ? r->stages : 0;
	plan->bound_ns = plan->relay_bound_ns = r->bound_ns;
	plan->makespan_ns = plan->sum_ns = r->sum_ns;
	return 0;
}

int hoccl_rotation_expand(struct hoccl_plan **out, const struct hoccl_layout *layout,
			  const struct hoccl_machine *machine, uint64_t bytes, uint64_t *planning_ns,
			  struct hoccl_plan_error *error)
{
	struct hoccl_rotation rotation;
	uint64_t begin = hoccl_tool_clock();
	int status = hoccl_rotation_init(&rotation, layout, machine, bytes, error);

	if (status)
		return status;
	*planning_ns = hoccl_tool_clock() - begin;
	struct hoccl_plan *plan = calloc(1, sizeof(*plan));

	if (!plan || expand(plan, &rotation)) {
		hoccl_plan_free(plan);
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for the plan of %d GPUs", layout->gpus);
	}
	*out = plan;
	return 0;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static uint64_t push_time(const struct hoccl_machine *machine, const struct hoccl_local *l)
{
	uint64_t ns = hoccl_rate_time(&machine->rate[HOCCL_LINE_PUSH], l->bytes);

	return l->src == l->dst ? ns + hoccl_rate_time(&machine->rate[HOCCL_LINE_PULL], l->bytes) : ns;
}

/* A stage is a distance. The time is that of the busiest GPU or line: how pieces collide only a simulation knows. */
static void expand_turns(struct hoccl_plan *plan, const struct hoccl_traffic *traffic, const struct hoccl_machine *machine)
{
	int gpus = traffic->layout->gpus;
	uint64_t busy[HOCCL_SCHED_MAX_GPUS] = {0};

	for (int d = 1; d <= gpus; d++) {
		struct hoccl_plan_stage *stage = &plan->stage[d - 1];

		*stage = (struct hoccl_plan_stage){machine->start_ns, plan->sum_ns, 0, plan->locals};
		for (int g = 0; g < gpus; g++) {
			int to = (g + d) % gpus;
			struct hoccl_local *l = &plan->local[plan->locals];

			*l = (struct hoccl_local){traffic->c[g * gpus + to], 0, (uint32_t)(d - 1), (int16_t)g, (int16_t)to};
			uint64_t ns = machine->start_ns + push_time(machine, l);

			busy[g] += l->bytes ? ns : 0;
			stage->ns = l->bytes && ns > stage->ns ? ns : stage->ns;
			plan->makespan_ns = busy[g] > plan->makespan_ns ? busy[g] : plan->makespan_ns;
			plan->locals += l->bytes != 0;
		}
		plan->sum_ns += stage->ns;
	}
	plan->stage[gpus] = (struct hoccl_plan_stage){0, plan->sum_ns, 0, plan->locals};
	plan->stages = plan->extra = (uint32_t)gpus;
}

int hoccl_turns_expand(struct hoccl_plan **out, const struct hoccl_traffic *traffic, const struct hoccl_machine *machine,
		       struct hoccl_plan_error *error)
{
	size_t gpus = (size_t)traffic->layout->gpus;
	uint64_t bound;
	int status = hoccl_traffic_bound(traffic, machine, &bound, error);
	struct hoccl_plan *plan = status ? NULL : calloc(1, sizeof(*plan));

	if (status)
		return status;
	if (plan) {
		plan->method = HOCCL_PLAN_ROTATION;
		plan->bound_ns = plan->relay_bound_ns = plan->makespan_ns = bound;
		plan->local = malloc((gpus * gpus + 1) * sizeof(*plan->local));
		plan->stage = calloc(gpus + 1, sizeof(*plan->stage));
	}
	if (!plan || !plan->local || !plan->stage) {
		hoccl_plan_free(plan);
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for the turns of %zu GPUs", gpus);
	}
	expand_turns(plan, traffic, machine);
	*out = plan;
	return 0;
}
