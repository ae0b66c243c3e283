/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers between ranks of different nodes, as processes, over whatever network there is: every rank sends to the
 * next and receives from the one before. Which ends are registered is varied; that a registered end uses no slot, and the
 * other one nothing else, is seen in the library's own counts.
 *
 * usage: mpirun -np N registered host|gpu|own [flushed]
 *
 *   host, gpu   pinned host memory, memory of the GPU, registered by HOCCL_CommRegister: no end, the sends', the receives',
 *               both
 *   own         memory of HOCCL_MemAlloc, which needs no call: both ends
 *   flushed     the GPU orders no writes (HOCCL_EMU_RDMA_ORDER=none): each chunk that arrives in a registered buffer is
 *               flushed */
#include "rank.h"

#include "base/atomic.h"
#include "p2p/wire.h"

#define GUARD 64
#define GUARD_BYTE 0xa5

static const size_t sizes[] = {8, 4096, 65543, (1 << 20) + 1, (5 << 20) + 5};
#define SIZES (sizeof sizes / sizeof *sizes)

enum kind { HOST, GPU, OWN };

struct buffer {
    enum kind kind;
    bool registered;
    size_t room;
    void *at;
    void *handle;
};

/* What each end did since the counts were forgotten. */
struct tally {
    uint64_t from, filled, written;       /* my sends */
    uint64_t into, granted, arrived, flushed; /* my receives */
    uint64_t allowed, allowed_into;
};

static void buffer_open(struct buffer *b, enum kind kind, bool registered, size_t room)
{
    *b = (struct buffer){.kind = kind, .registered = registered, .room = room};
    if (kind == HOST)
        OK(cuMemAllocHost(&b->at, room));
    else if (kind == GPU)
        OK(cuMemAlloc((CUdeviceptr *)&b->at, room));
    else
        OK(HOCCL_MemAlloc(&b->at, room));
    if (registered && kind != OWN)
        OK(HOCCL_CommRegister(comm, b->at, room, &b->handle));
}

static void buffer_close(struct buffer *b)
{
    OK(HOCCL_CommDeregister(comm, b->handle));
    if (b->kind == HOST)
        OK(cuMemFreeHost(b->at));
    else if (b->kind == GPU)
        OK(cuMemFree((CUdeviceptr)b->at));
    else
        OK(HOCCL_MemFree(b->at));
}

static void put(const struct buffer *b, const unsigned char *bytes)
{
    if (b->kind == HOST)
        memcpy(b->at, bytes, b->room);
    else
        rank_put(b->at, bytes, b->room);
}

static void get(const struct buffer *b, unsigned char *bytes)
{
    if (b->kind == HOST)
        memcpy(bytes, b->at, b->room);
    else
        OK(cuMemcpyDtoH(bytes, (CUdeviceptr)b->at, b->room));
}

static unsigned char byte_of(int from, size_t bytes, int ends, size_t i)
{
    return (unsigned char)(mix3((uint64_t)from, bytes + (uint64_t)ends, i / 8) >> i % 8 * 8);
}

static struct tally take_tally(void)
{
    const struct hoccl_wire_count *c = &hoccl_wire_counts;
    return (struct tally){.from = hoccl_peek(&c->from), .filled = hoccl_peek(&c->filled), .written = hoccl_peek(&c->written),
                          .into = hoccl_peek(&c->into), .granted = hoccl_peek(&c->granted), .arrived = hoccl_peek(&c->arrived),
                          .flushed = hoccl_peek(&c->flushed), .allowed = hoccl_peek(&c->allowed),
                          .allowed_into = hoccl_peek(&c->allowed_into)};
}

/* One message each way; what lies before and behind it stays as it was. */
static void swap(const struct buffer *out, const struct buffer *in, size_t bytes, int ends)
{
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char *host = malloc(out->room);
    NEED(host);
    for (size_t i = 0; i < bytes; i++)
        host[GUARD + i] = byte_of(rank, bytes, ends, i);
    put(out, host);
    memset(host, GUARD_BYTE, in->room);
    put(in, host);
    OK(HOCCL_GroupStart());
    OK(HOCCL_Send((char *)out->at + GUARD, bytes, HOCCL_BYTE, to, comm, stream));
    OK(HOCCL_Recv((char *)in->at + GUARD, bytes, HOCCL_BYTE, from, comm, stream));
    OK(HOCCL_GroupEnd());
    OK(rank_wait());
    get(in, host);
    for (size_t i = 0; i < in->room; i++) {
        bool inside = i >= GUARD && i < GUARD + bytes;
        NEED(host[i] == (inside ? byte_of(from, bytes, ends, i - GUARD) : GUARD_BYTE));
    }
    free(host);
}

/* Every chunk went the way that its ends say. */
static void check(const struct tally *a, const struct tally *b, const struct buffer *out, const struct buffer *in, bool flushed)
{
    uint64_t sent = b->written - a->written, came = b->arrived - a->arrived;
    NEED(sent >= SIZES && came >= SIZES);
    NEED(b->from - a->from == (out->registered ? sent : 0));
    NEED(b->filled - a->filled == (out->registered ? 0 : sent));
    NEED(b->into - a->into == (in->registered ? came : 0));
    NEED(b->granted - a->granted == (in->registered ? 0 : came));
    NEED(b->allowed_into - a->allowed_into == (in->registered ? sent : 0)); /* the next rank does as this one */
    NEED(b->allowed - a->allowed == (in->registered ? 0 : sent));
    if (in->registered)
        NEED(b->flushed - a->flushed == (flushed ? came : 0));
}

static void run(enum kind kind, int ends, bool flushed)
{
    struct buffer out, in;
    size_t room = sizes[SIZES - 1] + 2 * GUARD;
    buffer_open(&out, kind, ends & 1, room);
    buffer_open(&in, kind, ends & 2, room);
    struct tally before = take_tally();
    for (size_t i = 0; i < SIZES; i++)
        swap(&out, &in, sizes[i], ends);
    struct tally after = take_tally();
    check(&before, &after, &out, &in, flushed);
    if (!rank)
        printf("sends %s, receives %s: %llu chunks sent, %llu of them from where they lay; %llu came, %llu to where they belong, "
               "%llu flushed\n",
               out.registered ? "registered" : "by slots", in.registered ? "registered" : "by slots",
               (unsigned long long)(after.written - before.written), (unsigned long long)(after.from - before.from),
               (unsigned long long)(after.arrived - before.arrived), (unsigned long long)(after.into - before.into),
               (unsigned long long)(after.flushed - before.flushed));
    buffer_close(&out);
    buffer_close(&in);
}

int main(int argc, char **argv)
{
    enum kind kind = argc > 1 && !strcmp(argv[1], "host") ? HOST : argc > 1 && !strcmp(argv[1], "gpu") ? GPU : OWN;
    bool flushed = argc > 2 && !strcmp(argv[2], "flushed");
    rank_open();
    for (int ends = kind == OWN ? 3 : 0; ends < 4; ends++)
        run(kind, ends, flushed);
    rank_close();
    return 0;
}
