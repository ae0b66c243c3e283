/* SPDX-License-Identifier: Apache-2.0 */
/* Slots where production puts them, and registered memory of GPUs, which takes none: on a machine with four GPUs, of which each
 * pair shares a switch, over the tests' transport.
 *
 *   rank, GPU         0       1       2        3
 *   symmetric GPU     1       0       3        2
 *   NICs reach it by  dmabuf  pcie    off      address     (HOCCL_EMU_RDMA, read for the symmetric GPU)
 *   orders writes     none    owner   –        for all  (HOCCL_EMU_RDMA_ORDER, likewise)
 *   its own           owner   none    for all  owner    (the same setting, of the rank's GPU: for registered memory)
 *
 * The transport reports a write to a GPU that does not order writes long before it lands: without a flush wrong bytes are read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/setting.h"
#include "far.h"
#include "hoccl_cuda.h"
#include "near.h"
#include "p2p/wire.h"

#define LATE 50000 /* µs: longer than a flush takes */
#define VERY_LATE 1000000 /* longer than it takes until a slot is read, also on a busy machine */

static const struct near_weather fair = {.on_gpu = true};

static void begin(struct near_weather weather)
{
    near = weather;
    near_counts = (struct near_count){0};
    memset(&hoccl_wire_counts, 0, sizeof hoccl_wire_counts);
}

static void check_regions(unsigned hosts, unsigned dmabufs, unsigned addresses)
{
    assert_int_equal(near_counts.hosts, hosts);
    assert_int_equal(near_counts.dmabufs, dmabufs);
    assert_int_equal(near_counts.addresses, addresses);
}

/* By the best way that each GPU offers; and each chunk is flushed that lies on a GPU that demands it. */
static void test_by_gpu(void **state)
{
    uint64_t before = 0, after = 0;
    (void)state;
    begin((struct near_weather){.on_gpu = true, .late = LATE, .jitter = 300, .refuse = 20});
    bool told = hoccl_cuda_sm_work(&before);
    far_run(4, "2+2", all_sizes, NULL, false);
    if (told && hoccl_cuda_sm_work(&after))
        assert_int_equal(before, after);
    check_regions(2, 4, 2);
    assert_int_equal(hoccl_wire_counts.flushed, near_counts.unordered);
    assert_int_equal(near_counts.flushes, near_counts.unordered);
    assert_true(near_counts.unordered > 0 && near_counts.unordered < hoccl_wire_counts.arrived);
}

/* What has come before its receive's stream is flushed when it is taken out: posted at once, each behind the one before. */
static void in_a_row(struct rank *r)
{
    enum { MESSAGES = 24 };
    const size_t n = 70001;
    struct work w;
    int other = (r->rank + 2) % 4;
    if (work_open(r, &w, MESSAGES * n) && RANK_CUDA(r, cuMemcpyHtoD(w.out, message(r->rank, other, 5), w.room))) {
        RANK_CUDA(r, cuStreamSynchronize(NULL));
        for (int i = 0; i < 2 * MESSAGES; i++) {
            size_t at = (size_t)(i / 2) * n;
            if ((i + r->rank / 2) % 2)
                RANK_OK(r, HOCCL_Send((void *)(w.out + at), n, HOCCL_BYTE, other, r->comm, w.stream));
            else
                RANK_OK(r, HOCCL_Recv((void *)(w.in + at), n, HOCCL_BYTE, other, r->comm, w.stream));
        }
        RANK_OK(r, stream_end(r, &w));
        RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, w.room));
        same(r, w.host, message(other, r->rank, 5), w.room, other);
    }
    work_close(r, &w);
}

static void test_early(void **state)
{
    (void)state;
    begin((struct near_weather){.on_gpu = true, .late = LATE, .jitter = 300});
    far_run(4, "2+2", in_a_row, NULL, false);
    assert_true(hoccl_wire_counts.early > 0);
    assert_int_equal(hoccl_wire_counts.flushed, near_counts.unordered);
    assert_true(near_counts.unordered > 0);
}

