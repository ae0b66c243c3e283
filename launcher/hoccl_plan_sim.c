/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan in virtual time (paper sections 3.3.1 and 3.4): chunks, engines, slots, NICs.
 *
 *   user memory ──tx engine──▶ out slot ──NIC out ══ NIC in──▶ in slot ──rx engine──▶ user memory
 *                (push or D2H)  `slots` a NIC                 `slots` a NIC   (pull or H2D)
 *
 * - A NIC takes its wires in plan order, one out and one in at a time; the next wire's first chunks may already be
 *   pushed while the present one's last are on the wire.
 * - An engine takes one copy at a time: forwarding first, then native chunks in the order of sched/chunks.c. A copy
 *   costs copy_ns and then moves at its engine's rate or its fair share of the NVLinks at both ends, whichever is less.
 *   Where the machine has one engine for both, pushes and pulls take turns.
 * - A step is seen by the CPU, and the next one submitted, seen_ns / 2 after it ends.
 * - There is no barrier: native traffic of a stage begins when the GPU's own wires have come to that stage; in the
 *   extra stages, which are matchings, when the receiver has come to it too (its grant).
 * Without overlap a stage is three phases with barriers: push everything, then wire, then pull.
 */
#include "hoccl_plan_sim_state.h"

#include <stdlib.h>
#include <string.h>

static bool may(const struct hoccl_sim *s, enum hoccl_sim_phase phase, uint32_t stage)
{
	return s->options->overlap || (s->phase == phase && s->stage == stage);
}

/* A wire of NIC a for which this tx engine of u can push a chunk; -1 when there is none. */
static int64_t find_forward(const struct hoccl_sim *s, int u, int a)
{
	const struct hoccl_sim_gpu *nic = &s->gpu[a];
	size_t limit = s->options->overlap ? 2 : SIZE_MAX;

	for (size_t k = nic->head[0]; k < nic->count[0] && k - nic->head[0] < limit; k++) {
		uint32_t item = nic->order[0][k];
		const struct hoccl_plan_wire *w = hoccl_sim_wire(s, item);

		if (!may(s, SIM_PUSHING, w->stage))
			return -1;
		if (s->wire[item].given == w->bytes)
			continue;
		if (w->path.src != u || (s->options->overlap && nic->slots[0] >= s->machine->slots))
			return -1;
		return item;
	}
	return -1;
}

/* Without overlap there is nothing to gain from small chunks. */
static uint64_t slot_bytes(const struct hoccl_sim *s)
{
	return s->options->overlap ? s->machine->slot_bytes : s->machine->chunk_bytes;
}

static bool start_forward(struct hoccl_sim *s, int u, int engine)
{
	int node = s->layout->node[u], size = hoccl_layout_size(s->layout, node);

	for (int i = 0; i < size; i++) {	/* the own NIC first */
		int a = s->layout->member[s->layout->first[node] + (s->layout->local[u] + i) % size];
		int64_t item = find_forward(s, u, a);

		if (item < 0)
			continue;
		struct hoccl_sim_wire_state *state = &s->wire[item];
		uint64_t left = hoccl_sim_wire(s, (uint32_t)item)->bytes - state->given;
		uint64_t bytes = left < slot_bytes(s) ? left : slot_bytes(s);
		bool host = engine == HOCCL_SIM_D2H;

		state->given += bytes;
		s->gpu[a].slots[0]++;
		hoccl_sim_begin_copy(s, u, engine, (struct hoccl_sim_copy){.task = SIM_FORWARD, .item = (uint32_t)item, .bytes = bytes,
						       .out = host ? -1 : u, .in = host ? -1 : hoccl_sim_slot(s, u, a)});
		return true;
	}
	return false;
}

/* The stage a GPU's wires have come to. */
static uint32_t stage_of(const struct hoccl_sim *s, const struct hoccl_sim_gpu *g)
{
	uint32_t stage = UINT32_MAX;

	for (int side = 0; side < 2; side++)
		if (g->head[side] < g->count[side]) {
			uint32_t own = hoccl_sim_wire(s, g->order[side][g->head[side]])->stage;

			stage = own < stage ? own : stage;
		}
	return stage;
}

/*
 * An empty queue gets the native traffic of the GPU's next stage, if its wires have come that far. Flows of a round
 * follow one another by distance, so that the GPUs of a node do not all push to the same one.
 */
