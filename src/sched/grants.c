/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What src/p2p/wire.c does, as a model:
 *
 *   receiver ──grant of some chunks──▶ sender ══ chunk ══▶ receiver ──it has been emptied: next grant──▶ …
 *              grant_ns                                             free_ns
 *
 * A NIC sends one chunk and receives one chunk at a time; a sender takes, of the flows for which it has grants and whose
 * receiver is free, the first of its order, two large ones at most. Grants go to the first of the receiver's order, as far as
 * windows and turns allow. Sizes are the runtime's. A chunk's size is near what the runtime's own model of one message chooses.
 */
#include "sched/grants.h"

#include "sched/events.h"

#include <stdlib.h>

#define LEAST_CHUNK (UINT64_C(64) << 10)
#define PIECES 8u				/* chunks of a message of less than that many slots */
#define UNEVEN (HOCCL_GRANTS_SLOTS * 5 / 8)	/* these six as in p2p/wire_grants.c */
#define LEAST 3u
#define KEPT (HOCCL_GRANTS_SLOTS / 4)
#define DEEPEST ((HOCCL_GRANTS_SLOTS - KEPT - 8) / TURNS)
#define TURNS 2u
#define CHUNKS_MOST (UINT64_C(1) << 16)		/* of more, long messages are simulated in larger chunks */

enum { GRANT_COMES, CHUNK_ENDS, SLOT_FREE };

struct flow {
	uint64_t bytes, sent, chunk;
	uint32_t chunks, left, ready, away;	/* all; not granted; granted and not sent; granted and not emptied */
	int16_t u, v;
	bool turned, filling;			/* has the turn at the receiver, at the sender */
};

/* The flows of one NIC's direction, in their order; those before `first` are of no interest any more. */
struct line {
	uint32_t *flow;
	uint32_t flows, first;
	uint64_t left;		/* bytes not sent, or not granted */
	unsigned int turns, idle;
	bool busy;
};

struct grants {
	enum hoccl_grants_order order;
	const struct hoccl_grants_cost *cost;
	uint64_t now, gpus;
	struct hoccl_events events;
	struct flow *flow;
	size_t flows;
	uint32_t *places;
	struct line out[HOCCL_GRANTS_MOST], in[HOCCL_GRANTS_MOST];
};

struct hoccl_grants_cost hoccl_grants_cost_of(const struct hoccl_machine *m)
{
	uint64_t copy = m->copy_ns + hoccl_rate_time(&m->rate[HOCCL_LINE_PCIE_OUT], HOCCL_GRANTS_SLOT);
	struct hoccl_grants_cost cost = {.start_ns = 200, .grant_ns = 9000 + copy, .free_ns = 9000 + copy};

	cost.chunk_ns = hoccl_rate_time(hoccl_machine_wire(m), HOCCL_GRANTS_SLOT);
	uint64_t round = cost.chunk_ns + cost.grant_ns + cost.free_ns, pace = copy > cost.chunk_ns ? copy : cost.chunk_ns;

	cost.ahead = 2 * ((round + pace - 1) / pace);
	return cost;
}

static uint64_t chunk_time(const struct hoccl_grants_cost *cost, uint64_t bytes)
{
	return cost->start_ns + (uint64_t)((unsigned __int128)cost->chunk_ns * bytes / HOCCL_GRANTS_SLOT);
}

static void at(struct grants *s, uint64_t ns, int kind, uint32_t flow, uint64_t n)
{
	hoccl_events_add(&s->events, (struct hoccl_event){.ns = ns, .kind = kind, .which = flow, .bytes = n});
}

/* How much a flow is to be preferred at the receiver (or at the sender); equal ones by their order. */
static uint64_t weight(const struct grants *s, const struct flow *f, bool at_receiver)
{
	if (s->order == HOCCL_GRANTS_TOTALS)
		return at_receiver ? s->out[f->u].left : s->in[f->v].left;
	return s->order == HOCCL_GRANTS_LONGEST ? (f->left + (at_receiver ? 0 : f->ready)) * f->chunk : 0;
}

static unsigned int window(const struct grants *s, const struct line *in, const struct flow *f)
{
	unsigned int ahead = (unsigned int)s->cost->ahead, wanting = 0;

	if (s->order != HOCCL_GRANTS_LONGEST)
		return in->turns > f->turned && ahead > DEEPEST ? DEEPEST : ahead;
	for (uint32_t i = in->first; i < in->flows; i++)
		wanting += s->flow[in->flow[i]].left != 0;
	if (!wanting || UNEVEN / wanting >= ahead)
		return ahead;
	return UNEVEN / wanting > LEAST ? UNEVEN / wanting : LEAST;
}

