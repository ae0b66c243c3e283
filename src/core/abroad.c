/* SPDX-License-Identifier: Apache-2.0 */
/* See abroad.h. The endpoint's calls are the progress thread's alone, so whoever makes or ends a communicator asks for
 * them by a word and waits. */
#define _GNU_SOURCE
#include "core/abroad.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "boot/gather.h"
#include "core/comm.h"
#include "core/proxy.h"
#include "p2p/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define PATIENCE (30 * HOCCL_S)
#define SOON (300 * HOCCL_MS)

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* What hoccl_gather sends to this rank goes into one end of a pair and is taken out of the other by the progress thread. */
static HOCCL_Result open_pair(struct hoccl_link *link, int rank)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return hoccl_fail(HOCCL_ERR_SYSTEM, "a pair of sockets for rank %d: %m (see ulimit -n)", rank);
    link->fd = pair[0];
    link->parcels = pair[1];
    return HOCCL_SUCCESS;
}

static HOCCL_Result open_far(struct hoccl_comm *c, int p, const struct hoccl_abroad_peer *peer)
{
    struct hoccl_peer *to = &c->peers[p];
    struct hoccl_far *far;
    if (!peer->card->transport[0])
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "rank %d on %s is on another node and cannot be reached: %s", p, to->card.host,
                          peer->failure);
    HOCCL_Result r = hoccl_far_make(&far);
    if (r)
        return r;
    far->wire = c->gpu->wire;
    far->rank = p;
    far->own_rank = c->rank;
    far->id = peer->id | (c->rank > p);
    far->card = *peer->card;
    snprintf(far->name, sizeof far->name, "rank %d (%s, pid %d)", p, to->card.host, to->card.pid);
    far->late = c->abroad.sparse && !hoccl_gather_edge(p, c->rank);
    to->far = far;
    to->board = far->board;
    to->totals = &far->totals;
    c->abroad.count++;
    if (far->late)
        return HOCCL_SUCCESS;
    r = open_pair(&c->links[p], p);
    far->packets = c->links[p].parcels;
    return r;
}

static HOCCL_Result check_own(const struct hoccl_comm *c, const struct hoccl_abroad_peer *peers)
{
    const struct hoccl_endpoint_card *mine = peers[c->rank].card;
    if (!mine->transport[0])
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "there are ranks on other nodes, and this rank cannot be reached from there: %s",
                          peers[c->rank].failure);
    for (int p = 0; p < c->size; p++)
        if (!peers[p].here && peers[p].card->transport[0] && memcmp(peers[p].card->transport, mine->transport, sizeof mine->transport))
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "rank %d on %s reaches other nodes by %.8s and rank %d by %.8s: set HOCCL_NET to the "
                              "same on all ranks", p, c->peers[p].card.host, peers[p].card->transport, c->rank, mine->transport);
    return HOCCL_SUCCESS;
}

HOCCL_Result hoccl_abroad_open(struct hoccl_comm *comm, const struct hoccl_abroad_peer *peers)
{
    char text[HOCCL_ERROR_TEXT];
    bool any = false;
    for (int p = 0; p < comm->size; p++)
        any |= !peers[p].here;
    if (!any)
        return HOCCL_SUCCESS;
    HOCCL_Result r = check_own(comm, peers);
    if (r)
        return r;
    r = hoccl_gpu_equip_wire(comm->gpu);
    snprintf(text, sizeof text, "%s", hoccl_error_text());
    for (int p = 0; p < comm->size; p++) {
        HOCCL_Result one = peers[p].here ? HOCCL_SUCCESS : open_far(comm, p, &peers[p]);
        if (r || !one)
            continue;
        r = one;
        snprintf(text, sizeof text, "%s", hoccl_error_text());
    }
    return r ? hoccl_fail_again(r, text) : r;
}

/* How the connections stand that are made now: how many are not open yet, and the error of the first that never will be. One
 * that the peer has closed again has been open: why it has given up stands in what it sent, which the agreement reads. */
