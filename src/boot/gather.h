/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange among ranks over the sockets that they hold open to one another (boot/node.h; for ranks of other nodes one end
 * of a pair, core/abroad.h). Nothing else is sent there, so running operations are not disturbed.
 *
 * Few ranks send to each other directly. Many do not hold sockets to all: they form a tree by their numbers, and each
 * packet goes once over each edge of it. */
#ifndef HOCCL_BOOT_GATHER_H
#define HOCCL_BOOT_GATHER_H

#include "boot/boot.h"
#include "boot/node.h"

#define HOCCL_GATHER_FAN 4 /* children of a rank in the tree: 64 ranks are three edges from rank 0 at most, 1,024 five */

/* Do these two ranks share an edge of the tree? */
static inline bool hoccl_gather_edge(int a, int b)
{
    return a < b ? (b - 1) / HOCCL_GATHER_FAN == a : b < a && (a - 1) / HOCCL_GATHER_FAN == b;
}

/* One exchange. Its ranks agree on (call, step); both only grow, so what a failed one has left behind is recognised. */
struct hoccl_gather {
    const char *name; /* of the call, for texts */
    const struct hoccl_link *links;
    const int *ranks; /* who takes part: `count` ranks, places in links; this one is ranks[me] */
    int count, me;
    bool tree;        /* over the tree's edges only; `ranks` are all ranks of the links then, in order */
    uint32_t call, step;
    uint64_t timeout;
    HOCCL_Result (*check)(void *arg); /* may the waiting go on? NULL: nothing can end it but time */
    void *arg;
    void (*stir)(void *arg, bool begins); /* called before the first packet is sent and after the last; NULL: no need */
    const char *(*why)(void *arg, int rank); /* why this rank's end has closed: NULL: it has ended, or left. NULL: nobody knows */
    void *stirred;                           /* the argument of both */
};

/* Collective: `all` receives count × bytes (at most HOCCL_BLOB_MAX each) in the order of `ranks`. BOOTSTRAP if a rank is
 * gone, has given this call up, or did not come in time, naming it; the others are told. */
HOCCL_Result hoccl_gather(const struct hoccl_gather *g, const void *mine, size_t bytes, void *all);

/* This rank cannot take part in the call: make the others fail with the calling thread's error text. */
void hoccl_gather_refuse(const struct hoccl_gather *g);

#endif
