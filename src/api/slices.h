/* SPDX-License-Identifier: Apache-2.0 */
/* Where the pieces of one side of a collective stand: one for each rank, in one buffer of the caller's. */
#ifndef HOCCL_API_SLICES_H
#define HOCCL_API_SLICES_H

#include "hoccl.h"

#include <stdbool.h>

/* With whom a rank exchanges the pieces of this side. */
enum hoccl_slices_with {
    HOCCL_WITH_ALL,     /* every rank has a piece for every rank */
    HOCCL_WITH_ROOT,    /* every rank has one piece, root's */
    HOCCL_WITH_AT_ROOT, /* root has a piece for every rank, the others have none */
};

/* In elements, as the caller gave it. Rank r's piece is count at r × step, or counts[r] at displs[r]. */
struct hoccl_slices {
    const void *buf;
    size_t count, step;
    bool arrays; /* counts and displs are used instead */
    const size_t *counts, *displs;
    enum hoccl_slices_with with;
};

struct hoccl_slice {
    const void *address;
    size_t bytes;
};

/* Has `rank` a piece for `peer` on this side? */
bool hoccl_slices_has(const struct hoccl_slices *s, int rank, int peer, int root);

/* The arrays that this rank must give are there. `side` is "send" or "receive". */
HOCCL_Result hoccl_slices_check(const struct hoccl_slices *s, int rank, int root, const char *side);

/* Rank r's piece; *total grows by its bytes. ARGUMENT for a NULL buffer with bytes and for anything, the total too, that
 * is more than an address space. */
HOCCL_Result hoccl_slices_get(const struct hoccl_slices *s, int r, size_t element_size, const char *side, size_t *total,
                              struct hoccl_slice *slice);

#endif
