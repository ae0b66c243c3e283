/* SPDX-License-Identifier: Apache-2.0 */
/* Many of what a process usually has a few: the limits of a group, each of which is an error that leaves everything as it was; what
 * a large group costs at its end; more streams than there are flags for, more ids than there are descriptors. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { COMMS = 9, STREAMS = 32, MESSAGES = 40000 };

struct work {
    HOCCL_Comm comm[COMMS];
    CUstream stream[STREAMS];
};

static bool work_open(struct rank *r, struct work *w)
{
    bool good = true;
    for (int i = 0; i < COMMS && good; i++)
        good = RANK_OK(r, HOCCL_CommSplit(r->comm, 0, 0, &w->comm[i]));
    for (int i = 0; i < STREAMS && good; i++)
        good = RANK_CUDA(r, cuStreamCreate(&w->stream[i], CU_STREAM_NON_BLOCKING));
    return good;
}

static void work_close(struct rank *r, struct work *w)
{
    for (int i = 0; i < STREAMS; i++)
        RANK_CUDA(r, cuStreamDestroy(w->stream[i]));
    for (int i = 0; i < COMMS; i++)
        RANK_OK(r, HOCCL_CommDestroy(w->comm[i]));
}

/* A message of 0 bytes to oneself. */
static bool message(struct rank *r, HOCCL_Comm comm, CUstream stream)
{
    return RANK_OK(r, HOCCL_Send(NULL, 0, HOCCL_BYTE, 0, comm, stream)) && RANK_OK(r, HOCCL_Recv(NULL, 0, HOCCL_BYTE, 0, comm, stream));
}

/* One message in each of so many communicators, on a stream each. */
static void fill_group(struct rank *r, const struct work *w, int comms, int streams)
{
    RANK_OK(r, HOCCL_GroupStart());
    for (int i = 0; i < (comms > streams ? comms : streams); i++)
        message(r, w->comm[i % comms], w->stream[i % streams]);
}

static void limits(struct rank *r)
{
    struct work w;
    if (!work_open(r, &w))
        return;
    for (int round = 0; round < 3; round++) {
        fill_group(r, &w, COMMS, 1);
        RANK_FAILS(r, HOCCL_GroupEnd(), HOCCL_ERR_USAGE, "a group over more than 8 communicators");
        fill_group(r, &w, 1, STREAMS);
        RANK_FAILS(r, HOCCL_GroupEnd(), HOCCL_ERR_USAGE, "a group over more than 31 streams");
        fill_group(r, &w, COMMS - 1, STREAMS - 1);
        RANK_OK(r, HOCCL_GroupEnd());
    }
    for (int i = 0; i < STREAMS - 1; i++)
        RANK_CUDA(r, cuStreamSynchronize(w.stream[i]));
    work_close(r, &w);
}

static void test_limits(void **state)
{
    (void)state;
    ranks_run(1, limits, NULL);
}

/* Of this thread, so that a busy machine does not count. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* All messages of one communicator stand in front of all of the other one's. It is refused in the end, for its streams are one
 * too many, so what is measured is what the calling thread does. */
static void many(struct rank *r)
{
    struct work w;
    if (!work_open(r, &w))
        return;
    double begun = cpu_seconds();
    RANK_OK(r, HOCCL_GroupStart());
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < MESSAGES / 2 && !r->failed; i++)
            message(r, w.comm[k], w.stream[STREAMS / 2 * k + i % (STREAMS / 2)]);
    double calls = cpu_seconds() - begun;
    RANK_FAILS(r, HOCCL_GroupEnd(), HOCCL_ERR_USAGE, "a group over 32 streams");
    double end = cpu_seconds() - begun - calls;
    if (end > calls)
        print_error("%d messages: %.3f s, and the group's end %.3f s\n", MESSAGES, calls, end);
    RANK_TRUE(r, end < calls);
    work_close(r, &w);
}

static void test_many(void **state)
{
    (void)state;
    ranks_run(1, many, NULL);
}

/* Each communicator meets more streams than it remembers, and all of them together more than there are flags; none waits. */
static void streams(struct rank *r)
{
    enum { COMMUNICATORS = 12, MET = 130 };
    HOCCL_Comm comm[COMMUNICATORS];
    for (int i = 0; i < COMMUNICATORS && !r->failed; i++)
        RANK_OK(r, HOCCL_CommSplit(r->comm, 0, 0, &comm[i]));
    for (int i = 0; i < COMMUNICATORS * MET && !r->failed; i++) {
        CUstream stream;
        RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        RANK_OK(r, HOCCL_GroupStart());
        message(r, comm[i / MET], stream);
        RANK_OK(r, HOCCL_GroupEnd());
        RANK_CUDA(r, cuStreamSynchronize(stream));
        RANK_CUDA(r, cuStreamDestroy(stream));
    }
    for (int i = 0; i < COMMUNICATORS && !r->failed; i++)
        RANK_OK(r, HOCCL_CommDestroy(comm[i]));
}

static void test_streams(void **state)
{
    (void)state;
    ranks_run(1, streams, NULL);
}

/* Ids that no rank has come for hold a descriptor each. */
static void test_ids(void **state)
{
    enum { ROOM = 64 };
    struct rlimit old, few;
    HOCCL_UniqueId id;
    HOCCL_Result r = HOCCL_SUCCESS;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = ROOM;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < ROOM && !r; i++)
        r = HOCCL_GetUniqueId(&id);
    setrlimit(RLIMIT_NOFILE, &old);
    assert_int_equal(r, HOCCL_ERR_SYSTEM);
    assert_non_null(strstr(HOCCL_GetLastError(), "ulimit -n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits), cmocka_unit_test(test_many), cmocka_unit_test(test_streams), cmocka_unit_test(test_ids)};
    ranks_environment(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
