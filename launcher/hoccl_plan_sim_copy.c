/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in virtual time: an engine takes one at a time, and those that use a link share it equally. */
#include "hoccl_plan_sim_state.h"

void hoccl_sim_at(struct hoccl_sim *s, uint64_t ns, int kind, int where, uint32_t which, uint64_t bytes)
{
	hoccl_events_add(&s->events, (struct hoccl_event){.ns = ns, .kind = kind, .where = where, .which = which,
							  .bytes = bytes});
}

void hoccl_sim_trace(struct hoccl_sim *s, enum hoccl_sim_engine engine, int gpu, const struct hoccl_sim_event *event)
{
	struct hoccl_sim_event e = *event;

	s->gpu[gpu].busy_ns[engine] += s->now - e.start_ns;
	s->chunks++;
	if (!s->options->trace)
		return;
	e.engine = engine;
	e.gpu = gpu;
	e.end_ns = s->now;
	s->options->trace(s->options->context, &e);
}

/* The rate of a copy now: its engine's, or a fair share of the links it uses. */
static uint64_t rate_now(const struct hoccl_sim *s, int engine, const struct hoccl_sim_copy *c)
{
	static const enum hoccl_line line[] = {
		HOCCL_LINE_PUSH, HOCCL_LINE_PULL, HOCCL_LINE_PCIE_OUT, HOCCL_LINE_PCIE_IN,
	};
	bool pulls = engine == HOCCL_SIM_PUSH && c->task == SIM_SELF_BACK; /* in turns the stream of pushes fetches back */
	uint64_t rate = s->machine->rate[pulls ? HOCCL_LINE_PULL : line[engine]].bytes_per_s;

	if (s->turns && engine >= HOCCL_SIM_D2H)
		return s->machine->staged.bytes_per_s < rate ? s->machine->staged.bytes_per_s : rate;
	if (c->out >= 0) {
		uint64_t share = s->machine->rate[HOCCL_LINE_NVLINK_OUT].bytes_per_s /
				 (uint64_t)s->gpu[c->out].links_out;
		rate = share < rate ? share : rate;
	}
	if (c->in >= 0) {
		uint64_t share = s->machine->rate[HOCCL_LINE_NVLINK_IN].bytes_per_s / (uint64_t)s->gpu[c->in].links_in;
		rate = share < rate ? share : rate;
	}
	if (s->turns && c->beside_host)
		rate = rate / 100 * (100 - s->machine->beside_host_percent);
	return rate ? rate : 1;
}

static void reschedule(struct hoccl_sim *s, int gpu, int engine)
{
	struct hoccl_sim_copy *c = &s->gpu[gpu].copy[engine];
	uint64_t rate = c->flowing ? rate_now(s, engine, c) : 0;

	if (!c->flowing || rate == c->rate)
		return;
	unsigned __int128 moved = (unsigned __int128)(s->now - c->since) * c->rate / 1000000000;

	c->left = moved < c->left ? c->left - (uint64_t)moved : 0;
	c->since = s->now;
	c->rate = rate;
	c->version++;
	uint64_t ns = (uint64_t)(((unsigned __int128)c->left * 1000000000 + rate - 1) / rate);

	hoccl_sim_at(s, s->now + ns, SIM_COPY_ENDS, gpu * 4 + engine, c->version, 0);
}

/* After a copy came to or left a node's links: new shares for those that use them. */
void hoccl_sim_share_links(struct hoccl_sim *s, int node)
{
	for (int i = s->layout->first[node]; i < s->layout->first[node + 1]; i++)
		for (int engine = HOCCL_SIM_PUSH; engine <= HOCCL_SIM_PULL; engine++)
			reschedule(s, s->layout->member[i], engine);
}

void hoccl_sim_begin_copy(struct hoccl_sim *s, int gpu, int engine, struct hoccl_sim_copy copy)
{
	struct hoccl_sim_copy *c = &s->gpu[gpu].copy[engine];

	copy.version = c->version + 1;
	copy.busy = true;
	copy.left = copy.bytes;
	copy.start = s->now;
	*c = copy;
	hoccl_sim_at(s, s->now + s->machine->copy_ns, SIM_COPY_BEGINS, gpu * 4 + engine, 0, 0);
}

void hoccl_sim_copy_begins(struct hoccl_sim *s, int gpu, int engine)
{
	struct hoccl_sim_copy *c = &s->gpu[gpu].copy[engine];

	c->flowing = true;
	c->since = s->now;
	c->rate = 0;
	if (c->out >= 0)
		s->gpu[c->out].links_out++;
	if (c->in >= 0)
		s->gpu[c->in].links_in++;
	if (c->out >= 0 || c->in >= 0)
		hoccl_sim_share_links(s, s->layout->node[gpu]);
	else
		reschedule(s, gpu, engine);
}

void hoccl_sim_copy_ends(struct hoccl_sim *s, int gpu, int engine, const struct hoccl_sim_event *event)
{
	struct hoccl_sim_copy *c = &s->gpu[gpu].copy[engine];

	hoccl_sim_trace(s, (enum hoccl_sim_engine)engine, gpu, event);
	c->busy = c->flowing = false;
	if (c->out >= 0)
		s->gpu[c->out].links_out--;
	if (c->in >= 0)
		s->gpu[c->in].links_in--;
	if (c->out >= 0 || c->in >= 0)
		hoccl_sim_share_links(s, s->layout->node[gpu]);
}
