/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a unique id find one another, and every way in which they do not: a rank that is missing, comes twice,
 * has another idea of the number of ranks, has no GPU, vanishes half-way; strangers at the listener. Also ranks in several
 * processes: this program runs itself again. HOCCL_INIT_TIMEOUT is 4 s.
 */
#include "ranks.h"

#include "boot/tcp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void ok(HOCCL_Result result)
{
    if (result)
        fail_msg("%s: %s", HOCCL_GetErrorString(result), HOCCL_GetLastError());
}

/* ---- wrong arguments --------------------------------------------------------------------------------------------------- */

static void refused(HOCCL_Result result, const char *words)
{
    assert_int_equal(result, HOCCL_ERR_ARGUMENT);
    if (!strstr(HOCCL_GetLastError(), words))
        fail_msg("\"%s\" does not say \"%s\"", HOCCL_GetLastError(), words);
}

static void test_arguments(void **state)
{
    HOCCL_Comm comm = HOCCL_COMM_NULL;
    HOCCL_UniqueId id, zero = {{0}};

    (void)state;
    refused(HOCCL_GetUniqueId(NULL), "NULL");
    ok(HOCCL_GetUniqueId(&id));
    refused(HOCCL_CommInitRank(NULL, 1, id, 0), "NULL");
    refused(HOCCL_CommInitRank(&comm, 0, id, 0), "0 ranks");
    refused(HOCCL_CommInitRank(&comm, -1, id, 0), "-1 ranks");
    refused(HOCCL_CommInitRank(&comm, 2, id, 2), "rank 2");
    refused(HOCCL_CommInitRank(&comm, 2, id, -1), "rank -1");
    refused(HOCCL_CommInitRank(&comm, 2, zero, 0), "HOCCL_GetUniqueId");
    id.internal[sizeof id.internal - 1] ^= 1;
    refused(HOCCL_CommInitRank(&comm, 2, id, 0), "HOCCL_GetUniqueId");
    id.internal[sizeof id.internal - 1] ^= 1;
    id.internal[30] ^= 4;
    refused(HOCCL_CommInitRank(&comm, 2, id, 0), "HOCCL_GetUniqueId");
    assert_null(comm);
}

/* ---- ranks that do not come together ------------------------------------------------------------------------------------- */

/* What each rank claims to be, and what all must hear. */
struct claim {
    int size[8], rank[8]; /* by thread; size 0: does not come */
    const char *words;
    double longest;
};

static void body_claim(struct rank *r)
{
    const struct claim *c = r->arg;
    double begun = now();

    if (!c->size[r->rank])
        return;
    RANK_FAILS(r, HOCCL_CommInitRank(&r->comm, c->size[r->rank], r->id, c->rank[r->rank]), HOCCL_ERR_BOOTSTRAP, c->words);
    RANK_TRUE(r, r->comm == HOCCL_COMM_NULL);
    RANK_TRUE(r, now() - begun < c->longest);
}

static void claims(int threads, const struct claim *c)
{
    int descriptors = 0, threads_before = 0;

    ranks_hold(&descriptors, &threads_before);
    ranks_run_bare(threads, body_claim, (void *)c);
    if (!ranks_settle(descriptors, threads_before)) /* a failed exchange is remembered for 5 s for late ranks */
        assert_true(ranks_settle(descriptors, threads_before));
}

static void test_missing(void **state)
{
    const struct claim c = {.size = {4, 4, 0, 0}, .rank = {0, 2}, .words = "rank 1, 3 of 4 did not call", .longest = 7};

    (void)state;
    claims(4, &c);
}

static void test_twice(void **state)
{
    const struct claim c = {.size = {3, 3, 3}, .rank = {0, 1, 1}, .words = "rank 1 has come twice", .longest = 3};

    (void)state;
    claims(3, &c);
}

static void test_sizes_differ(void **state)
{
    const struct claim c = {.size = {2, 3}, .rank = {0, 1}, .words = "the same nranks", .longest = 3};

    (void)state;
    claims(2, &c);
}

