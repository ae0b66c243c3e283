/* SPDX-License-Identifier: Apache-2.0 */
/* Slots on a symmetric GPU ḡ that this process does not see (CUDA_VISIBLE_DEVICES): a rank of the node whose GPU ḡ is, makes
 * them there. Launchers often show each rank its own GPU only; then each of a pair of GPUs does this for the other.
 *
 *   rank q, on ḡ (giver)                                        rank p, on g (taker)
 *                                  ◀── p's card: wants = ḡ ──   ḡ is hidden, and there are no pools yet
 *   every rank has all cards: q is the lowest rank on ḡ of p's node, and both know it without asking
 *   cuMemCreate on its own GPU, for both of p's pools
 *   exports each: a descriptor of the memory; dma-bufs of it, as far as its driver gives any
 *   ── loan{bytes, flush} + descriptors ───────────────────────▶ imports and maps them for its own GPU, tries them (reach.h),
 *      or loan{why not}                                          and has its NIC register
 *   ── everyone has made the communicator, or has failed ──       q's dma-bufs, or its own of its mapping, or the address
 *   lets go of it                                               holds it to the end of its pools
 *
 * When: between the meeting of a node's ranks and the connections to other nodes (core/lend.c), on the socket on which later
 * parcels travel. Each rank gives all that it has to give before it waits for what it gets, so two that wait for each other are
 * served; a giver that has failed gives its reason. Whether ḡ's order of writes demands flushes, only q's driver says:
 * `flush`.
 *
 * Whose memory it is: the taker's alone. The driver frees it when the last process that holds it lets go (CUDA's documentation
 * of cuMemRelease; not yet seen on hardware), and the giver's hold ends when the communicator has been made. That it dies
 * afterwards is nothing to the pools, only an error of the communicators that it is in. Pools are made once for a GPU and
 * process: a later communicator with another rank on ḡ changes nothing about them.
 *
 * Writer of the loan: the giver; of a hoccl_loan's descriptors: the taker, who closes them when its pools stand. */
#ifndef HOCCL_P2P_LOAN_H
#define HOCCL_P2P_LOAN_H

#include "device/device.h"

#define HOCCL_LOAN_POOLS 2u   /* out, in */
#define HOCCL_LOAN_DMABUFS 2u /* kinds of dma-buf of each: over PCIe, any (HOCCL_PLACE_WAYS begins with these) */

struct hoccl_loan {
    bool given;              /* there is one; else all below but `why` mean nothing */
    bool flush;              /* what a NIC has written there must be flushed before another GPU reads it */
    int rank;                /* who has made it */
    size_t bytes;            /* of each memory */
    int memory[HOCCL_LOAN_POOLS];
    int dmabuf[HOCCL_LOAN_DMABUFS][HOCCL_LOAN_POOLS]; /* −1: not given */
    char why[160];           /* why there is none */
};

/* What a giver holds until its taker has it. */
struct hoccl_lent {
    struct hoccl_device_memory memory[HOCCL_LOAN_POOLS];
};

/* Giver: make the memory on `own`, and send it. What cannot be made is refused with its reason; SYSTEM only if nothing could be
 * sent. */
HOCCL_Result hoccl_loan_give(const struct hoccl_device *own, int socket, struct hoccl_lent *lent);

/* Giver: none, for the reason in the calling thread's error text. */
void hoccl_loan_refuse(int socket);

void hoccl_lent_close(struct hoccl_lent *lent);

/* Taker: 1: it has come, given or refused; 0: not yet; −1: the other end has gone, or what came cannot be used. Never blocks. */
int hoccl_loan_take(int socket, struct hoccl_loan *loan);

/* Close its descriptors: there is none any more. */
void hoccl_loan_close(struct hoccl_loan *loan);

#endif
