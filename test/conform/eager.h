/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of flows ahead of their streams (eager.c, eager_faults.c) share. A gate is a word that a stream waits for: what
 * stands behind it is posted and not reached. */
#ifndef CONFORM_EAGER_H
#define CONFORM_EAGER_H

#include "far.h"
#include "near.h"

#define GUARD 0xa5

struct gate {
    uint32_t *word;
    CUdeviceptr address;
};

bool gate_open(struct rank *r, struct gate *g);
void gate_shut(struct rank *r, const struct gate *g, CUstream stream);
void gate_close(struct rank *r, struct gate *g); /* when no stream waits any more */

/* New weather, no counts. */
void begin(struct near_weather weather);

/* The count has come to n, within 20 s. */
bool come_to(const uint64_t *count, uint64_t n);

/* The message to a rank stands in w->out, guards in w->in; that of a rank has come whole; nothing has. */
bool put(struct rank *r, struct work *w, int to, size_t n, unsigned key);
void got(struct rank *r, struct work *w, int from, size_t n, unsigned key);
void untouched(struct rank *r, struct work *w);

/* Nothing is under way: all in slots are free, and nothing is counted that is over. */
void all_back(struct rank *r);

/* Bodies: all early slots are taken for long, and all the rest goes on; many operations one behind the other. */
void drain(struct rank *r);
void in_a_row_or_failed(struct rank *r);

/* eager_faults.c */
void test_abort_held(void **state);
void test_dead(void **state);
void test_foreground(void **state);
void test_own_turn(void **state);
void test_leave(void **state);
void test_mismatch(void **state);
void test_forged(void **state);
void test_breaks(void **state);

/* eager_storm.c */
void test_storm(void **state);

#endif
