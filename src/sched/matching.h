/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_MATCHING_H
#define HOCCL_SCHED_MATCHING_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A matching of senders (side 0) and receivers (side 1) that covers given lines; kept between stages, so that only
 * what a stage broke is searched for again.
 */
struct hoccl_matching {
	int gpus, words;
	uint64_t *edges[2];	/* gpus × words: the partners each line may have */
	uint64_t *need[2];	/* words: lines that must be covered */
	uint64_t *open[2];	/* words: lines without partner */
	int16_t *mate[2];	/* partner, -1 = none */
	int16_t *from[2];	/* scratch of the search: the line of the other side through which one was reached */
	int16_t *queue;
	uint64_t *seen;
};

int hoccl_matching_init(struct hoccl_matching *matching, int gpus);
void hoccl_matching_fini(struct hoccl_matching *matching);

/* Forgets all edges; the matching itself stays. */
void hoccl_matching_clear_edges(struct hoccl_matching *matching);
void hoccl_matching_add_edge(struct hoccl_matching *matching, int u, int v);
void hoccl_matching_drop_edge(struct hoccl_matching *matching, int u, int v);

/* Takes the pair (u, mate of u) apart, if there is one. */
void hoccl_matching_part(struct hoccl_matching *matching, int u);
void hoccl_matching_join(struct hoccl_matching *matching, int u, int v);

/* Parts pairs that are no edges any more. */
void hoccl_matching_prune(struct hoccl_matching *matching);

/* Changes the matching until it covers every line in need[]; false when none does (then it covers what it can). */
bool hoccl_matching_cover(struct hoccl_matching *matching);

/* Joins open lines by edges between two open lines, as they come; whatever is covered stays so. */
void hoccl_matching_extend(struct hoccl_matching *matching);

#endif
