/* SPDX-License-Identifier: Apache-2.0 */
/* Making communicators. Outside a group each call is a group of its own. The handle is given out at the call, as NCCL does,
 * and lives when the group has ended; a blocking call that fails sets it to NULL, a non-blocking one reports by
 * ncclCommGetAsyncError. */
#include "nccl/make.h"

#include "nccl/comm.h"
#include "nccl/config.h"
#include "nccl/export.h"
#include "nccl/group.h"
#include "nccl/thread.h"

#include <stdlib.h>
#include <string.h>

struct making {
    struct making *next;
    ncclComm_t *out;
    ncclComm_t comm; /* NULL: a split without a color */
    bool blocking;
    shim_context context; /* that of the call */
    HOCCL_Comm made;
    /* CommInitRank */
    HOCCL_UniqueId id;
    int size, rank;
    /* CommSplit */
    ncclComm_t parent; /* NULL: it is none */
    HOCCL_Comm hoccl_parent;
    int color, key;
};

static __thread struct making *first, **last = NULL;

bool shim_make_pending(void)
{
    return first != NULL;
}

static struct making *take_all(void)
{
    struct making *all = first;
    first = NULL;
    last = NULL;
    return all;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Into HOCCL's open group. Errors are found again at its end. */
static void enqueue(struct making *all)
{
    for (struct making *m = all; m; m = m->next) {
        bool entered = shim_context_enter(m->context);
        if (m->parent)
            HOCCL_CommSplit(m->hoccl_parent, m->color, m->key, &m->made);
        else
            HOCCL_CommInitRank(&m->made, m->size, m->id, m->rank);
        shim_context_leave(entered);
    }
}

/* Parents take calls again; the new ones are ready, failed, or, where somebody waited for the call, gone. */
static void settle(struct making *all, ncclResult_t result, bool background)
{
    while (all) {
        struct making *m = all;
        all = m->next;
        if (m->parent && background)
            shim_comm_done(m->parent, ncclSuccess, "");
        if (!result && m->comm)
            shim_comm_made(m->comm, m->made);
        else if (m->comm && background)
            shim_comm_done(m->comm, result, shim_text());
        else if (m->comm)
            shim_comm_free(m->comm, true);
        if (result && !background)
            *m->out = NULL;
        free(m);
    }
}

static void *run(void *arg)
{
    struct making *all = arg;
    HOCCL_GroupStart();
    enqueue(all);
    settle(all, shim_result(HOCCL_GroupEnd(), "making a communicator"), true);
    return NULL;
}

/* The parent of a split takes no calls meanwhile: HOCCL is inside one of it. */
static void mark_parents(struct making *all, enum shim_state state)
{
    for (struct making *m = all; m; m = m->next) {
        struct shim_comm *c = m->parent ? shim_comm_lock(m->parent, "ncclCommSplit") : NULL;
        if (!c)
            continue;
        c->state = state;
        shim_comm_unlock(c);
    }
}

static ncclResult_t run_in_background(struct making *all)
{
    mark_parents(all, SHIM_BUSY);
    int e = shim_thread_start(run, all);
    if (!e)
        return ncclInProgress;
    mark_parents(all, SHIM_READY);
    ncclResult_t r = shim_fail(ncclSystemError, "starting a thread to make a communicator: %s", strerror(e));
    settle(all, r, false);
    return r;
}

static bool all_non_blocking(const struct making *all)
{
    for (const struct making *m = all; m; m = m->next)
        if (m->blocking)
            return false;
    return all != NULL;
}

ncclResult_t shim_make_end(void)
{
    struct making *all = take_all();
    bool background = all_non_blocking(all);
    if (!background)
        enqueue(all);
    ncclResult_t r = shim_result(HOCCL_GroupEnd(), "ncclGroupEnd");
    if (!r && background)
        return run_in_background(all);
    settle(all, r, false);
    return r;
}

void shim_make_drop(void)
{
    struct making *all = take_all();
    enqueue(all);
    settle(all, ncclInvalidUsage, false);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

/* Keep it for the group's end. */
static ncclResult_t keep(const struct making *asked)
{
    struct making *m = malloc(sizeof *m);
    if (!m)
        return shim_fail(ncclSystemError, "no host memory for a communicator");
    *m = *asked;
    if (m->color >= 0) {
        ncclResult_t r = shim_comm_new(m->blocking, m->context, &m->comm);
        if (r) {
            free(m);
            return r;
        }
    }
    *m->out = m->comm;
    if (!first)
        last = &first;
    *last = m;
    last = &m->next;
    return ncclSuccess;
}

static ncclResult_t submit(const struct making *asked)
{
    bool open = shim_group_is_open();
    if (open)
        return shim_group_note(keep(asked));
    ncclResult_t r = pncclGroupStart();
    if (r)
        return r;
    shim_group_note(keep(asked));
    return pncclGroupEnd();
}

static ncclResult_t check_ranks(ncclComm_t *comm, int size, int rank, const char *call)
{
    if (!comm)
        return shim_fail(ncclInvalidArgument, "%s: the communicator's address is NULL", call);
    if (size < 1 || rank < 0 || rank >= size)
        return shim_fail(ncclInvalidArgument, "%s: rank %d of %d: there is at least one, and they are numbered from 0", call, rank, size);
    return ncclSuccess;
}

static ncclResult_t init_rank(ncclComm_t *comm, int size, const ncclUniqueId *id, int rank, const ncclConfig_t *config, const char *call)
{
    struct making m = {.out = comm, .size = size, .rank = rank};
    _Static_assert(sizeof m.id == sizeof *id, "the ids are of one size");
    ncclResult_t r = check_ranks(comm, size, rank, call);
    if (!r)
        r = shim_config_read(config, true, call, &m.blocking);
    if (r)
        return shim_group_note(r);
    memcpy(&m.id, id, sizeof m.id);
    m.context = shim_context_here();
    return submit(&m);
}

ncclResult_t pncclGetUniqueId(ncclUniqueId *id)
{
    HOCCL_UniqueId made;
    if (!id)
        return shim_fail(ncclInvalidArgument, "ncclGetUniqueId: the id's address is NULL");
    HOCCL_Result r = HOCCL_GetUniqueId(&made);
    if (!r)
        memcpy(id, &made, sizeof *id);
    return shim_result(r, "ncclGetUniqueId");
}
NCCL_EXPORT(GetUniqueId);

ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return init_rank(comm, nranks, &id, rank, NULL, "ncclCommInitRank");
}
NCCL_EXPORT(CommInitRank);

ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    return init_rank(comm, nranks, &id, rank, config, "ncclCommInitRankConfig");
}
NCCL_EXPORT(CommInitRankConfig);

