/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "verbs": RDMA over InfiniBand and RoCE by libibverbs. This file opens and closes endpoints and holds the
 * table; what is said is in verbs_wire.h, the objects in verbs.h. */
#include "transport/verbs.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "transport/verbs_region.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CQ_SLACK 1024 /* completions of queue pairs that are gone may lie in the queue for a while */
#define NEWS 4096
#define PART_MOST ((size_t)1 << 30)
#define PART_UNIT ((size_t)4096)
#define LANES_ETHERNET 4 /* switches of Ethernet spread traffic by queue pair */
#define LANES_INFINIBAND 2

uint64_t hoccl_verbs_beat(void)
{
    return hoccl_settings.timeout / 8;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* A peer that is gone is noticed by a heartbeat that is not acknowledged: at most a beat and a quarter after the last word,
 * and then the queue pair's own patience. Both together are to be less than half of HOCCL_TIMEOUT. */
static HOCCL_Result read_setting(struct hoccl_endpoint *e)
{
    uint64_t half = hoccl_settings.timeout / 2, limit = half - hoccl_verbs_beat() - hoccl_verbs_beat() / 4;
    HOCCL_Result r = hoccl_verbs_setting_read(hoccl_settings.verbs, limit, &e->setting);
    if (!r && hoccl_verbs_patience(&e->setting) / 4 > limit)
        hoccl_log(HOCCL_LOG_WARN,
                  "HOCCL_VERBS: with timeout=%d,retry=%d a peer that has vanished is noticed later than HOCCL_TIMEOUT / 2",
                  e->setting.timeout, e->setting.retry);
    return r;
}

static int power_of_two(int most)
{
    int n = 1;
    while (n * 2 <= most)
        n *= 2;
    return n;
}

static void set_limits(struct hoccl_endpoint *e)
{
    const struct ibv_device_attr *limits = &e->port.limits;
    size_t most = e->port.message_most ? e->port.message_most : PART_MOST;
    int lanes = hoccl_settings.lanes    ? (int)hoccl_settings.lanes
                : e->port.here.ethernet ? LANES_ETHERNET
                                        : LANES_INFINIBAND;
    e->lanes = lanes < HOCCL_LANES_MAX ? lanes : HOCCL_LANES_MAX;
    e->queue_depth = power_of_two(limits->max_qp_wr < HOCCL_QUEUE_DEPTH ? limits->max_qp_wr : HOCCL_QUEUE_DEPTH);
    e->budget = limits->max_cqe / 4 < HOCCL_SEND_BUDGET ? limits->max_cqe / 4 : HOCCL_SEND_BUDGET;
    if (hoccl_verbs_fault.message_most)
        most = hoccl_verbs_fault.message_most;
    most = most < PART_MOST ? most : PART_MOST;
    e->part_most = most < PART_UNIT ? most : most / PART_UNIT * PART_UNIT;
}

static HOCCL_Result make_completions(struct hoccl_endpoint *e)
{
    int entries = e->budget + e->receives.most + CQ_SLACK;
    e->channel = e->ibv->create_comp_channel(e->port.context);
    if (!e->channel)
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s makes no completion channel: %m", e->port.here.device);
    e->cq = e->ibv->create_cq(e->port.context, entries < e->port.limits.max_cqe ? entries : e->port.limits.max_cqe, NULL,
                              e->channel, 0);
    if (!e->cq)
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s makes no completion queue of %d entries: %m", e->port.here.device, entries);
    e->news = hoccl_alloc(NEWS * sizeof *e->news, "events");
    e->news_size = NEWS;
    return e->news ? HOCCL_SUCCESS : HOCCL_ERR_MEMORY;
}

static HOCCL_Result make_parts(struct hoccl_endpoint *e)
{
    set_limits(e);
    e->pd = e->ibv->alloc_pd(e->port.context);
    if (!e->pd)
        return hoccl_fail(HOCCL_ERR_DEVICE, "%s makes no protection domain: %m", e->port.here.device);
    HOCCL_Result r = hoccl_receive_open(e);
    if (!r)
        r = hoccl_slots_init(&e->sends, e->ibv, e->pd, HOCCL_SEND_SLOTS);
    if (!r)
        r = make_completions(e);
    return r;
}

static void free_parts(struct hoccl_endpoint *e)
{
    hoccl_exchange_close(&e->exchange);
    if (e->loop)
        hoccl_queue_free(e->loop);
    if (e->srq)
        e->ibv->destroy_srq(e->srq);
    if (e->receives.ibv)
        hoccl_slots_fini(&e->receives);
    if (e->sends.ibv)
        hoccl_slots_fini(&e->sends);
    if (e->cq)
        e->ibv->destroy_cq(e->cq);
    if (e->channel)
        e->ibv->destroy_comp_channel(e->channel);
    if (e->pd)
        e->ibv->dealloc_pd(e->pd);
    hoccl_port_close(&e->port);
    pthread_mutex_destroy(&e->port_lock);
    free(e->owner);
    free(e->news);
    free(e->table);
    free(e);
}

static int verbs_nics(char (*names)[HOCCL_NIC_NAME], int most)
{
    struct hoccl_port_view *views = NULL;
    int n = hoccl_port_list(&views), devices = n < 0 ? 0 : hoccl_port_devices(views, n, hoccl_settings.nic, names, most);
    free(views);
    return devices;
}

static HOCCL_Result open_all(struct hoccl_endpoint *e, const struct hoccl_endpoint_wish *wish, struct tcp_card *card)
{
    HOCCL_Result r = read_setting(e);
    if (!r)
        r = hoccl_port_open(hoccl_settings.nic, wish->nic, &e->setting, &e->port);
    if (r)
        return r;
    e->ibv = e->port.ibv;
    r = make_parts(e);
    if (!r)
        r = hoccl_exchange_open(&e->exchange, wish->cookie, e->port.here.device, card);
    if (!r)
        r = hoccl_watch_open(e);
    return r;
}

static HOCCL_Result verbs_open(const struct hoccl_endpoint_wish *wish, struct hoccl_endpoint **endpoint,
                               struct hoccl_endpoint_card *out)
{
    struct tcp_card card;
    struct hoccl_endpoint *e = hoccl_alloc(sizeof *e, "an RDMA endpoint");
    if (!e)
        return HOCCL_ERR_MEMORY;
    e->bell = wish->bell;
    e->watch.wake = -1;
    e->exchange.listener = -1;
    pthread_mutex_init(&e->port_lock, NULL);
    hoccl_list_init(&e->connections);
    hoccl_list_init(&e->failing);
    hoccl_list_init(&e->farewells);
    HOCCL_Result r = open_all(e, wish, &card);
    if (r) {
        hoccl_watch_close(e);
        free_parts(e);
        return r;
    }
    *out = (struct hoccl_endpoint_card){.transport = "verbs"};
    memcpy(out->bytes, &card, sizeof card);
    *endpoint = e;
    return HOCCL_SUCCESS;
}

/* ---- polling ----------------------------------------------------------------------------------------------------- */

static int hand_out(struct hoccl_endpoint *e, struct hoccl_transport_event *events, int most)
{
    int n = 0;
    for (; e->given != e->made && n < most; e->given++) {
        const struct hoccl_news *news = &e->news[e->given & (e->news_size - 1)];
        if (news->connection || news->event.kind == HOCCL_TRANSPORT_FLUSHED || news->event.kind == HOCCL_TRANSPORT_CALLED)
            events[n++] = news->event;
    }
    return n;
}

static int verbs_poll(struct hoccl_endpoint *e, struct hoccl_transport_event *events, int most)
{
    hoccl_news_release(e);
    hoccl_harvest(e);
    hoccl_connection_tend(e, hoccl_now());
    hoccl_connection_settle(e);
    return hand_out(e, events, most);
}

static bool verbs_arm(struct hoccl_endpoint *e)
{
    if (ibv_req_notify_cq(e->cq, 0))
        return true;
    return hoccl_harvest(e) || e->given != e->made || e->heard != hoccl_observe(&e->exchange.news) ||
           !hoccl_list_empty(&e->failing);
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

/* Farewells are given the time to be heard: an instant, or two seconds where the peer does not answer. */
static void verbs_close(struct hoccl_endpoint *e)
{
    struct hoccl_transport_event none;
    while (!hoccl_list_empty(&e->farewells)) {
        verbs_poll(e, &none, 0);
        hoccl_sleep(50 * HOCCL_US);
    }
    e->given = e->made;
    hoccl_news_release(e);
    hoccl_watch_close(e);
    free_parts(e);
}

/* ---- the rest of the table --------------------------------------------------------------------------------------- */

static void verbs_describe(const struct hoccl_endpoint *e, char *text, size_t bytes)
{
    char port[128];
    struct hoccl_endpoint *own = (struct hoccl_endpoint *)e;
    pthread_mutex_lock(&own->port_lock);
    hoccl_port_text(&e->port, port, sizeof port);
    int mtu = 128 << (int)hoccl_mtu_choose(e->port.here.mtu, IBV_MTU_4096, e->setting.mtu);
    pthread_mutex_unlock(&own->port_lock);
    snprintf(text, bytes,
             "verbs: %s, MTU %d, %d lanes, %s, timeout %d and %d retries, TCP port %u for set-up, 1 helper thread", port,
             mtu, e->lanes, e->srq ? "receives shared" : "receives for each queue pair", e->setting.timeout,
             e->setting.retry, e->exchange.port);
}

static HOCCL_Result verbs_region_add(struct hoccl_endpoint *e, const struct hoccl_region_source *source,
                                     struct hoccl_region *region)
{
    struct ibv_mr *mr;
    HOCCL_Result r = hoccl_region_register(e->ibv, e->pd, source, &mr);
    if (!r)
        *region = (struct hoccl_region){.key = {(uintptr_t)source->address, mr->rkey}, .own = mr};
    return r;
}

static void verbs_region_remove(struct hoccl_endpoint *e, struct hoccl_region *region)
{
    e->ibv->dereg_mr(region->own);
    region->own = NULL;
}

const struct hoccl_transport hoccl_transport_verbs = {
    .name = "verbs",
    .cost = {.start = 200, .lane = 20, .link = 20, .late = 3000}, /* 400 Gbit/s; one queue pair can fill it */
    .takes_gpu = true,
    .nics = verbs_nics,
    .open = verbs_open,
    .close = verbs_close,
    .describe = verbs_describe,
    .connection_open = hoccl_verbs_connection_open,
    .join = hoccl_verbs_join,
    .summon = hoccl_verbs_summon,
    .decline = hoccl_verbs_decline,
    .message = hoccl_verbs_message,
    .write = hoccl_verbs_write,
    .flush = hoccl_verbs_flush,
    .idle = hoccl_verbs_idle,
    .connection_close = hoccl_verbs_connection_close,
    .lanes = hoccl_verbs_lanes,
    .region_add = verbs_region_add,
    .region_remove = verbs_region_remove,
    .poll = verbs_poll,
    .arm = verbs_arm,
};
