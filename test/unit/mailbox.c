/* SPDX-License-Identifier: Apache-2.0 */
/* Boards, and the words of a flow without bytes between two ranks (threads here), past the place where numbers wrap. */
#define _GNU_SOURCE
#include "unit.h"

#include "base/setting.h"
#include "p2p/flow.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#define FLOWS 30000

/* ---- boards ------------------------------------------------------------------------------------------------------ */

static const uint32_t firsts[] = {0, 1, 63, 0x7ffffff8, 0xffffffc0, 0xfffffff6};

static void test_tags(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        struct hoccl_board *b;
        size_t bytes;
        uint64_t number;
        int fd;
        bool registered;
        OK(hoccl_board_create(3, firsts[i], &b, &bytes, &fd, &number));
        for (int p = 0; p < 3; p++)
            for (uint32_t n = firsts[i]; n != firsts[i] + HOCCL_SLOTS; n++) {
                const struct hoccl_slot *s = &b->ring[p].slot[n % HOCCL_SLOTS];
                const uint32_t tags[] = {s->grant.tag, s->offer.tag, s->receipt.tag, s->receipt.staged, s->answer.tag};
                for (size_t k = 0; k < sizeof tags / sizeof *tags; k++) {
                    assert_int_equal(tags[k], n - HOCCL_SLOTS);
                    assert_int_not_equal(HOCCL_GRANT_TAKEN(tags[k]), n);
                    assert_int_not_equal(HOCCL_GRANT_WITHDRAWN(tags[k]), n);
                }
            }
        assert_int_equal(hoccl_board_state(b), HOCCL_BOARD_OPEN);
        assert_false(hoccl_board_quiet(b));
        close(fd);
        assert_true(hoccl_board_leave(b, false, &registered));
        hoccl_board_unmap(b, bytes);
    }
}

static void test_map(void **state)
{
    struct hoccl_board *b, *m;
    size_t bytes;
    uint64_t number;
    int fd;
    bool registered;
    (void)state;
    OK(hoccl_board_create(2, 0, &b, &bytes, &fd, &number));
    OK(hoccl_board_map(fd, bytes, 2, &m));
    hoccl_board_say(m, HOCCL_BOARD_FAILED, "the first reason");
    hoccl_board_say(m, HOCCL_BOARD_FAILED, "a later one");
    assert_int_equal(hoccl_board_state(b), HOCCL_BOARD_FAILED);
    assert_string_equal(b->status.text, "the first reason");
    assert_false(hoccl_board_quiet(b));
    hoccl_board_say_quiet(m);
    assert_true(hoccl_board_quiet(b));
    hoccl_board_unmap(m, bytes);
    FAILS(hoccl_board_map(fd, bytes, 3, &m), HOCCL_ERR_BOOTSTRAP, "another size");
    FAILS(hoccl_board_map(fd, bytes - 4096, 2, &m), HOCCL_ERR_BOOTSTRAP, "another size");
    b->status.version++;
    FAILS(hoccl_board_map(fd, bytes, 2, &m), HOCCL_ERR_BOOTSTRAP, "another layout");
    assert_int_equal(ftruncate(fd, 4096), 0);
    FAILS(hoccl_board_map(fd, bytes, 2, &m), HOCCL_ERR_BOOTSTRAP, "another size");
    close(fd);
    assert_true(hoccl_board_leave(b, false, &registered));
    hoccl_board_unmap(b, bytes);
}

/* A text longer than its place is cut. */
static void test_long_text(void **state)
{
    struct hoccl_board *b;
    size_t bytes;
    uint64_t number;
    int fd;
    bool registered;
    char text[2 * HOCCL_STATUS_TEXT];
    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    OK(hoccl_board_create(1, 0, &b, &bytes, &fd, &number));
    hoccl_board_say(b, HOCCL_BOARD_FAILED, text);
    assert_int_equal(strlen(b->status.text), HOCCL_STATUS_TEXT - 1);
    close(fd);
    assert_true(hoccl_board_leave(b, false, &registered));
    hoccl_board_unmap(b, bytes);
}

