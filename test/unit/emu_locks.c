/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's process-wide lock: which calls of one thread, made behind a parked wait, stop which calls of another.
 */
#include "emu_test.h"

/* A call of the "user" thread. */
struct user {
    struct emu_test *t;
    const char *call;
    CUdeviceptr mem;
    void *host;
    CUstream parked;
    uint32_t entered, left;
};

static void user_call(struct user *u)
{
    CUdeviceptr p;
    CUmodule m;
    CUstream s;
    void *h;
    if (!strcmp(u->call, "cuMemFree")) {
        OK(cuMemFree(u->mem));
    } else if (!strcmp(u->call, "cuMemFreeHost")) {
        OK(cuMemFreeHost(u->host));
    } else if (!strcmp(u->call, "cuModuleLoadData")) {
        OK(cuModuleLoadData(&m, hold_ptx));
    } else if (!strcmp(u->call, "cuMemHostUnregister")) {
        OK(cuMemHostUnregister(u->host));
    } else if (!strcmp(u->call, "cuMemcpyDtoH")) {
        OK(cuMemcpyDtoH(u->t->host, u->t->a[0], 4096));
    } else if (!strcmp(u->call, "cuStreamSynchronize")) {
        OK(cuStreamSynchronize(u->parked));
    } else if (!strcmp(u->call, "cuCtxSynchronize")) {
        OK(cuCtxSynchronize());
    } else if (!strcmp(u->call, "cuMemAlloc")) {
        OK(cuMemAlloc(&p, MIB));
    } else if (!strcmp(u->call, "cuMemHostAlloc")) {
        OK(cuMemHostAlloc(&h, MIB, 0));
    } else if (!strcmp(u->call, "cuStreamCreate")) {
        OK(cuStreamCreate(&s, 0));
    } else {
        fail_msg("unknown call %s", u->call);
    }
}

static void *user_thread(void *arg)
{
    struct user *u = arg;
    OK(cuCtxSetCurrent(u->t->ctx[0]));
    store(&u->entered, 1);
    user_call(u);
    store(&u->left, 1);
    return NULL;
}

static pthread_t user_start(struct user *u)
{
    pthread_t thread;
    pthread_create(&thread, NULL, user_thread, u);
    assert_true(becomes(&u->entered, 1, LONG_NS));
    usleep(50000);
    return thread;
}

/* A submission of the "proxy" thread. */
struct proxy {
    struct emu_test *t;
    const char *call;
    CUstream s;
    CUevent e;
    CUfunction fn;
    uint32_t left;
};

static void proxy_call(struct proxy *p)
{
    struct emu_test *t = p->t;
    CUdeviceptr base, word = t->flag_dev + 512;
    size_t size;
    int type;
    void *args[] = {&word};
    CUipcMemHandle handle;
    if (!strcmp(p->call, "push")) {
        OK(cuMemcpyDtoDAsync(t->b[1], t->a[0], MIB, p->s));
    } else if (!strcmp(p->call, "D2H")) {
        OK(cuMemcpyDtoHAsync(t->host, t->a[0], MIB, p->s));
    } else if (!strcmp(p->call, "2D")) {
        OK(h2d_2d(t->a[0], t->host, 4096, p->s));
    } else if (!strcmp(p->call, "memset")) {
        OK(cuMemsetD8Async(t->a[0], 1, 256, p->s));
    } else if (!strcmp(p->call, "record")) {
        OK(cuEventRecord(p->e, p->s));
    } else if (!strcmp(p->call, "kernel")) {
        OK(cuLaunchKernel(p->fn, 1, 1, 1, 32, 1, 1, 0, p->s, args, NULL));
    } else if (!strcmp(p->call, "write")) {
        OK(cuStreamWriteValue32(p->s, t->flag_dev + 256, 1, 0));
    } else if (!strcmp(p->call, "wait")) {
        OK(cuStreamWaitValue32(p->s, t->flag_dev + 256, 0, CU_STREAM_WAIT_VALUE_GEQ));
    } else if (!strcmp(p->call, "wait event")) {
        OK(cuStreamWaitEvent(p->s, p->e, 0));
    } else if (!strcmp(p->call, "query")) {
        OK(cuStreamQuery(p->s));
    } else if (!strcmp(p->call, "attribute")) {
        OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, t->a[0]));
    } else if (!strcmp(p->call, "range")) {
        OK(cuMemGetAddressRange(&base, &size, t->a[0]));
    } else if (!strcmp(p->call, "handle")) {
        OK(cuIpcGetMemHandle(&handle, t->a[0]));
    } else if (!strcmp(p->call, "current")) {
        OK(cuCtxSetCurrent(t->ctx[0]));
    } else {
        fail_msg("unknown call %s", p->call);
    }
}

static void *proxy_thread(void *arg)
{
    struct proxy *p = arg;
    OK(cuCtxSetCurrent(p->t->ctx[0]));
    proxy_call(p);
    store(&p->left, 1);
    return NULL;
}

