/* SPDX-License-Identifier: Apache-2.0 */
/* See pipe.h: recurrences over the chunks of one message. */
#include "p2p/pipe.h"

#define LEAST ((uint64_t)64 << 10)
#define PAGE ((uint64_t)4 << 10)
#define MANY 64 /* chunks: beyond, the largest ones are best */
#define WINDOW 64

struct hoccl_pipe hoccl_pipe_make(bool on_gpu, const struct hoccl_transport_cost *cost, int lanes)
{
    struct hoccl_pipe_stage engine = {.start = 2200, .each = on_gpu ? 3 : 18, .late = 6000};
    return (struct hoccl_pipe){
        .engine = engine,
        .wire = {.start = cost->start, .each = cost->lane, .late = cost->late},
        .far = engine,
        .grant = cost->late,
        .link = cost->link,
        .lanes = lanes,
    };
}

static uint64_t cost(const struct hoccl_pipe_stage *s, uint64_t bytes)
{
    return s->start + bytes * s->each / 1000;
}

static unsigned lanes_of(const struct hoccl_pipe *pipe)
{
    return pipe->lanes < 1 ? 1 : (unsigned)pipe->lanes;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The next chunk, of n bytes, is there at `at`: when it has gone over its lane and the link. */
static uint64_t pass(const struct hoccl_pipe *pipe, uint64_t *lane, uint64_t *link, uint64_t at, uint64_t n)
{
    uint64_t begun = later(*lane, at);
    *link = later(*link, begun) + n * pipe->link / 1000;
    return *lane = later(begun + cost(&pipe->wire, n), *link);
}

/* Grants go when a quarter of the depth is free, or as much as is left (wire_grants.c): the chunk by whose landing chunk i, not of
 * the first `depth`, is granted. */
static uint64_t freed_by(uint64_t i, uint64_t chunks, unsigned depth)
{
    unsigned few = hoccl_pipe_batch(depth);
    uint64_t batch = ((i - depth) / few + 1) * few, last = chunks - depth;
    return (batch < last ? batch : last) - 1;
}

uint64_t hoccl_pipe_time(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t chunk, unsigned depth)
{
    uint64_t landed[WINDOW] = {0}; /* chunk i mod WINDOW */
    uint64_t lane[HOCCL_LANES_MAX] = {0};
    uint64_t engine = 0, link = 0, far = 0;
    uint64_t chunks = (bytes + chunk - 1) / chunk;
    if (depth > WINDOW)
        depth = WINDOW;
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t n = i < chunks - 1 ? chunk : bytes - i * chunk;
        uint64_t granted = i < depth ? 0 : landed[freed_by(i, chunks, depth) % WINDOW] + pipe->grant;
        engine = later(engine, granted) + cost(&pipe->engine, n);
        uint64_t there = pass(pipe, &lane[i % lanes_of(pipe)], &link, engine + pipe->engine.late, n);
        far = later(far, there + pipe->wire.late) + cost(&pipe->far, n);
        landed[i % WINDOW] = far + pipe->far.late;
    }
    return far + pipe->far.late;
}

/* Of so many bytes each, the last may be smaller. */
static uint64_t parts(uint64_t bytes, uint64_t each)
{
    return bytes / each + (bytes % each != 0);
}

/* The largest with which every lane has as many chunks as the others: what is left over would go over one lane, while the others
 * have nothing. */
static uint64_t level(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t most)
{
    uint64_t lanes = lanes_of(pipe), rounds = parts(bytes, lanes * most);
    uint64_t chunk = parts(parts(bytes, lanes * rounds), PAGE) * PAGE;
    return chunk < most ? chunk : most;
}

uint64_t hoccl_pipe_chunk(const struct hoccl_pipe *pipe, uint64_t bytes, uint64_t most, unsigned depth)
{
    uint64_t even = level(pipe, bytes, most), best = even, least;
    if (bytes <= LEAST || bytes >= most * MANY)
        return bytes <= LEAST && LEAST < most ? LEAST : even;
    least = even < LEAST ? UINT64_MAX : hoccl_pipe_time(pipe, bytes, even, depth);
    for (uint64_t chunk = LEAST < most ? LEAST : most; chunk <= most; chunk *= 2) {
        uint64_t t = hoccl_pipe_time(pipe, bytes, chunk, depth);
        if (t < least || (t == least && chunk > best)) { /* of equals the larger: fewer pieces */
            least = t;
            best = chunk;
        }
    }
    return best;
}

uint64_t hoccl_pipe_pace(const struct hoccl_pipe *pipe, uint64_t chunk)
{
    uint64_t lanes = later(cost(&pipe->wire, chunk) / lanes_of(pipe), chunk * pipe->link / 1000);
    return later(lanes, later(cost(&pipe->engine, chunk), cost(&pipe->far, chunk)));
}

uint64_t hoccl_pipe_before(const struct hoccl_pipe *pipe, uint64_t chunk)
{
    return pipe->grant + cost(&pipe->engine, chunk) + pipe->engine.late;
}

/* A chunk takes longer over its lane than the pace of all lanes. */
uint64_t hoccl_pipe_behind(const struct hoccl_pipe *pipe, uint64_t chunk)
{
    uint64_t wire = cost(&pipe->wire, chunk), pace = hoccl_pipe_pace(pipe, chunk);
    return (wire > pace ? wire - pace : 0) + pipe->wire.late + cost(&pipe->far, chunk) + pipe->far.late;
}

unsigned hoccl_pipe_depth(const struct hoccl_pipe *pipe, uint64_t chunk)
{
    uint64_t pace = hoccl_pipe_pace(pipe, chunk), wire = cost(&pipe->wire, chunk);
    uint64_t round = pipe->grant + cost(&pipe->engine, chunk) + pipe->engine.late + wire + pipe->wire.late +
                     cost(&pipe->far, chunk) + pipe->far.late;
    return (unsigned)later(2 * ((round + pace - 1) / pace), lanes_of(pipe) + 2);
}
