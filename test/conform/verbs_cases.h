/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the verbs transport share: verbs.c has what moves, verbs_faults.c what goes wrong. */
#ifndef VERBS_CASES_H
#define VERBS_CASES_H

#include "ends.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"
#include "transport/verbs.h"

extern const char *device[2];

/* An endpoint on one of the two devices, with this HOCCL_VERBS. Soft-RoCE in an emulated guest answers late. */
void open_on(struct end *end, int which, const char *verbs);

struct two {
    struct end x, y;
    struct line a, b; /* a of x, b of y */
};
void two_open(struct two *t, const char *verbs_x, const char *verbs_y);
void two_close(struct two *t);

/* One write of `bytes` at odd offsets, all of it compared, the guards too. */
void write_and_compare(struct two *t, size_t bytes, uint32_t word);

/* verbs_faults.c */
void test_lane_faults(void);
void test_peer_killed_idle(void);
void test_peer_killed_busy(void);
void test_memlock(void);
void test_registration(void);
void test_stale_key(void);
void test_gid_change(void);
void test_link_down_idle(void);
void test_link_down_busy(void);

#endif
