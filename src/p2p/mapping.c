/* SPDX-License-Identifier: Apache-2.0 */
/* See mapping.h. The cache is small: opening again costs less than a chunk of a large message, and every open mapping
 * keeps memory alive that its owner may have freed. */
#include "p2p/mapping.h"

#include "base/error.h"
#include "p2p/submitter.h"
#include "stream/parking.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT 32

void hoccl_mappings_open(struct hoccl_mappings *m, struct hoccl_submitter *submitter)
{
    hoccl_list_init(&m->list);
    m->count = 0;
    m->submitter = submitter;
}

static void free_mapping(struct hoccl_mapping *x)
{
    for (uint32_t i = 0; i < x->arrived; i++)
        if (x->segment[i].fd >= 0)
            close(x->segment[i].fd);
    free(x->segment);
    free(x);
}

static void forget(struct hoccl_mappings *m, struct hoccl_mapping *x)
{
    hoccl_list_remove(&x->link);
    m->count--;
    free_mapping(x);
}

/* Unmapping returns also while streams are parked; closing a legacy handle does not. */
static void unmap_range(struct hoccl_mapping *x)
{
    hoccl_driver.MemUnmap(x->address, x->bytes);
    hoccl_driver.MemAddressFree(x->address, x->bytes);
}

void hoccl_mappings_close(struct hoccl_mappings *m)
{
    struct hoccl_list *l;
    while ((l = hoccl_list_take(&m->list))) {
        struct hoccl_mapping *x = hoccl_entry(l, struct hoccl_mapping, link);
        bool open = hoccl_observe(&x->state) == HOCCL_MAPPING_OPEN;
        if (open && x->segment)
            unmap_range(x);
        else if (open)
            hoccl_driver.IpcCloseMemHandle(x->address);
        free_mapping(x);
    }
    m->count = 0;
}

/* Ask for the closing of unused mappings beyond the limit, oldest first, and forget those that are closed. */
static void trim(struct hoccl_mappings *m)
{
    struct hoccl_list *next;
    int over = m->count - LIMIT;
    for (struct hoccl_list *l = m->list.next; l != &m->list; l = next) {
        struct hoccl_mapping *x = hoccl_entry(l, struct hoccl_mapping, link);
        uint32_t state = hoccl_observe(&x->state);
        struct hoccl_job job = {.kind = HOCCL_JOB_CLOSE, .mapping = x};
        next = l->next;
        if (x->users)
            continue;
        if (state == HOCCL_MAPPING_CLOSED || state == HOCCL_MAPPING_FAILED) {
            forget(m, x);
            over--;
        } else if (over > 0 && state == HOCCL_MAPPING_OPEN) {
            hoccl_publish(&x->state, HOCCL_MAPPING_CLOSING);
            if (!hoccl_submitter_give(m->submitter, &job))
                hoccl_publish(&x->state, HOCCL_MAPPING_OPEN);
            over--;
        }
    }
}

static struct hoccl_mapping *find(struct hoccl_mappings *m, uint64_t process, uint64_t buffer)
{
    for (struct hoccl_list *l = m->list.prev; l != &m->list; l = l->prev) {
        struct hoccl_mapping *x = hoccl_entry(l, struct hoccl_mapping, link);
        uint32_t state = hoccl_observe(&x->state);
        if (x->process == process && x->buffer == buffer && state != HOCCL_MAPPING_CLOSED &&
            state != HOCCL_MAPPING_CLOSING && state != HOCCL_MAPPING_FAILED)
            return x;
    }
    return NULL;
}

static void use(struct hoccl_mappings *m, struct hoccl_mapping *x)
{
    hoccl_list_remove(&x->link);
    hoccl_list_append(&m->list, &x->link);
    x->users++;
}

/* Of a range only some parcels may have come: whoever asked for it has failed since, or its owner could not send them all. Who needs
 * it now asks again. */
static bool is_whole(const struct hoccl_mapping *x)
{
    return hoccl_observe(&x->state) != HOCCL_MAPPING_ARRIVING || x->arrived == x->segments;
}

struct hoccl_mapping *hoccl_mapping_find(struct hoccl_mappings *m, uint64_t process, uint64_t buffer)
{
    struct hoccl_mapping *x = find(m, process, buffer);
    if (!x || !is_whole(x))
        return NULL;
    use(m, x);
    return x;
}

static struct hoccl_mapping *add(struct hoccl_mappings *m, const struct hoccl_mapping *what)
{
    trim(m);
    struct hoccl_mapping *x = hoccl_alloc(sizeof *x, "a mapping");
    if (!x)
        return NULL;
    *x = *what;
    hoccl_list_append(&m->list, &x->link);
    m->count++;
    return x;
}

static bool give_open(struct hoccl_mappings *m, struct hoccl_mapping *x)
{
    return hoccl_submitter_give(m->submitter, &(struct hoccl_job){.kind = HOCCL_JOB_OPEN, .mapping = x});
}

