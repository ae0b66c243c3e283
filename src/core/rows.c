/* SPDX-License-Identifier: Apache-2.0 */
/* Over the sockets and connections that ranks hold to one another (boot/gather.h), by the calling threads:
 *
 *   step 0 … k     ── what I send, and what the network costs me, a piece of the row at a time ──▶
 *                  each compares its column with what it expects; up to 64 ranks keep the whole matrix
 *                  all make the same choice (sched/choice.h), of the same matrix and the slowest rank's costs
 *   step k + 1     ── who sends me what I do not expect, and the hash of my choice ──▶
 *                  the first fault is everybody's error; else all have the same, and none has failed
 *
 * A rank that fails on the way gives the call up, and says why: then all fail. */
#include "core/rows.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "boot/gather.h"
#include "p2p/pool.h"
#include "p2p/wire.h"

#include <stdlib.h>
#include <string.h>

#define PIECE 256 /* ranks in a step */

_Static_assert(HOCCL_GRANTS_SLOT == HOCCL_POOL_SLOT && HOCCL_GRANTS_SLOTS == HOCCL_POOL_SLOTS, "the model has the pool's sizes");

const struct hoccl_grants_cost *hoccl_rows_cost;

/* What a rank says in a step; `sends` begins with the step's first rank, and is as long as the step has ranks. */
struct piece {
    struct hoccl_grants_cost cost;
    uint64_t element_size;
    uint64_t sends[PIECE];
};

_Static_assert(sizeof(struct piece) <= HOCCL_BLOB_MAX, "it is one packet");

/* What a rank has found. */
struct verdict {
    int64_t source; /* who sends it what it does not expect, −1: nobody */
    uint64_t sends, sends_element, expects, expects_element; /* bytes */
    uint64_t hash;  /* of the choice */
};

/* One call. */
struct agreeing {
    struct hoccl_comm *comm;
    const struct hoccl_rows *rows;
    struct hoccl_gather gather;
    int *ranks;        /* all of them */
    uint64_t *column;  /* what each sends to this one */
    uint64_t *element; /* and the size of its elements */
    uint64_t *matrix;  /* of everybody; NULL: it is not wanted */
    struct hoccl_grants_cost cost; /* the slowest rank's */
    char *said;        /* what all have said in a step, or found */
};

static HOCCL_Result check(void *arg)
{
    struct hoccl_comm *comm = arg;
    if (hoccl_observe(&comm->abort))
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "the communicator was aborted meanwhile");
    return hoccl_comm_error(comm);
}

/* ---- what the network costs -------------------------------------------------------------------------------------- */

