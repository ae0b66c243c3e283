/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective against a model of it on the host, byte for byte (B06, B11, B19, and the counts of B07).
 *
 * The model: each rank has pieces to send and pieces to receive, and the bytes of a piece follow from its round, its
 * source and, where every destination gets something else, its destination. Both buffers are images of one allocation
 * each: what no piece covers is a guard byte in both, before, between and behind the pieces, and the images are compared
 * whole. Pieces stand at odd addresses. In place, the send buffer is a part of the receive buffer. A third of the calls are
 * made as requests that are started. */
#include "rank.h"

enum { MOST = 16, LEAD = 4099, GUARD = 0xa5 };
enum kind { ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, BROADCAST, GATHER, GATHERV, SCATTER, SCATTERV, KINDS };
static const char *const kind_names[] = {"AllGather", "AllGatherv", "Alltoall", "Alltoallv", "Broadcast",
                                         "Gather",    "Gatherv",    "Scatter",  "Scatterv"};

/* One operation as this rank sees it; counts and displacements in elements. */
struct op {
    enum kind kind;
    uint64_t round;
    HOCCL_Datatype type;
    size_t element;
    int root;
    bool in_place;
    bool skewed;  /* counts with arrays fall by Zipf's law from rank to rank, other ranks first in each round */
    size_t count; /* of the calls without arrays */
    size_t scount[MOST], sdispl[MOST], rcount[MOST], rdispl[MOST];
};

static __thread struct image {
    CUdeviceptr device;
    unsigned char *host, *expected;
    size_t bytes;
} out, in;

/* ---- the model --------------------------------------------------------------------------------------------------- */

static bool same_for_all(enum kind kind)
{
    return kind == ALLGATHER || kind == ALLGATHERV || kind == BROADCAST;
}

static bool has_arrays(enum kind kind)
{
    return kind == ALLGATHERV || kind == ALLTOALLV || kind == GATHERV || kind == SCATTERV;
}

