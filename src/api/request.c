/* SPDX-License-Identifier: Apache-2.0 */
/* The table of requests, which grows. Handle = generation << 20 | place + 1. */
#include "api/request.h"

#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>

#define PLACE_BITS 20
#define PLACES ((1u << PLACE_BITS) - 1)

struct place {
    struct hoccl_kept *kept;
    uint64_t generation; /* of the handle that was given last */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place *places; /* these, under lock */
static unsigned room;
static unsigned first_free; /* no place below it is free */

static HOCCL_Result unknown(HOCCL_Request request)
{
    return hoccl_fail(HOCCL_ERR_ARGUMENT, "request %p does not exist: it was never made, or has been freed", (void *)request);
}

/* Under lock: the place of a live handle, or NULL. */
static struct place *find(HOCCL_Request request)
{
    uintptr_t h = (uintptr_t)request;
    unsigned p = (unsigned)(h & PLACES);
    if (!p || p > room || places[p - 1].generation != h >> PLACE_BITS || !places[p - 1].kept)
        return NULL;
    return &places[p - 1];
}

static HOCCL_Result grow(void)
{
    unsigned more = room ? 2 * room : 64;
    more = more < PLACES ? more : PLACES;
    if (more == room)
        return hoccl_fail(HOCCL_ERR_USAGE, "a process can hold %u requests at a time", PLACES);
    struct place *p = realloc(places, more * sizeof *p);
    if (!p)
        return hoccl_fail(HOCCL_ERR_MEMORY, "no host memory for %u requests", more);
    for (unsigned i = room; i < more; i++)
        p[i] = (struct place){0};
    places = p;
    room = more;
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_request_make(struct hoccl_kept *kept, HOCCL_Request *request)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    pthread_mutex_lock(&lock);
    while (first_free < room && places[first_free].kept)
        first_free++;
    if (first_free == room)
        r = grow();
    if (!r) {
        struct place *p = &places[first_free++];
        p->kept = kept;
        p->generation++;
        *request = (HOCCL_Request)(uintptr_t)(p->generation << PLACE_BITS | (uint64_t)(p - places + 1));
    }
    pthread_mutex_unlock(&lock);
    return r;
}

HOCCL_Result hoccl_request_use(HOCCL_Request request, struct hoccl_kept **kept)
{
    pthread_mutex_lock(&lock);
    struct place *p = find(request);
    if (p) {
        *kept = p->kept;
        p->kept->users++;
    }
    pthread_mutex_unlock(&lock);
    return p ? HOCCL_SUCCESS : unknown(request);
}

void hoccl_request_unuse(struct hoccl_kept *kept)
{
    pthread_mutex_lock(&lock);
    kept->users--;
    pthread_mutex_unlock(&lock);
}

HOCCL_Result hoccl_request_retire(HOCCL_Request request, struct hoccl_kept **kept)
{
    bool used = false;
    pthread_mutex_lock(&lock);
    struct place *p = find(request);
    if (p && !(used = p->kept->users != 0)) {
        *kept = p->kept;
        p->kept = NULL;
        if ((unsigned)(p - places) < first_free)
            first_free = (unsigned)(p - places);
    }
    pthread_mutex_unlock(&lock);
    if (used)
        return hoccl_fail(HOCCL_ERR_USAGE, "request %p is being started by another thread: HOCCL_Start has to return first",
                          (void *)request);
    return p ? HOCCL_SUCCESS : unknown(request);
}
