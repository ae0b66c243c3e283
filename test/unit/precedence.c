/* SPDX-License-Identifier: Apache-2.0 */
/* In which order the flows of an operation take the wire (p2p/precedence.h), how many of them run at once (core/lines.h), and
 * when a message to oneself begins. */
#include "unit.h"

#include "base/clock.h"
#include "core/lines.h"
#include "p2p/far.h"
#include "p2p/flow.h"
#include "p2p/precedence.h"

enum { N = 6, CHUNK = 1000 };

static struct hoccl_far far_away;
static struct hoccl_peer near_by = {.rank = 1}, away = {.rank = 2, .far = &far_away};

/* Flows of one operation: what they have to move, in chunks; 0: a flow of this node. */
static void make(struct hoccl_flow *f, void *op, bool is_send, const uint32_t *chunks)
{
    memset(f, 0, N * sizeof *f);
    for (int i = 0; i < N; i++) {
        f[i] = (struct hoccl_flow){.op = op, .order = (uint32_t)i, .is_send = is_send, .peer = chunks[i] ? &away : &near_by,
                                   .header.bytes = chunks[i] ? (uint64_t)chunks[i] * CHUNK : 77777};
        f[i].wire.chunk = CHUNK;
        f[i].wire.chunks = chunks[i];
        hoccl_list_init(&f[i].wire.turn);
    }
}

static void is_order(const struct hoccl_list *list, const struct hoccl_flow *f, const int *order, int n)
{
    const struct hoccl_list *l = list->next;
    for (int i = 0; i < n; i++, l = l->next)
        assert_ptr_equal(hoccl_entry(l, const struct hoccl_flow, wire.turn), &f[order[i]]);
    assert_ptr_equal(l, list);
}

/* A direction is uneven if its pieces for other nodes differ; what stays on the node, is empty or a part does not count. */
static void test_judge(void **state)
{
    static const uint32_t same[N] = {5, 0, 5, 5, 0, 5}, other[N] = {5, 0, 5, 6, 0, 5};
    struct hoccl_flow f[2 * N];
    (void)state;
    make(f, f, true, same);
    make(f + N, f, false, other);
    f[2].header.bytes = 0;
    hoccl_precedence_judge(f, 2 * N);
    for (int i = 0; i < N; i++) {
        assert_false(f[i].wire.uneven);
        assert_int_equal(f[N + i].wire.uneven, other[i] != 0);
    }
    make(f, f, true, other);
    for (int i = 0; i < N; i++)
        f[i].header.whole = 12345;
    hoccl_precedence_judge(f, N);
    for (int i = 0; i < N; i++)
        assert_false(f[i].wire.uneven);
}

/* Even: in the operation's order, whatever order they come in; operations in the order in which they came. */
static void test_even(void **state)
{
    static const uint32_t same[N] = {5, 5, 5, 5, 5, 5};
    static const int come[N] = {3, 0, 5, 1, 4, 2}, order[N] = {0, 1, 2, 3, 4, 5};
    struct hoccl_flow f[N], other[N];
    struct hoccl_list list;
    (void)state;
    hoccl_list_init(&list);
    make(f, f, false, same);
    make(other, other, false, same);
    hoccl_precedence_insert(&list, &other[5]);
    for (int i = 0; i < N; i++)
        hoccl_precedence_insert(&list, &f[come[i]]);
    hoccl_precedence_insert(&list, &other[1]);
    assert_ptr_equal(hoccl_entry(list.next, struct hoccl_flow, wire.turn), &other[1]);
    assert_ptr_equal(hoccl_entry(list.next->next, struct hoccl_flow, wire.turn), &other[5]);
    hoccl_list_remove(&other[1].wire.turn);
    hoccl_list_remove(&other[5].wire.turn);
    is_order(&list, f, order, N);
}

/* Uneven: who has most left; of equals the operation's order. What is left changes as slots are granted or filled. */
static void test_uneven(void **state)
{
    static const uint32_t sizes[N] = {3, 9, 9, 1, 20, 4};
    static const int come[N] = {0, 1, 2, 3, 4, 5}, order[N] = {4, 1, 2, 5, 0, 3}, later[N] = {1, 2, 4, 5, 0, 3};
    (void)state;
    for (int is_send = 0; is_send < 2; is_send++) {
        struct hoccl_flow f[N];
        struct hoccl_list list;
        hoccl_list_init(&list);
        make(f, f, is_send, sizes);
        hoccl_precedence_judge(f, N);
        for (int i = 0; i < N; i++)
            hoccl_precedence_insert(&list, &f[come[i]]);
        is_order(&list, f, order, N);
        *(is_send ? &f[4].wire.started : &f[4].wire.granted) = 12; /* 8 are left */
        hoccl_list_remove(&f[4].wire.turn);
        hoccl_precedence_insert(&list, &f[4]);
        is_order(&list, f, later, N);
    }
}