static void open_native(struct hoccl_sim *s, int u, int queue)
{
	struct hoccl_sim_gpu *g = &s->gpu[u];
	uint32_t limit = s->options->overlap ? stage_of(s, g) : s->stage, stage = 0;
	int size = hoccl_layout_size(s->layout, s->layout->node[u]);

	for (; !g->native[queue].flows || stage; g->next_local[queue]++) {
		if (g->next_local[queue] == g->locals[queue])
			return;
		uint32_t item = g->local[queue][g->next_local[queue]];
		const struct hoccl_local *l = &s->plan->local[item];
		uint64_t ahead = (uint64_t)((s->layout->local[l->dst] - s->layout->local[u] + size) % size);

		if (l->stage > limit || (stage && l->stage + 1 != stage))
			return;
		stage = l->stage + 1;
		if (hoccl_chunks_add(&g->native[queue], ahead << 32 | item, l->bytes, l->bytes))
			s->failed = true;
	}
}

static bool may_send(void *context, uint64_t id)
{
	const struct hoccl_sim *s = context;
	const struct hoccl_local *l = &s->plan->local[(uint32_t)id];
	const struct hoccl_sim_gpu *receiver = &s->gpu[hoccl_sim_receiver(s, l)];

	return !hoccl_sim_takes_turns(s, l) || receiver->turn[receiver->next_turn] == (uint32_t)id;
}

static void start_native(struct hoccl_sim *s, int u, int engine)
{
	struct hoccl_chunk chunk;
	int queue = engine == HOCCL_SIM_D2H;

	open_native(s, u, queue);
	if (!hoccl_chunks_next(&s->gpu[u].native[queue], &chunk, may_send, s))
		return;
	uint32_t item = (uint32_t)chunk.id;
	const struct hoccl_local *local = &s->plan->local[item];
	bool self = local->src == local->dst;
	struct hoccl_sim_copy c = {.task = self ? SIM_SELF_OUT : SIM_NATIVE, .item = item, .bytes = chunk.bytes,
				   .last = chunk.last, .out = u, .in = self ? hoccl_sim_slot(s, u, u) : local->dst};

	if (queue)
		c.out = c.in = -1;
	hoccl_sim_begin_copy(s, u, engine, c);
}

/* May this engine of the GPU begin a copy? */
static bool is_free(const struct hoccl_sim *s, const struct hoccl_sim_gpu *g, int engine)
{
	int other = engine == HOCCL_SIM_PUSH ? HOCCL_SIM_PULL : HOCCL_SIM_PUSH;
	bool shared = s->machine->one_engine && (engine == HOCCL_SIM_PUSH || engine == HOCCL_SIM_PULL);

	return !g->copy[engine].busy && !(shared && g->copy[other].busy);
}

static void kick_tx(struct hoccl_sim *s, int u)
{
	struct hoccl_sim_gpu *g = &s->gpu[u];
	int forwards = hoccl_sim_on_host(s, u) ? HOCCL_SIM_D2H : HOCCL_SIM_PUSH;

	for (int engine = HOCCL_SIM_PUSH; engine <= HOCCL_SIM_D2H; engine += HOCCL_SIM_D2H - HOCCL_SIM_PUSH)
		if (is_free(s, g, engine) && !(engine == forwards && start_forward(s, u, engine)))
			start_native(s, u, engine);
}

static void kick_rx(struct hoccl_sim *s, int v)
{
	struct hoccl_sim_gpu *g = &s->gpu[v];

	for (int engine = HOCCL_SIM_PULL; engine <= HOCCL_SIM_H2D; engine += HOCCL_SIM_H2D - HOCCL_SIM_PULL) {
		int queue = engine == HOCCL_SIM_H2D;
		struct hoccl_sim_waiting *w = g->first[queue];

		if (!is_free(s, g, engine) || !w)
			continue;
		if (w->task == SIM_DRAIN && !may(s, SIM_PULLING, hoccl_sim_wire(s, w->item)->stage))
			continue;
		g->first[queue] = w->next;
		if (!w->next)
			g->last[queue] = &g->first[queue];
		struct hoccl_sim_copy c = {.task = w->task, .item = w->item, .bytes = w->bytes, .in = v,
				 .out = w->task == SIM_DRAIN ? hoccl_sim_slot(s, v, hoccl_sim_wire(s, w->item)->path.in) :
							   hoccl_sim_slot(s, v, v)};

		if (queue)
			c.out = c.in = -1;
		free(w);
		hoccl_sim_begin_copy(s, v, engine, c);
	}
}

static void arrive(struct hoccl_sim *s, int v, enum hoccl_sim_task task, uint32_t item, uint64_t bytes)
{
	struct hoccl_sim_gpu *g = &s->gpu[v];
	struct hoccl_sim_waiting *w = malloc(sizeof(*w));
	int queue = hoccl_sim_on_host(s, v);

	if (!w) {
		s->failed = true;
		return;
	}
	*w = (struct hoccl_sim_waiting){NULL, task, item, bytes};
	*g->last[queue] = w;
	g->last[queue] = &w->next;
	kick_rx(s, v);
}

