/* SPDX-License-Identifier: Apache-2.0 */
/* A transport between endpoints of one process, for tests: the whole of transport.h with a carrier thread that copies from
 * slot to slot. It can be slow, let writes overtake one another, refuse for lack of room that there is, and break.
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
    bool on_gpu;          /* slots are GPU memory, and a copy engine of the GPU they leave carries them */
    unsigned fail_region; /* the n-th region from now cannot be registered; 0: all can */
    bool fail_open;       /* no endpoint can be opened */
    uint32_t stalled;     /* nothing is delivered (near_stall) */
};

extern struct near_weather near; /* set while nothing runs, or by near_break */
extern const struct hoccl_transport near_transport;

/* The connection that carries the next but n-th message or write breaks. */
void near_break(unsigned n);

/* Nothing is delivered from now on, or again. */
void near_stall(bool stalled);

/* What has been carried so far, in all: bytes by each lane. */
void near_lanes(uint64_t bytes[NEAR_LANES]);

/* Endpoints and connections that have not been closed, and messages and writes on the way. */
int near_left(void);

#endif
