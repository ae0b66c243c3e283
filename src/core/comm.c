/* SPDX-License-Identifier: Apache-2.0 */
/* Making and unmaking a communicator.
 *
 *   this rank's GPU, board and listener      (what can fail alone comes before the exchange, so that all hear of it)
 *   ── one exchange: every rank's card ──▶   identities; a rank that failed says why, and all fail with its text
 *   ── the node: sockets and boards ─────▶   evidence of who shares the memory
 *   attach to the progress thread
 *   ── the GPUs try their access ────────▶   which pairs must go through host memory (probe.c)
 *   ── one exchange over the sockets ────▶   everyone has got so far, or everyone fails */
#include "core/comm.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/patience.h"
#include "base/setting.h"
#include "boot/gather.h"
#include "core/probe.h"
#include "core/proxy.h"
#include "stream/parking.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CARD_VERSION 1
#define ABORT_DRAIN (1 * HOCCL_S)

/* What a rank tells all others at the start. */
struct card {
    uint32_t version;
    uint32_t failed; /* HOCCL_Result; then only `failure` and `node` mean anything */
    char failure[HOCCL_STATUS_TEXT];
    struct hoccl_node_card node;
    char driver[32];
    char gpu_name[64];
    char pci[16];
    CUuuid uuid;
    uint64_t context; /* its address: of use in the same process, */
    uint64_t board;   /* and the number of its board there */
    uint64_t board_bytes;
    uint64_t first_sequence;
};

_Static_assert(sizeof(struct card) < HOCCL_BLOB_MAX, "cards stay small");

/* All that start-up holds on the way. */
struct opening {
    struct hoccl_boot *boot;
    struct hoccl_comm *comm;
    struct hoccl_listener listener;
    bool attached;
    struct card mine;
    struct card *cards;
};

static uint32_t first_number(void)
{
    return (uint32_t)hoccl_settings.first_sequence;
}

/* What this rank can do without the others. */
static HOCCL_Result prepare(struct opening *o)
{
    struct hoccl_comm *c = o->comm;
    HOCCL_Result r = hoccl_listener_open(&o->listener);
    if (!r)
        r = hoccl_driver_load();
    if (!r)
        r = hoccl_gpu_open(o->boot->local_rank, &c->gpu);
    if (!r)
        r = hoccl_board_create(c->size, first_number(), &c->board, &c->board_bytes, &c->board_fd, &o->mine.board);
    if (r)
        return r;
    hoccl_stage_init_host(&c->stage, hoccl_board_stage(c->board, c->board_bytes), c->board_fd);
    struct hoccl_device *d = &c->gpu->device;
    snprintf(o->mine.driver, sizeof o->mine.driver, "%s", hoccl_driver.kind);
    snprintf(o->mine.gpu_name, sizeof o->mine.gpu_name, "%s", d->name);
    snprintf(o->mine.pci, sizeof o->mine.pci, "%s", d->pci);
    o->mine.uuid = d->uuid;
    o->mine.context = (uint64_t)(uintptr_t)d->context;
    o->mine.board_bytes = c->board_bytes;
    o->mine.first_sequence = hoccl_settings.first_sequence;
    return HOCCL_SUCCESS;
}

static HOCCL_Result exchange(struct opening *o)
{
    o->mine.version = CARD_VERSION;
    o->mine.node = o->listener.card;
    o->cards = hoccl_alloc((size_t)o->comm->size * sizeof *o->cards, "the ranks' identities");
    if (!o->cards)
        return HOCCL_ERR_MEMORY;
    return o->boot->ops->exchange(o->boot, &o->mine, sizeof o->mine, o->cards, hoccl_settings.init_timeout);
}

static HOCCL_Result check_started(const struct opening *o, int p)
{
    const struct card *c = &o->cards[p];
    if (c->version != CARD_VERSION)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "rank %d on %s runs another version of HOCCL", p, c->node.host);
    if (c->failed)
        return hoccl_fail(p == o->comm->rank ? (HOCCL_Result)c->failed : HOCCL_ERR_BOOTSTRAP, "rank %d on %s cannot start: %s",
                          p, c->node.host, c->failure);
    return HOCCL_SUCCESS;
}

