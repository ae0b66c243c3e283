/* SPDX-License-Identifier: Apache-2.0 */
/* The table of communicators, and what can be asked about one. */
#include "nccl/comm.h"

#include "nccl/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACE_BITS 12
#define PLACES ((1 << PLACE_BITS) - 1)

static struct shim_comm table[PLACES] = {[0 ... PLACES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

ncclResult_t shim_comm_new(bool blocking, shim_context context, ncclComm_t *comm)
{
    for (uintptr_t i = 0; i < PLACES; i++) {
        struct shim_comm *c = &table[i];
        pthread_mutex_lock(&c->lock);
        bool mine = c->state == SHIM_FREE;
        if (mine) {
            c->generation++;
            c->state = SHIM_MAKING;
            c->blocking = blocking;
            c->context = context;
            c->hoccl = HOCCL_COMM_NULL;
            c->result = ncclSuccess;
            *comm = (ncclComm_t)(c->generation << PLACE_BITS | (i + 1));
        }
        pthread_mutex_unlock(&c->lock);
        if (mine)
            return ncclSuccess;
    }
    return shim_fail(ncclInvalidUsage, "a process can hold %d communicators at a time", PLACES);
}

struct shim_comm *shim_comm_lock(ncclComm_t comm, const char *call)
{
    uintptr_t h = (uintptr_t)comm, place = h & PLACES;
    if (place) {
        struct shim_comm *c = &table[place - 1];
        pthread_mutex_lock(&c->lock);
        if (c->state != SHIM_FREE && c->generation == h >> PLACE_BITS)
            return c;
        pthread_mutex_unlock(&c->lock);
    }
    shim_fail(ncclInvalidArgument, "%s: communicator %p does not exist: it was never made, or has been destroyed or aborted", call,
              (void *)comm);
    return NULL;
}

void shim_comm_unlock(struct shim_comm *c)
{
    pthread_mutex_unlock(&c->lock);
}

static ncclResult_t refuse(const struct shim_comm *c, const char *call)
{
    if (c->state == SHIM_FAILED)
        return shim_fail(c->result, "%s: the communicator could not be made: %s", call, c->text);
    return shim_fail(ncclInvalidArgument, "%s: the communicator is still being %s: wait until ncclCommGetAsyncError says no longer ncclInProgress",
                     call, c->state == SHIM_MAKING ? "made" : "split or finalized");
}

ncclResult_t shim_comm_get(ncclComm_t comm, const char *call, HOCCL_Comm *hoccl)
{
    struct shim_comm *c = shim_comm_lock(comm, call);
    if (!c)
        return ncclInvalidArgument;
    ncclResult_t r = c->state == SHIM_READY ? ncclSuccess : refuse(c, call);
    *hoccl = c->hoccl;
    shim_comm_unlock(c);
    return r;
}

void shim_comm_made(ncclComm_t comm, HOCCL_Comm hoccl)
{
    int size = 0, rank = 0, device = 0;
    HOCCL_CommSize(hoccl, &size);
    HOCCL_CommRank(hoccl, &rank);
    HOCCL_CommDevice(hoccl, &device);
    struct shim_comm *c = shim_comm_lock(comm, "making a communicator");
    if (!c) {
        HOCCL_CommAbort(hoccl);
        return;
    }
    c->hoccl = hoccl;
    c->size = size;
    c->rank = rank;
    c->device = device;
    c->state = SHIM_READY;
    shim_comm_unlock(c);
}

void shim_comm_done(ncclComm_t comm, ncclResult_t result, const char *text)
{
    struct shim_comm *c = shim_comm_lock(comm, "in the background");
    if (!c)
        return;
    c->result = result;
    snprintf(c->text, sizeof c->text, "%s", text);
    c->state = c->state == SHIM_MAKING ? SHIM_FAILED : SHIM_READY;
    shim_comm_unlock(c);
}

void shim_comm_free(ncclComm_t comm, bool idle)
{
    struct shim_comm *c = shim_comm_lock(comm, "freeing a communicator");
    if (!c)
        return;
    struct shim_registration *r = c->registrations;
    struct shim_scratch *s = c->scratch;
    c->registrations = NULL;
    c->scratch = NULL;
    c->state = SHIM_FREE;
    shim_comm_unlock(c);
    while (r) {
        struct shim_registration *next = r->next;
        free(r);
        r = next;
    }
    while (s) {
        struct shim_scratch *next = s->next;
        if (idle)
            HOCCL_MemFree(s->memory);
        free(s);
        s = next;
    }
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

enum fact { SIZE, RANK, DEVICE };

static ncclResult_t ask(ncclComm_t comm, enum fact fact, int *out, const char *call)
{
    if (!out)
        return shim_fail(ncclInvalidArgument, "%s: the result's address is NULL", call);
    struct shim_comm *c = shim_comm_lock(comm, call);
    if (!c)
        return ncclInvalidArgument;
    ncclResult_t r = c->hoccl ? ncclSuccess : refuse(c, call);
    if (!r)
        *out = fact == SIZE ? c->size : fact == RANK ? c->rank : c->device;
    shim_comm_unlock(c);
    return r;
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int *count)
{
    return ask(comm, SIZE, count, "ncclCommCount");
}
NCCL_EXPORT(CommCount);

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank)
{
    return ask(comm, RANK, rank, "ncclCommUserRank");
}
NCCL_EXPORT(CommUserRank);

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device)
{
    return ask(comm, DEVICE, device, "ncclCommCuDevice");
}
NCCL_EXPORT(CommCuDevice);

/* From any thread at any time: watchdogs ask, while another thread is in a call of the communicator. */
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    HOCCL_Result now = HOCCL_SUCCESS;
    if (!error)
        return shim_fail(ncclInvalidArgument, "ncclCommGetAsyncError: the result's address is NULL");
    struct shim_comm *c = shim_comm_lock(comm, "ncclCommGetAsyncError");
    if (!c)
        return ncclInvalidArgument;
    bool busy = c->state == SHIM_MAKING || c->state == SHIM_BUSY;
    ncclResult_t result = busy ? ncclInProgress : c->result;
    HOCCL_Comm hoccl = c->hoccl;
    if (!busy && result)
        shim_fail(result, "%s", c->text);
    shim_comm_unlock(c);
    if (!result && HOCCL_CommGetAsyncError(hoccl, &now))
        return shim_fail(ncclInvalidArgument, "ncclCommGetAsyncError: %s", HOCCL_GetLastError());
    *error = now ? shim_result(now, "the communicator") : result;
    return ncclSuccess;
}
NCCL_EXPORT(CommGetAsyncError);

/* The thread's last error, else what is wrong with the communicator. */
const char *pncclGetLastError(ncclComm_t comm)
{
    ncclResult_t error;
    if (!*shim_text() && comm)
        pncclCommGetAsyncError(comm, &error);
    return shim_text();
}
NCCL_EXPORT(GetLastError);

ncclResult_t pncclGetVersion(int *version)
{
    if (!version)
        return shim_fail(ncclInvalidArgument, "ncclGetVersion: the result's address is NULL");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
NCCL_EXPORT(GetVersion);