/* A large message to oneself comes behind what its operation pushes to others; late peers it waits for a moment only. */
static void test_self(void **state)
{
    static struct hoccl_peer own = {.same_object = true};
    struct hoccl_flow f[4] = {
        {.is_send = true, .peer = &near_by, .path = HOCCL_PATH_NONE, .state = HOCCL_FLOW_WAITING},
        {.is_send = true, .peer = &away, .path = HOCCL_PATH_NONE, .state = HOCCL_FLOW_WAITING},  /* another node: other engines */
        {.is_send = false, .peer = &near_by, .path = HOCCL_PATH_NONE, .state = HOCCL_FLOW_OFFERED},
        {.is_send = true, .peer = &own, .path = HOCCL_PATH_SELF, .state = HOCCL_FLOW_MOVING, .self.held = true},
    };
    struct hoccl_flow *self = &f[3];
    uint64_t now = 1000 * HOCCL_S;
    (void)state;
    hoccl_self_hold(self, f, 4, now);
    assert_true(self->self.held);
    hoccl_self_hold(self, f, 4, now + 90 * HOCCL_US);
    assert_true(self->self.held);
    f[0].path = HOCCL_PATH_PUSH; /* granted: its mapping is being opened, then the engine has a part of it */
    f[0].state = HOCCL_FLOW_OPENING;
    hoccl_self_hold(self, f, 4, now + HOCCL_S);
    assert_true(self->self.held);
    f[0].state = HOCCL_FLOW_MOVING;
    f[0].transfer[0].bytes = 100;
    f[0].transfer[0].given = 99;
    hoccl_self_hold(self, f, 4, now + 2 * HOCCL_S);
    assert_true(self->self.held);
    f[0].transfer[0].given = 100;
    hoccl_self_hold(self, f, 4, now + 2 * HOCCL_S);
    assert_false(self->self.held);
    f[0].state = HOCCL_FLOW_WAITING; /* a peer that is late */
    f[0].path = HOCCL_PATH_NONE;
    self->self.held_since = 0;
    hoccl_self_hold(self, f, 4, now);
    assert_true(self->self.held);
    hoccl_self_hold(self, f, 4, now + 101 * HOCCL_US);
    assert_false(self->self.held);
    f[0].state = HOCCL_FLOW_OFFERED; /* it pulls, or is given slots */
    self->self.held_since = 0;
    hoccl_self_hold(self, f, 4, now);
    assert_false(self->self.held);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

enum { PEERS = 3, FLOWS = 2000 };

/* Of the line that this flow belongs to: how many run, and whether they begin in their order. */
struct line_seen {
    uint32_t next; /* number of the one that begins next */
    int running;
};

static void look(const struct hoccl_list *running, struct line_seen seen[PEERS][2])
{
    for (const struct hoccl_list *l = running->next; l != running; l = l->next) {
        struct hoccl_flow *f = hoccl_entry(l, struct hoccl_flow, link);
        struct line_seen *s = &seen[f->peer->rank][f->is_send];
        if (f->since) /* seen before */
            continue;
        f->since = 1;
        assert_int_equal(f->number, s->next++);
        assert_in_range(++s->running, 1, HOCCL_LINE_RUNS);
    }
}

/* Flows of all lines are mixed, and end in any order: no line has more than its share, each flow runs once. */
static void test_lines(void **state)
{
    static struct hoccl_flow f[FLOWS];
    struct hoccl_peer peers[PEERS] = {{.rank = 0}, {.rank = 1}, {.rank = 2}};
    struct line_seen seen[PEERS][2] = {{{0}}};
    uint32_t posted[PEERS][2] = {{0}}, x = 12345;
    struct hoccl_list running;
    int ended = 0;
    (void)state;
    hoccl_list_init(&running);
    for (int i = 0; i < FLOWS; i++) {
        x = x * 1664525 + 1013904223;
        int p = i < FLOWS / 2 ? (int)(x >> 16) % PEERS : 0; /* the first peer has most */
        f[i] = (struct hoccl_flow){.peer = &peers[p], .is_send = x >> 31};
        f[i].number = posted[p][f[i].is_send]++;
        hoccl_list_init(&f[i].link);
    }
    hoccl_lines_start(&running, f, FLOWS);
    look(&running, seen);
    for (int p = 0; p < PEERS; p++)
        for (int d = 0; d < 2; d++) {
            assert_null(peers[p].last[d]);
            assert_int_equal(seen[p][d].running, posted[p][d] < HOCCL_LINE_RUNS ? posted[p][d] : HOCCL_LINE_RUNS);
        }
    for (; !hoccl_list_empty(&running); ended++) {
        x = x * 1664525 + 1013904223;
        struct hoccl_list *l = running.next;
        for (uint32_t skip = x >> 24; skip && l->next != &running; skip--)
            l = l->next;
        struct hoccl_flow *one = hoccl_entry(l, struct hoccl_flow, link);
        hoccl_list_remove(l);
        seen[one->peer->rank][one->is_send].running--;
        hoccl_lines_advance(&running, one);
        look(&running, seen);
    }
    assert_int_equal(ended, FLOWS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_judge), cmocka_unit_test(test_even), cmocka_unit_test(test_uneven),
                                       cmocka_unit_test(test_self), cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
