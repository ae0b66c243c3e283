/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of the proxy sleeps on its doorbell when it has nothing to do; whoever brings work rings it.
 *
 *   sleeper:  asleep ← 1 (exchange) ── look for work once more ── none: sleep until rung or for at most `ns`
 *   ringer:   publish the work ── asleep ← 0 (exchange) ── it was 1: wake
 *
 * Both exchange the same word, so one comes first: the sleeper then sees the work, or the ringer sees the sleeper. */
#ifndef HOCCL_BASE_DOORBELL_H
#define HOCCL_BASE_DOORBELL_H

#include <stdint.h>

struct hoccl_doorbell {
    uint32_t asleep; /* 1: the owner is about to sleep or sleeps (written by the owner; cleared by the ringer too) */
};

/* The owner says that it is about to sleep, then looks for work once more. */
void hoccl_doorbell_announce(struct hoccl_doorbell *bell);

/* The owner found work after all. */
void hoccl_doorbell_cancel(struct hoccl_doorbell *bell);

/* The owner sleeps until rung, or for at most ns nanoseconds (0: no limit). May return early. */
void hoccl_doorbell_sleep(struct hoccl_doorbell *bell, uint64_t ns);

/* Any thread of the process, after it has published work. */
void hoccl_doorbell_ring(struct hoccl_doorbell *bell);

#endif