static HOCCL_Result check_card(const struct opening *o, int p)
{
    const struct card *c = &o->cards[p], *me = &o->cards[o->comm->rank];
    if (strcmp(c->driver, me->driver))
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP,
                          "rank %d on %s uses the driver \"%s\" and rank %d \"%s\": real and emulated GPUs cannot be mixed; set "
                          "HOCCL_DEVICE to the same on all ranks",
                          p, c->node.host, c->driver, o->comm->rank, me->driver);
    if (c->first_sequence != me->first_sequence)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "HOCCL_TEST_SEQUENCE differs between ranks %d and %d", p, o->comm->rank);
    return HOCCL_SUCCESS;
}

/* This version's limit: one node. */
static HOCCL_Result check_place(const struct opening *o, int p)
{
    const struct card *c = o->cards;
    if (!o->comm->links[p].local)
        return hoccl_fail(HOCCL_ERR_UNSUPPORTED,
                          "rank %d on %s does not share a node with rank %d on %s: this version moves data within a node only", p,
                          c[p].node.host, o->comm->rank, c[o->comm->rank].node.host);
    return HOCCL_SUCCESS;
}

static HOCCL_Result check_cards(const struct opening *o, HOCCL_Result (*check)(const struct opening *, int))
{
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int p = 0; p < o->comm->size && !r; p++)
        r = check(o, p);
    return r;
}

/* Can our GPU access that of rank p? A GPU that is hidden from this process may be reached all the same: true. */
static bool can_access(const struct opening *o, int p)
{
    int n = 0, reach = 1, own = o->comm->gpu->device.ordinal;
    CUuuid id;
    if (hoccl_driver.DeviceGetCount(&n))
        return true;
    for (int i = 0; i < n; i++)
        if (!hoccl_driver.DeviceGetUuid(&id, i) && !memcmp(&id, &o->cards[p].uuid, sizeof id))
            return hoccl_driver.DeviceCanAccessPeer(&reach, own, i) || reach;
    return true;
}

/* Threads of one process reach each other's memory by address, which needs peer access between their contexts. */
static HOCCL_Result enable_peer(const struct opening *o, int p)
{
    bool pushed;
    HOCCL_Result r = hoccl_device_enter(&o->comm->gpu->device, &pushed);
    if (r)
        return r;
    CUresult e = hoccl_driver.CtxEnablePeerAccess((CUcontext)(uintptr_t)o->cards[p].context, 0);
    hoccl_device_leave(pushed);
    if (e == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        return HOCCL_SUCCESS;
    return hoccl_driver_check(e, "peer access to the GPU of rank %d", p);
}

static HOCCL_Result meet_peer(struct opening *o, int p)
{
    struct hoccl_comm *c = o->comm;
    struct hoccl_peer *peer = &c->peers[p];
    struct hoccl_link *l = &c->links[p];
    HOCCL_Result r = HOCCL_SUCCESS;
    peer->rank = p;
    peer->card = o->cards[p].node;
    peer->link = *l;
    peer->sends = peer->receives = first_number();
    for (uint32_t n = first_number(); n != first_number() + HOCCL_SLOTS; n++)
        peer->answered[n % HOCCL_SLOTS] = n - HOCCL_SLOTS;
    if (!peer->same_process)
        r = hoccl_board_map(l->gift, peer->board_bytes, c->size, &peer->board);
    peer->closed = !peer->same_gpu && !can_access(o, p);
    if (!r && peer->same_process && !peer->same_gpu && !peer->closed)
        r = enable_peer(o, p);
    if (r)
        return r;
    peer->stage = &c->stage;
    peer->view = (struct hoccl_stage_view){.kind = HOCCL_STAGE_HOST, .fd = -1, .bytes = HOCCL_STAGE_AREA,
                                           .host = hoccl_board_stage(peer->board, peer->board_bytes)};
    peer->in = c->board->ring[p].slot;
    peer->out = peer->board->ring[c->rank].slot;
    peer->totals = &peer->board->ring[c->rank].totals;
    if (l->gift >= 0)
        close(l->gift);
    l->gift = -1;
    return HOCCL_SUCCESS;
}

/* Boards of ranks in this process are used where they are mapped, once a process. */
static HOCCL_Result join_boards(struct opening *o)
{
    struct hoccl_comm *c = o->comm;
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int p = 0; p < c->size && !r; p++) {
        struct hoccl_peer *peer = &c->peers[p];
        peer->board_bytes = (size_t)o->cards[p].board_bytes;
        peer->same_process = o->cards[p].node.process == o->cards[c->rank].node.process;
        peer->rank = p;
        peer->uuid = o->cards[p].uuid;
        peer->same_gpu = !memcmp(&o->cards[p].uuid, &o->cards[c->rank].uuid, sizeof o->cards[p].uuid);
        peer->same_object = peer->same_process && o->cards[p].context == o->cards[c->rank].context;
        if (p == c->rank)
            peer->board = c->board;
        else if (peer->same_process)
            r = hoccl_board_join(o->cards[p].board, &peer->board);
    }
    return r;
}

