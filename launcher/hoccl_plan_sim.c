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
 * - A step is seen by the CPU, and the next one submitted, seen_ns / 2 after it ends.
 * - There is no barrier: native traffic of a stage begins when the GPU's own wires have come to that stage; in the
 *   extra stages, which are matchings, when the receiver has come to it too (its grant).
 * Without overlap a stage is three phases with barriers: push everything, then wire, then pull.
 */
#include "hoccl_plan_sim.h"

#include "hoccl_plan_events.h"
#include "sched/chunks.h"

#include <stdlib.h>
#include <string.h>

enum kind { COPY_BEGINS, COPY_ENDS, SLOT_FILLED, WIRE_ENDS, SLOT_ARRIVED, OUT_SLOT_FREE, IN_SLOT_FREE, SELF_STAGED };
enum task { FORWARD, DRAIN, NATIVE, SELF_OUT, SELF_BACK };
enum phase { PUSHING, ON_WIRE, PULLING, PHASES };

struct copy {
	bool busy, flowing, last;	/* last: of its native piece */
	enum task task;
	int out, in;			/* NVLink ends, -1: none */
	uint32_t item, version;		/* wire or local; of the COPY_ENDS event that counts */
	uint64_t bytes, left, rate, since, start;
};

struct waiting {	/* what an rx engine will take, in order of arrival */
	struct waiting *next;
	enum task task;
	uint32_t item;
	uint64_t bytes;
};

struct gpu {
	struct copy copy[HOCCL_SIM_WIRE_OUT];
	struct waiting *first[2], **last[2];	/* PULL, H2D */
	struct hoccl_chunks native[2];		/* PUSH, D2H */
	int links_out, links_in;		/* copies on its NVLinks now */
	uint32_t *order[2];			/* wires of its NIC, out and in */
	size_t count[2], head[2];
	bool wire_busy[2];
	unsigned int slots[2];			/* in use, out and in */
	uint32_t *turn;				/* pieces of the extra stages that it receives, in plan order */
	size_t turns, next_turn;
	uint32_t *local[2];			/* native pieces by queue, in plan order */
	size_t locals[2], next_local[2];
	uint64_t busy_ns[HOCCL_SIM_ENGINES];
};

struct wire_state {
	uint64_t given, filled, sent, start;
};

struct sim {
	const struct hoccl_plan *plan;
	const struct hoccl_layout *layout;
	const struct hoccl_machine *machine;
	const struct hoccl_sim_options *options;
	struct hoccl_events events;
	struct gpu *gpu;
	struct wire_state *wire;
	uint32_t *items;
	uint64_t now, chunks;
	uint32_t stage;			/* without overlap */
	enum phase phase;
	bool failed;
};

static const struct hoccl_plan_wire *wire_of(const struct sim *s, uint32_t item)
{
	return &s->plan->wire[item];
}

static bool may(const struct sim *s, enum phase phase, uint32_t stage)
{
	return s->options->overlap || (s->phase == phase && s->stage == stage);
}

static void at(struct sim *s, uint64_t ns, enum kind kind, int where, uint32_t which, uint64_t bytes)
{
	hoccl_events_add(&s->events, (struct hoccl_event){.ns = ns, .kind = kind, .where = where, .which = which,
							  .bytes = bytes});
}

static void trace(struct sim *s, enum hoccl_sim_engine engine, int gpu, const struct hoccl_sim_event *event)
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
static uint64_t rate_now(const struct sim *s, int engine, const struct copy *c)
{
	static const enum hoccl_line line[] = {
		HOCCL_LINE_PUSH, HOCCL_LINE_PULL, HOCCL_LINE_PCIE_OUT, HOCCL_LINE_PCIE_IN,
	};
	uint64_t rate = s->machine->rate[line[engine]].bytes_per_s;

	if (c->out >= 0) {
		uint64_t share = s->machine->rate[HOCCL_LINE_NVLINK_OUT].bytes_per_s /
				 (uint64_t)s->gpu[c->out].links_out;
		rate = share < rate ? share : rate;
	}
	if (c->in >= 0) {
		uint64_t share = s->machine->rate[HOCCL_LINE_NVLINK_IN].bytes_per_s / (uint64_t)s->gpu[c->in].links_in;
		rate = share < rate ? share : rate;
	}
	return rate ? rate : 1;
}