/* Several ids spread the start-up over several roots; HOCCL's start-up needs one. */
ncclResult_t pncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int count, ncclUniqueId *ids, ncclConfig_t *config)
{
    if (!ids || count < 1 || count > nranks)
        return shim_group_note(shim_fail(ncclInvalidArgument, "ncclCommInitRankScalable: %d ids for %d ranks: one to as many as ranks",
                                         count, nranks));
    return init_rank(comm, nranks, &ids[0], rank, config, "ncclCommInitRankScalable");
}
NCCL_EXPORT(CommInitRankScalable);

static ncclResult_t init_all(ncclComm_t *comms, int count, const int *devices)
{
    struct making m = {.size = count, .blocking = true};
    ncclUniqueId id;
    ncclResult_t r = pncclGetUniqueId(&id);
    memcpy(&m.id, &id, sizeof m.id);
    for (int i = 0; i < count && !r; i++) {
        m.out = &comms[i];
        m.rank = i;
        r = shim_context_of(devices ? devices[i] : i, &m.context);
        if (!r)
            r = keep(&m);
    }
    return shim_group_note(r);
}

ncclResult_t pncclCommInitAll(ncclComm_t *comms, int count, const int *devices)
{
    int present = 0;
    ncclResult_t r = comms ? ncclSuccess : shim_fail(ncclInvalidArgument, "ncclCommInitAll: the communicators' address is NULL");
    if (!r)
        r = shim_context_devices(&present);
    if (!r && (count < 1 || (!devices && count > present)))
        r = shim_fail(ncclInvalidArgument, "ncclCommInitAll: %d communicators: this process sees %d devices", count, present);
    for (int i = 0; i < count && devices && !r; i++)
        if (devices[i] < 0 || devices[i] >= present)
            r = shim_fail(ncclInvalidArgument, "ncclCommInitAll: device %d: this process sees 0 to %d", devices[i], present - 1);
    if (!r)
        r = pncclGroupStart();
    if (r)
        return shim_group_note(r);
    init_all(comms, count, devices);
    return pncclGroupEnd();
}
NCCL_EXPORT(CommInitAll);

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    struct making m = {.out = newcomm, .parent = comm, .color = color, .key = key};
    if (!newcomm)
        return shim_group_note(shim_fail(ncclInvalidArgument, "ncclCommSplit: the new communicator's address is NULL"));
    ncclResult_t r = shim_comm_get(comm, "ncclCommSplit", &m.hoccl_parent);
    struct shim_comm *c = r ? NULL : shim_comm_lock(comm, "ncclCommSplit");
    if (!c)
        return shim_group_note(r ? r : ncclInvalidArgument);
    bool inherited = c->blocking;
    m.context = c->context;
    shim_comm_unlock(c);
    r = shim_config_read(config, inherited, "ncclCommSplit", &m.blocking);
    return r ? shim_group_note(r) : submit(&m);
}
NCCL_EXPORT(CommSplit);