/* The next chunk of the wire at the head of NIC a, if both ends and a slot are free. */
static void kick_wire(struct hoccl_sim *s, int a)
{
	struct hoccl_sim_gpu *out = &s->gpu[a];

	if (out->wire_busy[0] || out->head[0] == out->count[0])
		return;
	uint32_t item = out->order[0][out->head[0]];
	const struct hoccl_plan_wire *w = hoccl_sim_wire(s, item);
	struct hoccl_sim_gpu *in = &s->gpu[w->path.in];
	struct hoccl_sim_wire_state *state = &s->wire[item];

	if (in->wire_busy[1] || in->order[1][in->head[1]] != item || state->filled == state->sent)
		return;
	if (!may(s, SIM_ON_WIRE, w->stage) || (s->options->overlap && in->slots[1] >= s->machine->slots))
		return;
	uint64_t ready = state->filled - state->sent;
	uint64_t bytes = ready < slot_bytes(s) ? ready : slot_bytes(s);
	const struct hoccl_rate *rate = &s->machine->rate[HOCCL_LINE_NIC_OUT];

	if (s->machine->rate[HOCCL_LINE_NIC_IN].bytes_per_s < rate->bytes_per_s)
		rate = &s->machine->rate[HOCCL_LINE_NIC_IN];
	out->wire_busy[0] = in->wire_busy[1] = true;
	in->slots[1]++;
	state->start = s->now;
	hoccl_sim_at(s, s->now + hoccl_rate_time(rate, bytes) + s->machine->wire_ns, SIM_WIRE_ENDS, a, item, bytes);
}

/* Everybody who might push into the slots of NIC a. */
static void kick_senders(struct hoccl_sim *s, int a)
{
	int node = s->layout->node[a];

	for (int i = s->layout->first[node]; i < s->layout->first[node + 1]; i++)
		kick_tx(s, s->layout->member[i]);
}

static void wire_ends(struct hoccl_sim *s, int a, uint32_t item, uint64_t bytes)
{
	const struct hoccl_plan_wire *w = hoccl_sim_wire(s, item);
	struct hoccl_sim_wire_state *state = &s->wire[item];
	struct hoccl_sim_gpu *out = &s->gpu[a], *in = &s->gpu[w->path.in];
	struct hoccl_sim_event event = {.src = w->path.src, .dst = w->path.dst, .stage = w->stage,
					.start_ns = state->start, .bytes = bytes};
	uint64_t seen = s->now + s->machine->seen_ns / 2;

	hoccl_sim_trace(s, HOCCL_SIM_WIRE_OUT, a, &event);
	hoccl_sim_trace(s, HOCCL_SIM_WIRE_IN, w->path.in, &event);
	state->sent += bytes;
	out->wire_busy[0] = in->wire_busy[1] = false;
	hoccl_sim_at(s, seen, SIM_OUT_SLOT_FREE, a, 0, 0);
	hoccl_sim_at(s, seen, SIM_SLOT_ARRIVED, w->path.dst, item, bytes);
	if (state->sent == w->bytes) {
		out->head[0]++;
		in->head[1]++;
		kick_tx(s, w->path.in);
		kick_senders(s, a);
	}
	kick_wire(s, a);
	if (in->head[1] < in->count[1])
		kick_wire(s, hoccl_sim_wire(s, in->order[1][in->head[1]])->path.out);
}

/* A piece of an extra stage is done: its receiver grants the next one. */
static void pass_turn(struct hoccl_sim *s, uint32_t item)
{
	struct hoccl_sim_gpu *receiver = &s->gpu[hoccl_sim_receiver(s, &s->plan->local[item])];

	if (++receiver->next_turn < receiver->turns)
		kick_tx(s, s->plan->local[receiver->turn[receiver->next_turn]].src);
}

