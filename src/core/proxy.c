/* SPDX-License-Identifier: Apache-2.0 */
/* The loop that drives everything: communicators first, then the engine they share. It makes no driver call that can
 * hang. It polls while there is work, naps
 * between looks when nothing has moved for a while, and sleeps on its doorbell when nothing is outstanding.
 *
 * Communicators come and go by request, so that the loop holds no lock while it works:
 *   attach:  request ATTACH ──▶ the loop adds it     ──▶ request 0
 *   detach:  request DETACH ──▶ the loop forgets it  ──▶ request 0 */
#define _GNU_SOURCE
#include "core/proxy.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/doorbell.h"
#include "base/error.h"
#include "base/patience.h"
#include "base/setting.h"
#include "base/thread.h"
#include "core/progress.h"
#include "p2p/wire.h"
#include "stream/parking.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define NAP (50 * HOCCL_US)        /* between looks, when nothing has moved for a while: what it adds to a latency */
#define CHECK_EVERY (100 * HOCCL_MS)
#define STOPPED (500 * HOCCL_MS)   /* a turn of the loop that took so long: the process did not run (SIGSTOP, a debugger) */

enum { NOTHING, ATTACH, DETACH };

struct hoccl_proxy {
    struct hoccl_gpu *gpu;
    pthread_t thread;
    int users;                 /* under users_lock */
    uint32_t stop;
    uint32_t request;          /* NOTHING, ATTACH, DETACH; set by who asks, cleared by the loop */
    struct hoccl_comm *asked;  /* for whom */
    struct hoccl_list comms;   /* the loop's */
    int dead;                  /* the loop's: engines that have stood still for HOCCL_TIMEOUT, counted among what is parked */
};

static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;

static void serve_request(struct hoccl_proxy *p)
{
    switch (hoccl_observe(&p->request)) {
    case ATTACH:
        hoccl_list_append(&p->comms, &p->asked->link);
        break;
    case DETACH:
        hoccl_list_remove(&p->asked->link);
        break;
    default:
        return;
    }
    hoccl_publish(&p->request, NOTHING);
}

/* What has landed comes first: messages end with it. */
static bool step(struct hoccl_proxy *p, uint64_t now)
{
    bool moved = false;
    serve_request(p);
    for (int i = 0; i < HOCCL_DIRECTIONS; i++)
        moved |= hoccl_engine_land(&p->gpu->engine[i]);
    for (struct hoccl_list *l = p->comms.next; l != &p->comms; l = l->next)
        moved |= hoccl_comm_step(hoccl_entry(l, struct hoccl_comm, link));
    for (int i = 0; i < HOCCL_DIRECTIONS; i++)
        moved |= hoccl_engine_step(&p->gpu->engine[i]);
    struct hoccl_wire *wire = hoccl_observe(&p->gpu->wire);
    if (wire)
        moved |= hoccl_wire_step(wire);
    hoccl_nudge_step(&p->gpu->nudge, &p->gpu->submitter, now);
    return moved;
}

static bool idle(struct hoccl_proxy *p)
{
    if (hoccl_observe(&p->request) || hoccl_observe(&p->stop))
        return false;
    for (int i = 0; i < HOCCL_DIRECTIONS; i++)
        if (!hoccl_engine_empty(&p->gpu->engine[i]))
            return false;
    for (struct hoccl_list *l = p->comms.next; l != &p->comms; l = l->next)
        if (!hoccl_comm_idle(hoccl_entry(l, struct hoccl_comm, link)))
            return false;
    const struct hoccl_wire *wire = hoccl_observe(&p->gpu->wire);
    return !wire || hoccl_wire_idle(wire);
}

/* Before it sleeps, the wire is asked to ring. */
static bool wire_news(struct hoccl_proxy *p)
{
    struct hoccl_wire *wire = hoccl_observe(&p->gpu->wire);
    return wire && hoccl_wire_arm(wire);
}

/* Somebody has brought work since the last look. */
static bool news(struct hoccl_proxy *p)
{
    bool any = hoccl_observe(&p->request) || hoccl_observe(&p->stop);
    for (struct hoccl_list *l = p->comms.next; l != &p->comms; l = l->next)
        any |= hoccl_comm_news(hoccl_entry(l, struct hoccl_comm, link));
    return any;
}

/* What a dead engine has may never land, and the driver's calls that wait for it would never return. */
static void count_dead(struct hoccl_proxy *p, uint64_t now)
{
    int dead = 0;
    for (int i = 0; i < HOCCL_DIRECTIONS; i++)
        dead += hoccl_engine_stalled(&p->gpu->engine[i], now) > hoccl_settings.timeout;
    if (dead < p->dead)
        hoccl_parking_leave(p->dead - dead);
    if (dead < p->dead || (dead > p->dead && hoccl_parking_count(dead - p->dead)))
        p->dead = dead;
}

