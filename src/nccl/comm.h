/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators. An ncclComm_t is a number made of a place in a table and a generation, never an address: a handle of
 * something destroyed is an error.
 *
 *            make.c: the call          made                 ncclCommFinalize of a non-blocking one
 *   FREE ─────────────────────▶ MAKING ────▶ READY ─────────────────────────────────▶ BUSY ──▶ READY
 *                                  │           └── ncclCommSplit in the background ──▶ BUSY ──▶ READY
 *                                  └──▶ FAILED (a non-blocking one; a blocking one is freed)
 *
 * Whoever holds the place's lock writes. Destroy and Abort free it from any state; what is still being made then is
 * aborted by the thread that makes it, which finds another generation.
 */
#ifndef HOCCL_NCCL_COMM_H
#define HOCCL_NCCL_COMM_H

#include "hoccl.h"
#include "nccl/context.h"
#include "nccl/error.h"

#include <pthread.h>
#include <stdint.h>

enum shim_state { SHIM_FREE, SHIM_MAKING, SHIM_READY, SHIM_BUSY, SHIM_FAILED };

struct shim_registration {
    struct shim_registration *next;
    void *handle; /* of HOCCL_CommRegister */
    int is_window;
};

/* Where a piece of an in-place AlltoAll waits: one block for each stream of the communicator that has done one. */
struct shim_scratch {
    struct shim_scratch *next;
    unsigned long long stream;
    void *memory;
};

struct shim_comm {
    pthread_mutex_t lock;
    uint64_t generation;
    enum shim_state state;
    bool blocking;
    HOCCL_Comm hoccl;
    int size, rank, device;
    shim_context context;
    ncclResult_t result; /* of what was done in the background last */
    char text[SHIM_TEXT];
    struct shim_registration *registrations;
    struct shim_scratch *scratch;
};

/* A place for one that is being made. Errors: ncclInvalidUsage (4095 of them exist). */
ncclResult_t shim_comm_new(bool blocking, shim_context context, ncclComm_t *comm);

/* The communicator, locked; NULL with the error set. */
struct shim_comm *shim_comm_lock(ncclComm_t comm, const char *call);
void shim_comm_unlock(struct shim_comm *c);

/* The handle of a communicator that takes calls. Errors: ncclInvalidArgument (no communicator, being made or ended); the
 * error with which making it failed. */
ncclResult_t shim_comm_get(ncclComm_t comm, const char *call, HOCCL_Comm *hoccl);

/* It has been made: it takes calls. If it has been aborted meanwhile, so is what was made. */
void shim_comm_made(ncclComm_t comm, HOCCL_Comm hoccl);

/* It is done in the background with this result: a communicator that could not be made is FAILED, else it is READY. */
void shim_comm_done(ncclComm_t comm, ncclResult_t result, const char *text);

/* Forget it, with what it registered. `idle`: nothing moves any more, so the scratch memory is freed too. */
void shim_comm_free(ncclComm_t comm, bool idle);

#endif
