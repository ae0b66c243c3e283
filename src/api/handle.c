/* SPDX-License-Identifier: Apache-2.0 */
/* The table of live communicators. Handle = generation << 12 | place + 1; place 0, generation 0 is the world. */
#include "api/handle.h"

#include "base/clock.h"
#include "base/error.h"

#include <pthread.h>

#define PLACE_BITS 12
#define PLACES ((1 << PLACE_BITS) - 1)

struct place {
    struct hoccl_comm *comm;
    struct hoccl_comm *retired; /* no new users; the old ones are still inside */
    uint64_t generation;
    int users;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place places[PLACES]; /* under lock */

static HOCCL_Comm handle_of(unsigned place)
{
    return (HOCCL_Comm)(uintptr_t)(places[place].generation << PLACE_BITS | (place + 1));
}

static enum { NOT_YET, FINALISED, ABORTED } world_gone; /* why there is no world */

/* ---- children ----------------------------------------------------------------------------------------------------- */

/* A child that the program forks has the table and none of the threads. What it did with a communicator would reach the peers
 * (boards are shared memory), and what it waited for would never come. So the child's table is empty. */
static bool inherited; /* this process is such a child; only it writes */
static pthread_once_t watching = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_the_child(void)
{
    for (unsigned i = 0; i < PLACES; i++)
        if (places[i].comm || places[i].retired) {
            places[i].comm = places[i].retired = NULL;
            inherited = true;
        }
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, in_the_child);
}

HOCCL_Result hoccl_handle_check_process(void)
{
    if (!inherited)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_USAGE, "this process is a child (fork) of one that has communicators: these are its parent's, and the "
                      "child can make none; it may exec a program, or fork before the first communicator is made");
}

/* ---- the table ------------------------------------------------------------------------------------------------------ */

static HOCCL_Result unknown(HOCCL_Comm handle)
{
    static const char *const why[] = {"HOCCL_Init has not been called", "HOCCL has been finalised", "it has been aborted"};
    if (inherited)
        return hoccl_handle_check_process();
    if (handle == HOCCL_COMM_WORLD) {
        unsigned gone = (unsigned)hoccl_peek(&world_gone);
        return hoccl_fail(gone == ABORTED ? HOCCL_ERR_ARGUMENT : HOCCL_ERR_USAGE, "HOCCL_COMM_WORLD does not exist: %s", why[gone]);
    }
    return hoccl_fail(HOCCL_ERR_ARGUMENT, "communicator %p does not exist: it was never made, or has been destroyed or aborted",
                      (void *)handle);
}

/* Under lock: the place of a live handle, or NULL. */
static struct place *find(HOCCL_Comm handle)
{
    uintptr_t h = (uintptr_t)handle;
    unsigned p = (unsigned)(h & PLACES);
    if (!p || places[p - 1].generation != h >> PLACE_BITS || !places[p - 1].comm)
        return NULL;
    return &places[p - 1];
}

HOCCL_Result hoccl_handle_make(struct hoccl_comm *comm, bool world, HOCCL_Comm *handle)
{
    HOCCL_Result r = HOCCL_ERR_USAGE;
    pthread_once(&watching, watch_forks);
    pthread_mutex_lock(&lock);
    for (unsigned i = world ? 0 : 1; i < (world ? 1 : PLACES) && r; i++) {
        if (places[i].comm || places[i].retired)
            continue;
        places[i].comm = comm;
        places[i].generation += !world;
        *handle = handle_of(i);
        r = HOCCL_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return r ? hoccl_fail(r, "a process can hold %d communicators at a time", PLACES) : r;
}

HOCCL_Result hoccl_handle_use(HOCCL_Comm handle, struct hoccl_comm **comm)
{
    pthread_mutex_lock(&lock);
    struct place *p = find(handle);
    if (p) {
        p->users++;
        *comm = p->comm;
    }
    pthread_mutex_unlock(&lock);
    return p ? HOCCL_SUCCESS : unknown(handle);
}

void hoccl_handle_unuse(HOCCL_Comm handle)
{
    pthread_mutex_lock(&lock);
    places[((uintptr_t)handle & PLACES) - 1].users--;
    pthread_mutex_unlock(&lock);
}

HOCCL_Result hoccl_handle_enter(HOCCL_Comm handle, struct hoccl_comm **comm)
{
    HOCCL_Result r = hoccl_handle_use(handle, comm);
    if (r)
        return r;
    if (hoccl_take(&(*comm)->busy, 0, 1)) {
        if (!hoccl_observe(&(*comm)->finalized))
            return HOCCL_SUCCESS;
        hoccl_publish(&(*comm)->busy, 0);
        r = hoccl_fail(HOCCL_ERR_USAGE, "the communicator has been finalized: it can only be destroyed, aborted and asked");
    } else {
        r = hoccl_fail(HOCCL_ERR_USAGE,
                       "another thread is in a call of this communicator: one thread at a time, or a communicator each");
    }
    hoccl_handle_unuse(handle);
    return r;
}

void hoccl_handle_leave(HOCCL_Comm handle, struct hoccl_comm *comm)
{
    hoccl_publish(&comm->busy, 0);
    hoccl_handle_unuse(handle);
}

/* Take the communicator out of the table; its place stays taken while somebody is inside. */
static struct place *retire(HOCCL_Comm handle, bool aborted)
{
    pthread_mutex_lock(&lock);
    struct place *p = find(handle);
    if (p == &places[0])
        hoccl_poke(&world_gone, aborted ? ABORTED : FINALISED);
    if (p) {
        p->retired = p->comm;
        p->comm = NULL;
    }
    pthread_mutex_unlock(&lock);
    return p;
}

static bool left(struct place *p)
{
    pthread_mutex_lock(&lock);
    bool none = p->users == 0;
    if (none)
        p->retired = NULL;
    pthread_mutex_unlock(&lock);
    return none;
}

HOCCL_Result hoccl_handle_retire(HOCCL_Comm handle, uint64_t timeout, void (*stop)(struct hoccl_comm *),
                                 struct hoccl_comm **comm)
{
    uint64_t begun = hoccl_now();
    struct place *p = retire(handle, stop != NULL);
    if (!p)
        return unknown(handle);
    *comm = p->retired;
    if (stop)
        stop(*comm);
    while (!left(p)) {
        if (hoccl_now() - begun > timeout)
            return hoccl_fail(HOCCL_ERR_TIMEOUT, "another thread is still inside a call of the communicator after %llu s",
                              (unsigned long long)(timeout / HOCCL_S));
        hoccl_sleep(20 * HOCCL_US);
    }
    return HOCCL_SUCCESS;
}
