/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random work, for what no table says: nothing is lost, nothing overtakes. Each thread sends a pattern on a journey
 * between two GPUs and the host, every leg on a random stream of its own, ordered by events or by flags, while other
 * threads allocate and free; at the end the pattern must have arrived. Run twice, as it comes and with random delays.
 */
#include "emu_test.h"

#include <sys/wait.h>

#define THREADS 3
#define STREAMS 4
#define LEGS 12
#define MOST (64u << 10)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define JOURNEYS 25
#else
#define JOURNEYS 100
#endif

struct traveller {
    struct emu_test *t;
    unsigned id, seed;
    CUstream s[STREAMS];
    CUdeviceptr place[4]; /* GPU 0, GPU 1, GPU 0 again, host */
    unsigned char *host;
    CUdeviceptr flag;
    uint32_t count;
};

static unsigned pick(struct traveller *v, unsigned below)
{
    v->seed = v->seed * 1664525u + 1013904223u;
    return (v->seed >> 8) % below;
}

/* Work enqueued on b from now on comes behind what is on a. */
static void order(struct traveller *v, CUstream a, CUstream b)
{
    CUevent e;
    if (a == b)
        return;
    if (pick(v, 2)) {
        OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
        OK(cuEventRecord(e, a));
        OK(cuStreamWaitEvent(b, e, 0));
        OK(cuEventDestroy(e));
        return;
    }
    v->count++;
    OK(cuStreamWriteValue32(a, v->flag, v->count, 0));
    OK(cuStreamWaitValue32(b, v->flag, v->count, CU_STREAM_WAIT_VALUE_GEQ));
}

static void journey(struct traveller *v)
{
    size_t n = 1 + pick(v, MOST), offset = pick(v, 8);
    unsigned at = 3, s = pick(v, STREAMS);
    CUdeviceptr fresh;
    OK(cuMemAlloc(&fresh, MOST + 8));
    v->place[2] = fresh;
    for (size_t i = 0; i < n; i++)
        v->host[offset + i] = (unsigned char)(i * 11 + v->seed);
    unsigned key = v->seed;
    for (int leg = 0; leg < LEGS; leg++) {
        unsigned next = (at + 1 + pick(v, 3)) % 4, on = leg == LEGS - 1 ? s : pick(v, STREAMS);
        if (leg == LEGS - 1 && at == 3)
            break;
        if (leg == LEGS - 1)
            next = 3;
        order(v, v->s[s], v->s[on]);
        OK(cuMemcpyAsync(v->place[next] + offset, v->place[at] + offset, n, v->s[on]));
        at = next;
        s = on;
    }
    OK(cuStreamSynchronize(v->s[s]));
    for (size_t i = 0; i < n; i++)
        if (v->host[offset + i] != (unsigned char)(i * 11 + key))
            fail_msg("thread %u: byte %zu of %zu is wrong", v->id, i, n);
    OK(cuMemFree(fresh));
}

static void *travel(void *arg)
{
    struct traveller *v = arg;
    OK(cuCtxSetCurrent(v->t->ctx[0]));
    for (int i = 0; i < STREAMS; i++)
        OK(cuStreamCreateWithPriority(&v->s[i], CU_STREAM_NON_BLOCKING, -(i % 2)));
    OK(cuMemHostAlloc((void **)&v->host, MOST + 8, CU_MEMHOSTALLOC_PORTABLE));
    v->place[0] = v->t->a[0] + v->id * MIB;
    v->place[1] = v->t->a[1] + v->id * MIB;
    v->place[3] = (CUdeviceptr)(uintptr_t)v->host;
    for (int i = 0; i < JOURNEYS; i++)
        journey(v);
    for (int i = 0; i < STREAMS; i++)
        OK(cuStreamDestroy(v->s[i]));
    OK(cuMemFreeHost(v->host));
    return NULL;
}

static void test_journeys(void **state)
{
    struct emu_test *t = *state;
    struct traveller v[THREADS];
    pthread_t thread[THREADS];
    memset(v, 0, sizeof v);
    for (unsigned i = 0; i < THREADS; i++) {
        v[i].t = t;
        v[i].id = i;
        v[i].seed = 77 * i + 5;
        v[i].flag = t->flag_dev + 64 * i;
        pthread_create(&thread[i], NULL, travel, &v[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_journeys)};
    emu_environment(NULL);
    alarm(200);
    return cmocka_run_group_tests(tests, emu_setup, NULL);
}

int main(void)
{
    int status = 0;
    pid_t pid = fork();
    if (!pid) {
        setenv("HOCCL_EMU_DELAY_US", "100", 1);
        exit(run());
    }
    waitpid(pid, &status, 0);
    return status || run();
}
