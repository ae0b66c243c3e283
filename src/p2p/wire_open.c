/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's network part begins and ends: its endpoint at the first communicator of more than one rank, its pools once there are
 * ranks on other nodes. What it does in between is in wire.c. */
#include "p2p/wire.h"

#include "base/error.h"
#include "base/setting.h"
#include "p2p/gpu.h"
#include "transport/verbs_setting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct hoccl_transport *hoccl_wire_transport;
enum hoccl_wire_choice hoccl_wire_place;
void (*hoccl_wire_watch)(const struct hoccl_flow *flow);

/* Whoever wants to write into our memory must have read our card, which holds the endpoint's own secrets and travels on
 * the launcher's channels; an endpoint serves communicators of several origins, so its cookie is none's in particular. */
static const struct hoccl_endpoint_wish *wish_of(struct hoccl_wire *w, struct hoccl_endpoint_wish *wish)
{
    const char *nic = *w->place.nic ? w->place.nic : NULL;
    *wish = (struct hoccl_endpoint_wish){.nic = nic, .cookie = "HOCCL endpoint", .bell = &w->gpu->bell};
    return wish;
}

/* Tests may want it elsewhere than where it belongs. */
static void find_place(struct hoccl_wire *w)
{
    const struct hoccl_device *device = &w->gpu->device;
    int other = w->gpu->stage[0].view.other;
    hoccl_place_find(w->transport, device, w->gpu->turn, &w->place);
    if (hoccl_wire_place == HOCCL_WIRE_ON_HOST) {
        w->place.other = -1;
        w->place.hidden[0] = 0;
        snprintf(w->place.why, sizeof w->place.why, "a test wants that");
    }
    if (hoccl_wire_place == HOCCL_WIRE_ON_GPU && w->place.other < 0 && other >= 0)
        hoccl_place_try(w->transport, device, other, &w->place);
}

/* The transport's words, and why it has this NIC. */
static void describe(struct hoccl_wire *w)
{
    w->transport->describe(w->endpoint, w->about, sizeof w->about);
    size_t n = strlen(w->about);
    if (*w->place.nic)
        snprintf(w->about + n, sizeof w->about - n, ", NIC %s for this GPU (%s)", w->place.nic, w->place.how);
}

static HOCCL_Result open_endpoint(struct hoccl_wire *w)
{
    struct hoccl_endpoint_wish wish;
    struct hoccl_verbs_setting unused; /* a value that cannot be read is as wrong where TCP is taken */
    if (!w->transport)
        return HOCCL_ERR_UNSUPPORTED;
    HOCCL_Result r = hoccl_verbs_setting_read(hoccl_settings.verbs, hoccl_settings.timeout, &unused);
    if (r)
        return r;
    find_place(w);
    r = w->transport->open(wish_of(w, &wish), &w->endpoint, &w->card);
    if (r)
        return r;
    hoccl_order_open(&w->order, w->transport, w->endpoint);
    describe(w);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_wire_open(struct hoccl_gpu *gpu)
{
    if (gpu->wire && gpu->wire->endpoint)
        return HOCCL_SUCCESS;
    struct hoccl_wire *w = gpu->wire ? gpu->wire : hoccl_alloc(sizeof *w, "the network's part of a GPU");
    if (!w)
        return HOCCL_ERR_MEMORY;
    if (!gpu->wire)
        hoccl_registry_init(&w->registry);
    w->gpu = gpu;
    w->transport = hoccl_wire_transport ? hoccl_wire_transport : hoccl_transport_choose();
    hoccl_list_init(&w->fars);
    hoccl_list_init(&w->latent);
    hoccl_list_init(&w->filling);
    hoccl_list_init(&w->emptying);
    hoccl_list_init(&w->sends);
    hoccl_list_init(&w->receives);
    hoccl_list_init(&w->early);
    w->sending = w->receiving = 0;
    w->fillings = w->uneven = 0;
    memset(&w->card, 0, sizeof w->card);
    w->result = open_endpoint(w);
    if (w->result) {
        w->endpoint = NULL;
        snprintf(w->failure, sizeof w->failure, "%.*s", (int)sizeof w->failure - 1, hoccl_error_text());
    }
    hoccl_publish(&gpu->wire, w);
    return HOCCL_SUCCESS;
}

/* Where another communicator has made the pools meanwhile, they stay what they are. */
void hoccl_wire_accept_loan(struct hoccl_wire *wire, const struct hoccl_loan *loan)
{
    struct hoccl_loan theirs = *loan;
    if (!wire->equipped && !wire->loan.given && hoccl_place_accept(wire->transport, &theirs, &wire->place))
        wire->loan = theirs;
    else
        hoccl_loan_close(&theirs);
}

HOCCL_Result hoccl_wire_equip(struct hoccl_wire *wire)
{
    hoccl_publish(&wire->open, 1);
    if (wire->equipped)
        return HOCCL_SUCCESS;
    HOCCL_Result r = hoccl_place_pools(wire);
    hoccl_loan_close(&wire->loan);
    if (r)
        return r;
    hoccl_pool_open_user(&wire->user_out);
    hoccl_pool_open_user(&wire->user_in);
    wire->equipped = true;
    return HOCCL_SUCCESS;
}

/* Slots that are being flushed for nobody any more. */
static void end_flushing(struct hoccl_pool *pool)
{
    for (unsigned i = 0; i < pool->count; i++)
        if (pool->slot[i].state == HOCCL_POOL_FLUSHING)
            hoccl_pool_give(pool, &pool->slot[i]);
}

void hoccl_wire_close(struct hoccl_wire *wire)
{
    if (!wire || !wire->endpoint)
        return;
    hoccl_registry_close(wire);
    if (wire->equipped) {
        wire->transport->region_remove(wire->endpoint, &wire->out.region);
        wire->transport->region_remove(wire->endpoint, &wire->in.region);
    }
    wire->open = 0;
    wire->equipped = false;
    hoccl_loan_close(&wire->loan);
    wire->transport->close(wire->endpoint);
    end_flushing(&wire->in);
    wire->endpoint = NULL;
}

void hoccl_wire_free(struct hoccl_wire *wire)
{
    if (!wire)
        return;
    hoccl_pool_close(&wire->out);
    hoccl_pool_close(&wire->in);
    pthread_mutex_destroy(&wire->registry.lock);
    free(wire);
}
