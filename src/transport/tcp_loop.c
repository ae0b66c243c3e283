/* SPDX-License-Identifier: Apache-2.0 */
/* One turn of the thread: take what was kicked, wait for sockets unless a lane has something to do, step each of those
 * lanes once, ring the bell if there is news. Where it has a core for itself it polls for a while before it sleeps: a chunk
 * passes two such threads, and to wake one costs more than to send it.
 *
 * Sleeping and waking go as in base/doorbell.h, with an eventfd in place of the futex: the thread sets `asleep`, looks at
 * `posted` once more and waits; who adds to the lists sets `posted`, clears `asleep` and, if it was set, writes to the eventfd. A
 * thread that polls takes no lock for that.
 *
 * A lane's `minded` is 1 from when it is put into `kicked` or `run` until just before the step that it is there for. All who
 * write it exchange it, so one comes first: who kicks, and the step sees what was given, or the step, and the kick counts. */
#define _GNU_SOURCE
#include "transport/tcp_loop.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/patience.h"
#include "base/thread.h"
#include "transport/tcp_door.h"
#include "transport/tcp_lane.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 64
#define DEPART_TICK (10 * HOCCL_MS)   /* while lanes say goodbye */
#define FAREWELL (2 * HOCCL_S)        /* for lanes that say goodbye when the endpoint closes */

static void drain_wake(struct tcp_source *source, uint32_t events)
{
    struct tcp_loop *l = hoccl_entry(source, struct tcp_loop, wake_source);
    uint64_t n;
    (void)events;
    while (read(l->wake, &n, sizeof n) == sizeof n)
        continue;
}

bool hoccl_tcp_loop_watch(struct tcp_loop *loop, int fd, uint32_t events, struct tcp_source *source)
{
    struct epoll_event e = {.events = events, .data.ptr = source};
    return !epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &e);
}

void hoccl_tcp_loop_wake(struct tcp_loop *loop)
{
    uint64_t one = 1;
    if (hoccl_exchange(&loop->asleep, 0u) && write(loop->wake, &one, sizeof one) < 0)
        return; /* full: it will wake anyway */
}

/* Something was put into the lists: the thread takes it. */
static void post(struct tcp_loop *l)
{
    hoccl_exchange(&l->posted, 1u);
    hoccl_tcp_loop_wake(l);
}

void hoccl_tcp_loop_kick(struct tcp_loop *loop, struct tcp_lane *lane)
{
    if (hoccl_exchange(&lane->minded, 1u))
        return;
    pthread_mutex_lock(&loop->lock);
    if (hoccl_list_empty(&lane->of_kicked))
        hoccl_list_append(&loop->kicked, &lane->of_kicked);
    pthread_mutex_unlock(&loop->lock);
    post(loop);
}

void hoccl_tcp_loop_order(struct tcp_loop *loop, struct hoccl_list *order)
{
    pthread_mutex_lock(&loop->lock);
    hoccl_list_append(&loop->orders, order);
    pthread_mutex_unlock(&loop->lock);
    post(loop);
}

/* ---- one turn ---------------------------------------------------------------------------------------------------- */

static void make_runnable(struct tcp_lane *lane)
{
    struct tcp_loop *l = lane->loop;
    if (hoccl_list_empty(&lane->of_loop))
        hoccl_list_append(&l->lanes, &lane->of_loop);
    hoccl_exchange(&lane->minded, 1u);
    if (hoccl_list_empty(&lane->of_run))
        hoccl_list_append(&l->run, &lane->of_run);
}

