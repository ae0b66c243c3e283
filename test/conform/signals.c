/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals are the application's: none is taken by a thread of the library, and a timer that interrupts every system call again
 * and again, as a profiler's does, disturbs nothing.
 */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { RANKS = 8, STAGED = 3 << 20, PERIOD = 200000 /* ns */ };

static int taken, stolen; /* set by the handler, in any thread */

static void handle(int signal)
{
    char name[17] = "";

    (void)signal;
    prctl(PR_GET_NAME, name);
    __atomic_store_n(&taken, 1, __ATOMIC_RELAXED);
    if (!strncmp(name, "hoccl-", 6))
        __atomic_store_n(&stolen, 1, __ATOMIC_RELAXED);
}

/* In this thread, and in those that it makes from now on. */
static void mask(int how)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(how, &set, NULL);
}

/* Pinned host memory at both ends, so that the library's threads reserve and register their own. */
static void exchange_host(struct rank *r, HOCCL_Comm comm)
{
    HOCCL_Result error = HOCCL_SUCCESS;
    unsigned char *out = NULL, *in = NULL;
    CUstream stream;

    if (!RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) || !RANK_CUDA(r, cuMemAllocHost((void **)&out, STAGED)) ||
        !RANK_CUDA(r, cuMemAllocHost((void **)&in, STAGED)))
        return;
    memset(out, r->rank + 1, STAGED);
    RANK_OK(r, HOCCL_GroupStart());
    RANK_OK(r, HOCCL_Send(out, STAGED, HOCCL_BYTE, (r->rank + 1) % r->size, comm, stream));
    RANK_OK(r, HOCCL_Recv(in, STAGED, HOCCL_BYTE, (r->rank + r->size - 1) % r->size, comm, stream));
    RANK_OK(r, HOCCL_GroupEnd());
    RANK_CUDA(r, cuStreamSynchronize(stream));
    RANK_OK(r, HOCCL_CommGetAsyncError(comm, &error));
    RANK_OK(r, error);
    RANK_TRUE(r, in[0] == (r->rank + r->size - 1) % r->size + 1 && !memcmp(in, in + 1, STAGED - 1));
}

/* The threads of a communicator that is made while its maker takes signals, and then leaves them to others. */
static void leave_to_others(struct rank *r)
{
    mask(SIG_UNBLOCK);
    if (!RANK_OK(r, HOCCL_CommInitRank(&r->comm, r->size, r->id, r->rank)))
        return;
    mask(SIG_BLOCK);
    exchange_host(r, r->comm);
    rank_exchange(r, r->comm, 1 << 20, 1);
}

static void be_interrupted(struct rank *r)
{
    HOCCL_Comm comm = HOCCL_COMM_NULL;

    mask(SIG_UNBLOCK);
    if (!RANK_OK(r, HOCCL_CommInitRank(&r->comm, r->size, r->id, r->rank)))
        return;
    for (int i = 0; i < 3 && !r->failed; i++) {
        if (!RANK_OK(r, HOCCL_CommSplit(r->comm, 0, -r->rank, &comm)))
            return;
        rank_exchange(r, comm, 1 << 18, (unsigned)i);
        RANK_OK(r, HOCCL_CommDestroy(comm));
    }
    exchange_host(r, r->comm);
}

/* A body while a timer sends this process signals; the test's own thread takes none. */
static void run_with_timer(int ranks, void (*body)(struct rank *))
{
    struct sigaction action = {.sa_handler = handle};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    struct itimerspec often = {{0, PERIOD}, {0, PERIOD}};
    timer_t timer;

    __atomic_store_n(&taken, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&stolen, 0, __ATOMIC_RELAXED);
    sigaction(SIGUSR2, &action, NULL);
    mask(SIG_BLOCK);
    assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    assert_int_equal(timer_settime(timer, 0, &often, NULL), 0);
    ranks_run_bare(ranks, body, NULL);
    timer_delete(timer);
    assert_true(__atomic_load_n(&taken, __ATOMIC_RELAXED));
    assert_false(__atomic_load_n(&stolen, __ATOMIC_RELAXED));
}

static void test_left_alone(void **state)
{
    (void)state;
    run_with_timer(2, leave_to_others);
}

static void test_interrupted(void **state)
{
    (void)state;
    run_with_timer(RANKS, be_interrupted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_alone),
        cmocka_unit_test(test_interrupted),
    };

    ranks_environment(RANKS);
    return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