static void reschedule(struct sim *s, int gpu, int engine)
{
	struct copy *c = &s->gpu[gpu].copy[engine];
	uint64_t rate = c->flowing ? rate_now(s, engine, c) : 0;

	if (!c->flowing || rate == c->rate)
		return;
	unsigned __int128 moved = (unsigned __int128)(s->now - c->since) * c->rate / 1000000000;

	c->left = moved < c->left ? c->left - (uint64_t)moved : 0;
	c->since = s->now;
	c->rate = rate;
	c->version++;
	uint64_t ns = (uint64_t)(((unsigned __int128)c->left * 1000000000 + rate - 1) / rate);

	at(s, s->now + ns, COPY_ENDS, gpu * 4 + engine, c->version, 0);
}

/* After a copy came to or left a node's links: new shares for those that use them. */
static void share_links(struct sim *s, int node)
{
	for (int i = s->layout->first[node]; i < s->layout->first[node + 1]; i++)
		for (int engine = HOCCL_SIM_PUSH; engine <= HOCCL_SIM_PULL; engine++)
			reschedule(s, s->layout->member[i], engine);
}

static void begin_copy(struct sim *s, int gpu, int engine, struct copy copy)
{
	struct copy *c = &s->gpu[gpu].copy[engine];

	copy.version = c->version + 1;
	copy.busy = true;
	copy.left = copy.bytes;
	copy.start = s->now;
	*c = copy;
	at(s, s->now + s->machine->copy_ns, COPY_BEGINS, gpu * 4 + engine, 0, 0);
}

static void copy_begins(struct sim *s, int gpu, int engine)
{
	struct copy *c = &s->gpu[gpu].copy[engine];

	c->flowing = true;
	c->since = s->now;
	c->rate = 0;
	if (c->out >= 0)
		s->gpu[c->out].links_out++;
	if (c->in >= 0)
		s->gpu[c->in].links_in++;
	if (c->out >= 0 || c->in >= 0)
		share_links(s, s->layout->node[gpu]);
	else
		reschedule(s, gpu, engine);
}

/* The GPU on which a wire's slot lies, -1 where it loads no rank's NVLink. */
static int slot_on(const struct sim *s, int gpu, int nic)
{
	int slot = hoccl_layout_slot(s->layout, gpu, nic);

	return slot < 0 ? -1 : slot;
}

static bool on_host(const struct sim *s, int gpu)
{
	return s->layout->pair[gpu] == HOCCL_PAIR_HOST;
}

