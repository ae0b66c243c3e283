/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake of a stream on the emulated GPU, without and with gates: every turn is reached after the one before it has
 * been released and not before, over more turns than 16 bits count, from any first number. */
#include "unit.h"

#include "base/setting.h"
#include "p2p/nudge.h"
#include "stream/handshake.h"

#include <cuda.h>

#define GATES 3
#define TURNS 70000u
#define AHEAD 200u /* turns enqueued at once: gated, each is 3 operations, and a queue takes 1,022 */

static struct hoccl_device device;
static struct hoccl_flag_pool flags;
static struct hoccl_gate gates[GATES]; /* H2D, PUSH, COMPUTE */
static struct hoccl_gate gate;     /* the one in use */

static int set_up(void **state)
{
    (void)state;
    static const enum hoccl_gate_choice kinds[] = {HOCCL_GATE_H2D, HOCCL_GATE_PUSH, HOCCL_GATE_COMPUTE};
    if (hoccl_settings_load() || hoccl_driver_load() || hoccl_device_open(0, &device) || hoccl_flag_pool_open(&flags))
        fail_msg("%s", hoccl_error_text());
    for (int i = 0; i < GATES; i++) {
        hoccl_settings.gate = kinds[i];
        if (hoccl_gate_open(&gates[i], &device, 1, &flags))
            fail_msg("%s", hoccl_error_text());
        assert_int_equal(gates[i].kind, kinds[i]);
    }
    gate = gates[0];
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < GATES; i++)
        hoccl_gate_close(&gates[i], &flags);
    hoccl_flag_pool_close(&flags);
    return 0;
}

