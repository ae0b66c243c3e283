/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcast along its trees: every byte at every rank, whatever the size, the root and the placement; ranks that disagree,
 * whose trees then differ, all hear of it; and so do all who are left when one of them dies.
 *
 *   spread bytes [THREADS]   sizes from 0 to many pieces, every root, in place and not
 *   spread count WHO         rank WHO gives another count, so small that it sees another tree
 *   spread root WHO          rank WHO names another root
 *   spread die WHO           rank WHO kills itself in the middle of one broadcast of many (mpirun --enable-recovery) */
#include "rank.h"

#include <signal.h>
#include <unistd.h>

enum { LEAD = 513, GUARD = 0xa5 };
#define MIB ((size_t)1 << 20)

static __thread unsigned char *seen, *right;
static __thread CUdeviceptr from, to;
static bool longer;
static const char *how;
static int who;

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void noise(unsigned char *p, size_t bytes, uint64_t key)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = mix(key + i / 8);
        memcpy(p + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static void open_memory(size_t room)
{
    OK(cuMemAlloc(&from, room + 2 * LEAD));
    OK(cuMemAlloc(&to, room + 2 * LEAD));
    NEED(right = malloc(room + 2 * LEAD));
    OK(cuMemAllocHost((void **)&seen, room + 2 * LEAD));
}

/* In place, root's message stands in `to`; else in `from`, and lands in `to` there too. Guards around it, and nobody but root
 * has anything to send. */
static void broadcast(size_t bytes, int root, bool in_place)
{
    uint64_t key = mix3(bytes, (uint64_t)root, in_place);
    size_t all = bytes + 2 * LEAD;
    memset(right, GUARD, all);
    OK(cuMemcpyHtoDAsync(to, right, all, stream));
    OK(cuStreamSynchronize(stream));
    noise(right + LEAD, bytes, key);
    if (rank == root)
        OK(cuMemcpyHtoDAsync((in_place ? to : from) + LEAD, right + LEAD, bytes, stream));
    OK(HOCCL_Broadcast(rank != root ? NULL : (void *)((in_place ? to : from) + LEAD), (void *)(to + LEAD), bytes, HOCCL_BYTE, root,
                       comm, stream));
    OK(cuMemcpyDtoHAsync(seen, to, all, stream));
    OK(rank_wait());
    for (size_t i = 0; memcmp(seen, right, all) && i < all; i++)
        if (seen[i] != right[i]) {
            fprintf(stderr, "rank %d of %d: broadcast of %zu bytes from %d%s: wrong at %zd: 0x%02x, not 0x%02x\n", rank, size, bytes,
                    root, in_place ? " in place" : "", (ssize_t)i - LEAD, seen[i], right[i]);
            exit(1);
        }
}

static void all_sizes(void)
{
    static const size_t few[] = {0, 1, 4097, 3 * MIB + 1, 20 * MIB + 4095}, many[] = {8 * MIB, 64 * MIB - 1, 200 * MIB + 7};
    open_memory(longer ? 201 * MIB : 21 * MIB);
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        for (int root = 0; root < size; root += few[i] > MIB && !longer && size > 3 ? size / 2 : 1)
            broadcast(few[i], root, (root + (int)i) % 2);
    for (size_t i = 0; longer && i < sizeof many / sizeof *many; i++)
        for (int root = 0; root < size; root += size > 4 ? 3 : 1)
            broadcast(many[i], root, i % 2);
    rank_settle();
    OK(cuMemFree(from));
    OK(cuMemFree(to));
    OK(cuMemFreeHost(seen));
    free(right);
    if (!rank)
        printf("%d ranks: every byte of every broadcast right\n", size);
}

/* ---- disagreement and death -------------------------------------------------------------------------------------- */

/* Everyone ends with an error, at once; who differs, with both values. */
static void disagree(void)
{
    bool counts = !strcmp(how, "count"), other = rank == who;
    size_t bytes = 20 * MIB;
    open_memory(bytes);
    HOCCL_Result r = HOCCL_Broadcast((void *)from, (void *)to, counts && other ? 3 : bytes, HOCCL_BYTE, !counts && other, comm, stream);
    NEED(!r);
    r = rank_wait();
    NEED(r == HOCCL_ERR_MISMATCH || (r == HOCCL_ERR_PEER && !other));
    NEED(!HOCCL_CommAbort(comm)); /* its text, and those who have not heard yet */
    if (r == HOCCL_ERR_MISMATCH) {
        NEED(strstr(HOCCL_GetLastError(), counts ? "20971520 bytes" : "root 0"));
        NEED(strstr(HOCCL_GetLastError(), counts ? " 3 bytes" : "root 1"));
    }
    printf("rank %d: %s\n", rank, HOCCL_GetLastError());
}

static void survive(void)
{
    HOCCL_Result r = HOCCL_SUCCESS;
    size_t bytes = 6 * MIB;
    open_memory(bytes);
    for (int round = 0; !r; round++) {
        r = HOCCL_Broadcast((void *)to, (void *)to, bytes, HOCCL_BYTE, 0, comm, stream);
        if (round == 5 && rank == who) {
            usleep(1000);
            raise(SIGKILL);
        }
        if (!r)
            r = rank_wait();
    }
    NEED(r == HOCCL_ERR_PEER);
    printf("rank %d has heard: %s\n", rank, HOCCL_GetLastError());
    fflush(stdout);
    _exit(0); /* there is no world to leave in good order */
}

int main(int argc, char **argv)
{
    CUcontext context;
    NEED(argc > 1);
    how = argv[1];
    longer = getenv("LONG_TESTS") && *getenv("LONG_TESTS");
    who = argc > 2 ? atoi(argv[2]) : 0;
    alarm(longer ? 1500 : 200);
    if (!strcmp(how, "bytes") && who) {
        ranks_as_threads(who, all_sizes);
        return 0;
    }
    rank_open();
    OK(cuDevicePrimaryCtxRetain(&context, rank_device())); /* HOCCL_CommAbort gives up what HOCCL_Init has made */
    if (!strcmp(how, "bytes"))
        all_sizes();
    else if (!strcmp(how, "die"))
        survive();
    else
        disagree();
    if (strcmp(how, "bytes"))
        return 0;
    rank_close();
    return 0;
}