/* A wire of NIC a for which this tx engine of u can push a chunk; -1 when there is none. */
static int64_t find_forward(const struct sim *s, int u, int a)
{
	const struct gpu *nic = &s->gpu[a];
	size_t limit = s->options->overlap ? 2 : SIZE_MAX;

	for (size_t k = nic->head[0]; k < nic->count[0] && k - nic->head[0] < limit; k++) {
		uint32_t item = nic->order[0][k];
		const struct hoccl_plan_wire *w = wire_of(s, item);

		if (!may(s, PUSHING, w->stage))
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
static uint64_t slot_bytes(const struct sim *s)
{
	return s->options->overlap ? s->machine->slot_bytes : s->machine->chunk_bytes;
}

static bool start_forward(struct sim *s, int u, int engine)
{
	int node = s->layout->node[u], size = hoccl_layout_size(s->layout, node);

	for (int i = 0; i < size; i++) {	/* the own NIC first */
		int a = s->layout->member[s->layout->first[node] + (s->layout->local[u] + i) % size];
		int64_t item = find_forward(s, u, a);

		if (item < 0)
			continue;
		struct wire_state *state = &s->wire[item];
		uint64_t left = wire_of(s, (uint32_t)item)->bytes - state->given;
		uint64_t bytes = left < slot_bytes(s) ? left : slot_bytes(s);
		bool host = engine == HOCCL_SIM_D2H;

		state->given += bytes;
		s->gpu[a].slots[0]++;
		begin_copy(s, u, engine, (struct copy){.task = FORWARD, .item = (uint32_t)item, .bytes = bytes,
						       .out = host ? -1 : u, .in = host ? -1 : slot_on(s, u, a)});
		return true;
	}
	return false;
}

/* The stage a GPU's wires have come to. */
static uint32_t stage_of(const struct sim *s, const struct gpu *g)
{
	uint32_t stage = UINT32_MAX;

	for (int side = 0; side < 2; side++)
		if (g->head[side] < g->count[side]) {
			uint32_t own = wire_of(s, g->order[side][g->head[side]])->stage;

			stage = own < stage ? own : stage;
		}
	return stage;
}

/*
 * An empty queue gets the native traffic of the GPU's next stage, if its wires have come that far. Flows of a round
 * follow one another by distance, so that the GPUs of a node do not all push to the same one.
 */
static void open_native(struct sim *s, int u, int queue)
{
	struct gpu *g = &s->gpu[u];
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

/* Who receives a native piece: a self copy goes to the slot. */
static int receiver_of(const struct sim *s, const struct hoccl_local *l)
{
	int slot = l->src == l->dst ? slot_on(s, l->src, l->src) : l->dst;

	return slot < 0 ? l->src : slot;
}

static bool takes_turns(const struct sim *s, const struct hoccl_local *l)
{
	return l->stage >= s->plan->extra && !(l->src == l->dst && on_host(s, l->src));
}

static bool may_send(void *context, uint64_t id)
{
	const struct sim *s = context;
	const struct hoccl_local *l = &s->plan->local[(uint32_t)id];
	const struct gpu *receiver = &s->gpu[receiver_of(s, l)];

	return !takes_turns(s, l) || receiver->turn[receiver->next_turn] == (uint32_t)id;
}

static void start_native(struct sim *s, int u, int engine)
{
	struct hoccl_chunk chunk;
	int queue = engine == HOCCL_SIM_D2H;

	open_native(s, u, queue);
	if (!hoccl_chunks_next(&s->gpu[u].native[queue], &chunk, may_send, s))
		return;
	uint32_t item = (uint32_t)chunk.id;
	const struct hoccl_local *local = &s->plan->local[item];
	bool self = local->src == local->dst;
	struct copy c = {.task = self ? SELF_OUT : NATIVE, .item = item, .bytes = chunk.bytes, .last = chunk.last,
			 .out = u, .in = self ? slot_on(s, u, u) : local->dst};

	if (queue)
		c.out = c.in = -1;
	begin_copy(s, u, engine, c);
}

static void kick_tx(struct sim *s, int u)
{
	struct gpu *g = &s->gpu[u];
	int forwards = on_host(s, u) ? HOCCL_SIM_D2H : HOCCL_SIM_PUSH;

	for (int engine = HOCCL_SIM_PUSH; engine <= HOCCL_SIM_D2H; engine += HOCCL_SIM_D2H - HOCCL_SIM_PUSH)
		if (!g->copy[engine].busy && !(engine == forwards && start_forward(s, u, engine)))
			start_native(s, u, engine);
}

static void kick_rx(struct sim *s, int v)
{
	struct gpu *g = &s->gpu[v];

	for (int engine = HOCCL_SIM_PULL; engine <= HOCCL_SIM_H2D; engine += HOCCL_SIM_H2D - HOCCL_SIM_PULL) {
		int queue = engine == HOCCL_SIM_H2D;
		struct waiting *w = g->first[queue];

		if (g->copy[engine].busy || !w)
			continue;
		if (w->task == DRAIN && !may(s, PULLING, wire_of(s, w->item)->stage))
			continue;
		g->first[queue] = w->next;
		if (!w->next)
			g->last[queue] = &g->first[queue];
		struct copy c = {.task = w->task, .item = w->item, .bytes = w->bytes, .in = v,
				 .out = w->task == DRAIN ? slot_on(s, v, wire_of(s, w->item)->path.in) :
							   slot_on(s, v, v)};

		if (queue)
			c.out = c.in = -1;
		free(w);
		begin_copy(s, v, engine, c);
	}
}

static void arrive(struct sim *s, int v, enum task task, uint32_t item, uint64_t bytes)
{
	struct gpu *g = &s->gpu[v];
	struct waiting *w = malloc(sizeof(*w));
	int queue = on_host(s, v);

	if (!w) {
		s->failed = true;
		return;
	}
	*w = (struct waiting){NULL, task, item, bytes};
	*g->last[queue] = w;
	g->last[queue] = &w->next;
	kick_rx(s, v);
}

/* The next chunk of the wire at the head of NIC a, if both ends and a slot are free. */
static void kick_wire(struct sim *s, int a)
{
	struct gpu *out = &s->gpu[a];

	if (out->wire_busy[0] || out->head[0] == out->count[0])
		return;
	uint32_t item = out->order[0][out->head[0]];
	const struct hoccl_plan_wire *w = wire_of(s, item);
	struct gpu *in = &s->gpu[w->path.in];
	struct wire_state *state = &s->wire[item];

	if (in->wire_busy[1] || in->order[1][in->head[1]] != item || state->filled == state->sent)
		return;
	if (!may(s, ON_WIRE, w->stage) || (s->options->overlap && in->slots[1] >= s->machine->slots))
		return;
	uint64_t ready = state->filled - state->sent;
	uint64_t bytes = ready < slot_bytes(s) ? ready : slot_bytes(s);
	const struct hoccl_rate *rate = &s->machine->rate[HOCCL_LINE_NIC_OUT];

	if (s->machine->rate[HOCCL_LINE_NIC_IN].bytes_per_s < rate->bytes_per_s)
		rate = &s->machine->rate[HOCCL_LINE_NIC_IN];
	out->wire_busy[0] = in->wire_busy[1] = true;
	in->slots[1]++;
	state->start = s->now;
	at(s, s->now + hoccl_rate_time(rate, bytes) + s->machine->wire_ns, WIRE_ENDS, a, item, bytes);
}

/* Everybody who might push into the slots of NIC a. */
static void kick_senders(struct sim *s, int a)
{
	int node = s->layout->node[a];

	for (int i = s->layout->first[node]; i < s->layout->first[node + 1]; i++)
		kick_tx(s, s->layout->member[i]);
}

static void wire_ends(struct sim *s, int a, uint32_t item, uint64_t bytes)
{
	const struct hoccl_plan_wire *w = wire_of(s, item);
	struct wire_state *state = &s->wire[item];
	struct gpu *out = &s->gpu[a], *in = &s->gpu[w->path.in];
	struct hoccl_sim_event event = {.src = w->path.src, .dst = w->path.dst, .stage = w->stage,
					.start_ns = state->start, .bytes = bytes};
	uint64_t seen = s->now + s->machine->seen_ns / 2;

	trace(s, HOCCL_SIM_WIRE_OUT, a, &event);
	trace(s, HOCCL_SIM_WIRE_IN, w->path.in, &event);
	state->sent += bytes;
	out->wire_busy[0] = in->wire_busy[1] = false;
	at(s, seen, OUT_SLOT_FREE, a, 0, 0);
	at(s, seen, SLOT_ARRIVED, w->path.dst, item, bytes);
	if (state->sent == w->bytes) {
		out->head[0]++;
		in->head[1]++;
		kick_tx(s, w->path.in);
		kick_senders(s, a);
	}
	kick_wire(s, a);
	if (in->head[1] < in->count[1])
		kick_wire(s, wire_of(s, in->order[1][in->head[1]])->path.out);
}

/* A piece of an extra stage is done: its receiver grants the next one. */
static void pass_turn(struct sim *s, uint32_t item)
{
	struct gpu *receiver = &s->gpu[receiver_of(s, &s->plan->local[item])];

	if (++receiver->next_turn < receiver->turns)
		kick_tx(s, s->plan->local[receiver->turn[receiver->next_turn]].src);
}

static void copy_ends(struct sim *s, int gpu, int engine)
{
	struct copy *c = &s->gpu[gpu].copy[engine];
	bool local = c->task == NATIVE || c->task == SELF_OUT || c->task == SELF_BACK;
	uint64_t seen = s->now + s->machine->seen_ns / 2;
	struct hoccl_sim_event event = {.native = local, .start_ns = c->start, .bytes = c->bytes};

	if (local) {
		const struct hoccl_local *l = &s->plan->local[c->item];

		event.src = l->src;
		event.dst = l->dst;
		event.stage = l->stage;
	} else {
		event.src = wire_of(s, c->item)->path.src;
		event.dst = wire_of(s, c->item)->path.dst;
		event.stage = wire_of(s, c->item)->stage;
	}
	trace(s, (enum hoccl_sim_engine)engine, gpu, &event);
	c->busy = c->flowing = false;
	if (c->out >= 0)
		s->gpu[c->out].links_out--;
	if (c->in >= 0)
		s->gpu[c->in].links_in--;
	if (c->task == FORWARD)
		at(s, seen, SLOT_FILLED, wire_of(s, c->item)->path.out, c->item, c->bytes);
	else if (c->task == DRAIN)
		at(s, seen, IN_SLOT_FREE, wire_of(s, c->item)->path.in, 0, 0);
	else if (c->task == SELF_OUT)
		at(s, seen, SELF_STAGED, gpu, c->item, c->bytes);
	if (c->out >= 0 || c->in >= 0)
		share_links(s, s->layout->node[gpu]);
	if (c->task == FORWARD)		/* another sender may be next at that NIC */
		kick_senders(s, wire_of(s, c->item)->path.out);
	if (c->last && takes_turns(s, &s->plan->local[c->item]))
		pass_turn(s, c->item);
	kick_tx(s, gpu);
	kick_rx(s, gpu);
}

static void handle(struct sim *s, const struct hoccl_event *e)
{
	struct gpu *g = &s->gpu[e->where];

	switch ((enum kind)e->kind) {
	case COPY_BEGINS:
		copy_begins(s, e->where / 4, e->where % 4);
		break;
	case COPY_ENDS:
		if (s->gpu[e->where / 4].copy[e->where % 4].version == e->which)
			copy_ends(s, e->where / 4, e->where % 4);
		break;
	case SLOT_FILLED:
		s->wire[e->which].filled += e->bytes;
		kick_wire(s, e->where);
		break;
	case WIRE_ENDS:
		wire_ends(s, e->where, e->which, e->bytes);
		break;
	case SLOT_ARRIVED:
		arrive(s, e->where, DRAIN, e->which, e->bytes);
		break;
	case OUT_SLOT_FREE:
		g->slots[0]--;
		kick_senders(s, e->where);
		break;
	case IN_SLOT_FREE:
		g->slots[1]--;
		if (g->head[1] < g->count[1])
			kick_wire(s, wire_of(s, g->order[1][g->head[1]])->path.out);
		break;
	case SELF_STAGED:
		arrive(s, e->where, SELF_BACK, e->which, e->bytes);
		break;
	}
}

/* Self copies through host memory have engines of their own. */
static int queue_of(const struct sim *s, const struct hoccl_local *l)
{
	return l->src == l->dst && on_host(s, l->src);
}

/* Where in one array each NIC's wires and each GPU's locals will be. */
static void place_items(struct sim *s)
{
	uint32_t *place = s->items;

	for (int g = 0; g < s->layout->gpus; g++)
		for (int i = 0; i < 2; i++) {
			s->gpu[g].order[i] = place;
			place += s->gpu[g].count[i];
			s->gpu[g].local[i] = place;
			place += s->gpu[g].locals[i];
			s->gpu[g].count[i] = s->gpu[g].locals[i] = 0;
		}
	for (int g = 0; g < s->layout->gpus; g++) {
		s->gpu[g].turn = place;
		place += s->gpu[g].turns;
		s->gpu[g].turns = 0;
	}
}

static void sort_locals(struct sim *s)
{
	for (size_t i = 0; i < s->plan->locals; i++) {
		const struct hoccl_local *l = &s->plan->local[i];
		struct gpu *g = &s->gpu[l->src], *receiver = &s->gpu[receiver_of(s, l)];
		int queue = queue_of(s, l);

		g->local[queue][g->locals[queue]++] = (uint32_t)i;
		if (takes_turns(s, l))
			receiver->turn[receiver->turns++] = (uint32_t)i;
	}
}

/* Wires by NIC and locals by GPU, each in plan order. */
static int sort_items(struct sim *s)
{
	const struct hoccl_plan *p = s->plan;

	s->items = malloc((2 * p->wires + 2 * p->locals + 1) * sizeof(*s->items));
	if (!s->items)
		return HOCCL_PLAN_MEMORY;
	for (size_t i = 0; i < p->wires; i++) {
		s->gpu[p->wire[i].path.out].count[0]++;
		s->gpu[p->wire[i].path.in].count[1]++;
	}
	for (size_t i = 0; i < p->locals; i++) {
		s->gpu[p->local[i].src].locals[queue_of(s, &p->local[i])]++;
		s->gpu[receiver_of(s, &p->local[i])].turns += takes_turns(s, &p->local[i]);
	}
	place_items(s);
	for (size_t i = 0; i < p->wires; i++) {
		struct gpu *out = &s->gpu[p->wire[i].path.out], *in = &s->gpu[p->wire[i].path.in];

		out->order[0][out->count[0]++] = (uint32_t)i;
		in->order[1][in->count[1]++] = (uint32_t)i;
	}
	sort_locals(s);
	return 0;
}

static int sim_init(struct sim *s)
{
	s->gpu = calloc((size_t)s->layout->gpus, sizeof(*s->gpu));
	s->wire = calloc(s->plan->wires + 1, sizeof(*s->wire));
	if (!s->gpu || !s->wire)
		return HOCCL_PLAN_MEMORY;
	for (int g = 0; g < s->layout->gpus; g++)
		for (int i = 0; i < 2; i++) {
			hoccl_chunks_init(&s->gpu[g].native[i], s->machine->chunk_bytes);
			s->gpu[g].last[i] = &s->gpu[g].first[i];
		}
	return sort_items(s);
}

static void sim_fini(struct sim *s)
{
	for (int g = 0; s->gpu && g < s->layout->gpus; g++)
		for (int i = 0; i < 2; i++) {
			hoccl_chunks_fini(&s->gpu[g].native[i]);
			for (struct waiting *w = s->gpu[g].first[i], *n; w; w = n) {
				n = w->next;
				free(w);
			}
		}
	hoccl_events_fini(&s->events);
	free(s->items);
	free(s->gpu);
	free(s->wire);
}

static void kick_all(struct sim *s)
{
	for (int g = 0; g < s->layout->gpus; g++) {
		kick_tx(s, g);
		kick_wire(s, g);
		kick_rx(s, g);
	}
}

static void run(struct sim *s)
{
	struct hoccl_event event;
	uint32_t stages = s->options->overlap ? 1 : s->plan->stages;
	int phases = s->options->overlap ? 1 : PHASES;

	for (s->stage = 0; s->stage < stages; s->stage++) {
		for (int phase = 0; phase < phases; phase++) {
			s->phase = (enum phase)phase;
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

static bool all_done(const struct sim *s)
{
	for (int g = 0; g < s->layout->gpus; g++) {
		const struct gpu *p = &s->gpu[g];

		for (int i = 0; i < 2; i++)
			if (p->head[i] < p->count[i] || p->next_local[i] < p->locals[i] || p->first[i] ||
			    p->native[i].flows)
				return false;
	}
	return true;
}

int hoccl_sim_run(const struct hoccl_plan *plan, const struct hoccl_layout *layout, const struct hoccl_machine *machine,
		  const struct hoccl_sim_options *options, struct hoccl_sim_result *result,
		  struct hoccl_plan_error *error)
{
	struct sim s = {.plan = plan, .layout = layout, .machine = machine, .options = options};
	int status = sim_init(&s);

	if (!status)
		run(&s);
	if (status || s.failed || s.events.failed) {
		status = hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for the simulation");
	} else if (!all_done(&s)) {
		status = hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "the simulation stopped before all was moved");
	} else {
		*result = (struct hoccl_sim_result){.ns = s.now + machine->launch_ns, .chunks = s.chunks};
		for (int g = 0; g < layout->gpus; g++)
			for (int e = 0; e < HOCCL_SIM_ENGINES; e++)
				if (s.gpu[g].busy_ns[e] > result->busy_ns[e])
					result->busy_ns[e] = s.gpu[g].busy_ns[e];
	}
	sim_fini(&s);
	return status;
}
