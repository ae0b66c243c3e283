/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A piece may be overwritten only when it has been sent, so what arrives waits in scratch memory of this GPU:
 *
 *   step 2k       every rank's bytes of round k ──▶ scratch of the others
 *   step 2k + 1   scratch ──▶ the piece it belongs to, a self send, since a plain copy within a GPU would run on SMs
 *
 * in rounds that fit the scratch. Each step is a group of Sends and Receives; stream order keeps them apart. The number of
 * rounds follows from bytes and ranks, so all ranks do the same. Several of a group are done step by step together, as
 * one thread that drives several ranks needs it.
 */
#include "nccl/swap.h"

#include "nccl/comm.h"
#include "nccl/group.h"

#include <stdlib.h>

#define SCRATCH ((size_t)32 << 20)
#define STREAMS 8 /* of a communicator that may have scratch memory */

struct swap {
    struct swap *next;
    char *buf, *scratch;
    size_t bytes, round; /* of a piece; of it that one round moves */
    int size, rank;
    HOCCL_Comm comm;
    cudaStream_t stream;
};

static __thread struct swap *first, **last = NULL;

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

static ncclResult_t scratch_new(struct shim_comm *c, unsigned long long stream, char **memory)
{
    int streams = 0;
    for (struct shim_scratch *s = c->scratch; s; s = s->next)
        streams++;
    if (streams == STREAMS)
        return shim_fail(ncclInvalidUsage, "AlltoAll in place on more than %d streams of a communicator: use two buffers", STREAMS);
    struct shim_scratch *s = malloc(sizeof *s);
    if (!s)
        return shim_fail(ncclSystemError, "no host memory for an AlltoAll in place");
    bool entered = shim_context_enter(c->context);
    ncclResult_t r = shim_result(HOCCL_MemAlloc(&s->memory, SCRATCH), "scratch memory of an AlltoAll in place");
    shim_context_leave(entered);
    if (r) {
        free(s);
        return r;
    }
    s->stream = stream;
    s->next = c->scratch;
    c->scratch = s;
    *memory = s->memory;
    return ncclSuccess;
}

/* Two streams must not share it: nothing orders them. */
static ncclResult_t scratch_of(struct shim_comm *c, cudaStream_t stream, char **memory)
{
    unsigned long long id;
    ncclResult_t r = shim_context_stream(c->context, stream, &id);
    if (r)
        return r;
    for (struct shim_scratch *s = c->scratch; s; s = s->next)
        if (s->stream == id) {
            *memory = s->memory;
            return ncclSuccess;
        }
    return scratch_new(c, id, memory);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static size_t steps(const struct swap *w)
{
    return 2 * ((w->bytes + w->round - 1) / w->round);
}

static void post(const struct swap *w, size_t step)
{
    size_t begin = step / 2 * w->round;
    size_t n = w->bytes - begin < w->round ? w->bytes - begin : w->round;
    int place = 0;
    for (int i = 1; i < w->size; i++, place++) {
        int peer = (w->rank + w->size - i) % w->size, other = (w->rank + i) % w->size;
        char *scratch = w->scratch + (size_t)place * w->round;
        bool moves = step % 2 == 0;
        HOCCL_Recv(moves ? scratch : w->buf + (size_t)peer * w->bytes + begin, n, HOCCL_BYTE, moves ? peer : w->rank, w->comm, w->stream);
        HOCCL_Send(moves ? w->buf + (size_t)other * w->bytes + begin : scratch, n, HOCCL_BYTE, moves ? other : w->rank, w->comm, w->stream);
    }
}

/* One step of all that have so many. HOCCL_GroupEnd returns what went wrong in any call. */
static ncclResult_t post_all(const struct swap *all, size_t step)
{
    HOCCL_Result r = HOCCL_GroupStart();
    for (const struct swap *w = all; w && !r; w = w->next)
        if (step < steps(w))
            post(w, step);
    return shim_result(r ? r : HOCCL_GroupEnd(), "ncclAlltoAll in place");
}

static ncclResult_t do_all(const struct swap *all)
{
    size_t most = 0;
    ncclResult_t r = ncclSuccess;
    for (const struct swap *w = all; w; w = w->next)
        most = steps(w) > most ? steps(w) : most;
    for (size_t step = 0; step < most && !r; step++)
        r = post_all(all, step);
    for (const struct swap *w = all; w && !r; w = w->next)
        shim_count(SHIM_ALLTOALL, 1);
    return r;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static ncclResult_t describe(struct swap *w, ncclComm_t comm)
{
    struct shim_comm *c = shim_comm_lock(comm, "ncclAlltoAll");
    if (!c)
        return ncclInvalidArgument;
    w->size = c->size;
    w->rank = c->rank;
    ncclResult_t r = c->size > 1 ? scratch_of(c, w->stream, &w->scratch) : ncclSuccess;
    shim_comm_unlock(c);
    if (r || w->size == 1)
        return r;
    size_t room = SCRATCH / (size_t)(w->size - 1);
    room = room < 256 ? room : room / 256 * 256;
    w->round = w->bytes < room ? w->bytes : room;
    return ncclSuccess;
}

static ncclResult_t keep(const struct swap *asked)
{
    struct swap *w = malloc(sizeof *w);
    if (!w)
        return shim_fail(ncclSystemError, "no host memory for an AlltoAll in place");
    *w = *asked;
    if (!first)
        last = &first;
    *last = w;
    last = &w->next;
    return ncclSuccess;
}

ncclResult_t shim_swap(void *buf, size_t bytes, ncclComm_t comm, HOCCL_Comm hoccl, cudaStream_t stream)
{
    struct swap w = {.buf = buf, .bytes = bytes, .comm = hoccl, .stream = stream};
    ncclResult_t r = describe(&w, comm);
    if (r)
        return r;
    if (w.size == 1) /* it stands already where it belongs */
        return shim_group_taken(SHIM_ALLTOALL, HOCCL_SUCCESS, "ncclAlltoAll");
    return shim_group_is_open() ? keep(&w) : do_all(&w);
}

void shim_swap_drop(void)
{
    while (first) {
        struct swap *w = first;
        first = w->next;
        free(w);
    }
}

ncclResult_t shim_swap_end(void)
{
    ncclResult_t r = first ? do_all(first) : ncclSuccess;
    shim_swap_drop();
    return r;
}
