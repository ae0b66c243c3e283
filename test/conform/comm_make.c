/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators made from a unique id, by threads: of several sizes, again and again, several at once, in groups. Nothing
 * may remain of those that have been destroyed: descriptors, threads, memory.
 */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void body_exchange(struct rank *r)
{
    int size, rank, device;

    RANK_OK(r, HOCCL_CommSize(r->comm, &size));
    RANK_OK(r, HOCCL_CommRank(r->comm, &rank));
    RANK_OK(r, HOCCL_CommDevice(r->comm, &device));
    RANK_TRUE(r, size == r->size && rank == r->rank && device == r->rank);
    rank_exchange(r, r->comm, 100000, 1);
}

static void test_sizes(void **state)
{
    (void)state;
    ranks_run(1, body_exchange, NULL);
    ranks_run(2, body_exchange, NULL);
    ranks_run(4, body_exchange, NULL);
    ranks_run(8, body_exchange, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
    };

    ranks_environment(8);
    return cmocka_run_group_tests_name("communicators by unique id", tests, NULL, NULL);
}
