/* SPDX-License-Identifier: Apache-2.0 */
/* Making a communicator; end.c unmakes it.
 *
 *   this rank's GPU, board and listener      (what can fail alone comes before the exchange, so that all hear of it)
 *   ── one exchange: every rank's card ──▶   identities; a rank that failed says why, and all fail with its text
 *   ── the node: sockets and boards ─────▶   evidence of who shares the memory
 *   ── memory for slots ─────────────────▶   on GPUs that a rank does not see, by those who do (lend.h)
 *   attach to the progress thread
 *   ── the GPUs try their access ────────▶   which pairs of the node must go through host memory (probe.c)
 *   ── connections to other nodes ───────▶   (abroad.h)
 *   ── one exchange over all of these ───▶   everyone has got so far, or everyone fails */
#include "core/comm.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/patience.h"
#include "base/setting.h"
#include "boot/gather.h"
#include "core/lend.h"
#include "core/probe.h"
#include "core/proxy.h"
#include "p2p/wire.h"
#include "stream/parking.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CARD_VERSION 5

/* What a rank tells all others at the start. */
struct card {
    uint32_t version;
    uint32_t failed; /* HOCCL_Result; then only `failure` and `node` mean anything */
    char failure[HOCCL_STATUS_TEXT]; /* why, or why there is no endpoint */
    struct hoccl_endpoint_card endpoint; /* for ranks of other nodes; its transport is empty if there is none */
    struct hoccl_node_card node;
    char driver[32];
    char gpu_name[64];
    char pci[16];
    char wants[HOCCL_PCI_TEXT]; /* the hidden GPU on which its slots are to lie (lend.h); "" none */
    CUuuid uuid;
    uint64_t context; /* its address: of use in the same process, */
    uint64_t board;   /* and the number of its board there */
    uint64_t board_bytes;
    uint64_t first_sequence;
    uint64_t connect_max; /* HOCCL_CONNECT_MAX */
};

_Static_assert(sizeof(struct card) < HOCCL_BLOB_MAX, "cards stay small");

/* All that start-up holds on the way. */
struct opening {
    struct hoccl_boot *boot;
    struct hoccl_comm *comm;
    struct hoccl_listener listener;
    bool attached;
    struct hoccl_lending lending;
    struct card mine;
    struct card *cards;
};

static uint32_t first_number(void)
{
    return (uint32_t)hoccl_settings.first_sequence;
}

size_t hoccl_comm_card_bytes(void)
{
    return sizeof(struct card);
}

/* For ranks of other nodes. Whether there are any is known after the exchange only, so its absence is no error yet. */
static HOCCL_Result open_endpoint(struct opening *o)
{
    HOCCL_Result r = hoccl_gpu_open_wire(o->comm->gpu);
    if (r)
        return r;
    const struct hoccl_wire *w = o->comm->gpu->wire;
    hoccl_gpu_wants(o->comm->gpu, o->mine.wants);
    o->mine.endpoint = w->card;
    snprintf(o->mine.failure, sizeof o->mine.failure, "%s", w->failure);
    return HOCCL_SUCCESS;
}