/* Memory that cannot be had is an error with the bytes, here and not as a signal later. */
static void test_no_memory(void **state)
{
    struct rlimit old, small;
    struct hoccl_board *b;
    size_t bytes;
    uint64_t number;
    int fd;
    char words[32];
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 65536;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    HOCCL_Result r = hoccl_board_create(4, 0, &b, &bytes, &fd, &number);
    setrlimit(RLIMIT_FSIZE, &old);
    snprintf(words, sizeof words, "%zu bytes", (sizeof(struct hoccl_board) + 4 * HOCCL_SLOTS * sizeof(struct hoccl_slot) + 4095) / 4096 * 4096);
    FAILS(r, HOCCL_ERR_MEMORY, words);
    FAILS(r, HOCCL_ERR_MEMORY, "mailboxes of 4 ranks");
}

/* ---- flows ------------------------------------------------------------------------------------------------------- */

/* Rank 0 sends, rank 1 receives and owns the board. */
struct pair {
    struct hoccl_board *board[2];
    size_t bytes;
    struct hoccl_peer sender_sees, receiver_sees;
    uint32_t first;
};

static void pair_open(struct pair *p, uint32_t first)
{
    uint64_t number;
    int fd;
    memset(p, 0, sizeof *p);
    OK(hoccl_settings_load());
    p->first = first;
    for (int i = 0; i < 2; i++) {
        OK(hoccl_board_create(2, first, &p->board[i], &p->bytes, &fd, &number));
        close(fd);
    }
    p->sender_sees = (struct hoccl_peer){.rank = 1, .link.fd = -1, .board = p->board[1], .out = p->board[1]->ring[0].slot};
    p->receiver_sees = (struct hoccl_peer){.rank = 0, .link.fd = -1, .board = p->board[0], .in = p->board[1]->ring[0].slot};
    for (uint32_t n = first; n != first + HOCCL_SLOTS; n++)
        p->receiver_sees.answered[n % HOCCL_SLOTS] = n - HOCCL_SLOTS;
}

static void pair_close(struct pair *p)
{
    bool registered;
    for (int i = 0; i < 2; i++) {
        assert_true(hoccl_board_leave(p->board[i], false, &registered));
        hoccl_board_unmap(p->board[i], p->bytes);
    }
}

static struct hoccl_flow flow_of(struct pair *p, bool is_send, uint32_t number, uint64_t bytes)
{
    struct hoccl_flow f = {.is_send = is_send, .peer = is_send ? &p->sender_sees : &p->receiver_sees, .number = number,
                           .header = {.bytes = bytes, .kind = HOCCL_FLOW_SEND_RECV, .element_size = 1}};
    hoccl_list_init(&f.link);
    return f;
}

struct side {
    struct pair *pair;
    bool is_send;
    uint32_t done;
    HOCCL_Result result;
};

#define AHEAD 100 /* more than the ring has slots */

/* Up to AHEAD flows at once, stepped in turn; they must end in order. */
static void *run_side(void *arg)
{
    static struct hoccl_gpu gpu[2];
    struct side *s = arg;
    struct hoccl_flow *f = calloc(AHEAD, sizeof *f);
    uint32_t begun = 0;
    while (s->done < FLOWS && !s->result) {
        bool moved = false;
        for (; begun < FLOWS && begun - s->done < AHEAD; begun++)
            f[begun % AHEAD] = flow_of(s->pair, s->is_send, s->pair->first + begun, 0);
        for (uint32_t i = s->done; i != begun && !s->result; i++)
            s->result = hoccl_flow_step(&gpu[s->is_send], &f[i % AHEAD], &moved);
        while (s->done != begun && f[s->done % AHEAD].state == HOCCL_FLOW_DONE)
            s->done++;
        if (!moved)
            sched_yield();
    }
    free(f);
    return NULL;
}

static void test_flows_wrap(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        struct pair p;
        pthread_t t;
        pair_open(&p, firsts[i] - (i % 2 ? FLOWS / 2 : 0));
        struct side send = {.pair = &p, .is_send = true}, receive = {.pair = &p};
        pthread_create(&t, NULL, run_side, &send);
        run_side(&receive);
        pthread_join(t, NULL);
        OK(send.result);
        OK(receive.result);
        assert_int_equal(send.done, FLOWS);
        assert_int_equal(receive.done, FLOWS);
        pair_close(&p);
    }
}

