/* SPDX-License-Identifier: Apache-2.0 */
/* Flows on which two nodes agree before their streams get there (p2p/early.h), over the tests' transport. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/setting.h"
#include "eager.h"
#include "p2p/wire.h"

#define SHORT 1000000000ull /* a HOCCL_TIMEOUT, ns */

bool gate_open(struct rank *r, struct gate *g)
{
    bool made = RANK_CUDA(r, cuMemAllocHost((void **)&g->word, sizeof *g->word)) &&
                RANK_CUDA(r, cuMemHostGetDevicePointer(&g->address, g->word, 0));
    if (made)
        hoccl_publish(g->word, 0);
    return made;
}

void gate_shut(struct rank *r, const struct gate *g, CUstream stream)
{
    RANK_CUDA(r, cuStreamWaitValue32(stream, g->address, 1, CU_STREAM_WAIT_VALUE_GEQ));
}

void gate_close(struct rank *r, struct gate *g)
{
    pthread_barrier_wait(&meeting);
    RANK_CUDA(r, cuMemFreeHost(g->word));
}

static struct hoccl_wire *wires[8]; /* of each rank, once it has granted anything */

void begin(struct near_weather weather)
{
    near = weather;
    memset(&hoccl_wire_counts, 0, sizeof hoccl_wire_counts);
    memset(wires, 0, sizeof wires);
}

bool come_to(const uint64_t *count, uint64_t n)
{
    for (int i = 0; i < 20000 && hoccl_peek(count) < n; i++)
        usleep(1000);
    return hoccl_peek(count) >= n;
}

static void watch(const struct hoccl_flow *f)
{
    hoccl_publish(&wires[f->peer->far->own_rank], f->peer->far->wire);
}

void all_back(struct rank *r)
{
    pthread_barrier_wait(&meeting);
    const struct hoccl_wire *w = hoccl_observe(&wires[r->rank]);
    RANK_TRUE(r, w && w->lent == 0 && w->sending == 0 && w->receiving == 0 && w->uneven == 0);
    RANK_TRUE(r, w && w->in.idle == w->in.count);
    pthread_barrier_wait(&meeting);
}

bool put(struct rank *r, struct work *w, int to, size_t n, unsigned key)
{
    return RANK_CUDA(r, cuMemcpyHtoD(w->out, message(r->rank, to, key), n)) && RANK_CUDA(r, cuMemsetD8(w->in, GUARD, w->room)) &&
           RANK_CUDA(r, cuStreamSynchronize(NULL));
}

void got(struct rank *r, struct work *w, int from, size_t n, unsigned key)
{
    RANK_CUDA(r, cuMemcpyDtoH(w->host, w->in, w->room));
    same(r, w->host, message(from, r->rank, key), n, from);
    filled_with(r, w->host + n, GUARD, w->room - n);
}

void untouched(struct rank *r, struct work *w)
{
    RANK_CUDA(r, cuMemcpyDtoH(w->host, w->in, w->room));
    filled_with(r, w->host, GUARD, w->room);
}

/* ---- held ---------------------------------------------------------------------------------------------------------- */

static const size_t sizes[] = {1, 4097, 300000, MIB};

/* The sender's stream goes on, with the bytes in the receiver's slots, and nothing is written before the receive's stream is there. */
static void be_held(struct rank *r)
{
    struct work w;
    struct gate g;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        if (!work_open(r, &w, n + 64) || !gate_open(r, &g))
            return;
        put(r, &w, 0, n, (unsigned)i);
        if (r->rank) {
            RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
            RANK_OK(r, stream_end(r, &w));
            pthread_barrier_wait(&meeting);
        } else {
            gate_shut(r, &g, w.stream);
            RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
            pthread_barrier_wait(&meeting);
            RANK_TRUE(r, come_to(&hoccl_wire_counts.held, hoccl_peek(&hoccl_wire_counts.early)));
            untouched(r, &w);
            hoccl_publish(g.word, 1);
            RANK_OK(r, stream_end(r, &w));
            got(r, &w, 1, n, (unsigned)i);
        }
        gate_close(r, &g);
        work_close(r, &w);
    }
}

static void test_held(void **state)
{
    (void)state;
    begin((struct near_weather){.jitter = 300, .refuse = 20});
    far_run(2, "2", be_held, NULL, false);
    assert_true(hoccl_wire_counts.early >= 4 && hoccl_wire_counts.held == hoccl_wire_counts.early);
    assert_int_equal(hoccl_wire_counts.early, hoccl_wire_counts.arrived);
}

