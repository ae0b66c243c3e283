/* SPDX-License-Identifier: Apache-2.0 */
/* Ending communicators. Finalize and Destroy wait for this rank's operations, so in a group they come after its operations
 * have been posted. Abort waits for nobody and is done at once, in a group too. */
#include "nccl/end.h"

#include "nccl/comm.h"
#include "nccl/export.h"
#include "nccl/group.h"
#include "nccl/thread.h"

#include <stdlib.h>
#include <string.h>

struct ending {
    struct ending *next;
    ncclComm_t comm;
    HOCCL_Comm hoccl;
    bool destroy;
};

static __thread struct ending *first, **last = NULL;

bool shim_end_pending(void)
{
    return first != NULL;
}

/* ---- finalize ---------------------------------------------------------------------------------------------------- */

static void *finalize_in_thread(void *arg)
{
    struct ending *e = arg;
    ncclResult_t r = shim_result(HOCCL_CommFinalize(e->hoccl), "ncclCommFinalize");
    shim_comm_done(e->comm, r, shim_text());
    free(e);
    return NULL;
}

static ncclResult_t finalize_in_background(const struct ending *asked)
{
    struct ending *e = malloc(sizeof *e);
    if (!e)
        return shim_fail(ncclSystemError, "no host memory to finalize a communicator");
    *e = *asked;
    struct shim_comm *c = shim_comm_lock(e->comm, "ncclCommFinalize");
    if (c) {
        c->state = SHIM_BUSY;
        shim_comm_unlock(c);
    }
    int error = shim_thread_start(finalize_in_thread, e);
    if (!error)
        return ncclInProgress;
    shim_comm_done(e->comm, ncclSuccess, "");
    free(e);
    return shim_fail(ncclSystemError, "starting a thread to finalize a communicator: %s", strerror(error));
}

static ncclResult_t finalize(const struct ending *e)
{
    struct shim_comm *c = shim_comm_lock(e->comm, "ncclCommFinalize");
    if (!c)
        return ncclInvalidArgument;
    bool blocking = c->blocking;
    shim_comm_unlock(c);
    return blocking ? shim_result(HOCCL_CommFinalize(e->hoccl), "ncclCommFinalize") : finalize_in_background(e);
}

/* ---- destroy ----------------------------------------------------------------------------------------------------- */

/* HOCCL keeps what cannot be ended now (another thread is inside it); any other error comes after it has been freed. */
static ncclResult_t destroy(const struct ending *e)
{
    HOCCL_Result r = e->hoccl ? HOCCL_CommDestroy(e->hoccl) : HOCCL_SUCCESS;
    ncclResult_t result = shim_result(r, "ncclCommDestroy");
    if (r != HOCCL_ERR_USAGE && r != HOCCL_ERR_ARGUMENT)
        shim_comm_free(e->comm, !r);
    return result;
}

static ncclResult_t end(const struct ending *e)
{
    return e->destroy ? destroy(e) : finalize(e);
}

/* ---- in groups --------------------------------------------------------------------------------------------------- */

ncclResult_t shim_end_end(void)
{
    ncclResult_t result = ncclSuccess;
    struct ending *all = first;
    first = NULL;
    while (all) {
        struct ending *e = all;
        ncclResult_t r = end(e);
        if (!result || (result == ncclInProgress && r))
            result = r;
        all = e->next;
        free(e);
    }
    return result;
}

void shim_end_drop(void)
{
    while (first) {
        struct ending *e = first;
        first = e->next;
        free(e);
    }
}

static ncclResult_t submit(const struct ending *asked)
{
    if (!shim_group_is_open())
        return end(asked);
    struct ending *e = malloc(sizeof *e);
    if (!e)
        return shim_group_note(shim_fail(ncclSystemError, "no host memory to end a communicator"));
    *e = *asked;
    if (!first)
        last = &first;
    *last = e;
    last = &e->next;
    return ncclSuccess;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

ncclResult_t pncclCommFinalize(ncclComm_t comm)
{
    struct ending e = {.comm = comm};
    ncclResult_t r = shim_comm_get(comm, "ncclCommFinalize", &e.hoccl);
    return r ? shim_group_note(r) : submit(&e);
}
NCCL_EXPORT(CommFinalize);

/* What could not be made can be destroyed; what is being made cannot. */
ncclResult_t pncclCommDestroy(ncclComm_t comm)
{
    struct ending e = {.comm = comm, .destroy = true};
    if (!comm)
        return ncclSuccess;
    struct shim_comm *c = shim_comm_lock(comm, "ncclCommDestroy");
    if (!c)
        return shim_group_note(ncclInvalidArgument);
    bool failed = c->state == SHIM_FAILED;
    shim_comm_unlock(c);
    ncclResult_t r = failed ? ncclSuccess : shim_comm_get(comm, "ncclCommDestroy", &e.hoccl);
    return r ? shim_group_note(r) : submit(&e);
}
NCCL_EXPORT(CommDestroy);

/* What is still being made has no HOCCL_Comm yet: forgetting it is enough, the thread that makes it aborts it. */
ncclResult_t pncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    struct shim_comm *c = shim_comm_lock(comm, "ncclCommAbort");
    if (!c)
        return ncclInvalidArgument;
    HOCCL_Comm hoccl = c->hoccl;
    shim_comm_unlock(c);
    HOCCL_Result r = hoccl ? HOCCL_CommAbort(hoccl) : HOCCL_SUCCESS;
    shim_comm_free(comm, !r);
    return shim_result(r, "ncclCommAbort");
}
NCCL_EXPORT(CommAbort);
