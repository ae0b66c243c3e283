/* SPDX-License-Identifier: Apache-2.0 */
/* How long a thread of the proxy polls before it sleeps. */
#ifndef HOCCL_BASE_PATIENCE_H
#define HOCCL_BASE_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

/* How many ranks of this node share the cores this process may use: once, before the threads start. */
void hoccl_patience_init(int local_ranks);

/* Called each time there was nothing to do, with the time of the last work: true while it pays to look again at once
 * (it has then paused for an instant); false when the caller had better sleep. */
bool hoccl_patience(const uint64_t *since);

/* Besides the proxy's two: is there a core for the polling of this rank's further thread `number`, from 0 on? */
bool hoccl_patience_spares(int number);

#endif
