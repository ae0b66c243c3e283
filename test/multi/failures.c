/* SPDX-License-Identifier: Apache-2.0 */
/* Bad weather: what goes wrong after a call has been accepted. Each case ends the communicator, so each is a job of its own.
 *
 *   mismatch A B  rank 0 sends A bytes and rank 1 receives B: both ends report both, nothing is written past the receive,
 *                 every stream of both goes on, the error stays until abort. A third rank that waits is told who failed.
 *   patience      HOCCL_WAIT_TIMEOUT: a peer that never posts, for a send and for a receive
 *   parked        one stream more than may wait at once: an error after HOCCL_TIMEOUT, and success once one is released
 *   crowded       a call waits for room for its stream, and its communicator is aborted
 *   abort         with operations pending on all ranks, from another thread, within 2 s
 *   alone         the same while the peer is idle: it learns of it at its next operation
 *   full          a thread is blocked in an enqueue because its stream's queue is full: another thread's call is refused,
 *                 and an abort sets it free
 *   blocking      HOCCL_BLOCKING: a call that waits for its peer ends with its communicator's abort, and gives what the peer gets
 *
 * usage: mpirun -np N failures CASE [A B] */
#include "kit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES 4096
#define ABORT_LIMIT 2.0

static size_t sent, received;

/* The abort succeeds in time and leaves nothing to call. */
static void give_up(void)
{
    double begun = now();
    check_hoccl(HOCCL_CommAbort(HOCCL_COMM_WORLD), "HOCCL_CommAbort");
    if (now() - begun > ABORT_LIMIT)
        fail("HOCCL_CommAbort took %.2f s", now() - begun);
    kit_expect(kit_send(0, 0, 0, NULL), HOCCL_ERR_ARGUMENT, "aborted", "a send after the abort");
    kit_expect(HOCCL_CommAbort(HOCCL_COMM_WORLD), HOCCL_ERR_ARGUMENT, "aborted", "a second abort");
}

/* Wait until the communicator has an error, at most `seconds`: its result, its text becomes the thread's. */
static HOCCL_Result error_within(double seconds)
{
    double begun = now();
    HOCCL_Result e;
    while (!(e = kit_async_error()))
        if (now() - begun > seconds)
            fail("no error after %.1f s", seconds);
        else
            usleep(1000);
    return e;
}

static void expect_words(HOCCL_Result got, HOCCL_Result want, const char *first, const char *second, const char *what)
{
    kit_expect(got, want, first, what);
    kit_expect(got, want, second, what);
}

/* ---- mismatch ---------------------------------------------------------------------------------------------------- */

static void the_ends(CUstream s, CUstream others[4])
{
    size_t most = sent > received ? sent : received;
    CUdeviceptr p = kit_guarded(received), q = kit_memory(most + 1);
    char first[64], second[64], text[512];
    int peer = 1 - job.rank;
    /* The one that disagrees waits on its stream until what else waits has been posted: a group over two streams and
     * receives that nobody sends, from this rank, the same peer and the third. */
    check_hoccl(kit_recv(q, 1, job.rank, s), "a receive from itself");
    if (job.rank == 0)
        check_hoccl(kit_send(q, sent, peer, s), "HOCCL_Send");
    else
        check_hoccl(kit_recv(p, received, peer, s), "HOCCL_Recv");
    check_hoccl(kit_recv(q, 1, peer, others[0]), "a receive that nobody sends");
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(kit_recv(q, 1, peer, others[1]), "a receive that nobody sends");
    check_hoccl(kit_recv(q, 1, job.size - 1, others[2]), "a receive that nobody sends");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    usleep(50000);
    check_hoccl(kit_send(q, 1, job.rank, others[3]), "a send to itself");
    HOCCL_Result e = error_within(20);
    snprintf(first, sizeof first, "this rank %s %zu bytes", job.rank ? "expects" : "sends", job.rank ? received : sent);
    snprintf(second, sizeof second, "the peer %s %zu bytes", job.rank ? "sends" : "expects", job.rank ? sent : received);
    expect_words(e, HOCCL_ERR_MISMATCH, first, second, "the sticky error");
    snprintf(text, sizeof text, "%s", HOCCL_GetLastError());
    check_cuda(cuStreamSynchronize(s), "the stream of the mismatch");
    for (int i = 0; i < 4; i++)
        check_cuda(cuStreamSynchronize(others[i]), "another stream");
    if (job.rank == 1)
        kit_guards(p, received, "a mismatched receive");
    for (int i = 0; i < 3; i++) {
        expect_words(kit_send(q, 1, peer, s), HOCCL_ERR_MISMATCH, text, "HOCCL_Send", "a later send");
        expect_words(kit_recv(q, 1, peer, others[0]), HOCCL_ERR_MISMATCH, text, "HOCCL_Recv", "a later receive");
        expect_words(kit_async_error(), HOCCL_ERR_MISMATCH, text, "", "a later query");
    }
    if (job.rank == 1)
        kit_guards(p, received, "a mismatched receive, later");
}

