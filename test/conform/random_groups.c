/* SPDX-License-Identifier: Apache-2.0 */
/* Random groups (groups.h) with the ranks as threads of one process, so that the sanitizers see both ends of everything.
 *
 * usage: random_groups [GROUPS [SEED]]    LONG_TESTS set: ten times as many groups */
#include "groups.h"
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static int groups = 120;
static uint64_t seed = 1;
static pthread_barrier_t barrier;

static void meet(void)
{
    pthread_barrier_wait(&barrier);
}

/* Ranks of one process share the streams that may wait at once, and each may use a stream in both communicators. */
static int streams_of(int size)
{
    int n = 31 / (2 * size);
    return n < 6 ? n : 6;
}

static void body(struct rank *r)
{
    struct groups_job job = {.comm = {r->comm}, .rank = r->rank, .size = r->size, .device = r->rank, .seed = seed,
                             .groups = groups, .streams = streams_of(r->size), .most = 3 << 20, .quiet = meet};
    if (!RANK_OK(r, HOCCL_CommSplit(r->comm, 0, r->rank, &job.comm[1])))
        return;
    groups_run(&job);
    RANK_OK(r, HOCCL_CommDestroy(job.comm[1]));
}

static void run(int size)
{
    pthread_barrier_init(&barrier, NULL, (unsigned)size);
    seed++;
    ranks_run(size, body, NULL);
    pthread_barrier_destroy(&barrier);
}

static void test_two(void **state)
{
    (void)state;
    run(2);
}

static void test_three(void **state)
{
    (void)state;
    run(3);
}

static void test_four(void **state)
{
    (void)state;
    run(4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two), cmocka_unit_test(test_three), cmocka_unit_test(test_four)};
    if (getenv("LONG_TESTS"))
        groups *= 10;
    if (argc > 1)
        groups = atoi(argv[1]);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    print_message("%d groups each, seeds from %llu\n", groups, (unsigned long long)seed + 1);
    ranks_environment(4);
    int failed = cmocka_run_group_tests_name("random groups, ranks as threads", tests, NULL, NULL);
    print_message("%lu messages were right, %lu of them between nodes\n", groups_messages, groups_far_messages);
    return failed;
}
