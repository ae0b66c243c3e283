/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One node in virtual time as the runtime moves it, which follows no plan there (src/p2p/self.c, detour.c, pace.h):
 *
 * - GPUs begin up to skew_ns apart. A piece for another GPU is pushed when both have begun, one piece after the other by distance.
 * - What a GPU sends to itself goes by a place on another GPU and back. From IN_TURNS bytes on: behind the pushes, PIECE by PIECE,
 *   each fetched back at once by the same stream. Fewer bytes: in halves by two places (whole if they fit into a slot), and a CPU
 *   stands between leaving and coming back, which takes hop_ns.
 * - From TWO_ROUTES bytes on the back of it goes by slots in host memory meanwhile, whatever the link is at. So does all of it
 *   where a GPU has no other one.
 * - A push of DETOUR bytes or more has a part that goes through host memory, unless its GPU has a message to itself.
 * - An engine drains the stream that it serves: while there are pushes a pull waits.
 * - Copies that use a link share it. So GPUs of which one fills while another one drains are in each other's way, and the
 *   other direction is idle.
 */
#include "hoccl_plan_sim_state.h"

#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
#define CHUNK (128 * MIB)	/* the most that an engine is given at once */
#define IN_TURNS (16 * MIB)
#define PIECE (32 * MIB)
#define SLOT (4 * MIB)		/* on another GPU */
#define TWO_ROUTES (128 * MIB)
#define DETOUR (64 * MIB)
#define LATENCY 80000		/* of a detour, ns */
#define BY_GPU 2		/* the first so many places */
#define PLACES ((int)(sizeof(((struct hoccl_sim_turns *)0)->place) / sizeof(struct hoccl_sim_place)))

enum kind { COPY_BEGINS = SIM_COPY_BEGINS, COPY_ENDS = SIM_COPY_ENDS, GPU_BEGINS, PLACE_SEEN, DETOUR_BEGINS };

static bool by_gpu(const struct hoccl_sim *s, int gpu)
{
	return !hoccl_sim_on_host(s, gpu);
}

static bool by_host(const struct hoccl_sim *s, int gpu)
{
	const struct hoccl_local *own = s->turns[gpu].own;

	return own && (own->bytes >= TWO_ROUTES || !by_gpu(s, gpu));
}

static bool in_turns(const struct hoccl_sim_turns *t)
{
	return t->own && t->own->bytes >= IN_TURNS;
}

/* Does it copy both to and from host memory? */
static bool beside_host(const struct hoccl_sim *s, int gpu)
{
	return by_host(s, gpu) && s->turns[gpu].front < s->turns[gpu].back;
}

static bool is_free(const struct hoccl_sim *s, int gpu, int engine)
{
	const struct hoccl_sim_copy *c = s->gpu[gpu].copy;
	bool shared = s->machine->one_engine && engine <= HOCCL_SIM_PULL;

	return !c[engine].busy && !(shared && (c[HOCCL_SIM_PUSH].busy || c[HOCCL_SIM_PULL].busy));
}

static void copy(struct hoccl_sim *s, int gpu, int engine, struct hoccl_sim_copy c)
{
	c.beside_host = beside_host(s, gpu);
	hoccl_sim_begin_copy(s, gpu, engine, c);
}

/* ---- pushes to others -------------------------------------------------------------------------------------------- */

/* What goes through host memory of a push that begins: so much that both ways take equally long, at most a quarter. */
static uint64_t detour_bytes(const struct hoccl_sim *s, int gpu, uint64_t bytes)
{
	uint64_t push = hoccl_rate_time(&s->machine->rate[HOCCL_LINE_PUSH], MIB);
	uint64_t detour = hoccl_rate_time(&s->machine->staged, MIB), all = bytes / MIB * push;
	uint64_t share = all > LATENCY ? (all - LATENCY) / (push + detour) * MIB : 0;

	if (bytes < DETOUR || s->turns[gpu].own || s->turns[gpu].detour)
		return 0;
	return share < bytes / 4 ? share : bytes / 4;
}

/* The piece at hand; NULL: there is none, or its receiver has not begun. */
static const struct hoccl_local *next_piece(const struct hoccl_sim *s, int gpu)
{
	const struct hoccl_sim_gpu *g = &s->gpu[gpu];
	size_t next = s->turns[gpu].next;
	const struct hoccl_local *l = next < g->locals[0] ? &s->plan->local[g->local[0][next]] : NULL;

	return l && s->now >= s->turns[l->src].start_ns && s->now >= s->turns[l->dst].start_ns ? l : NULL;
}