HOCCL_Result hoccl_mapping_get(struct hoccl_mappings *m, uint64_t process, uint64_t buffer,
                               const struct hoccl_handle *handle, struct hoccl_mapping **mapping)
{
    struct hoccl_mapping *x = find(m, process, buffer);
    *mapping = NULL;
    if (!x) {
        x = add(m, &(struct hoccl_mapping){.process = process, .buffer = buffer, .handle = *handle, .state = HOCCL_MAPPING_OPENING});
        if (!x)
            return HOCCL_ERR_MEMORY;
        if (!give_open(m, x)) {
            forget(m, x);
            return HOCCL_SUCCESS;
        }
    }
    use(m, x);
    *mapping = x;
    return HOCCL_SUCCESS;
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

static void close_all(const int *fds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        close(fds[i]);
}

/* A range of which nothing has come yet. */
static struct hoccl_mapping *begin_range(struct hoccl_mappings *m, uint64_t process, const struct hoccl_parcel *p, int device)
{
    struct hoccl_mapping_segment *s = hoccl_alloc(p->total * sizeof *s, "the segments of a range");
    if (!s)
        return NULL;
    struct hoccl_mapping *x = add(m, &(struct hoccl_mapping){.process = process, .buffer = p->key, .segment = s, .segments = p->total,
                                                             .device = device, .state = HOCCL_MAPPING_ARRIVING});
    if (!x)
        free(s);
    return x;
}

/* Parcels of one range come in order; those of one that is known already (asked for twice) are not needed. */
static HOCCL_Result accept_parcel(struct hoccl_mappings *m, uint64_t process, const struct hoccl_parcel *p, const int *fds, int device)
{
    struct hoccl_mapping *x = find(m, process, p->key);
    if (!x)
        x = begin_range(m, process, p, device);
    if (!x) {
        close_all(fds, p->count);
        return HOCCL_ERR_MEMORY;
    }
    if (hoccl_observe(&x->state) != HOCCL_MAPPING_ARRIVING || x->arrived != p->first || x->segments != p->total) {
        close_all(fds, p->count);
        return HOCCL_SUCCESS;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        x->segment[x->arrived++] = (struct hoccl_mapping_segment){fds[i], p->bytes[i]};
        x->bytes += p->bytes[i];
    }
    return HOCCL_SUCCESS;
}

/* Ranges that have come whole are opened; where the submitter's ring is full, at the next call. */
static void open_complete(struct hoccl_mappings *m)
{
    for (struct hoccl_list *l = m->list.next; l != &m->list; l = l->next) {
        struct hoccl_mapping *x = hoccl_entry(l, struct hoccl_mapping, link);
        if (hoccl_observe(&x->state) != HOCCL_MAPPING_ARRIVING || x->arrived < x->segments)
            continue;
        hoccl_publish(&x->state, HOCCL_MAPPING_OPENING);
        if (!give_open(m, x))
            hoccl_publish(&x->state, HOCCL_MAPPING_ARRIVING);
    }
}

HOCCL_Result hoccl_mappings_receive(struct hoccl_mappings *m, uint64_t process, int socket, int device)
{
    struct hoccl_parcel p;
    int fds[HOCCL_PARCEL_SEGMENTS];
    HOCCL_Result r = HOCCL_SUCCESS;
    while (!r && hoccl_parcel_take(socket, &p, fds) > 0)
        r = accept_parcel(m, process, &p, fds, device);
    open_complete(m);
    return r;
}

/* ---- */

void hoccl_mapping_put(struct hoccl_mappings *m, struct hoccl_mapping *mapping)
{
    mapping->users--;
    if (m->count > LIMIT)
        trim(m);
}

static CUresult open_handle(struct hoccl_mapping *x)
{
    CUipcMemHandle h;
    memcpy(&h, x->handle.bytes, sizeof h);
    return hoccl_driver.IpcOpenMemHandle(&x->address, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

/* One segment at its place; its descriptor is not needed afterwards. */
static CUresult map_segment(struct hoccl_mapping_segment *s, CUdeviceptr at)
{
    CUmemGenericAllocationHandle h;
    CUresult r = hoccl_driver.MemImportFromShareableHandle(&h, (void *)(intptr_t)s->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(s->fd);
    s->fd = -1;
    if (r)
        return r;
    r = hoccl_driver.MemMap(at, s->bytes, 0, h, 0);
    hoccl_driver.MemRelease(h);
    return r;
}

static CUresult open_range(struct hoccl_mapping *x)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = x->device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    uint64_t at = 0;
    CUresult r = hoccl_driver.MemAddressReserve(&x->address, x->bytes, 0, 0, 0);
    if (r)
        return r;
    for (uint32_t i = 0; i < x->segments && !r; i++) {
        r = map_segment(&x->segment[i], x->address + at);
        at += r ? 0 : x->segment[i].bytes;
    }
    if (!r)
        r = hoccl_driver.MemSetAccess(x->address, x->bytes, &access, 1);
    if (!r)
        return r;
    if (at)
        hoccl_driver.MemUnmap(x->address, at);
    hoccl_driver.MemAddressFree(x->address, x->bytes);
    return r;
}

void hoccl_mapping_open(struct hoccl_mapping *mapping)
{
    mapping->result = mapping->segment ? open_range(mapping) : open_handle(mapping);
    hoccl_publish(&mapping->state, mapping->result ? HOCCL_MAPPING_FAILED : HOCCL_MAPPING_OPEN);
}

static void close_now(void *arg)
{
    struct hoccl_mapping *mapping = arg;
    hoccl_driver.IpcCloseMemHandle(mapping->address);
}

void hoccl_mapping_close(struct hoccl_mapping *mapping)
{
    bool closed = true;
    if (mapping->segment)
        unmap_range(mapping);
    else
        closed = hoccl_parking_quiet(close_now, mapping);
    hoccl_publish(&mapping->state, closed ? HOCCL_MAPPING_CLOSED : HOCCL_MAPPING_OPEN);
}
