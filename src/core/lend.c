/* SPDX-License-Identifier: Apache-2.0 */
/* See lend.h, and loan.h for the picture. Both ends find the pairs by the same rule from the same cards, so nothing is asked: a rank
 * that wants something gets one message, from the lowest rank of its node on that GPU, if there is one, and the communicator has
 * ranks on other nodes at all. */
#include "core/lend.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "topo/pci.h"

#include <poll.h>
#include <stdlib.h>

#define PATIENCE (30 * HOCCL_S)
#define NOBODY (-1)

static bool same_gpu(const char *pci, const char *wanted)
{
    struct hoccl_pci a, b;
    return hoccl_pci_parse(pci, &a) && hoccl_pci_parse(wanted, &b) && hoccl_pci_equal(&a, &b);
}

/* The rank of this node that gives memory of that GPU. */
static int giver_of(const struct hoccl_comm *c, const struct hoccl_lend_peer *peers, const char *wanted)
{
    for (int q = 0; q < c->size && *wanted; q++)
        if (c->links[q].local && same_gpu(peers[q].pci, wanted))
            return q;
    return NOBODY;
}

/* Are there ranks on other nodes, who make pools necessary? */
static bool leaves_node(const struct hoccl_comm *c)
{
    for (int p = 0; p < c->size; p++)
        if (!c->links[p].local)
            return true;
    return false;
}

/* Does this rank give to p? (Not to itself, nor where the meeting has failed and the sockets are closed.) */
static bool gives(const struct hoccl_comm *c, const struct hoccl_lend_peer *peers, int p)
{
    return c->links[p].local && c->links[p].parcels >= 0 && giver_of(c, peers, peers[p].wants) == c->rank;
}

static HOCCL_Result give_one(struct hoccl_comm *c, int p, struct hoccl_lending *l)
{
    bool pushed;
    HOCCL_Result r = hoccl_device_enter(&c->gpu->device, &pushed);
    if (r) {
        hoccl_loan_refuse(c->links[p].parcels);
        return HOCCL_SUCCESS;
    }
    r = hoccl_loan_give(&c->gpu->device, c->links[p].parcels, &l->lent[l->count++]);
    hoccl_device_leave(pushed);
    return r;
}

/* One that is gone by now is found out elsewhere. */
static void give(struct hoccl_comm *c, const struct hoccl_lend_peer *peers, HOCCL_Result so_far, struct hoccl_lending *l)
{
    HOCCL_Result r = so_far;
    if (!r && !(l->lent = hoccl_alloc((size_t)c->size * sizeof *l->lent, "lending memory")))
        r = HOCCL_ERR_MEMORY;
    for (int p = 0; p < c->size; p++) {
        if (!gives(c, peers, p))
            continue;
        if (r)
            hoccl_loan_refuse(c->links[p].parcels);
        else if (give_one(c, p, l))
            hoccl_log(HOCCL_LOG_WARN, "rank %d gets no memory on this GPU: %s", p, hoccl_error_text());
    }
}

/* A process that ends closes its sockets one after the other. */
static bool is_gone(const struct hoccl_link *giver)
{
    return hoccl_link_gone(giver) || hoccl_link_gone(&(struct hoccl_link){.fd = giver->parcels});
}

/* The giver's message. What cannot be used counts as none; a giver that is gone ends start-up. */
static HOCCL_Result take(const struct hoccl_comm *c, int giver, HOCCL_Result (*check)(void *arg), void *arg, struct hoccl_loan *loan)
{
    uint64_t begun = hoccl_now(), said = begun;
    struct pollfd f = {.fd = c->links[giver].parcels, .events = POLLIN};
    for (;;) {
        int n = hoccl_loan_take(f.fd, loan);
        uint64_t now = hoccl_now();
        if (n > 0)
            return HOCCL_SUCCESS;
        if (is_gone(&c->links[giver]))
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "start-up: rank %d, which makes memory for this rank's slots, ended or gave up", giver);
        if (n < 0) {
            *loan = (struct hoccl_loan){.why = "what it has sent cannot be read (see ulimit -n)"};
            return HOCCL_SUCCESS;
        }
        if (now - begun > hoccl_settings.init_timeout)
            return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "start-up: rank %d, which makes memory for this rank's slots, did not come within "
                              "%llu s (HOCCL_INIT_TIMEOUT)", giver, (unsigned long long)(hoccl_settings.init_timeout / HOCCL_S));
        if (now - said > PATIENCE) {
            hoccl_log(HOCCL_LOG_WARN, "start-up: waiting for rank %d, which makes memory for this rank's slots", giver);
            said = now;
        }
        HOCCL_Result r = check(arg);
        if (r)
            return r;
        poll(&f, 1, 20);
    }
}

HOCCL_Result hoccl_comm_lend(struct hoccl_comm *comm, const struct hoccl_lend_peer *peers, HOCCL_Result so_far,
                             HOCCL_Result (*check)(void *arg), void *arg, struct hoccl_lending *lending)
{
    struct hoccl_loan loan = {.given = false};
    if (!leaves_node(comm))
        return HOCCL_SUCCESS;
    give(comm, peers, so_far, lending);
    int giver = giver_of(comm, peers, peers[comm->rank].wants);
    if (so_far || giver == NOBODY || comm->links[giver].parcels < 0)
        return HOCCL_SUCCESS;
    HOCCL_Result r = take(comm, giver, check, arg, &loan);
    loan.rank = giver;
    if (!r)
        hoccl_gpu_accept_loan(comm->gpu, &loan);
    return r;
}

void hoccl_comm_lend_end(struct hoccl_comm *comm, struct hoccl_lending *lending)
{
    bool pushed = false;
    if (!lending->count)
        goto free;
    HOCCL_Result entered = hoccl_device_enter(&comm->gpu->device, &pushed);
    for (int i = 0; i < lending->count; i++)
        hoccl_lent_close(&lending->lent[i]);
    if (!entered)
        hoccl_device_leave(pushed);
free:
    free(lending->lent);
    *lending = (struct hoccl_lending){.lent = NULL};
}
