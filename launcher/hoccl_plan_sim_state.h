/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_PLAN_SIM_STATE_H
#define HOCCL_PLAN_SIM_STATE_H

#include "hoccl_plan_sim.h"
#include "sched/chunks.h"
#include "sched/events.h"

/* The state of a simulation, shared by hoccl_plan_sim.c (what happens) and hoccl_plan_sim_setup.c (begin and end). */
enum hoccl_sim_kind {
	SIM_COPY_BEGINS, SIM_COPY_ENDS, SIM_SLOT_FILLED, SIM_WIRE_ENDS, SIM_SLOT_ARRIVED, SIM_OUT_SLOT_FREE,
	SIM_IN_SLOT_FREE, SIM_SELF_STAGED,
};
enum hoccl_sim_task { SIM_FORWARD, SIM_DRAIN, SIM_NATIVE, SIM_SELF_OUT, SIM_SELF_BACK, SIM_DETOUR };
enum hoccl_sim_phase { SIM_PUSHING, SIM_ON_WIRE, SIM_PULLING, SIM_PHASES };

struct hoccl_sim_copy {
	bool busy, flowing, last;	/* last: of its native piece */
	enum hoccl_sim_task task;
	int out, in;			/* NVLink ends, -1: none */
	int place;			/* of a message to oneself; turns only */
	bool beside_host;		/* the GPU copies from and to host memory meanwhile; turns only */
	uint32_t item, version;		/* wire or local; of the SIM_COPY_ENDS event that counts */
	uint64_t bytes, left, rate, since, start;
};

struct hoccl_sim_waiting {	/* what an rx engine will take, in order of arrival */
	struct hoccl_sim_waiting *next;
	enum hoccl_sim_task task;
	uint32_t item;
	uint64_t bytes;
};

struct hoccl_sim_gpu {
	struct hoccl_sim_copy copy[HOCCL_SIM_WIRE_OUT];
	struct hoccl_sim_waiting *first[2], **last[2];	/* PULL, H2D */
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

struct hoccl_sim_wire_state {
	uint64_t given, filled, sent, start;
};

struct hoccl_sim {
	const struct hoccl_plan *plan;
	const struct hoccl_layout *layout;
	const struct hoccl_machine *machine;
	const struct hoccl_sim_options *options;
	struct hoccl_events events;
	struct hoccl_sim_gpu *gpu;
	struct hoccl_sim_wire_state *wire;
	uint32_t *items;
	struct hoccl_sim_turns *turns;	/* of each GPU */
	uint64_t now, chunks;
	uint32_t stage;			/* without overlap */
	enum hoccl_sim_phase phase;
	bool failed, moved;		/* moved: everything, by turns */
};

/* What a GPU of a node is at that moves as the runtime does it (hoccl_plan_sim_turns.c). */
struct hoccl_sim_turns {
	uint64_t start_ns;
	size_t next;			/* of its pieces for others */
	uint64_t rest;			/* of the piece at hand, without what its detour takes */
	const struct hoccl_local *own;	/* its message to itself; NULL: none */
	uint64_t front, back, landed;	/* of that: what is in between has not left */
	struct hoccl_sim_place {
		enum {SIM_IDLE, SIM_FILLING, SIM_FILLED, SIM_DRAINING, SIM_DRAINED} state;
		uint64_t bytes;
	} place[8];			/* as in p2p/self.c: two by another GPU, of which messages in turns use one, the others in host memory */
	bool detour, beside_host;	/* a piece for another takes a detour; its own message goes by host memory */
};

static inline const struct hoccl_plan_wire *hoccl_sim_wire(const struct hoccl_sim *s, uint32_t item)
{
	return &s->plan->wire[item];
}

/* The GPU on which a wire's slot lies, -1 where it loads no rank's NVLink. */
static inline int hoccl_sim_slot(const struct hoccl_sim *s, int gpu, int nic)
{
	int slot = hoccl_layout_slot(s->layout, gpu, nic);

	return slot < 0 ? -1 : slot;
}

static inline bool hoccl_sim_on_host(const struct hoccl_sim *s, int gpu)
{
	return s->layout->pair[gpu] == HOCCL_PAIR_HOST;
}

/* Who receives a native piece: a self copy goes to the slot. */
static inline int hoccl_sim_receiver(const struct hoccl_sim *s, const struct hoccl_local *l)
{
	int slot = l->src == l->dst ? hoccl_sim_slot(s, l->src, l->src) : l->dst;

	return slot < 0 ? l->src : slot;
}

static inline bool hoccl_sim_takes_turns(const struct hoccl_sim *s, const struct hoccl_local *l)
{
	return l->stage >= s->plan->extra && !(l->src == l->dst && hoccl_sim_on_host(s, l->src));
}

/* Self copies through host memory have engines of their own. */
static inline int hoccl_sim_queue(const struct hoccl_sim *s, const struct hoccl_local *l)
{
	return l->src == l->dst && hoccl_sim_on_host(s, l->src);
}

/* Copies and links (hoccl_plan_sim_copy.c). An engine takes one copy at a time; where the machine has one for pushes and pulls, the
 * caller sees to that. */
void hoccl_sim_at(struct hoccl_sim *s, uint64_t ns, int kind, int where, uint32_t which, uint64_t bytes);
void hoccl_sim_trace(struct hoccl_sim *s, enum hoccl_sim_engine engine, int gpu, const struct hoccl_sim_event *event);
void hoccl_sim_begin_copy(struct hoccl_sim *s, int gpu, int engine, struct hoccl_sim_copy copy);
void hoccl_sim_copy_begins(struct hoccl_sim *s, int gpu, int engine);
void hoccl_sim_copy_ends(struct hoccl_sim *s, int gpu, int engine, const struct hoccl_sim_event *event);
void hoccl_sim_share_links(struct hoccl_sim *s, int node);

/* Runs the plan of one node as the runtime moves it; `now` is when the last byte has landed. */
void hoccl_sim_turns(struct hoccl_sim *s);

/* Sorts the plan's entries by NIC and GPU; 0 or HOCCL_PLAN_MEMORY. */
int hoccl_sim_init(struct hoccl_sim *s);
void hoccl_sim_fini(struct hoccl_sim *s);

/* Has everything been moved? */
bool hoccl_sim_done(const struct hoccl_sim *s);

#endif
