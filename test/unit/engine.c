/* SPDX-License-Identifier: Apache-2.0 */
/* The order of an engine's chunks, and the pool of staging slots. The submitter is the test: it takes the jobs out of the
 * ring and says which have landed. */
#include "unit.h"

#include "base/setting.h"
#include "p2p/engine.h"
#include "p2p/stage.h"

#define MIB ((uint64_t)1 << 20)

struct bench {
    struct hoccl_engine engine;
    struct hoccl_submitter submitter;
    uint32_t word;
    struct hoccl_job job[4096]; /* all jobs so far */
    uint32_t jobs;
};

/* Time passes by a microsecond a look, however busy the machine is: the engine's pace goes by the rate it sees. */
static uint64_t tick(void)
{
    static uint64_t now = 1000 * HOCCL_S;
    return now += HOCCL_US;
}

static struct bench *bench_open(uint32_t first)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    hoccl_list_init(&b->engine.queue);
    b->engine.submitter = &b->submitter;
    b->engine.direction = HOCCL_PUSH;
    b->engine.given = b->engine.landed = b->word = first;
    b->engine.done.host = &b->word;
    OK(hoccl_settings_load());
    hoccl_pace_init(&b->engine.pace, hoccl_settings.chunk, (unsigned)hoccl_settings.share);
    return b;
}

/* One step; then what has been handed over since. */
static uint32_t step(struct bench *b)
{
    uint32_t before = b->jobs;
    hoccl_engine_step(&b->engine);
    while (b->submitter.head != b->submitter.tail) {
        assert_true(b->jobs < sizeof b->job / sizeof *b->job);
        b->job[b->jobs++] = b->submitter.jobs[b->submitter.head % HOCCL_JOBS];
        b->submitter.head++;
    }
    return b->jobs - before;
}

/* The oldest n jobs that have not landed have. */
static void land(struct bench *b, uint32_t n)
{
    b->word += n;
}

static struct hoccl_transfer transfer(uint64_t at, uint64_t bytes)
{
    return (struct hoccl_transfer){.to = (1ull << 40) + at, .from = (2ull << 40) + at, .bytes = bytes};
}

/* One transfer alone: large chunks, two ahead, in order, without gap. */
static void test_alone(void **state)
{
    (void)state;
    setenv("HOCCL_CHUNK", "128M", 1);
    struct bench *b = bench_open(0);
    struct hoccl_transfer t = transfer(0, 300 * MIB + 5);
    uint64_t at = 0;
    hoccl_engine_add(&b->engine, &t);
    assert_int_equal(step(b), 2);
    assert_int_equal(step(b), 0);
    land(b, 1);
    assert_int_equal(step(b), 1);
    assert_false(hoccl_transfer_complete(&t));
    land(b, 2);
    assert_int_equal(step(b), 0);
    assert_true(hoccl_transfer_complete(&t));
    assert_true(hoccl_engine_empty(&b->engine));
    assert_int_equal(b->jobs, 3);
    for (uint32_t i = 0; i < b->jobs; i++) {
        assert_int_equal(b->job[i].to, (1ull << 40) + at);
        assert_int_equal(b->job[i].from, (2ull << 40) + at);
        assert_int_equal(b->job[i].bytes, i < 2 ? 128 * MIB : 44 * MIB + 5);
        assert_int_equal(b->job[i].value, i + 1);
        at += b->job[i].bytes;
    }
    assert_int_equal(b->engine.bytes, 300 * MIB + 5);
    free(b);
}

/* With the rate known, the next large chunk is given when the present one ends in 100 µs or less, as far as one knows. */
static void test_not_too_early(void **state)
{
    (void)state;
    setenv("HOCCL_CHUNK", "128M", 1);
    struct bench *b = bench_open(0);
    struct hoccl_transfer t = transfer(0, 1024 * MIB);
    b->engine.pace.ns_a_mib = 1000000; /* slow: 128 MiB take 128 ms */
    hoccl_engine_add(&b->engine, &t);
    assert_int_equal(step(b), 1);
    assert_int_equal(step(b), 0);
    b->engine.moved_at = hoccl_now() - 128 * HOCCL_MS;
    assert_int_equal(step(b), 1);
    assert_int_equal(step(b), 0);
    free(b);
}

