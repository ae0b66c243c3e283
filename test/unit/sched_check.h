/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HOCCL_SCHED_CHECK_H
#define HOCCL_SCHED_CHECK_H

#include "sched/plan.h"

/* What must hold for every plan. Returns NULL, or a sentence that says what does not. */
const char *hoccl_check_plan(const struct hoccl_plan *plan, const struct hoccl_layout *layout,
			     const struct hoccl_machine *machine, const uint64_t *c);

/*
 * The optimum without splitting flows, by exhaustive search (G <= 4): the shortest time in which every inter-node flow
 * passes, a NIC sending one and receiving one at a time, each costing its bytes and a start-up. 0: too many steps.
 */
uint64_t hoccl_check_optimum(const struct hoccl_layout *layout, const struct hoccl_machine *machine, const uint64_t *c);

#endif
