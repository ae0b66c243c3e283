/* SPDX-License-Identifier: Apache-2.0 */
/* For each pair of GPUs the lowest ranks on them try it, each with a piece of memory that the other may map:
 *
 *   rank a (on GPU A)                                     rank b (on GPU B)
 *   ── step 1: who has not tried whom yet ─────────────── (a pair is tried if either end has not)
 *   memory, its descriptor to b ─────────────────────────▶ maps it
 *   pushes a line of its own words into b's line a; pulls that line back into a line of its own
 *   ── step 2: all pushes have ended ────────────────────
 *   is what b has pushed here what it should be, and what came back what was pushed? (reach.h)
 *   ── step 3: verdicts of all ───────────────────────────  a pair that either end has found wrong is closed
 *
 * The line that rank a pushes depends on a and on its process. What has been found good in this process is not tried again
 * for its next communicators. */
#include "core/probe.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "p2p/reach.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PARCEL_TIMEOUT (5 * HOCCL_S)
#define PARCEL_KEY UINT64_MAX /* no buffer's */
#define KNOWN 64 /* pairs remembered; beyond that they are tried again */

struct probe {
    struct hoccl_comm *comm;
    struct hoccl_gather gather;
    char *want, *all; /* a byte for each rank of the gather; count × count of them */
    char *bad;
    struct hoccl_reach reach; /* line r: pushed by rank r; line size + r: pulled back from rank r */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    CUuuid a, b;
} known[KNOWN]; /* under lock: tried and good */
static int known_used;

static bool is_known(const CUuuid *a, const CUuuid *b)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < known_used && !found; i++)
        found = !memcmp(&known[i].a, a, sizeof *a) && !memcmp(&known[i].b, b, sizeof *b);
    pthread_mutex_unlock(&lock);
    return found;
}

static void know(const CUuuid *a, const CUuuid *b)
{
    pthread_mutex_lock(&lock);
    if (known_used < KNOWN) {
        known[known_used].a = *a;
        known[known_used++].b = *b;
    }
    pthread_mutex_unlock(&lock);
}

static struct hoccl_peer *peer_of(const struct probe *p, int i)
{
    return &p->comm->peers[p->gather.ranks[i]];
}

static const CUuuid *own_uuid(const struct probe *p)
{
    return &p->comm->gpu->device.uuid;
}

/* The first of the ranks on the GPU of the i-th. */
static int first_on(const struct probe *p, int i)
{
    for (int j = 0; j < i; j++)
        if (!memcmp(&peer_of(p, j)->uuid, &peer_of(p, i)->uuid, sizeof(CUuuid)))
            return j;
    return i;
}

static HOCCL_Result exchange(struct probe *p, const char *mine)
{
    p->gather.step++;
    return hoccl_gather(&p->gather, mine, (size_t)p->gather.count, p->all);
}

/* Step 1, whom this rank has not tried; then the pairs that are to be tried now. */
static HOCCL_Result choose(struct probe *p, bool *any)
{
    int n = p->gather.count, me = p->gather.me;
    for (int i = 0; i < n && first_on(p, me) == me; i++) {
        const struct hoccl_peer *q = peer_of(p, i);
        p->want[i] = first_on(p, i) == i && !q->same_gpu && !q->closed && !is_known(own_uuid(p), &q->uuid);
    }
    HOCCL_Result r = exchange(p, p->want);
    *any = false;
    for (int i = 0; i < n * n && !r; i++)
        *any |= p->all[i] != 0;
    for (int i = 0; i < n && !r; i++)
        p->want[i] |= p->all[i * n + me];
    return r;
}

/* ---- one GPU's part ---------------------------------------------------------------------------------------------- */

/* The word with which the line of rank r begins. */
static uint32_t first_word(const struct probe *p, int r)
{
    return (uint32_t)((p->comm->peers[r].card.process ^ (uint64_t)r * 0x9e37u) % HOCCL_REACH_FIRSTS);
}

static void send_memory(struct probe *p, int i)
{
    struct hoccl_dispatch d = {.socket = peer_of(p, i)->link.parcels, .key = PARCEL_KEY, .base = p->reach.memory.address,
                                .bytes = p->reach.memory.bytes};
    if (d.bytes)
        hoccl_dispatch_run(&d);
}

