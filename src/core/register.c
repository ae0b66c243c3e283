/* SPDX-License-Identifier: Apache-2.0 */
/* A handle is a number that is never used twice, so one that is not a handle, or no longer, is told from one that is. Behind
 * it stands a registration with the GPU's endpoint, or none: in a communicator without other nodes, and where the memory
 * cannot be registered. */
#include "core/register.h"

#include "base/error.h"
#include "base/log.h"
#include "p2p/wire.h"

#include <stdlib.h>

struct hoccl_handle_entry {
    struct hoccl_handle_entry *next;
    uintptr_t handle;
    uint64_t number; /* of the registration; 0: none */
};

static uintptr_t next_handle(void)
{
    static uint64_t last;
    return (uintptr_t)(hoccl_fetch_add(&last, (uint64_t)1) + 1) << 4; /* looks like an address, and is none */
}

/* The number of the registration. What cannot be registered goes by slots: said, and no error. */
static HOCCL_Result hold(struct hoccl_comm *comm, const void *buffer, size_t bytes, uint64_t *number)
{
    struct hoccl_memory memory;
    HOCCL_Result r = hoccl_memory_check(&comm->gpu->device, buffer, bytes, &memory);
    *number = 0;
    if (!r && comm->abroad.count && hoccl_registry_hold(comm->gpu->wire, &memory, buffer, bytes, number))
        hoccl_log(HOCCL_LOG_INFO, "the buffer at %p (%zu bytes) cannot be registered for other nodes and is staged: %s", buffer, bytes,
                  hoccl_error_text());
    return r;
}

HOCCL_Result hoccl_comm_register(struct hoccl_comm *comm, const void *buffer, size_t bytes, void **handle)
{
    bool pushed;
    HOCCL_Result r = hoccl_comm_error(comm);
    if (!r)
        r = hoccl_device_enter(&comm->gpu->device, &pushed);
    if (r)
        return r;
    struct hoccl_handle_entry *e = hoccl_alloc(sizeof *e, "a registration's handle");
    r = e ? hold(comm, buffer, bytes, &e->number) : HOCCL_ERR_MEMORY;
    hoccl_device_leave(pushed);
    if (r) {
        free(e);
        return r;
    }
    e->handle = next_handle();
    *handle = (void *)e->handle;
    pthread_mutex_lock(&comm->registered_lock);
    e->next = comm->registered;
    comm->registered = e;
    pthread_mutex_unlock(&comm->registered_lock);
    return HOCCL_SUCCESS;
}

static void release(struct hoccl_comm *comm, struct hoccl_handle_entry *e)
{
    if (e->number)
        hoccl_registry_release(comm->gpu->wire, e->number);
    free(e);
}

HOCCL_Result hoccl_comm_deregister(struct hoccl_comm *comm, void *handle)
{
    pthread_mutex_lock(&comm->registered_lock);
    struct hoccl_handle_entry **link = &comm->registered, *e;
    while (*link && (*link)->handle != (uintptr_t)handle)
        link = &(*link)->next;
    e = *link;
    if (e)
        *link = e->next;
    pthread_mutex_unlock(&comm->registered_lock);
    if (!e)
        return hoccl_fail(HOCCL_ERR_ARGUMENT, "%p is no registration of this communicator, or has been given back", handle);
    release(comm, e);
    return HOCCL_SUCCESS;
}

void hoccl_comm_deregister_all(struct hoccl_comm *comm)
{
    while (comm->registered) {
        struct hoccl_handle_entry *e = comm->registered;
        comm->registered = e->next;
        release(comm, e);
    }
}