/* Without it the sender's stream waits for the receiver's: the test above would not end. */
static void not_held(struct rank *r)
{
    struct work w;
    struct gate g;
    if (!work_open(r, &w, 8192) || !gate_open(r, &g))
        return;
    put(r, &w, 0, 4097, 1);
    if (r->rank) {
        RANK_OK(r, HOCCL_Send((void *)w.out, 4097, HOCCL_BYTE, 0, r->comm, w.stream));
        usleep(200000);
        RANK_TRUE(r, cuStreamQuery(w.stream) == CUDA_ERROR_NOT_READY);
        pthread_barrier_wait(&meeting);
        RANK_OK(r, stream_end(r, &w));
    } else {
        gate_shut(r, &g, w.stream);
        RANK_OK(r, HOCCL_Recv((void *)w.in, 4097, HOCCL_BYTE, 1, r->comm, w.stream));
        pthread_barrier_wait(&meeting);
        hoccl_publish(g.word, 1);
        RANK_OK(r, stream_end(r, &w));
        got(r, &w, 1, 4097, 1);
    }
    gate_close(r, &g);
    work_close(r, &w);
}

static void test_not_held(void **state)
{
    (void)state;
    begin((struct near_weather){0});
    hoccl_settings.test_break = HOCCL_BREAK_NO_EAGER;
    far_run(2, "2", not_held, NULL, false);
    hoccl_settings.test_break = HOCCL_BREAK_NOTHING;
    assert_int_equal(hoccl_wire_counts.early + hoccl_wire_counts.held, 0);
}

/* ---- agreed upon before either is there ----------------------------------------------------------------------------- */

static const int *first; /* whose stream is there first */

static void both_wait(struct rank *r)
{
    struct work w;
    struct gate g;
    size_t n = 3 * MIB + 1;
    if (!work_open(r, &w, n + 64) || !gate_open(r, &g))
        return;
    put(r, &w, 1 - r->rank, n, 7);
    gate_shut(r, &g, w.stream);
    RANK_OK(r, HOCCL_GroupStart());
    RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 1 - r->rank, r->comm, w.stream));
    RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1 - r->rank, r->comm, w.stream));
    RANK_OK(r, HOCCL_GroupEnd());
    RANK_TRUE(r, come_to(&hoccl_wire_counts.allowed, 2));
    pthread_barrier_wait(&meeting);
    RANK_TRUE(r, hoccl_peek(&hoccl_wire_counts.early) >= 2 && hoccl_peek(&hoccl_wire_counts.filled) == 0);
    pthread_barrier_wait(&meeting);
    if (r->rank != *first)
        RANK_TRUE(r, come_to(&hoccl_wire_counts.held, 1));
    hoccl_publish(g.word, 1);
    RANK_OK(r, stream_end(r, &w));
    got(r, &w, 1 - r->rank, n, 7);
    gate_close(r, &g);
    work_close(r, &w);
}

static void test_both_wait(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        first = &i;
        begin((struct near_weather){.jitter = 100});
        far_run(2, "2", both_wait, NULL, false);
        assert_true(hoccl_wire_counts.held > 0);
    }
}

/* ---- the pool drains ------------------------------------------------------------------------------------------------ */

#define STREAMS 5

/* More receives than early slots stand behind gates, and their senders', the other way, too. All the rest goes on. */
void drain(struct rank *r)
{
    struct work w[STREAMS], busy;
    struct gate g;
    size_t n = 10 * MIB + 77;
    int other = 1 - r->rank;
    if (!gate_open(r, &g) || !work_open(r, &busy, (size_t)r->size * (34 * MIB)))
        return;
    for (int i = 0; i < STREAMS; i++) {
        if (!work_open(r, &w[i], n + 64) || !put(r, &w[i], other, n, (unsigned)i))
            return;
        if (r->rank || i % 2)
            gate_shut(r, &g, w[i].stream);
        RANK_OK(r, HOCCL_GroupStart());
        RANK_OK(r, HOCCL_Send((void *)w[i].out, n, HOCCL_BYTE, other, r->comm, w[i].stream));
        RANK_OK(r, HOCCL_Recv((void *)w[i].in, n, HOCCL_BYTE, other, r->comm, w[i].stream));
        RANK_OK(r, HOCCL_GroupEnd());
    }
    RANK_TRUE(r, come_to(&hoccl_wire_counts.lent, HOCCL_POOL_EARLY));
    pthread_barrier_wait(&meeting);
    exchange(r, &busy, 33 * MIB, 11);
    for (unsigned i = 0; i < 20; i++)
        exchange(r, &busy, 100 + i, i);
    for (int i = 0; i < STREAMS; i++)
        if (r->rank || i % 2)
            untouched(r, &w[i]);
    pthread_barrier_wait(&meeting);
    hoccl_publish(g.word, 1);
    for (int i = 0; i < STREAMS; i++) {
        RANK_OK(r, stream_end(r, &w[i]));
        got(r, &w[i], other, n, (unsigned)i);
    }
    all_back(r);
    gate_close(r, &g);
    work_close(r, &busy);
    for (int i = 0; i < STREAMS; i++)
        work_close(r, &w[i]);
}