/* What one transport refuses goes another way. */
static void test_refusals(void **state)
{
    (void)state;
    begin((struct near_weather){.on_gpu = true, .no_dmabuf = true});
    far_run(2, "2", all_sizes, NULL, false);
    check_regions(0, 0, 4);
    assert_int_equal(hoccl_wire_counts.flushed, hoccl_wire_counts.arrived);
    begin((struct near_weather){.on_gpu = true, .no_dmabuf = true, .no_address = true});
    far_run(2, "2", all_sizes, NULL, false);
    check_regions(4, 0, 0);
    assert_int_equal(hoccl_wire_counts.flushed, 0);
    begin((struct near_weather){0});
    far_run(2, "2", all_sizes, NULL, false);
    check_regions(4, 0, 0);
    begin((struct near_weather){.on_gpu = true, .fail_region = 2}); /* of whichever rank and pool: another way, and no error */
    far_run(2, "2", all_sizes, NULL, false);
    assert_int_equal(near_counts.dmabufs + near_counts.addresses, 4);
}

/* ---- without a flush --------------------------------------------------------------------------------------------- */

static int wrong; /* ranks that have read something else than what was sent */

static void look(struct rank *r)
{
    size_t n = 2 * MIB;
    struct work w;
    if (work_open(r, &w, (size_t)r->size * (n + 67))) {
        RANK_OK(r, all_to_all(r, &w, n, 3));
        RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, w.room));
        const unsigned char *got = w.host + (size_t)(1 - r->rank) * (n + 67) + 1;
        if (memcmp(got, message(1 - r->rank, r->rank, 3), n))
            __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
    }
    work_close(r, &w);
}

/* The tests would notice: HOCCL_TEST_BREAK=no-flush. */
static void test_no_flush(void **state)
{
    (void)state;
    begin((struct near_weather){.on_gpu = true, .late = LATE});
    wrong = 0;
    far_run(2, "2", look, NULL, false);
    assert_int_equal(wrong, 0);
    hoccl_settings.test_break = HOCCL_BREAK_NO_FLUSH;
    begin((struct near_weather){.on_gpu = true, .late = VERY_LATE});
    far_run(2, "2", look, NULL, false);
    hoccl_settings.test_break = HOCCL_BREAK_NOTHING;
    assert_int_equal(wrong, 2);
}

/* ---- registered memory ------------------------------------------------------------------------------------------- */

static void exchange_registered(struct rank *r)
{
    struct work w;
    if (work_open_registered(r, &w, (size_t)r->size * (4 * MIB)))
        for (size_t i = 0; i < far_sizes_count; i++)
            exchange(r, &w, far_sizes[i], (unsigned)i);
    work_close(r, &w);
}

static int wrong_at[3];

static void look_registered(struct rank *r)
{
    struct work w;
    size_t n = 2 * MIB, row = n + 67;
    if (work_open_registered(r, &w, (size_t)r->size * row)) {
        RANK_OK(r, all_to_all(r, &w, n, 4));
        RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, w.room));
        for (int p = 0; p < r->size; p++)
            if (p != r->rank && memcmp(w.host + (size_t)p * row + 1, message(p, r->rank, 4), n))
                wrong_at[r->rank]++;
    }
    work_close(r, &w);
}

/* Of three ranks, whose GPUs order such writes for themselves, for none and for all, only the second one's has to be asked:
 * for each chunk. Without that its bytes would be wrong, and only its. */
