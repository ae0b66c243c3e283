/* SPDX-License-Identifier: Apache-2.0 */
/* Bandwidth of writes between two processes: write_rate TRANSPORT BYTES COUNT [spin]. The devices are those of TEST_NICS.
 * Each process has one thread in the transport's calls, as the progress thread will be; it sleeps on its bell when there is
 * nothing, or with "spin" never does. Prints MiB/s, the processor time of both processes for each second, and what each
 * lane has carried. */
#include "base/clock.h"
#include "base/doorbell.h"
#include "base/error.h"
#include "base/setting.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 16 /* places of the region that are written in turn */

struct side {
    const struct hoccl_transport *transport;
    struct hoccl_endpoint *endpoint;
    struct hoccl_connection *connection;
    struct hoccl_doorbell bell;
    struct hoccl_region region;
    struct hoccl_region_key peer;
    size_t bytes;
    bool joined, keyed, spin;
    unsigned written, arrived;
};

static void need(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "write_rate: %s: %s\n", what, hoccl_error_text());
    exit(1);
}

static void hear(struct side *s, const struct hoccl_transport_event *e)
{
    s->joined |= e->kind == HOCCL_TRANSPORT_JOINED;
    s->written += e->kind == HOCCL_TRANSPORT_WRITTEN;
    s->arrived += e->kind == HOCCL_TRANSPORT_ARRIVED;
    if (e->kind == HOCCL_TRANSPORT_MESSAGE) {
        memcpy(&s->peer, e->message, sizeof s->peer);
        s->keyed = true;
    }
    if (e->kind == HOCCL_TRANSPORT_BROKEN || e->kind == HOCCL_TRANSPORT_CLOSED) {
        fprintf(stderr, "write_rate: %s\n", e->kind == HOCCL_TRANSPORT_BROKEN ? e->text : "the peer has closed");
        exit(1);
    }
}

/* Hear what there is; where there is nothing, sleep until there is. */
static void turn(struct side *s)
{
    struct hoccl_transport_event e[32];
    int n = s->transport->poll(s->endpoint, e, 32);
    for (int i = 0; i < n; i++)
        hear(s, &e[i]);
    if (n || s->spin)
        return;
    hoccl_doorbell_announce(&s->bell);
    if (s->transport->arm(s->endpoint))
        hoccl_doorbell_cancel(&s->bell);
    else
        hoccl_doorbell_sleep(&s->bell, HOCCL_S);
}

static void meet(struct side *s, int socket, int which)
{
    static char name[2][32];
    struct hoccl_endpoint_wish wish = {.bell = &s->bell};
    struct hoccl_endpoint_card mine, theirs;
    const char *both = getenv("TEST_NICS");
    if (both && sscanf(both, "%31s %31s", name[0], name[1]) == 2)
        wish.nic = name[which];
    need(!s->transport->open(&wish, &s->endpoint, &mine), "open");
    need(write(socket, &mine, sizeof mine) == sizeof mine && read(socket, &theirs, sizeof theirs) == sizeof theirs,
         "the peer has no card");
    need(
        !s->transport->connection_open(s->endpoint, 2 + (uint64_t)which, which ? "rank 0" : "rank 1", NULL, &s->connection),
        "connection");
    need(!s->transport->join(s->connection, &theirs), "join");
    struct hoccl_region_source source = {
        .address = aligned_alloc(4096, SLOTS * s->bytes), .bytes = SLOTS * s->bytes, .dmabuf = -1};
    need(source.address, "memory");
    memset(source.address, which, source.bytes);
    need(!s->transport->region_add(s->endpoint, &source, &s->region), "region");
    while (!s->joined)
        turn(s);
    while (!s->transport->message(s->connection, &s->region.key, sizeof s->region.key))
        turn(s);
    while (!s->keyed)
        turn(s);
}

static void send_all(struct side *s, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct hoccl_write w = {.from = &s->region,
                                .offset = i % SLOTS * s->bytes,
                                .to = s->peer,
                                .to_offset = i % SLOTS * s->bytes,
                                .bytes = s->bytes,
                                .word = i,
                                .tag = i};
        while (!s->transport->write(s->connection, &w))
            turn(s);
    }
    while (s->written < count)
        turn(s);
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static double processor(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return seconds(u.ru_utime) + seconds(u.ru_stime);
}

static void report(struct side *s, unsigned count, double took)
{
    struct hoccl_lane_count lane[HOCCL_LANES_MAX];
    int lanes = s->transport->lanes(s->connection, lane);
    printf("%zu bytes, %d lanes: %.1f MiB/s;", s->bytes, lanes, (double)s->bytes * count / took / (1 << 20));
    for (int i = 0; i < lanes; i++)
        printf(" %llu MiB (%u)", (unsigned long long)(lane[i].bytes >> 20), lane[i].most);
}

int main(int argc, char **argv)
{
    int pair[2];
    need(argc > 3 && !hoccl_settings_load(), "write_rate TRANSPORT BYTES COUNT [spin]");
    struct side s = {.transport = !strcmp(argv[1], "verbs") ? &hoccl_transport_verbs : &hoccl_transport_tcp,
                     .bytes = strtoul(argv[2], NULL, 10),
                     .spin = argc > 4};
    unsigned count = (unsigned)strtoul(argv[3], NULL, 10);
    need(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    pid_t child = fork();
    meet(&s, pair[!child], !child);
    double before = processor(RUSAGE_SELF);
    uint64_t begin = hoccl_now();
    if (child)
        send_all(&s, count);
    while (!child && s.arrived < count)
        turn(&s);
    double took = (double)(hoccl_now() - begin) / 1e9;
    if (child)
        report(&s, count, took);
    else
        printf(" receiver %.2f,", (processor(RUSAGE_SELF) - before) / took);
    fflush(stdout);
    /* The receiver keeps its end until the sender has all its WRITTEN: closing takes the lanes away at once. */
    char end = 'e';
    if (child) {
        double own = (processor(RUSAGE_SELF) - before) / took;
        need(write(pair[0], &end, 1) == 1 && read(pair[0], &end, 1) == 1, "the receiver has ended");
        printf(" sender %.2f of a core\n", own);
    } else {
        need(read(pair[1], &end, 1) == 1 && write(pair[1], &end, 1) == 1, "the sender has ended");
    }
    s.transport->connection_close(s.connection);
    s.transport->region_remove(s.endpoint, &s.region);
    s.transport->close(s.endpoint);
    return child ? waitpid(child, NULL, 0) < 0 : 0;
}