static unsigned int room(const struct grants *s, const struct line *in, const struct flow *f)
{
	unsigned int most = window(s, in, f), n = most > f->away ? most - f->away : 0;
	unsigned int kept = f->chunks == 1 ? KEPT : s->order == HOCCL_GRANTS_LONGEST ? HOCCL_GRANTS_SLOTS - UNEVEN : 0;
	unsigned int idle = in->idle > kept ? in->idle - kept : 0;

	n = n < f->left ? n : f->left;
	n = n < idle ? n : idle;
	return n < f->left && n < (most + 3) / 4 && f->away > 1 ? 0 : n;
}

static bool takes_turn(const struct grants *s, const struct flow *f)
{
	return f->chunks > 1 && s->order != HOCCL_GRANTS_LONGEST;
}

static void give(struct grants *s, struct line *in, uint32_t which, unsigned int n)
{
	struct flow *f = &s->flow[which];

	if (takes_turn(s, f) && !f->turned) {
		f->turned = true;
		in->turns++;
	}
	f->left -= n;
	f->away += n;
	in->idle -= n;
	in->left -= n * f->chunk < in->left ? n * f->chunk : in->left;
	at(s, s->now + s->cost->grant_ns, GRANT_COMES, which, n);
}

/* One grant; false when nobody can be granted anything. */
static bool grant_one(struct grants *s, struct line *in)
{
	const struct flow *best = NULL;
	unsigned int n = 0;

	while (in->first < in->flows && !s->flow[in->flow[in->first]].left)
		in->first++;
	for (uint32_t i = in->first; i < in->flows; i++) {
		const struct flow *f = &s->flow[in->flow[i]];
		bool turn = !takes_turn(s, f) || f->turned || in->turns < TURNS;
		unsigned int places = f->left && turn ? room(s, in, f) : 0;

		if (!places || (best && weight(s, f, true) <= weight(s, best, true)))
			continue;
		best = f;
		n = places;
		if (s->order == HOCCL_GRANTS_IN_ORDER)
			break;
	}
	if (best)
		give(s, in, (uint32_t)(best - s->flow), n);
	return best;
}

static void grant(struct grants *s, int v)
{
	while (grant_one(s, &s->in[v]))
		;
}

static void send_next(struct grants *s, int u)
{
	struct line *out = &s->out[u];
	struct flow *best = NULL;

	while (out->first < out->flows && s->flow[out->flow[out->first]].sent == s->flow[out->flow[out->first]].bytes)
		out->first++;
	for (uint32_t i = out->first; i < out->flows && !out->busy; i++) {
		struct flow *f = &s->flow[out->flow[i]];
		bool turn = f->chunks == 1 || f->filling || out->turns < TURNS;

		if (f->ready && turn && !s->in[f->v].busy && (!best || weight(s, f, false) > weight(s, best, false)))
			best = f;
	}
	if (!best)
		return;
	uint64_t rest = best->bytes - best->sent, bytes = rest < best->chunk ? rest : best->chunk;

	out->turns += best->chunks > 1 && !best->filling;
	best->filling = best->chunks > 1;
	best->ready--;
	best->sent += bytes;
	out->left -= bytes;
	out->busy = s->in[best->v].busy = true;
	at(s, s->now + chunk_time(s->cost, bytes), CHUNK_ENDS, (uint32_t)(best - s->flow), 0);
}

/* A sender rests when it has sent what was granted; a receiver's turn is over when all has come. */
static void end_turns(struct grants *s, struct flow *f)
{
	if (f->filling && !f->ready) {
		f->filling = false;
		s->out[f->u].turns--;
	}
	if (f->turned && f->sent == f->bytes) {
		f->turned = false;
		s->in[f->v].turns--;
		grant(s, f->v);
	}
}

/* The receiver is free too now: those behind the sender first. */
static void chunk_ends(struct grants *s, uint32_t which)
{
	struct flow *f = &s->flow[which];
	struct line *in = &s->in[f->v];

	s->out[f->u].busy = in->busy = false;
	at(s, s->now + s->cost->free_ns, SLOT_FREE, which, 0);
	end_turns(s, f);
	send_next(s, f->u);
	for (uint64_t i = 1; i < s->gpus && !in->busy; i++)
		send_next(s, (int)(((uint64_t)f->u + i) % s->gpus));
}

static void slot_free(struct grants *s, uint32_t which)
{
	struct flow *f = &s->flow[which];

	f->away--;
	s->in[f->v].idle++;
	grant(s, f->v);
}

static void handle(struct grants *s, const struct hoccl_event *e)
{
	switch (e->kind) {
	case GRANT_COMES:
		s->flow[e->which].ready += (uint32_t)e->bytes;
		send_next(s, s->flow[e->which].u);
		break;
	case CHUNK_ENDS:
		chunk_ends(s, e->which);
		break;
	default:
		slot_free(s, e->which);
	}
}

static uint64_t chunk_of(uint64_t bytes, uint64_t largest)
{
	uint64_t chunk = LEAST_CHUNK;

	while (chunk < largest && bytes / PIECES > chunk)
		chunk *= 2;
	return chunk;
}

