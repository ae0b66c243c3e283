/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong while flows are ahead of their streams. */
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

#define PATIENCE 400000000 /* a HOCCL_WAIT_TIMEOUT, ns */

/* Bytes that are held when their receiver aborts, and slots that are granted and never written, come back to the pool. */
static void abort_held(struct rank *r)
{
    struct work w, good;
    struct gate g;
    HOCCL_Comm comm[4];
    size_t n = 15 * MIB;
    if (!work_open(r, &w, n + 64) || !work_open(r, &good, (size_t)r->size * (34 * MIB)) || !gate_open(r, &g))
        return;
    put(r, &w, 1 - r->rank, n, 6);
    for (int i = 0; i < 4; i++)
        RANK_OK(r, HOCCL_CommSplit(r->comm, 0, r->rank, &comm[i]));
    for (int i = 0; i < 4; i++) {
        uint64_t early = hoccl_peek(&hoccl_wire_counts.early), held = hoccl_peek(&hoccl_wire_counts.held);
        bool sender_late = i % 2;
        pthread_barrier_wait(&meeting);
        hoccl_publish(g.word, 0);
        if (r->rank == sender_late)
            gate_shut(r, &g, w.stream);
        if (r->rank)
            RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, comm[i], w.stream));
        else
            RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, comm[i], w.stream));
        RANK_TRUE(r, come_to(&hoccl_wire_counts.early, early + 1) && (sender_late || come_to(&hoccl_wire_counts.held, held + 1)));
        pthread_barrier_wait(&meeting);
        if (!r->rank)
            RANK_OK(r, HOCCL_CommAbort(comm[i]));
        hoccl_publish(g.word, 1);
        RANK_CUDA(r, cuStreamSynchronize(w.stream));
        pthread_barrier_wait(&meeting);
        if (r->rank)
            RANK_OK(r, HOCCL_CommAbort(comm[i]));
        else
            untouched(r, &w);
    }
    uint64_t lent = hoccl_exchange(&hoccl_wire_counts.lent, 0);
    RANK_TRUE(r, lent <= HOCCL_POOL_EARLY);
    pthread_barrier_wait(&meeting);
    drain(r);
    exchange(r, &good, 33 * MIB, 12);
    all_back(r);
    gate_close(r, &g);
    work_close(r, &good);
    work_close(r, &w);
}

void test_abort_held(void **state)
{
    (void)state;
    begin((struct near_weather){.jitter = 200});
    far_run(2, "2", abort_held, NULL, false);
    assert_int_equal(hoccl_wire_counts.lent, HOCCL_POOL_EARLY); /* by drain: none was lost */
}

#define DEAD 7 /* communicators: what they could be given would leave no slot for a flow of one chunk */

/* Receives that wait for early slots are given none once their sender has left: nobody would write them, and nothing would bring
 * them back while the communicators, which have failed, are not ended. */
