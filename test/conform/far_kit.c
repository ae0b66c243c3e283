/* SPDX-License-Identifier: Apache-2.0 */
/* See far.h. */
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

pthread_barrier_t meeting;

bool work_open(struct rank *r, struct work *w, size_t room)
{
    *w = (struct work){.room = room, .host = malloc(room)};
    return RANK_TRUE(r, w->host) && RANK_CUDA(r, cuMemAlloc(&w->out, room)) && RANK_CUDA(r, cuMemAlloc(&w->in, room)) &&
           RANK_CUDA(r, cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
}

bool work_open_registered(struct rank *r, struct work *w, size_t room)
{
    void *handle;
    return work_open(r, w, room) && RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)w->out, room, &handle)) &&
           RANK_OK(r, HOCCL_CommRegister(r->comm, (void *)w->in, room, &handle));
}

void work_close(struct rank *r, struct work *w)
{
    pthread_barrier_wait(&meeting);
    RANK_CUDA(r, cuStreamDestroy(w->stream));
    RANK_CUDA(r, cuMemFree(w->in));
    RANK_CUDA(r, cuMemFree(w->out));
    free(w->host);
    pthread_barrier_wait(&meeting);
}

#define NOISE (34 * MIB + (1 << 20))
static unsigned char noise[NOISE];

void far_noise(void)
{
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < NOISE; i += sizeof x) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(noise + i, &x, sizeof x);
    }
}

const unsigned char *message(int from, int to, unsigned key)
{
    return noise + ((unsigned)from * 7919u + (unsigned)to * 104729u + key * 1299709u) % (1u << 20);
}

bool same(struct rank *r, const unsigned char *got, const unsigned char *right, size_t n, int from)
{
    if (!memcmp(got, right, n))
        return true;
    size_t i = 0;
    while (got[i] == right[i])
        i++;
    printf("rank %d: %zu bytes of rank %d: byte %zu is %02x, not %02x\n", r->rank, n, from, i, got[i], right[i]);
    return RANK_TRUE(r, !"a byte is wrong");
}

bool filled_with(struct rank *r, const unsigned char *got, int value, size_t n)
{
    return !n || RANK_TRUE(r, got[0] == value && !memcmp(got, got + 1, n - 1));
}

HOCCL_Result stream_end(struct rank *r, const struct work *w)
{
    HOCCL_Result error = HOCCL_SUCCESS;
    if (!RANK_CUDA(r, cuStreamSynchronize(w->stream)) || !RANK_OK(r, HOCCL_CommGetAsyncError(r->comm, &error)))
        return HOCCL_ERR_INTERNAL;
    return error;
}

HOCCL_Result all_to_all_again(struct rank *r, struct work *w, size_t n)
{
    size_t row = n + 67;
    RANK_OK(r, HOCCL_GroupStart());
    for (int d = 1; d < r->size; d++) {
        int to = (r->rank + d) % r->size, from = (r->rank - d + r->size) % r->size;
        RANK_OK(r, HOCCL_Send((void *)(w->out + (size_t)to * row + 1), n, HOCCL_BYTE, to, r->comm, w->stream));
        RANK_OK(r, HOCCL_Recv((void *)(w->in + (size_t)from * row + 1), n, HOCCL_BYTE, from, r->comm, w->stream));
    }
    HOCCL_Result e = HOCCL_GroupEnd();
    return e ? e : stream_end(r, w);
}

/* Everyone sends `n` bytes to everyone else, from and to odd places; guards stand between the messages. */
HOCCL_Result all_to_all(struct rank *r, struct work *w, size_t n, unsigned key)
{
    size_t row = n + 67;
    for (int p = 0; p < r->size; p++)
        memcpy(w->host + (size_t)p * row + 1, message(r->rank, p, key), n);
    RANK_CUDA(r, cuMemcpyHtoD(w->out, w->host, row * (size_t)r->size));
    memset(w->host, 0xa5, row * (size_t)r->size);
    RANK_CUDA(r, cuMemcpyHtoD(w->in, w->host, row * (size_t)r->size));
    RANK_CUDA(r, cuStreamSynchronize(NULL));
    return all_to_all_again(r, w, n);
}

bool check_all(struct rank *r, struct work *w, size_t n, unsigned key)
{
    size_t row = n + 67;
    if (!RANK_CUDA(r, cuMemcpyDtoH(w->host, w->in, row * (size_t)r->size)))
        return false;
    for (int p = 0; p < r->size; p++) {
        const unsigned char *at = w->host + (size_t)p * row;
        size_t before = p == r->rank ? row : 1, after = p == r->rank ? 0 : row - 1 - n;
        if (!filled_with(r, at, 0xa5, before) || !filled_with(r, at + row - after, 0xa5, after) ||
            (p != r->rank && !same(r, at + 1, message(p, r->rank, key), n, p)))
            return false;
    }
    return true;
}

void exchange(struct rank *r, struct work *w, size_t n, unsigned key)
{
    RANK_OK(r, all_to_all(r, w, n, key));
    check_all(r, w, n, key);
}

void far_run(int size, const char *nodes, void (*body)(struct rank *), void *arg, bool bare)
{
    snprintf(hoccl_settings.test_node, sizeof hoccl_settings.test_node, "%s", nodes);
    pthread_barrier_init(&meeting, NULL, (unsigned)size);
    (bare ? ranks_run_bare : ranks_run)(size, body, arg);
    pthread_barrier_destroy(&meeting);
    assert_int_equal(near_left(), 0);
    assert_true(hoccl_wire_counts.filled + hoccl_wire_counts.from <= hoccl_wire_counts.allowed + hoccl_wire_counts.allowed_into);
    assert_true(hoccl_wire_counts.receiving <= 2);
    assert_true(hoccl_wire_counts.sending <= 2);
}

const size_t far_sizes[] = {0, 1, 2, 7, 64, 4097, 65535, 65536, 65537, 524288, 524289, 1048577, 3 * MIB + 1};

const size_t far_sizes_count = sizeof far_sizes / sizeof *far_sizes;

void all_sizes(struct rank *r)
{
    struct work w;
    if (work_open(r, &w, (size_t)r->size * (4 * MIB)))
        for (size_t i = 0; i < far_sizes_count; i++) /* also after a fault: nobody waits for this rank then */
            exchange(r, &w, far_sizes[i], (unsigned)i);
    work_close(r, &w);
}
