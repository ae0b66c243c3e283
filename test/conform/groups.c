/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is a number of groups; a group is a number of messages, each with its two ranks (maybe one and the same), its
 * bytes, and for both ends a kind of memory, an offset and a stream. A rank posts its part of a group in an order of its
 * own that keeps the order of each pair, in nested groups, and up to three groups before it looks at anything. Every
 * message has buffers of its own; all that surrounds a receive buffer is guard.
 */
#include "groups.h"

#include "../../examples/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64
#define GUARD_BYTE 0xa5
#define MESSAGES 12 /* most of a group */
#define BATCH 3     /* most groups before the streams are waited for */
#define STREAMS 6

enum kind { LEGACY, POOL, VMM, PINNED, KINDS };

static const char *const kind_name[] = {"cuMemAlloc", "cuMemAllocAsync", "cuMemCreate", "pinned host"};

struct end {
    enum kind kind;
    int stream;
    size_t at; /* in the arena of that kind */
};

struct message_plan {
    int comm, source, destination;
    unsigned number;
    size_t bytes;
    struct end out, in;
};

struct group_plan {
    int count;
    struct message_plan message[MESSAGES];
};

struct arena {
    CUdeviceptr base;
    size_t bytes, used;
    CUmemGenericAllocationHandle handle;
};

struct part {
    const struct groups_job *job;
    uint64_t plan, own; /* random numbers: those that all ranks draw, those of this rank alone */
    CUstream stream[STREAMS];
    struct arena out[KINDS], in[KINDS];
    struct group_plan group[BATCH];
    unsigned number;
    unsigned char *scratch;
};