static void dead(struct rank *r)
{
    struct work w[DEAD], good;
    struct gate g[DEAD], first;
    HOCCL_Comm comm[DEAD];
    size_t n = 20 * MIB;
    if (!work_open(r, &good, n + 64) || !gate_open(r, &first))
        return;
    for (int i = 0; i < DEAD; i++)
        if (!work_open(r, &w[i], n / 2) || !gate_open(r, &g[i]) || !RANK_OK(r, HOCCL_CommSplit(r->comm, 0, r->rank, &comm[i])))
            return;
    put(r, &good, 1 - r->rank, n, 3);
    pthread_barrier_wait(&meeting);
    if (!r->rank)
        gate_shut(r, &first, good.stream);
    RANK_OK(r, HOCCL_GroupStart());
    for (size_t i = 0; i < n; i += n / 4) /* they take all that may be had early */
        RANK_OK(r, r->rank ? HOCCL_Send((void *)(good.out + i), n / 4, HOCCL_BYTE, 0, r->comm, good.stream)
                           : HOCCL_Recv((void *)(good.in + i), n / 4, HOCCL_BYTE, 1, r->comm, good.stream));
    RANK_OK(r, HOCCL_GroupEnd());
    RANK_TRUE(r, come_to(&hoccl_wire_counts.held, HOCCL_POOL_EARLY));
    for (int i = 0; i < DEAD; i++) {
        gate_shut(r, &g[i], w[i].stream);
        if (r->rank)
            RANK_OK(r, HOCCL_Send((void *)w[i].out, n / 2, HOCCL_BYTE, 0, comm[i], w[i].stream));
        else
            RANK_OK(r, HOCCL_Recv((void *)w[i].in, n / 2, HOCCL_BYTE, 1, comm[i], w[i].stream));
    }
    RANK_TRUE(r, come_to(&hoccl_wire_counts.claimed, 4 + DEAD));
    usleep(20000);
    pthread_barrier_wait(&meeting);
    for (int i = 0; i < DEAD && r->rank; i++)
        RANK_OK(r, HOCCL_CommAbort(comm[i]));
    usleep(20000);
    pthread_barrier_wait(&meeting);
    hoccl_publish(first.word, 1);
    RANK_OK(r, stream_end(r, &good));
    for (int i = 0; i < DEAD; i++) {
        HOCCL_Result error;
        hoccl_publish(g[i].word, 1);
        RANK_CUDA(r, cuStreamSynchronize(w[i].stream));
        RANK_TRUE(r, r->rank || (!HOCCL_CommGetAsyncError(comm[i], &error) && error == HOCCL_ERR_PEER));
    }
    RANK_TRUE(r, hoccl_peek(&hoccl_wire_counts.early) == HOCCL_POOL_EARLY);
    exchange(r, &good, 1000, 4);
    for (int i = 0; i < DEAD && !r->rank; i++)
        RANK_OK(r, HOCCL_CommAbort(comm[i]));
    gate_close(r, &first);
    for (int i = 0; i < DEAD; i++) {
        gate_close(r, &g[i]);
        work_close(r, &w[i]);
    }
    work_close(r, &good);
}

void test_dead(void **state)
{
    (void)state;
    begin((struct near_weather){0});
    far_run(2, "2", dead, NULL, false);
}

/* In a foreground phase of the receiver nothing is asked for ahead of its stream either. */
static void foreground(struct rank *r)
{
    struct work w, front;
    struct gate g;
    size_t n = 300000;
    if (!work_open(r, &w, n + 64) || !work_open(r, &front, 1) || !gate_open(r, &g))
        return;
    put(r, &w, 1 - r->rank, n, 5);
    if (!r->rank) {
        RANK_OK(r, HOCCL_ForegroundBegin(r->comm, front.stream));
        RANK_CUDA(r, cuStreamSynchronize(front.stream));
        gate_shut(r, &g, w.stream);
        RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
        RANK_TRUE(r, come_to(&hoccl_wire_counts.claimed, 1));
        usleep(50000);
        RANK_TRUE(r, hoccl_peek(&hoccl_wire_counts.early) == 0);
        RANK_OK(r, HOCCL_ForegroundEnd(r->comm, front.stream));
        RANK_TRUE(r, come_to(&hoccl_wire_counts.held, 1));
        hoccl_publish(g.word, 1);
    } else {
        RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
    }
    RANK_OK(r, stream_end(r, &w));
    if (!r->rank)
        got(r, &w, 1, n, 5);
    gate_close(r, &g);
    work_close(r, &front);
    work_close(r, &w);
}

void test_foreground(void **state)
{
    uint64_t pause = hoccl_settings.pause;
    (void)state;
    begin((struct near_weather){0});
    hoccl_settings.pause = hoccl_settings.timeout;
    far_run(2, "2", foreground, NULL, false);
    hoccl_settings.pause = pause;
}