static void test_registered(void **state)
{
    (void)state;
    begin((struct near_weather){.on_gpu = true, .late = LATE, .jitter = 300, .refuse = 20});
    far_run(3, "3", exchange_registered, NULL, false);
    assert_int_equal(hoccl_wire_counts.into, hoccl_wire_counts.arrived);
    assert_int_equal(hoccl_wire_counts.from, hoccl_wire_counts.arrived);
    assert_true(near_counts.unordered >= 2 * far_sizes_count - 2 && near_counts.unordered < hoccl_wire_counts.arrived / 2);
    assert_int_equal(hoccl_wire_counts.flushed, near_counts.unordered);
    assert_int_equal(near_counts.flushes, near_counts.unordered);
    hoccl_settings.test_break = HOCCL_BREAK_NO_FLUSH;
    begin((struct near_weather){.on_gpu = true, .late = VERY_LATE});
    memset(wrong_at, 0, sizeof wrong_at);
    far_run(3, "3", look_registered, NULL, false);
    hoccl_settings.test_break = HOCCL_BREAK_NOTHING;
    assert_true(!wrong_at[0] && wrong_at[1] == 2 && !wrong_at[2]);
}

/* Rank 0's first buffer cannot be registered, by no way; the other ranks' can, and its second one: that one alone is staged. */
static void one_refused(struct rank *r)
{
    struct work w;
    void *handle;
    size_t n = 2 * MIB;
    if (work_open(r, &w, 8 * MIB)) {
        for (int i = 0; i < r->size; i++) {
            pthread_barrier_wait(&meeting);
            if (i != r->rank)
                continue;
            near.fail_region = i ? 0 : 3; /* after a dma-buf, with and without the flag for PCIe, this is the last way */
            RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)w.out, w.room, &handle));
            RANK_TRUE(r, handle && !near.fail_region);
            RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)w.in, w.room, &handle));
        }
        pthread_barrier_wait(&meeting);
        exchange(r, &w, n, 6);
    }
    work_close(r, &w);
}

static void test_registered_refused(void **state)
{
    const struct hoccl_wire_count *c = &hoccl_wire_counts;
    (void)state;
    begin((struct near_weather){.on_gpu = true, .no_dmabuf = true});
    far_run(3, "3", one_refused, NULL, false);
    assert_int_equal(c->into, c->arrived); /* every receive is where it belongs, */
    assert_int_equal(c->granted, 0);
    assert_true(c->filled && c->from > c->filled); /* and two of three ranks send from there */
    assert_int_equal(c->from + c->filled, c->arrived);
}

/* ---- flushes in bad weather -------------------------------------------------------------------------------------- */

/* Who of two ranks receives what is to be flushed, from slots or in registered memory, and what an error of it says. */
struct receipt {
    int rank;
    bool (*open)(struct rank *r, struct work *w, size_t room);
    const char *where, *why;
};

/* The peer closes its connection while what it has sent is still to be flushed: it counts all the same. */
static void send_and_leave(struct rank *r)
{
    const struct receipt *receipt = r->arg;
    size_t n = 2 * MIB + 1;
    struct work w;
    bool opened = receipt->open(r, &w, 4 * MIB), receives = r->rank == receipt->rank;
    if (opened && !receives) {
        RANK_CUDA(r, cuMemcpyHtoD(w.out, message(r->rank, 1 - r->rank, 2), n));
        RANK_CUDA(r, cuStreamSynchronize(NULL));
        RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 1 - r->rank, r->comm, w.stream));
        RANK_OK(r, HOCCL_CommDestroy(r->comm));
        r->comm = HOCCL_COMM_NULL;
    } else if (receives) {
        RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1 - r->rank, r->comm, w.stream));
        RANK_OK(r, stream_end(r, &w));
        RANK_CUDA(r, cuMemcpyDtoH(w.host, w.in, n));
        same(r, w.host, message(1 - r->rank, r->rank, 2), n, 1 - r->rank);
        RANK_OK(r, HOCCL_CommAbort(r->comm));
        r->comm = HOCCL_COMM_NULL;
    }
    work_close(r, &w);
}

