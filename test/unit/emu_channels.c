/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel classes, row by row of the measured tables: what one parked stream stops at one connection, by the
 * class of the small copy ("gate") that stands in front of its wait; and how many parked streams a kernel survives
 * at 8. Run as "emu_channels 1" and "emu_channels 8": the number of connections is read once a process.
 */
#include "emu_test.h"

enum gate { NONE, PUSH, D2H, H2D, PULL, GATES };

static const char *const gate_name[] = {"none", "push", "d2h", "h2d", "pull"};

static void gate_copy(struct emu_test *t, enum gate gate, CUstream s)
{
    switch (gate) {
    case NONE:
        return;
    case PUSH:
        OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 64, s));
        return;
    case D2H:
        OK(cuMemcpyDtoHAsync(t->host, t->a[0], 64, s));
        return;
    case H2D:
        OK(h2d_2d(t->a[0], t->host, 64, s));
        return;
    case PULL:
    case GATES:
        OK(cuMemcpyDtoDAsync(t->b[0], t->a[1], 64, s));
    }
}

/* [write][gate][wait], parked when this returns. */
static void park(struct emu_test *t, enum gate gate, CUstream s)
{
    store(t->flag + 1, 0);
    OK(cuStreamWriteValue32(s, t->flag_dev + 4, 1, 0));
    gate_copy(t, gate, s);
    OK(cuStreamWaitValue32(s, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    assert_true(becomes(t->flag + 1, 1, LONG_NS));
    usleep(1000);
}

static CUresult kernel(struct emu_test *t, CUstream s, CUdeviceptr flag)
{
    void *args[] = {&flag};
    (void)t;
    return cuLaunchKernel(function("nop"), 1, 1, 1, 32, 1, 1, 0, s, args, NULL);
}

enum probe { KERNEL, FRESH_WRITE, GATED_WRITE, GATED_KERNEL_WRITE, START_D2H, DO_PUSH, DO_PULL, DO_D2H, DO_H2D, DO_SMALL_H2D,
             PROBES };

static const char *const probe_name[] = {"kernel", "start write on a fresh stream", "start write behind a gate",
                                         "start write behind a gate and a kernel", "4-byte D2H", "push", "pull", "D2H",
                                         "H2D", "small H2D"};

/* What shows that the probe has run: a word that becomes 7. Where the probe is a copy to a GPU, its end is waited for
 * by the stream's becoming empty. */
static void submit(struct emu_test *t, enum probe probe, CUstream s)
{
    switch (probe) {
    case KERNEL:
        OK(kernel(t, s, t->flag_dev + 256));
        return;
    case FRESH_WRITE:
    case GATED_WRITE:
    case GATED_KERNEL_WRITE:
        OK(cuStreamWriteValue32(s, t->flag_dev + 256, 7, 0));
        return;
    case START_D2H:
        OK(cuMemcpyDtoHAsync(t->flag + 64, t->a[0], 4, s));
        return;
    case DO_PUSH:
        OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 4096, s));
        return;
    case DO_PULL:
        OK(cuMemcpyDtoDAsync(t->b[0], t->a[1], 4096, s));
        return;
    case DO_D2H:
        OK(cuMemcpyDtoHAsync(t->host, t->a[0], MIB, s));
        return;
    case DO_H2D:
        OK(cuMemcpyHtoDAsync(t->a[0], t->host, MIB, s));
        return;
    case DO_SMALL_H2D:
    case PROBES:
        OK(cuMemcpyHtoDAsync(t->a[0], t->host, 4096, s));
    }
}

static bool drained(CUstream s, uint64_t ns)
{
    uint64_t end = now_ns() + ns;
    while (cuStreamQuery(s) == CUDA_ERROR_NOT_READY) {
        if (now_ns() > end)
            return false;
        usleep(200);
    }
    return true;
}