static HOCCL_Result look(const struct hoccl_comm *c, struct hoccl_names *names, int *missing)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    *missing = !hoccl_observe(&c->abroad.begun);
    for (int p = 0; p < c->size; p++) {
        const struct hoccl_far *far = c->peers[p].far;
        uint32_t state = far && !far->late ? hoccl_observe(&far->state) : HOCCL_FAR_OPEN;
        if (!r && state == HOCCL_FAR_BROKEN)
            r = hoccl_fail(HOCCL_ERR_BOOTSTRAP, "connecting to %s: %s", far->name, far->text);
        if (state >= HOCCL_FAR_OPEN)
            continue;
        ++*missing;
        hoccl_names_add(names, p);
    }
    return r;
}

/* A rank that cannot go on does not leave before the others have heard it: so after an error the rest are waited for too,
 * though not for long. */
HOCCL_Result hoccl_abroad_meet(struct hoccl_comm *comm, uint64_t timeout, HOCCL_Result (*check)(void *), void *arg)
{
    uint64_t begun = hoccl_now(), said = begun, nap = 50 * HOCCL_US;
    while (comm->abroad.count) {
        char text[128];
        struct hoccl_names names;
        int missing;
        hoccl_names_begin(&names, text, sizeof text);
        HOCCL_Result r = look(comm, &names, &missing);
        uint64_t now = hoccl_now();
        if (!missing || (r && now - begun > HOCCL_REFUSAL))
            return r;
        if (!r && now - begun > timeout)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "start-up: rank %s on other nodes did not connect within %llu s (HOCCL_INIT_TIMEOUT)",
                              hoccl_names_end(&names), (unsigned long long)(timeout / HOCCL_S));
        if (!r && (r = check(arg)))
            return r;
        if (now - said > PATIENCE) {
            hoccl_log(HOCCL_LOG_WARN, "start-up: waiting for rank %s on other nodes", hoccl_names_end(&names));
            said = now;
        }
        hoccl_sleep(nap);
        nap = nap < HOCCL_MS ? nap * 2 : nap;
    }
    return HOCCL_SUCCESS;
}

void hoccl_abroad_stir(void *arg, bool begins)
{
    struct hoccl_comm *comm = arg;
    if (!comm->abroad.count)
        return;
    if (begins) {
        hoccl_fetch_add(&comm->abroad.talking, 1u);
    } else {
        hoccl_fetch_add(&comm->abroad.talked, 1u);
        hoccl_fetch_add(&comm->abroad.talking, -1u);
    }
    if (comm->gpu->proxy)
        hoccl_proxy_ring(comm);
}

const char *hoccl_abroad_why(void *arg, int rank)
{
    const struct hoccl_far *far = ((struct hoccl_comm *)arg)->peers[rank].far;
    return far && hoccl_observe(&far->state) == HOCCL_FAR_BROKEN ? far->text : NULL;
}

/* ---- the progress thread ----------------------------------------------------------------------------------------- */

static void begin(struct hoccl_comm *c)
{
    for (int p = 0; p < c->size; p++) {
        struct hoccl_far *far = c->peers[p].far;
        if (far && far->late)
            hoccl_list_append(&far->wire->latent, &far->link);
        else if (far)
            hoccl_far_join(far);
    }
    hoccl_publish(&c->abroad.begun, 1);
}

/* Every packet that was sent before the word was read is in its socket by now. */
static void carry(struct hoccl_comm *c)
{
    uint32_t talked = hoccl_observe(&c->abroad.talked);
    bool all = true;
    if (talked == c->abroad.carried && !hoccl_observe(&c->abroad.talking))
        return;
    for (int p = 0; p < c->size; p++)
        if (c->peers[p].far && c->peers[p].far->packets >= 0)
            all &= hoccl_far_pump(c->peers[p].far);
    if (all)
        c->abroad.carried = talked;
}

static void say_final(struct hoccl_comm *c)
{
    c->abroad.said_final = true;
    for (int p = 0; p < c->size; p++) {
        const struct hoccl_peer *peer = &c->peers[p];
        struct hoccl_word_totals t = {.head = {.kind = HOCCL_WORD_TOTALS}, .sends = peer->sends, .receives = peer->receives};
        if (peer->far)
            hoccl_far_say(peer->far, &t, sizeof t);
    }
}

void hoccl_abroad_tell(struct hoccl_comm *comm, enum hoccl_board_state state)
{
    struct hoccl_word_status s = {.head = {HOCCL_WORD_STATUS, (uint16_t)state, 0}};
    if (comm->abroad.told)
        return;
    comm->abroad.told = true;
    snprintf(s.text, sizeof s.text, "%s", comm->error_text);
    for (int p = 0; p < comm->size; p++)
        if (comm->peers[p].far)
            hoccl_far_say(comm->peers[p].far, &s, sizeof s);
}

