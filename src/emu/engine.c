/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines: how bytes move. A GPU has one engine for each direction; an engine runs one copy at a time and stays with
 * a channel until that has nothing more that may run. A copy is cut into pieces that are moved in shuffled order, so
 * that nobody can take "the last byte is there" for "all are". The executor gives each engine that has work a piece
 * in turn and lets go of the lock while it moves it; addresses are looked up piece by piece, so a copy whose memory
 * has gone meanwhile faults instead of reading something else.
 *
 * Copies of one, two, four or eight aligned bytes are single atomic accesses, as on the bus: such a copy may well be
 * somebody's flag. Work on SMs (copies within a GPU, memsets) goes the same way, in any number at a time.
 */
#include "device.h"
#include "memory.h"
#include "shared.h"

#include <string.h>

#define PIECE_MAX (256u << 10)
#define PIECE_MIN 64u
#define LET_GO (8u << 10) /* smaller pieces are moved with the lock held: giving it up costs more */
#define TURN (256u << 10) /* bytes moved before the next engine gets its turn */

/* A piece with its addresses resolved. */
struct move {
    unsigned char *dst;
    const unsigned char *src;
    size_t bytes;
    struct emu_store *hold[2];
};

static size_t piece_size(size_t row)
{
    size_t size = (row / 8 + PIECE_MIN - 1) / PIECE_MIN * PIECE_MIN;
    return size < PIECE_MIN ? PIECE_MIN : size > PIECE_MAX ? PIECE_MAX : size;
}

