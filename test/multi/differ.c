/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that do not fit: wrong arguments, found at the call, after which the communicator works on (B07, B14, B16); and
 * ranks that disagree, which both ends report with both values, with nothing written beyond what was expected (B09, B10).
 *
 * "differ CASE": one case a job, for a mismatch is the end of the communicator. */
#include "rank.h"
#include <fcntl.h>
#include <unistd.h>

enum { ROOM = 1 << 16, GUARD = 0xa5 };

#define WORLD comm
#define REFUSED(call) need((call) == HOCCL_ERR_ARGUMENT, #call " is refused", __LINE__)

static char *out, *in; /* device memory, ROOM bytes each */
static unsigned char seen[ROOM];

/* ---- wrong arguments --------------------------------------------------------------------------------------------- */

static void refuse_counts(void)
{
    size_t huge[16], zero[16] = {0}, one[16], far[16];
    for (int r = 0; r < 16; r++) {
        huge[r] = SIZE_MAX / 2;
        one[r] = 1;
        far[r] = SIZE_MAX - (size_t)r;
    }
    REFUSED(HOCCL_AllGather(out, in, SIZE_MAX, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_AllGather(out, in, SIZE_MAX / 2, HOCCL_INT32, WORLD, stream));
    REFUSED(HOCCL_AllGather(out, in, SIZE_MAX / 2, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoall(out, in, SIZE_MAX / 2 + 1, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoallv(out, huge, zero, in, huge, zero, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoallv(out, one, far, in, one, zero, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoallv(out, one, zero, in, one, far, HOCCL_COMPLEX128, WORLD, stream));
    REFUSED(HOCCL_AllGatherv(out, 1, in, one, far, HOCCL_INT16, WORLD, stream));
    one[rank] = 2;
    REFUSED(HOCCL_AllGatherv(out, 1, in, one, zero, HOCCL_BYTE, WORLD, stream));
    NEED(strstr(HOCCL_GetLastError(), "HOCCL_AllGatherv"));
}

static void refuse_pointers(void)
{
    size_t counts[16], displs[16];
    for (size_t r = 0; r < 16; r++) {
        counts[r] = 4;
        displs[r] = 4 * r;
    }
    REFUSED(HOCCL_AllGather(NULL, in, 1, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_AllGather(out, NULL, 1, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoall(NULL, in, 1, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoall(out, NULL, 1, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_AllGatherv(out, 4, in, NULL, displs, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_AllGatherv(out, 4, in, counts, NULL, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoallv(out, NULL, displs, in, counts, displs, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoallv(out, counts, NULL, in, counts, displs, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoallv(out, counts, displs, in, NULL, displs, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoallv(out, counts, displs, in, counts, NULL, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Broadcast(out, NULL, 1, HOCCL_BYTE, 0, WORLD, stream));
    REFUSED(HOCCL_Gather(NULL, in, 1, HOCCL_BYTE, 0, WORLD, stream));
    REFUSED(HOCCL_Scatter(out, NULL, 1, HOCCL_BYTE, 0, WORLD, stream));
    REFUSED(HOCCL_AllGather(out, in, 1, (HOCCL_Datatype)99, WORLD, stream));
    REFUSED(HOCCL_AllGather(out, in, 1, HOCCL_BYTE, HOCCL_COMM_NULL, stream));
    if (rank == 0) {
        REFUSED(HOCCL_Gatherv(out, 4, in, NULL, displs, HOCCL_BYTE, 0, WORLD, stream));
        REFUSED(HOCCL_Gatherv(out, 4, in, counts, NULL, HOCCL_BYTE, 0, WORLD, stream));
        REFUSED(HOCCL_Scatterv(out, NULL, displs, in, 4, HOCCL_BYTE, 0, WORLD, stream));
        REFUSED(HOCCL_Scatterv(out, counts, NULL, in, 4, HOCCL_BYTE, 0, WORLD, stream));
        REFUSED(HOCCL_Scatter(NULL, in, 1, HOCCL_BYTE, 0, WORLD, stream));
        REFUSED(HOCCL_Broadcast(NULL, in, 1, HOCCL_BYTE, 0, WORLD, stream));
        REFUSED(HOCCL_Gather(out, NULL, 1, HOCCL_BYTE, 0, WORLD, stream));
    }
}

static void refuse_roots(void)
{
    size_t arrays[16] = {0};
    const int roots[] = {-1, size, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        REFUSED(HOCCL_Broadcast(out, in, 1, HOCCL_BYTE, roots[i], WORLD, stream));
        REFUSED(HOCCL_Gather(out, in, 1, HOCCL_BYTE, roots[i], WORLD, stream));
        REFUSED(HOCCL_Scatter(out, in, 1, HOCCL_BYTE, roots[i], WORLD, stream));
        REFUSED(HOCCL_Gatherv(out, 0, in, arrays, arrays, HOCCL_BYTE, roots[i], WORLD, stream));
        REFUSED(HOCCL_Scatterv(out, arrays, arrays, in, 0, HOCCL_BYTE, roots[i], WORLD, stream));
    }
}

static void refuse_overlaps(void)
{
    size_t counts[16], displs[16];
    for (size_t r = 0; r < 16; r++) {
        counts[r] = 4;
        displs[r] = 3 * r;
    }
    int wrong = rank == 0 && size > 1 ? 1 : 0; /* another rank's place, or our own where there is no other */
    REFUSED(HOCCL_Alltoall(in, in, 4, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Alltoall(in + 1, in, 4, HOCCL_BYTE, WORLD, stream));
    if (size > 1) {
        REFUSED(HOCCL_AllGather(in + 4 * wrong, in, 4, HOCCL_BYTE, WORLD, stream));
        REFUSED(HOCCL_AllGather(in + 4 * rank + 1, in, 4, HOCCL_BYTE, WORLD, stream));
        REFUSED(HOCCL_AllGatherv(out, 4, in, counts, displs, HOCCL_BYTE, WORLD, stream));
        REFUSED(HOCCL_Alltoallv(out, counts, displs, in, counts, displs, HOCCL_BYTE, WORLD, stream));
        NEED(strstr(HOCCL_GetLastError(), "received from rank 0 at") && strstr(HOCCL_GetLastError(), "overlaps") &&
             strstr(HOCCL_GetLastError(), "received from rank 1 at"));
        displs[1] = SIZE_MAX;
        REFUSED(HOCCL_AllGatherv(out, 4, in, counts, displs, HOCCL_BYTE, WORLD, stream));
        NEED(strstr(HOCCL_GetLastError(), "count 4 of rank 1 at displacement 18446744073709551615"));
        displs[1] = 3;
    }
    if (rank == 0 && size > 1) {
        REFUSED(HOCCL_Gatherv(in, 4, in, counts, displs, HOCCL_BYTE, 0, WORLD, stream));
        REFUSED(HOCCL_Gather(in + 5, in, 4, HOCCL_BYTE, 0, WORLD, stream));
        REFUSED(HOCCL_Scatter(in, in + 1, 4, HOCCL_BYTE, 0, WORLD, stream));
    }
    if (rank == 0)
        REFUSED(HOCCL_Broadcast(in, in + 1, 4, HOCCL_BYTE, 0, WORLD, stream));
}

/* A range that reaches out of its allocation, and memory of the host. */
static void refuse_memory(void)
{
    static char host[64];
    if (size == 1)
        return;
    char *late = in + ROOM - size + 1;
    REFUSED(HOCCL_AllGather(late + rank, late, 1, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_AllGather(host + rank, host, 1, HOCCL_BYTE, WORLD, stream));
    REFUSED(HOCCL_Broadcast(host, host, 1, HOCCL_BYTE, 0, WORLD, stream));
    REFUSED(HOCCL_Broadcast(late, late, (size_t)size, HOCCL_BYTE, 0, WORLD, stream));
}

/* Every call with count 0 and NULL buffers succeeds; without counts to give at a rank, NULL arrays do too. */
static void accept_nothing(void)
{
    size_t zero[16] = {0};
    OK(HOCCL_AllGather(NULL, NULL, 0, HOCCL_FP32, WORLD, stream));
    OK(HOCCL_AllGatherv(NULL, 0, NULL, zero, zero, HOCCL_FP32, WORLD, stream));
    OK(HOCCL_Alltoall(NULL, NULL, 0, HOCCL_FP32, WORLD, stream));
    OK(HOCCL_Alltoallv(NULL, zero, zero, NULL, zero, zero, HOCCL_FP32, WORLD, stream));
    for (int root = 0; root < size; root++) {
        bool at = rank == root;
        OK(HOCCL_Broadcast(NULL, NULL, 0, HOCCL_FP32, root, WORLD, stream));
        OK(HOCCL_Gather(NULL, NULL, 0, HOCCL_FP32, root, WORLD, stream));
        OK(HOCCL_Scatter(NULL, NULL, 0, HOCCL_FP32, root, WORLD, stream));
        OK(HOCCL_Gatherv(NULL, 0, NULL, at ? zero : NULL, at ? zero : NULL, HOCCL_FP32, root, WORLD, stream));
        OK(HOCCL_Scatterv(NULL, at ? zero : NULL, at ? zero : NULL, NULL, 0, HOCCL_FP32, root, WORLD, stream));
    }
    OK(rank_wait());
}

static void gather_ranks(void)
{
    memset(seen, rank, ROOM);
    rank_put(in, seen, (size_t)size);
    OK(HOCCL_AllGather(in + rank, in, 1, HOCCL_BYTE, WORLD, stream));
    OK(rank_wait());
    OK(cuMemcpyDtoH(seen, (CUdeviceptr)in, (size_t)size));
    for (int r = 0; r < size; r++)
        NEED(seen[r] == r);
}

/* A failing call in a group: End posts nothing, a collective before it takes no number. */
static void refuse_in_group(void)
{
    OK(HOCCL_GroupStart());
    OK(HOCCL_AllGather(in + rank, in, 1, HOCCL_BYTE, WORLD, stream));
    if (rank == 0)
        REFUSED(HOCCL_Broadcast(in, out, 1, HOCCL_BYTE, size, WORLD, stream));
    else
        NEED(HOCCL_AllGather(NULL, in, 1, HOCCL_BYTE, WORLD, stream) == HOCCL_ERR_ARGUMENT);
    NEED(HOCCL_GroupEnd() == HOCCL_ERR_ARGUMENT);
    gather_ranks();
}

/* Displacements beyond 4 GiB (B16); the memory between is never touched. */
static void far_apart(void)
{
    const size_t far = ((size_t)1 << 32) + 5;
    size_t counts[16], displs[16];
    CUdeviceptr from, to;
    OK(cuMemAlloc(&from, far + 16 * 1024));
    OK(cuMemAlloc(&to, far + 16 * 1024));
    for (int r = 0; r < size; r++) {
        counts[r] = 1000;
        displs[r] = far + 1024 * (size_t)r;
        memset(seen, 16 * rank + r, 1000);
        rank_put((void *)(from + displs[r]), seen, 1000);
    }
    OK(HOCCL_Alltoallv((void *)from, counts, displs, (void *)to, counts, displs, HOCCL_BYTE, WORLD, stream));
    OK(rank_wait());
    for (int r = 0; r < size; r++) {
        OK(cuMemcpyDtoH(seen, to + displs[r], 1000));
        for (int i = 0; i < 1000; i++)
            NEED(seen[i] == 16 * r + rank);
    }
    OK(cuMemFree(from));
    OK(cuMemFree(to));
}

static void arguments(void)
{
    refuse_counts();
    refuse_pointers();
    refuse_roots();
    refuse_overlaps();
    refuse_memory();
    accept_nothing();
    gather_ranks();
    refuse_in_group();
    accept_nothing();
    far_apart();
}

/* ---- ranks that disagree ----------------------------------------------------------------------------------------- */

static HOCCL_Result messages(size_t send, size_t receive)
{
    OK(HOCCL_GroupStart());
    for (int r = 0; r < size; r++)
        if (r != rank) {
            OK(HOCCL_Send(out, send, HOCCL_BYTE, r, WORLD, stream));
            OK(HOCCL_Recv(in + (size_t)r * 1024, receive, HOCCL_BYTE, r, WORLD, stream));
        }
    return HOCCL_GroupEnd();
}

/* Rank 1's row for rank 0 is `sent`, and rank 0 expects `expected`. */
static HOCCL_Result rows(size_t sent, size_t expected)
{
    size_t s[16], r[16], d[16];
    for (size_t p = 0; p < 16; p++) {
        s[p] = r[p] = p == (size_t)rank ? 0 : 100;
        d[p] = 1024 * p;
    }
    if (rank == 1)
        s[0] = sent;
    if (rank == 0)
        r[1] = expected;
    return HOCCL_Alltoallv(out, s, d, in, r, d, HOCCL_BYTE, WORLD, stream);
}

static HOCCL_Result gather_all(size_t count)
{
    return HOCCL_AllGather(in + (size_t)rank * count, in, count, HOCCL_BYTE, WORLD, stream);
}

static HOCCL_Result other_order(void)
{
    HOCCL_Result r = rank == 1 ? rows(100, 100) : gather_all(100);
    return r ? r : rank == 1 ? gather_all(100) : rows(100, 100);
}

static HOCCL_Result broadcast(size_t count, int root)
{
    return HOCCL_Broadcast(in, in, count, HOCCL_BYTE, root, WORLD, stream);
}

static HOCCL_Result gather(int root)
{
    return HOCCL_Gather(in + rank, in, 1, HOCCL_BYTE, root, WORLD, stream);
}

static HOCCL_Result scatter(int root)
{
    return HOCCL_Scatter(in, rank == root ? in + rank : in, 1, HOCCL_BYTE, root, WORLD, stream);
}

/* A case: what to do, and two texts that both ends must say. */
struct differing {
    const char *name;
    HOCCL_Result (*run)(void);
    const char *here, *there;
};

static HOCCL_Result message_999(void)
{
    return messages(1000, rank == 1 ? 999 : 1000);
}
static HOCCL_Result message_20(void)
{
    return messages(10, rank == 1 ? 20 : 10);
}
static HOCCL_Result message_none(void)
{
    return messages(10, rank == 1 ? 0 : 10);
}
static HOCCL_Result row(void)
{
    return rows(101, 99);
}
static HOCCL_Result row_none(void)
{
    return rows(0, 77);
}
static HOCCL_Result allgather_count(void)
{
    return gather_all(rank == 1 ? 7 : 8);
}
static HOCCL_Result broadcast_count(void)
{
    return broadcast(rank == 1 ? 7 : 8, 0);
}
static HOCCL_Result broadcast_root(void)
{
    return broadcast(8, rank == 1);
}
static HOCCL_Result broadcast_root_none(void)
{
    return broadcast(0, rank == 1);
}
static HOCCL_Result gather_root(void)
{
    return gather(rank == 1);
}
static HOCCL_Result scatter_root(void)
{
    return scatter(rank == 1);
}
static HOCCL_Result one_more(void)
{
    HOCCL_Result r = gather_all(8);
    return r ? r : rank == 1 ? messages(8, 8) : gather_all(8);
}
static HOCCL_Result gather_scatter(void)
{
    return rank == 1 ? scatter(0) : gather(0);
}

static const struct differing cases[] = {
    {"message-999", message_999, "1000 bytes", "999 bytes"},
    {"message-20", message_20, "10 bytes", "20 bytes"},
    {"message-none", message_none, "10 bytes", " 0 bytes"},
    {"row", row, "101 bytes", "99 bytes"},
    {"row-none", row_none, " 0 bytes", "77 bytes"},
    {"allgather-count", allgather_count, "7 bytes", "8 bytes"},
    {"broadcast-count", broadcast_count, "7 bytes", "8 bytes"},
    {"broadcast-root", broadcast_root, "root 0", "root 1"},
    {"broadcast-root-none", broadcast_root_none, "root 0", "root 1"},
    {"gather-root", gather_root, "root 0", "root 1"},
    {"scatter-root", scatter_root, "root 0", "root 1"},
    {"order", other_order, "AllGather (collective 1)", "Alltoall (collective 1)"},
    {"one-more", one_more, "AllGather (collective 2)", "Send/Recv"},
    {"gather-scatter", gather_scatter, "Gather (collective 1)", "Scatter (collective 1)"},
};

/* Ranks 0 and 1 leave word in the job's folder that they have reported; who is no party to it stays until both have, for
 * a rank that finalises early is a fault of its own, which they would report. */
static void wait_for_reports(const char *name)
{
    for (int party = 0; party < 2; party++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.%d", getenv("TMPDIR"), name, party);
        if (rank == party)
            NEED(creat(path, 0600) >= 0);
        for (int i = 0; rank > 1 && access(path, F_OK); i++) {
            NEED(i < 3000);
            usleep(10000);
        }
    }
}

/* Ranks 0 and 1 disagree. Among two, both report it; with more, a rank may hear of it from another first. One that is no
 * party to it may have got all it was waiting for, or find the others gone. */
static void disagree(const struct differing *c)
{
    HOCCL_Result error;
    memset(seen, GUARD, ROOM);
    rank_put(in, seen, ROOM);
    error = c->run();
    if (!error)
        error = rank_wait();
    NEED(error == HOCCL_ERR_MISMATCH || (size > 2 && error == HOCCL_ERR_PEER) || (rank > 1 && !error));
    wait_for_reports(c->name);
    if (!error || (rank > 1 && error == HOCCL_ERR_PEER))
        return;
    NEED(strstr(HOCCL_GetLastError(), c->here) && strstr(HOCCL_GetLastError(), c->there));
    printf("rank %d: %s\n", rank, HOCCL_GetLastError());
    NEED(gather_all(8) == error); /* it stays */
    OK(HOCCL_CommAbort(WORLD));
    OK(cuMemcpyDtoH(seen, (CUdeviceptr)in, ROOM));
    for (int i = 16 * 1024 - 24; i < ROOM; i++)
        NEED(seen[i] == GUARD);
    for (int r = 0; r < 16; r++) /* no message, right or wrong, is longer than 1000 bytes; wrong ones wrote nothing */
        for (int i = 1000; i < 1024; i++)
            NEED(seen[1024 * r + i] == GUARD);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "arguments";
    CUcontext context;
    rank_open();
    NEED(size <= 16);
    OK(cuDevicePrimaryCtxRetain(&context, rank_device())); /* HOCCL_CommAbort gives up what HOCCL_Init has made */
    OK(cuMemAlloc((CUdeviceptr *)&out, ROOM));
    OK(cuMemAlloc((CUdeviceptr *)&in, ROOM));
    if (!strcmp(name, "arguments")) {
        arguments();
        rank_close();
        return 0;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(name, cases[i].name)) {
            HOCCL_Result r;
            disagree(&cases[i]);
            r = HOCCL_Finalize();
            return r && r != HOCCL_ERR_MISMATCH && r != HOCCL_ERR_PEER;
        }
    fprintf(stderr, "no case is called %s\n", name);
    return 2;
}