static HOCCL_Result connect_node(struct opening *o)
{
    struct hoccl_comm *c = o->comm;
    struct hoccl_node_card *nodes = hoccl_alloc((size_t)c->size * sizeof *nodes, "the ranks' nodes");
    if (!nodes)
        return HOCCL_ERR_MEMORY;
    for (int p = 0; p < c->size; p++)
        nodes[p] = o->cards[p].node;
    HOCCL_Result r = hoccl_node_connect(o->boot, &o->listener, nodes, c->board_fd, hoccl_settings.init_timeout, c->links);
    free(nodes);
    if (!r)
        r = check_cards(o, check_place);
    for (int p = 0; p < c->size && !r; p++)
        r = meet_peer(o, p);
    return r;
}

static void say_what_was_chosen(const struct opening *o)
{
    const struct hoccl_comm *c = o->comm;
    hoccl_log(HOCCL_LOG_INFO,
              "%d ranks by %s; GPU %s (%s), driver %s; within the node by pushes, pulls and staging; %d hardware channels, "
              "gate %s; mailboxes %zu bytes",
              c->size, o->boot->ops->name, c->gpu->device.pci, c->gpu->device.name, hoccl_driver.name, c->gpu->gate.channels,
              c->gpu->gate.kind == HOCCL_GATE_NONE ? "none" : c->gpu->gate.kind == HOCCL_GATE_PUSH ? "push" : "h2d",
              c->board_bytes);
}

/* A board of this process is used by several of its ranks; the last one to leave unmaps it. */
static void leave_shared(struct hoccl_board *board, size_t bytes, bool ready)
{
    bool registered;
    if (hoccl_board_leave(board, ready, &registered))
        hoccl_stage_discard(board, bytes, registered);
}

static void leave_board(struct hoccl_comm *c, struct hoccl_peer *p)
{
    bool ready = hoccl_observe(&p->view.state) == HOCCL_STAGE_READY;
    if (!p->board || p->board == c->board)
        return;
    if (p->same_process)
        leave_shared(p->board, p->board_bytes, ready);
    else
        hoccl_stage_discard(p->board, p->board_bytes, ready);
}

static void leave_own_board(struct hoccl_comm *c)
{
    bool ready = hoccl_observe(&c->stage.view.state) == HOCCL_STAGE_READY;
    if (c->peers)
        ready |= hoccl_observe(&c->peers[c->rank].view.state) == HOCCL_STAGE_READY;
    leave_shared(c->board, c->board_bytes, ready);
}

/* Everything but the progress thread's part. */
static void free_comm(struct hoccl_comm *c)
{
    bool pushed = false;
    if (c->gpu && hoccl_device_enter(&c->gpu->device, &pushed))
        pushed = false;
    for (int p = 0; p < c->size && c->peers; p++)
        leave_board(c, &c->peers[p]);
    if (c->board)
        leave_own_board(c);
    hoccl_device_leave(pushed);
    if (c->board_fd >= 0)
        close(c->board_fd);
    if (c->links)
        hoccl_node_disconnect(c->links, c->size);
    for (int i = 0; i < c->streams_used && c->gpu; i++)
        hoccl_handshake_close(&c->streams[i].handshake, &c->gpu->flags);
    pthread_mutex_destroy(&c->inbox_lock);
    free(c->streams);
    free(c->links);
    free(c->peers);
    free(c);
}