/* The memory of the i-th rank, mapped here; false if it has not come or cannot be. */
static bool take_memory(struct probe *p, int i, struct hoccl_mapping *m)
{
    struct hoccl_parcel parcel;
    int fds[HOCCL_PARCEL_SEGMENTS];
    struct pollfd f = {.fd = peer_of(p, i)->link.parcels, .events = POLLIN};
    uint64_t begun = hoccl_now();
    int n = 0;
    while (!n && hoccl_now() - begun < PARCEL_TIMEOUT) {
        poll(&f, 1, 100);
        n = hoccl_parcel_take(f.fd, &parcel, fds);
    }
    if (n <= 0 || parcel.key != PARCEL_KEY || parcel.count != 1) {
        for (uint32_t k = 0; n > 0 && k < parcel.count; k++)
            close(fds[k]);
        return false;
    }
    m->segment[0] = (struct hoccl_mapping_segment){fds[0], parcel.bytes[0]};
    m->bytes = parcel.bytes[0];
    m->segments = m->arrived = 1;
    m->device = p->comm->gpu->device.ordinal;
    hoccl_mapping_open(m);
    return m->state == HOCCL_MAPPING_OPEN;
}

/* Push and pull back. False: it could not be tried. */
static bool try_peer(struct probe *p, int i)
{
    struct hoccl_mapping_segment segment;
    struct hoccl_mapping m = {.segment = &segment};
    int me = p->comm->rank, other = p->gather.ranks[i], size = p->comm->size;
    if (!take_memory(p, i, &m))
        return false;
    bool good = hoccl_reach_try(&p->reach, first_word(p, me), hoccl_reach_line(m.address, me), size + other);
    if (!p->reach.stuck)
        hoccl_mapping_close(&m);
    return good;
}

static void judge(struct probe *p, int i)
{
    int other = p->gather.ranks[i];
    bool theirs = hoccl_reach_lost(&p->reach, other, first_word(p, other));
    bool ours = hoccl_reach_lost(&p->reach, p->comm->size + other, first_word(p, p->comm->rank));
    p->bad[i] = theirs || ours;
    if (p->bad[i])
        hoccl_log(HOCCL_LOG_WARN,
                  "what this GPU (%s) and that of rank %d exchange directly gets lost (%s), although the driver says that they can "
                  "access one another: data between them goes through host memory. An IOMMU or PCIe access control (ACS) may be "
                  "in the way",
                  p->comm->gpu->device.pci, other, theirs ? "what that one writes does not arrive" : "what this one writes does not come back");
}

/* The three steps, for a rank that has a pair to try or only listens. `tried` holds what could be tried. */
static HOCCL_Result run(struct probe *p, char *tried)
{
    int n = p->gather.count;
    struct hoccl_gpu *g = p->comm->gpu;
    bool ready = memchr(p->want, 1, (size_t)n) && hoccl_reach_open(&p->reach, &g->device, &g->gate, &g->flags, 2 * p->comm->size);
    for (int i = 0; i < n; i++)
        if (p->want[i])
            send_memory(p, i);
    for (int i = 0; i < n && ready; i++)
        tried[i] = p->want[i] && try_peer(p, i);
    HOCCL_Result r = exchange(p, tried);
    for (int i = 0; i < n && !r; i++)
        if (tried[i] && p->all[i * n + p->gather.me])
            judge(p, i);
    return r ? r : exchange(p, p->bad);
}

/* Everyone goes by the verdicts of the first ranks on the two GPUs, in whose rows and columns they stand. */
static void apply(struct probe *p, const char *tried)
{
    int n = p->gather.count, me = first_on(p, p->gather.me);
    for (int i = 0; i < n; i++) {
        int other = first_on(p, i);
        bool bad = p->all[me * n + other] || p->all[other * n + me];
        if (bad && !peer_of(p, i)->same_gpu)
            peer_of(p, i)->closed = true;
        else if (tried[i])
            know(own_uuid(p), &peer_of(p, i)->uuid);
    }
}

HOCCL_Result hoccl_comm_probe(struct hoccl_comm *comm, const struct hoccl_gather *gather)
{
    struct probe p = {.comm = comm, .gather = *gather};
    size_t n = (size_t)gather->count;
    char *bytes = hoccl_alloc(n * (3 + n), "trying the GPUs' access to one another"), *tried = bytes + n;
    bool pushed, any;
    if (!bytes)
        return HOCCL_ERR_MEMORY;
    p.want = bytes;
    p.bad = bytes + 2 * n;
    p.all = bytes + 3 * n;
    p.gather.name = "trying the GPUs' access to one another";
    HOCCL_Result r = choose(&p, &any);
    if (!r && any)
        r = hoccl_device_enter(&comm->gpu->device, &pushed);
    if (!r && any) {
        r = run(&p, tried);
        hoccl_reach_close(&p.reach);
        hoccl_device_leave(pushed);
    }
    if (!r && any)
        apply(&p, tried);
    free(bytes);
    return r;
}
