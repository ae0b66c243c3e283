/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of ranks on several nodes (far.c, far_comms.c, places.c) share. */
#ifndef CONFORM_FAR_H
#define CONFORM_FAR_H

#include "ranks.h"

#include <stdint.h>

#define MIB ((size_t)1 << 20)

/* For ranks to wait for one another. */
extern pthread_barrier_t meeting;

/* What one rank holds. Freed when nobody's stream waits any more, for cuMemFree waits for those. */
struct work {
    size_t room;
    unsigned char *host;
    CUdeviceptr out, in;
    CUstream stream;
};

bool work_open(struct rank *r, struct work *w, size_t room);
/* The same, registered: the handles go with the communicator. */
bool work_open_registered(struct rank *r, struct work *w, size_t room);
void work_close(struct rank *r, struct work *w);

/* A message is a piece of one long noise, which begins where nobody else's does; compared as a whole, since sanitizers make
 * every byte looked at dear. */
const unsigned char *message(int from, int to, unsigned key);
void far_noise(void); /* first of all */
bool same(struct rank *r, const unsigned char *got, const unsigned char *right, size_t n, int from);

/* The stream has come to its end: the communicator's error. */
HOCCL_Result stream_end(struct rank *r, const struct work *w);

bool filled_with(struct rank *r, const unsigned char *got, int value, size_t n);

/* Everyone sends `n` bytes to everyone else, from and to odd places; and every byte is checked, guards too. */
HOCCL_Result all_to_all(struct rank *r, struct work *w, size_t n, unsigned key);
HOCCL_Result all_to_all_again(struct rank *r, struct work *w, size_t n); /* what the last one has put there */
bool check_all(struct rank *r, struct work *w, size_t n, unsigned key);
void exchange(struct rank *r, struct work *w, size_t n, unsigned key);

/* The body on `size` ranks on these nodes (HOCCL_TEST_NODE); bare: without a communicator. Nothing of the transport is left
 * afterwards, and the library's counts kept their rules. */
void far_run(int size, const char *nodes, void (*body)(struct rank *), void *arg, bool bare);

/* A body: exchanges of all these sizes. */
void all_sizes(struct rank *r);
extern const size_t far_sizes[];
extern const size_t far_sizes_count;

/* far_comms.c */
void test_split(void **state);
void test_first_use(void **state);
void test_come_and_go(void **state);
void test_failed_left(void **state);
void test_slots_on_gpus(void **state);
void test_slots_on_all_gpus(void **state);
void test_one_cannot(void **state);
void test_no_endpoint(void **state);
void test_cross_once(void **state);

/* far_registered.c */
void test_registered_ends(void **state);
void test_registered_weather(void **state);
void test_registered_segments(void **state);
void test_registered_allocated(void **state);
void test_registered_reallocated(void **state);
void test_registered_handles(void **state);
void test_registered_taken_back(void **state);
void test_registered_abort(void **state);
void test_registered_breaks(void **state);

#endif