/* One cell: does the probe run on another stream beside a stream parked behind this gate? */
static bool runs(struct emu_test *t, enum gate gate, enum probe probe)
{
    CUstream parked = new_stream(), s = new_stream();
    store(t->flag, 1);
    if (probe == GATED_WRITE || probe == GATED_KERNEL_WRITE) {
        gate_copy(t, gate, s);
        OK(cuStreamWaitValue32(s, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    }
    if (probe == GATED_KERNEL_WRITE)
        OK(kernel(t, s, t->flag_dev + 128));
    OK(cuStreamSynchronize(s));
    store(t->flag, 0);
    park(t, gate, parked);
    submit(t, probe, s);
    bool ran = drained(s, SHORT_NS);
    store(t->flag, 1);
    OK(cuStreamSynchronize(parked));
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy(parked));
    OK(cuStreamDestroy(s));
    return ran;
}

/* The table of one connection: 1 runs, 0 is stopped, -1 was not measured. */
static const int table[GATES][PROBES] = {
    /*          kernel fresh gated +kernel 4B  push pull D2H H2D small */
    [NONE] = {0, 0, 0, -1, 1, 1, 1, 1, 1, 0},
    [PUSH] = {1, 1, 0, 1, 1, 0, 1, 1, 1, 1},
    [D2H] = {1, 1, 0, 1, 0, 1, 1, 0, 1, 1},
    [H2D] = {1, 1, 0, 1, 1, 1, 1, 1, 0, 1},
    [PULL] = {0, 0, 0, -1, 1, 1, 0, 1, 1, 0},
};

static void test_table(void **state)
{
    struct emu_test *t = *state;
    int bad = 0;
    for (enum gate g = NONE; g < GATES; g++)
        for (enum probe p = KERNEL; p < PROBES; p++) {
            if (table[g][p] < 0 || runs(t, g, p) == (table[g][p] == 1))
                continue;
            print_error("gate %s, %s: should %s\n", gate_name[g], probe_name[p], table[g][p] ? "run" : "be stopped");
            bad++;
        }
    assert_int_equal(bad, 0);
}

/* A pull is stopped by a gate of any class that its stream has carried, push, D2H and H2D only by their own. */
static void test_carried_classes(void **state)
{
    struct emu_test *t = *state;
    for (enum gate g = PUSH; g <= H2D; g++)
        for (enum gate other = PUSH; other <= PULL; other++) {
            CUstream parked = new_stream(), s = new_stream();
            static const enum probe probe[] = {[PUSH] = DO_PUSH, [D2H] = DO_D2H, [H2D] = DO_H2D, [PULL] = DO_PULL};
            gate_copy(t, g, s); /* the stream carries the gate's class */
            OK(cuStreamSynchronize(s));
            store(t->flag, 0);
            park(t, g, parked);
            submit(t, probe[other], s);
            assert_int_equal(drained(s, SHORT_NS), other != g && other != PULL);
            store(t->flag, 1);
            OK(cuStreamSynchronize(parked));
            OK(cuStreamSynchronize(s));
            OK(cuStreamDestroy(parked));
            OK(cuStreamDestroy(s));
        }
}

/* Parks k streams, lets a kernel go on another one; behind, what stands behind each wait. */
static bool kernel_beside(struct emu_test *t, unsigned k, enum gate gate, int behind)
{
    CUstream parked[64], s = new_stream();
    OK(kernel(t, s, t->flag_dev + 128));
    OK(cuStreamSynchronize(s));
    store(t->flag, 0);
    store(t->flag + 64, 0);
    for (unsigned i = 0; i < k; i++) {
        parked[i] = new_stream();
        gate_copy(t, gate, parked[i]);
        OK(cuStreamWaitValue32(parked[i], t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
        if (behind == 1)
            OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 4096, parked[i]));
        if (behind == 2)
            OK(kernel(t, parked[i], t->flag_dev + 128));
    }
    OK(kernel(t, s, t->flag_dev + 256));
    bool ran = becomes(t->flag + 64, 7, SHORT_NS);
    store(t->flag, 1);
    for (unsigned i = 0; i < k; i++) {
        OK(cuStreamSynchronize(parked[i]));
        OK(cuStreamDestroy(parked[i]));
    }
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy(s));
    return ran;
}

static void test_parked_streams_and_kernels(void **state)
{
    struct emu_test *t = *state;
    unsigned connections = (unsigned)atoi(getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
    assert_false(kernel_beside(t, connections, NONE, 0));
    assert_false(kernel_beside(t, 31, NONE, 0));
    if (connections > 1)
        assert_true(kernel_beside(t, connections - 1, NONE, 0));
    assert_true(kernel_beside(t, 31, PUSH, 0));
    assert_true(kernel_beside(t, 31, PUSH, 1));
    assert_false(kernel_beside(t, connections, PUSH, 2));
    if (connections > 1)
        assert_true(kernel_beside(t, connections - 1, PUSH, 2));
}

/* Streams that wait for an event behind another stream's wait, and nothing behind it, stop no kernel. */
static void test_event_waits_stop_nothing(void **state)
{
    struct emu_test *t = *state;
    CUstream first = new_stream(), waiting[16], s = new_stream();
    CUevent e;
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    store(t->flag, 0);
    store(t->flag + 64, 0);
    OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], 4096, first));
    OK(cuStreamWaitValue32(first, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuEventRecord(e, first));
    for (int i = 0; i < 16; i++) {
        waiting[i] = new_stream();
        OK(cuStreamWaitEvent(waiting[i], e, 0));
    }
    OK(kernel(t, s, t->flag_dev + 256));
    assert_true(becomes(t->flag + 64, 7, LONG_NS));
    store(t->flag, 1);
    for (int i = 0; i < 16; i++) {
        OK(cuStreamSynchronize(waiting[i]));
        OK(cuStreamDestroy(waiting[i]));
    }
    OK(cuEventDestroy(e));
    OK(cuStreamDestroy(first));
    OK(cuStreamDestroy(s));
}