/* A connection that has ended with bytes of completed sends on this side: nobody else will notice. */
static void look_for_losses(struct hoccl_comm *c)
{
    for (int p = 0; p < c->size; p++) {
        struct hoccl_far *far = c->peers[p].far;
        if (!far || !far->lost || far->state < HOCCL_FAR_CLOSED)
            continue;
        hoccl_fail(HOCCL_ERR_PEER, "%llu bytes of sends to %s that had left their buffers have not reached it: %s",
                   (unsigned long long)far->lost, far->name,
                   far->state == HOCCL_FAR_BROKEN ? far->text : "it has closed the connection");
        far->lost = 0;
        hoccl_comm_fail(c, HOCCL_ERR_PEER);
    }
}

/* Close what has been flushed; cut off what does not move any more. */
static void part(struct hoccl_comm *c, uint32_t how)
{
    struct hoccl_abroad *a = &c->abroad;
    uint64_t now = hoccl_now(), limit = how == HOCCL_PARTING_SOON ? SOON : hoccl_settings.timeout;
    int left = 0;
    if (!a->parting_at)
        a->parting_at = now;
    for (int p = 0; p < c->size; p++) {
        struct hoccl_far *far = c->peers[p].far;
        if (!far || hoccl_observe(&far->state) == HOCCL_FAR_ENDED)
            continue;
        uint64_t last = how == HOCCL_PARTING_SOON || far->moved_at < a->parting_at ? a->parting_at : far->moved_at;
        bool late = now > last && now - last > limit;
        if (!late && !hoccl_far_flushed(far)) {
            left++;
            continue;
        }
        hoccl_far_close(far);
        a->cut += far->lost;
    }
    if (!left)
        hoccl_publish(&a->parted, 1);
}

void hoccl_abroad_step(struct hoccl_comm *comm)
{
    struct hoccl_abroad *a = &comm->abroad;
    if (!a->count || hoccl_peek(&a->parted))
        return;
    uint32_t parting = hoccl_observe(&a->parting); /* before what was said before it is looked for */
    if (!a->begun)
        begin(comm);
    carry(comm);
    if (!a->said_final && hoccl_observe(&a->final))
        say_final(comm);
    if (!comm->failed)
        look_for_losses(comm);
    if (parting)
        part(comm, parting);
}

bool hoccl_abroad_idle(const struct hoccl_comm *comm)
{
    const struct hoccl_abroad *a = &comm->abroad;
    if (!a->count || hoccl_observe(&a->parted))
        return true;
    return a->begun && a->carried == hoccl_observe(&a->talked) && !hoccl_observe(&a->talking) && !hoccl_observe(&a->parting) &&
           a->said_final == hoccl_observe(&a->final);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void hoccl_abroad_end_posting(struct hoccl_comm *comm)
{
    if (!comm->abroad.count)
        return;
    hoccl_publish(&comm->abroad.final, 1);
    hoccl_proxy_ring(comm);
}

HOCCL_Result hoccl_abroad_part(struct hoccl_comm *comm, enum hoccl_parting how)
{
    struct hoccl_abroad *a = &comm->abroad;
    if (!a->count)
        return HOCCL_SUCCESS;
    hoccl_publish(&a->parting, how);
    hoccl_proxy_ring(comm);
    while (!hoccl_observe(&a->parted))
        hoccl_sleep(20 * HOCCL_US);
    if (!a->cut || how == HOCCL_PARTING_SOON)
        return HOCCL_SUCCESS;
    return hoccl_fail(HOCCL_ERR_PEER, "%llu bytes of completed sends to ranks on other nodes have not left this rank: the connection is "
                      "gone, or has not moved for %llu s (HOCCL_TIMEOUT)", (unsigned long long)a->cut,
                      (unsigned long long)(hoccl_settings.timeout / HOCCL_S));
}

void hoccl_abroad_free(struct hoccl_comm *comm)
{
    for (int p = 0; p < comm->size && comm->peers; p++) {
        hoccl_far_free(comm->peers[p].far);
        comm->peers[p].far = NULL;
    }
}
