/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator of some ranks of another one (HOCCL_CommSplit). */
#ifndef HOCCL_CORE_SPLIT_H
#define HOCCL_CORE_SPLIT_H

#include "core/comm.h"

/* Collective over `parent`, whose busy mark is held: ranks of equal color make a communicator, ordered by key, then by
 * rank. *comm stays NULL with SUCCESS if the color is HOCCL_SPLIT_NOCOLOR. Ends early if the parent is aborted. Running
 * operations of the parent go on. */
HOCCL_Result hoccl_comm_split(struct hoccl_comm *parent, int color, int key, struct hoccl_comm **comm);

/* This rank cannot take part, for the reason in the calling thread's error text: the others, who wait for it, fail. */
void hoccl_comm_split_refuse(struct hoccl_comm *parent);

#endif