static void lane_ready(struct tcp_source *source, uint32_t events)
{
    struct tcp_lane *lane = hoccl_entry(source, struct tcp_lane, source);
    pthread_mutex_lock(&lane->lock);
    lane->can_read |= (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    lane->can_write |= (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
    pthread_mutex_unlock(&lane->lock);
    make_runnable(lane);
}

/* A lane that this thread sees for the first time is watched from now on. */
static void meet(struct tcp_lane *lane)
{
    if (lane->watched)
        return;
    lane->watched = true;
    lane->source.ready = lane_ready;
    pthread_mutex_lock(&lane->lock);
    if (lane->fd >= 0 && !hoccl_tcp_loop_watch(lane->loop, lane->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &lane->source))
        shutdown(lane->fd, SHUT_RDWR); /* out of memory: then the lane ends rather than fall silent */
    pthread_mutex_unlock(&lane->lock);
}

static struct tcp_lane *next_kicked(struct tcp_loop *l)
{
    pthread_mutex_lock(&l->lock);
    struct hoccl_list *link = hoccl_list_take(&l->kicked);
    pthread_mutex_unlock(&l->lock);
    return link ? hoccl_entry(link, struct tcp_lane, of_kicked) : NULL;
}

/* Take what others have put down. Should the thread end? */
static bool take_lists(struct tcp_loop *l)
{
    struct hoccl_list orders;
    struct tcp_lane *lane;
    if (!hoccl_peek(&l->posted))
        return false;
    hoccl_exchange(&l->posted, 0u);
    hoccl_list_init(&orders);
    pthread_mutex_lock(&l->lock);
    bool stop = l->stop;
    hoccl_list_move(&orders, &l->orders);
    pthread_mutex_unlock(&l->lock);
    while ((lane = next_kicked(l))) {
        l->active_at = hoccl_now();
        meet(lane);
        make_runnable(lane);
    }
    if (l->door)
        hoccl_tcp_door_orders(l->door, &orders);
    return stop;
}

/* An addition of nothing, not a look: of it and who sets `posted` one comes first. */
static bool lists_empty(struct tcp_loop *l)
{
    return !hoccl_fetch_add(&l->posted, 0u);
}

/* No room for news: nothing can be done until poll has made some. */
static bool stalled(struct tcp_loop *l)
{
    if (tcp_news_room(l->news, TCP_NEWS_STEP))
        return false;
    hoccl_exchange(&l->news->stalled.word, 1u);
    return !tcp_news_room(l->news, TCP_NEWS_STEP);
}

static void ring(struct tcp_loop *l)
{
    struct tcp_shared *s = l->shared;
    if (l->told == l->news->tail.word)
        return;
    l->told = l->news->tail.word;
    if (hoccl_exchange(&s->armed, 0u) && s->bell)
        hoccl_doorbell_ring(s->bell);
}

/* Milliseconds until something has to be looked at without an event; −1: nothing. */
static int patience(struct tcp_loop *l)
{
    uint64_t now = hoccl_now(), due = l->door ? hoccl_tcp_door_due(l->door) : TCP_NEVER;
    if (!hoccl_list_empty(&l->lanes) && l->beat_at < due)
        due = l->beat_at;
    if (l->departing && now + DEPART_TICK < due)
        due = now + DEPART_TICK;
    if (due == TCP_NEVER)
        return -1;
    uint64_t wait = due > now ? (due - now) / HOCCL_MS + 1 : 0;
    return wait < INT_MAX ? (int)wait : INT_MAX;
}

static bool polls(struct tcp_loop *l)
{
    return hoccl_patience_spares(l->number) && hoccl_patience(&l->active_at);
}

static void wait_for_events(struct tcp_loop *l)
{
    struct epoll_event e[EVENTS];
    bool idle = (stalled(l) || hoccl_list_empty(&l->run)) && !polls(l);
    int limit = 0;
    if (idle) {
        hoccl_exchange(&l->asleep, 1u);
        if (lists_empty(l) && (stalled(l) || hoccl_list_empty(&l->run)))
            limit = patience(l);
    }
    int n = epoll_wait(l->epoll, e, EVENTS, limit);
    if (idle)
        hoccl_publish(&l->asleep, 0u);
    if (n > 0)
        l->active_at = hoccl_now();
    for (int i = 0; i < n; i++) {
        struct tcp_source *s = e[i].data.ptr;
        s->ready(s, e[i].events);
    }
}

static void run_lanes(struct tcp_loop *l)
{
    struct hoccl_list now, *link;
    hoccl_list_init(&now);
    hoccl_list_move(&now, &l->run);
    while ((link = hoccl_list_take(&now))) {
        struct tcp_lane *lane = hoccl_entry(link, struct tcp_lane, of_run);
        hoccl_exchange(&lane->minded, 0u);
        if (hoccl_tcp_lane_step(lane))
            make_runnable(lane);
    }
}

static void look(struct tcp_loop *l)
{
    uint64_t now = hoccl_now();
    if (now < l->beat_at && !l->departing)
        return;
    bool beat = now >= l->beat_at;
    if (beat)
        l->beat_at = now + l->shared->life / TCP_LOOKS;
    struct hoccl_list *next;
    for (struct hoccl_list *k = l->lanes.next; k != &l->lanes; k = next) {
        struct tcp_lane *lane = hoccl_entry(k, struct tcp_lane, of_loop);
        next = k->next;
        if (beat || lane->depart_until)
            hoccl_tcp_lane_look(lane, now);
    }
}

/* Lanes that are over can be named by no event any more once a turn has passed. */
static void bury(struct tcp_loop *l)
{
    struct hoccl_list *link;
    while ((link = hoccl_list_take(&l->over)))
        hoccl_tcp_lane_free(hoccl_entry(link, struct tcp_lane, of_loop));
}

static void turn(struct tcp_loop *l)
{
    wait_for_events(l);
    run_lanes(l);
    look(l);
    if (l->door)
        hoccl_tcp_door_step(l->door);
    bury(l);
    ring(l);
}

static void *run(void *arg)
{
    struct tcp_loop *l = arg;
    uint64_t end = 0;
    prctl(PR_SET_TIMERSLACK, 1000);
    for (;;) {
        if (take_lists(l) && !end)
            end = hoccl_now() + FAREWELL;
        if (end && ((!l->departing && hoccl_list_empty(&l->run)) || hoccl_now() > end))
            break;
        turn(l);
    }
    return NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

HOCCL_Result hoccl_tcp_loop_open(struct tcp_loop *loop, struct tcp_shared *shared, int number)
{
    memset(loop, 0, sizeof *loop);
    loop->shared = shared;
    loop->number = number;
    hoccl_list_init(&loop->kicked);
    hoccl_list_init(&loop->orders);
    hoccl_list_init(&loop->lanes);
    hoccl_list_init(&loop->run);
    hoccl_list_init(&loop->over);
    pthread_mutex_init(&loop->lock, NULL);
    loop->wake_source.ready = drain_wake;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->news = hoccl_alloc_lines(sizeof *loop->news, "an I/O thread");
    if (!loop->news)
        return HOCCL_ERR_MEMORY;
    if (loop->epoll < 0 || loop->wake < 0 || !hoccl_tcp_loop_watch(loop, loop->wake, EPOLLIN, &loop->wake_source))
        return hoccl_fail(HOCCL_ERR_SYSTEM, "TCP: epoll or eventfd for I/O thread %d: %m (limit of open files: ulimit -n)", number);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_tcp_loop_start(struct tcp_loop *loop, int number)
{
    char name[16];
    int e = hoccl_thread_create(&loop->thread, NULL, run, loop);
    if (e) {
        loop->thread = 0;
        return hoccl_fail(HOCCL_ERR_SYSTEM, "TCP: starting I/O thread %d: %s", number, strerror(e));
    }
    snprintf(name, sizeof name, "hoccl-tcp-%d", number & 15);
    pthread_setname_np(loop->thread, name);
    return HOCCL_SUCCESS;
}

static void free_lanes(struct tcp_loop *loop)
{
    struct hoccl_list *link;
    while ((link = hoccl_list_take(&loop->kicked)))
        make_runnable(hoccl_entry(link, struct tcp_lane, of_kicked));
    while ((link = hoccl_list_take(&loop->lanes))) {
        struct tcp_lane *lane = hoccl_entry(link, struct tcp_lane, of_loop);
        hoccl_list_remove(&lane->of_run);
        hoccl_tcp_lane_free(lane);
    }
    bury(loop);
}

void hoccl_tcp_loop_close(struct tcp_loop *loop)
{
    if (!loop->shared)
        return;
    if (loop->thread) {
        pthread_mutex_lock(&loop->lock);
        loop->stop = true;
        pthread_mutex_unlock(&loop->lock);
        post(loop);
        pthread_join(loop->thread, NULL);
    }
    if (loop->door) {
        hoccl_tcp_door_orders(loop->door, &loop->orders);
        hoccl_tcp_door_close(loop->door);
    }
    for (struct tcp_news *n; loop->news && (n = tcp_news_take(loop->news));)
        if (n->kind == TCP_NEWS_MET)
            hoccl_tcp_meeting_free(n->meeting);
    free_lanes(loop);
    if (loop->epoll >= 0)
        close(loop->epoll);
    if (loop->wake >= 0)
        close(loop->wake);
    pthread_mutex_destroy(&loop->lock);
    free(loop->news);
}