static void test_pool_drains(void **state)
{
    (void)state;
    begin((struct near_weather){.jitter = 200});
    far_run(2, "2", drain, NULL, false);
    assert_int_equal(hoccl_wire_counts.lent, HOCCL_POOL_EARLY);
    assert_int_equal(hoccl_wire_counts.granted, hoccl_wire_counts.arrived);
}

/* ---- patience ------------------------------------------------------------------------------------------------------- */

/* Longer than HOCCL_TIMEOUT one of the two streams is not there, although slots have been given and filled. */
static void be_patient(struct rank *r)
{
    struct work w;
    struct gate g;
    size_t n = 20 * MIB; /* more chunks than early slots */
    if (!work_open(r, &w, n + 64) || !gate_open(r, &g))
        return;
    put(r, &w, 1 - r->rank, n, 2);
    for (int turn = 0; turn < 2; turn++) {
        bool late = r->rank == turn;
        hoccl_publish(g.word, 0);
        if (late)
            gate_shut(r, &g, w.stream);
        if (r->rank)
            RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
        else
            RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
        if (late)
            usleep((useconds_t)(5 * SHORT / 2000));
        hoccl_publish(g.word, 1);
        RANK_OK(r, stream_end(r, &w));
        if (!r->rank)
            got(r, &w, 1, n, 2);
        pthread_barrier_wait(&meeting);
    }
    gate_close(r, &g);
    work_close(r, &w);
}

static void test_patience(void **state)
{
    (void)state;
    hoccl_settings.timeout = SHORT;
    begin((struct near_weather){.mute = true}); /* so that no ALIVE hides a clock that runs */
    far_run(2, "2", be_patient, NULL, false);
    hoccl_settings.timeout = 30000000000;
    assert_true(hoccl_wire_counts.early > 0);
}

/* ---- registered memory ---------------------------------------------------------------------------------------------- */

/* A registered receive lets nobody in before its stream is there; a registered send leaves as it is. */
static void registered(struct rank *r)
{
    struct work w;
    struct gate g;
    void *handle;
    size_t n = 3 * MIB;
    if (!work_open(r, &w, n + 64) || !gate_open(r, &g))
        return;
    put(r, &w, 1 - r->rank, n, 4);
    RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)w.in, w.room, &handle));
    pthread_barrier_wait(&meeting);
    for (int turn = 0; turn < 2; turn++) {
        hoccl_publish(g.word, 0);
        if (r->rank == turn)
            gate_shut(r, &g, w.stream);
        if (r->rank)
            RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
        else
            RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
        usleep(100000);
        if (!r->rank && !turn)
            untouched(r, &w);
        hoccl_publish(g.word, 1);
        RANK_OK(r, stream_end(r, &w));
        if (!r->rank)
            got(r, &w, 1, n, 4);
        pthread_barrier_wait(&meeting);
    }
    gate_close(r, &g);
    work_close(r, &w);
}

static void test_registered(void **state)
{
    (void)state;
    begin((struct near_weather){.on_gpu = true});
    far_run(2, "2", registered, NULL, false);
    assert_int_equal(hoccl_wire_counts.early, 0);
    assert_true(hoccl_wire_counts.into > 0 && hoccl_wire_counts.into == hoccl_wire_counts.arrived);
}

/* ---- one operation behind the other --------------------------------------------------------------------------------- */

#define OPERATIONS 60
#define LANES 3 /* streams */
#define LONGEST (2 * MIB + 7)

static size_t length(unsigned i, int from)
{
    static const size_t some[] = {0, 1, 4096, 70000, MIB, LONGEST};
    return some[(i * 7 + (unsigned)from * 3 + i / 5) % (sizeof some / sizeof *some)];
}

/* All are posted before the first one ends, in three streams in turn. False: the communicator has failed. */
static bool post(struct rank *r, struct work *w)
{
    int to = (r->rank + 1) % r->size, from = (r->rank + r->size - 1) % r->size;
    for (unsigned i = 0; i < OPERATIONS; i++) {
        struct work *l = &w[i % LANES];
        size_t at = i / LANES * (LONGEST + 64), n = length(i, r->rank), m = length(i, from);
        HOCCL_Result e = HOCCL_GroupStart();
        e = e ? e : HOCCL_Send((void *)(l->out + at), n, HOCCL_BYTE, to, r->comm, l->stream);
        e = e ? e : HOCCL_Recv((void *)(l->in + at), m, HOCCL_BYTE, from, r->comm, l->stream);
        HOCCL_Result end = HOCCL_GroupEnd();
        if (e || end)
            return false;
    }
    return true;
}

