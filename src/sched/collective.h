/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_COLLECTIVE_H
#define HOCCL_SCHED_COLLECTIVE_H

#include "sched/error.h"

#include <stdbool.h>
#include <stdint.h>

/* What a collective moves, in bytes: `bytes` of alltoallv is a matrix (row: source), of the other v kinds a vector. */
enum hoccl_collective_kind {
	HOCCL_COLLECTIVE_ALLTOALL,	/* each rank sends bytes[0] to each */
	HOCCL_COLLECTIVE_ALLTOALLV,	/* rank u sends bytes[u × ranks + v] to v */
	HOCCL_COLLECTIVE_ALLGATHER,	/* each rank sends bytes[0] to each */
	HOCCL_COLLECTIVE_ALLGATHERV,	/* rank u sends bytes[u] to each */
	HOCCL_COLLECTIVE_GATHERV,	/* rank u sends bytes[u] to the root */
	HOCCL_COLLECTIVE_SCATTERV,	/* the root sends bytes[v] to v */
	HOCCL_COLLECTIVE_BROADCAST,	/* the root sends bytes[0] to each */
};

struct hoccl_collective {
	enum hoccl_collective_kind kind;
	int ranks, root;
	const uint64_t *bytes;
	bool in_place;		/* a rank's own slice does not move */
};

/* Can it be planned by rotation (no matrix needed)? */
bool hoccl_collective_uniform(const struct hoccl_collective *collective);

/* Fills C, ranks × ranks bytes, row = source. */
int hoccl_collective_matrix(const struct hoccl_collective *collective, uint64_t *c, struct hoccl_plan_error *error);

#endif