static void body_late(struct rank *r)
{
    usleep(300000u * (unsigned)r->rank);
    RANK_FAILS(r, HOCCL_CommInitRank(&r->comm, r->rank == 1 ? 4 : 3, r->id, r->rank), HOCCL_ERR_BOOTSTRAP, "nranks");
}

/* Rank 2 comes when the exchange has failed already: it hears why, and does not wait. */
static void test_late(void **state)
{
    (void)state;
    ranks_run_bare(3, body_late, NULL);
}

static void body_again(struct rank *r)
{
    HOCCL_Comm again = HOCCL_COMM_NULL;
    double begun;

    if (!RANK_OK(r, HOCCL_CommInitRank(&r->comm, r->size, r->id, r->rank)) || !rank_exchange(r, r->comm, 100, 1))
        return;
    usleep(300000);
    begun = now();
    RANK_FAILS(r, HOCCL_CommInitRank(&again, r->size, r->id, r->rank), HOCCL_ERR_BOOTSTRAP, "used already");
    RANK_TRUE(r, now() - begun < 3);
}

/* An id serves once; then nobody waits in vain. */
static void test_again(void **state)
{
    (void)state;
    ranks_run_bare(2, body_again, NULL);
}

static void body_same_gpu(struct rank *r)
{
    CUcontext first = NULL;
    int device = -1;

    RANK_CUDA(r, cuDevicePrimaryCtxRetain(&first, 0));
    cuCtxSetCurrent(first);
    if (RANK_OK(r, HOCCL_CommInitRank(&r->comm, r->size, r->id, r->rank)) && RANK_OK(r, HOCCL_CommDevice(r->comm, &device)))
        rank_exchange(r, r->comm, 30000, 1);
    RANK_TRUE(r, device == 0);
    if (r->comm)
        RANK_OK(r, HOCCL_CommDestroy(r->comm));
    r->comm = HOCCL_COMM_NULL;
    cuDevicePrimaryCtxRelease(0);
}

static void test_same_gpu(void **state)
{
    (void)state;
    ranks_run_bare(2, body_same_gpu, NULL);
}

/* ---- strangers ------------------------------------------------------------------------------------------------------------ */