static void look(struct rank *r, struct work *w)
{
    int from = (r->rank + r->size - 1) % r->size;
    for (unsigned i = 0; i < LANES; i++)
        RANK_CUDA(r, cuMemcpyDtoH(w[i].host, w[i].in, w[i].room));
    for (unsigned i = 0; i < OPERATIONS; i++) {
        size_t at = i / LANES * (LONGEST + 64), n = length(i, from);
        same(r, w[i % LANES].host + at, message(from, r->rank, i), n, from);
        filled_with(r, w[i % LANES].host + at + n, GUARD, LONGEST + 64 - n);
    }
}

static bool lay_out(struct rank *r, struct work *w)
{
    int to = (r->rank + 1) % r->size;
    bool good = true;
    for (unsigned i = 0; i < LANES; i++)
        good = good && work_open(r, &w[i], OPERATIONS / LANES * (LONGEST + 64)) &&
               RANK_CUDA(r, cuMemsetD8(w[i].in, GUARD, w[i].room));
    for (unsigned i = 0; good && i < OPERATIONS; i++)
        good = !length(i, r->rank) || RANK_CUDA(r, cuMemcpyHtoD(w[i % LANES].out + i / LANES * (LONGEST + 64),
                                                                 message(r->rank, to, i), length(i, r->rank)));
    return good && RANK_CUDA(r, cuStreamSynchronize(NULL));
}

static void in_a_row(struct rank *r)
{
    struct work w[LANES];
    if (lay_out(r, w) && RANK_TRUE(r, post(r, w))) {
        for (int i = 0; i < LANES; i++)
            RANK_OK(r, stream_end(r, &w[i]));
        look(r, w);
    }
    all_back(r);
    for (int i = 0; i < LANES; i++)
        work_close(r, &w[i]);
}

static void test_in_a_row(void **state)
{
    (void)state;
    begin((struct near_weather){.jitter = 300, .refuse = 30});
    far_run(2, "2", in_a_row, NULL, false);
    assert_true(hoccl_wire_counts.early > 0 && hoccl_wire_counts.granted == hoccl_wire_counts.arrived);
    begin((struct near_weather){.jitter = 100});
    far_run(3, "3", in_a_row, NULL, false);
    far_run(4, "2", in_a_row, NULL, false);
    assert_true(hoccl_wire_counts.early > 0 && hoccl_wire_counts.granted == hoccl_wire_counts.arrived);
}

void in_a_row_or_failed(struct rank *r)
{
    struct work w[LANES];
    HOCCL_Result e = HOCCL_CommInitRank(&r->comm, r->size, r->id, r->rank);
    bool opened = !e;
    if (opened && lay_out(r, w)) {
        bool posted = post(r, w);
        for (int i = 0; i < LANES; i++)
            e = e ? e : stream_end(r, &w[i]);
        if (posted && !e)
            look(r, w);
    }
    if (e)
        RANK_TRUE(r, (e == HOCCL_ERR_PEER || (!opened && e == HOCCL_ERR_BOOTSTRAP)) && strstr(HOCCL_GetLastError(), "rank "));
    if (opened)
        RANK_OK(r, HOCCL_CommAbort(r->comm));
    r->comm = HOCCL_COMM_NULL;
    for (int i = 0; i < 2 * LANES && !opened; i++)
        pthread_barrier_wait(&meeting);
    for (int i = 0; i < LANES && opened; i++)
        work_close(r, &w[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held), cmocka_unit_test(test_not_held), cmocka_unit_test(test_both_wait), cmocka_unit_test(test_pool_drains),
        cmocka_unit_test(test_patience), cmocka_unit_test(test_registered), cmocka_unit_test(test_abort_held),
        cmocka_unit_test(test_dead), cmocka_unit_test(test_foreground), cmocka_unit_test(test_own_turn), cmocka_unit_test(test_leave),
        cmocka_unit_test(test_mismatch), cmocka_unit_test(test_in_a_row), cmocka_unit_test(test_forged), cmocka_unit_test(test_breaks), cmocka_unit_test(test_storm),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    far_noise();
    ranks_environment(4);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (hoccl_settings_load_once())
        return 1;
    hoccl_wire_transport = &near_transport;
    hoccl_wire_watch = watch;
    return cmocka_run_group_tests_name("flows ahead of their streams", tests, NULL, NULL);
}
