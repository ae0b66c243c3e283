/* SPDX-License-Identifier: Apache-2.0 */
/* With a core for each thread of the proxy, polling for a millisecond costs nobody anything and saves a wake-up. With
 * fewer, a thread that polls keeps the one it waits for from running: it gives its core away at once. */
#define _GNU_SOURCE
#include "base/patience.h"

#include "base/atomic.h"
#include "base/clock.h"

#include <sched.h>

#define LONG_PATIENCE HOCCL_MS
#define SHORT_PATIENCE (20 * HOCCL_US)
#define THREADS 3 /* application, progress, submitter */

static bool crowded;
static int spare;

void hoccl_patience_init(int local_ranks)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    hoccl_poke(&crowded, cores < THREADS * local_ranks);
    hoccl_poke(&spare, cores / local_ranks - THREADS);
}

bool hoccl_patience_spares(int number)
{
    return number < hoccl_peek(&spare);
}

bool hoccl_patience(const uint64_t *since)
{
    bool c = hoccl_peek(&crowded);
    if (c)
        sched_yield();
    else
        hoccl_relax(); /* once: a handful of these pauses is a microsecond, and a message passes five such polls */
    return hoccl_recently() - *since < (c ? SHORT_PATIENCE : LONG_PATIENCE);
}
