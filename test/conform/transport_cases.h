/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of the suite that every transport passes; the list is in transport.c. */
#ifndef TRANSPORT_CASES_H
#define TRANSPORT_CASES_H

#include "ends.h"

#define MIB ((size_t)1 << 20)

extern struct end x, y; /* in this process */

void set(const char *name, const char *value);
void both_open(void);
void both_close(void);

/* a closes, b hears of it and closes. */
void close_pair(struct line *a, struct line *b);

void case_describe(void);
void case_before_join(void);
void case_other_transport(void);
void case_join_timeout(void);
void case_join_nobody(void);
void case_close_any(void);
void case_cookie(void);
void case_messages(void);
void case_backpressure(void);
void case_sizes(void);
void case_many(void);
void case_threads(void);
void case_lanes(void);
void case_connections(void);
void case_regions(void);
void case_region_threads(void);
void case_close_idle(void);
void case_close_busy(void);
void case_both_close(void);
void case_cycles(void);
void case_bell(void);
void case_summon(void);
void case_summon_nobody(void);
void case_quiet(void);

#endif