static void put_piece(const struct op *op, unsigned char *to, int source, int destination, size_t bytes)
{
    uint64_t key = mix3(op->round, (uint64_t)source, same_for_all(op->kind) ? 99 : (uint64_t)destination);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = mix(key + i / 8);
        memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

/* A rank's share of n: the first has all, the k-th the k-th part, every fifth nothing. */
static size_t share(const struct op *op, size_t n, int r, uint64_t salt)
{
    uint64_t place = ((uint64_t)r + mix3(op->round, salt, 4)) % (uint64_t)size;
    return place % 5 == 4 ? 0 : n / (place + 1);
}

static size_t skewed_count(const struct op *op, size_t n, int source, int destination)
{
    size_t row = share(op, n, source, 1);
    if (op->kind == ALLTOALLV)
        return share(op, row, destination, 2);
    if (op->kind == SCATTERV)
        return source == op->root ? share(op, n, destination, 2) : 0;
    return op->kind == ALLGATHERV || destination == op->root ? row : 0;
}

/* How many elements source sends to destination. */
static size_t count_of(const struct op *op, size_t n, int source, int destination)
{
    if (op->skewed)
        return skewed_count(op, n, source, destination);
    switch (op->kind) {
    case ALLGATHER:
    case ALLTOALL:
        return n;
    case ALLGATHERV:
        return n ? mix3(op->round, (uint64_t)source, 1) % (n + 1) : 0;
    case ALLTOALLV: {
        uint64_t dice = mix3(op->round, (uint64_t)source, (uint64_t)destination + 1000);
        return dice & 1 || !n ? 0 : (dice >> 8) % (n + 1);
    }
    case BROADCAST:
    case SCATTER:
        return source == op->root ? n : 0;
    case GATHER:
        return destination == op->root ? n : 0;
    case GATHERV:
        return destination == op->root && n ? mix3(op->round, (uint64_t)source, 2) % (n + 1) : 0;
    case SCATTERV:
        return source == op->root && n ? mix3(op->round, (uint64_t)destination, 3) % (n + 1) : 0;
    case KINDS:
        break;
    }
    return 0;
}

/* Where the pieces stand; the calls with arrays leave gaps of 0 to 3 elements, and their pieces stand in reverse order
 * in every other round. */
static void lay_out(const struct op *op, const size_t *counts, size_t *displs, bool same)
{
    size_t at = 0;
    for (int i = 0; i < size; i++) {
        int r = has_arrays(op->kind) && op->round % 2 ? size - 1 - i : i;
        displs[r] = same ? 0 : has_arrays(op->kind) ? at : (size_t)r * op->count;
        at += counts[r] + mix3(op->round, (uint64_t)r, 7) % 4;
    }
}

static __thread bool skewed;

static struct op make_op(enum kind kind, uint64_t round, HOCCL_Datatype type, size_t element, size_t n, int root, bool in_place)
{
    struct op op = {kind, round, type, element, root, in_place, skewed, n, {0}, {0}, {0}, {0}};
    for (int r = 0; r < size; r++) {
        op.scount[r] = count_of(&op, n, rank, r);
        op.rcount[r] = count_of(&op, n, r, rank);
    }
    lay_out(&op, op.scount, op.sdispl, same_for_all(kind));
    lay_out(&op, op.rcount, op.rdispl, false);
    if (kind == GATHER || kind == GATHERV)
        memset(op.sdispl, 0, sizeof op.sdispl);
    if (kind == BROADCAST || kind == SCATTER || kind == SCATTERV)
        memset(op.rdispl, 0, sizeof op.rdispl);
    return op;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void image_open(struct image *m, size_t bytes)
{
    m->bytes = bytes;
    OK(cuMemAlloc(&m->device, bytes));
    OK(cuMemAllocHost((void **)&m->host, bytes));
    NEED(m->expected = malloc(bytes));
}

static void image_close(struct image *m)
{
    OK(cuMemFree(m->device));
    OK(cuMemFreeHost(m->host));
    free(m->expected);
}

/* Only the front of the images is used by small operations. */
static size_t extent(const struct op *op)
{
    size_t end = 0;
    for (int r = 0; r < size; r++) {
        size_t s = op->sdispl[r] + op->scount[r], t = op->rdispl[r] + op->rcount[r];
        end = s > end ? s : end;
        end = t > end ? t : end;
    }
    end = 2 * LEAD + end * op->element;
    NEED(end <= out.bytes && end <= in.bytes);
    return end;
}

/* The images before the call go to the GPU; `expected` becomes what they must be afterwards. */
static void prepare(const struct op *op, size_t bytes)
{
    memset(out.expected, GUARD, bytes);
    memset(in.expected, GUARD, bytes);
    for (int r = 0; r < size; r++)
        put_piece(op, out.expected + LEAD + op->sdispl[r] * op->element, rank, r, op->scount[r] * op->element);
    memcpy(out.host, out.expected, bytes);
    memcpy(in.host, in.expected, bytes);
    for (int r = 0; r < size; r++)
        put_piece(op, in.expected + LEAD + op->rdispl[r] * op->element, r, rank, op->rcount[r] * op->element);
    if (op->in_place) {
        size_t own = LEAD + op->rdispl[rank] * op->element, n = op->rcount[rank] * op->element;
        memcpy(in.host + own, in.expected + own, n);
    }
    OK(cuMemcpyHtoDAsync(out.device, out.host, bytes, stream));
    OK(cuMemcpyHtoDAsync(in.device, in.host, bytes, stream));
}

static void compare(const struct op *op, const struct image *m, const char *which, size_t bytes)
{
    if (!memcmp(m->host, m->expected, bytes))
        return;
    size_t i = 0;
    while (m->host[i] == m->expected[i])
        i++;
    fprintf(stderr, "rank %d of %d: %s%s, round %llu, root %d, count %zu of %zu bytes: the %s buffer is wrong at %zd: 0x%02x, not 0x%02x\n",
            rank, size, kind_names[op->kind], op->in_place ? " in place" : "", (unsigned long long)op->round, op->root,
            op->count, op->element, which, (ssize_t)i - LEAD, m->host[i], m->expected[i]);
    exit(1);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static HOCCL_Result call(const struct op *o, void *from, void *to)
{
    bool root = rank == o->root;
    switch (o->kind) {
    case ALLGATHER:
        return HOCCL_AllGather(from, to, o->count, o->type, comm, stream);
    case ALLGATHERV:
        return HOCCL_AllGatherv(from, o->scount[rank], to, o->rcount, o->rdispl, o->type, comm, stream);
    case ALLTOALL:
        return HOCCL_Alltoall(from, to, o->count, o->type, comm, stream);
    case ALLTOALLV:
        return HOCCL_Alltoallv(from, o->scount, o->sdispl, to, o->rcount, o->rdispl, o->type, comm, stream);
    case BROADCAST:
        return HOCCL_Broadcast(root ? from : NULL, to, o->count, o->type, o->root, comm, stream);
    case GATHER:
        return HOCCL_Gather(from, root ? to : NULL, o->count, o->type, o->root, comm, stream);
    case GATHERV:
        return HOCCL_Gatherv(from, o->scount[o->root], root ? to : NULL, root ? o->rcount : NULL, root ? o->rdispl : NULL,
                             o->type, o->root, comm, stream);
    case SCATTER:
        return HOCCL_Scatter(root ? from : NULL, to, o->count, o->type, o->root, comm, stream);
    case SCATTERV:
        return HOCCL_Scatterv(root ? from : NULL, root ? o->scount : NULL, root ? o->sdispl : NULL, to,
                              root ? o->scount[rank] : o->rcount[o->root], o->type, o->root, comm, stream);
    case KINDS:
        break;
    }
    return HOCCL_ERR_INTERNAL;
}

static HOCCL_Result make_request(const struct op *o, void *from, void *to, HOCCL_Request *q)
{
    bool root = rank == o->root;
    switch (o->kind) {
    case ALLGATHER:
        return HOCCL_AllGather_init(from, to, o->count, o->type, comm, q);
    case ALLGATHERV:
        return HOCCL_AllGatherv_init(from, o->scount[rank], to, o->rcount, o->rdispl, o->type, comm, q);
    case ALLTOALL:
        return HOCCL_Alltoall_init(from, to, o->count, o->type, comm, q);
    case ALLTOALLV:
        return HOCCL_Alltoallv_init(from, o->scount, o->sdispl, to, o->rcount, o->rdispl, o->type, comm, q);
    case BROADCAST:
        return HOCCL_Broadcast_init(root ? from : NULL, to, o->count, o->type, o->root, comm, q);
    case GATHER:
        return HOCCL_Gather_init(from, root ? to : NULL, o->count, o->type, o->root, comm, q);
    case GATHERV:
        return HOCCL_Gatherv_init(from, o->scount[o->root], root ? to : NULL, root ? o->rcount : NULL, root ? o->rdispl : NULL,
                             o->type, o->root, comm, q);
    case SCATTER:
        return HOCCL_Scatter_init(root ? from : NULL, to, o->count, o->type, o->root, comm, q);
    case SCATTERV:
        return HOCCL_Scatterv_init(root ? from : NULL, root ? o->scount : NULL, root ? o->sdispl : NULL, to,
                              root ? o->scount[rank] : o->rcount[o->root], o->type, o->root, comm, q);
    case KINDS:
        break;
    }
    return HOCCL_ERR_INTERNAL;
}

/* From a request that is freed at once; the arrays that it was made from are worth nothing any more when it starts. */
static HOCCL_Result start(const struct op *o, void *from, void *to)
{
    struct op own = *o;
    HOCCL_Request q = HOCCL_REQUEST_NULL;
    HOCCL_Result r = make_request(&own, from, to, &q);
    memset(&own, 0xff, sizeof own);
    if (!r)
        r = HOCCL_Start(q, stream);
    return r ? r : HOCCL_RequestFree(q);
}

/* Some ranks call, some start a request: others in each round. Of Alltoallv all start theirs, which they make together. */
static HOCCL_Result call_or_start(const struct op *o)
{
    char *to = (char *)(in.device + LEAD), *from = (char *)(out.device + LEAD);
    bool root = rank == o->root;
    if (o->in_place) {
        if (o->kind == ALLGATHER || o->kind == ALLGATHERV || ((o->kind == GATHER || o->kind == GATHERV) && root))
            from = to + o->rdispl[rank] * o->element;
        else if (o->kind == BROADCAST)
            to = root ? from : to;
        else if ((o->kind == SCATTER || o->kind == SCATTERV) && root)
            to = from + o->sdispl[rank] * o->element;
    }
    return (o->round + (o->kind == ALLTOALLV ? 0 : (uint64_t)rank)) % 3 ? call(o, from, to) : start(o, from, to);
}

/* In place, the own piece stands in the receive buffer already; else it stays in the send buffer. */
static bool same_place(enum kind kind)
{
    return kind != BROADCAST && kind != SCATTER && kind != SCATTERV;
}

static void run(struct op op)
{
    size_t bytes = extent(&op);
    if (op.in_place && !same_place(op.kind) && rank == op.root) /* nothing arrives in the receive buffer */
        memset(op.rcount, 0, sizeof op.rcount);
    prepare(&op, bytes);
    OK(call_or_start(&op));
    OK(cuMemcpyDtoHAsync(out.host, out.device, bytes, stream));
    OK(cuMemcpyDtoHAsync(in.host, in.device, bytes, stream));
    OK(rank_wait());
    compare(&op, &in, "receive", bytes);
    compare(&op, &out, "send", bytes);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static const struct {
    HOCCL_Datatype type;
    size_t element;
} types[] = {{HOCCL_INT8, 1},     {HOCCL_UINT8, 1},    {HOCCL_INT16, 2},    {HOCCL_UINT16, 2}, {HOCCL_INT32, 4},
             {HOCCL_UINT32, 4},   {HOCCL_INT64, 8},    {HOCCL_UINT64, 8},   {HOCCL_FP8_E4M3, 1}, {HOCCL_FP8_E5M2, 1},
             {HOCCL_FP16, 2},     {HOCCL_BF16, 2},     {HOCCL_FP32, 4},     {HOCCL_FP64, 8},   {HOCCL_COMPLEX64, 8},
             {HOCCL_COMPLEX128, 16}, {HOCCL_BYTE, 1}};

static bool has_root(enum kind kind)
{
    return kind >= BROADCAST;
}

static void test_counts(void)
{
    static const size_t counts[] = {0, 1, 7, ((size_t)1 << 20) + 1};
    uint64_t round = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
            for (int root = 0; root < (has_root((enum kind)kind) ? size : 1); root += size > 8 ? 5 : 1)
                for (int in_place = 0; in_place < 2; in_place++, round++)
                    if (!in_place || (kind != ALLTOALL && kind != ALLTOALLV))
                        run(make_op((enum kind)kind, round, HOCCL_BYTE, 1, counts[n], root, in_place));
}

/* Random bytes hold every pattern of a small type: NaN payloads, denormals, −0 pass like any other (B19). */
static void test_types(void)
{
    uint64_t round = 1000;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++, round += 2) {
            run(make_op((enum kind)kind, round, types[t].type, types[t].element, 4097, (int)(t % (size_t)size),
                        kind != ALLTOALL && kind != ALLTOALLV));
            run(make_op((enum kind)kind, round + 1, types[t].type, types[t].element, 4097, (int)(t % (size_t)size), false));
        }
}

static int rounds = 100;

/* Half of the rows are empty, others in each round (B06). */
static void test_zero_rows(void)
{
    for (int i = 0; i < rounds; i++)
        run(make_op(ALLTOALLV, 100000 + (uint64_t)i, HOCCL_INT32, 4, i % 50 ? 1000 : 20000, 0, false));
}

/* Some ranks have nearly everything to send or to receive, others nothing at all. */
static void test_skewed(void)
{
    static const enum kind kinds[] = {ALLTOALLV, ALLGATHERV, GATHERV, SCATTERV};
    skewed = true;
    for (int i = 0; i < 8; i++)
        run(make_op(kinds[i % 4], 200000 + (uint64_t)i, HOCCL_BYTE, 1, ((size_t)1 << 20) - (size_t)i, i % size, i >= 4 && i % 4));
    for (int i = 0; i < rounds / 10; i++)
        run(make_op(ALLTOALLV, 300000 + (uint64_t)i, HOCCL_INT16, 2, 100000, 0, false));
    skewed = false;
}

/* Several collectives and messages in one group: numbered as they were called, done together. */
static void test_group(void)
{
    struct op op = make_op(ALLTOALLV, 5, HOCCL_BYTE, 1, 5000, 0, false);
    size_t bytes = extent(&op);
    CUdeviceptr gathered = out.device + out.bytes - 64;
    unsigned char seen[2 * MOST];
    NEED(bytes + 64 <= out.bytes);
    memset(seen, rank, sizeof seen);
    OK(cuMemcpyHtoDAsync(gathered, seen, 2 * (size_t)size, stream));
    prepare(&op, bytes);
    OK(HOCCL_GroupStart());
    OK(HOCCL_AllGather((void *)(gathered + (size_t)rank), (void *)gathered, 1, HOCCL_BYTE, comm, stream));
    OK(call_or_start(&op));
    OK(HOCCL_AllGather((void *)(gathered + (size_t)size + (size_t)rank), (void *)(gathered + (size_t)size), 1, HOCCL_BYTE, comm, stream));
    OK(HOCCL_GroupEnd());
    OK(cuMemcpyDtoHAsync(out.host, out.device, bytes, stream));
    OK(cuMemcpyDtoHAsync(in.host, in.device, bytes, stream));
    OK(rank_wait());
    compare(&op, &in, "receive", bytes);
    OK(cuMemcpyDtoHAsync(seen, gathered, 2 * (size_t)size, stream));
    OK(cuStreamSynchronize(stream));
    for (int r = 0; r < 2 * size; r++)
        NEED(seen[r] == r % size);
}

static bool only_skewed;

static void test_all(void)
{
    NEED(size <= MOST);
    image_open(&out, 2 * LEAD + (size_t)size * (((size_t)1 << 20) + 8));
    image_open(&in, 2 * LEAD + (size_t)size * (((size_t)1 << 20) + 8));
    if (!only_skewed) {
        test_counts();
        test_types();
        test_group();
        test_zero_rows();
    }
    test_skewed();
    rank_settle();
    image_close(&out);
    image_close(&in);
    if (rank == 0)
        printf("%d ranks: every byte of every collective right, %d rounds of rows\n", size, rounds);
}

/* moves [skewed] [ROUNDS [THREADS]] */
int main(int argc, char **argv)
{
    only_skewed = argc > 1 && !strcmp(argv[1], "skewed");
    argc -= only_skewed;
    argv += only_skewed;
    if (argc > 1)
        rounds = atoi(argv[1]);
    if (argc > 2) {
        ranks_as_threads(atoi(argv[2]), test_all);
        return 0;
    }
    rank_open();
    test_all();
    rank_close();
    return 0;
}
