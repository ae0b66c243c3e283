/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs shared by processes under one machine name: SMs that one holds are missing in the other, an engine serves both
 * in turn and never at once, memory counts together, and what a killed process held comes back.
 */
#include "emu_test.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

static char self[4096];

struct child {
    pid_t pid;
    int socket;
};

/* The child does as it is told, one letter a time, answers with the letter when it has been submitted, and keeps what
 * it has until the end. */
static int child_main(int socket)
{
    void *unused = NULL;
    emu_setup(&unused);
    struct emu_test *t = unused;
    CUstream s = new_stream();
    CUdeviceptr p;
    char order;
    while (read(socket, &order, 1) == 1 && order != 'q') {
        if (order == 'h')
            hold_all(s, 400000000);
        else if (order == 'H')
            hold_all(s, 60000000000);
        else if (order == 'm')
            OK(cuMemAlloc(&p, 512 * MIB));
        else if (order == 'p') /* 8 MiB at 100 MB/s: 84 ms each */
            for (int i = 0; i < 4; i++)
                OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 8 * MIB, s));
        usleep(20000);
        if (write(socket, &order, 1) != 1)
            return 1;
    }
    return 0;
}

static struct child child_start(void)
{
    int sv[2];
    char number[16];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
    snprintf(number, sizeof number, "%d", sv[1]);
    pid_t pid = fork();
    if (!pid) {
        close(sv[0]);
        execl(self, self, "child", number, (char *)NULL);
        _exit(9);
    }
    close(sv[1]);
    return (struct child){pid, sv[0]};
}

static void tell(struct child c, char order)
{
    char answer = 0;
    assert_int_equal(write(c.socket, &order, 1), 1);
    if (order != 'q')
        assert_int_equal(read(c.socket, &answer, 1), 1);
}

static void child_end(struct child c, bool by_force)
{
    int status;
    if (by_force)
        kill(c.pid, SIGKILL);
    else
        tell(c, 'q');
    waitpid(c.pid, &status, 0);
    close(c.socket);
    if (!by_force)
        assert_int_equal(status, 0);
}

static uint64_t local_copy_ns(struct emu_test *t)
{
    CUstream s = new_stream();
    uint64_t start = now_ns();
    OK(cuMemcpyDtoDAsync(t->b[0], t->a[0], 4096, s));
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy(s));
    return now_ns() - start;
}

static void test_sms_are_shared(void **state)
{
    struct child c = child_start();
    tell(c, 'h');
    assert_true(local_copy_ns(*state) > 200000000);
    child_end(c, false);
}

static void test_engine_is_shared(void **state)
{
    struct emu_test *t = *state;
    struct child c = child_start();
    CUstream s = new_stream();
    uint64_t start = now_ns();
    tell(c, 'p');
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 8 * MIB, s)); /* takes its turn between the child's four */
    OK(cuStreamSynchronize(s));
    assert_true(now_ns() - start >= 130000000); /* its own 84 ms and at least the rest of one of the child's */
    OK(cuStreamDestroy(s));
    child_end(c, false);
}

static void test_memory_is_shared(void **state)
{
    struct child c = child_start();
    size_t free, again, total;
    (void)state;
    OK(cuMemGetInfo(&free, &total));
    tell(c, 'm');
    OK(cuMemGetInfo(&again, &total));
    assert_true(again <= free - 512 * MIB);
    child_end(c, true);
    OK(cuMemGetInfo(&again, &total));
    assert_true(again >= free);
}

static void test_killed_holder(void **state)
{
    struct child c = child_start();
    tell(c, 'H');
    tell(c, 'p');
    child_end(c, true);
    assert_true(local_copy_ns(*state) < 5000000000);
    struct emu_test *t = *state;
    CUstream s = new_stream();
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 64, s));
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy(s));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sms_are_shared),
        cmocka_unit_test(test_engine_is_shared),
        cmocka_unit_test(test_memory_is_shared),
        cmocka_unit_test(test_killed_holder),
    };
    char name[32];
    if (argc == 3)
        return child_main(atoi(argv[2]));
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 1;
    emu_environment(NULL);
    snprintf(name, sizeof name, "test-%d", (int)getpid());
    setenv("HOCCL_EMU_MACHINE", name, 1);
    setenv("HOCCL_EMU_RATE", "push=100", 1);
    return cmocka_run_group_tests(tests, emu_setup, NULL);
}