static void begin_piece(struct hoccl_sim *s, int gpu, const struct hoccl_local *l)
{
	struct hoccl_sim_turns *t = &s->turns[gpu];
	uint64_t aside = detour_bytes(s, gpu, l->bytes);

	t->rest = l->bytes - aside;
	if (aside) {
		t->detour = true;
		hoccl_sim_at(s, s->now + LATENCY, DETOUR_BEGINS, gpu, (uint32_t)(l - s->plan->local), aside);
	}
}

static bool push_piece(struct hoccl_sim *s, int gpu)
{
	struct hoccl_sim_turns *t = &s->turns[gpu];
	const struct hoccl_local *l = next_piece(s, gpu);

	if (!l)
		return false;
	if (!t->rest)
		begin_piece(s, gpu, l);
	uint64_t bytes = t->rest < CHUNK ? t->rest : CHUNK;

	t->rest -= bytes;
	t->next += !t->rest;
	copy(s, gpu, HOCCL_SIM_PUSH, (struct hoccl_sim_copy){.task = SIM_NATIVE, .item = (uint32_t)(l - s->plan->local), .bytes = bytes,
						.out = gpu, .in = l->dst});
	return true;
}

/* ---- to itself --------------------------------------------------------------------------------------------------- */

/* A message in turns uses the first place alone, and begins behind the pushes. */
static bool may_fill(const struct hoccl_sim *s, int gpu, int place)
{
	const struct hoccl_sim_turns *t = &s->turns[gpu];

	if (!t->own || s->now < t->start_ns || t->front == t->back || t->place[place].state != SIM_IDLE)
		return false;
	if (place >= BY_GPU)
		return by_host(s, gpu);
	return by_gpu(s, gpu) && (!in_turns(t) || (place == 0 && t->next == s->gpu[gpu].locals[0]));
}

static uint64_t take(struct hoccl_sim_turns *t, int place)
{
	uint64_t left = t->back - t->front, bytes = t->own->bytes <= SLOT ? SLOT : (t->own->bytes + 1) / 2;

	bytes = place >= BY_GPU ? MIB : in_turns(t) ? PIECE : bytes;
	bytes = bytes < left ? bytes : left;
	if (place >= BY_GPU)
		t->back -= bytes;
	else
		t->front += bytes;
	return bytes;
}

static void move(struct hoccl_sim *s, int gpu, int engine, int place)
{
	struct hoccl_sim_place *p = &s->turns[gpu].place[place];
	bool fills = p->state == SIM_IDLE;
	int slot = place < BY_GPU ? hoccl_sim_slot(s, gpu, gpu) : -1, own = place < BY_GPU ? gpu : -1;

	p->bytes = fills ? take(&s->turns[gpu], place) : p->bytes;
	p->state = fills ? SIM_FILLING : SIM_DRAINING;
	copy(s, gpu, engine, (struct hoccl_sim_copy){.task = fills ? SIM_SELF_OUT : SIM_SELF_BACK, .place = place, .bytes = p->bytes,
			.item = (uint32_t)(s->turns[gpu].own - s->plan->local), .out = fills ? own : slot, .in = fills ? slot : own});
}

/* The first place between the two that is to be drained, or else may be filled; -1: none. */
static int find_place(const struct hoccl_sim *s, int gpu, int first, int end, bool drains)
{
	for (int i = first; i < end; i++)
		if (drains ? s->turns[gpu].place[i].state == SIM_FILLED : may_fill(s, gpu, i))
			return i;
	return -1;
}

static bool move_place(struct hoccl_sim *s, int gpu, int engine, int first, int end, bool drains)
{
	int place = is_free(s, gpu, engine) ? find_place(s, gpu, first, end, drains) : -1;

	if (place >= 0)
		move(s, gpu, engine, place);
	return place >= 0;
}

