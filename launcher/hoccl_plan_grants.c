/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What src/p2p/wire.c does, as a model:
 *
 *   receiver ──grant of some chunks──▶ sender ══ chunk ══▶ receiver ──it has been emptied: next grant──▶ …
 *              `late`                                                `late`
 *
 * A NIC sends one chunk and receives one chunk at a time; a sender takes, of the flows for which it has grants and whose
 * receiver is free, the first of its order. Grants go to the first of the receiver's order, as far as windows and turns
 * allow. Sizes are the runtime's: 64 slots of 512 KiB. Everybody starts at once.
 */
#include "hoccl_plan_grants.h"

#include "hoccl_plan_events.h"
#include "sched/rotate.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK (UINT64_C(512) << 10)
#define SLOTS 64u
#define UNEVEN (SLOTS * 5 / 8)
#define LEAST 3u
#define AHEAD 8u
#define TURNS 2

const char *const hoccl_grants_names[HOCCL_GRANTS_ORDERS] = {"stages", "longest", "totals"};

enum { GRANT_COMES, CHUNK_ENDS, SLOT_FREE };

struct flow {
	uint64_t bytes, sent;
	uint32_t left, ready, away;	/* chunks not granted, granted and not sent, granted and not emptied */
	uint32_t stage;			/* of the rotation */
	bool turned;
};

struct grants {
	const struct hoccl_layout *layout;
	enum hoccl_grants_order order;
	struct hoccl_rate rate;
	uint64_t now, late;
	struct hoccl_events events;
	struct flow *flow;		/* [sender × gpus + receiver] */
	uint64_t row[HOCCL_GRANTS_MOST], column[HOCCL_GRANTS_MOST];	/* bytes left, sent and granted */
	bool sending[HOCCL_GRANTS_MOST], receiving[HOCCL_GRANTS_MOST];
	unsigned int turns[HOCCL_GRANTS_MOST], idle[HOCCL_GRANTS_MOST];
};

static struct flow *flow_of(const struct grants *s, int u, int v)
{
	return &s->flow[u * s->layout->gpus + v];
}

static void at(struct grants *s, uint64_t ns, int kind, int u, int v, uint64_t n)
{
	hoccl_events_add(&s->events, (struct hoccl_event){.ns = ns, .kind = kind, .where = u * s->layout->gpus + v, .bytes = n});
}

/* Is a to be served before b? `other`: what the other end's line has left, as known here. */
static bool before(const struct grants *s, const struct flow *a, uint64_t other_a, const struct flow *b, uint64_t other_b)
{
	uint64_t x = 0, y = 0;

	if (s->order == HOCCL_GRANTS_LONGEST) {
		x = a->left + a->ready;
		y = b->left + b->ready;
	} else if (s->order == HOCCL_GRANTS_TOTALS) {
		x = other_a;
		y = other_b;
	}
	return x == y ? a->stage < b->stage : x > y;
}

static unsigned int window(const struct grants *s, int v)
{
	unsigned int wanting = 0;

	if (s->order != HOCCL_GRANTS_LONGEST)
		return AHEAD;
	for (int u = 0; u < s->layout->gpus; u++)
		wanting += flow_of(s, u, v)->left != 0;
	if (!wanting || UNEVEN / wanting >= AHEAD)
		return AHEAD;
	return UNEVEN / wanting > LEAST ? UNEVEN / wanting : LEAST;
}

static unsigned int room(const struct grants *s, int v, const struct flow *f, unsigned int most)
{
	unsigned int kept = s->order == HOCCL_GRANTS_LONGEST ? SLOTS - UNEVEN : 0;
	unsigned int idle = s->idle[v] > kept ? s->idle[v] - kept : 0, n = most > f->away ? most - f->away : 0;

	n = n < f->left ? n : f->left;
	n = n < idle ? n : idle;
	return n < f->left && n < (most + 1) / 2 && f->away > 1 ? 0 : n;
}

/* One grant; false when nobody can be granted anything. */
static bool grant_one(struct grants *s, int v)
{
	unsigned int most = window(s, v), n = 0;
	int best = -1;

	for (int u = 0; u < s->layout->gpus; u++) {
		struct flow *f = flow_of(s, u, v);
		bool turn = s->order == HOCCL_GRANTS_LONGEST || f->turned || s->turns[v] < TURNS;

		if (f->left && turn && room(s, v, f, most) &&
		    (best < 0 || before(s, f, s->row[u], flow_of(s, best, v), s->row[best])))
			best = u;
	}
	if (best < 0)
		return false;
	struct flow *f = flow_of(s, best, v);

	n = room(s, v, f, most);
	s->turns[v] += !f->turned;
	f->turned = true;
	f->left -= n;
	f->away += n;
	s->idle[v] -= n;
	s->column[v] -= n * CHUNK < s->column[v] ? n * CHUNK : s->column[v];
	at(s, s->now + s->late, GRANT_COMES, best, v, n);
	return true;
}

static void grant(struct grants *s, int v)
{
	while (grant_one(s, v))
		;
}

