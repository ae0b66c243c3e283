/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads: each with a GPU and streams of its own, they push to one another in a ring, answer flags, and
 * check every byte. What the thread sanitizer looks at.
 */
#include "emu_test.h"

#define RANKS 4
#define ROUNDS 20
#define BYTES (MIB / 2)

struct rank {
    int id;
    struct emu_test *t;
};

static CUcontext ctx[RANKS];
static CUdeviceptr in[RANKS], out[RANKS];
static pthread_barrier_t barrier;

static uint32_t *arrived(struct emu_test *t, int rank)
{
    return t->flag + 16 * rank;
}

/* Push to the right, flag behind it; wait for the flag from the left. */
static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct emu_test *t = r->t;
    int right = (r->id + 1) % RANKS, left = (r->id + RANKS - 1) % RANKS;
    unsigned char *host;
    CUstream s, q;
    OK(cuCtxSetCurrent(ctx[r->id]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&q, CU_STREAM_NON_BLOCKING));
    OK(cuMemHostAlloc((void **)&host, 2 * BYTES, 0));
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (size_t i = 0; i < BYTES; i++)
            host[i] = (unsigned char)(i * 3 + round * 5 + (unsigned)r->id);
        OK(cuMemcpyHtoDAsync(out[r->id], host, BYTES, s));
        OK(cuMemcpyDtoDAsync(in[right], out[r->id], BYTES, s));
        OK(cuStreamWriteValue32(s, t->flag_dev + (CUdeviceptr)(64 * right), round, 0));
        OK(cuStreamWaitValue32(q, t->flag_dev + (CUdeviceptr)(64 * r->id), round, CU_STREAM_WAIT_VALUE_GEQ));
        OK(cuMemcpyDtoHAsync(host + BYTES, in[r->id], BYTES, q));
        OK(cuStreamSynchronize(q));
        OK(cuStreamSynchronize(s));
        assert_true(load(arrived(t, r->id)) >= round);
        for (size_t i = 0; i < BYTES; i++)
            assert_int_equal(host[BYTES + i], (unsigned char)(i * 3 + round * 5 + (unsigned)left));
        pthread_barrier_wait(&barrier);
    }
    OK(cuMemFreeHost(host));
    OK(cuStreamDestroy(s));
    OK(cuStreamDestroy(q));
    return NULL;
}

static void test_ring(void **state)
{
    struct emu_test *t = *state;
    pthread_t thread[RANKS];
    struct rank rank[RANKS];
    memset(t->flag, 0, 4096);
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (int i = 0; i < RANKS; i++) {
        OK(cuDevicePrimaryCtxRetain(&ctx[i], i));
        OK(cuCtxSetCurrent(ctx[i]));
        OK(cuMemAlloc(&in[i], BYTES));
        OK(cuMemAlloc(&out[i], BYTES));
    }
    uint64_t before = sm_work();
    for (int i = 0; i < RANKS; i++) {
        rank[i] = (struct rank){i, t};
        pthread_create(&thread[i], NULL, rank_main, &rank[i]);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    assert_int_equal(sm_work(), before);
    OK(cuCtxSetCurrent(t->ctx[0]));
}

/* GPU and CPU answer each other through flags; a 4-byte D2H copy serves as a flag as well. */
static void test_handshake(void **state)
{
    struct emu_test *t = *state;
    CUstream s = new_stream();
    uint32_t words[16];
    for (uint32_t i = 0; i < 16; i++)
        words[i] = i;
    OK(cuMemcpyHtoD(t->a[0], words, sizeof words));
    store(t->flag + 1, 0);
    store(t->flag + 2, 0);
    for (uint32_t i = 1; i <= 200; i++) {
        if (i & 1)
            OK(cuStreamWriteValue32(s, t->flag_dev + 4, i & 15, 0));
        else
            OK(cuMemcpyDtoHAsync(t->flag + 1, t->a[0] + 4 * (i & 15), 4, s));
        OK(cuStreamWaitValue32(s, t->flag_dev + 8, i, CU_STREAM_WAIT_VALUE_GEQ));
        assert_true(becomes(t->flag + 1, i & 15, LONG_NS));
        store(t->flag + 2, i);
    }
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy(s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_handshake),
    };
    emu_environment(NULL);
    return cmocka_run_group_tests(tests, emu_setup, NULL);
}
