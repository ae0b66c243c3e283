/* SPDX-License-Identifier: Apache-2.0 */
/* Begin and end of a simulation: the plan's entries sorted by NIC and GPU in one array, and was everything moved. */
#include "hoccl_plan_sim_state.h"

#include <stdlib.h>

/* Where in one array each NIC's wires and each GPU's locals will be. */
static void place_items(struct hoccl_sim *s)
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

static void sort_locals(struct hoccl_sim *s)
{
	for (size_t i = 0; i < s->plan->locals; i++) {
		const struct hoccl_local *l = &s->plan->local[i];
		struct hoccl_sim_gpu *g = &s->gpu[l->src], *receiver = &s->gpu[hoccl_sim_receiver(s, l)];
		int queue = hoccl_sim_queue(s, l);

		g->local[queue][g->locals[queue]++] = (uint32_t)i;
		if (hoccl_sim_takes_turns(s, l))
			receiver->turn[receiver->turns++] = (uint32_t)i;
	}
}

/* Wires by NIC and locals by GPU, each in plan order. */
static int sort_items(struct hoccl_sim *s)
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
		s->gpu[p->local[i].src].locals[hoccl_sim_queue(s, &p->local[i])]++;
		s->gpu[hoccl_sim_receiver(s, &p->local[i])].turns += hoccl_sim_takes_turns(s, &p->local[i]);
	}
	place_items(s);
	for (size_t i = 0; i < p->wires; i++) {
		struct hoccl_sim_gpu *out = &s->gpu[p->wire[i].path.out], *in = &s->gpu[p->wire[i].path.in];

		out->order[0][out->count[0]++] = (uint32_t)i;
		in->order[1][in->count[1]++] = (uint32_t)i;
	}
	sort_locals(s);
	return 0;
}

int hoccl_sim_init(struct hoccl_sim *s)
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

void hoccl_sim_fini(struct hoccl_sim *s)
{
	for (int g = 0; s->gpu && g < s->layout->gpus; g++)
		for (int i = 0; i < 2; i++) {
			hoccl_chunks_fini(&s->gpu[g].native[i]);
			for (struct hoccl_sim_waiting *w = s->gpu[g].first[i], *n; w; w = n) {
				n = w->next;
				free(w);
			}
		}
	hoccl_events_fini(&s->events);
	free(s->items);
	free(s->gpu);
	free(s->wire);
	free(s->turns);
}

bool hoccl_sim_done(const struct hoccl_sim *s)
{
	for (int g = 0; g < s->layout->gpus; g++) {
		const struct hoccl_sim_gpu *p = &s->gpu[g];

		for (int i = 0; i < 2; i++)
			if (p->head[i] < p->count[i] || p->next_local[i] < p->locals[i] || p->first[i] ||
			    p->native[i].flows)
				return false;
	}
	return true;
}