/* Small and large chunks of a pipeline as a straight line. */
static struct hoccl_grants_cost cost_of(const struct hoccl_pipe *pipe, unsigned ahead)
{
    uint64_t large = hoccl_pipe_pace(pipe, HOCCL_POOL_SLOT), small = hoccl_pipe_pace(pipe, HOCCL_POOL_SLOT / 16);
    uint64_t each = large > small ? (large - small) * 16 / 15 : large;
    return (struct hoccl_grants_cost){.chunk_ns = each, .start_ns = large > each ? large - each : 0,
                                      .grant_ns = hoccl_pipe_before(pipe, HOCCL_POOL_SLOT),
                                      .free_ns = hoccl_pipe_behind(pipe, HOCCL_POOL_SLOT), .ahead = ahead};
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void slower(struct hoccl_grants_cost *all, const struct hoccl_grants_cost *one)
{
    all->chunk_ns = later(all->chunk_ns, one->chunk_ns);
    all->start_ns = later(all->start_ns, one->start_ns);
    all->grant_ns = later(all->grant_ns, one->grant_ns);
    all->free_ns = later(all->free_ns, one->free_ns);
    all->ahead = all->ahead && all->ahead < one->ahead ? all->ahead : one->ahead;
}

/* Of this rank's connections; those that are not made yet will be like the others. */
static struct hoccl_grants_cost own_cost(const struct hoccl_comm *comm)
{
    const struct hoccl_wire *wire = comm->gpu->wire;
    struct hoccl_grants_cost cost = {0};
    for (int p = 0; p < comm->size; p++) {
        const struct hoccl_far *far = comm->peers[p].far;
        uint32_t state = far ? hoccl_observe(&far->state) : HOCCL_FAR_NEW;
        struct hoccl_grants_cost one;
        if (state != HOCCL_FAR_JOINED && state != HOCCL_FAR_OPEN)
            continue;
        one = cost_of(&far->pipe, far->ahead);
        slower(&cost, &one);
    }
    if (!cost.ahead && comm->abroad.count) {
        struct hoccl_pipe pipe = hoccl_pipe_make(wire->in.place == HOCCL_POOL_GPU, &wire->transport->cost, 2);
        unsigned ahead = hoccl_pipe_depth(&pipe, HOCCL_POOL_SLOT);
        cost = cost_of(&pipe, ahead < HOCCL_GRANT_MOST ? ahead : HOCCL_GRANT_MOST);
    }
    return cost;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static struct hoccl_gather gather_of(struct hoccl_comm *comm, const int *ranks)
{
    return (struct hoccl_gather){.name = "agreeing on the counts", .links = comm->links, .ranks = ranks, .count = comm->size,
                                 .me = comm->rank, .tree = comm->abroad.sparse, .call = ++comm->exchanges,
                                 .timeout = hoccl_settings.init_timeout, .check = check, .arg = comm,
                                 .stir = hoccl_abroad_stir, .why = hoccl_abroad_why, .stirred = comm};
}

static int *all_ranks(const struct hoccl_comm *comm)
{
    int *ranks = hoccl_alloc((size_t)comm->size * sizeof *ranks, "agreeing on the counts");
    for (int p = 0; p < comm->size && ranks; p++)
        ranks[p] = p;
    return ranks;
}

static HOCCL_Result begin(struct agreeing *a)
{
    size_t size = (size_t)a->comm->size;
    bool plan = a->comm->layout && size <= HOCCL_GRANTS_MOST;
    a->column = hoccl_alloc(2 * size * sizeof *a->column, "agreeing on the counts");
    a->matrix = plan ? hoccl_alloc(size * size * sizeof *a->matrix, "agreeing on the counts") : NULL;
    a->said = hoccl_alloc(size * sizeof(struct piece), "agreeing on the counts");
    if (!a->column || !a->said || (plan && !a->matrix))
        return HOCCL_ERR_MEMORY;
    a->element = a->column + size;
    return HOCCL_SUCCESS;
}

static void end(struct agreeing *a)
{
    free(a->ranks);
    free(a->column);
    free(a->matrix);
    free(a->said);
}

/* What rank p has said of the `n` ranks from `first` on. */
static void keep(struct agreeing *a, int p, const struct piece *piece, int first, int n)
{
    int me = a->comm->rank;
    if (!first)
        slower(&a->cost, &piece->cost);
    a->element[p] = piece->element_size;
    if (me >= first && me < first + n)
        a->column[p] = piece->sends[me - first];
    if (a->matrix)
        memcpy(a->matrix + (size_t)p * (size_t)a->comm->size + first, piece->sends, (size_t)n * sizeof *piece->sends);
}

static HOCCL_Result exchange(struct agreeing *a)
{
    struct piece mine = {.cost = hoccl_rows_cost ? *hoccl_rows_cost : own_cost(a->comm), .element_size = a->rows->element_size};
    int size = a->comm->size;
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int first = 0; first < size && !r; first += PIECE, a->gather.step++) {
        int n = size - first < PIECE ? size - first : PIECE;
        size_t bytes = offsetof(struct piece, sends) + (size_t)n * sizeof *mine.sends;
        memcpy(mine.sends, a->rows->sends + first, (size_t)n * sizeof *mine.sends);
        r = hoccl_gather(&a->gather, &mine, bytes, a->said);
        for (int p = 0; p < size && !r; p++)
            keep(a, p, (const struct piece *)(a->said + (size_t)p * bytes), first, n);
    }
    return r;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

/* One line of what all ranks do, by the lowest. */
static void say(const struct agreeing *a, const struct hoccl_choice *c, const char *why)
{
    const struct hoccl_comm *comm = a->comm;
    if (comm->rank)
        return;
    if (why)
        hoccl_log(HOCCL_LOG_INFO, "an Alltoallv of %d ranks goes by grants: %s", comm->size, why);
    else
        hoccl_log(HOCCL_LOG_INFO, "an Alltoallv of %d ranks on %d nodes goes by %s: %llu µs between nodes by the best plan (%s), %llu by "
                  "grants, %llu at the least; a plan has to be faster by a thirty-second", comm->size, comm->layout->nodes,
                  c->planned ? "plan" : "grants", (unsigned long long)c->plan_ns / 1000,
                  c->list ? "list" : "stages", (unsigned long long)c->grants_ns / 1000,
                  (unsigned long long)c->bound_ns / 1000);
}

/* MEMORY only: what else cannot be planned is the same at all ranks, and they go by grants. */
static HOCCL_Result choose(struct agreeing *a, struct hoccl_choice *choice)
{
    struct hoccl_plan_error error = {""};
    *choice = (struct hoccl_choice){0};
    if (!a->matrix) {
        say(a, choice, a->comm->layout ? "a plan is made for up to 64" : "all are on one node, or they are more than can be planned");
        return HOCCL_SUCCESS;
    }
    int status = hoccl_choice_make(choice, a->comm->layout, &a->cost, a->matrix, &error);
    if (status == HOCCL_PLAN_MEMORY)
        return hoccl_fail(HOCCL_ERR_MEMORY, "%s", error.text);
    say(a, choice, status ? error.text : choice->bound_ns ? NULL : "nothing goes between nodes");
    return HOCCL_SUCCESS;
}

static struct verdict judge(const struct agreeing *a, const struct hoccl_choice *choice)
{
    struct verdict v = {.source = -1, .hash = choice->planned ? hoccl_parts_hash(&choice->parts) : 0};
    for (int p = 0; p < a->comm->size && v.source < 0; p++)
        if (a->column[p] != a->rows->receives[p])
            v = (struct verdict){p, a->column[p], a->element[p], a->rows->receives[p], a->rows->element_size, 0};
    return v;
}

static HOCCL_Result differ(int destination, const struct verdict *v)
{
    return hoccl_fail(HOCCL_ERR_MISMATCH,
                      "rank %d sends %llu bytes to rank %d (its sendcounts[%d] is %llu, elements of %llu), which expects %llu bytes from it "
                      "(recvcounts[%d] is %llu, elements of %llu)",
                      (int)v->source, (unsigned long long)v->sends, destination, destination,
                      (unsigned long long)(v->sends / v->sends_element), (unsigned long long)v->sends_element,
                      (unsigned long long)v->expects, (int)v->source, (unsigned long long)(v->expects / v->expects_element),
                      (unsigned long long)v->expects_element);
}

/* All ranks read the same, so all come to the same. */
static HOCCL_Result conclude(struct agreeing *a, const struct hoccl_choice *choice)
{
    struct verdict mine = judge(a, choice);
    const struct verdict *all = (const struct verdict *)a->said;
    HOCCL_Result r = hoccl_gather(&a->gather, &mine, sizeof mine, a->said);
    for (int p = 0; p < a->comm->size && !r; p++)
        if (all[p].source >= 0)
            r = differ(p, &all[p]);
    for (int p = 1; p < a->comm->size && !r; p++)
        if (all[p].hash != all[0].hash)
            r = hoccl_fail(HOCCL_ERR_INTERNAL, "rank %d has made another plan of the same counts than rank 0", p);
    return r;
}

HOCCL_Result hoccl_rows_agree(struct hoccl_comm *comm, const struct hoccl_rows *rows, struct hoccl_choice *choice)
{
    struct agreeing a = {.comm = comm, .rows = rows, .ranks = all_ranks(comm)};
    *choice = (struct hoccl_choice){0};
    a.gather = gather_of(comm, a.ranks);
    HOCCL_Result r = a.ranks ? begin(&a) : HOCCL_ERR_MEMORY;
    if (!r)
        r = hoccl_comm_error(comm);
    if (r && a.ranks)
        hoccl_gather_refuse(&a.gather);
    if (!r && comm->size > 1)
        r = exchange(&a);
    if (!r && comm->size > 1 && (r = choose(&a, choice)))
        hoccl_gather_refuse(&a.gather);
    if (!r && comm->size > 1)
        r = conclude(&a, choice);
    end(&a);
    return r;
}

void hoccl_rows_refuse(struct hoccl_comm *comm)
{
    char text[HOCCL_ERROR_TEXT];
    memcpy(text, hoccl_error_text(), sizeof text);
    int *ranks = all_ranks(comm);
    struct hoccl_gather g = gather_of(comm, ranks);
    hoccl_fail_again(HOCCL_ERR_USAGE, text);
    if (ranks)
        hoccl_gather_refuse(&g);
    free(ranks);
}