static bool too_many(const struct hoccl_parts *parts, uint64_t largest)
{
	uint64_t n = 0;

	for (size_t i = 0; i < parts->parts && n <= CHUNKS_MOST + parts->parts; i++)
		n += parts->part[i].bytes / chunk_of(parts->part[i].bytes, largest) + 1;
	return n > CHUNKS_MOST + parts->parts;
}

/* Where lines are so long that there are too many chunks, their size makes little difference to the whole. */
static uint64_t largest_chunk(const struct hoccl_parts *parts)
{
	uint64_t chunk = HOCCL_GRANTS_SLOT;

	while (chunk < UINT64_C(1) << 62 && too_many(parts, chunk))
		chunk *= 2;
	return chunk;
}

/* Each line's flows stand in `places`, one line behind the other. */
static void index_lines(struct grants *s)
{
	uint32_t *next = s->places;

	for (uint64_t g = 0; g < s->gpus; g++) {
		s->out[g].flow = next;
		next += s->out[g].flows;
		s->in[g].flow = next;
		next += s->in[g].flows;
		s->out[g].flows = s->in[g].flows = 0;
	}
	for (uint32_t i = 0; i < s->flows; i++) {
		struct line *out = &s->out[s->flow[i].u], *in = &s->in[s->flow[i].v];

		out->flow[out->flows++] = i;
		in->flow[in->flows++] = i;
	}
}

static void fill(struct grants *s, const struct hoccl_parts *parts)
{
	uint64_t largest = largest_chunk(parts);

	for (size_t i = 0; i < parts->parts; i++) {
		const struct hoccl_part_of *p = &parts->part[i];
		struct flow *f = &s->flow[i];

		*f = (struct flow){.bytes = p->bytes, .chunk = chunk_of(p->bytes, largest), .u = p->src, .v = p->dst};
		f->chunks = f->left = (uint32_t)((f->bytes + f->chunk - 1) / f->chunk);
		s->out[f->u].left += f->bytes;
		s->in[f->v].left += f->bytes;
		s->out[f->u].flows++;
		s->in[f->v].flows++;
	}
	for (uint64_t g = 0; g < s->gpus; g++)
		s->in[g].idle = HOCCL_GRANTS_SLOTS;
	index_lines(s);
}

static void run(struct grants *s)
{
	struct hoccl_event event;

	for (uint64_t v = 0; v < s->gpus; v++)
		grant(s, (int)v);
	while (hoccl_events_next(&s->events, &event)) {
		s->now = event.ns;
		handle(s, &event);
	}
}

static int start(struct grants *s, const struct hoccl_parts *parts, struct hoccl_plan_error *error)
{
	s->flows = parts->parts;
	s->flow = malloc((s->flows + 1) * sizeof(*s->flow));
	s->places = malloc((2 * s->flows + 1) * sizeof(*s->places));
	if (!s->flow || !s->places)
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for %zu messages", s->flows);
	fill(s, parts);
	run(s);
	bool stopped = s->events.failed;

	for (size_t i = 0; i < s->flows; i++)
		stopped |= s->flow[i].sent != s->flow[i].bytes;
	return stopped ? hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "the simulation of grants stopped before the end") : 0;
}

int hoccl_grants_run(const struct hoccl_layout *layout, const struct hoccl_grants_cost *cost, const struct hoccl_parts *parts,
		     enum hoccl_grants_order order, uint64_t *ns, struct hoccl_plan_error *error)
{
	if (layout->gpus > HOCCL_GRANTS_MOST)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "grants are simulated for up to %d GPUs", HOCCL_GRANTS_MOST);
	struct grants *s = calloc(1, sizeof(*s));

	if (!s)
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for a simulation");
	s->order = order;
	s->cost = cost;
	s->gpus = (uint64_t)layout->gpus;
	int status = start(s, parts, error);

	if (!status)	/* the last event is a slot that is free again */
		*ns = s->now > cost->free_ns ? s->now - cost->free_ns : 0;
	hoccl_events_fini(&s->events);
	free(s->flow);
	free(s->places);
	free(s);
	return status;
}

uint64_t hoccl_grants_bound(const struct hoccl_layout *layout, const struct hoccl_grants_cost *cost,
			    const struct hoccl_parts *parts)
{
	uint64_t line[2][HOCCL_SCHED_MAX_GPUS] = {{0}}, longest = 0;

	for (size_t i = 0; i < parts->parts; i++) {
		line[0][parts->part[i].src] += parts->part[i].bytes;
		line[1][parts->part[i].dst] += parts->part[i].bytes;
	}
	for (int g = 0; g < layout->gpus; g++) {
		longest = line[0][g] > longest ? line[0][g] : longest;
		longest = line[1][g] > longest ? line[1][g] : longest;
	}
	return (uint64_t)((unsigned __int128)cost->chunk_ns * longest / HOCCL_GRANTS_SLOT);
}