/* A send that has early places and waits for this rank's own turn, here the end of a phase, does not wait for its peer. */
static void wait_for_itself(struct rank *r)
{
    struct work w, front;
    struct gate g;
    size_t n = 300000;
    if (!work_open(r, &w, n + 64) || !work_open(r, &front, 1) || !gate_open(r, &g))
        return;
    put(r, &w, 1 - r->rank, n, 5);
    gate_shut(r, &g, w.stream);
    if (r->rank) {
        RANK_OK(r, HOCCL_ForegroundBegin(r->comm, front.stream));
        RANK_CUDA(r, cuStreamSynchronize(front.stream));
        RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
        RANK_TRUE(r, come_to(&hoccl_wire_counts.allowed, 1));
        hoccl_publish(g.word, 1);
        usleep(2 * PATIENCE / 1000);
        RANK_OK(r, HOCCL_ForegroundEnd(r->comm, front.stream));
    } else {
        RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
        RANK_TRUE(r, come_to(&hoccl_wire_counts.held, 1));
        hoccl_publish(g.word, 1);
    }
    RANK_OK(r, stream_end(r, &w));
    if (!r->rank)
        got(r, &w, 1, n, 5);
    gate_close(r, &g);
    work_close(r, &front);
    work_close(r, &w);
}

void test_own_turn(void **state)
{
    uint64_t pause = hoccl_settings.pause, patience = hoccl_settings.wait_timeout;
    (void)state;
    begin((struct near_weather){0});
    hoccl_settings.pause = hoccl_settings.timeout;
    hoccl_settings.wait_timeout = PATIENCE;
    far_run(2, "2", wait_for_itself, NULL, false);
    hoccl_settings.pause = pause;
    hoccl_settings.wait_timeout = patience;
}

/* What is held is delivered although its sender has left meanwhile. */
static void leave(struct rank *r)
{
    struct work w;
    struct gate g;
    size_t n = MIB;
    if (!work_open(r, &w, n + 64) || !gate_open(r, &g))
        return;
    put(r, &w, 1 - r->rank, n, 8);
    if (r->rank) {
        RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
        RANK_OK(r, stream_end(r, &w));
        RANK_OK(r, HOCCL_CommDestroy(r->comm));
        pthread_barrier_wait(&meeting);
    } else {
        gate_shut(r, &g, w.stream);
        RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
        pthread_barrier_wait(&meeting);
        usleep(50000);
        hoccl_publish(g.word, 1);
        RANK_OK(r, stream_end(r, &w));
        got(r, &w, 1, n, 8);
        RANK_OK(r, HOCCL_CommDestroy(r->comm));
    }
    r->comm = HOCCL_COMM_NULL;
    gate_close(r, &g);
    work_close(r, &w);
}

void test_leave(void **state)
{
    (void)state;
    begin((struct near_weather){0});
    far_run(2, "2", leave, NULL, false);
    begin((struct near_weather){.delay = 2000});
    far_run(2, "2", leave, NULL, false);
}

/* The two ends do not agree: both say so, whoever's stream is late, and the operation before it is not harmed. */
static void differ(struct rank *r)
{
    struct work w;
    struct gate g;
    int late = *(int *)r->arg, other = 1 - r->rank;
    size_t n = 300000;
    if (!work_open(r, &w, n + 64) || !gate_open(r, &g))
        return;
    put(r, &w, other, n, 9);
    if (r->rank == late)
        gate_shut(r, &g, w.stream);
    RANK_OK(r, HOCCL_GroupStart());
    RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, other, r->comm, w.stream));
    RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, other, r->comm, w.stream));
    RANK_OK(r, HOCCL_GroupEnd());
    if (r->rank)
        RANK_OK(r, HOCCL_Send((void *)w.out, 1000, HOCCL_BYTE, 0, r->comm, w.stream));
    else
        RANK_OK(r, HOCCL_Recv((void *)(w.in + n), 4, HOCCL_BYTE, 1, r->comm, w.stream));
    usleep(50000);
    hoccl_publish(g.word, 1);
    RANK_TRUE(r, stream_end(r, &w) == HOCCL_ERR_MISMATCH);
    RANK_TRUE(r, strstr(HOCCL_GetLastError(), "1000 bytes") && strstr(HOCCL_GetLastError(), " 4 bytes"));
    got(r, &w, other, n, 9);
    RANK_OK(r, HOCCL_CommAbort(r->comm));
    r->comm = HOCCL_COMM_NULL;
    gate_close(r, &g);
    work_close(r, &w);
}

