/* SPDX-License-Identifier: Apache-2.0 */
/* The count of parked streams: the limit, waiting for room, the quiet moment. */
#include "unit.h"

#include "stream/parking.h"

#include <pthread.h>

static void test_limit(void **state)
{
    int parked = 0;
    (void)state;
    OK(hoccl_parking_enter(1, HOCCL_S, NULL, NULL, &parked));
    assert_int_equal(parked, 1);
    OK(hoccl_parking_enter(0, HOCCL_S, NULL, NULL, &parked));
    assert_int_equal(parked, 1);
    OK(hoccl_parking_enter(HOCCL_PARKED_MAX - 1, HOCCL_S, NULL, NULL, &parked));
    assert_int_equal(parked, HOCCL_PARKED_MAX);
    parked = -1;
    uint64_t begun = hoccl_now();
    FAILS(hoccl_parking_enter(1, 2 * HOCCL_S, NULL, NULL, &parked), HOCCL_ERR_USAGE, "HOCCL_TIMEOUT");
    assert_true(hoccl_now() - begun >= HOCCL_S && hoccl_now() - begun < 10 * HOCCL_S);
    assert_int_equal(parked, -1);
    FAILS(hoccl_parking_enter(HOCCL_PARKED_MAX + 1, HOCCL_S, NULL, NULL, &parked), HOCCL_ERR_USAGE, "a group over 32 streams");
    hoccl_parking_leave(1);
    OK(hoccl_parking_enter(1, HOCCL_S, NULL, NULL, &parked)); /* what was refused has not been counted */
    hoccl_parking_leave(HOCCL_PARKED_MAX);
}

static uint32_t entered;

static void *enter_one(void *arg)
{
    int parked;
    (void)arg;
    if (hoccl_parking_enter(1, 30 * HOCCL_S, NULL, NULL, &parked) == HOCCL_SUCCESS)
        hoccl_fetch_add(&entered, 1u);
    return NULL;
}

static void test_waits_for_room(void **state)
{
    pthread_t t[4];
    int parked;
    (void)state;
    OK(hoccl_parking_enter(HOCCL_PARKED_MAX, HOCCL_S, NULL, NULL, &parked));
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, enter_one, NULL);
    usleep(100000);
    assert_int_equal(hoccl_observe(&entered), 0);
    hoccl_parking_leave(2);
    for (int i = 0; i < 500 && hoccl_observe(&entered) < 2; i++)
        usleep(10000);
    usleep(50000);
    assert_int_equal(hoccl_observe(&entered), 2);
    hoccl_parking_leave(HOCCL_PARKED_MAX - 2);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(entered, 4);
    hoccl_parking_leave(4);
}

static uint32_t reason;

static HOCCL_Result told(void *arg)
{
    return hoccl_observe((uint32_t *)arg) ? hoccl_fail(HOCCL_ERR_PEER, "no more") : HOCCL_SUCCESS;
}

static void *tell(void *arg)
{
    usleep(100000);
    hoccl_publish(&reason, 1);
    hoccl_parking_stir();
    return arg;
}

static void test_given_up(void **state)
{
    pthread_t t;
    int parked = -1;
    uint64_t begun = hoccl_now();
    (void)state;
    OK(hoccl_parking_enter(HOCCL_PARKED_MAX, HOCCL_S, told, &reason, &parked));
    parked = -1;
    pthread_create(&t, NULL, tell, NULL);
    FAILS(hoccl_parking_enter(1, 30 * HOCCL_S, told, &reason, &parked), HOCCL_ERR_PEER, "no more");
    assert_true(hoccl_now() - begun < 10 * HOCCL_S);
    assert_int_equal(parked, -1);
    pthread_join(t, NULL);
    hoccl_parking_leave(HOCCL_PARKED_MAX);
}

static int called;

static void call(void *arg)
{
    called += *(int *)arg;
}

static void test_quiet(void **state)
{
    int parked, by = 3;
    (void)state;
    assert_true(hoccl_parking_quiet(call, &by));
    assert_int_equal(called, 3);
    OK(hoccl_parking_enter(1, HOCCL_S, NULL, NULL, &parked));
    assert_int_equal(parked, 1);
    assert_false(hoccl_parking_quiet(call, &by));
    assert_int_equal(called, 3);
    hoccl_parking_leave(1);
    assert_true(hoccl_parking_quiet(call, &by));
    assert_int_equal(called, 6);
}

/* While the quiet moment is used, nobody parks. */
static uint32_t inside, broken, stop;

static void look(void *arg)
{
    (void)arg;
    if (hoccl_observe(&inside))
        hoccl_publish(&broken, 1);
}

static void *come_and_go(void *arg)
{
    int parked;
    (void)arg;
    while (!hoccl_observe(&stop)) {
        if (hoccl_parking_enter(1, 30 * HOCCL_S, NULL, NULL, &parked))
            hoccl_publish(&broken, 2);
        hoccl_fetch_add(&inside, 1u);
        hoccl_fetch_add(&inside, -1u);
        hoccl_parking_leave(1);
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t t[3];
    (void)state;
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, come_and_go, NULL);
    for (int i = 0; i < 2000; i++)
        hoccl_parking_quiet(look, NULL);
    hoccl_publish(&stop, 1);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(broken, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_waits_for_room),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_quiet),
        cmocka_unit_test(test_threads),
    };
    alarm(120);
    return cmocka_run_group_tests_name("parking", tests, NULL, NULL);
}