static HOCCL_Result new_comm(const struct hoccl_boot *boot, struct hoccl_comm **comm)
{
    struct hoccl_comm *c = hoccl_alloc(sizeof *c, "a communicator");
    if (!c)
        return HOCCL_ERR_MEMORY;
    c->rank = boot->rank;
    c->size = boot->size;
    c->collectives = hoccl_settings.first_sequence;
    c->board_fd = -1;
    hoccl_list_init(&c->inbox);
    hoccl_list_init(&c->busy_streams);
    hoccl_list_init(&c->watched);
    hoccl_list_init(&c->running);
    hoccl_list_init(&c->draining);
    pthread_mutex_init(&c->inbox_lock, NULL);
    c->peers = hoccl_alloc((size_t)c->size * sizeof *c->peers, "peers");
    c->links = hoccl_alloc((size_t)c->size * sizeof *c->links, "links");
    c->streams = hoccl_alloc(HOCCL_STREAMS_MAX * sizeof *c->streams, "streams");
    if (!c->peers || !c->links || !c->streams) {
        free_comm(c);
        return HOCCL_ERR_MEMORY;
    }
    for (int p = 0; p < c->size; p++)
        c->links[p] = (struct hoccl_link){.fd = -1, .gift = -1, .parcels = -1};
    *comm = c;
    return HOCCL_SUCCESS;
}

static HOCCL_Result check_boot(void *boot)
{
    const struct hoccl_boot_ops *ops = ((struct hoccl_boot *)boot)->ops;
    return ops->check ? ops->check(boot) : HOCCL_SUCCESS;
}

/* Nobody has a communicator that another rank could not make: `so_far` is how this one has fared. */
static HOCCL_Result agree(struct opening *o, HOCCL_Result so_far)
{
    struct hoccl_comm *c = o->comm;
    struct hoccl_gather g = {.name = "start-up", .links = c->links, .me = c->rank, .timeout = hoccl_settings.init_timeout,
                             .check = check_boot, .arg = o->boot};
    int *ranks = hoccl_alloc((size_t)c->size * sizeof *ranks, "start-up");
    char *ready = hoccl_alloc((size_t)c->size, "start-up");
    HOCCL_Result r = so_far;
    for (g.count = 0; g.count < c->size && ranks; g.count++)
        ranks[g.count] = g.count;
    g.ranks = ranks;
    if (!r && ranks)
        r = hoccl_comm_probe(c, &g);
    g.step = 4;
    if (!ranks || !ready)
        r = HOCCL_ERR_MEMORY;
    else if (r)
        hoccl_gather_refuse(&g);
    else
        r = hoccl_gather(&g, "y", 1, ready);
    free(ranks);
    free(ready);
    return r;
}

static HOCCL_Result attach(struct opening *o)
{
    int local = 0;
    for (int p = 0; p < o->comm->size; p++)
        local += o->comm->links[p].local;
    hoccl_patience_init(local);
    HOCCL_Result r = hoccl_proxy_attach(o->comm);
    o->attached = !r;
    return r;
}

static HOCCL_Result open_steps(struct opening *o)
{
    HOCCL_Result r = prepare(o);
    hoccl_log_identity(o->comm->rank, o->listener.card.host);
    if (r) {
        o->mine.failed = r;
        snprintf(o->mine.failure, sizeof o->mine.failure, "%.*s", (int)sizeof o->mine.failure - 1, hoccl_error_text());
    }
    r = exchange(o);
    if (!r)
        r = check_cards(o, check_started);
    if (!r)
        r = check_cards(o, check_card);
    if (r)
        return r;
    r = join_boards(o);
    if (!r)
        r = connect_node(o);
    if (!r)
        r = attach(o);
    return agree(o, r);
}

