/* SPDX-License-Identifier: Apache-2.0 */
/* The model of the pipeline across nodes (p2p/pipe.h), by cases that can be reckoned by hand, and the pools of slots. */
#include "unit.h"

#include "p2p/pipe.h"
#include "p2p/pool.h"
#include "p2p/words.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static const struct hoccl_transport_cost sockets = {2000, 333, 30, 15000}, nic = {200, 20, 20, 3000};

/* One chunk: the three stages and their delays after one another. */
static void test_one_chunk(void **state)
{
    struct hoccl_pipe p = {.engine = {100, 1000, 10}, .wire = {200, 2000, 20}, .far = {300, 3000, 30}, .grant = 7};
    (void)state;
    assert_int_equal(hoccl_pipe_time(&p, 1000, 1000, 1), 100 + 1000 + 10 + 200 + 2000 + 20 + 300 + 3000 + 30);
}

/* Depth 1: every chunk waits for the grant of the one before. Depth enough: the slowest stage sets the pace. */
static void test_depth(void **state)
{
    struct hoccl_pipe p = {.engine = {0, 1000, 0}, .wire = {0, 4000, 0}, .far = {0, 1000, 0}, .grant = 1000};
    (void)state;
    assert_int_equal(hoccl_pipe_time(&p, 10000, 1000, 1), 10 * 6000 + 9 * 1000);
    assert_int_equal(hoccl_pipe_time(&p, 10000, 1000, 3), 1000 + 10 * 4000 + 1000);
    assert_int_equal(hoccl_pipe_time(&p, 10000, 1000, 64), 1000 + 10 * 4000 + 1000);
    assert_true(hoccl_pipe_time(&p, 10000, 1000, 1) > hoccl_pipe_time(&p, 10000, 1000, 2));
}

static void test_choice(void **state)
{
    struct hoccl_pipe p = hoccl_pipe_make(false, &sockets, 2);
    (void)state;
    for (uint64_t n = 1; n < 200 * MIB; n = n * 3 / 2 + 1) {
        uint64_t chunk = hoccl_pipe_chunk(&p, n, HOCCL_POOL_SLOT, 4), best = hoccl_pipe_time(&p, n, chunk, 4);
        assert_true(chunk >= 64 * KIB && chunk <= HOCCL_POOL_SLOT && chunk % (4 * KIB) == 0);
        for (uint64_t c = 64 * KIB; c <= HOCCL_POOL_SLOT && n <= 32 * MIB; c *= 2)
            assert_true(best <= hoccl_pipe_time(&p, n, c, 4));
    }
    assert_int_equal(hoccl_pipe_chunk(&p, 1, HOCCL_POOL_SLOT, 4), 64 * KIB);
    assert_int_equal(hoccl_pipe_chunk(&p, 1024 * MIB, HOCCL_POOL_SLOT, 4), HOCCL_POOL_SLOT);
    assert_true(hoccl_pipe_chunk(&p, MIB, HOCCL_POOL_SLOT, 4) < HOCCL_POOL_SLOT); /* else the stages would not overlap */
}

/* All lanes have the same number of chunks, for messages that no power of two divides among them: 24 of 171 pages over 12 lanes, where
 * 16 of 1 MiB or 32 of 512 KiB would leave lanes idle. */
static void test_level(void **state)
{
    static const int lanes[] = {1, 2, 3, 5, 7, 12, 16};
    (void)state;
    for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++)
        for (uint64_t n = 64 * MIB; n < 8192 * MIB; n = n * 5 / 4 + 12345) {
            struct hoccl_pipe p = hoccl_pipe_make(false, &sockets, lanes[i]);
            uint64_t m = (uint64_t)lanes[i], chunk = hoccl_pipe_chunk(&p, n, HOCCL_POOL_SLOT, 30);
            uint64_t rounds = (n + m * HOCCL_POOL_SLOT - 1) / (m * HOCCL_POOL_SLOT), chunks = (n + chunk - 1) / chunk;
            assert_true(chunks <= m * rounds && chunk * m * rounds < n + m * rounds * 4 * KIB);
        }
    struct hoccl_pipe p = hoccl_pipe_make(false, &(struct hoccl_transport_cost){90000, 440, 50, 150000}, 12);
    uint64_t level = hoccl_pipe_chunk(&p, 16 * MIB, HOCCL_POOL_SLOT, 32);
    assert_int_equal(level, 171 * 4 * KIB);
    for (uint64_t c = 64 * KIB; c <= HOCCL_POOL_SLOT; c *= 2)
        assert_true(hoccl_pipe_time(&p, 16 * MIB, level, 32) < hoccl_pipe_time(&p, 16 * MIB, c, 32));
}