void test_mismatch(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        begin((struct near_weather){0});
        far_run(2, "2", differ, &late, false);
    }
}

/* ---- words of a peer that is out of its mind ------------------------------------------------------------------------ */

static uint16_t twice; /* enum hoccl_word_kind */

static bool repeat(void *word, size_t *count)
{
    struct hoccl_word_head head;
    (void)count;
    memcpy(&head, word, sizeof head);
    return head.kind == twice;
}

/* Instead of places: that all has been received, or nothing that there is. */
static uint16_t status; /* enum hoccl_answer_status */

static bool answer(void *word, size_t *count)
{
    struct hoccl_word_answer a = {.head = {.kind = HOCCL_WORD_ANSWER, .count = status}};
    struct hoccl_word_head head;
    memcpy(&head, word, sizeof head);
    if (head.kind != HOCCL_WORD_GRANT || !head.count)
        return false;
    a.head.number = head.number;
    memcpy(word, &a, *count = sizeof a);
    return false;
}

/* Both ends end with an error, or well. */
static void bear(struct rank *r)
{
    const char *words = r->arg;
    struct work w;
    struct gate g;
    size_t n = 300000;
    HOCCL_Result e;
    if (!work_open(r, &w, n + 64) || !gate_open(r, &g))
        return;
    put(r, &w, 1 - r->rank, n, 3);
    gate_shut(r, &g, w.stream);
    if (r->rank)
        RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 0, r->comm, w.stream));
    else
        RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1, r->comm, w.stream));
    RANK_TRUE(r, come_to(&hoccl_wire_counts.claimed, 1));
    usleep(20000);
    hoccl_publish(g.word, 1);
    e = stream_end(r, &w);
    RANK_TRUE(r, words ? e == HOCCL_ERR_PEER : !e);
    RANK_TRUE(r, !words || r->rank == (status == 0) || strstr(HOCCL_GetLastError(), words));
    if (!e && !r->rank)
        got(r, &w, 1, n, 3);
    if (e)
        RANK_OK(r, HOCCL_CommAbort(r->comm));
    r->comm = e ? HOCCL_COMM_NULL : r->comm;
    gate_close(r, &g);
    work_close(r, &w);
}

void test_forged(void **state)
{
    static char claims[] = "claims send 0 twice", answers[] = "to send 0 of 300000 bytes";
    (void)state;
    status = 0;
    begin((struct near_weather){.forge = repeat});
    twice = HOCCL_WORD_CLAIM;
    far_run(2, "2", bear, claims, false);
    twice = HOCCL_WORD_REACHED;
    far_run(2, "2", bear, NULL, false);
    begin((struct near_weather){.forge = answer});
    for (status = HOCCL_ANSWER_DONE; status <= HOCCL_ANSWER_FAILED + 1; status += 2)
        far_run(2, "2", bear, answers, false);
    begin((struct near_weather){0});
}

void test_breaks(void **state)
{
    int most = getenv("LONG_TESTS") ? 400 : 120;
    (void)state;
    begin((struct near_weather){0});
    for (int n = 6; n < most; n += 1 + n / 6) {
        near_break((unsigned)n);
        far_run(2, "2", in_a_row_or_failed, NULL, true);
    }
    near_break(0);
}
