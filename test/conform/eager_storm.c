/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations of several communicators on random streams, whose gates open in any order and at any time: all ranks draw the
 * same operations, and each its own streams, gates and pauses. Since all post them in one order, and every gate opens, all of
 * them end. One communicator may be aborted in the middle by one rank, of which the others must not feel anything. */
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

#define ROUND 40   /* operations */
#define MOST 4     /* messages of an operation, streams, ranks */
#define COMMS 3    /* times streams times ranks: not more than a process can have parked */
#define NONE (-1)

struct piece {
    int from, to;
    size_t n, at; /* at: in the buffers of both */
};

/* Messages between two ranks each, or (none) an AllGather. */
struct step {
    int comm, pieces;
    size_t n, at; /* of each rank; of all rows */
    struct piece piece[MOST];
};

/* The same at all ranks. */
struct plan {
    int comms, risky, who; /* risky: the communicator that `who` aborts after `after` operations; NONE: none is */
    int after;
    bool registered, phases;
    size_t room;
    struct step step[ROUND];
};

static uint64_t draw(uint64_t *x, uint64_t below)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return (*x >> 11) % below;
}

static size_t draw_size(uint64_t *x)
{
    switch (draw(x, 8)) {
    case 0:
        return 0;
    case 1:
    case 2:
    case 3:
        return 1 + draw(x, 5000);
    case 4:
    case 5:
        return 1 + draw(x, MIB);
    default:
        return 1 + draw(x, 5 * MIB);
    }
}

static void draw_plan(struct plan *p, uint64_t seed, int size)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 9; i++)
        draw(&x, 2);
    *p = (struct plan){.comms = 1 + (int)draw(&x, COMMS), .risky = NONE};
    if (p->comms > 1 && draw(&x, 2))
        p->risky = 1 + (int)draw(&x, (uint64_t)p->comms - 1);
    p->who = (int)draw(&x, (uint64_t)size);
    p->after = (int)draw(&x, ROUND);
    p->registered = !draw(&x, 3);
    p->phases = !draw(&x, 3);
    for (int i = 0; i < ROUND; i++) {
        struct step *s = &p->step[i];
        s->comm = (int)draw(&x, (uint64_t)p->comms);
        s->pieces = draw(&x, 5) ? 1 + (int)draw(&x, MOST) : 0;
        s->n = s->pieces ? 0 : draw_size(&x) / 2;
        s->at = p->room;
        p->room += s->pieces ? 0 : s->n * (size_t)size + 16;
        for (int k = 0; k < s->pieces; k++) {
            struct piece *m = &s->piece[k];
            m->from = (int)draw(&x, (uint64_t)size);
            m->to = (m->from + 1 + (int)draw(&x, (uint64_t)size - 1)) % size;
            m->n = draw_size(&x);
            m->at = p->room;
            p->room += m->n + 16;
        }
    }
}

struct storm {
    struct plan plan;
    struct work w; /* its stream is one of them */
    CUstream stream[MOST];
    uint32_t *gate; /* a word for each operation */
    CUdeviceptr gates;
    HOCCL_Comm comm[COMMS];
    uint64_t x; /* this rank's own chances */
  
};

static unsigned key(int step, int piece)
{
    return (unsigned)(step * MOST + piece);
}

static bool lay_out(struct rank *r, struct storm *s)
{
    struct plan *p = &s->plan;
    bool good = work_open(r, &s->w, p->room) && RANK_CUDA(r, cuMemsetD8(s->w.in, GUARD, p->room)) &&
                RANK_CUDA(r, cuMemAllocHost((void **)&s->gate, ROUND * sizeof *s->gate)) &&
                RANK_CUDA(r, cuMemHostGetDevicePointer(&s->gates, s->gate, 0));
    if (!good)
        return false;
    memset(s->gate, 0, ROUND * sizeof *s->gate);
    for (int i = 0; i < ROUND; i++) {
        memcpy(s->w.host + p->step[i].at, message(r->rank, 0, key(i, 0)), p->step[i].n);
        for (int k = 0; k < p->step[i].pieces; k++) {
            struct piece *m = &p->step[i].piece[k];
            memcpy(s->w.host + m->at, message(m->from, m->to, key(i, k)), m->n);
        }
    }
    s->stream[0] = s->w.stream;
    for (int i = 1; i < MOST; i++)
        RANK_CUDA(r, cuStreamCreate(&s->stream[i], CU_STREAM_NON_BLOCKING));
    return RANK_CUDA(r, cuMemcpyHtoD(s->w.out, s->w.host, p->room)) && RANK_CUDA(r, cuStreamSynchronize(NULL));
}

