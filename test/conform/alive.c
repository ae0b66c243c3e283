/* SPDX-License-Identifier: Apache-2.0 */
/* A rank whose peer waits for it, and which is busy elsewhere for longer than HOCCL_TIMEOUT, says ALIVE so that it is not taken
 * for dead. Ranks on several nodes over the tests' transport; engines so slow that it can be seen. The same is done once more
 * while the network loses every ALIVE: then whoever waits gives up, so it is the word that keeps them.
 *
 *   sender busy     rank 0 sends to three: two flows have the turn, the third has its grants and does not begin
 *   receiver busy   rank 0 receives from seven: all have begun, and its engine takes long to empty the slots that it could
 *                   grant again */
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
#include "near.h"
#include "p2p/wire.h"

#define TIMEOUT 800000000 /* ns; an engine's next chunk takes an eighth of it */
#define BYTES (8 * MIB)

static struct hoccl_transport dear; /* the tests' one, which says that a write costs much: so chunks are as large as can be */
static int silent; /* ranks that have given a silent peer up */

/* GPU memory that the CPU may touch: to copy by the engines would take as long as the test. */
static unsigned char *cpu(CUdeviceptr p)
{
    return (unsigned char *)(uintptr_t)p;
}

/* Of different sizes, if they are to be uneven: so all of them begin. */
static size_t bytes_of(const struct rank *r, int peer)
{
    bool *uneven = r->arg;
    return BYTES + (*uneven ? (size_t)peer : 0);
}

static void conclude(struct rank *r, HOCCL_Result e)
{
    if (e == HOCCL_ERR_TIMEOUT && strstr(HOCCL_GetLastError(), "has been silent"))
        __atomic_add_fetch(&silent, 1, __ATOMIC_RELAXED);
    else if (!near.mute || e != HOCCL_ERR_PEER) /* it has heard of one that gave up */
        RANK_OK(r, e);
    if (!e)
        return;
    RANK_OK(r, HOCCL_CommAbort(r->comm));
    r->comm = HOCCL_COMM_NULL;
}

/* Rank 0's messages with all others, in one group: it sends them, or receives them. */
static void with_all(struct rank *r, bool zero_sends)
{
    struct work w;
    bool zero = !r->rank, sends = zero == zero_sends;
    int first = zero ? 1 : 0, last = zero ? r->size - 1 : 0;
    size_t row = BYTES + 64;
    if (work_open(r, &w, (size_t)(last + 1) * row)) {
        RANK_OK(r, HOCCL_GroupStart());
        for (int p = first; p <= last; p++) {
            size_t n = bytes_of(r, zero ? p : r->rank);
            if (sends) {
                memcpy(cpu(w.out) + (size_t)p * row, message(r->rank, p, 1), n);
                RANK_OK(r, HOCCL_Send((void *)(w.out + (size_t)p * row), n, HOCCL_BYTE, p, r->comm, w.stream));
            } else {
                RANK_OK(r, HOCCL_Recv((void *)(w.in + (size_t)p * row), n, HOCCL_BYTE, p, r->comm, w.stream));
            }
        }
        RANK_OK(r, HOCCL_GroupEnd());
        HOCCL_Result e = stream_end(r, &w);
        for (int p = first; p <= last && !e && !sends; p++)
            same(r, cpu(w.in) + (size_t)p * row, message(p, r->rank, 1), bytes_of(r, zero ? p : r->rank), p);
        conclude(r, e);
    }
    work_close(r, &w);
}

static void zero_sends(struct rank *r)
{
    with_all(r, true);
}

static void zero_receives(struct rank *r)
{
    with_all(r, false);
}

/* It goes well, and would not without the word. */
static void run(int size, void (*body)(struct rank *), bool uneven)
{
    char nodes[8];
    snprintf(nodes, sizeof nodes, "%d", size);
    near_counts = (struct near_count){0};
    hoccl_settings.timeout = TIMEOUT;
    silent = 0;
    near = (struct near_weather){0};
    far_run(size, nodes, body, &uneven, false);
    assert_int_equal(silent, 0);
    assert_true(near_counts.alive > 0);
    near = (struct near_weather){.mute = true};
    for (int i = 0; i < 5 && !silent; i++) /* on a machine so busy that this process seems to have been stopped, patience begins again */
        far_run(size, nodes, body, &uneven, false);
    assert_true(silent > 0);
    near = (struct near_weather){0};
}

static void test_sender_busy(void **state)
{
    (void)state;
    run(4, zero_sends, false);
}

static void test_receiver_busy(void **state)
{
    (void)state;
    run(8, zero_receives, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sender_busy), cmocka_unit_test(test_receiver_busy)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    far_noise();
    setenv("HOCCL_EMU_RATE", "d2h=10,h2d=10", 1);
    setenv("HOCCL_EMU_PEERMEM", "1", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("HOCCL_DEVICE", "emu", 1);
    ranks_environment(8);
    if (hoccl_settings_load_once())
        return 1;
    dear = near_transport;
    dear.cost.start = 1000000;
    hoccl_wire_transport = &dear;
    return cmocka_run_group_tests_name("ranks that are busy", tests, NULL, NULL);
}