static void test_mismatch(void **state)
{
    static struct hoccl_gpu gpu;
    struct pair p;
    bool moved;
    (void)state;
    pair_open(&p, 0xffffffff);
    struct hoccl_flow s = flow_of(&p, true, p.first, 10), r = flow_of(&p, false, p.first, 20);
    OK(hoccl_flow_step(&gpu, &s, &moved));
    assert_int_equal(s.state, HOCCL_FLOW_WAITING);
    OK(hoccl_flow_step(&gpu, &r, &moved));
    FAILS(hoccl_flow_step(&gpu, &s, &moved), HOCCL_ERR_MISMATCH, "sends 10 bytes");
    FAILS(HOCCL_ERR_MISMATCH, HOCCL_ERR_MISMATCH, "expects 20 bytes");
    FAILS(hoccl_flow_step(&gpu, &r, &moved), HOCCL_ERR_MISMATCH, "expects 20 bytes");
    FAILS(HOCCL_ERR_MISMATCH, HOCCL_ERR_MISMATCH, "sends 10 bytes");
    /* the same bytes in another kind of operation */
    s = flow_of(&p, true, p.first + 1, 8);
    r = flow_of(&p, false, p.first + 1, 8);
    r.header.kind = HOCCL_FLOW_ALLTOALL;
    r.header.operation = 5;
    OK(hoccl_flow_step(&gpu, &r, &moved));
    FAILS(hoccl_flow_step(&gpu, &s, &moved), HOCCL_ERR_MISMATCH, "Send/Recv");
    FAILS(hoccl_flow_step(&gpu, &r, &moved), HOCCL_ERR_MISMATCH, "Alltoall (collective 5)");
    pair_close(&p);
}

/* ---- a failing receiver against a sender that begins --------------------------------------------------------------- */

#define ROUNDS 4000

struct race {
    struct pair pair;
    struct hoccl_flow send, receive;
    pthread_barrier_t barrier;
};

static void *race_sender(void *arg)
{
    static struct hoccl_gpu gpu;
    struct race *r = arg;
    bool moved;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&r->barrier);
        for (int k = 0; k < i % 5; k++)
            hoccl_flow_step(&gpu, &r->send, &moved);
        pthread_barrier_wait(&r->barrier);
    }
    return NULL;
}

/* Whoever changes the tag first has the grant: a receive that is quiet before it was answered is never answered. */
static void test_withdrawal(void **state)
{
    static struct hoccl_gpu gpu;
    struct race r;
    pthread_t t;
    int withdrawn = 0, answered = 0;
    bool moved;
    (void)state;
    pair_open(&r.pair, 0xfffffff0);
    pthread_barrier_init(&r.barrier, NULL, 2);
    pthread_create(&t, NULL, race_sender, &r);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t n = r.pair.first + i;
        const struct hoccl_slot *s = &r.pair.board[1]->ring[0].slot[n % HOCCL_SLOTS];
        r.pair.receiver_sees.answered[n % HOCCL_SLOTS] = n - HOCCL_SLOTS;
        r.send = flow_of(&r.pair, true, n, 0);
        r.receive = flow_of(&r.pair, false, n, 0);
        OK(hoccl_flow_step(&gpu, &r.receive, &moved));
        pthread_barrier_wait(&r.barrier);
        while (!hoccl_flow_drain(&gpu, &r.receive))
            sched_yield();
        bool seen = hoccl_observe(&s->answer.tag) == n; /* at the moment when it was quiet */
        pthread_barrier_wait(&r.barrier);
        assert_int_equal(hoccl_observe(&s->answer.tag) == n, seen);
        assert_int_equal(r.send.state == HOCCL_FLOW_DONE, seen);
        assert_int_equal(hoccl_observe(&s->grant.tag), seen ? HOCCL_GRANT_TAKEN(n) : HOCCL_GRANT_WITHDRAWN(n));
        withdrawn += !seen;
        answered += seen;
    }
    pthread_join(t, NULL);
    assert_true(withdrawn >= ROUNDS / 5);
    print_message("%d withdrawn, %d answered\n", withdrawn, answered);
    pair_close(&r.pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tags),       cmocka_unit_test(test_map),      cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_flows_wrap), cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_withdrawal),
    };
    alarm(250);
    return cmocka_run_group_tests_name("mailbox", tests, NULL, NULL);
}
