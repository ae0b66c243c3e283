/* SPDX-License-Identifier: Apache-2.0 */
/* Completions become events. What a completion says is trusted only as far as the standard lets it: of one in error only
 * wr_id, the queue pair's number and the status mean anything. Completions of queue pairs that are gone are recognised by
 * their generation (sends) or find no queue pair (receives), and only give back what they hold. */
#include "transport/verbs.h"

#include "base/atomic.h"
#include "base/error.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 32
#define RESERVE 128 /* room in the ring for events that no completion makes */

/* ---- news -------------------------------------------------------------------------------------------------------- */

bool hoccl_news_room(const struct hoccl_endpoint *e)
{
    return e->made - e->seen < e->news_size;
}

struct hoccl_news *hoccl_news_add(struct hoccl_connection *c, enum hoccl_transport_event_kind kind)
{
    struct hoccl_endpoint *e = c->endpoint;
    struct hoccl_news *n = &e->news[e->made++ & (e->news_size - 1)];
    *n = (struct hoccl_news){.event = {.kind = kind, .context = c->context}, .connection = c, .slot = -1};
    return n;
}

void hoccl_news_add_flushed(struct hoccl_endpoint *e, uint64_t tag, const char *why)
{
    struct hoccl_news *n = &e->news[e->made++ & (e->news_size - 1)];
    *n = (struct hoccl_news){.event = {.kind = HOCCL_TRANSPORT_FLUSHED, .tag = tag}, .slot = -1, .text = why ? strdup(why) : NULL};
    n->event.text = why && !n->text ? "(no memory for the text)" : n->text;
}

void hoccl_news_call(struct hoccl_endpoint *e, uint64_t id)
{
    e->news[e->made++ & (e->news_size - 1)] = (struct hoccl_news){.event = {.kind = HOCCL_TRANSPORT_CALLED, .tag = id}, .slot = -1};
}

void hoccl_news_release(struct hoccl_endpoint *e)
{
    for (; e->seen != e->given; e->seen++) {
        struct hoccl_news *n = &e->news[e->seen & (e->news_size - 1)];
        free(n->text);
        if (n->slot < 0)
            continue;
        hoccl_receive_again(e, n->slot, n->number);
        if (n->connection && n->connection->state == HOCCL_VERBS_JOINED) {
            n->connection->owed++;
            hoccl_connection_return(n->connection);
        }
    }
}

/* Its messages stay where they are until the next poll: one of them may be in use. */
void hoccl_news_withdraw(struct hoccl_endpoint *e, const struct hoccl_connection *c)
{
    for (uint32_t i = e->seen; i != e->made; i++) {
        struct hoccl_news *n = &e->news[i & (e->news_size - 1)];
        if (n->connection == c)
            n->connection = NULL;
    }
}

/* ---- what has come ----------------------------------------------------------------------------------------------- */

static bool open_for_news(const struct hoccl_connection *c)
{
    return c && (c->state == HOCCL_VERBS_JOINED || c->state == HOCCL_VERBS_FAILING);
}

/* The peer's first word stands for its READY, which may come later. */
static void join_early(struct hoccl_connection *c)
{
    if (c && c->state == HOCCL_VERBS_JOINING && hoccl_observe(&c->call.prepared))
        hoccl_connection_joined(c);
}

static void hear_bye(struct hoccl_connection *c, const char *text, size_t bytes)
{
    c->left = true;
    c->orderly = !bytes;
    if (bytes)
        hoccl_connection_fail(c, "%s has given the connection up: %.*s", c->name, (int)bytes, text);
    else
        hoccl_connection_fail(c, "closed");
}

/* A frame; true: its slot is in an event now. */
static bool hear_frame(struct hoccl_queue *q, int slot, uint32_t received)
{
    struct hoccl_connection *c = q->connection;
    const char *at = hoccl_slots_at(&q->endpoint->receives, slot);
    struct hoccl_frame f;
    memcpy(&f, at, sizeof f);
    if (received < sizeof f || received != sizeof f + f.bytes || f.bytes > HOCCL_MESSAGE_BYTES) {
        hoccl_connection_fail(c, "%s has sent something that is no frame", c->name);
        return false;
    }
    c->credits += f.credits;
    switch ((enum hoccl_frame_kind)f.kind) {
    case HOCCL_FRAME_MESSAGE: {
        struct hoccl_news *n = hoccl_news_add(c, HOCCL_TRANSPORT_MESSAGE);
        n->event.message = at + sizeof f;
        n->event.bytes = f.bytes;
        n->slot = slot;
        n->number = q->qp->qp_num;
        return true;
    }
    case HOCCL_FRAME_CREDIT:
        return false;
    case HOCCL_FRAME_PARTS:
        memcpy(&q->parts_before, at + sizeof f, sizeof q->parts_before);
        c->owed++;
        return false;
    case HOCCL_FRAME_BYE:
        hear_bye(c, at + sizeof f, f.bytes);
        return false;
    }
    hoccl_connection_fail(c, "%s has sent a frame of unknown kind %u", c->name, f.kind);
    return false;
}

