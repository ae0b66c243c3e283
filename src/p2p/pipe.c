/* SPDX-License-Identifier: Apache-2.0 */
/* See pipe.h: recurrences over the chunks of one message. */
#include "p2p/pipe.h"

#define LEAST ((uint64_t)64 << 10)
#define MANY 64 /* chunks: beyond, the largest ones are best */
#define WINDOW 64

struct hoccl_pipe hoccl_pipe_default(int lanes)
{
    uint32_t rate = lanes < 1 ? 1 : (uint32_t)lanes;
    return (struct hoccl_pipe){
        .engine = {.start = 2200, .each = 18, .late = 6000},
        .wire = {.start = 2000, .each = 333 / rate, .late = 15000},
        .far = {.start = 2200, .each = 18, .late = 6000},
        .grant = 15000,
    };
}

static uint64_t cost(const struct hoccl_pipe_stage *s, uint64_t bytes)
{
    return s->start + bytes * s->each / 1000;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t hoccl_pipe_time(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t chunk, unsigned depth)
{
    uint64_t ready[WINDOW] = {0}; /* when the grant for chunk i, i mod depth, is there */
    uint64_t engine = 0, wire = 0, far = 0;
    unsigned i = 0;
    if (depth > WINDOW)
        depth = WINDOW;
    for (uint64_t at = 0; at < bytes; at += chunk, i++) {
        uint64_t n = bytes - at < chunk ? bytes - at : chunk;
        engine = later(engine, ready[i % depth]) + cost(&pipe->engine, n);
        wire = later(wire, engine + pipe->engine.late) + cost(&pipe->wire, n);
        far = later(far, wire + pipe->wire.late) + cost(&pipe->far, n);
        ready[i % depth] = far + pipe->far.late + pipe->grant;
    }
    return far + pipe->far.late;
}

uint64_t hoccl_pipe_chunk(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t most, unsigned depth)
{
    uint64_t best = most, least = UINT64_MAX;
    if (bytes <= LEAST || bytes >= most * MANY)
        return bytes <= LEAST && LEAST < most ? LEAST : most;
    for (uint64_t chunk = LEAST < most ? LEAST : most; chunk <= most; chunk *= 2) {
        uint64_t t = hoccl_pipe_time(pipe, bytes, chunk, depth);
        if (t <= least) { /* of equals the larger: fewer pieces */
            least = t;
            best = chunk;
        }
    }
    return best;
}

unsigned hoccl_pipe_depth(const struct hoccl_pipe *pipe, int lanes, uint64_t chunk)
{
    uint64_t wire = cost(&pipe->wire, chunk);
    uint64_t round = cost(&pipe->engine, chunk) + pipe->engine.late + wire + pipe->wire.late + cost(&pipe->far, chunk) +
                     pipe->far.late + pipe->grant;
    unsigned least = (unsigned)((round + wire - 1) / wire), two = (unsigned)(lanes < 1 ? 1 : lanes) + 2;
    return least > two ? least : two;
}