/* Waits for either of the two that disagree. */
static void the_third(CUstream s)
{
    CUdeviceptr p = kit_memory(BYTES);
    char name[64];
    check_hoccl(kit_recv(p, BYTES, 0, s), "HOCCL_Recv");
    HOCCL_Result e = error_within(20);
    expect_words(e, HOCCL_ERR_PEER, "rank 0 has failed", "must give the same bytes", "the third rank");
    snprintf(name, sizeof name, "%zu bytes", sent);
    kit_expect(e, HOCCL_ERR_PEER, name, "the third rank");
    check_cuda(cuStreamSynchronize(s), "the third rank's stream");
}

static void case_mismatch(void)
{
    CUstream s = kit_stream(), others[4] = {kit_stream(), kit_stream(), kit_stream(), kit_stream()};
    kit_exchange("at first");
    if (job.rank < 2)
        the_ends(s, others);
    else
        the_third(s);
    give_up();
}

/* ---- patience ---------------------------------------------------------------------------------------------------- */

/* Rank 0 sends and rank 1 receives, both of rank 2, which never comes. */
static void case_patience(void)
{
    CUstream s = kit_stream();
    CUdeviceptr p = kit_memory(BYTES);
    kit_exchange("at first");
    if (job.rank < 2) {
        double begun = now();
        check_hoccl(job.rank ? kit_recv(p, BYTES, 2, s) : kit_send(p, BYTES, 2, s), "an operation with rank 2");
        expect_words(error_within(20), HOCCL_ERR_TIMEOUT, "rank 2", "HOCCL_WAIT_TIMEOUT", "a peer that never posts");
        if (now() - begun < 2)
            fail("the error came after %.2f s already", now() - begun);
        check_cuda(cuStreamSynchronize(s), "the stream");
        kit_tell(job.rank ? "one" : "zero");
    } else {
        kit_hear("zero");
        kit_hear("one");
        check_hoccl(kit_async_error(), "the rank that never posted"); /* nothing of its own has failed */
    }
    give_up();
}

/* ---- parked ------------------------------------------------------------------------------------------------------ */

#define MOST 31