static void send_next(struct grants *s, int u)
{
	int best = -1;

	for (int v = 0; v < s->layout->gpus && !s->sending[u]; v++)
		if (flow_of(s, u, v)->ready && !s->receiving[v] &&
		    (best < 0 || before(s, flow_of(s, u, v), s->column[v], flow_of(s, u, best), s->column[best])))
			best = v;
	if (best < 0)
		return;
	struct flow *f = flow_of(s, u, best);
	uint64_t bytes = f->bytes - f->sent < CHUNK ? f->bytes - f->sent : CHUNK;

	f->ready--;
	f->sent += bytes;
	s->row[u] -= bytes;
	s->sending[u] = s->receiving[best] = true;
	at(s, s->now + hoccl_rate_time(&s->rate, bytes), CHUNK_ENDS, u, best, 0);
}

/* The receiver is free too now: those behind the sender first. */
static void chunk_ends(struct grants *s, int u, int v)
{
	int gpus = s->layout->gpus;

	s->sending[u] = s->receiving[v] = false;
	at(s, s->now + s->late, SLOT_FREE, u, v, 0);
	send_next(s, u);
	for (int i = 1; i < gpus && !s->receiving[v]; i++)
		if (flow_of(s, (u + i) % gpus, v)->ready)
			send_next(s, (u + i) % gpus);
}

static void slot_free(struct grants *s, int u, int v)
{
	struct flow *f = flow_of(s, u, v);

	f->away--;
	s->idle[v]++;
	if (!f->away && !f->left && f->turned) {
		f->turned = false;
		s->turns[v]--;
	}
	grant(s, v);
}

static void handle(struct grants *s, const struct hoccl_event *e)
{
	int u = e->where / s->layout->gpus, v = e->where % s->layout->gpus;

	switch (e->kind) {
	case GRANT_COMES:
		flow_of(s, u, v)->ready += (uint32_t)e->bytes;
		send_next(s, u);
		break;
	case CHUNK_ENDS:
		chunk_ends(s, u, v);
		break;
	default:
		slot_free(s, u, v);
	}
}

static void fill(struct grants *s, const uint64_t *c)
{
	const struct hoccl_layout *layout = s->layout;
	struct hoccl_rotation rule = hoccl_rotation_rule(layout);
	int gpus = layout->gpus;

	for (int u = 0; u < gpus; u++) {
		s->idle[u] = SLOTS;
		for (int v = 0; v < gpus; v++) {
			struct flow *f = flow_of(s, u, v);

			f->bytes = layout->node[u] == layout->node[v] ? 0 : c[u * gpus + v];
			f->left = (uint32_t)((f->bytes + CHUNK - 1) / CHUNK);
			s->row[u] += f->bytes;
			s->column[v] += f->bytes;
		}
		for (uint32_t stage = 0; stage < rule.stages; stage++) {
			int v = hoccl_rotation_to(&rule, u, stage);

			if (v >= 0)
				flow_of(s, u, v)->stage = stage;
		}
	}
}

static uint64_t bound(const struct grants *s)
{
	uint64_t longest = 0;

	for (int g = 0; g < s->layout->gpus; g++) {
		longest = s->row[g] > longest ? s->row[g] : longest;
		longest = s->column[g] > longest ? s->column[g] : longest;
	}
	return hoccl_rate_time(&s->rate, longest);
}

int hoccl_grants_run(const struct hoccl_layout *layout, const struct hoccl_machine *machine, const uint64_t *c,
		     enum hoccl_grants_order order, uint64_t *ns, uint64_t *bound_ns, struct hoccl_plan_error *error)
{
	size_t cells = (size_t)layout->gpus * (size_t)layout->gpus;
	struct grants s = {.layout = layout, .order = order, .rate = *hoccl_machine_wire(machine), .late = machine->seen_ns};
	struct hoccl_event event;

	if (layout->gpus > HOCCL_GRANTS_MOST)
		return hoccl_plan_fail(error, HOCCL_PLAN_ARGUMENT, "grants are simulated for up to %d GPUs", HOCCL_GRANTS_MOST);
	s.flow = calloc(cells, sizeof(*s.flow));
	if (!s.flow)
		return hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "no memory for %d GPUs", layout->gpus);
	fill(&s, c);
	if (bound_ns)
		*bound_ns = bound(&s);
	for (int v = 0; v < layout->gpus; v++)
		grant(&s, v);
	while (hoccl_events_next(&s.events, &event)) {
		s.now = event.ns;
		handle(&s, &event);
	}
	bool stopped = s.events.failed;

	for (size_t i = 0; i < cells; i++)
		stopped |= s.flow[i].sent != s.flow[i].bytes;
	*ns = s.now > s.late ? s.now - s.late : 0;	/* the last event is a slot that is free again */
	hoccl_events_fini(&s.events);
	free(s.flow);
	return stopped ? hoccl_plan_fail(error, HOCCL_PLAN_MEMORY, "the simulation of grants stopped before the end") : 0;
}