static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static size_t below(uint64_t *state, size_t n)
{
    return (size_t)(draw(state) % n);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t arena_bytes(const struct groups_job *j)
{
    /* every message of a batch may be the largest, but hardly: what no longer fits becomes small */
    return 4 * j->most + (size_t)BATCH * MESSAGES * 2 * (4096 + 4 * GUARD);
}

static void open_vmm(struct arena *a, int device)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t grain;
    check_cuda(cuMemGetAllocationGranularity(&grain, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity");
    a->bytes = (a->bytes + grain - 1) / grain * grain;
    check_cuda(cuMemCreate(&a->handle, a->bytes, &p, 0), "cuMemCreate");
    check_cuda(cuMemAddressReserve(&a->base, a->bytes, 0, 0, 0), "cuMemAddressReserve");
    check_cuda(cuMemMap(a->base, a->bytes, 0, a->handle, 0), "cuMemMap");
    check_cuda(cuMemSetAccess(a->base, a->bytes, &access, 1), "cuMemSetAccess");
}

static void arena_open(struct part *p, struct arena *a, enum kind kind)
{
    void *host;
    *a = (struct arena){.bytes = arena_bytes(p->job)};
    switch (kind) {
    case LEGACY:
        check_cuda(cuMemAlloc(&a->base, a->bytes), "cuMemAlloc");
        break;
    case POOL:
        check_cuda(cuMemAllocAsync(&a->base, a->bytes, p->stream[0]), "cuMemAllocAsync");
        check_cuda(cuStreamSynchronize(p->stream[0]), "cuMemAllocAsync");
        break;
    case VMM:
        open_vmm(a, p->job->device);
        break;
    case PINNED:
        check_cuda(cuMemHostAlloc(&host, a->bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
        a->base = (CUdeviceptr)(uintptr_t)host;
        break;
    case KINDS:
        break;
    }
}

static void arena_close(struct arena *a, enum kind kind)
{
    switch (kind) {
    case LEGACY:
    case POOL:
        check_cuda(cuMemFree(a->base), "cuMemFree");
        break;
    case VMM:
        check_cuda(cuMemUnmap(a->base, a->bytes), "cuMemUnmap");
        check_cuda(cuMemAddressFree(a->base, a->bytes), "cuMemAddressFree");
        check_cuda(cuMemRelease(a->handle), "cuMemRelease");
        break;
    case PINNED:
        check_cuda(cuMemFreeHost((void *)(uintptr_t)a->base), "cuMemFreeHost");
        break;
    case KINDS:
        break;
    }
}

static void put(enum kind kind, CUdeviceptr to, const void *from, size_t n)
{
    if (kind == PINNED)
        memcpy((void *)(uintptr_t)to, from, n);
    else
        copy_in(to, from, n);
}

static void get(enum kind kind, void *to, CUdeviceptr from, size_t n)
{
    if (kind == PINNED)
        memcpy(to, (void *)(uintptr_t)from, n);
    else if (n)
        check_cuda(cuMemcpyDtoH(to, from, n), "cuMemcpyDtoH");
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static size_t draw_bytes(uint64_t *s, size_t most)
{
    switch (below(s, 20)) {
    case 0:
    case 1:
        return 0;
    case 2:
    case 3:
    case 4:
        return 1 + below(s, 16);
    case 5:
    case 6:
        return 65535 + below(s, 3);
    case 7:
    case 8:
        return 1 + below(s, 300000);
    case 9:
        return 1 + below(s, most);
    default:
        return 1 + below(s, 5000);
    }
}

/* The two ends' places; `used` is what all ranks' arenas hold at most, so that all draw alike. */
static void draw_ends(struct part *p, struct message_plan *m, size_t used[2][KINDS], size_t room)
{
    struct end *ends[2] = {&m->out, &m->in};
    for (int e = 0; e < 2; e++) {
        ends[e]->kind = (enum kind)below(&p->plan, KINDS);
        ends[e]->stream = (int)below(&p->plan, (size_t)p->job->streams);
        size_t *u = &used[e][ends[e]->kind];
        ends[e]->at = *u + GUARD + below(&p->plan, GUARD);
        if (ends[e]->at + m->bytes + GUARD > room)
            m->bytes = 0;
    }
    for (int e = 0; e < 2; e++)
        used[e][ends[e]->kind] = ends[e]->at + m->bytes + GUARD;
}

static int draw_batch(struct part *p)
{
    int n = 1 + (int)below(&p->plan, BATCH);
    size_t used[2][KINDS] = {{0}};
    for (int g = 0; g < n; g++) {
        struct group_plan *group = &p->group[g];
        group->count = 1 + (int)below(&p->plan, MESSAGES);
        for (int i = 0; i < group->count; i++) {
            struct message_plan *m = &group->message[i];
            *m = (struct message_plan){.comm = (int)below(&p->plan, 4) == 0, .number = p->number++};
            m->source = (int)below(&p->plan, (size_t)p->job->size);
            m->destination = (int)below(&p->plan, (size_t)p->job->size);
            m->bytes = draw_bytes(&p->plan, p->job->most);
            draw_ends(p, m, used, arena_bytes(p->job));
        }
    }
    return n;
}

/* ---- one batch --------------------------------------------------------------------------------------------------- */

static struct message name_of(const struct message_plan *m)
{
    return (struct message){m->source, m->destination, m->number};
}

static void prepare(struct part *p, const struct message_plan *m)
{
    if (m->source == p->job->rank) {
        pattern_fill_host(p->scratch, m->bytes, name_of(m));
        put(m->out.kind, p->out[m->out.kind].base + m->out.at, p->scratch, m->bytes);
    }
    if (m->destination == p->job->rank) {
        memset(p->scratch, GUARD_BYTE, m->bytes + 2 * GUARD);
        put(m->in.kind, p->in[m->in.kind].base + m->in.at - GUARD, p->scratch, m->bytes + 2 * GUARD);
    }
}

/* Sends and receives as queues, one for each communicator, direction and peer; the heads are posted in random order. */
struct posting {
    const struct message_plan *waiting[2 * MESSAGES];
    bool is_send[2 * MESSAGES];
    int count;
};

static bool same_queue(const struct posting *x, int a, int b)
{
    const struct message_plan *m = x->waiting[a], *n = x->waiting[b];
    return m->comm == n->comm && x->is_send[a] == x->is_send[b] &&
           (x->is_send[a] ? m->destination == n->destination : m->source == n->source);
}

static void take_random(struct part *p, struct posting *x, const struct message_plan **m, bool *is_send)
{
    int i = (int)below(&p->own, (size_t)x->count);
    for (int j = 0; j < i; j++)
        if (same_queue(x, j, i))
            i = j; /* the first of its queue: the loop ends */
    *m = x->waiting[i];
    *is_send = x->is_send[i];
    x->count--;
    memmove(&x->waiting[i], &x->waiting[i + 1], (size_t)(x->count - i) * sizeof x->waiting[0]);
    memmove(&x->is_send[i], &x->is_send[i + 1], (size_t)(x->count - i) * sizeof x->is_send[0]);
}

static void post_one(struct part *p, const struct message_plan *m, bool is_send)
{
    const struct end *e = is_send ? &m->out : &m->in;
    void *buffer = (void *)(uintptr_t)((is_send ? p->out : p->in)[e->kind].base + e->at);
    HOCCL_Comm comm = p->job->comm[m->comm];
    if (is_send)
        check_hoccl(HOCCL_Send(buffer, m->bytes, HOCCL_BYTE, m->destination, comm, p->stream[e->stream]), "HOCCL_Send");
    else
        check_hoccl(HOCCL_Recv(buffer, m->bytes, HOCCL_BYTE, m->source, comm, p->stream[e->stream]), "HOCCL_Recv");
}

static void post_group(struct part *p, const struct group_plan *g)
{
    struct posting x = {.count = 0};
    int depth = 1;
    for (int i = 0; i < g->count; i++)
        for (int send = 0; send < 2; send++)
            if ((send ? g->message[i].source : g->message[i].destination) == p->job->rank) {
                x.waiting[x.count] = &g->message[i];
                x.is_send[x.count++] = send;
            }
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    while (x.count) {
        const struct message_plan *m;
        bool is_send;
        size_t nest = below(&p->own, 8);
        if (nest == 0) {
            check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
            depth++;
        } else if (nest == 1 && depth > 1) {
            check_hoccl(HOCCL_GroupEnd(), "an inner HOCCL_GroupEnd");
            depth--;
        }
        take_random(p, &x, &m, &is_send);
        post_one(p, m, is_send);
    }
    while (depth--)
        check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

unsigned long groups_messages, groups_far_messages;

static void count(const struct message_plan *m)
{
    const char *nodes = getenv("HOCCL_TEST_NODE");
    int n = nodes && !strchr(nodes, '+') ? atoi(nodes) : 1;
    __atomic_add_fetch(&groups_messages, 1, __ATOMIC_RELAXED);
    if (n > 1 && m->source % n != m->destination % n)
        __atomic_add_fetch(&groups_far_messages, 1, __ATOMIC_RELAXED);
}

static void verify(struct part *p, const struct message_plan *m)
{
    size_t at = 0;
    int right = 0;
    if (m->destination != p->job->rank)
        return;
    get(m->in.kind, p->scratch, p->in[m->in.kind].base + m->in.at - GUARD, m->bytes + 2 * GUARD);
    size_t wrong = pattern_check(p->scratch + GUARD, m->bytes, name_of(m), &at, &right);
    for (size_t i = 0; i < GUARD && !wrong; i++)
        if (p->scratch[i] != GUARD_BYTE || p->scratch[GUARD + m->bytes + i] != GUARD_BYTE)
            fail("rank %d, message %u: a byte beside the buffer has been written", p->job->rank, m->number);
    if (wrong)
        fail("seed %llu, message %u, rank %d to %d, %s to %s: %zu of %zu bytes are wrong, the first at %zu: 0x%02x, not 0x%02x",
             (unsigned long long)p->job->seed, m->number, m->source, m->destination, kind_name[m->out.kind],
             kind_name[m->in.kind], wrong, m->bytes, at, p->scratch[GUARD + at], right);
    count(m);
}

static void for_all(struct part *p, int groups, void (*f)(struct part *, const struct message_plan *))
{
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < p->group[g].count; i++)
            f(p, &p->group[g].message[i]);
}

/* All ranks come by, also those that have nothing to do. */
static void batch(struct part *p, int groups)
{
    HOCCL_Result e;
    for_all(p, groups, prepare);
    for (int g = 0; g < groups; g++)
        post_group(p, &p->group[g]);
    for (int s = 0; s < p->job->streams; s++)
        check_cuda(cuStreamSynchronize(p->stream[s]), "cuStreamSynchronize");
    for (int c = 0; c < 2; c++) {
        check_hoccl(HOCCL_CommGetAsyncError(p->job->comm[c], &e), "HOCCL_CommGetAsyncError");
        check_hoccl(e, "a random group");
    }
    for_all(p, groups, verify);
}

/* Now and then the memory is another one, perhaps at the same address. */
static void renew(struct part *p)
{
    enum kind kind = (enum kind)below(&p->plan, KINDS);
    struct arena *a = below(&p->plan, 2) ? &p->out[kind] : &p->in[kind];
    if (below(&p->plan, 4))
        return;
    if (p->job->quiet)
        p->job->quiet();
    arena_close(a, kind);
    arena_open(p, a, kind);
    if (p->job->quiet)
        p->job->quiet();
}

void groups_run(const struct groups_job *job)
{
    struct part p = {.job = job, .plan = job->seed, .own = job->seed * 1000003u + (uint64_t)job->rank};
    p.scratch = malloc(job->most + 400000 + 2 * GUARD);
    if (!p.scratch)
        fail("no memory");
    for (int s = 0; s < STREAMS; s++) /* the last two are the stream of the thread and the NULL stream */
        if (s < 4)
            check_cuda(cuStreamCreate(&p.stream[s], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        else
            p.stream[s] = s == 4 ? CU_STREAM_PER_THREAD : NULL;
    for (int k = 0; k < KINDS; k++) {
        arena_open(&p, &p.out[k], (enum kind)k);
        arena_open(&p, &p.in[k], (enum kind)k);
    }
    for (int done = 0; done < job->groups;) {
        int n = draw_batch(&p);
        batch(&p, n);
        renew(&p);
        done += n;
    }
    if (job->quiet)
        job->quiet();
    for (int k = 0; k < KINDS; k++) {
        arena_close(&p.out[k], (enum kind)k);
        arena_close(&p.in[k], (enum kind)k);
    }
    for (int s = 0; s < 4; s++)
        check_cuda(cuStreamDestroy(p.stream[s]), "cuStreamDestroy");
    free(p.scratch);
}