static size_t gcd(size_t a, size_t b)
{
    while (b) {
        size_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Rows that lie back to back are one row. */
static void flatten(struct emu_copy *c)
{
    bool set = !c->src.p;
    if (c->height > 1 && c->dst.pitch == c->width && (set || c->src.pitch == c->width)) {
        c->width *= c->height;
        c->height = 1;
    }
    if (c->depth > 1 && c->height == 1 && c->dst.slice == c->width && (set || c->src.slice == c->width)) {
        c->width *= c->depth;
        c->depth = 1;
    }
}

void emu_copy_prepare(struct emu_op *op)
{
    struct emu_copy *c = &op->copy;
    flatten(c);
    c->piece = piece_size(c->width);
    size_t in_row = (c->width + c->piece - 1) / c->piece;
    c->pieces = in_row * c->height * c->depth;
    c->next = 0;
    if (c->pieces < 2)
        return;
    uint64_t r = emu_random((uint64_t)op->dev->gpu, op->seq, c->pieces);
    c->start = r % c->pieces;
    c->stride = (r >> 20) % c->pieces;
    while (gcd(c->stride, c->pieces) != 1)
        c->stride = (c->stride + 1) % c->pieces;
}

static bool atomic_size(const struct move *m)
{
    uintptr_t at = (uintptr_t)m->dst | (uintptr_t)m->src;
    return m->bytes <= 8 && !(m->bytes & (m->bytes - 1)) && m->bytes && at % m->bytes == 0;
}

static void move_atomic(const struct move *m)
{
    switch (m->bytes) {
    case 1:
        __atomic_store_n(m->dst, __atomic_load_n(m->src, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
        break;
    case 2:
        __atomic_store_n((uint16_t *)(void *)m->dst,
                         __atomic_load_n((const uint16_t *)(const void *)m->src, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
        break;
    case 4:
        __atomic_store_n((uint32_t *)(void *)m->dst,
                         __atomic_load_n((const uint32_t *)(const void *)m->src, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
        break;
    default:
        __atomic_store_n((uint64_t *)(void *)m->dst,
                         __atomic_load_n((const uint64_t *)(const void *)m->src, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    }
}

/* The value repeats from the start of each row; pieces are multiples of its size. */
static void fill(unsigned char *dst, size_t bytes, uint32_t value, unsigned size)
{
    if (size == 1) {
        memset(dst, (int)value, bytes);
        return;
    }
    for (size_t i = 0; i + size <= bytes; i += size)
        memcpy(dst + i, &value, size);
}

static void carry_out(const struct emu_copy *c, const struct move *m)
{
    if (!m->src)
        fill(m->dst, m->bytes, c->fill, c->fill_size);
    else if (atomic_size(m))
        move_atomic(m);
    else
        memmove(m->dst, m->src, m->bytes);
}

/* The CPU's address of p; what no range holds is pageable host memory, or a fault if it was ever the GPU's. */
static void *resolve(CUdeviceptr p, size_t *bytes, struct emu_store **store)
{
    size_t left;
    void *at = emu_range_bytes(p, &left, store);
    if (at) {
        *bytes = left < *bytes ? left : *bytes;
        return at;
    }
    return emu_range_at(p) || emu_space_ours(p) ? NULL : (void *)(uintptr_t)p;
}

/* Byte at of piece number n: both addresses, as far as they go in one; false: a fault. */
static bool locate(const struct emu_copy *c, size_t n, size_t at, struct move *m)
{
    size_t in_row = (c->width + c->piece - 1) / c->piece, row = n / in_row;
    size_t x = n % in_row * c->piece + at, y = row % c->height, z = row / c->height;
    size_t end = (n % in_row + 1) * c->piece;
    *m = (struct move){.bytes = (end < c->width ? end : c->width) - x};
    m->dst = resolve(c->dst.p + z * c->dst.slice + y * c->dst.pitch + x, &m->bytes, &m->hold[0]);
    if (!m->dst)
        return false;
    if (!c->src.p)
        return true;
    m->src = resolve(c->src.p + z * c->src.slice + y * c->src.pitch + x, &m->bytes, &m->hold[1]);
    return m->src != NULL;
}

static void hold(const struct move *m, bool on)
{
    for (int i = 0; i < 2; i++) {
        if (m->hold[i] && on)
            emu_store_get(m->hold[i]);
        else if (m->hold[i])
            emu_store_put(m->hold[i]);
    }
}

/* Moves the next piece. With let_go the lock is given up while bytes move. False: a fault. */
static bool move_piece(struct emu_op *op, bool let_go, size_t *moved)
{
    struct emu_copy *c = &op->copy;
    size_t n = c->pieces < 2 ? 0 : (c->start + c->next * c->stride) % c->pieces;
    size_t in_row = (c->width + c->piece - 1) / c->piece, x = n % in_row * c->piece;
    size_t bytes = c->width - x < c->piece ? c->width - x : c->piece;
    for (size_t at = 0; at < bytes;) {
        struct move m;
        if (!locate(c, n, at, &m))
            return false;
        if (op->void_copy)
            m.bytes = bytes - at;
        hold(&m, true);
        if (let_go)
            pthread_mutex_unlock(&emu.lock);
        if (!op->void_copy)
            carry_out(c, &m);
        if (let_go)
            pthread_mutex_lock(&emu.lock);
        hold(&m, false);
        at += m.bytes;
        *moved += m.bytes;
    }
    c->next++;
    return true;
}

void emu_copy_at_once(struct emu_op *op)
{
    size_t moved = 0;
    emu_copy_prepare(op);
    while (op->copy.next < op->copy.pieces)
        if (!move_piece(op, false, &moved)) {
            emu_ctx_fail(op->stream->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
            return;
        }
}

/* A turn of work on one operation; true: it has ended (and is gone). */
static bool turn(struct emu_op *op, uint64_t *bytes)
{
    size_t moved = 0;
    bool good = true;
    while (good && op->copy.next < op->copy.pieces && moved < TURN)
        good = move_piece(op, op->copy.piece >= LET_GO, &moved);
    *bytes += moved;
    if (!good)
        emu_ctx_fail(op->stream->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (good && op->copy.next < op->copy.pieces)
        return false;
    if (op->copy.on_sm)
        emu_sm_done(op);
    emu_op_done(op);
    return true;
}

/* The copy that an idle engine takes: of the channel it served last if that has one, else the oldest. */
static struct emu_op *pick(struct emu_device *dev, enum emu_class class)
{
    struct emu_op *best = NULL;
    for (CUstream s = emu.busy; s; s = s->next_busy) {
        struct emu_op *op = s->head;
        if (op->state != EMU_READY || op->dev != dev || op->copy.engine != class)
            continue;
        if (op->channel[class] == dev->engine[class].last)
            return op;
        if (!best || op->seq < best->seq)
            best = op;
    }
    return best;
}

/* What HOCCL_EMU_FAULT says of the copy that the engine has just taken. */
static void apply_fault(struct emu_engine *e, enum emu_class class, int gpu, uint64_t now)
{
    uint64_t us = 0;
    switch (emu_fault_copy(class, gpu, e->ops, &us)) {
    case EMU_NO_FAULT:
        return;
    case EMU_VOID:
        e->current->void_copy = true;
        return;
    case EMU_LATE:
        e->held_until = now + us * 1000;
        return;
    case EMU_STUCK:
        e->held_until = UINT64_MAX;
    }
}

/* Gives the engine a copy, if there is one and no other process has the engine. */
static bool engine_load(struct emu_device *dev, enum emu_class class, uint64_t now)
{
    struct emu_engine *e = &dev->engine[class];
    struct emu_op *op = pick(dev, class);
    if (!op || !emu_engine_take(dev, class))
        return false;
    op->state = EMU_RUNNING;
    e->current = op;
    e->last = op->channel[class];
    e->held_until = 0;
    e->ops++;
    apply_fault(e, class, dev->gpu, now);
    return true;
}

/* One turn of one engine; true: it did something. */
static bool engine_step(struct emu_device *dev, enum emu_class class, uint64_t now, uint64_t *next_ns)
{
    struct emu_engine *e = &dev->engine[class];
    if (!e->current && !engine_load(dev, class, now))
        return false;
    uint64_t *rate_ns = emu_engine_next(dev, class), bytes = 0;
    uint64_t at = *rate_ns > e->held_until ? *rate_ns : e->held_until;
    if (at > now) {
        *next_ns = at < *next_ns ? at : *next_ns;
        return false;
    }
    bool ended = turn(e->current, &bytes);
    e->bytes += bytes;
    if (emu.set.rate[class])
        *rate_ns = (*rate_ns + 1000000 < now ? now : *rate_ns) + bytes * 1000000000u / emu.set.rate[class];
    if (ended) {
        e->current = NULL;
        emu_engine_give(dev, class);
    }
    return true;
}

/* Copies and memsets on SMs: any that run get a turn. */
static bool sm_step(void)
{
    for (CUstream s = emu.busy; s; s = s->next_busy) {
        struct emu_op *op = s->head;
        if (op->state != EMU_RUNNING || (op->kind != EMU_OP_COPY && op->kind != EMU_OP_SET) || !op->copy.on_sm)
            continue;
        struct emu_engine *e = &op->dev->engine[EMU_COMPUTE];
        turn(op, &e->bytes);
        return true;
    }
    return false;
}

bool emu_engines_step(uint64_t now, uint64_t *next_ns)
{
    bool worked = sm_step();
    for (int d = 0; d < emu.devices; d++)
        for (enum emu_class class = EMU_PUSH; class < EMU_CLASSES; class ++)
            worked |= engine_step(emu.device[d], class, now, next_ns);
    return worked;
}
