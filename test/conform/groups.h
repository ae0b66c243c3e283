/* SPDX-License-Identifier: Apache-2.0 */
/* Random groups of sends and receives, as one rank of a process or of a thread takes part in them. All ranks draw the same
 * plan from the same seed, so each knows what must arrive where. */
#ifndef CONFORM_GROUPS_H
#define CONFORM_GROUPS_H

#include <hoccl.h>
#include <stddef.h>
#include <stdint.h>

struct groups_job {
    HOCCL_Comm comm[2]; /* of the same ranks in the same order; a group may use both */
    int rank, size;
    int device;
    uint64_t seed;
    int groups;
    int streams;  /* 1 … 6 */
    size_t most;  /* bytes of the largest messages */
    /* Returns when no stream of this process waits; NULL: that is so whenever this rank's own do not. */
    void (*quiet)(void);
};

/* Messages that this process has found right so far, and those of them between ranks that HOCCL_TEST_NODE=N takes to different
 * nodes. */
extern unsigned long groups_messages, groups_far_messages;

/* Leaves the program with a text on the first wrong byte, touched guard or unexpected error. */
void groups_run(const struct groups_job *job);

#endif