HOCCL_Result hoccl_comm_open(struct hoccl_boot *boot, struct hoccl_comm **comm)
{
    struct opening o = {.boot = boot, .listener = {.fd = -1}};
    HOCCL_Result r = new_comm(boot, &o.comm);
    if (r)
        return r;
    r = open_steps(&o);
    if (!r)
        say_what_was_chosen(&o);
    else if (o.attached)
        hoccl_proxy_detach(o.comm);
    hoccl_listener_close(&o.listener);
    free(o.cards);
    if (r) {
        char text[HOCCL_ERROR_TEXT];
        snprintf(text, sizeof text, "%s", hoccl_error_text());
        struct hoccl_gpu *gpu = o.comm->gpu;
        free_comm(o.comm);
        if (gpu)
            hoccl_gpu_close(gpu);
        return hoccl_fail_again(r, text);
    }
    *comm = o.comm;
    return HOCCL_SUCCESS;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

void hoccl_comm_fail(struct hoccl_comm *comm, HOCCL_Result result)
{
    if (!hoccl_take(&comm->failing, 0, 1))
        return;
    snprintf(comm->error_text, sizeof comm->error_text, "%.*s", (int)sizeof comm->error_text - 1, hoccl_error_text());
    hoccl_publish(&comm->error, (uint32_t)result);
    hoccl_parking_stir();
    hoccl_proxy_ring(comm);
}

HOCCL_Result hoccl_comm_error(struct hoccl_comm *comm)
{
    HOCCL_Result r = (HOCCL_Result)hoccl_observe(&comm->error);
    return r ? hoccl_fail_again(r, comm->error_text) : HOCCL_SUCCESS;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static HOCCL_Result leave(struct hoccl_comm *comm, HOCCL_Result result)
{
    struct hoccl_gpu *gpu = comm->gpu;
    char text[HOCCL_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", hoccl_error_text());
    hoccl_proxy_detach(comm);
    if (hoccl_board_state(comm->board) == HOCCL_BOARD_OPEN) /* else peers shall go on hearing why */
        hoccl_board_say(comm->board, HOCCL_BOARD_CLOSED, NULL);
    free_comm(comm);
    HOCCL_Result r = hoccl_gpu_close(gpu);
    return result ? hoccl_fail_again(result, text) : r;
}

void hoccl_comm_end_posting(struct hoccl_comm *comm)
{
    for (int p = 0; p < comm->size; p++) {
        struct hoccl_totals *t = &comm->board->ring[p].totals;
        t->sends = comm->peers[p].sends;
        t->receives = comm->peers[p].receives;
        hoccl_publish(&t->final, 1);
    }
}

HOCCL_Result hoccl_comm_wait(struct hoccl_comm *comm)
{
    uint64_t nap = 10 * HOCCL_US;
    while (hoccl_observe(&comm->unfinished) && !hoccl_observe(&comm->error)) {
        if (hoccl_observe(&comm->abort))
            return hoccl_fail(HOCCL_ERR_PEER, "another thread has aborted the communicator");
        hoccl_sleep(nap);
        nap = nap < HOCCL_MS ? nap * 2 : nap;
    }
    return hoccl_comm_error(comm);
}

HOCCL_Result hoccl_comm_close(struct hoccl_comm *comm)
{
    HOCCL_Result r = hoccl_comm_wait(comm);
    if (!r)
        return leave(comm, HOCCL_SUCCESS);
    char text[HOCCL_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", hoccl_error_text());
    hoccl_comm_abort(comm);
    return hoccl_fail_again(r, text);
}

void hoccl_comm_stop(struct hoccl_comm *comm)
{
    hoccl_publish(&comm->abort, 1);
    hoccl_parking_stir();
    hoccl_proxy_ring(comm);
}

HOCCL_Result hoccl_comm_abort(struct hoccl_comm *comm)
{
    uint64_t begun = hoccl_now();
    HOCCL_Result r = HOCCL_SUCCESS;
    hoccl_comm_stop(comm);
    while (!hoccl_observe(&comm->drained) || hoccl_observe(&comm->unfinished)) {
        hoccl_sleep(20 * HOCCL_US);
        if (hoccl_now() - begun > ABORT_DRAIN)
            return hoccl_fail(HOCCL_ERR_TIMEOUT,
                              "aborted: every stream has been released, but a peer (or this rank's copy engine) has not stopped "
                              "within %llu s: the buffers of failed operations may still be written until it ends",
                              (unsigned long long)(ABORT_DRAIN / HOCCL_S));
    }
    return leave(comm, r);
}
