/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From C to a plan.
 *
 *      C ──traffic──▶ loads, bound ──wires──▶ R ──┬─peel──▶ stages ──fill──▶ Σ τ, makespan ──┐
 *                                                 └─list──▶ times ───windows──▶ makespan ────┴─▶ the better
 *
 * Both schedules end in a makespan without barriers. Production makes a list schedule, and peels where that is
 * affordable and the list schedule leaves something to gain.
 */
#include "sched/plan.h"

#include "sched/maker.h"

#include <assert.h>
#include <stdlib.h>

#define PEEL_GPUS 16		/* peeling is affordable up to here, or */
#define PEEL_ENTRIES 1024	/* with at most this many transfers */
#define GOOD_LIST 256		/* a list schedule within 1/256 of the bound is not worth improving */

void hoccl_plan_free(struct hoccl_plan *plan)
{
	if (!plan)
		return;
	free(plan->wire);
	free(plan->local);
	free(plan->stage);
	free(plan);
}

static bool worth_peeling(const struct hoccl_maker *m, const struct hoccl_plan *list)
{
	if (m->layout->gpus > PEEL_GPUS && list->wires > PEEL_ENTRIES)
		return false;
	return list->makespan_ns > m->relay_bound_ns + m->relay_bound_ns / GOOD_LIST;
}

static struct hoccl_plan *new_plan(const struct hoccl_maker *m)
{
	struct hoccl_plan *plan = calloc(1, sizeof(*plan));

	if (plan) {
		plan->bound_ns = m->bound_ns;
		plan->relay_bound_ns = m->relay_bound_ns;
		plan->relayed = m->wires.relayed;
	}
	return plan;
}

static int make_one(struct hoccl_maker *m, enum hoccl_plan_method method, struct hoccl_plan **out)
{
	struct hoccl_plan *plan = new_plan(m);
	int status = HOCCL_PLAN_MEMORY;

	if (plan)
		status = method == HOCCL_PLAN_PEEL ? hoccl_maker_peel(m, plan) : hoccl_maker_list(m, plan);
	if (status)
		hoccl_plan_free(plan);
	else
		*out = plan;
	return status;
}

static int make_best(struct hoccl_maker *m, struct hoccl_plan **out)
{
	struct hoccl_plan *list, *peel;
	int status = make_one(m, HOCCL_PLAN_LIST, &list);

	if (status)
		return status;
	if (worth_peeling(m, list)) {
		status = make_one(m, HOCCL_PLAN_PEEL, &peel);
		if (status) {
			hoccl_plan_free(list);
			return status;
		}
		if (peel->makespan_ns < list->makespan_ns) {
			hoccl_plan_free(list);
			list = peel;
		} else {
			hoccl_plan_free(peel);
		}
	}
	*out = list;
	return 0;
}

/* C is fully planned: the cheap part of the invariants, for builds with assertions. */
static bool is_complete(const struct hoccl_maker *m, const struct hoccl_plan *plan)
{
	size_t cells = (size_t)m->layout->gpus * (size_t)m->layout->gpus;
	uint64_t sum = 0;	/* modulo 2^64 */

	for (size_t i = 0; i < cells; i++)
		sum += m->traffic.c[i];
	for (size_t i = 0; i < plan->wires; i++)
		sum -= plan->wire[i].bytes;
	for (size_t i = 0; i < plan->locals; i++)
		sum -= plan->local[i].bytes;
	return !sum;
}

static int make(struct hoccl_maker *m, struct hoccl_plan **plan, const uint64_t *c,
		const struct hoccl_plan_options *options, struct hoccl_plan_error *error)
{
	enum hoccl_plan_method method = options ? options->method : HOCCL_PLAN_AUTO;
	int status = hoccl_traffic_init(&m->traffic, m->layout, c, error);

	if (!status)
		status = hoccl_traffic_bound(&m->traffic, m->machine, &m->bound_ns, error);
	if (!status)
		status = hoccl_wires_init(&m->wires, &m->traffic, m->machine, !options || options->relay, error);
	if (status)
		return status;
	m->relay_bound_ns = m->bound_ns;
	if (m->wires.load)
		m->relay_bound_ns = hoccl_load_time(m->wires.load, m->layout->gpus, m->machine, NULL, NULL);
	status = method == HOCCL_PLAN_AUTO ? make_best(m, plan) : make_one(m, method, plan);
	hoccl_wires_fini(&m->wires);
	if (status)
		return hoccl_plan_fail(error, status, "no memory for the plan of %d GPUs", m->layout->gpus);
	assert(is_complete(m, *plan));
	assert((*plan)->makespan_ns >= m->relay_bound_ns);
	return 0;
}

int hoccl_plan_make(struct hoccl_plan **out, const struct hoccl_layout *layout, const struct hoccl_machine *machine,
		    const uint64_t *c, const struct hoccl_plan_options *options, struct hoccl_plan_error *error)
{
	if (options && options->method == HOCCL_PLAN_ROTATION)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "a rotation is not made from a matrix");
	struct hoccl_maker *m = malloc(sizeof(*m));

	if (!m)
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for a plan of %d GPUs", layout->gpus);
	m->layout = layout;
	m->machine = machine;
	int status = make(m, out, c, options, error);

	free(m);
	return status;
}