static void take_received(struct hoccl_endpoint *e, const struct ibv_wc *wc)
{
    struct hoccl_queue *q = hoccl_queue_find(e, wc->qp_num);
    struct hoccl_connection *c = q ? q->connection : NULL;
    int slot = (int)(uint32_t)wc->wr_id;
    bool kept = false;
    e->owner[slot] = 0;
    if (wc->status == IBV_WC_SUCCESS) {
        join_early(c);
        if (open_for_news(c) && wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
            struct hoccl_news *n = hoccl_news_add(c, HOCCL_TRANSPORT_ARRIVED);
            n->event.word = be32toh(wc->imm_data);
            n->event.bytes = q->parts_before + wc->byte_len;
            q->parts_before = 0;
            c->owed++;
        } else if (open_for_news(c)) {
            kept = hear_frame(q, slot, wc->byte_len);
        }
    } else if (c && wc->status != IBV_WC_WR_FLUSH_ERR) {
        hoccl_connection_fail(c, "%s: receiving failed: %s (%d, vendor's code %u): %s", c->name,
                              e->ibv->wc_status_str(wc->status), wc->status, wc->vendor_err,
                              wc->status == IBV_WC_REM_ACCESS_ERR
                                  ? "it has written where nothing is registered here, or not any more"
                                  : "the card has reported a fault: see its driver's messages (dmesg)");
    }
    if (!kept)
        hoccl_receive_again(e, slot, wc->qp_num);
    if (c && c->state == HOCCL_VERBS_JOINED)
        hoccl_connection_return(c);
}

/* ---- what has been sent ------------------------------------------------------------------------------------------ */

static void land(struct hoccl_queue *q, const struct hoccl_flight *f)
{
    struct hoccl_connection *c = q->connection;
    if (f->kind == HOCCL_FLIGHT_FRAME || f->kind == HOCCL_FLIGHT_FLUSH)
        hoccl_slots_give(&q->endpoint->sends, f->slot);
    if (f->kind == HOCCL_FLIGHT_FLUSH)
        hoccl_news_add_flushed(q->endpoint, f->tag, NULL);
    if (f->kind != HOCCL_FLIGHT_WRITE)
        return;
    q->count.flight--;
    q->count.writes++;
    q->count.bytes += f->bytes;
    if (open_for_news(c))
        hoccl_news_add(c, HOCCL_TRANSPORT_WRITTEN)->event.tag = f->tag;
}

/* What a status means and what can be done; the standard's names are those of ibv_wc_status_str. */
static const char *cause(enum ibv_wc_status status)
{
    switch ((int)status) {
    case IBV_WC_RETRY_EXC_ERR:
        return "the peer's card does not answer any more: its process or node has ended, the link is down, or a switch "
               "drops packets "
               "(on RoCE: flow control); where the network is only slow, a longer wait helps: HOCCL_VERBS=timeout=18";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "the peer had no receive posted, which HOCCL's credits should prevent: please report it";
    case IBV_WC_REM_ACCESS_ERR:
        return "the peer's memory is not registered for this any more, or was never; its process may have ended";
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
        return "the peer's card has refused it: its end may have failed, see its own messages";
    case IBV_WC_LOC_PROT_ERR:
        return "this end's memory is not registered for this any more";
    case IBV_WC_LOC_LEN_ERR:
        return "the message is longer than the card or the path allows (MTU of both ends)";
    case IBV_WC_WR_FLUSH_ERR:
        return "the card has stopped the queue pair: its port has gone down or has lost its address, or something failed "
               "before";
    default:
        return "the card has reported a fault: see its driver's messages (dmesg)";
    }
}

static void take_failed(struct hoccl_queue *q, const struct ibv_wc *wc)
{
    struct hoccl_endpoint *e = q->endpoint;
    struct hoccl_connection *c = q->connection;
    char lane[24] = "the control queue", here[64], there[64];
    union ibv_gid gid;
    if (q == e->loop) {
        hoccl_flush_failed(e, wc->status);
        return;
    }
    if (!c) {
        q->deadline = 0; /* a farewell that nobody hears */
        return;
    }
    if (q->lane < 0)
        c->mute = true;
    else
        snprintf(lane, sizeof lane, "lane %d", q->lane);
    memcpy(gid.raw, c->call.theirs.gid, sizeof gid.raw);
    union ibv_gid own;
    memcpy(own.raw, c->call.mine.gid, sizeof own.raw);
    hoccl_connection_fail(c, "%s: %s from %s %s to %s %s has failed: %s (%d, vendor's code %u): %s", c->name, lane,
                          c->call.mine.device, hoccl_gid_text(&own, here, sizeof here), c->call.theirs.device,
                          hoccl_gid_text(&gid, there, sizeof there), e->ibv->wc_status_str(wc->status), wc->status,
                          wc->vendor_err, cause(wc->status));
}

static void take_sent(struct hoccl_endpoint *e, const struct ibv_wc *wc)
{
    struct hoccl_queue *q = hoccl_queue_find(e, wc->qp_num);
    uint32_t goal = (uint32_t)wc->wr_id + 1;
    if (!q || q->generation != (uint32_t)(wc->wr_id >> 32))
        return;
    if (wc->status != IBV_WC_SUCCESS) {
        take_failed(q, wc);
        return;
    }
    for (; q->first != goal; q->first++) {
        land(q, &q->flights[q->first % q->depth]);
        e->flying--;
    }
    if (q->large.bytes)
        e->poke = true;
}

/* ---- harvest ----------------------------------------------------------------------------------------------------- */

/* How many completions may be taken: one makes two events at most (JOINED by the first word of the peer, and that word). */
static int bite(const struct hoccl_endpoint *e)
{
    int n = ((int)(e->news_size - (e->made - e->seen)) - RESERVE) / 2;
    return n > BATCH ? BATCH : n;
}

int hoccl_harvest(struct hoccl_endpoint *e)
{
    struct ibv_wc wc[BATCH];
    int n, most, all = 0;
    while ((most = bite(e)) > 0 && (n = ibv_poll_cq(e->cq, most, wc)) > 0) {
        all += n;
        for (int i = 0; i < n; i++) {
            if (wc[i].wr_id >> 63)
                take_received(e, &wc[i]);
            else
                take_sent(e, &wc[i]);
        }
    }
    return all;
}
