/* SPDX-License-Identifier: Apache-2.0 */
/* A transport between endpoints of one process, for tests: the whole of transport.h with a carrier thread that copies from
 * slot to slot. It can be slow, let writes overtake one another, refuse for lack of room that there is, and break; what it
 * writes into a GPU can come late, as over a bus that orders nothing.
 *
 *   hoccl_wire_transport = &near_transport;  near = (struct near_weather){…};
 */
#ifndef CONFORM_NEAR_H
#define CONFORM_NEAR_H

#include "transport/transport.h"

#define NEAR_LANES 4

struct near_weather {
    unsigned delay;       /* every message and write takes at least so many µs, */
    unsigned jitter;      /* and up to so many more; writes overtake one another */
    unsigned refuse;      /* of 100 calls of message and write so many are refused */
    unsigned break_after; /* so many messages and writes from now the connection of the next one breaks; 0: never */
    bool on_gpu;          /* memory of GPUs can be registered too, and a copy engine of the GPU that bytes leave carries them, */
    bool no_dmabuf, no_address; /* but not by this way */
    unsigned late;        /* what is written into a GPU that does not order such writes for the GPU that reads them (its
                             attribute: for all, for itself, for none) lands so many µs after it has been reported, or when
                             it is flushed; 0: at once */
    unsigned fail_flush;  /* the n-th flush from now cannot be done; 0: all can */
    unsigned lose_flush;  /* the n-th flush from now is never answered; 0: all are */
    unsigned fail_region; /* the n-th region from now cannot be registered; 0: all can */
    bool mute;            /* every ALIVE is lost (p2p/words.h) */
    bool fail_open;       /* no endpoint can be opened */
    bool (*forge)(void *word, size_t *count); /* may make another of each message; true: it comes twice */
};

/* Regions registered so far, by what they were; writes reported that went into GPUs which do not order them for who reads;
 * flushes; words ALIVE, lost or not. */
struct near_count {
    unsigned hosts, dmabufs, addresses, unordered, flushes, alive;
};

extern struct near_count near_counts; /* read and set while nothing runs */
extern struct near_weather near; /* set while nothing runs, or by near_break */
extern const struct hoccl_transport near_transport;

/* The connection that carries the next but n-th message or write breaks. */
void near_break(unsigned n);

/* Nothing is delivered from now on, or again. */
void near_stall(bool stall);

/* What has been carried so far, in all: bytes by each lane. */
void near_lanes(uint64_t bytes[NEAR_LANES]);

/* Endpoints and connections that have not been closed, and messages and writes on the way. */
int near_left(void);

#endif