static void test_leave(void **state)
{
    struct receipt slots = {.rank = 0, .open = work_open}, registered = {.rank = 1, .open = work_open_registered};
    (void)state;
    begin((struct near_weather){.on_gpu = true, .delay = 3000}); /* a flush takes so long, the news of the peer's end does not */
    far_run(2, "2", send_and_leave, &slots, false);
    uint64_t flushed = hoccl_wire_counts.flushed;
    assert_true(flushed >= 3);
    far_run(2, "2", send_and_leave, &registered, false);
    assert_true(hoccl_wire_counts.flushed >= flushed + 3 && hoccl_wire_counts.into == hoccl_wire_counts.flushed - flushed);
    begin(fair);
}

/* A flush that cannot be done, or is never answered, is an error of the receive that names it; the peer hears of it. */
static void cannot_be_read(struct rank *r)
{
    const struct receipt *receipt = r->arg;
    size_t n = 4 * MIB;
    struct work w;
    if (receipt->open(r, &w, n)) {
        bool receives = r->rank == receipt->rank;
        if (receives)
            RANK_OK(r, HOCCL_Recv((void *)w.in, n, HOCCL_BYTE, 1 - r->rank, r->comm, w.stream));
        else
            RANK_OK(r, HOCCL_Send((void *)w.out, n, HOCCL_BYTE, 1 - r->rank, r->comm, w.stream));
        HOCCL_Result e = stream_end(r, &w);
        if (receives) {
            RANK_TRUE(r, e == HOCCL_ERR_DEVICE && strstr(HOCCL_GetLastError(), receipt->where));
            RANK_TRUE(r, strstr(HOCCL_GetLastError(), receipt->why));
        }
        RANK_OK(r, HOCCL_CommAbort(r->comm));
        r->comm = HOCCL_COMM_NULL;
    }
    work_close(r, &w);
}

/* The first flush of the message cannot be done, and of another one the last is never answered. */
static void flush_fails(struct receipt receipt)
{
    receipt.why = "lets this flush fail";
    begin((struct near_weather){.on_gpu = true, .fail_flush = 1});
    far_run(2, "2", cannot_be_read, &receipt, false);
    begin(fair);
    far_run(2, "2", all_sizes, NULL, false);
    receipt.why = "HOCCL_TIMEOUT";
    hoccl_settings.timeout = 1000000000;
    begin((struct near_weather){.on_gpu = true, .lose_flush = 8});
    far_run(2, "2", cannot_be_read, &receipt, false);
    hoccl_settings.timeout = 30000000000;
    begin(fair);
    far_run(2, "2", all_sizes, NULL, false);
}

static void test_flush_fails(void **state)
{
    (void)state;
    flush_fails((struct receipt){.rank = 0, .open = work_open, .where = "on the GPU 1 cannot be read"});
    flush_fails((struct receipt){.rank = 1, .open = work_open_registered, .where = "on its own GPU 1 cannot be read"});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_gpu), cmocka_unit_test(test_early), cmocka_unit_test(test_refusals), cmocka_unit_test(test_no_flush),
        cmocka_unit_test(test_registered), cmocka_unit_test(test_registered_refused), cmocka_unit_test(test_leave), cmocka_unit_test(test_flush_fails),
    };
    const char *source = getenv("top_srcdir");
    char file[4096];
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    far_noise();
    ranks_environment(4);
    snprintf(file, sizeof file, "%s/test/topo-data/two-gpus-a-nic.xml", source ? source : ".");
    setenv("HOCCL_TOPO_FILE", file, 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("HOCCL_EMU_PCI", "0000:19:00.0,0000:1a:00.0,0000:9a:00.0,0000:9b:00.0", 1);
    setenv("HOCCL_EMU_RDMA", "pcie,dmabuf,address,off", 1);
    setenv("HOCCL_EMU_RDMA_ORDER", "owner,none,all,owner", 1);
    if (hoccl_settings_load_once())
        return 1;
    hoccl_wire_transport = &near_transport;
    return cmocka_run_group_tests_name("slots on symmetric GPUs", tests, NULL, NULL);
}
