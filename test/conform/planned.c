/* SPDX-License-Identifier: Apache-2.0 */
/* HOCCL_Alltoallv_init: all ranks make one plan, and the wire keeps to it. On nodes of uneven size, as threads over the tests'
 * transport (near.h), by costs of a network that the test has made up, so that it can make the same plan itself.
 *
 *   the plan      each rank's requests are the plan's parts of it, in its order; or, where none pays, one for each rank
 *   on the wire   a rank that comes last, when all others have claimed, grants its receives in the order of the plan
 *   bytes         all right, guards too, in each start
 *   trouble       a rank that sends something else than is expected, has wrong arguments, or comes too late: an error at all
 *                 ranks that says so, and the communicator stays good */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/request.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/setting.h"
#include "core/rows.h"
#include "far.h"
#include "near.h"
#include "p2p/wire.h"

/* Sanitizers make sixteen ranks in one process minutes. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { MOST = 16, PARTS = 4000, GAP = 67, STARTS = 2 };

static const struct hoccl_grants_cost network = {.chunk_ns = 21000, .start_ns = 100, .grant_ns = 3000, .free_ns = 3000, .ahead = 8};

/* One case: who sends whom how much, and what all make of it. */
static struct {
    int ranks, node[MOST];
    uint64_t bytes[MOST * MOST];
    struct hoccl_layout layout;
    struct hoccl_choice choice;
} job;

static int turns, inversions; /* over all cases */

/* ---- cases ------------------------------------------------------------------------------------------------------- */

enum kind { SPARSE, SKEWED, EVEN_LINES, ZERO_ROWS, KINDS };

static uint64_t dice;

static uint64_t roll(uint64_t sides)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (dice >> 33) % sides;
}

static uint64_t entry(enum kind kind, int u, int v)
{
    uint64_t odd = roll(3000);
    switch (kind) {
    case SPARSE:
        return roll((uint64_t)job.ranks) < 2 ? (1 + roll(4)) * (MIB / 2) + odd : 0;
    case SKEWED:
        return MIB * 3 / (uint64_t)(1 + (u * 5 + v * 3) % job.ranks) / (1 + roll(3)) + odd;
    case ZERO_ROWS:
        return u % 3 == 1 || v % 4 == 2 ? 0 : roll(MIB);
    case EVEN_LINES:
    case KINDS:
        break;
    }
    return 0;
}

/* Sums of permutations: all lines are equally long, and no order is obviously right. */
static void fill_lines(void)
{
    for (int k = 0; k < 6; k++) {
        int to[MOST];
        uint64_t bytes = MIB / 4 + roll(MIB / 2);
        for (int i = 0; i < job.ranks; i++) {
            int j = (int)roll((uint64_t)i + 1);
            to[i] = to[j];
            to[j] = i;
        }
        to[job.ranks - 1] = job.ranks == 1 ? 0 : to[job.ranks - 1];
        for (int i = 0; i < job.ranks; i++)
            job.bytes[i * job.ranks + to[i]] += bytes;
    }
}

static void fill(enum kind kind, uint64_t seed)
{
    dice = seed * 7919 + (uint64_t)kind;
    memset(job.bytes, 0, sizeof job.bytes);
    for (int i = 0; i < job.ranks * job.ranks; i++)
        job.bytes[i] = entry(kind, i / job.ranks, i % job.ranks);
    if (kind == EVEN_LINES)
        fill_lines();
}

/* "1+4+2": blocks of ranks, as hoccl_node_pretended has it; "1": one node. */
static void place(const char *nodes)
{
    int pair[MOST], node = 0, left = 0;
    const char *at = nodes;
    for (int r = 0; r < job.ranks; r++, left--) {
        if (!left && strchr(nodes, '+')) {
            char *end;
            left = (int)strtol(at, &end, 10);
            at = end + (*end == '+');
            node += r > 0;
        }
        job.node[r] = node;
        pair[r] = HOCCL_PAIR_HOST;
    }
    assert_int_equal(hoccl_layout_make(&job.layout, job.ranks, job.node, pair, NULL), 0);
}

static bool crosses(int a, int b)
{
    return job.node[a] != job.node[b];
}

