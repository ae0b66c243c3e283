/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's life. Its queue pairs are made when it is opened, connected on the helper thread when both offers are
 * known, and gone before CLOSED or BROKEN is reported or close returns: destroying a queue pair is what makes sure that the
 * card touches no memory for it any more.
 *
 *   NEW ──join──▶ JOINING ──the call is DONE, or the peer's first word──▶ JOINED
 *                    │                                                      │
 *                    └──call FAILED──▶ FAILING ◀──completion error, BYE─────┘        (fail; found anywhere)
 *                                         │
 *                                         └──lanes destroyed, event made──▶ ENDED    (settle; between harvests)
 *
 * The control queue lives a little longer than its connection, as a farewell: it has a BYE to bring across, with the reason
 * if there is one. It holds no memory of the user and the peer cannot write through it. It is given up after two seconds if
 * the BYE is not acknowledged; else it lingers for an instant, as the queue of the end that has heard a BYE does: a queue
 * pair that is destroyed takes with it the acknowledgement that it has not sent yet, and the peer would wait for that in
 * vain. */
#include "transport/verbs.h"

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/setting.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAREWELL_TIME (2 * HOCCL_S)
#define LINGER_TIME (20 * HOCCL_MS)

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void free_queues(struct hoccl_connection *c)
{
    for (int i = 0; i < c->made; i++)
        if (c->lane[i]) {
            c->counts[i] = c->lane[i]->count;
            hoccl_queue_free(c->lane[i]);
            c->lane[i] = NULL;
        }
}

static HOCCL_Result make_queues(struct hoccl_connection *c, int lanes)
{
    struct hoccl_endpoint *e = c->endpoint;
    HOCCL_Result r = hoccl_receive_keep(e, &c->window);
    if (r)
        return r;
    r = hoccl_queue_make(e, c, HOCCL_CONTROL, &c->control);
    if (r) {
        hoccl_receive_release(e, c->window);
        return r;
    }
    c->control->window = c->window;
    r = hoccl_receive_fill(c->control, c->window + HOCCL_WIRE_BEYOND);
    for (; c->made < lanes && !r; c->made++) {
        r = hoccl_queue_make(e, c, c->made, &c->lane[c->made]);
        if (!r)
            r = hoccl_receive_fill(c->lane[c->made], c->window);
    }
    return r;
}