/* Which of the transfers a job belongs to: they stand 8 GiB apart. */
static int who(const struct bench *b, uint32_t job)
{
    return (int)((b->job[job].to - (1ull << 40)) >> 33);
}

/* Until all is given and has landed, one chunk after the other. */
static void run_all(struct bench *b)
{
    while (step(b) || !hoccl_engine_empty(&b->engine)) {
        if (b->word != b->engine.given)
            land(b, 1);
        assert_true(b->engine.given - b->engine.landed <= HOCCL_WINDOW);
    }
}

/* Several parties take turns with chunks of 4 MiB, whose chunk is due first first, and nobody waits for a long one. */
static void test_turns(void **state)
{
    (void)state;
    setenv("HOCCL_CHUNK", "128M", 1);
    struct bench *b = bench_open(0);
    struct hoccl_transfer t[3] = {transfer(0, 100 * MIB), transfer(1ull << 33, 9 * MIB), transfer(2ull << 33, 1000)};
    static const int turns[] = {2, 0, 1, 0, 1, 1};
    uint64_t given[3] = {0};
    for (int i = 0; i < 3; i++)
        hoccl_engine_add(&b->engine, &t[i]);
    run_all(b);
    for (uint32_t i = 0; i < b->jobs; i++) {
        int w = who(b, i);
        assert_int_equal(b->job[i].to - (1ull << 40) - ((uint64_t)w << 33), given[w]);
        given[w] += b->job[i].bytes;
        if (i < 6)
            assert_int_equal(w, turns[i]);
        if (i >= 1 && i < 5)
            assert_int_equal(b->job[i].bytes, 4 * MIB);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(given[i], t[i].bytes);
    free(b);
}

/* A small message posted with a huge one: at most two chunks of 4 MiB are in front of any chunk of it, and it has ended
 * after twice its bytes and those. */
static void test_small_beside_huge(void **state)
{
    static const uint64_t small[] = {1, 16, 64};
    (void)state;
    setenv("HOCCL_CHUNK", "128M", 1);
    for (int k = 0; k < 3; k++) {
        struct bench *b = bench_open(0);
        struct hoccl_transfer huge = transfer(0, 1024 * MIB), little = transfer(1ull << 33, small[k] * MIB);
        uint64_t before = 0;
        hoccl_engine_add(&b->engine, &huge);
        hoccl_engine_add(&b->engine, &little);
        run_all(b);
        for (uint32_t i = 0, ends = 0; !ends; i++) {
            before += b->job[i].bytes;
            ends = who(b, i) == 1 && b->job[i].to + b->job[i].bytes == little.to + little.bytes;
        }
        assert_true(before <= 2 * small[k] * MIB + 8 * MIB);
        free(b);
    }
}

/* Once a message had to wait for a huge one, a huge one alone has no more in front of the next that comes than the engine
 * moves in 100 µs: 32 MiB at 3 µs a MiB. Without company for a second, it has large chunks again. */
static void test_company(void **state)
{
    (void)state;
    setenv("HOCCL_CHUNK", "128M", 1);
    struct bench *b = bench_open(0);
    struct hoccl_transfer huge = transfer(0, 4096 * MIB), little = transfer(1ull << 33, MIB), again = transfer(2ull << 33, MIB);
    hoccl_engine_add(&b->engine, &huge);
    step(b);
    assert_true(b->engine.flight_bytes >= 128 * MIB);
    hoccl_engine_add(&b->engine, &little);
    uint32_t jobs = b->jobs, most = 0;
    for (int i = 0; i < 40; i++) {
        land(b, 1);
        step(b);
        most = b->engine.flight_bytes > most && i > 2 ? (uint32_t)b->engine.flight_bytes : most;
    }
    assert_true(hoccl_transfer_complete(&little));
    assert_int_equal(who(b, jobs), 1);
    assert_int_equal(most, 32 * MIB);
    hoccl_engine_add(&b->engine, &again);
    jobs = b->jobs;
    land(b, 1);
    step(b);
    assert_int_equal(who(b, jobs), 2);
    b->engine.pace.company_at -= 2 * HOCCL_S;
    for (int i = 0; i < 6; i++) {
        land(b, 1);
        step(b);
    }
    assert_int_equal(b->job[b->jobs - 1].bytes, 128 * MIB);
    free(b);
}

/* Posted together with a huge message in company, a small one that comes some microseconds later waits for its first chunk only: the
 * second is submitted when the first should land soon. And company lasts as long as small messages meet others. */
static void test_posted_together(void **state)
{
    (void)state;
    setenv("HOCCL_CHUNK", "128M", 1);
    struct bench *b = bench_open(0);
    struct hoccl_transfer huge = transfer(0, 1024 * MIB), little = transfer(1ull << 33, MIB);
    b->engine.pace.ns_a_mib = 3 * HOCCL_US;
    b->engine.pace.alone = 20 * HOCCL_US;
    uint64_t before = b->engine.pace.company_at = hoccl_now(), company;
    hoccl_engine_add(&b->engine, &huge);
    assert_int_equal(step(b), 1);
    assert_int_equal(step(b), 0);
    hoccl_engine_add(&b->engine, &little);
    assert_in_range(step(b), 1, 4);
    assert_int_equal(who(b, 1), 1);
    assert_int_equal(b->job[0].bytes, MIB);
    company = b->engine.pace.company_at;
    assert_true(company > before);
    struct hoccl_transfer other = transfer(2ull << 33, 1024 * MIB); /* large ones that meet are no company */
    hoccl_engine_add(&b->engine, &other);
    assert_int_equal(b->engine.pace.company_at, company);
    free(b);

    b = bench_open(0);
    huge = transfer(0, 1024 * MIB);
    b->engine.pace.ns_a_mib = 3 * HOCCL_US;
    b->engine.pace.alone = 20 * HOCCL_US;
    b->engine.pace.company_at = hoccl_now();
    hoccl_engine_add(&b->engine, &huge);
    assert_int_equal(step(b), 1);
    while (!step(b))
        assert_in_range(hoccl_now() - b->engine.moved_at, 0, 17 * HOCCL_US);
    assert_true(hoccl_now() - b->engine.moved_at >= 17 * HOCCL_US);
    assert_int_equal(b->engine.landed, 0);
    free(b);
}

/* On an engine of 50 GB/s (21 µs a MiB), 100 µs are less. */
static void test_slow_engine(void **state)
{
    struct hoccl_pace p;
    struct hoccl_load alone = {.chunks = 2, .bytes = MIB, .now = HOCCL_S}, several = alone;
    (void)state;
    several.several = true;
    hoccl_pace_init(&p, 128 * MIB, 100);
    hoccl_pace_landed(&p, 4 * MIB, 84 * HOCCL_US, 1, false);
    assert_int_equal(hoccl_pace_chunk(&p, &alone), 128 * MIB);
    assert_int_equal(hoccl_pace_chunk(&p, &several), MIB);
    hoccl_pace_newcomer(&p, MIB, 128 * MIB, HOCCL_S);
    for (int i = 0; i < 10; i++)
        hoccl_pace_given(&p, &alone);
    assert_int_equal(hoccl_pace_chunk(&p, &alone), 2 * MIB);
    assert_true(hoccl_pace_room(&p, &several, MIB));
    assert_false(hoccl_pace_room(&p, &several, 2 * MIB));
    hoccl_pace_landed(&p, 3 * MIB, 1, 1, false); /* too few bytes to go by */
    assert_int_equal(hoccl_pace_chunk(&p, &several), MIB);
}

/* A party's stages one after another, in large chunks; the flows of a stage end within a chunk of each other. */
static void test_stages(void **state)
{
    static const uint64_t bytes[] = {100, 7, 1000, 200};
    static const uint32_t order[] = {1, 1, 1, 0};
    int party, ends[4] = {0};
    (void)state;
    setenv("HOCCL_CHUNK", "16M", 1);
    struct bench *b = bench_open(0);
    struct hoccl_transfer t[4];
    for (int i = 0; i < 4; i++) {
        t[i] = transfer((uint64_t)i << 33, bytes[i] * MIB);
        t[i].party = &party;
        t[i].order = order[i];
        if (i == 3) /* the lowest stage comes first where it is there in time */
            hoccl_engine_add(&b->engine, &t[3]);
    }
    for (int i = 0; i < 3; i++)
        hoccl_engine_add(&b->engine, &t[i]);
    run_all(b);
    for (int i = 0; i < (int)b->jobs; i++) {
        assert_true(b->job[i].bytes <= 16 * MIB);
        ends[who(b, (uint32_t)i)] = i;
    }
    assert_int_equal(ends[3], 12);
    for (int i = 0; i < 3; i++)
        assert_true(ends[i] >= (int)b->jobs - 3);
    free(b);
}

/* A stage that comes late goes before a higher one that has begun, and one is cancelled while it leads: nobody is lost or served
 * twice. */
static void test_party_comes_and_goes(void **state)
{
    int party;
    (void)state;
    setenv("HOCCL_CHUNK", "1M", 1);
    struct bench *b = bench_open(0);
    struct hoccl_transfer t[3];
    for (int i = 0; i < 3; i++) {
        t[i] = transfer((uint64_t)i << 33, 40 * MIB);
        t[i].party = &party;
        t[i].order = (uint32_t)(2 - i);
    }
    hoccl_engine_add(&b->engine, &t[0]);
    step(b);
    hoccl_engine_add(&b->engine, &t[2]);
    hoccl_engine_add(&b->engine, &t[1]);
    assert_ptr_equal(b->engine.queue.next, &t[2].link);
    assert_ptr_equal(t[2].behind.next, &t[1].link);
    assert_ptr_equal(t[1].link.next, &t[0].link);
    land(b, 1);
    assert_int_equal(step(b), 1);
    assert_int_equal(who(b, b->jobs - 1), 2);
    hoccl_engine_cancel(&b->engine, &t[2]);
    uint32_t jobs = b->jobs;
    run_all(b);
    assert_true(t[2].landed < t[2].bytes && !t[2].flight);
    assert_true(hoccl_transfer_complete(&t[1]) && hoccl_transfer_complete(&t[0]));
    for (uint32_t i = jobs; i < b->jobs; i++)
        assert_int_equal(who(b, i), i - jobs < 40 ? 1 : 0);
    free(b);
}

/* HOCCL_SHARE: one chunk at a time, and a rest as long as the chunk took, at 50. */
static void test_share(void **state)
{
    struct hoccl_pace p;
    struct hoccl_load l = {.now = 1000};
    (void)state;
    hoccl_pace_init(&p, 128 * MIB, 50);
    assert_int_equal(hoccl_pace_chunk(&p, &l), 16 * MIB);
    assert_true(hoccl_pace_room(&p, &l, MIB));
    l.chunks = 1;
    assert_false(hoccl_pace_room(&p, &l, MIB));
    l.chunks = 0;
    hoccl_pace_landed(&p, 16 * MIB, 1600, 1000, false);
    assert_false(hoccl_pace_room(&p, &l, MIB));
    l.now = 2599;
    assert_false(hoccl_pace_room(&p, &l, MIB));
    l.now = 2600;
    assert_true(hoccl_pace_room(&p, &l, MIB));
}

/* Small ones: up to 16 at once; the numbers wrap. */
static void test_window_and_wrap(void **state)
{
    static struct hoccl_transfer t[200];
    (void)state;
    setenv("HOCCL_CHUNK", "128M", 1);
    struct bench *b = bench_open(0xfffffff0u);
    for (int i = 0; i < 200; i++) {
        t[i] = transfer((uint64_t)i << 20, 1 + (uint64_t)i);
        hoccl_engine_add(&b->engine, &t[i]);
    }
    assert_int_equal(step(b), HOCCL_WINDOW);
    assert_int_equal(step(b), 0);
    while (b->jobs < 200) {
        uint32_t n = 1 + b->jobs % 7;
        land(b, n);
        step(b);
    }
    land(b, b->engine.given - b->word);
    step(b);
    for (uint32_t i = 0; i < 200; i++) {
        assert_true(hoccl_transfer_complete(&t[i]));
        assert_int_equal(b->job[i].bytes, 1 + i);
        assert_int_equal(b->job[i].value, 0xfffffff1u + i);
    }
    assert_int_equal(b->engine.flight_bytes, 0);
    free(b);
}

/* What the driver refused is the transfer's result; a cancelled one gets no more chunks, and what is away still lands. */
static void test_refusal_and_cancel(void **state)
{
    (void)state;
    setenv("HOCCL_CHUNK", "1M", 1);
    struct bench *b = bench_open(7);
    struct hoccl_transfer t = transfer(0, 100 * MIB), other = transfer(1ull << 33, 2 * MIB);
    hoccl_engine_add(&b->engine, &t);
    step(b);
    uint32_t away = b->jobs;
    *b->job[1].result = CUDA_ERROR_INVALID_VALUE;
    land(b, 1);
    step(b);
    assert_int_equal(t.result, CUDA_SUCCESS);
    land(b, 1);
    step(b);
    assert_int_equal(t.result, CUDA_ERROR_INVALID_VALUE);
    assert_true(away >= 2);
    hoccl_engine_cancel(&b->engine, &t);
    hoccl_engine_add(&b->engine, &other);
    uint32_t before = b->jobs;
    while (!hoccl_engine_empty(&b->engine) || !hoccl_transfer_complete(&other)) {
        land(b, b->engine.given - b->word);
        step(b);
    }
    assert_int_equal(t.flight, 0);
    assert_true(t.landed < t.bytes);
    for (uint32_t i = before; i < b->jobs; i++)
        assert_true(b->job[i].to >= (1ull << 40) + (1ull << 33));
    unsetenv("HOCCL_CHUNK");
    free(b);
}

static void test_stalled(void **state)
{
    (void)state;
    struct bench *b = bench_open(0);
    struct hoccl_transfer t = transfer(0, 100);
    uint64_t now = hoccl_now();
    assert_int_equal(hoccl_engine_stalled(&b->engine, now + HOCCL_S), 0);
    hoccl_engine_add(&b->engine, &t);
    step(b);
    now = hoccl_now();
    assert_true(hoccl_engine_stalled(&b->engine, now + 5 * HOCCL_S) >= 5 * HOCCL_S);
    land(b, 1);
    step(b);
    assert_int_equal(hoccl_engine_stalled(&b->engine, now + 9 * HOCCL_S), 0);
    free(b);
}

/* A full ring of the submitter holds the engine up and loses nothing. */
static void test_full_ring(void **state)
{
    (void)state;
    struct bench *b = bench_open(0);
    struct hoccl_transfer t = transfer(0, 100);
    b->submitter.tail = HOCCL_JOBS; /* nobody takes them */
    hoccl_engine_add(&b->engine, &t);
    assert_false(hoccl_engine_step(&b->engine));
    assert_int_equal(t.given, 0);
    b->submitter.head = b->submitter.tail;
    assert_int_equal(step(b), 1);
    assert_int_equal(b->job[0].bytes, 100);
    land(b, 1);
    step(b);
    assert_true(hoccl_transfer_complete(&t));
    free(b);
}

/* ---- staging slots ----------------------------------------------------------------------------------------------- */

static void test_slots(void **state)
{
    static char area[HOCCL_STAGE_AREA];
    struct hoccl_stage s;
    uint16_t slot[HOCCL_STAGE_SLOTS + 4], again[4];
    bool seen[HOCCL_STAGE_SLOTS] = {false};
    (void)state;
    hoccl_stage_init_host(&s, area, -1);
    unsigned n = 0, got;
    while ((got = hoccl_stage_take(&s, 3, 1, slot + n)))
        n += got;
    assert_int_equal(n, HOCCL_STAGE_SLOTS);
    for (unsigned i = 0; i < n; i++) {
        CUdeviceptr at = hoccl_stage_base(&s.view) + slot[i] * hoccl_stage_slot_bytes(s.view.kind);
        assert_true(slot[i] < HOCCL_STAGE_SLOTS && !seen[slot[i]]);
        seen[slot[i]] = true;
        assert_true(at >= (CUdeviceptr)(uintptr_t)area && at + HOCCL_STAGE_BYTES <= (CUdeviceptr)(uintptr_t)area + sizeof area);
        assert_int_equal((at - (CUdeviceptr)(uintptr_t)area) % HOCCL_STAGE_BYTES, 0);
    }
    assert_int_equal(hoccl_stage_take(&s, 1, 1, again), 0);
    hoccl_stage_give(&s, 2, 1, slot + 5);
    assert_int_equal(hoccl_stage_take(&s, 4, 1, again), 2); /* as many as there are */
    assert_true((again[0] == slot[5] && again[1] == slot[6]) || (again[0] == slot[6] && again[1] == slot[5]));
    hoccl_stage_give(&s, n, 1, slot);
    assert_int_equal(hoccl_stage_take(&s, 1, 1, again), 1);
    assert_int_equal(hoccl_stage_take(&s, 4, 4, slot), 3); /* runs beside the slot that is taken */
    for (unsigned i = 0; i < 3; i++)
        assert_true(slot[i] % 4 == 0 && slot[i] / 4 != again[0] / 4u);
    assert_int_equal(hoccl_stage_take(&s, 1, 4, slot + 3), 0);
    assert_int_equal(hoccl_stage_take(&s, 4, 1, slot + 4), 3);
    hoccl_stage_give(&s, 3, 1, slot + 4);
    hoccl_stage_give(&s, 3, 4, slot);
    hoccl_stage_give(&s, 1, 1, again);
    assert_int_equal(s.free, (1u << HOCCL_STAGE_SLOTS) - 1);
    assert_int_equal(hoccl_stage_slot_bytes(HOCCL_STAGE_HOST), HOCCL_STAGE_BYTES);
}

/* What a copy takes that is alone with the engine is learnt from others like it; of one beside another nothing is known. */
static void test_ends(void **state)
{
    struct hoccl_pace p;
    (void)state;
    setenv("HOCCL_CHUNK", "128M", 1);
    hoccl_pace_init(&p, 128 * MIB, 100);
    assert_int_equal(hoccl_pace_takes(&p, MIB), 0);
    hoccl_pace_landed(&p, 4 * MIB, 10 * HOCCL_US, 1, false); /* 2.5 µs a MiB */
    hoccl_pace_alone(&p, 2 * MIB, 14 * HOCCL_US);
    assert_int_equal(hoccl_pace_takes(&p, 2 * MIB), 14 * HOCCL_US);
    assert_int_equal(hoccl_pace_takes(&p, 4 * MIB), 19 * HOCCL_US);
    hoccl_pace_alone(&p, 2 * MIB, 900 * HOCCL_US); /* it had to wait for something */
    assert_in_range(hoccl_pace_takes(&p, 2 * MIB), 14 * HOCCL_US, 16 * HOCCL_US);
    for (int i = 0; i < 20; i++)
        hoccl_pace_alone(&p, 2 * MIB, 11 * HOCCL_US);
    assert_in_range(hoccl_pace_takes(&p, 2 * MIB), 11 * HOCCL_US, 11 * HOCCL_US + 100);
    assert_int_equal(hoccl_pace_takes(&p, 64 * MIB), 0);

    struct bench *b = bench_open(0);
    struct hoccl_transfer t[3] = {transfer(0, MIB), transfer(1, MIB), transfer(2, MIB)};
    hoccl_engine_add(&b->engine, &t[0]);
    assert_int_equal(step(b), 1);
    assert_int_equal(hoccl_engine_ends(&b->engine), 0);
    land(b, 1);
    step(b);
    hoccl_engine_add(&b->engine, &t[1]);
    assert_int_equal(step(b), 1);
    assert_in_range(hoccl_engine_ends(&b->engine), b->engine.moved_at + 1, b->engine.moved_at + HOCCL_MS);
    hoccl_engine_add(&b->engine, &t[2]);
    assert_int_equal(step(b), 1);
    assert_int_equal(hoccl_engine_ends(&b->engine), 0);
    land(b, 1);
    step(b);
    assert_int_equal(hoccl_engine_ends(&b->engine), 0);
    free(b);
}

/* A copy that stands still for milliseconds (the driver was busy) changes the rate little, and so does one that seems to take no
 * time because the one before it was seen late; a rate that is far too low is put right although all chunks are small because of it,
 * one that is far too high too. */
static void test_stall(void **state)
{
    struct hoccl_pace p;
    (void)state;
    hoccl_pace_init(&p, 128 * MIB, 100);
    hoccl_pace_landed(&p, 16 * MIB, 44 * HOCCL_US, 1, false);
    uint64_t rate = p.ns_a_mib;
    hoccl_pace_landed(&p, 16 * MIB, 3 * HOCCL_MS, 1, true);
    assert_in_range(p.ns_a_mib, rate, rate + rate / 8 + 1);
    p.ns_a_mib = rate;
    hoccl_pace_landed(&p, 16 * MIB, 1, 1, false);
    assert_in_range(p.ns_a_mib, rate / 2, rate);
    p.ns_a_mib = 300000;
    hoccl_pace_landed(&p, MIB, 12 * HOCCL_US, 1, true); /* its submission is in the time */
    for (int i = 0; i < 40; i++)
        hoccl_pace_landed(&p, MIB, 5 * HOCCL_US, 1, false);
    assert_in_range(p.ns_a_mib, 5000, 5300);
    p.ns_a_mib = 300000; /* so slow that each is alone with the engine */
    for (int i = 0; i < 60; i++)
        hoccl_pace_landed(&p, MIB, 12 * HOCCL_US, 1, true);
    assert_in_range(p.ns_a_mib, 12000, 12600);
    for (int i = 0; i < 60; i++)
        hoccl_pace_landed(&p, MIB, 14 * HOCCL_US, 1, true);
    assert_in_range(p.ns_a_mib, 12000, 12600);
    p.ns_a_mib = 1;
    for (int i = 0; i < 80; i++)
        hoccl_pace_landed(&p, 16 * MIB, 44 * HOCCL_US, 1, false);
    assert_in_range(p.ns_a_mib, rate * 9 / 10, rate);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_alone),    cmocka_unit_test(test_not_too_early), cmocka_unit_test(test_turns),
        cmocka_unit_test(test_small_beside_huge), cmocka_unit_test(test_company), cmocka_unit_test(test_posted_together), cmocka_unit_test(test_slow_engine),
        cmocka_unit_test(test_stages),   cmocka_unit_test(test_party_comes_and_goes), cmocka_unit_test(test_share),
        cmocka_unit_test(test_window_and_wrap),
        cmocka_unit_test(test_refusal_and_cancel), cmocka_unit_test(test_stalled), cmocka_unit_test(test_full_ring),
        cmocka_unit_test(test_slots),
    };
    alarm(120);
    hoccl_clock = tick;
    return cmocka_run_group_tests_name("engine and staging slots", tests, NULL, NULL);
}