static void open_comms(struct rank *r, struct storm *s)
{
    void *handle;
    s->comm[0] = r->comm;
    for (int i = 1; i < s->plan.comms; i++)
        RANK_OK(r, HOCCL_CommSplit(r->comm, 0, r->rank, &s->comm[i]));
    if (s->plan.registered && draw(&s->x, 2))
        RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)s->w.in, s->w.room, &handle));
    if (s->plan.registered && draw(&s->x, 2))
        RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)s->w.out, s->w.room, &handle));
}

/* One end of a message, by a request or without. */
static HOCCL_Result post_end(struct rank *r, struct storm *s, int i, int k, CUstream stream)
{
    const struct piece *m = &s->plan.step[i].piece[k];
    HOCCL_Comm comm = s->comm[s->plan.step[i].comm];
    void *out = (void *)(s->w.out + m->at), *in = (void *)(s->w.in + m->at);
    bool sends = m->from == r->rank;
    HOCCL_Request request;
    HOCCL_Result e;
    if (draw(&s->x, 4))
        return sends ? HOCCL_Send(out, m->n, HOCCL_BYTE, m->to, comm, stream) : HOCCL_Recv(in, m->n, HOCCL_BYTE, m->from, comm, stream);
    e = sends ? HOCCL_Send_init(out, m->n, HOCCL_BYTE, m->to, comm, &request)
              : HOCCL_Recv_init(in, m->n, HOCCL_BYTE, m->from, comm, &request);
    if (e)
        return e;
    e = HOCCL_Start(request, stream);
    RANK_OK(r, HOCCL_RequestFree(request));
    return e;
}

/* What of a step concerns this rank, on one or two streams. */
static HOCCL_Result post(struct rank *r, struct storm *s, int i)
{
    const struct step *t = &s->plan.step[i];
    uint64_t streams = r->size == 2 ? 4 : r->size == 3 ? 3 : 2;
    CUstream one = s->stream[draw(&s->x, streams)], two = draw(&s->x, 4) ? one : s->stream[draw(&s->x, streams)];
    bool phase = s->plan.phases && !draw(&s->x, 6), gated = !draw(&s->x, 3);
    HOCCL_Comm comm = s->comm[t->comm];
    HOCCL_Result e = HOCCL_SUCCESS;
    if (gated)
        RANK_CUDA(r, cuStreamWaitValue32(one, s->gates + (CUdeviceptr)i * sizeof *s->gate, 1, CU_STREAM_WAIT_VALUE_GEQ));
    if (phase)
        e = HOCCL_ForegroundBegin(s->comm[0], one);
    RANK_OK(r, HOCCL_GroupStart());
    for (int k = 0; k < t->pieces && !e; k++) {
        const struct piece *m = &t->piece[k];
        if (m->from == r->rank || m->to == r->rank)
            e = post_end(r, s, i, k, k % 2 ? one : two);
    }
    if (!t->pieces && !e)
        e = HOCCL_AllGather((void *)(s->w.out + t->at), (void *)(s->w.in + t->at), t->n, HOCCL_BYTE, comm, one);
    HOCCL_Result end = HOCCL_GroupEnd();
    if (phase)
        RANK_OK(r, HOCCL_ForegroundEnd(s->comm[0], one));
    return e ? e : end;
}

static void abort_risky(struct rank *r, struct storm *s)
{
    int c = s->plan.risky;
    if (c == NONE || s->comm[c] == HOCCL_COMM_NULL)
        return;
    RANK_OK(r, HOCCL_CommAbort(s->comm[c]));
    s->comm[c] = HOCCL_COMM_NULL;
}

/* Gates up to the last one posted, some of them, in any order. */
static void open_some(struct storm *s, int posted, bool all)
{
    int from = posted ? (int)draw(&s->x, (uint64_t)posted) : 0;
    for (int i = 0; i < posted; i++)
        if (all || !draw(&s->x, 4)) {
            hoccl_publish(&s->gate[(from + i) % posted], 1);
            if (all && !draw(&s->x, 3))
                usleep((useconds_t)draw(&s->x, 2000));
        }
}