static void kick(struct hoccl_sim *s, int gpu)
{
	bool turns = in_turns(&s->turns[gpu]);

	if (!turns)
		move_place(s, gpu, HOCCL_SIM_PULL, 0, BY_GPU, true);
	if (is_free(s, gpu, HOCCL_SIM_PUSH) && !push_piece(s, gpu) &&
	    !(turns && move_place(s, gpu, HOCCL_SIM_PUSH, 0, BY_GPU, true)))
		move_place(s, gpu, HOCCL_SIM_PUSH, 0, BY_GPU, false);
	move_place(s, gpu, HOCCL_SIM_D2H, BY_GPU, PLACES, false);
	move_place(s, gpu, HOCCL_SIM_H2D, BY_GPU, PLACES, true);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* Of what one stream does by itself, nobody has to hear. */
static void place_ends(struct hoccl_sim *s, int gpu, int place)
{
	struct hoccl_sim_turns *t = &s->turns[gpu];
	struct hoccl_sim_place *p = &t->place[place];
	bool at_once = place < BY_GPU && in_turns(t);

	t->landed += p->state == SIM_DRAINING ? p->bytes : 0;
	p->state = p->state == SIM_FILLING ? SIM_FILLING : SIM_DRAINED;
	hoccl_sim_at(s, s->now + (at_once ? 0 : s->machine->hop_ns), PLACE_SEEN, gpu, (uint32_t)place, 0);
}

static void place_seen(struct hoccl_sim *s, int gpu, uint32_t place)
{
	struct hoccl_sim_place *p = &s->turns[gpu].place[place];

	p->state = p->state == SIM_FILLING ? SIM_FILLED : SIM_IDLE;
	kick(s, gpu);
}

static void copy_ends(struct hoccl_sim *s, int gpu, int engine)
{
	struct hoccl_sim_copy *c = &s->gpu[gpu].copy[engine];
	const struct hoccl_local *l = &s->plan->local[c->item];
	struct hoccl_sim_event event = {.native = true, .start_ns = c->start, .bytes = c->bytes, .src = l->src, .dst = l->dst,
					.stage = l->stage};

	hoccl_sim_copy_ends(s, gpu, engine, &event);
	if (c->task == SIM_SELF_OUT || c->task == SIM_SELF_BACK)
		place_ends(s, gpu, c->place);
	s->turns[gpu].detour &= c->task != SIM_DETOUR;
	kick(s, gpu);
}

/* Has the event changed anything that the time of the whole depends on? What was rescheduled has left events behind. */
static bool handle(struct hoccl_sim *s, const struct hoccl_event *e)
{
	switch ((enum kind)e->kind) {
	case COPY_BEGINS:
		hoccl_sim_copy_begins(s, e->where / 4, e->where % 4);
		return false;
	case COPY_ENDS:
		if (s->gpu[e->where / 4].copy[e->where % 4].version != e->which)
			return false;
		copy_ends(s, e->where / 4, e->where % 4);
		return true;
	case PLACE_SEEN:
		place_seen(s, e->where, e->which);
		return false;
	case DETOUR_BEGINS:
		hoccl_sim_begin_copy(s, e->where, HOCCL_SIM_D2H, (struct hoccl_sim_copy){.task = SIM_DETOUR, .item = e->which,
								.bytes = e->bytes, .out = -1, .in = -1});
		return false;
	case GPU_BEGINS:	/* others may have waited for it */
		for (int g = 0; g < s->layout->gpus; g++)
			kick(s, g);
		return false;
	}
	return false;
}

/* The own piece is the last one of a GPU, or stands in the queue of host memory. */
static void begin(struct hoccl_sim *s, int gpu)
{
	struct hoccl_sim_gpu *g = &s->gpu[gpu];
	struct hoccl_sim_turns *t = &s->turns[gpu];
	size_t last = g->locals[0];
	uint64_t ahead = (uint64_t)(s->layout->gpus - 1);

	if (g->locals[1])
		t->own = &s->plan->local[g->local[1][0]];
	else if (last && s->plan->local[g->local[0][last - 1]].dst == gpu)
		t->own = &s->plan->local[g->local[0][--g->locals[0]]];
	t->back = t->own ? t->own->bytes : 0;
	t->start_ns = ahead ? s->machine->skew_ns * (uint64_t)gpu / ahead : 0;
	hoccl_sim_at(s, t->start_ns, GPU_BEGINS, gpu, 0, 0);
}

static bool all_moved(const struct hoccl_sim *s)
{
	bool all = true;

	for (int g = 0; g < s->layout->gpus; g++) {
		const struct hoccl_sim_turns *t = &s->turns[g];

		all &= t->next == s->gpu[g].locals[0] && t->landed == (t->own ? t->own->bytes : 0) && !t->detour;
	}
	return all;
}

void hoccl_sim_turns(struct hoccl_sim *s)
{
	struct hoccl_event event;
	uint64_t last = 0;

	s->turns = calloc((size_t)s->layout->gpus, sizeof(*s->turns));
	s->failed |= !s->turns;
	for (int g = 0; s->turns && g < s->layout->gpus; g++)
		begin(s, g);
	while (hoccl_events_next(&s->events, &event)) {
		s->now = event.ns;
		if (handle(s, &event))
			last = s->now;
	}
	s->now = last > s->machine->skew_ns ? last - s->machine->skew_ns : 0;
	s->moved = s->turns && all_moved(s);
}