/* What this rank can do without the others. */
static HOCCL_Result prepare(struct opening *o)
{
    struct hoccl_comm *c = o->comm;
    HOCCL_Result r = hoccl_listener_open(&o->listener);
    c->node = o->boot->node - 1;
    if (!r && !o->boot->node)
        r = hoccl_node_pretended(hoccl_settings.test_node, c->rank, &c->node);
    hoccl_node_pretend(&o->listener.card, c->node);
    if (!r)
        r = hoccl_driver_load();
    if (!r)
        r = hoccl_gpu_open(o->boot->local_rank, &c->gpu);
    if (!r)
        hoccl_hold_init(&c->hold, &c->gpu->flags);
    if (!r)
        r = hoccl_board_create(c->size, first_number(), &c->board, &c->board_bytes, &c->board_fd, &o->mine.board);
    if (r)
        return r;
    if (c->size > 1)
        r = open_endpoint(o);
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
    o->mine.connect_max = hoccl_settings.connect_max;
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
    if (c->connect_max != me->connect_max)
        return hoccl_fail(HOCCL_ERR_BOOTSTRAP, "HOCCL_CONNECT_MAX is %llu on rank %d and %llu on rank %d: set it to the same on all "
                          "ranks", (unsigned long long)c->connect_max, p, (unsigned long long)me->connect_max, o->comm->rank);
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
    peer->link = *l;
    peer->sends = peer->receives = first_number();
    for (uint32_t n = first_number(); n != first_number() + HOCCL_SLOTS; n++)
        peer->answered[n % HOCCL_SLOTS] = n - HOCCL_SLOTS;
    if (!l->local)
        return HOCCL_SUCCESS;
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

static bool same_host(const struct opening *o, int p)
{
    return !strcmp(o->cards[p].node.boot_id, o->cards[o->comm->rank].node.boot_id);
}

/* Boards of ranks in this process are used where they are mapped, once a process. */
static HOCCL_Result join_boards(struct opening *o)
{
    struct hoccl_comm *c = o->comm;
    HOCCL_Result r = HOCCL_SUCCESS;
    for (int p = 0; p < c->size && !r; p++) {
        struct hoccl_peer *peer = &c->peers[p];
        peer->board_bytes = (size_t)o->cards[p].board_bytes;
        peer->same_process = o->cards[p].node.process == o->cards[c->rank].node.process && same_host(o, p);
        peer->rank = p;
        peer->card = o->cards[p].node;
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
    for (int p = 0; p < c->size && !r; p++)
        r = meet_peer(o, p);
    return r;
}

/* A pair's connection has a number of its own, made of what only they and only this communicator have. */
static uint64_t pair_id(const struct opening *o, int p)
{
    int low = p < o->comm->rank ? p : o->comm->rank, high = p < o->comm->rank ? o->comm->rank : p;
    uint64_t a, b;
    memcpy(&a, o->cards[low].node.cookie, sizeof a);
    memcpy(&b, o->cards[high].node.cookie + sizeof b, sizeof b);
    return (a ^ (b << 1 | b >> 63)) & ~(uint64_t)1;
}

/* Connections to ranks of other nodes: those that did not answer on this one. Where this rank has failed before that was
 * known, those of other hosts, who have to be told. */
static HOCCL_Result go_abroad(struct opening *o, HOCCL_Result so_far)
{
    struct hoccl_comm *c = o->comm;
    struct hoccl_abroad_peer *peers = hoccl_alloc((size_t)c->size * sizeof *peers, "the ranks' endpoints");
    if (!peers)
        return HOCCL_ERR_MEMORY;
    for (int p = 0; p < c->size; p++)
        peers[p] = (struct hoccl_abroad_peer){.here = so_far ? same_host(o, p) : c->links[p].local, .id = pair_id(o, p),
                                              .card = &o->cards[p].endpoint, .failure = o->cards[p].failure};
    HOCCL_Result r = hoccl_abroad_open(c, peers);
    free(peers);
    return r;
}

static HOCCL_Result check_boot(void *boot)
{
    const struct hoccl_boot_ops *ops = ((struct hoccl_boot *)boot)->ops;
    return ops->check ? ops->check(boot) : HOCCL_SUCCESS;
}

/* Slots on GPUs that their own ranks do not see. */
static HOCCL_Result lend(struct opening *o, HOCCL_Result so_far)
{
    struct hoccl_comm *c = o->comm;
    struct hoccl_lend_peer *peers = hoccl_alloc((size_t)c->size * sizeof *peers, "the ranks' GPUs");
    if (!peers)
        return HOCCL_ERR_MEMORY;
    for (int p = 0; p < c->size; p++)
        peers[p] = (struct hoccl_lend_peer){.pci = o->cards[p].pci, .wants = o->cards[p].wants};
    HOCCL_Result r = hoccl_comm_lend(c, peers, so_far, check_boot, o->boot, &o->lending);
    free(peers);
    return r;
}

static void say_what_was_chosen(const struct opening *o)
{
    const struct hoccl_comm *c = o->comm;
    hoccl_log(HOCCL_LOG_INFO,
              "%d ranks by %s; GPU %s (%s), driver %s; within the node by pushes, pulls and staging; %d hardware channels, "
              "gate %s; mailboxes %zu bytes; %d ranks on other nodes%s%s%s%s",
              c->size, o->boot->ops->name, c->gpu->device.pci, c->gpu->device.name, hoccl_driver.name, c->gpu->gate.channels,
              hoccl_gate_names[c->gpu->gate.kind],
              c->board_bytes, c->abroad.count, c->abroad.count ? ": " : "",
              c->abroad.count ? c->gpu->wire->about : "", c->abroad.count ? "; slots " : "",
              c->abroad.count ? c->gpu->wire->slots : "");
}

static HOCCL_Result new_comm(const struct hoccl_boot *boot, struct hoccl_comm **comm)
{
    struct hoccl_comm *c = hoccl_alloc(sizeof *c, "a communicator");
    if (!c)
        return HOCCL_ERR_MEMORY;
    c->rank = boot->rank;
    c->size = boot->size;
    c->collectives = hoccl_settings.first_sequence;
    c->abroad.sparse = (uint64_t)c->size > hoccl_settings.connect_max;
    c->board_fd = -1;
    c->node = -1;
    hoccl_list_init(&c->inbox);
    hoccl_list_init(&c->busy_streams);
    hoccl_list_init(&c->watched);
    hoccl_list_init(&c->running);
    hoccl_list_init(&c->draining);
    pthread_mutex_init(&c->inbox_lock, NULL);
    pthread_mutex_init(&c->registered_lock, NULL);
    c->peers = hoccl_alloc((size_t)c->size * sizeof *c->peers, "peers");
    c->links = hoccl_alloc((size_t)c->size * sizeof *c->links, "links");
    c->streams = hoccl_alloc(HOCCL_STREAMS_MAX * sizeof *c->streams, "streams");
    if (!c->peers || !c->links || !c->streams) {
        hoccl_comm_free(c);
        return HOCCL_ERR_MEMORY;
    }
    for (int p = 0; p < c->size; p++)
        c->links[p] = (struct hoccl_link){.fd = -1, .gift = -1, .parcels = -1};
    *comm = c;
    return HOCCL_SUCCESS;
}

/* The ranks of this node try their GPUs (steps 1 to 3 of the call). */
static HOCCL_Result probe(struct hoccl_comm *c, struct hoccl_gather g, int *ranks)
{
    g.ranks = ranks;
    for (int p = 0; p < c->size; p++) {
        if (c->peers[p].far)
            continue;
        if (p == c->rank)
            g.me = g.count;
        ranks[g.count++] = p;
    }
    return hoccl_comm_probe(c, &g);
}

/* Each rank has named the lowest rank of its node, so all see the same nodes, whoever reaches whom. */
static void lay_out(struct hoccl_comm *c, struct hoccl_layout *layout, const int32_t *lowest)
{
    int node[HOCCL_SCHED_MAX_GPUS], pair[HOCCL_SCHED_MAX_GPUS], nodes = 0;
    struct hoccl_plan_error unfit;
    for (int p = 0; p < c->size && c->size <= HOCCL_SCHED_MAX_GPUS; p++) {
        node[p] = lowest[p] >= 0 && lowest[p] < p ? node[lowest[p]] : nodes++;
        pair[p] = HOCCL_PAIR_HOST;
    }
    if (nodes > 1 && !hoccl_layout_make(layout, c->size, node, pair, &unfit))
        c->layout = layout;
    else
        free(layout);
}

static int32_t lowest_here(const struct hoccl_comm *c)
{
    int p = 0;
    while (p < c->rank && c->peers[p].far)
        p++;
    return p;
}

/* Nobody has a communicator that another rank could not make: `so_far` is how this one has fared. */
static HOCCL_Result agree(struct opening *o, HOCCL_Result so_far)
{
    struct hoccl_comm *c = o->comm;
    struct hoccl_gather g = {.name = "start-up", .links = c->links, .me = c->rank, .timeout = hoccl_settings.init_timeout,
                             .check = check_boot, .arg = o->boot, .stir = hoccl_abroad_stir, .why = hoccl_abroad_why, .stirred = c};
    int *ranks = hoccl_alloc((size_t)c->size * sizeof *ranks, "start-up");
    int32_t *lowest = hoccl_alloc((size_t)c->size * sizeof *lowest, "start-up"), mine = lowest_here(c);
    struct hoccl_layout *layout = hoccl_alloc(sizeof *layout, "start-up");
    HOCCL_Result r = so_far;
    if (!r && ranks)
        r = probe(c, g, ranks);
    for (g.count = 0; g.count < c->size && ranks; g.count++)
        ranks[g.count] = g.count;
    g.ranks = ranks;
    g.step = 4;
    g.tree = c->abroad.sparse;
    if (!ranks || !lowest || !layout)
        r = HOCCL_ERR_MEMORY;
    else if (r)
        hoccl_gather_refuse(&g);
    else
        r = hoccl_gather(&g, &mine, sizeof mine, lowest);
    if (r)
        free(layout);
    else
        lay_out(c, layout, lowest);
    free(ranks);
    free(lowest);
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

/* The first error counts, with its text. */
static void note(HOCCL_Result *first, char *text, HOCCL_Result r)
{
    if (*first || !r)
        return;
    *first = r;
    snprintf(text, HOCCL_ERROR_TEXT, "%s", hoccl_error_text());
}

/* A rank that fails on the way still goes as far as it takes to tell the others. */
static HOCCL_Result meet_everyone(struct opening *o)
{
    char text[HOCCL_ERROR_TEXT];
    HOCCL_Result r = join_boards(o), first = HOCCL_SUCCESS;
    if (!r)
        r = connect_node(o);
    note(&first, text, r);
    note(&first, text, lend(o, first));
    note(&first, text, go_abroad(o, first));
    r = attach(o);
    note(&first, text, r);
    if (!r) {
        uint64_t limit = first && HOCCL_REFUSAL < hoccl_settings.init_timeout ? HOCCL_REFUSAL : hoccl_settings.init_timeout;
        note(&first, text, hoccl_abroad_meet(o->comm, limit, check_boot, o->boot));
    }
    if (first)
        hoccl_fail_again(first, text);
    return agree(o, first);
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
    return meet_everyone(o);
}

HOCCL_Result hoccl_comm_open(struct hoccl_boot *boot, struct hoccl_comm **comm)
{
    struct opening o = {.boot = boot, .listener = {.fd = -1}};
    HOCCL_Result r = new_comm(boot, &o.comm);
    if (r)
        return r;
    r = open_steps(&o);
    if (!r) {
        hoccl_gpu_settle(o.comm->gpu);
        say_what_was_chosen(&o);
    }
    hoccl_listener_close(&o.listener);
    hoccl_comm_lend_end(o.comm, &o.lending);
    free(o.cards);
    if (r) {
        char text[HOCCL_ERROR_TEXT];
        snprintf(text, sizeof text, "%s", hoccl_error_text());
        if (o.attached) {
            hoccl_abroad_part(o.comm, HOCCL_PARTING_SOON);
            hoccl_proxy_detach(o.comm);
        }
        struct hoccl_gpu *gpu = o.comm->gpu;
        hoccl_comm_free(o.comm);
        if (gpu)
            hoccl_gpu_close(gpu);
        return hoccl_fail_again(r, text);
    }
    *comm = o.comm;
    return HOCCL_SUCCESS;
}