static void copy_ends(struct hoccl_sim *s, int gpu, int engine)
{
	struct hoccl_sim_copy *c = &s->gpu[gpu].copy[engine];
	bool local = c->task == SIM_NATIVE || c->task == SIM_SELF_OUT || c->task == SIM_SELF_BACK;
	uint64_t seen = s->now + s->machine->seen_ns / 2;
	struct hoccl_sim_event event = {.native = local, .start_ns = c->start, .bytes = c->bytes};

	if (local) {
		const struct hoccl_local *l = &s->plan->local[c->item];

		event.src = l->src;
		event.dst = l->dst;
		event.stage = l->stage;
	} else {
		event.src = hoccl_sim_wire(s, c->item)->path.src;
		event.dst = hoccl_sim_wire(s, c->item)->path.dst;
		event.stage = hoccl_sim_wire(s, c->item)->stage;
	}
	if (c->task == SIM_FORWARD)
		hoccl_sim_at(s, seen, SIM_SLOT_FILLED, hoccl_sim_wire(s, c->item)->path.out, c->item, c->bytes);
	else if (c->task == SIM_DRAIN)
		hoccl_sim_at(s, seen, SIM_IN_SLOT_FREE, hoccl_sim_wire(s, c->item)->path.in, 0, 0);
	else if (c->task == SIM_SELF_OUT)
		hoccl_sim_at(s, seen, SIM_SELF_STAGED, gpu, c->item, c->bytes);
	hoccl_sim_copy_ends(s, gpu, engine, &event);
	if (c->task == SIM_FORWARD)		/* another sender may be next at that NIC */
		kick_senders(s, hoccl_sim_wire(s, c->item)->path.out);
	if (c->last && hoccl_sim_takes_turns(s, &s->plan->local[c->item]))
		pass_turn(s, c->item);
	if (engine == HOCCL_SIM_PUSH && s->machine->one_engine)	/* pushes and pulls take turns */
		kick_rx(s, gpu);
	kick_tx(s, gpu);
	kick_rx(s, gpu);
}

static void handle(struct hoccl_sim *s, const struct hoccl_event *e)
{
	struct hoccl_sim_gpu *g = &s->gpu[e->where];

	switch ((enum hoccl_sim_kind)e->kind) {
	case SIM_COPY_BEGINS:
		hoccl_sim_copy_begins(s, e->where / 4, e->where % 4);
		break;
	case SIM_COPY_ENDS:
		if (s->gpu[e->where / 4].copy[e->where % 4].version == e->which)
			copy_ends(s, e->where / 4, e->where % 4);
		break;
	case SIM_SLOT_FILLED:
		s->wire[e->which].filled += e->bytes;
		kick_wire(s, e->where);
		break;
	case SIM_WIRE_ENDS:
		wire_ends(s, e->where, e->which, e->bytes);
		break;
	case SIM_SLOT_ARRIVED:
		arrive(s, e->where, SIM_DRAIN, e->which, e->bytes);
		break;
	case SIM_OUT_SLOT_FREE:
		g->slots[0]--;
		kick_senders(s, e->where);
		break;
	case SIM_IN_SLOT_FREE:
		g->slots[1]--;
		if (g->head[1] < g->count[1])
			kick_wire(s, hoccl_sim_wire(s, g->order[1][g->head[1]])->path.out);
		break;
	case SIM_SELF_STAGED:
		arrive(s, e->where, SIM_SELF_BACK, e->which, e->bytes);
		break;
	}
}

static void kick_all(struct hoccl_sim *s)
{
	for (int g = 0; g < s->layout->gpus; g++) {
		kick_tx(s, g);
		kick_wire(s, g);
		kick_rx(s, g);
	}
}

static void run(struct hoccl_sim *s)
{
	struct hoccl_event event;
	uint32_t stages = s->options->overlap ? 1 : s->plan->stages;
	int phases = s->options->overlap ? 1 : SIM_PHASES;

	for (s->stage = 0; s->stage < stages; s->stage++) {
		for (int phase = 0; phase < phases; phase++) {
			s->phase = (enum hoccl_sim_phase)phase;
			kick_all(s);
			while (hoccl_events_next(&s->events, &event)) {
				s->now = event.ns;
				handle(s, &event);
			}
		}
		if (!s->options->overlap)
			s->now += s->machine->start_ns;
	}
}

int hoccl_sim_run(const struct hoccl_plan *plan, const struct hoccl_layout *layout, const struct hoccl_machine *machine,
		  const struct hoccl_sim_options *options, struct hoccl_sim_result *result,
		  struct hoccl_plan_error *error)
{
	struct hoccl_sim s = {.plan = plan, .layout = layout, .machine = machine, .options = options};
	int status = hoccl_sim_init(&s);

	if (!status && options->turns)
		hoccl_sim_turns(&s);
	else if (!status)
		run(&s);
	if (status || s.failed || s.events.failed) {
		status = hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for the simulation");
	} else if (!s.moved && !hoccl_sim_done(&s)) {
		status = hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "the simulation stopped before all was moved");
	} else {
		*result = (struct hoccl_sim_result){.ns = s.now + machine->launch_ns, .chunks = s.chunks};
		for (int g = 0; g < layout->gpus; g++)
			for (int e = 0; e < HOCCL_SIM_ENGINES; e++)
				if (s.gpu[g].busy_ns[e] > result->busy_ns[e])
					result->busy_ns[e] = s.gpu[g].busy_ns[e];
	}
	hoccl_sim_fini(&s);
	return status;
}