/* With 8 connections one parked stream stops none of 32 others, and none of the copies. */
static void test_one_parked_stops_none(void **state)
{
    struct emu_test *t = *state;
    if (atoi(getenv("CUDA_DEVICE_MAX_CONNECTIONS")) < 8)
        return;
    for (enum gate g = NONE; g < GATES; g++) {
        CUstream parked = new_stream(), s[32];
        store(t->flag, 0);
        park(t, g, parked);
        for (int i = 0; i < 32; i++) {
            s[i] = new_stream();
            submit(t, (enum probe[]){KERNEL, DO_PUSH, DO_PULL, DO_D2H, DO_H2D, DO_SMALL_H2D}[i % 6], s[i]);
            assert_true(drained(s[i], LONG_NS));
        }
        store(t->flag, 1);
        for (int i = 0; i < 32; i++)
            OK(cuStreamDestroy(s[i]));
        OK(cuStreamSynchronize(parked));
        OK(cuStreamDestroy(parked));
    }
}

/* With as many parked streams as connections, or more, 8 connections are as one (push, D2H, H2D). */
static void test_many_parked_are_as_one_connection(void **state)
{
    static const enum probe probe[] = {DO_PUSH, DO_D2H, DO_H2D, KERNEL};
    struct emu_test *t = *state;
    for (unsigned k = 8; k <= 31; k += 23)
        for (enum gate g = PUSH; g <= H2D; g++)
            for (size_t p = 0; p < sizeof probe / sizeof *probe; p++) {
                CUstream parked[31], s = new_stream();
                store(t->flag, 0);
                for (unsigned i = 0; i < k; i++)
                    park(t, g, parked[i] = new_stream());
                submit(t, probe[p], s);
                assert_int_equal(drained(s, SHORT_NS), table[g][probe[p]]);
                store(t->flag, 1);
                for (unsigned i = 0; i < k; i++) {
                    OK(cuStreamSynchronize(parked[i]));
                    OK(cuStreamDestroy(parked[i]));
                }
                OK(cuStreamSynchronize(s));
                OK(cuStreamDestroy(s));
            }
}

struct parker {
    struct emu_test *t;
    CUstream s[64];
    uint32_t parked;
};

static void *park_many(void *arg)
{
    struct parker *p = arg;
    OK(cuCtxSetCurrent(p->t->ctx[0]));
    for (uint32_t i = 0; i < 64; i++) {
        OK(cuStreamWaitValue32(p->s[i], p->t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
        store(&p->parked, i + 1);
    }
    return NULL;
}

/* Parking ever more streams hangs, somewhere between 33 and 48 of them, until one is released. */
static void test_too_many_parked(void **state)
{
    struct emu_test *t = *state;
    static struct parker p;
    pthread_t thread;
    p.t = t;
    store(t->flag, 0);
    for (int i = 0; i < 64; i++)
        p.s[i] = new_stream();
    pthread_create(&thread, NULL, park_many, &p);
    assert_false(becomes(&p.parked, 64, 3 * SHORT_NS));
    assert_in_range(load(&p.parked), 33, 48);
    store(t->flag, 1);
    pthread_join(thread, NULL);
    for (int i = 0; i < 64; i++) {
        OK(cuStreamSynchronize(p.s[i]));
        OK(cuStreamDestroy(p.s[i]));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest at_one[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_carried_classes),
        cmocka_unit_test(test_parked_streams_and_kernels),
        cmocka_unit_test(test_event_waits_stop_nothing),
    };
    const struct CMUnitTest at_eight[] = {
        cmocka_unit_test(test_parked_streams_and_kernels),
        cmocka_unit_test(test_event_waits_stop_nothing),
        cmocka_unit_test(test_one_parked_stops_none),
        cmocka_unit_test(test_many_parked_are_as_one_connection),
        cmocka_unit_test(test_too_many_parked),
    };
    const char *connections = argc > 1 ? argv[1] : strstr(argv[0], "_one") ? "1" : "8";
    emu_environment(connections);
    if (!strcmp(connections, "1"))
        return cmocka_run_group_tests(at_one, emu_setup, NULL);
    return cmocka_run_group_tests(at_eight, emu_setup, NULL);
}