static void case_parked(void)
{
    CUstream s[MOST + 1];
    CUdeviceptr p[MOST + 1];
    for (int i = 0; i <= MOST; i++) {
        s[i] = kit_stream();
        p[i] = kit_guarded(BYTES);
    }
    kit_exchange("at first");
    if (job.rank == 0) {
        for (int i = 0; i < MOST; i++)
            check_hoccl(kit_recv(p[i], BYTES, 1, s[i]), "a receive that parks");
        double begun = now();
        HOCCL_Result r = kit_recv(p[MOST], BYTES, 1, s[MOST]);
        double took = now() - begun;
        expect_words(r, HOCCL_ERR_USAGE, "31 streams", "HOCCL_TIMEOUT", "one stream too many");
        if (took < 1 || took > 10)
            fail("one stream too many was refused after %.2f s, with HOCCL_TIMEOUT=2", took);
        check_hoccl(kit_async_error(), "one stream too many");
        check_hoccl(kit_recv(p[0], BYTES, 1, s[0]), "a stream that is parked already");
        kit_tell("go");
        check_hoccl(kit_recv(p[MOST], BYTES, 1, s[MOST]), "the stream too many, once another is released");
        for (int i = 0; i <= MOST; i++) {
            kit_sync(s[i], "a parked stream");
            kit_verify(p[i], BYTES, (struct message){1, 0, i ? (unsigned)i : MOST}, "a parked receive");
            kit_guards(p[i], BYTES, "a parked receive");
        }
    } else {
        kit_hear("go");
        /* The second message to the first buffer was posted between the last two. */
        for (unsigned i = 0; i <= MOST + 1; i++) {
            unsigned number = i <= MOST ? i : MOST;
            pattern_fill(p[1], BYTES, (struct message){1, 0, number});
            check_hoccl(kit_send(p[1], BYTES, 0, s[1]), "a send");
            kit_sync(s[1], "a send");
        }
    }
    kit_exchange("at last");
    kit_close();
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */

static void *abort_now(void *arg)
{
    double *took = arg, begun = now();
    check_hoccl(HOCCL_CommAbort(HOCCL_COMM_WORLD), "HOCCL_CommAbort from another thread");
    *took = now() - begun;
    return NULL;
}

static void abort_by_thread(void)
{
    pthread_t t;
    double took = 0;
    if (pthread_create(&t, NULL, abort_now, &took))
        fail("no thread");
    pthread_join(t, NULL);
    if (took > ABORT_LIMIT)
        fail("the abort took %.2f s", took);
}

static void case_abort(void)
{
    CUstream s[6];
    CUdeviceptr p = kit_memory(BYTES);
    int peer = (job.rank + 1) % job.size;
    for (int i = 0; i < 6; i++)
        s[i] = kit_stream();
    kit_exchange("at first");
    for (int i = 0; i < 2; i++)
        check_hoccl(kit_recv(p, BYTES, peer, s[i]), "a receive that nobody sends");
    check_hoccl(kit_recv(p, BYTES, job.rank, s[2]), "a receive from itself");
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(kit_recv(p, 8, peer, s[3]), "a group over two streams");
    check_hoccl(kit_recv(p, 8, peer, s[4]), "a group over two streams");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    usleep(50000);
    abort_by_thread();
    for (int i = 0; i < 6; i++)
        check_cuda(cuStreamSynchronize(s[i]), "a stream after the abort");
    kit_expect(kit_send(p, 1, peer, s[5]), HOCCL_ERR_ARGUMENT, "aborted", "a send after the abort");
}

static void case_alone(void)
{
    CUstream s = kit_stream();
    CUdeviceptr p = kit_memory(BYTES);
    kit_exchange("at first");
    if (job.rank == 0) {
        check_hoccl(kit_recv(p, BYTES, 1, s), "a receive that nobody sends");
        usleep(50000);
        abort_by_thread();
        check_cuda(cuStreamSynchronize(s), "the stream after the abort");
        kit_tell("aborted");
    } else {
        kit_hear("aborted");
        check_hoccl(kit_async_error(), "an idle rank");
        check_hoccl(kit_send(p, BYTES, 0, s), "the send that comes too late");
        expect_words(error_within(20), HOCCL_ERR_PEER, "rank 0", "aborted", "the send that comes too late");
        check_cuda(cuStreamSynchronize(s), "its stream");
        give_up();
    }
}

/* ---- crowded ----------------------------------------------------------------------------------------------------- */

struct call {
    HOCCL_Comm comm;
    CUcontext context;
    CUdeviceptr memory;
    CUstream stream;
    HOCCL_Result result;
    char text[512];
};

static void *receive_in(void *arg)
{
    struct call *c = arg;
    check_cuda(cuCtxSetCurrent(c->context), "cuCtxSetCurrent");
    c->result = HOCCL_Recv(kit_pointer(c->memory), 8, HOCCL_BYTE, 0, c->comm, c->stream);
    snprintf(c->text, sizeof c->text, "%s", HOCCL_GetLastError());
    return NULL;
}

/* Every stream that may wait does so in one communicator; a call of another waits for room, and that one is aborted. */
static void case_crowded(void)
{
    struct call c = {.memory = kit_memory(8), .stream = kit_stream()};
    CUstream s[MOST];
    pthread_t t;
    check_cuda(cuCtxGetCurrent(&c.context), "cuCtxGetCurrent");
    check_hoccl(HOCCL_CommSplit(HOCCL_COMM_WORLD, 0, 0, &c.comm), "HOCCL_CommSplit");
    for (int i = 0; i < MOST; i++) {
        s[i] = kit_stream();
        check_hoccl(kit_recv(c.memory, 8, job.rank, s[i]), "a receive that nobody sends");
    }
    if (pthread_create(&t, NULL, receive_in, &c))
        fail("no thread");
    usleep(200000);
    double begun = now();
    check_hoccl(HOCCL_CommAbort(c.comm), "the abort of a communicator in which a call waits for room");
    if (now() - begun > ABORT_LIMIT)
        fail("the abort took %.2f s", now() - begun);
    pthread_join(t, NULL);
    if (c.result != HOCCL_ERR_USAGE || !strstr(c.text, "aborted"))
        fail("the call that waited for room: %s: %s", HOCCL_GetErrorString(c.result), c.text);
    check_hoccl(kit_async_error(), "the other communicator");
    for (int i = 0; i < MOST; i++)
        if (cuStreamQuery(s[i]) != CUDA_ERROR_NOT_READY)
            fail("a stream of the other communicator has gone on");
    give_up();
}

/* ---- full -------------------------------------------------------------------------------------------------------- */

static uint32_t posted;
static CUcontext context;
static HOCCL_Result last;
static char last_text[512];

static void *post_until_refused(void *arg)
{
    CUstream s = arg;
    check_cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    CUdeviceptr p = kit_memory(8);
    while (!(last = kit_send(p, 8, 1, s)))
        __atomic_add_fetch(&posted, 1, __ATOMIC_RELAXED);
    snprintf(last_text, sizeof last_text, "%s", HOCCL_GetLastError());
    return NULL;
}

/* The number posted has not changed for half a second: the thread is blocked. */
static uint32_t wait_until_blocked(void)
{
    uint32_t before = 0, same = 0;
    while (same < 10) {
        usleep(50000);
        uint32_t n = __atomic_load_n(&posted, __ATOMIC_RELAXED);
        same = n && n == before ? same + 1 : 0;
        before = n;
        if (n > 5000)
            fail("the queue of a parked stream took %u operations", n);
    }
    return before;
}

static void case_full(void)
{
    CUstream s = kit_stream(), other = kit_stream();
    CUdeviceptr p = kit_memory(8);
    pthread_t t;
    kit_exchange("at first");
    check_cuda(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    if (job.rank == 1) {
        kit_hear("aborted");
        give_up();
        return;
    }
    if (pthread_create(&t, NULL, post_until_refused, s))
        fail("no thread");
    uint32_t n = wait_until_blocked();
    kit_expect(kit_send(p, 8, 1, other), HOCCL_ERR_USAGE, "another thread", "a call while another is blocked");
    check_hoccl(kit_async_error(), "a query while a call is blocked");
    abort_by_thread();
    kit_tell("aborted");
    pthread_join(t, NULL);
    if (last != HOCCL_ERR_ARGUMENT)
        fail("the blocked thread's last call returned \"%s\": %s", HOCCL_GetErrorString(last), last_text);
    check_cuda(cuStreamSynchronize(s), "the full stream after the abort");
    printf("failures: blocked after %u operations, set free by the abort, then: %s\n", n, last_text);
}

/* Rank 1 waits in a call for a message, and gives up; the send that comes too late fails in its call. */
static void case_blocking(void)
{
    struct call c = {.comm = HOCCL_COMM_WORLD, .memory = kit_memory(8), .stream = kit_stream(), .result = HOCCL_ERR_INTERNAL};
    pthread_t t;
    kit_exchange("at first");
    check_cuda(cuCtxGetCurrent(&c.context), "cuCtxGetCurrent");
    if (job.rank == 0) {
        kit_hear("aborted");
        expect_words(kit_send(c.memory, 8, 1, c.stream), HOCCL_ERR_PEER, "rank 1", "aborted", "the send that comes too late");
        give_up();
        return;
    }
    if (pthread_create(&t, NULL, receive_in, &c))
        fail("no thread");
    usleep(200000);
    kit_expect(kit_send(c.memory, 8, 0, c.stream), HOCCL_ERR_USAGE, "another thread", "a call while another waits");
    abort_by_thread();
    pthread_join(t, NULL);
    if (c.result != HOCCL_ERR_USAGE || !strstr(c.text, "aborted"))
        fail("the call that waited returned \"%s\": %s", HOCCL_GetErrorString(c.result), c.text);
    kit_tell("aborted");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
        int ranks; /* 0: any */
    } cases[] = {{"mismatch", case_mismatch, 0}, {"patience", case_patience, 3}, {"parked", case_parked, 2},
                 {"crowded", case_crowded, 0}, {"abort", case_abort, 0},       {"alone", case_alone, 2},       {"full", case_full, 2},
                 {"blocking", case_blocking, 2}};
    const char *name = argc > 1 ? argv[1] : "";
    if (argc > 3) {
        sent = size_parse(argv[2]);
        received = size_parse(argv[3]);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(name, cases[i].name))
            continue;
        kit_open(60, name);
        if (cases[i].ranks && job.size != cases[i].ranks)
            fail("%s is for %d ranks", name, cases[i].ranks);
        cases[i].run();
        if (strcmp(name, "parked"))
            check_hoccl(HOCCL_Finalize(), "HOCCL_Finalize");
        if (!job.rank)
            printf("failures: %s%s%s%s%s: right\n", name, argc > 3 ? " " : "", argc > 3 ? argv[2] : "", argc > 3 ? " and " : "",
                   argc > 3 ? argv[3] : "");
        return 0;
    }
    fprintf(stderr, "usage: mpirun -np N failures mismatch A B|patience|parked|crowded|abort|alone|full|blocking\n");
    return 2;
}