static int call_listener(const HOCCL_UniqueId *public)
{
    struct hoccl_id id;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(&id, public, sizeof id);
    a.sin_port = htons(id.port);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void body_id(struct rank *r)
{
    const HOCCL_UniqueId *id = r->arg;
    double begun = now();

    if (RANK_OK(r, HOCCL_CommInitRank(&r->comm, r->size, *id, r->rank)))
        rank_exchange(r, r->comm, 1000, 1);
    RANK_TRUE(r, now() - begun < 3);
}

/* Garbage, an HTTP request, half a hello, a hello with a wrong secret, silence, a hang-up: the ranks meet all the same. */
static void test_strangers(void **state)
{
    struct hoccl_tcp_hello hello = {.magic = HOCCL_TCP_MAGIC, .version = HOCCL_TCP_VERSION, .size = 2, .bytes = 100};
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: someone who has lost the way\r\n\r\n";
    HOCCL_UniqueId id;
    int fds[200], descriptors = 0, threads = 0;
    char garbage[5000];

    (void)state;
    ranks_hold(&descriptors, &threads);
    memset(garbage, 0xa7, sizeof garbage);
    ok(HOCCL_GetUniqueId(&id));
    for (int i = 0; i < 200; i++) {
        const void *what[] = {garbage, request, &hello, &hello, NULL};
        size_t bytes[] = {sizeof garbage, sizeof request, sizeof hello / 2, sizeof hello, 0};
        fds[i] = call_listener(&id);
        if (bytes[i % 5])
            send(fds[i], what[i % 5], bytes[i % 5], MSG_NOSIGNAL);
        if (i % 7 == 0)
            shutdown(fds[i], SHUT_RDWR);
    }
    ranks_run_bare(2, body_id, &id);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
    assert_true(ranks_settle(descriptors, threads));
}

/* Who knows the secret and has another size of card is another version. */
static void body_version(struct rank *r)
{
    struct hoccl_tcp_hello hello = {.magic = HOCCL_TCP_MAGIC, .version = HOCCL_TCP_VERSION, .rank = 1, .size = 2, .bytes = 1};
    struct hoccl_id id;
    int fd;

    if (r->rank == 0) {
        RANK_FAILS(r, HOCCL_CommInitRank(&r->comm, 2, r->id, 0), HOCCL_ERR_BOOTSTRAP, "runs another version of HOCCL");
        return;
    }
    usleep(300000);
    memcpy(&id, &r->id, sizeof id);
    memcpy(hello.secret, id.secret, sizeof hello.secret);
    fd = call_listener(&r->id);
    send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    usleep(100000);
    close(fd);
}

static void test_other_version(void **state)
{
    (void)state;
    ranks_run_bare(2, body_version, NULL);
}

/* ---- processes ------------------------------------------------------------------------------------------------------------- */

static void hex(const HOCCL_UniqueId *id, char *text)
{
    for (size_t i = 0; i < sizeof *id; i++)
        sprintf(text + 2 * i, "%02x", (unsigned char)id->internal[i]);
}

static void unhex(const char *text, HOCCL_UniqueId *id)
{
    for (size_t i = 0; i < sizeof *id; i++) {
        unsigned byte = 0;
        sscanf(text + 2 * i, "%2x", &byte);
        id->internal[i] = (char)byte;
    }
}

/* The ranks `first` … of another process, with the emulator's settings if `setting` is given. */
static pid_t start_process(const HOCCL_UniqueId *id, const char *size, const char *first, const char *last, const char *setting)
{
    char text[2 * sizeof *id + 1];
    char *argv[] = {"comm_meet", text, (char *)size, (char *)first, (char *)last, NULL};
    pid_t pid = 0;

    hex(id, text);
    if (setting)
        putenv((char *)setting);
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    return pid;
}

static int status_of(pid_t pid)
{
    int status = 0;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* Two processes of two threads; this one only made the id. */
static void test_processes(void **state)
{
    HOCCL_UniqueId id;
    pid_t a, b;

    (void)state;
    ok(HOCCL_GetUniqueId(&id));
    a = start_process(&id, "4", "0", "1", NULL);
    b = start_process(&id, "4", "2", "3", NULL);
    assert_int_equal(status_of(a), 0);
    assert_int_equal(status_of(b), 0);
}

static void body_hears(struct rank *r)
{
    const struct claim *c = r->arg;
    double begun = now();

    RANK_FAILS(r, HOCCL_CommInitRank(&r->comm, c->size[0], r->id, r->rank), HOCCL_ERR_BOOTSTRAP, c->words);
    RANK_TRUE(r, now() - begun < c->longest);
}

static pid_t started;

/* A rank without a GPU cannot start, and everyone hears why. */
static void body_no_gpu(struct rank *r)
{
    if (r->rank == 0) {
        started = start_process(&r->id, "3", "2", "2", "HOCCL_EMU_DEVICES=0");
        putenv("HOCCL_EMU_DEVICES=8");
    }
    body_hears(r);
}

static void test_no_gpu(void **state)
{
    const struct claim c = {.size = {3}, .words = "rank 2 on ", .longest = 3};

    (void)state;
    ranks_run_bare(2, body_no_gpu, (void *)&c);
    assert_int_not_equal(status_of(started), 0);
}

/* A process that dies while it waits is noticed at once. */
static void body_killed(struct rank *r)
{
    if (r->rank == 0) {
        started = start_process(&r->id, "3", "2", "2", NULL);
        usleep(700000);
        kill(started, SIGKILL);
    }
    if (r->rank == 1)
        body_hears(r);
}

static void test_killed(void **state)
{
    const struct claim c = {.size = {3}, .words = "rank 2 (", .longest = 3};

    (void)state;
    ranks_run_bare(2, body_killed, (void *)&c);
    assert_true(WIFSIGNALED(status_of(started)));
}

/* The process that made the id ends before anyone has come: nobody waits. */
static void test_maker_gone(void **state)
{
    HOCCL_UniqueId id;
    HOCCL_Comm comm = HOCCL_COMM_NULL;
    int ends[2];
    double begun;
    char end[16], *argv[] = {"comm_meet", end, NULL};
    pid_t pid = 0;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    snprintf(end, sizeof end, "%d", ends[1]);
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    assert_int_equal(status_of(pid), 0);
    assert_int_equal(read(ends[0], &id, sizeof id), sizeof id);
    close(ends[0]);
    close(ends[1]);
    begun = now();
    assert_int_equal(HOCCL_CommInitRank(&comm, 2, id, 0), HOCCL_ERR_BOOTSTRAP);
    assert_non_null(strstr(HOCCL_GetLastError(), "has ended"));
    assert_true(now() - begun < 3);
}

/* Nobody comes: the listener ends by itself. First of all tests, since it counts threads. */
static void test_nobody(void **state)
{
    HOCCL_UniqueId id;
    int descriptors = 0, threads = 0;

    (void)state;
    ok(HOCCL_GetUniqueId(&id));
    sleep(5);
    ranks_hold(&descriptors, &threads);
    for (int i = 0; i < 10; i++)
        ok(HOCCL_GetUniqueId(&id));
    assert_true(ranks_threads() >= threads + 10); /* the thread sanitizer may have begun one of its own */
    assert_true(ranks_settle(descriptors, threads));
}

static void *run_here(void *argument)
{
    struct rank *r = argument;

    if (RANK_OK(r, HOCCL_CommInitRank(&r->comm, r->size, r->id, r->rank)) && rank_exchange(r, r->comm, 50000, 9))
        RANK_OK(r, HOCCL_CommDestroy(r->comm));
    if (r->failed)
        fprintf(stderr, "%s\n", r->text);
    return NULL;
}

/* comm_meet ID NRANKS FIRST LAST: these ranks, a thread each, no context: the library's choice. */
static int child(char **argv)
{
    struct rank ranks[8];
    int first = atoi(argv[3]), last = atoi(argv[4]);
    bool failed = false;

    memset(ranks, 0, sizeof ranks);
    for (int i = first; i <= last; i++) {
        ranks[i] = (struct rank){.rank = i, .size = atoi(argv[2])};
        unhex(argv[1], &ranks[i].id);
        pthread_create(&ranks[i].thread, NULL, run_here, &ranks[i]);
    }
    for (int i = first; i <= last; i++) {
        pthread_join(ranks[i].thread, NULL);
        failed |= ranks[i].failed;
    }
    return failed;
}

/* comm_meet DESCRIPTOR: make an id, write it there, and end at once. */
static int make_id(int to)
{
    HOCCL_UniqueId id;

    return HOCCL_GetUniqueId(&id) || write(to, &id, sizeof id) != sizeof id;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody),       cmocka_unit_test(test_arguments),     cmocka_unit_test(test_missing),
        cmocka_unit_test(test_twice),        cmocka_unit_test(test_sizes_differ),  cmocka_unit_test(test_late),
        cmocka_unit_test(test_again),        cmocka_unit_test(test_same_gpu),      cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_other_version), cmocka_unit_test(test_processes),     cmocka_unit_test(test_no_gpu),
        cmocka_unit_test(test_killed),       cmocka_unit_test(test_maker_gone),
    };

    ranks_environment(8);
    setenv("HOCCL_INIT_TIMEOUT", "4", 1);
    if (argc == 5)
        return child(argv);
    if (argc == 2)
        return make_id(atoi(argv[1]));
    return cmocka_run_group_tests_name("meeting by unique id", tests, NULL, NULL);
}
