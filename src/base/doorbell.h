/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of the proxy sleeps on its doorbell when it has nothing to do; whoever brings work rings it.
 *
 *   sleeper:  asleep ← 1 (exchange) ── look for work once more ── none: sleep until rung or for at most `ns`
 *   ringer:   publish the work ── asleep ← 0 (exchange) ── it was 1: wake
 *
 * Both exchange the same word, so one comes first: the sleeper then sees the work, or the ringer sees the sleeper. It may stand in
 * memory that other processes have mapped. */
#ifndef HOCCL_BASE_DOORBELL_H
#define HOCCL_BASE_DOORBELL_H

#include "hoccl.h"

#include <stdbool.h>
#include <stdint.h>

struct hoccl_doorbell {
    uint32_t asleep; /* 1: the owner is about to sleep or sleeps (written by the owner; cleared by the ringer too) */
    uint32_t shared; /* 1: other processes ring it; set when it is made */
};

/* The owner says that it is about to sleep, then looks for work once more. */
void hoccl_doorbell_announce(struct hoccl_doorbell *bell);

/* The owner found work after all. */
void hoccl_doorbell_cancel(struct hoccl_doorbell *bell);

/* The owner sleeps until rung, or for at most ns nanoseconds (0: no limit). May return early. */
void hoccl_doorbell_sleep(struct hoccl_doorbell *bell, uint64_t ns);

/* Any thread of the process, or, if it is shared, of another, after it has published work. */
void hoccl_doorbell_ring(struct hoccl_doorbell *bell);

/* A shared one in memory of its own, and the descriptor by which other processes map it: false if they cannot. */
HOCCL_Result hoccl_doorbell_make(struct hoccl_doorbell **bell, int *fd);
bool hoccl_doorbell_map(int fd, struct hoccl_doorbell **bell);
void hoccl_doorbell_unmap(struct hoccl_doorbell *bell); /* NULL: nothing */

#endif