static void check_stuck(struct hoccl_proxy *p, uint64_t now)
{
    count_dead(p, now);
    struct hoccl_wire *wire = hoccl_observe(&p->gpu->wire);
    if (wire)
        hoccl_wire_check(wire, now);
    for (struct hoccl_list *l = p->comms.next; l != &p->comms; l = l->next)
        hoccl_comm_check_stuck(hoccl_entry(l, struct hoccl_comm, link), now);
}

/* Nothing moved: look again at once, after a nap, or when rung. A nap is not announced, so that nobody pays for a wake-up
 * (a system call in the calling thread of an application) to save a part of fifty microseconds. True: it has slept. */
static bool rest(struct hoccl_proxy *p, uint64_t *since)
{
    if (hoccl_patience(since))
        return false;
    if (!idle(p)) {
        if (!news(p))
            hoccl_sleep(NAP);
        return false;
    }
    count_dead(p, hoccl_now());
    hoccl_doorbell_announce(&p->gpu->bell);
    if (idle(p) && !wire_news(p))
        hoccl_doorbell_sleep(&p->gpu->bell, 0);
    else
        hoccl_doorbell_cancel(&p->gpu->bell);
    return true;
}

static void *loop(void *arg)
{
    struct hoccl_proxy *p = arg;
    uint64_t since = hoccl_now(), checked = since, last = since;
    hoccl_driver.CtxSetCurrent(p->gpu->device.context); /* for cuIpcGetMemHandle, which returns whatever else hangs */
    prctl(PR_SET_NAME, "hoccl-progress");
    prctl(PR_SET_TIMERSLACK, 1000);
    while (!hoccl_observe(&p->stop)) {
        uint64_t now = hoccl_turn_began = hoccl_now();
        if (now - last > STOPPED) /* time that the process did not run is nobody's fault */
            hoccl_gpu_forgive(p->gpu, now - last);
        last = now;
        if (step(p, now))
            since = now;
        else
            last = rest(p, &since) ? hoccl_now() : now;
        if (now - checked > CHECK_EVERY) {
            check_stuck(p, now);
            checked = now;
        }
    }
    hoccl_parking_leave(p->dead);
    return NULL;
}

/* Under users_lock: one request at a time. */
static void ask(struct hoccl_proxy *p, uint32_t request, struct hoccl_comm *comm)
{
    p->asked = comm;
    hoccl_publish(&p->request, request);
    while (hoccl_observe(&p->request)) {
        hoccl_doorbell_ring(&p->gpu->bell);
        hoccl_sleep(10 * HOCCL_US);
    }
}

static HOCCL_Result open_proxy(struct hoccl_gpu *gpu)
{
    struct hoccl_proxy *p = hoccl_alloc(sizeof *p, "the progress thread");
    if (!p)
        return HOCCL_ERR_MEMORY;
    p->gpu = gpu;
    hoccl_list_init(&p->comms);
    int e = hoccl_thread_create(&p->thread, NULL, loop, p);
    if (e) {
        free(p);
        return hoccl_fail(HOCCL_ERR_SYSTEM, "starting the progress thread: %s", strerror(e));
    }
    gpu->proxy = p;
    return HOCCL_SUCCESS;
}

static void close_proxy(struct hoccl_proxy *p)
{
    p->gpu->proxy = NULL;
    hoccl_publish(&p->stop, 1);
    hoccl_doorbell_ring(&p->gpu->bell);
    pthread_join(p->thread, NULL);
    free(p);
}

HOCCL_Result hoccl_proxy_attach(struct hoccl_comm *comm)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    pthread_mutex_lock(&users_lock);
    if (!comm->gpu->proxy)
        r = open_proxy(comm->gpu);
    if (!r) {
        struct hoccl_proxy *p = comm->gpu->proxy;
        p->users++;
        ask(p, ATTACH, comm);
    }
    pthread_mutex_unlock(&users_lock);
    return r;
}

void hoccl_proxy_detach(struct hoccl_comm *comm)
{
    struct hoccl_proxy *p = comm->gpu->proxy;
    pthread_mutex_lock(&users_lock);
    ask(p, DETACH, comm);
    if (!--p->users)
        close_proxy(p);
    pthread_mutex_unlock(&users_lock);
}

void hoccl_proxy_ring(struct hoccl_comm *comm)
{
    hoccl_doorbell_ring(&comm->gpu->bell);
}
