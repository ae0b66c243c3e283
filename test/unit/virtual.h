/* SPDX-License-Identifier: Apache-2.0 */
/* A machine in model time, for tests of the pipeline across nodes: two nodes, each with the production engines, slots and lanes of
 * one GPU; their driver and their transport are tables of functions (device/driver.h, transport/transport.h), filled here.
 * Copies and writes move their bytes, at the time at which the model says that they have ended.
 *
 *   node 0: engine ──▶ slot ──▶ lanes, which share a link ──▶ slot ──▶ engine: node 1
 *
 * Time stands still while anything of the production code can move, and then goes to the next event. */
#ifndef VIRTUAL_H
#define VIRTUAL_H

#include "p2p/gpu.h"
#include "p2p/wire.h"

struct virtual_machine {
    struct hoccl_transport_cost cost; /* of the wire */
    int lanes;
    bool on_gpu;                      /* where the slots are */
    bool registered;                  /* the buffers are, at both ends: neither slots nor engines take part */
    unsigned depth;                   /* chunks of a message on the way at most; 0: as many as production allows */
};

/* One end. */
struct virtual_node {
    struct hoccl_gpu gpu;
    struct hoccl_wire *wire;
    struct hoccl_far *far;   /* the other end */
    struct hoccl_peer peer;
    struct hoccl_registration *registration; /* of all messages */
    uint32_t word[HOCCL_DIRECTIONS];
    struct virtual_stream {
        uint64_t busy;       /* until then */
        struct hoccl_pipe_stage cost;
        struct virtual_spans *spans;
    } stream[HOCCL_DIRECTIONS];
};

/* When something was busy, in order: ns. */
struct virtual_spans {
    uint64_t from[8192], to[8192];
    int count;
};

struct virtual_result {
    uint64_t begun, ended;           /* the first copy's or write's start, the last message's end */
    uint64_t all_busy;               /* ns in which engine, wire and far engine were */
    uint64_t lane[HOCCL_LANES_MAX];  /* bytes */
    unsigned depth;                  /* that was allowed */
    uint64_t chunk;
};

/* Messages of `bytes` from node 0 to node 1, posted in one go, to their ends; every byte is compared. False: it stood still. */
bool virtual_run(const struct virtual_machine *machine, int messages, size_t bytes, struct virtual_result *result);

#endif
