/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes into the registered memory of a rank on another node: one table of functions, implemented by verbs.c and tcp.c.
 * Nothing above this header knows which it has; test/conform/transport.c holds both to it.
 *
 *   endpoint    what a process has for one GPU: NICs and ports, or a listener; news of all its connections come out of it
 *   connection  joins two ranks of a communicator; has one or more lanes (queue pairs, sockets)
 *   region      memory here that connections may write from, and that peers who know its key may write into
 *
 * Two things travel on a connection, and neither call blocks:
 *
 *   message     at most HOCCL_MESSAGE_BYTES, whole, unchanged, in the order of the messages, never lost while both ends live
 *   write       bytes of a region here into a region there, then a word of 32 bits that the peer sees (ARRIVED) when every
 *               byte is in place. Writes are spread over the lanes; they arrive and complete in any order, and in no
 *               order with messages. The receiving program takes no part.
 *
 *   sender                                                      receiver
 *   write(…, word, tag) ──── bytes ──────────────────────────▶ region
 *   WRITTEN(tag): its memory may be used again                  ARRIVED(word)
 *
 * WRITTEN says that the network no longer reads the memory, not that the bytes have arrived.
 *
 * Life of a connection:
 *
 *   NEW ──join(the peer's card)──▶ JOINING ──▶ JOINED ──close, or the peer's close──▶ CLOSED
 *                                     └──────────┴──any fault──▶ BROKEN
 *
 * Messages and writes are refused (false) before JOINED. Event JOINED, CLOSED or BROKEN tells of each change that was not
 * this end's own; BROKEN has a text that names the peer, both addresses, the lane, the cause and what to do. From the moment
 * that CLOSED or BROKEN has been taken from poll, or close has returned, nothing reads or writes memory here for that
 * connection any more, and no event of it comes (but events that the same call of poll has returned already); it still has to
 * be closed. A peer that has vanished without a word (power, cable) is noticed within
 * HOCCL_TIMEOUT / 2, also on a connection that is idle.
 *
 * Two ends need not have agreed to connect. Who begins, be it the one that dials or the one that is dialed, summons the
 * other, whose endpoint reports CALLED, perhaps several times. It then makes its end and summons too (joins), or declines: then
 * the first end is BROKEN at once.
 *
 *   lower rank first                                higher rank first
 *   summon ── dials ──▶ CALLED(id): summon          CALLED(id): summon ◀── knocks ── summon
 *   JOINED ◀──────────▶ JOINED                                   └── dials ──▶
 *
 * Threads: one thread at a time in the calls of an endpoint and its connections (the progress thread, once it runs), but
 * region_add and region_remove, which may come from any thread at any time. The implementation may have threads of its own;
 * they ring `bell` when news comes after `arm`. */
#ifndef HOCCL_TRANSPORT_TRANSPORT_H
#define HOCCL_TRANSPORT_TRANSPORT_H

#include "base/doorbell.h"
#include "hoccl.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOCCL_MESSAGE_BYTES 512
#define HOCCL_ENDPOINT_CARD_BYTES 256 /* travels in the start-up blob */
#define HOCCL_LANES_MAX 16
#define HOCCL_NIC_NAME 64 /* room for a NIC's name */

/* How a peer reaches this endpoint; only the same implementation reads it. */
struct hoccl_endpoint_card {
    char transport[8]; /* "tcp", "verbs": differ between two ranks: an error of the caller's that names both */
    uint8_t bytes[HOCCL_ENDPOINT_CARD_BYTES - 8];
};

/* What the endpoint is asked to be. */
struct hoccl_endpoint_wish {
    const char *nic;      /* the NIC nearest to the GPU by topology ("mlx5_0"), or NULL; only one that HOCCL_NIC allows is taken */
    uint8_t cookie[16];   /* of the job: who does not know it is refused */
    struct hoccl_doorbell *bell;
};

/* What a region is: memory of the host or of a GPU, with the address by which it is mapped here. */
struct hoccl_region_source {
    void *address;
    size_t bytes;
    bool gpu;             /* memory of a GPU. A transport that takes none (takes_gpu) answers DEVICE */
    int dmabuf;           /* −1: by address (host memory; or GPU memory where a peer-memory module takes its address); else a
                             descriptor of the GPU memory, the caller's to close afterwards */
    uint64_t offset;      /* of the region in the dma-buf */
};

/* What a peer needs to write into a region; 16 bytes on the wire, in messages of the layer above. */
struct hoccl_region_key {
    uint64_t address;
    uint64_t key;
};

struct hoccl_region {
    struct hoccl_region_key key;
    void *own; /* the implementation's */
};

struct hoccl_write {
    const struct hoccl_region *from;
    size_t offset;              /* in `from` */
    struct hoccl_region_key to;
    size_t to_offset;
    size_t bytes;               /* > 0 */
    uint32_t word;              /* for the peer */
    uint64_t tag;               /* for WRITTEN */
};

enum hoccl_transport_event_kind {
    HOCCL_TRANSPORT_JOINED = 1,
    HOCCL_TRANSPORT_MESSAGE,
    HOCCL_TRANSPORT_WRITTEN,
    HOCCL_TRANSPORT_ARRIVED,
    HOCCL_TRANSPORT_CLOSED, /* the peer has closed the connection in good order, after everything it had given */
    HOCCL_TRANSPORT_BROKEN,
    HOCCL_TRANSPORT_FLUSHED, /* of the endpoint, not of a connection */
    HOCCL_TRANSPORT_CALLED, /* of the endpoint: a peer has summoned the other end of the pair `tag`, which is here */
};

struct hoccl_transport_event {
    enum hoccl_transport_event_kind kind;
    void *context;              /* of the connection; FLUSHED, CALLED: NULL */
    uint64_t tag;               /* WRITTEN, FLUSHED; CALLED: the pair's id, low bit off */
    uint32_t word;              /* ARRIVED */
    size_t bytes;               /* MESSAGE: length; ARRIVED: of the write */
    const void *message;        /* MESSAGE: valid until the next call of poll */
    const char *text;           /* BROKEN; FLUSHED: why it could not be done, NULL: done. Valid until the next call of poll */
};

/* For tests and logs: what has gone over a lane so far. */
struct hoccl_lane_count {
    uint64_t writes, bytes;     /* given to the lane here and completed */
    unsigned flight, most;      /* writes in flight now, and at most so far */
};

struct hoccl_endpoint;
struct hoccl_connection;

/* What a write costs in order of magnitude, for the choice of chunks and of how many are on the way. */
struct hoccl_transport_cost {
    uint32_t start; /* ns a write */
    uint32_t lane;  /* ps a byte on one lane */
    uint32_t link;  /* ps a byte on all lanes together, at least; of a fast network: on a slower one nothing is lost by it */
    uint32_t late;  /* ns until a write or a message is seen at the other end */
};

struct hoccl_transport {
    const char *name;
    struct hoccl_transport_cost cost;
    bool takes_gpu; /* region_add may take memory of a GPU; false: it never does, so nobody need try */
    /* The NICs that `open` could use now, by the names that the machine's topology has for them: their number, at most `most`.
     * NULL: it uses none of those. */
    int (*nics)(char (*names)[HOCCL_NIC_NAME], int most);
    /* Open the endpoint on `wish`. DEVICE, SYSTEM, BOOTSTRAP with the cause and the remedy; *endpoint and *card on success. */
    HOCCL_Result (*open)(const struct hoccl_endpoint_wish *wish, struct hoccl_endpoint **endpoint,
                         struct hoccl_endpoint_card *card);
    /* Every connection is closed and every region removed. */
    void (*close)(struct hoccl_endpoint *endpoint);
    /* One line for the log and hoccl-info: devices, ports, addresses, lanes, threads. */
    void (*describe)(const struct hoccl_endpoint *endpoint, char *text, size_t bytes);

    /* A connection in state NEW. Both ends make one with the same `id`, which is unique in the job for the ordered pair of
     * ranks and communicator: its low bit tells the ends apart (0: the lower rank of the two, which dials). `name` is for
     * texts: "rank 3 (host)". */
    HOCCL_Result (*connection_open)(struct hoccl_endpoint *endpoint, uint64_t id, const char *name, void *context,
                                    struct hoccl_connection **connection);
    /* Towards JOINED, which comes as an event; the peer may do its part much later (HOCCL_INIT_TIMEOUT, then BROKEN). */
    HOCCL_Result (*join)(struct hoccl_connection *connection, const struct hoccl_endpoint_card *peer);
    /* The same for an end that may be the first: the peer hears of it, as CALLED. */
    HOCCL_Result (*summon)(struct hoccl_connection *connection, const struct hoccl_endpoint_card *peer);
    /* Nobody here makes this pair's end: tell who has called so far. */
    void (*decline)(struct hoccl_endpoint *endpoint, uint64_t id);
    /* false: no room now; try again after the next event. Writes whose bytes overlap at the peer are not in flight together. */
    bool (*message)(struct hoccl_connection *connection, const void *bytes, size_t count);
    bool (*write)(struct hoccl_connection *connection, const struct hoccl_write *write);
    /* NULL: there is none, and memory that would need it is not to be written into. For memory of a GPU that says that writes
     * over RDMA need one (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING): what has ARRIVED in the region before is there for
     * every reader when FLUSHED(tag) comes, which it does whatever becomes of the connection that it has arrived by. false: no
     * room now. */
    bool (*flush)(struct hoccl_endpoint *endpoint, const struct hoccl_region *region, size_t offset, uint64_t tag);
    /* Has everything that was given left this process's care (acknowledged, or with the kernel)? */
    bool (*idle)(const struct hoccl_connection *connection);
    /* Good order: what was given still arrives if idle() was true; else it is cut off. Any state; frees it. Never waits
     * for the peer. */
    void (*connection_close)(struct hoccl_connection *connection);
    int (*lanes)(const struct hoccl_connection *connection, struct hoccl_lane_count count[HOCCL_LANES_MAX]);

    /* MEMORY, DEVICE with the cause and the remedy (the locked-memory limit and its value, a missing module). */
    HOCCL_Result (*region_add)(struct hoccl_endpoint *endpoint, const struct hoccl_region_source *source,
                               struct hoccl_region *region);
    /* No write from or into it and no flush of it is in flight. */
    void (*region_remove)(struct hoccl_endpoint *endpoint, struct hoccl_region *region);

    /* At most `most` events; the number. Never blocks. */
    int (*poll)(struct hoccl_endpoint *endpoint, struct hoccl_transport_event *events, int most);
    /* The caller has announced that it will sleep on the bell (hoccl_doorbell_announce): ring it at the next news. true: there
     * is news already, do not sleep. */
    bool (*arm)(struct hoccl_endpoint *endpoint);
};

extern const struct hoccl_transport hoccl_transport_tcp;
extern const struct hoccl_transport hoccl_transport_verbs;

/* The one that HOCCL_NET names; by "auto" verbs if it has an active port here, else tcp. NULL, with the error set: the one
 * that it names is not in this build or cannot work here. */
const struct hoccl_transport *hoccl_transport_choose(void);

/* Is there an active RDMA port that HOCCL_NIC allows? The error text says why not. */
bool hoccl_transport_has_rdma(void);

#endif