/* With the depth that is used, large messages come within 5 % of what the slowest stage lets through, over one socket, many,
 * and a NIC, from any place. */
static void test_rate(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= 8; lanes *= 2)
        for (int which = 0; which < 4; which++) {
            struct hoccl_pipe p = hoccl_pipe_make(which & 1, which & 2 ? &nic : &sockets, lanes);
            unsigned depth = hoccl_pipe_depth(&p, HOCCL_POOL_SLOT);
            uint64_t n = 64 * MIB, chunk = hoccl_pipe_chunk(&p, n, HOCCL_POOL_SLOT, depth), chunks = n / chunk;
            uint64_t engine = chunks * p.engine.start + n * p.engine.each / 1000, link = n * p.link / 1000;
            uint64_t wire = (chunks * p.wire.start + n * p.wire.each / 1000) / (unsigned)lanes, least = engine;
            least = wire > least ? wire : least;
            least = link > least ? link : least;
            uint64_t t = hoccl_pipe_time(&p, n, chunk, depth);
            assert_true(depth >= (unsigned)lanes + 2 && depth <= HOCCL_GRANT_MOST);
            assert_true(t >= least);
            assert_true(t * 95 <= (least + wire * (unsigned)lanes / chunks) * 100); /* the last chunk has a lane to itself */
        }
}

/* By hand: engine and far engine 1 µs, the wire 4 on one lane, 2 on two of them; a round of 1 + 1 + 4 + 1 and delays of 3. */
static void test_chosen_depth(void **state)
{
    struct hoccl_pipe p = {.engine = {0, 1000, 1}, .wire = {0, 4000, 1}, .far = {0, 1000, 1}, .grant = 1000, .lanes = 1};
    (void)state;
    assert_int_equal(hoccl_pipe_depth(&p, 1000), 2 * 2); /* 7,003 / 4,000 */
    p.lanes = 2;
    assert_int_equal(hoccl_pipe_depth(&p, 1000), 2 * 4); /* 7,003 / 2,000 */
    p.lanes = 16;
    assert_int_equal(hoccl_pipe_depth(&p, 1000), 18); /* a chunk in each lane */
    p.link = 3500;
    p.lanes = 4;
    assert_int_equal(hoccl_pipe_depth(&p, 1000), 2 * 3); /* the link holds all lanes back: 7,003 / 3,500 */
}

/* Each slot is given out once, at its own place; a free one has no owner. */
static void test_pool(void **state)
{
    static struct hoccl_pool pool;
    static char area[1];
    bool seen[HOCCL_POOL_SLOTS] = {false};
    (void)state;
    pool = (struct hoccl_pool){.host = area, .count = HOCCL_POOL_SLOTS};
    hoccl_list_init(&pool.free);
    for (unsigned i = 0; i < pool.count; i++) {
        pool.slot[i].number = (uint16_t)i;
        hoccl_list_init(&pool.slot[i].link);
        hoccl_pool_give(&pool, &pool.slot[i]);
    }
    struct hoccl_pool_slot *s, *last = NULL;
    while ((s = hoccl_pool_take(&pool))) {
        assert_false(seen[s->number]);
        seen[s->number] = true;
        assert_int_equal(hoccl_pool_address(&pool, s), (CUdeviceptr)(uintptr_t)area + s->number * HOCCL_POOL_SLOT);
        last = s;
    }
    assert_int_equal(pool.idle, 0);
    last->flow = (void *)area;
    hoccl_pool_give(&pool, last);
    assert_int_equal(pool.idle, 1);
    assert_null(last->flow);
    assert_ptr_equal(hoccl_pool_take(&pool), last); /* the one used last comes first */
}

static void test_words(void **state)
{
    (void)state;
    assert_int_equal(hoccl_slot_word(63, 65535) & 0xffff, 63);
    assert_int_equal(hoccl_slot_word(63, 65535) >> 16, 65535);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_chunk), cmocka_unit_test(test_depth), cmocka_unit_test(test_choice), cmocka_unit_test(test_level),
        cmocka_unit_test(test_rate), cmocka_unit_test(test_chosen_depth),      cmocka_unit_test(test_pool),  cmocka_unit_test(test_words),
    };
    alarm(60);
    return cmocka_run_group_tests_name("pipeline model and slots", tests, NULL, NULL);
}