HOCCL_Result hoccl_verbs_connection_open(struct hoccl_endpoint *e, uint64_t id, const char *name, void *context,
                                         struct hoccl_connection **connection)
{
    struct hoccl_connection *c = hoccl_alloc(sizeof *c, "a connection");
    if (!c)
        return HOCCL_ERR_MEMORY;
    c->endpoint = e;
    c->id = id;
    c->context = context;
    c->call.fd = -1;
    snprintf(c->name, sizeof c->name, "%s", name);
    HOCCL_Result r = make_queues(c, e->lanes);
    if (r) {
        free_queues(c);
        if (c->control)
            hoccl_queue_free(c->control);
        free(c);
        return r;
    }
    hoccl_list_append(&e->connections, &c->link);
    e->count++;
    *connection = c;
    return HOCCL_SUCCESS;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

struct hoccl_offer hoccl_offer_of_port(struct hoccl_endpoint *e)
{
    struct hoccl_offer o = {0};
    pthread_mutex_lock(&e->port_lock);
    o.lid = e->port.here.lid;
    o.pkey = e->port.pkey;
    o.ethernet = e->port.here.ethernet;
    o.mtu = (uint8_t)hoccl_mtu_choose(e->port.here.mtu, IBV_MTU_4096, e->setting.mtu);
    o.gid_type = (uint8_t)e->port.gid.type;
    o.gid_index = (uint16_t)e->port.gid.index;
    memcpy(o.gid, e->port.gid.gid.raw, sizeof o.gid);
    pthread_mutex_unlock(&e->port_lock);
    snprintf(o.device, sizeof o.device, "%.31s", e->port.here.device);
    return o;
}

static void make_offer(struct hoccl_connection *c)
{
    struct hoccl_offer *o = &c->call.mine;
    *o = hoccl_offer_of_port(c->endpoint);
    o->window = c->window;
    o->lanes = (uint8_t)c->made;
    for (int i = 0; i <= c->made; i++) {
        const struct hoccl_queue *q = i ? c->lane[i - 1] : c->control;
        o->number[i] = q->qp->qp_num;
        o->sequence[i] = q->sequence;
    }
}

static struct hoccl_gid offered_gid(const struct hoccl_offer *o)
{
    struct hoccl_gid g = {.index = o->gid_index, .type = (enum ibv_gid_type)o->gid_type};
    memcpy(g.gid.raw, o->gid, sizeof g.gid.raw);
    return g;
}

/* Can these two ports reach each other at all? */
static bool fit(const struct hoccl_call *call, char *why, size_t bytes)
{
    const struct hoccl_offer *a = &call->mine, *b = &call->theirs;
    struct hoccl_gid here = offered_gid(a), there = offered_gid(b);
    char at[64], bt[64];
    hoccl_gid_text(&here.gid, at, sizeof at);
    hoccl_gid_text(&there.gid, bt, sizeof bt);
    if (a->ethernet != b->ethernet) {
        snprintf(why, bytes, "%s uses %s (%s) and this rank %s (%s): they do not meet; name ports of one kind by HOCCL_NIC",
                 call->name, b->device, b->ethernet ? "Ethernet" : "InfiniBand", a->device,
                 a->ethernet ? "Ethernet" : "InfiniBand");
        return false;
    }
    if (a->ethernet && !hoccl_gid_agree(&here, &there)) {
        snprintf(why, bytes,
                 "%s uses %s (%s, GID %u of %s) and this rank %s (%s, GID %u of %s): give both an address of one kind, or "
                 "name the entries by HOCCL_VERBS=gid=",
                 call->name, bt, hoccl_gid_type_text(there.type), b->gid_index, b->device, at,
                 hoccl_gid_type_text(here.type), a->gid_index, a->device);
        return false;
    }
    if (!a->ethernet && ((a->pkey ^ b->pkey) & 0x7fff)) {
        snprintf(why, bytes,
                 "%s is in partition %#x and this rank in %#x: name the index of a common one by HOCCL_VERBS=pkey=",
                 call->name, b->pkey, a->pkey);
        return false;
    }
    return true;
}

/* On the helper thread. The connection's other fields are not touched: its owner may look at them. */
static bool ready(struct hoccl_call *call, char *why, size_t bytes)
{
    struct hoccl_connection *c = hoccl_entry(call, struct hoccl_connection, call);
    int lanes = call->theirs.lanes < c->made ? call->theirs.lanes : c->made;
    const char *step;
    if (!fit(call, why, bytes))
        return false;
    for (int i = 0; i <= lanes; i++)
        if (!hoccl_queue_connect(i ? c->lane[i - 1] : c->control, &call->mine, &call->theirs, i, &step)) {
            char address[64];
            struct hoccl_gid there = offered_gid(&call->theirs);
            snprintf(
                why, bytes,
                "the queue pair towards %s at %s cannot be made ready to %s: %s. Is there a route from %s to that address?",
                call->name, hoccl_gid_text(&there.gid, address, sizeof address), step, strerror(errno), call->mine.device);
            return false;
        }
    return true;
}

static HOCCL_Result begin_call(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer, bool summons)
{
    struct hoccl_endpoint *e = c->endpoint;
    if (c->state != HOCCL_VERBS_NEW)
        return hoccl_fail(HOCCL_ERR_INTERNAL, "the connection to %s is joined twice", c->name);
    if (strncmp(peer->transport, "verbs", sizeof peer->transport))
        return hoccl_fail(HOCCL_ERR_ARGUMENT,
                          "%s uses transport %.8s and this rank verbs: set HOCCL_NET to the same on all ranks", c->name,
                          *peer->transport ? peer->transport : "(none)");
    memcpy(&c->call.peer, peer->bytes, sizeof c->call.peer);
    c->call.id = c->id;
    c->call.name = c->name;
    c->call.ready = ready;
    c->call.summons = summons;
    make_offer(c);
    c->state = HOCCL_VERBS_JOINING;
    hoccl_exchange_start(&e->exchange, &c->call);
    hoccl_watch_wake(e);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_verbs_join(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer)
{
    return begin_call(c, peer, false);
}

HOCCL_Result hoccl_verbs_summon(struct hoccl_connection *c, const struct hoccl_endpoint_card *peer)
{
    return begin_call(c, peer, true);
}

void hoccl_verbs_decline(struct hoccl_endpoint *e, uint64_t id)
{
    hoccl_exchange_decline(&e->exchange, id);
}

static void hear_calls(struct hoccl_endpoint *e)
{
    uint64_t id;
    while (hoccl_news_room(e) && hoccl_exchange_called(&e->exchange, &id))
        hoccl_news_call(e, id);
}

void hoccl_connection_joined(struct hoccl_connection *c)
{
    c->state = HOCCL_VERBS_JOINED;
    c->lanes = c->call.theirs.lanes < c->made ? c->call.theirs.lanes : c->made;
    c->credits += c->call.theirs.window;
    c->last = hoccl_now();
    hoccl_publish(&c->endpoint->beating, c->endpoint->beating + 1);
    hoccl_news_add(c, HOCCL_TRANSPORT_JOINED);
}

static void hear_outcomes(struct hoccl_endpoint *e)
{
    uint32_t news = hoccl_observe(&e->exchange.news);
    if (news == e->heard)
        return;
    hear_calls(e);
    for (struct hoccl_list *l = e->connections.next; l != &e->connections; l = l->next) {
        struct hoccl_connection *c = hoccl_entry(l, struct hoccl_connection, link);
        uint32_t outcome = c->state == HOCCL_VERBS_JOINING ? hoccl_observe(&c->call.outcome) : 0;
        if (!hoccl_news_room(e))
            return;
        if (outcome == HOCCL_CALL_DONE)
            hoccl_connection_joined(c);
        else if (outcome == HOCCL_CALL_FAILED)
            hoccl_connection_fail(c, "%s", c->call.text);
    }
    e->heard = news;
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

static void no_longer_joined(struct hoccl_connection *c)
{
    if (c->state == HOCCL_VERBS_JOINED)
        hoccl_publish(&c->endpoint->beating, c->endpoint->beating - 1);
}

void hoccl_connection_fail(struct hoccl_connection *c, const char *format, ...)
{
    va_list list;
    if (c->state != HOCCL_VERBS_JOINED && c->state != HOCCL_VERBS_JOINING)
        return;
    va_start(list, format);
    vsnprintf(c->text, sizeof c->text, format, list);
    va_end(list);
    no_longer_joined(c);
    c->mute |= c->state == HOCCL_VERBS_JOINING;
    c->state = HOCCL_VERBS_FAILING;
    hoccl_list_append(&c->endpoint->failing, &c->fail_link);
}

static void halt_lanes(struct hoccl_connection *c)
{
    for (int i = 0; i < c->made; i++)
        if (c->lane[i])
            hoccl_queue_halt(c->lane[i]);
}

/* The control queue says goodbye by itself, or lingers where the peer has said it; if it cannot, it goes at once. */
static void part(struct hoccl_connection *c, const char *reason)
{
    struct hoccl_endpoint *e = c->endpoint;
    struct hoccl_queue *q = c->control;
    size_t bytes = strlen(reason);
    c->control = NULL;
    q->connection = NULL;
    if (c->mute || (!c->left && !hoccl_queue_frame(q, HOCCL_FRAME_BYE, reason, bytes, 0))) {
        hoccl_queue_free(q);
        return;
    }
    q->deadline = hoccl_now() + (c->left ? LINGER_TIME : FAREWELL_TIME);
    hoccl_list_append(&e->farewells, &q->link);
}

static void settle_one(struct hoccl_connection *c)
{
    struct hoccl_endpoint *e = c->endpoint;
    hoccl_exchange_cancel(&e->exchange, &c->call);
    halt_lanes(c);
    if (c->mute)
        hoccl_queue_halt(c->control);
    hoccl_harvest(e);
    free_queues(c);
    part(c, c->text);
    struct hoccl_news *n = hoccl_news_add(c, c->orderly ? HOCCL_TRANSPORT_CLOSED : HOCCL_TRANSPORT_BROKEN);
    if (!c->orderly) {
        n->text = strdup(c->text);
        n->event.text = n->text ? n->text : "(no memory for the text)";
    }
    c->state = HOCCL_VERBS_ENDED;
}

void hoccl_connection_settle(struct hoccl_endpoint *e)
{
    while (!hoccl_list_empty(&e->failing) && hoccl_news_room(e))
        settle_one(hoccl_entry(hoccl_list_take(&e->failing), struct hoccl_connection, fail_link));
}

static unsigned writes_under_way(const struct hoccl_connection *c)
{
    unsigned n = 0;
    for (int i = 0; i < c->made; i++)
        n += c->lane[i] ? c->lane[i]->count.flight : 0;
    return n;
}

void hoccl_verbs_connection_close(struct hoccl_connection *c)
{
    struct hoccl_endpoint *e = c->endpoint;
    enum hoccl_verbs_state was = c->state;
    hoccl_exchange_cancel(&e->exchange, &c->call);
    no_longer_joined(c);
    if (was == HOCCL_VERBS_FAILING)
        hoccl_list_remove(&c->fail_link);
    c->mute |= was == HOCCL_VERBS_NEW || was == HOCCL_VERBS_JOINING;
    c->state = HOCCL_VERBS_ENDED;
    hoccl_harvest(e);
    unsigned lost = writes_under_way(c);
    halt_lanes(c);
    hoccl_harvest(e);
    hoccl_news_withdraw(e, c);
    free_queues(c);
    if (was == HOCCL_VERBS_JOINED && lost)
        snprintf(c->text, sizeof c->text, "closed with %u writes under way, which may not have arrived", lost);
    if (c->control)
        part(c, c->text);
    hoccl_list_remove(&c->link);
    e->count--;
    free(c);
}

/* ---- in every poll ----------------------------------------------------------------------------------------------- */

static void tend_farewells(struct hoccl_endpoint *e, uint64_t now)
{
    for (struct hoccl_list *l = e->farewells.next, *next; l != &e->farewells; l = next) {
        struct hoccl_queue *q = hoccl_entry(l, struct hoccl_queue, link);
        next = l->next;
        if (!hoccl_queue_flying(q) && q->deadline > now + LINGER_TIME)
            q->deadline = now + LINGER_TIME;
        if (now < q->deadline)
            continue;
        hoccl_list_remove(&q->link);
        hoccl_queue_free(q);
    }
}

static void beat(struct hoccl_connection *c, uint64_t now)
{
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    struct hoccl_queue *q = c->lane[0];
    if (c->state != HOCCL_VERBS_JOINED || now - c->last < hoccl_verbs_beat() || hoccl_queue_flying(q) ||
        !hoccl_queue_room(q, 1))
        return;
    int status = hoccl_queue_post(q, &wr, (struct hoccl_flight){.kind = HOCCL_FLIGHT_BEAT});
    if (status)
        hoccl_connection_fail(c, "%s: lane 0 takes nothing more: %s", c->name, strerror(status));
}

static void check_device(struct hoccl_endpoint *e, struct hoccl_connection *c)
{
    pthread_mutex_lock(&e->port_lock);
    if (*e->fatal)
        hoccl_connection_fail(c, "%s: the RDMA device of this rank has failed: %s", c->name, e->fatal);
    pthread_mutex_unlock(&e->port_lock);
}

void hoccl_connection_tend(struct hoccl_endpoint *e, uint64_t now)
{
    bool poke = e->poke, beats = now >= e->next_beat;
    hear_outcomes(e);
    tend_farewells(e, now);
    if (!poke && !beats)
        return;
    e->poke = false;
    if (beats)
        e->next_beat = now + hoccl_verbs_beat() / 4;
    for (struct hoccl_list *l = e->connections.next; l != &e->connections; l = l->next) {
        struct hoccl_connection *c = hoccl_entry(l, struct hoccl_connection, link);
        if (beats) {
            check_device(e, c);
            beat(c, now);
        }
        if (poke)
            hoccl_connection_resume(c);
    }
}