static uint64_t sent(int from, int to)
{
    return job.bytes[from * job.ranks + to];
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

/* Bytes in `host`, `out` and `in`: the pieces of all ranks with a gap before each. */
struct arrays {
    size_t scount[MOST], sdispl[MOST], rcount[MOST], rdispl[MOST];
};

static struct arrays lay_out(int rank)
{
    struct arrays a = {{0}, {0}, {0}, {0}};
    size_t s = 0, t = 0;
    for (int p = 0; p < job.ranks; p++) {
        a.scount[p] = sent(rank, p);
        a.rcount[p] = sent(p, rank);
        a.sdispl[p] = s + GAP;
        a.rdispl[p] = t + GAP;
        s += GAP + a.scount[p];
        t += GAP + a.rcount[p];
    }
    return a;
}

static size_t room_of(int rank)
{
    uint64_t s = 0, t = 0;
    for (int p = 0; p < job.ranks; p++) {
        s += GAP + sent(rank, p);
        t += GAP + sent(p, rank);
    }
    return (s > t ? s : t) + GAP;
}

static bool put(struct rank *r, struct work *w, const struct arrays *a, unsigned key)
{
    for (int p = 0; p < job.ranks; p++)
        memcpy(w->host + a->sdispl[p], message(r->rank, p, key), a->scount[p]);
    if (!RANK_CUDA(r, cuMemcpyHtoD(w->out, w->host, w->room)))
        return false;
    memset(w->host, 0xa5, w->room);
    return RANK_CUDA(r, cuMemcpyHtoD(w->in, w->host, w->room)) && RANK_CUDA(r, cuStreamSynchronize(NULL));
}

static bool right(struct rank *r, struct work *w, const struct arrays *a, unsigned key)
{
    if (!RANK_OK(r, stream_end(r, w)) || !RANK_CUDA(r, cuMemcpyDtoH(w->host, w->in, w->room)))
        return false;
    for (int p = 0; p < job.ranks; p++)
        if (!filled_with(r, w->host + a->rdispl[p] - GAP, 0xa5, GAP) ||
            !same(r, w->host + a->rdispl[p], message(p, r->rank, key), a->rcount[p], p))
            return false;
    return true;
}

static bool init(struct rank *r, const struct work *w, const struct arrays *a, HOCCL_Request *q)
{
    return RANK_OK(r, HOCCL_Alltoallv_init((void *)w->out, a->scount, a->sdispl, (void *)w->in, a->rcount, a->rdispl, HOCCL_BYTE,
                                           r->comm, q));
}

/* Are the request's parts of one direction the plan's? Without one, whole and as they were. */
static void compare(struct rank *r, const struct hoccl_kept *kept, bool is_send)
{
    const struct hoccl_parts *plan = &job.choice.parts;
    size_t i = 0;
    for (size_t k = 0; k < kept->count; k++) {
        const struct hoccl_request *q = &kept->requests[k];
        if (q->is_send != is_send || !crosses(r->rank, q->peer) || !q->header.bytes)
            continue;
        uint64_t all = is_send ? sent(r->rank, q->peer) : sent(q->peer, r->rank);
        while (job.choice.planned && i < plan->parts && (is_send ? plan->part[i].src : plan->part[i].dst) != r->rank)
            i++;
        if (!job.choice.planned) {
            RANK_TRUE(r, q->header.bytes == all && !q->header.whole);
            continue;
        }
        if (!RANK_TRUE(r, i < plan->parts))
            return;
        RANK_TRUE(r, (is_send ? plan->part[i].dst : plan->part[i].src) == q->peer && plan->part[i].bytes == q->header.bytes &&
                         q->header.whole == all);
        i++;
    }
    for (; job.choice.planned && i < plan->parts; i++)
        RANK_TRUE(r, (is_send ? plan->part[i].src : plan->part[i].dst) != r->rank);
}

static uint64_t claims; /* that a case has, but for those of the rank that comes last */

static void look(struct rank *r, HOCCL_Request q, int last)
{
    struct hoccl_kept *kept;
    if (!RANK_OK(r, hoccl_request_use(q, &kept)))
        return;
    compare(r, kept, true);
    compare(r, kept, false);
    for (size_t k = 0; k < kept->count; k++)
        if (kept->requests[k].is_send && crosses(r->rank, kept->requests[k].peer) && r->rank != last)
            __atomic_add_fetch(&claims, 1, __ATOMIC_RELAXED);
    hoccl_request_unuse(kept);
}

/* ---- the order on the wire --------------------------------------------------------------------------------------- */

static int watched = -1;           /* the rank that comes last */
static uint32_t order[PARTS], orders; /* places of its large receives, as they were granted */

static void watch(const struct hoccl_flow *f)
{
    if (f->peer->far->own_rank == hoccl_peek(&watched) && f->wire.chunks > 1 && hoccl_peek(&orders) < PARTS)
        hoccl_publish(&order[hoccl_fetch_add(&orders, 1)], f->order);
}

/* Its stream waits until all claims of the others have come. */
static void come_last(struct rank *r, struct work *w, HOCCL_Request q, uint64_t before)
{
    uint32_t *gate;
    CUdeviceptr address;
    if (!RANK_CUDA(r, cuMemAllocHost((void **)&gate, sizeof *gate)) || !RANK_CUDA(r, cuMemHostGetDevicePointer(&address, gate, 0)))
        return;
    hoccl_publish(gate, 0);
    RANK_CUDA(r, cuStreamWaitValue32(w->stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    RANK_OK(r, HOCCL_Start(q, w->stream));
    for (int i = 0; i < 20000 && hoccl_observe(&hoccl_wire_counts.claimed) - before < hoccl_observe(&claims); i++)
        usleep(1000);
    RANK_TRUE(r, hoccl_observe(&hoccl_wire_counts.claimed) - before == hoccl_observe(&claims));
    hoccl_publish(gate, 1);
    RANK_CUDA(r, cuStreamSynchronize(w->stream));
    hoccl_publish(&watched, -1);
    pthread_barrier_wait(&meeting); /* cuMemFreeHost waits for parked streams */
    RANK_CUDA(r, cuMemFreeHost(gate));
}

static void start_watched(struct rank *r, struct work *w, HOCCL_Request q)
{
    uint64_t before = hoccl_observe(&hoccl_wire_counts.claimed);
    int last = hoccl_peek(&watched);
    look(r, q, last);
    pthread_barrier_wait(&meeting); /* all have read and counted */
    if (r->rank == last) {
        come_last(r, w, q, before);
        return;
    }
    RANK_OK(r, HOCCL_Start(q, w->stream));
    RANK_CUDA(r, cuStreamSynchronize(w->stream));
    pthread_barrier_wait(&meeting);
}

static void count_inversions(void)
{
    uint32_t n = hoccl_observe(&orders);
    for (uint32_t i = 1; i < n; i++) {
        turns++;
        inversions += hoccl_observe(&order[i]) < hoccl_observe(&order[i - 1]);
    }
}

/* ---- good weather ------------------------------------------------------------------------------------------------ */

static void body(struct rank *r)
{
    struct arrays a = lay_out(r->rank);
    struct work w;
    HOCCL_Request q;
    if (!work_open(r, &w, room_of(r->rank)) || !init(r, &w, &a, &q))
        return;
    for (unsigned i = 0; i < STARTS; i++) {
        bool good = put(r, &w, &a, i);
        pthread_barrier_wait(&meeting); /* nothing is on its way when claims are counted */
        if (!i)
            start_watched(r, &w, q);
        else
            RANK_OK(r, HOCCL_Start(q, w.stream));
        if (good)
            right(r, &w, &a, i);
        pthread_barrier_wait(&meeting);
    }
    RANK_OK(r, HOCCL_RequestFree(q));
    work_close(r, &w);
}

/* The first case of this kind, from the seed on, that has a plan (or none). False: there is none among many. */
static bool find(enum kind kind, uint64_t *seed, bool plan)
{
    for (int i = 0; i < 100; i++, ++*seed) {
        fill(kind, *seed);
        if (job.node[job.ranks - 1])
            assert_int_equal(hoccl_choice_make(&job.choice, &job.layout, &network, job.bytes, NULL), 0);
        if (job.choice.planned == plan)
            return true;
        hoccl_choice_fini(&job.choice);
    }
    return false;
}

/* False: there is no such case. */
static bool run_case(const char *nodes, int ranks, enum kind kind, bool plan)
{
    uint64_t seed = 1;
    job.ranks = ranks;
    place(nodes);
    memset(&job.choice, 0, sizeof job.choice);
    if (!find(kind, &seed, plan))
        return false;
    claims = 0;
    orders = 0;
    watched = (int)(seed % (uint64_t)ranks);
    far_run(ranks, nodes, body, NULL, false);
    hoccl_choice_fini(&job.choice);
    count_inversions();
    return true;
}

/* Over all places, with a plan all kinds; how many cases there are. */
static int run_all(bool plan)
{
    static const struct {
        const char *nodes;
        int ranks;
    } places[] = {{"1", 3}, {"1+1", 2}, {"2+1+1", 4}, {"1+4+2", 7}, {"1+5+4+6", 16}};
    int cases = 0;
    near = (struct near_weather){0};
    hoccl_rows_cost = &network;
    hoccl_wire_watch = watch;
    hoccl_settings.test_break = HOCCL_BREAK_NO_EAGER; /* the rank that comes last would claim early, and these would be counted */
    turns = inversions = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places - SANITIZED; i++)
        for (int kind = plan ? 0 : SKEWED; kind < (plan ? KINDS : EVEN_LINES); kind += 1 + SANITIZED)
            cases += run_case(places[i].nodes, places[i].ranks, (enum kind)kind, plan);
    hoccl_rows_cost = NULL;
    hoccl_wire_watch = NULL;
    hoccl_settings.test_break = HOCCL_BREAK_NOTHING;
    return cases;
}

static void test_plans(void **state)
{
    (void)state;
    int cases = run_all(true);
    printf("%d cases with a plan: %d turns\n", cases, turns);
    assert_true(cases >= (SANITIZED ? 4 : 12));
    assert_true(turns >= (SANITIZED ? 4 : 10));
    assert_int_equal(inversions, 0);
}

/* What has no plan goes by what is left: the same watch sees that. */
static void test_grants(void **state)
{
    (void)state;
    int cases = run_all(false);
    printf("%d cases without a plan: %d turns, %d of them before an earlier one\n", cases, turns, inversions);
    assert_int_equal(cases, 5 - SANITIZED);
    assert_true(inversions > 0);
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

static HOCCL_Result init_with(struct rank *r, const struct work *w, const struct arrays *a, HOCCL_Request *q)
{
    return HOCCL_Alltoallv_init((void *)w->out, a->scount, a->sdispl, (void *)w->in, a->rcount, a->rdispl, HOCCL_BYTE, r->comm, q);
}

/* The next one works. */
static void works(struct rank *r, struct work *w, const struct arrays *a, unsigned key)
{
    HOCCL_Request q;
    if (!put(r, w, a, key) || !init(r, w, a, &q))
        return;
    RANK_OK(r, HOCCL_Start(q, w->stream));
    right(r, w, a, key);
    RANK_OK(r, HOCCL_RequestFree(q));
    pthread_barrier_wait(&meeting);
}

/* What two ranks see otherwise is everybody's error, with the entry and both values; the lower receiver's, where there are two. */
static void disagree(struct rank *r, struct work *w, const struct arrays *right_ones)
{
    HOCCL_Request q = HOCCL_REQUEST_NULL;
    struct arrays a = *right_ones;
    if (r->rank == 2)
        a.rcount[1] = 4321;
    if (r->rank == 3)
        a.rcount[0]++;
    char text[256];
    snprintf(text, sizeof text, "HOCCL_Alltoallv_init: rank 1 sends %zu bytes to rank 2 (its sendcounts[2] is %zu, elements of 1), which "
             "expects 4321 bytes from it (recvcounts[1] is 4321", (size_t)sent(1, 2), (size_t)sent(1, 2));
    RANK_FAILS(r, init_with(r, w, &a, &q), HOCCL_ERR_MISMATCH, text);
    RANK_TRUE(r, q == HOCCL_REQUEST_NULL);
}

static void refuse(struct rank *r, struct work *w, const struct arrays *right_ones)
{
    HOCCL_Request q;
    if (r->rank == 1)
        RANK_FAILS(r, HOCCL_Alltoallv_init((void *)w->out, NULL, right_ones->sdispl, (void *)w->in, right_ones->rcount,
                                           right_ones->rdispl, HOCCL_BYTE, r->comm, &q), HOCCL_ERR_ARGUMENT, "send counts is NULL");
    else
        RANK_FAILS(r, init_with(r, w, right_ones, &q), HOCCL_ERR_BOOTSTRAP, "rank 1 has given up: HOCCL_Alltoallv_init: the array of send");
    if (r->rank == 3)
        RANK_FAILS(r, init_with(r, w, right_ones, NULL), HOCCL_ERR_ARGUMENT, "the request's address is NULL");
    else
        RANK_FAILS(r, init_with(r, w, right_ones, &q), HOCCL_ERR_BOOTSTRAP, "rank 3 has given up: the request's address is NULL");
}

/* Also while an operation is under way, which is not disturbed. */
static void late(struct rank *r, struct work *w, const struct arrays *a)
{
    HOCCL_Request q, running;
    if (!put(r, w, a, 7) || !init(r, w, a, &running))
        return;
    RANK_OK(r, HOCCL_Start(running, w->stream));
    pthread_barrier_wait(&meeting);
    if (r->rank == 2) {
        usleep(1600000);
        RANK_FAILS(r, init_with(r, w, a, &q), HOCCL_ERR_BOOTSTRAP, "given up");
    } else {
        uint64_t begun = hoccl_now();
        RANK_FAILS(r, init_with(r, w, a, &q), HOCCL_ERR_BOOTSTRAP, "2");
        RANK_TRUE(r, hoccl_now() - begun < 10 * HOCCL_S);
    }
    right(r, w, a, 7);
    RANK_OK(r, HOCCL_RequestFree(running));
    pthread_barrier_wait(&meeting);
}

static void trouble(struct rank *r)
{
    struct arrays a = lay_out(r->rank);
    struct work w;
    if (!work_open(r, &w, room_of(r->rank) + 5000))
        return;
    disagree(r, &w, &a);
    works(r, &w, &a, 1);
    refuse(r, &w, &a);
    works(r, &w, &a, 2);
    late(r, &w, &a);
    works(r, &w, &a, 3);
    work_close(r, &w);
}

static void test_trouble(void **state)
{
    static const char *const places[] = {"1+2+1", "1"};
    (void)state;
    job.ranks = 4;
    hoccl_settings.init_timeout = HOCCL_S;
    hoccl_rows_cost = &network;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        place(places[i]);
        fill(ZERO_ROWS, 5);
        far_run(4, places[i], trouble, NULL, false);
    }
    hoccl_rows_cost = NULL;
    hoccl_settings.init_timeout = 300 * HOCCL_S;
}

/* Another thread aborts the communicator meanwhile: the call returns. */
static HOCCL_Comm first;

static void given_up(struct rank *r)
{
    struct arrays a = lay_out(r->rank);
    struct work w;
    HOCCL_Request q;
    if (!work_open(r, &w, room_of(r->rank)))
        return;
    if (!r->rank)
        first = r->comm;
    pthread_barrier_wait(&meeting);
    if (!r->rank)
        RANK_FAILS(r, init_with(r, &w, &a, &q), HOCCL_ERR_BOOTSTRAP, "aborted");
    else {
        usleep(100000);
        RANK_OK(r, HOCCL_CommAbort(first));
        RANK_OK(r, HOCCL_CommAbort(r->comm));
    }
    r->comm = HOCCL_COMM_NULL;
    work_close(r, &w);
}

static void test_abort(void **state)
{
    (void)state;
    job.ranks = 2;
    place("1+1");
    fill(SPARSE, 1);
    far_run(2, "1+1", given_up, NULL, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plans), cmocka_unit_test(test_grants), cmocka_unit_test(test_trouble),
                                       cmocka_unit_test(test_abort)};
    setenv("HOCCL_DEVICE", "emu", 1);
    ranks_environment(MOST);
    hoccl_wire_transport = &near_transport;
    far_noise();
    hoccl_settings_load_once();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