static void open_on(struct hoccl_handshake *h, CUstream *s)
{
    unsigned long long id;
    assert_int_equal(cuStreamCreate(s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    assert_int_equal(cuStreamGetId(*s, &id), CUDA_SUCCESS);
    OK(hoccl_handshake_open(h, *s, id, &flags));
}

static void close_on(struct hoccl_handshake *h, CUstream s)
{
    assert_int_equal(cuStreamSynchronize(s), CUDA_SUCCESS);
    hoccl_handshake_close(h, &flags);
    assert_int_equal(cuStreamDestroy(s), CUDA_SUCCESS);
}

static void wait_reached(const struct hoccl_turn *t, uint32_t i)
{
    uint64_t begun = hoccl_now();
    while (!hoccl_turn_reached(t))
        if (hoccl_now() - begun > 30 * HOCCL_S)
            fail_msg("turn %u (%u, %s) is not reached", i, t->sequence, t->gated ? "gated" : "ungated");
}

/* Which turns are gated. */
typedef bool (*choice)(uint32_t i);

static bool never(uint32_t i)
{
    (void)i;
    return false;
}

static bool always(uint32_t i)
{
    (void)i;
    return true;
}

static bool mixed(uint32_t i)
{
    uint32_t x = i * 2654435761u;
    return (x >> 16) % 3 == 0;
}

/* Once in a while: the 16-bit flag is old, by one more than it can tell, by half its range, by all of it. */
static bool seldom(uint32_t i)
{
    return i == 5 || i == 1030 || i == 2055 || i == 34824 || i == 67592 || i == 68615;
}

/* So many turns are released at once from turn i on: one where it matters, else many, since each look costs a wake-up. */
static uint32_t block(uint32_t i, uint32_t posted)
{
    uint32_t n = 1;
    while (i % 5000 > 40 && n < 97 && i + n < posted && !seldom(i + n) && !seldom(i + n - 1))
        n++;
    return n;
}

static void run_turns(uint32_t first, choice gated, uint32_t turns)
{
    struct hoccl_handshake h;
    struct hoccl_turn *turn = calloc(turns + 1, sizeof *turn);
    CUstream s;
    uint32_t posted = 0;
    assert_non_null(turn);
    hoccl_settings.first_sequence = first;
    open_on(&h, &s);
    for (uint32_t i = 0, n; i < turns; i += n) {
        for (; posted < turns && posted - i < AHEAD; posted++) {
            turn[posted] = hoccl_turn_next(&h, gated(posted));
            OK(hoccl_turn_start_and_wait(&turn[posted], &gate));
        }
        wait_reached(&turn[i], i);
        if (i + 1 < posted && hoccl_turn_reached(&turn[i + 1]))
            fail_msg("turn %u (%u, %s) is reached although turn %u holds the stream", i + 1, turn[i + 1].sequence,
                     turn[i + 1].gated ? "gated" : "ungated", i);
        n = block(i, posted);
        hoccl_turn_release(&turn[i + n - 1]);
        for (uint32_t k = i; k < i + n; k++)
            wait_reached(&turn[k], k);
    }
    close_on(&h, s);
    free(turn);
    hoccl_settings.first_sequence = 0;
}

static void test_ungated(void **state)
{
    (void)state;
    run_turns(0, never, TURNS);
    run_turns(0x7fffff00, never, 300);
    run_turns(0xffffff00, never, 300);
}

static void test_gated(void **state)
{
    (void)state;
    run_turns(0, always, TURNS);
    run_turns(0xffffff00, always, 300);
    run_turns(0x7fff, always, 300);
    for (int i = 1; i < GATES; i++) {
        gate = gates[i];
        run_turns(0xffff, always, 1000);
    }
    gate = gates[0];
}

static void test_mixed(void **state)
{
    (void)state;
    run_turns(65000, mixed, 10000);
    run_turns(0, seldom, TURNS);
    run_turns(0xfffffe00, seldom, TURNS);
}

/* The two halves in calls of their own, over several streams: all starts, then all waits. */
static void test_halves(void **state)
{
    struct hoccl_handshake h[4];
    CUstream s[4];
    (void)state;
    for (int i = 0; i < 4; i++)
        open_on(&h[i], &s[i]);
    for (int round = 0; round < 100; round++) {
        struct hoccl_turn t[4];
        bool gated = round % 3 == 0;
        gate = gates[round % GATES];
        for (int i = 0; i < 4; i++) {
            t[i] = hoccl_turn_next(&h[i], gated);
            OK(hoccl_turn_start(&t[i], &gate));
        }
        for (int i = 0; i < 4; i++)
            OK(hoccl_turn_wait(&t[i], &gate));
        for (int i = 0; i < 4; i++)
            wait_reached(&t[i], (uint32_t)round);
        for (int i = 0; i < 4; i++)
            assert_int_equal(cuStreamQuery(s[i]), CUDA_ERROR_NOT_READY);
        for (int i = 0; i < 4; i++)
            hoccl_turn_release(&t[i]);
    }
    for (int i = 0; i < 4; i++)
        close_on(&h[i], s[i]);
}

/* After an abort everything goes on: what waits, and what will be enqueued. Flags that are used again start afresh. */
static void test_release_all(void **state)
{
    (void)state;
    for (int again = 0; again < 5; again++) {
        struct hoccl_handshake h;
        struct hoccl_turn t[50];
        CUstream s;
        open_on(&h, &s);
        for (int i = 0; i < 50; i++) {
            t[i] = hoccl_turn_next(&h, i % 2);
            OK(hoccl_turn_start_and_wait(&t[i], &gate));
        }
        wait_reached(&t[0], 0);
        assert_false(hoccl_turn_reached(&t[1]));
        hoccl_handshake_release_all(&h);
        hoccl_handshake_release_all(&h);
        hoccl_turn_release(&t[0]); /* must not take it back */
        assert_int_equal(cuStreamSynchronize(s), CUDA_SUCCESS);
        struct hoccl_turn late = hoccl_turn_next(&h, false);
        OK(hoccl_turn_start_and_wait(&late, &gate));
        assert_int_equal(cuStreamSynchronize(s), CUDA_SUCCESS);
        close_on(&h, s);
    }
}

/* All lines of the pool, each once, each on a cache line of its own. */
static void test_flag_pool(void **state)
{
    static struct hoccl_flag f[5000];
    int n = 0;
    (void)state;
    while (n < 5000 && !hoccl_flag_take(&flags, &f[n]))
        n++;
    assert_true(n > 1000 && n < 5000);
    FAILS(HOCCL_ERR_MEMORY, HOCCL_ERR_MEMORY, "flags are in use");
    for (int i = 0; i < n; i++) {
        assert_int_equal((uintptr_t)f[i].host % HOCCL_CACHE_LINE, 0);
        assert_int_equal((CUdeviceptr)(uintptr_t)f[i].host - f[i].device, (CUdeviceptr)(uintptr_t)flags.base - flags.device);
        hoccl_poke(f[i].host, (uint32_t)i);
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(hoccl_peek(f[i].host), i);
    for (int i = 0; i < n; i++)
        hoccl_flag_give(&flags, &f[i]);
    hoccl_flag_give(&flags, &f[0]); /* twice is nothing */
    struct hoccl_flag again;
    OK(hoccl_flag_take(&flags, &again));
    hoccl_flag_give(&flags, &again);
}

static uint32_t given_to(struct hoccl_nudge *n, struct hoccl_submitter *s, int times)
{
    uint32_t before = n->given;
    for (int i = 0; i < times; i++) {
        hoccl_nudge_give(n, s);
        hoccl_submitter_step(s);
    }
    return n->given - before;
}

/* Nudges that do not get through (a stream that waits, or a kernel, has their channel) are few, the word of those is used by
 * nobody else, and they go on afterwards. The submitter's thread is the test. */
static void test_nudge(void **state)
{
    static struct hoccl_submitter submitter;
    struct hoccl_flag stop;
    (void)state;
    OK(hoccl_flag_take(&flags, &stop));
    for (int caught_up = 0; caught_up < 2; caught_up++) {
        struct hoccl_nudge n;
        hoccl_publish(stop.host, 0);
        hoccl_settings.first_sequence = 0xfffffffe;
        OK(hoccl_nudge_open(&n, &flags));
        hoccl_settings.first_sequence = 0;
        assert_int_equal(cuStreamWaitValue32(n.stream, stop.device, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
        assert_int_equal(given_to(&n, &submitter, 100), HOCCL_NUDGES);
        if (caught_up) {
            hoccl_publish(stop.host, 1);
            assert_int_equal(cuStreamSynchronize(n.stream), CUDA_SUCCESS);
            assert_int_equal(hoccl_peek(n.seen.host), n.given);
            assert_int_equal(given_to(&n, &submitter, 1), 1);
            assert_int_equal(cuStreamSynchronize(n.stream), CUDA_SUCCESS);
        }
        int free_lines = flags.free;
        hoccl_nudge_close(&n, &flags);
        assert_int_equal(flags.free, free_lines + caught_up);
        hoccl_publish(stop.host, 1);
    }
    assert_int_equal(cuCtxSynchronize(), CUDA_SUCCESS);
    hoccl_flag_give(&flags, &stop);
}

/* One that is foreseen goes a lead before the end, once, and in front of no copy that waits for the submitter. */
static void test_foresee(void **state)
{
    static struct hoccl_submitter submitter;
    uint64_t end = 1000 * HOCCL_S, due = end - HOCCL_NUDGE_LEAD;
    struct hoccl_nudge n;
    (void)state;
    OK(hoccl_nudge_open(&n, &flags));
    uint32_t before = n.given;
    hoccl_nudge_foresee(&n, end + HOCCL_S);
    hoccl_nudge_foresee(&n, end);
    hoccl_nudge_step(&n, &submitter, due - 1);
    assert_int_equal(n.given, before);
    hoccl_nudge_step(&n, &submitter, due);
    hoccl_nudge_step(&n, &submitter, due + 1);
    assert_int_equal(n.given, before + 1);
    hoccl_nudge_foresee(&n, end); /* the job of the first is still there */
    hoccl_nudge_step(&n, &submitter, end);
    assert_int_equal(n.given, before + 1);
    assert_true(hoccl_submitter_step(&submitter));
    hoccl_nudge_foresee(&n, end);
    hoccl_nudge_give(&n, &submitter); /* the end came first */
    assert_true(hoccl_submitter_step(&submitter));
    hoccl_nudge_step(&n, &submitter, end + HOCCL_S);
    assert_int_equal(n.given, before + 2);
    assert_int_equal(cuStreamSynchronize(n.stream), CUDA_SUCCESS);
    hoccl_nudge_close(&n, &flags);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flag_pool), cmocka_unit_test(test_ungated), cmocka_unit_test(test_gated),
        cmocka_unit_test(test_mixed),     cmocka_unit_test(test_halves),  cmocka_unit_test(test_release_all),
        cmocka_unit_test(test_nudge),     cmocka_unit_test(test_foresee),
    };
    setenv("HOCCL_DEVICE", "emu", 1);
    alarm(280);
    return cmocka_run_group_tests_name("handshake", tests, set_up, tear_down);
}
