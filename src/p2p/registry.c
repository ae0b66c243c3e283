/* SPDX-License-Identifier: Apache-2.0 */
/* See registry.h. To register and to withdraw takes the network's driver up to milliseconds, so neither is done under the
 * lock, which the progress thread takes at each flow's beginning and end. */
#include "p2p/registry.h"

#include "base/atomic.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "device/buffer.h"
#include "p2p/gpu.h"
#include "p2p/wire.h"

#include <stdlib.h>

#define PAGE ((uintptr_t)4096)

uint32_t hoccl_registry_regions;

void hoccl_registry_init(struct hoccl_registry *registry)
{
    pthread_mutex_init(&registry->lock, NULL);
    hoccl_list_init(&registry->registrations);
    hoccl_list_init(&registry->segments);
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

static HOCCL_Result add_gpu_region(struct hoccl_wire *w, bool flush, const struct hoccl_region_source *source,
                                   struct hoccl_region *region)
{
    HOCCL_Result r = HOCCL_ERR_UNSUPPORTED;
    if (!w->transport->takes_gpu)
        return hoccl_fail(r, "the transport %s reaches host memory only: HOCCL_NET=verbs reaches a GPU's, where an RDMA card is there",
                          w->transport->name);
    if (flush && !w->transport->flush)
        return hoccl_fail(r, "what is written into GPU %d must be flushed, and %s cannot do that", w->gpu->device.ordinal,
                          w->transport->name);
    for (unsigned way = 0; way < HOCCL_PLACE_WAYS && r; way++)
        r = hoccl_place_register(w, way, *source, region);
    return r;
}

static HOCCL_Result add_region(struct hoccl_wire *w, const struct hoccl_memory_segment *m, struct hoccl_segment *s)
{
    uintptr_t page = m->host ? 1 : PAGE;
    s->low = m->base;
    s->high = m->base + m->bytes;
    s->base = s->low / page * page;
    s->buffer = m->buffer;
    s->flush = !m->host && hoccl_order_demands_flush(w->gpu->device.ordinal, true) && hoccl_settings.test_break != HOCCL_BREAK_NO_FLUSH;
    struct hoccl_region_source source = {.address = (void *)s->base, .bytes = (s->high - s->base + page - 1) / page * page,
                                         .gpu = !m->host, .dmabuf = -1};
    return m->host ? w->transport->region_add(w->endpoint, &source, &s->region) : add_gpu_region(w, s->flush, &source, &s->region);
}

/* Outside the lock. */
static void remove_regions(struct hoccl_wire *w, struct hoccl_list *gone)
{
    struct hoccl_list *l;
    while ((l = hoccl_list_take(gone))) {
        struct hoccl_segment *s = hoccl_entry(l, struct hoccl_segment, link);
        w->transport->region_remove(w->endpoint, &s->region);
        hoccl_fetch_add(&hoccl_registry_regions, -1u);
        free(s);
    }
}

static struct hoccl_segment *find_segment(struct hoccl_registry *x, const struct hoccl_memory_segment *m)
{
    for (struct hoccl_list *l = x->segments.next; l != &x->segments; l = l->next) {
        struct hoccl_segment *s = hoccl_entry(l, struct hoccl_segment, link);
        if (s->buffer == m->buffer && s->low == m->base && s->high - s->low == m->bytes) {
            s->users++;
            return s;
        }
    }
    return NULL;
}

/* The segment's region, used once more. Two threads that make the same one at once keep both: it does no harm. */
static HOCCL_Result get_segment(struct hoccl_wire *w, const struct hoccl_memory_segment *m, struct hoccl_segment **segment)
{
    struct hoccl_registry *x = &w->registry;
    pthread_mutex_lock(&x->lock);
    struct hoccl_segment *s = find_segment(x, m);
    pthread_mutex_unlock(&x->lock);
    if (!s) {
        s = hoccl_alloc(sizeof *s, "a registered segment");
        HOCCL_Result r = s ? add_region(w, m, s) : HOCCL_ERR_MEMORY;
        if (r) {
            free(s);
            return r;
        }
        s->users = 1;
        hoccl_fetch_add(&hoccl_registry_regions, 1u);
        pthread_mutex_lock(&x->lock);
        hoccl_list_append(&x->segments, &s->link);
        pthread_mutex_unlock(&x->lock);
    }
    *segment = s;
    return HOCCL_SUCCESS;
}

/* ---- registrations ----------------------------------------------------------------------------------------------- */

/* Under the lock: its segments that nobody else has go to `gone`. */
static void discard(struct hoccl_registration *r, struct hoccl_list *gone)
{
    for (unsigned i = 0; i < r->count; i++) {
        struct hoccl_segment *s = r->segment[i];
        if (--s->users)
            continue;
        hoccl_list_remove(&s->link);
        hoccl_list_append(gone, &s->link);
    }
    free(r);
}

/* Under the lock: no flow finds it any more; gone once no flow has it. */
static void drop(struct hoccl_registry *x, struct hoccl_registration *r, struct hoccl_list *gone)
{
    hoccl_list_remove(&r->link);
    hoccl_poke(&x->known, x->known - 1);
    r->holders = 0;
    if (!r->flows)
        discard(r, gone);
}

static HOCCL_Result count_segments(struct hoccl_wire *w, uintptr_t low, uintptr_t high, unsigned *count)
{
    struct hoccl_memory_segment m;
    *count = 0;
    for (uintptr_t at = low; at < high; at = m.base + m.bytes, ++*count) {
        HOCCL_Result r = hoccl_memory_segment(&w->gpu->device, at, &m);
        if (r)
            return r;
    }
    return HOCCL_SUCCESS;
}

static HOCCL_Result fill_segments(struct hoccl_wire *w, uintptr_t low, uintptr_t high, unsigned most, struct hoccl_registration *r)
{
    struct hoccl_memory_segment m;
    HOCCL_Result e = HOCCL_SUCCESS;
    for (uintptr_t at = low; at < high && !e; at = m.base + m.bytes) {
        e = r->count < most ? hoccl_memory_segment(&w->gpu->device, at, &m)
                            : hoccl_fail(HOCCL_ERR_ARGUMENT, "the memory changes while it is being registered");
        if (!e)
            e = get_segment(w, &m, &r->segment[r->count]);
        if (e)
            break;
        r->low = r->count ? r->low : m.base;
        r->high = m.base + m.bytes;
        r->count++;
    }
    return e;
}

static HOCCL_Result make(struct hoccl_wire *w, uintptr_t low, uintptr_t high, struct hoccl_registration **registration)
{
    struct hoccl_list gone;
    unsigned count;
    hoccl_list_init(&gone);
    HOCCL_Result e = count_segments(w, low, high, &count);
    if (e)
        return e;
    struct hoccl_registration *r = hoccl_alloc(sizeof *r + count * sizeof *r->segment, "a registration");
    if (!r)
        return HOCCL_ERR_MEMORY;
    e = fill_segments(w, low, high, count, r);
    if (e) {
        pthread_mutex_lock(&w->registry.lock);
        discard(r, &gone);
        pthread_mutex_unlock(&w->registry.lock);
        remove_regions(w, &gone);
        return e;
    }
    *registration = r;
    return HOCCL_SUCCESS;
}

static uint64_t enter(struct hoccl_registry *x, struct hoccl_registration *r)
{
    pthread_mutex_lock(&x->lock);
    uint64_t number = r->number = ++x->last;
    r->holders = 1;
    hoccl_list_append(&x->registrations, &r->link);
    hoccl_poke(&x->known, x->known + 1);
    pthread_mutex_unlock(&x->lock);
    return number;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

const struct hoccl_segment *hoccl_registration_find(const struct hoccl_registration *registration, uintptr_t address, size_t bytes)
{
    unsigned low = 0, high = registration->count;
    while (low < high) {
        unsigned mid = (low + high) / 2;
        if (registration->segment[mid]->high <= address)
            low = mid + 1;
        else
            high = mid;
    }
    const struct hoccl_segment *s = low < registration->count ? registration->segment[low] : NULL;
    return s && s->low <= address && bytes <= s->high - address ? s : NULL;
}

/* Is the memory still that which was registered? What has just been learnt of the buffer tells it, but of a range that begins
 * or ends outside the registration: then the driver is asked. */
static bool ask_driver(const struct hoccl_device *device, const struct hoccl_registration *r, uintptr_t low, uintptr_t high)
{
    struct hoccl_memory_segment m;
    for (uintptr_t at = low; at < high; at = m.base + m.bytes) {
        const struct hoccl_segment *s = hoccl_registration_find(r, at, 1);
        if (!s || hoccl_memory_segment(device, at, &m) || m.buffer != s->buffer)
            return false;
    }
    return true;
}

static bool fresh(const struct hoccl_device *device, const struct hoccl_registration *r, const struct hoccl_memory *m, uintptr_t low,
                  uintptr_t high)
{
    uint64_t id = HOCCL_RANGE_SEED;
    const struct hoccl_segment *s = hoccl_registration_find(r, low, 1);
    if (!r->count)
        return true; /* refused; HOCCL_MemFree drops it */
    if (m->host || m->legacy)
        return s && s->buffer == m->buffer;
    for (uintptr_t at = m->base; at < m->base + m->bytes; at = s->high) {
        s = hoccl_registration_find(r, at, 1);
        if (!s || s->low != at)
            return ask_driver(device, r, low, high);
        id = hoccl_range_id(id, s->buffer, s->high - s->low);
    }
    return id == m->buffer;
}

/* Under the lock: the registration that holds these bytes; stale ones on the way are dropped. */
static struct hoccl_registration *find_fresh(struct hoccl_wire *w, const struct hoccl_memory *m, uintptr_t low, uintptr_t high,
                                             struct hoccl_list *gone)
{
    struct hoccl_registry *x = &w->registry;
    struct hoccl_list *l, *next;
    for (l = x->registrations.next; l != &x->registrations; l = next) {
        struct hoccl_registration *r = hoccl_entry(l, struct hoccl_registration, link);
        next = l->next;
        if (r->low > low || r->high < high)
            continue;
        if (fresh(&w->gpu->device, r, m, low, high))
            return r;
        hoccl_log(HOCCL_LOG_INFO, "the memory at %p is not the one that was registered: the registration is dropped", (void *)low);
        drop(x, r, gone);
    }
    return NULL;
}

static struct hoccl_registration *find(struct hoccl_registry *x, uint64_t number)
{
    for (struct hoccl_list *l = x->registrations.next; l != &x->registrations; l = l->next) {
        struct hoccl_registration *r = hoccl_entry(l, struct hoccl_registration, link);
        if (r->number == number)
            return r;
    }
    return NULL;
}

/* ---- holders ----------------------------------------------------------------------------------------------------- */

HOCCL_Result hoccl_registry_hold(struct hoccl_wire *wire, const struct hoccl_memory *memory, const void *address, size_t bytes,
                                 uint64_t *number)
{
    struct hoccl_registry *x = &wire->registry;
    uintptr_t low = (uintptr_t)address, high = low + bytes;
    struct hoccl_list gone;
    hoccl_list_init(&gone);
    pthread_mutex_lock(&x->lock);
    struct hoccl_registration *r = find_fresh(wire, memory, low, high, &gone);
    if (r && r->count)
        r->holders++;
    else
        r = NULL;
    *number = r ? r->number : 0;
    pthread_mutex_unlock(&x->lock);
    remove_regions(wire, &gone);
    if (r)
        return HOCCL_SUCCESS;
    HOCCL_Result e = make(wire, low, high, &r);
    if (!e)
        *number = enter(x, r);
    return e;
}

void hoccl_registry_release(struct hoccl_wire *wire, uint64_t number)
{
    struct hoccl_registry *x = &wire->registry;
    struct hoccl_list gone;
    hoccl_list_init(&gone);
    pthread_mutex_lock(&x->lock);
    struct hoccl_registration *r = find(x, number);
    if (r && !--r->holders)
        drop(x, r, &gone);
    pthread_mutex_unlock(&x->lock);
    remove_regions(wire, &gone);
}

void hoccl_registry_forget(struct hoccl_wire *wire, const void *address)
{
    struct hoccl_registry *x = &wire->registry;
    struct hoccl_list gone, *l, *next;
    hoccl_list_init(&gone);
    pthread_mutex_lock(&x->lock);
    for (l = x->registrations.next; l != &x->registrations; l = next) {
        struct hoccl_registration *r = hoccl_entry(l, struct hoccl_registration, link);
        next = l->next;
        if (r->low <= (uintptr_t)address && (uintptr_t)address < r->high)
            drop(x, r, &gone);
    }
    pthread_mutex_unlock(&x->lock);
    remove_regions(wire, &gone);
}

void hoccl_registry_close(struct hoccl_wire *wire)
{
    struct hoccl_registry *x = &wire->registry;
    struct hoccl_list gone;
    hoccl_list_init(&gone);
    pthread_mutex_lock(&x->lock);
    while (!hoccl_list_empty(&x->registrations))
        drop(x, hoccl_entry(x->registrations.next, struct hoccl_registration, link), &gone);
    pthread_mutex_unlock(&x->lock);
    remove_regions(wire, &gone);
}

/* ---- buffers of operations --------------------------------------------------------------------------------------- */

/* Memory of HOCCL_MemAlloc, all of it; a refusal is remembered like a registration. */
static uint64_t register_own(struct hoccl_wire *w, uintptr_t low, size_t bytes)
{
    struct hoccl_registration *r = NULL;
    HOCCL_Result e = make(w, low, low + bytes, &r);
    if (e) {
        hoccl_log(HOCCL_LOG_INFO, "memory of HOCCL_MemAlloc (%p, %zu bytes) cannot be registered for other nodes and is staged: %s",
                  (void *)low, bytes, hoccl_error_text());
        r = hoccl_alloc(sizeof *r, "a registration");
        if (!r)
            return 0;
        r->low = low;
        r->high = low + bytes;
    }
    uint64_t number = enter(&w->registry, r);
    return e ? 0 : number;
}

uint64_t hoccl_registry_look(struct hoccl_wire *wire, const struct hoccl_memory *memory, const void *address, size_t bytes)
{
    struct hoccl_registry *x = &wire->registry;
    uintptr_t low = (uintptr_t)address, all;
    struct hoccl_registration *r = NULL;
    struct hoccl_list gone;
    uint64_t number = 0;
    size_t n;
    hoccl_list_init(&gone);
    if (hoccl_peek(&x->known)) {
        pthread_mutex_lock(&x->lock);
        r = find_fresh(wire, memory, low, low + bytes, &gone);
        number = r && r->count ? r->number : 0;
        pthread_mutex_unlock(&x->lock);
        remove_regions(wire, &gone);
    }
    if (r || !hoccl_buffer_find(address, bytes, &all, &n))
        return number;
    return register_own(wire, all, n);
}

struct hoccl_registration *hoccl_registry_take(struct hoccl_wire *wire, uint64_t number)
{
    pthread_mutex_lock(&wire->registry.lock);
    struct hoccl_registration *r = find(&wire->registry, number);
    if (r)
        r->flows++;
    pthread_mutex_unlock(&wire->registry.lock);
    return r;
}

/* The last flow of one that has been dropped meanwhile withdraws it, on the progress thread: seldom, and a call into the
 * kernel that waits for nobody. */
void hoccl_registry_put(struct hoccl_wire *wire, struct hoccl_registration *registration)
{
    struct hoccl_list gone;
    hoccl_list_init(&gone);
    pthread_mutex_lock(&wire->registry.lock);
    if (!--registration->flows && !registration->holders)
        discard(registration, &gone);
    pthread_mutex_unlock(&wire->registry.lock);
    remove_regions(wire, &gone);
}
