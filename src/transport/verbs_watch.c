/* SPDX-License-Identifier: Apache-2.0 */
/* The helper thread of an endpoint, "hoccl-verbs". It sleeps until one of these wakes it:
 *
 *   the completion channel   poll's owner has armed it, and a completion has come: ring the bell
 *   the device               a port or its addresses have changed: look again; the device has failed: say so
 *   the exchange's sockets   step it; ring the bell when a call has ended
 *   the clock                connections are joined and may need a heartbeat, which only poll sends: ring the bell
 *   the eventfd              a call has begun, or the end
 *
 * It touches nothing that belongs to the thread of poll. */
#define _GNU_SOURCE
#include "base/atomic.h"
#include "base/clock.h"
#include "base/doorbell.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "transport/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SOCKETS 512
#define FIXED 3 /* eventfd, channel, device */

static void hear_channel(struct hoccl_endpoint *e)
{
    struct ibv_cq *cq;
    void *context;
    while (!e->ibv->get_cq_event(e->channel, &cq, &context)) {
        e->ibv->ack_cq_events(cq, 1);
        hoccl_doorbell_ring(e->bell);
    }
}

static void look_again(struct hoccl_endpoint *e, const char *event)
{
    char text[128];
    pthread_mutex_lock(&e->port_lock);
    HOCCL_Result r = hoccl_port_refresh(&e->port, &e->setting);
    hoccl_port_text(&e->port, text, sizeof text);
    pthread_mutex_unlock(&e->port_lock);
    hoccl_log(r ? HOCCL_LOG_WARN : HOCCL_LOG_INFO, "%s: %s%s%s", text, event, r ? ": " : "", r ? hoccl_error_text() : "");
}

static void fail_device(struct hoccl_endpoint *e, const char *event)
{
    pthread_mutex_lock(&e->port_lock);
    snprintf(e->fatal, sizeof e->fatal, "%s (see the driver's messages, dmesg)", event);
    pthread_mutex_unlock(&e->port_lock);
    hoccl_log(HOCCL_LOG_ERROR, "RDMA device %s: %s", e->port.here.device, event);
    hoccl_doorbell_ring(e->bell);
}

static void hear_device(struct hoccl_endpoint *e)
{
    struct ibv_async_event event;
    while (!e->ibv->get_async_event(e->port.context, &event)) {
        const char *text = e->ibv->event_type_str(event.event_type);
        switch ((int)event.event_type) {
        case IBV_EVENT_PORT_ACTIVE:
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_LID_CHANGE:
        case IBV_EVENT_PKEY_CHANGE:
        case IBV_EVENT_GID_CHANGE:
        case IBV_EVENT_CLIENT_REREGISTER:
            look_again(e, text);
            break;
        case IBV_EVENT_DEVICE_FATAL:
        case IBV_EVENT_CQ_ERR:
        case IBV_EVENT_SRQ_ERR:
            fail_device(e, text);
            break;
        default: /* of one queue pair: its completions say more */
            break;
        }
        e->ibv->ack_async_event(&event);
    }
}

static int milliseconds(uint64_t deadline)
{
    uint64_t now = hoccl_now();
    if (deadline == UINT64_MAX)
        return -1;
    if (deadline <= now)
        return 0;
    return deadline - now > 1000 * HOCCL_S ? 1000000 : (int)((deadline - now) / HOCCL_MS) + 1;
}

/* Sleep; then do what can be done. */
static void once(struct hoccl_endpoint *e, struct pollfd *fds, uint64_t *beat)
{
    uint64_t deadline = UINT64_MAX, count;
    fds[0] = (struct pollfd){.fd = e->watch.wake, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = e->channel->fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = e->port.context->async_fd, .events = POLLIN};
    int n = FIXED + hoccl_exchange_wants(&e->exchange, fds + FIXED, SOCKETS, &deadline);
    if (hoccl_observe(&e->beating) && *beat < deadline)
        deadline = *beat;
    poll(fds, (nfds_t)n, milliseconds(deadline));
    if (fds[0].revents && read(e->watch.wake, &count, sizeof count) < 0 && errno != EAGAIN)
        hoccl_log(HOCCL_LOG_WARN, "eventfd: %s", strerror(errno));
    if (fds[1].revents)
        hear_channel(e);
    if (fds[2].revents)
        hear_device(e);
    uint32_t before = hoccl_peek(&e->exchange.news);
    hoccl_exchange_step(&e->exchange);
    uint64_t now = hoccl_now();
    bool late = now >= *beat;
    if (late)
        *beat = now + hoccl_verbs_beat() / 4;
    if (hoccl_peek(&e->exchange.news) != before || (late && hoccl_observe(&e->beating)))
        hoccl_doorbell_ring(e->bell);
}

static void *run(void *argument)
{
    struct hoccl_endpoint *e = argument;
    struct pollfd fds[FIXED + SOCKETS];
    uint64_t beat = 0;
    pthread_setname_np(pthread_self(), "hoccl-verbs");
    while (!hoccl_observe(&e->watch.stop))
        once(e, fds, &beat);
    return NULL;
}

void hoccl_watch_wake(struct hoccl_endpoint *e)
{
    uint64_t one = 1;
    if (write(e->watch.wake, &one, sizeof one) < 0 && errno != EAGAIN)
        hoccl_log(HOCCL_LOG_WARN, "eventfd: %s", strerror(errno));
}

static bool unblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

HOCCL_Result hoccl_watch_open(struct hoccl_endpoint *e)
{
    e->watch.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->watch.wake < 0)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "eventfd: %m");
    if (!unblock(e->channel->fd) || !unblock(e->port.context->async_fd))
        return hoccl_fail(HOCCL_ERR_SYSTEM, "the completion channel of %s: %m", e->port.here.device);
    int status = hoccl_thread_create(&e->watch.thread, NULL, run, e);
    if (status)
        return hoccl_fail(HOCCL_ERR_SYSTEM, "no thread for an RDMA endpoint: %s", strerror(status));
    e->watch.running = true;
    return HOCCL_SUCCESS;
}

void hoccl_watch_close(struct hoccl_endpoint *e)
{
    if (e->watch.running) {
        hoccl_publish(&e->watch.stop, 1);
        hoccl_watch_wake(e);
        pthread_join(e->watch.thread, NULL);
    }
    if (e->watch.wake >= 0)
        close(e->watch.wake);
}