/* Whether the proxy's call returns while the user's call hangs or has hung; everything is released afterwards. */
static void check(struct emu_test *t, const char *user, unsigned stream_flags, bool user_hangs, const char *proxy,
                  bool proxy_hangs)
{
    static char registered[65536] __attribute__((aligned(4096)));
    struct user u = {t, user, 0, NULL, NULL, 0, 0};
    struct proxy p = {t, proxy, new_stream(), NULL, function("nop"), 0};
    pthread_t thread;
    OK(cuMemAlloc(&u.mem, MIB));
    if (!strcmp(user, "cuMemHostUnregister")) {
        u.host = registered;
        OK(cuMemHostRegister(u.host, sizeof registered, 0));
    } else {
        OK(cuMemHostAlloc(&u.host, 4096, 0));
    }
    OK(cuEventCreate(&p.e, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamCreate(&u.parked, stream_flags));
    store(t->flag, 0);
    OK(cuStreamWaitValue32(u.parked, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    pthread_t user_id = user_start(&u);
    assert_int_equal(becomes(&u.left, 1, user_hangs ? 0 : LONG_NS), !user_hangs);
    pthread_create(&thread, NULL, proxy_thread, &p);
    bool returned = becomes(&p.left, 1, proxy_hangs ? SHORT_NS : LONG_NS);
    if (returned == proxy_hangs)
        print_error("%s beside %s\n", proxy, user);
    assert_int_equal(returned, !proxy_hangs);
    store(t->flag, 1);
    pthread_join(user_id, NULL);
    pthread_join(thread, NULL);
    OK(cuStreamSynchronize(p.s));
    OK(cuStreamSynchronize(u.parked));
    OK(cuStreamDestroy(p.s));
    OK(cuStreamDestroy(u.parked));
    OK(cuEventDestroy(p.e));
}

static void test_calls_that_hold_the_lock(void **state)
{
    static const char *const calls[] = {"cuMemFree", "cuMemFreeHost", "cuModuleLoadData"};
    struct emu_test *t = *state;
    for (size_t i = 0; i < 3; i++) {
        check(t, calls[i], CU_STREAM_NON_BLOCKING, true, "push", true);
        check(t, calls[i], CU_STREAM_DEFAULT, true, "push", true);
    }
    check(t, "cuMemcpyDtoH", CU_STREAM_DEFAULT, true, "push", true);
}

static void test_what_hangs_meanwhile(void **state)
{
    static const char *const hang[] = {"D2H", "2D", "memset", "record", "kernel"};
    for (size_t i = 0; i < sizeof hang / sizeof *hang; i++)
        check(*state, "cuMemFree", CU_STREAM_NON_BLOCKING, true, hang[i], true);
}

static void test_what_passes_meanwhile(void **state)
{
    static const char *const pass[] = {"write", "wait", "wait event", "query", "attribute", "range", "handle", "current"};
    for (size_t i = 0; i < sizeof pass / sizeof *pass; i++)
        check(*state, "cuMemFree", CU_STREAM_NON_BLOCKING, true, pass[i], false);
}

static void test_calls_that_do_not_hold_it(void **state)
{
    static const char *const waits[] = {"cuStreamSynchronize", "cuCtxSynchronize"};
    static const char *const returns[] = {"cuMemAlloc", "cuMemHostAlloc", "cuStreamCreate", "cuMemcpyDtoH"};
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
        check(*state, waits[i], CU_STREAM_DEFAULT, true, "push", false);
    for (size_t i = 0; i < sizeof returns / sizeof *returns; i++)
        check(*state, returns[i], CU_STREAM_NON_BLOCKING, false, "push", false);
}

static void test_unregister_waits(void **state)
{
    check(*state, "cuMemHostUnregister", CU_STREAM_NON_BLOCKING, true, "write", false);
}

/* Calls that free or load for one GPU do not wait for the parked streams of another (measured: gpu/free_elsewhere). */
struct elsewhere {
    struct emu_test *t;
    CUdeviceptr mem;
    void *host;
    uint32_t left;
};

static void *elsewhere_thread(void *arg)
{
    struct elsewhere *e = arg;
    CUmodule m;
    OK(cuCtxSetCurrent(e->t->ctx[1]));
    OK(cuMemFree(e->mem));
    OK(cuMemFreeHost(e->host));
    OK(cuModuleLoadData(&m, hold_ptx));
    OK(cuModuleUnload(m));
    store(&e->left, 1);
    return NULL;
}

static void test_other_gpu(void **state)
{
    struct emu_test *t = *state;
    struct elsewhere e = {.t = t};
    CUstream parked = new_stream();
    pthread_t thread;
    OK(cuCtxSetCurrent(t->ctx[1]));
    OK(cuMemAlloc(&e.mem, MIB));
    OK(cuMemHostAlloc(&e.host, 4096, 0));
    OK(cuCtxSetCurrent(t->ctx[0]));
    store(t->flag, 0);
    OK(cuStreamWaitValue32(parked, t->flag_dev, 1, CU_STREAM_WAIT_VALUE_GEQ));
    pthread_create(&thread, NULL, elsewhere_thread, &e);
    bool returned = becomes(&e.left, 1, LONG_NS);
    store(t->flag, 1);
    pthread_join(thread, NULL);
    assert_true(returned);
    OK(cuStreamDestroy(parked));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_gpu),
        cmocka_unit_test(test_calls_that_hold_the_lock),
        cmocka_unit_test(test_what_hangs_meanwhile),
        cmocka_unit_test(test_what_passes_meanwhile),
        cmocka_unit_test(test_calls_that_do_not_hold_it),
        cmocka_unit_test(test_unregister_waits),
    };
    emu_environment(NULL);
    return cmocka_run_group_tests(tests, emu_setup, NULL);
}