static void post_all(struct rank *r, struct storm *s)
{
    const struct plan *p = &s->plan;
    for (int i = 0; i < ROUND; i++) {
        int c = p->step[i].comm;
        if (s->comm[c] != HOCCL_COMM_NULL) {
            HOCCL_Result e = post(r, s, i);
            RANK_TRUE(r, !e || c == p->risky);
        }
        if (r->rank == p->who && i == p->after)
            abort_risky(r, s);
        if (!draw(&s->x, 4))
            usleep((useconds_t)draw(&s->x, 1500));
        if (!draw(&s->x, 3))
            open_some(s, i + 1, false);
    }
    open_some(s, ROUND, true);
}

static void look(struct rank *r, struct storm *s)
{
    const struct plan *p = &s->plan;
    RANK_CUDA(r, cuMemcpyDtoH(s->w.host, s->w.in, p->room));
    for (int i = 0; i < ROUND; i++) {
        const struct step *t = &p->step[i];
        for (int from = 0; from < r->size && t->comm != p->risky; from++)
            same(r, s->w.host + t->at + (size_t)from * t->n, message(from, 0, key(i, 0)), t->n, from);
        filled_with(r, s->w.host + t->at + (size_t)r->size * t->n, GUARD, t->pieces ? 0 : 16);
        for (int k = 0; k < t->pieces; k++) {
            const struct piece *m = &t->piece[k];
            bool mine = m->to == r->rank;
            if (mine && t->comm != p->risky)
                same(r, s->w.host + m->at, message(m->from, m->to, key(i, k)), m->n, m->from);
            filled_with(r, s->w.host + m->at + (mine ? m->n : 0), GUARD, mine ? 16 : m->n + 16);
        }
    }
}

static void storm(struct rank *r)
{
    uint64_t seed = *(uint64_t *)r->arg;
    struct storm *s = calloc(1, sizeof *s);
    HOCCL_Result error;
    if (!RANK_TRUE(r, s))
        return;
    draw_plan(&s->plan, seed, r->size);
    s->x = seed * 1099511628211u + (uint64_t)r->rank * 7919 + 1;
    for (int i = 0; i < 9; i++)
        draw(&s->x, 2);
    if (lay_out(r, s)) {
        open_comms(r, s);
        pthread_barrier_wait(&meeting);
        post_all(r, s);
        for (int i = 0; i < MOST; i++)
            RANK_CUDA(r, cuStreamSynchronize(s->stream[i]));
        for (int c = 0; c < s->plan.comms; c++)
            if (c != s->plan.risky)
                RANK_TRUE(r, !HOCCL_CommGetAsyncError(s->comm[c], &error) && !error);
        look(r, s);
    }
    pthread_barrier_wait(&meeting);
    abort_risky(r, s);
    for (int c = 1; c < s->plan.comms; c++)
        if (c != s->plan.risky)
            RANK_OK(r, HOCCL_CommDestroy(s->comm[c]));
    all_back(r);
    RANK_CUDA(r, cuMemFreeHost(s->gate));
    for (int i = 1; i < MOST; i++)
        RANK_CUDA(r, cuStreamDestroy(s->stream[i]));
    work_close(r, &s->w);
    free(s);
}

void test_storm(void **state)
{
    static const struct {
        int size;
        const char *nodes;
    } of[] = {{2, "2"}, {3, "3"}, {4, "4"}, {4, "2"}};
    const char *at = getenv("STORM"), *rounds = getenv("STORMS");
    uint64_t first = at ? strtoull(at, NULL, 0) : 2, n = rounds ? strtoull(rounds, NULL, 0) : getenv("LONG_TESTS") ? 400 : 2, early = 0;
    (void)state;
    hoccl_settings.pause = 20000000;
    for (uint64_t seed = first; seed < first + n; seed++) {
        uint64_t x = seed * 88172645463325252u + 3;
        int k = (int)draw(&x, sizeof of / sizeof *of);
        begin((struct near_weather){.jitter = (unsigned)draw(&x, 3) * 200, .refuse = (unsigned)draw(&x, 2) * 20,
                                    .on_gpu = draw(&x, 2)});
        if (at || rounds)
            fprintf(stderr, "storm %llu: %d ranks on %s nodes\n", (unsigned long long)seed, of[k].size, of[k].nodes);
        far_run(of[k].size, of[k].nodes, storm, &seed, false);
        assert_true(hoccl_wire_counts.lent <= HOCCL_POOL_EARLY);
        assert_true(hoccl_wire_counts.early <= hoccl_wire_counts.granted);
        early += hoccl_wire_counts.early;
    }
    assert_true(early > 0);
}
