/* SPDX-License-Identifier: Apache-2.0 */
/* See mapping.h. The cache is small: opening again costs less than a chunk of a large message, and every open mapping
 * keeps memory alive that its owner may have freed. */
#include "p2p/mapping.h"

#include "base/error.h"
#include "p2p/submitter.h"
#include "stream/parking.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT 32

void hoccl_mappings_open(struct hoccl_mappings *m, struct hoccl_submitter *submitter)
{
    hoccl_list_init(&m->list);
    m->count = 0;
    m->submitter = submitter;
}

static void forget(struct hoccl_mappings *m, struct hoccl_mapping *x)
{
    hoccl_list_remove(&x->link);
    m->count--;
    free(x);
}

void hoccl_mappings_close(struct hoccl_mappings *m)
{
    struct hoccl_list *l;
    while ((l = hoccl_list_take(&m->list))) {
        struct hoccl_mapping *x = hoccl_entry(l, struct hoccl_mapping, link);
        if (hoccl_observe(&x->state) == HOCCL_MAPPING_OPEN)
            hoccl_driver.IpcCloseMemHandle(x->address);
        free(x);
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

HOCCL_Result hoccl_mapping_get(struct hoccl_mappings *m, uint64_t process, uint64_t buffer,
                               const struct hoccl_handle *handle, struct hoccl_mapping **mapping)
{
    struct hoccl_mapping *x = find(m, process, buffer);
    if (!x) {
        trim(m);
        x = hoccl_alloc(sizeof *x, "a mapping");
        if (!x)
            return HOCCL_ERR_MEMORY;
        *x = (struct hoccl_mapping){.process = process, .buffer = buffer, .handle = *handle, .state = HOCCL_MAPPING_OPENING};
        if (!hoccl_submitter_give(m->submitter, &(struct hoccl_job){.kind = HOCCL_JOB_OPEN, .mapping = x})) {
            free(x);
            *mapping = NULL;
            return HOCCL_SUCCESS;
        }
        m->count++;
    } else {
        hoccl_list_remove(&x->link);
    }
    hoccl_list_append(&m->list, &x->link);
    x->users++;
    *mapping = x;
    return HOCCL_SUCCESS;
}

void hoccl_mapping_put(struct hoccl_mappings *m, struct hoccl_mapping *mapping)
{
    mapping->users--;
    if (m->count > LIMIT)
        trim(m);
}

void hoccl_mapping_open(struct hoccl_mapping *mapping)
{
    CUipcMemHandle h;
    memcpy(&h, mapping->handle.bytes, sizeof h);
    mapping->result = hoccl_driver.IpcOpenMemHandle(&mapping->address, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    hoccl_publish(&mapping->state, mapping->result ? HOCCL_MAPPING_FAILED : HOCCL_MAPPING_OPEN);
}

static void close_now(void *arg)
{
    struct hoccl_mapping *mapping = arg;
    hoccl_driver.IpcCloseMemHandle(mapping->address);
}

void hoccl_mapping_close(struct hoccl_mapping *mapping)
{
    bool closed = hoccl_parking_quiet(close_now, mapping);
    hoccl_publish(&mapping->state, closed ? HOCCL_MAPPING_CLOSED : HOCCL_MAPPING_OPEN);
}
