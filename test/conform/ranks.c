/* SPDX-License-Identifier: Apache-2.0 */
/* See ranks.h. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static bool __attribute__((format(printf, 2, 3))) note(struct rank *rank, const char *format, ...)
{
    va_list arguments;
    int n;

    if (rank->failed)
        return false;
    rank->failed = true;
    n = snprintf(rank->text, sizeof rank->text, "rank %d of %d: ", rank->rank, rank->size);
    va_start(arguments, format);
    vsnprintf(rank->text + n, sizeof rank->text - (size_t)n, format, arguments);
    va_end(arguments);
    return false;
}

bool rank_result(struct rank *rank, HOCCL_Result result, const char *call, const char *file, int line)
{
    if (result == HOCCL_SUCCESS)
        return true;
    return note(rank, "%s:%d: %s: %s: %s", file, line, call, HOCCL_GetErrorString(result), HOCCL_GetLastError());
}

bool rank_cuda(struct rank *rank, CUresult result, const char *call, const char *file, int line)
{
    const char *name = NULL;

    if (result == CUDA_SUCCESS)
        return true;
    cuGetErrorName(result, &name);
    return note(rank, "%s:%d: %s: %s", file, line, call, name ? name : "unknown error");
}

bool rank_true(struct rank *rank, bool condition, const char *text, const char *file, int line)
{
    return condition ? true : note(rank, "%s:%d: not true: %s (last error: %s)", file, line, text, HOCCL_GetLastError());
}

bool rank_fails(struct rank *rank, HOCCL_Result result, HOCCL_Result wanted, const char *words, const char *call,
                const char *file, int line)
{
    const char *text = HOCCL_GetLastError();

    if (result == HOCCL_SUCCESS)
        return note(rank, "%s:%d: %s: success, where \"%s\" was expected", file, line, call, HOCCL_GetErrorString(wanted));
    if (result == wanted && *text && (!words || strstr(text, words)))
        return true;
    return note(rank, "%s:%d: %s: %s: \"%s\", where \"%s\" with \"%s\" was expected", file, line, call,
                HOCCL_GetErrorString(result), text, HOCCL_GetErrorString(wanted), words ? words : "");
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void end_comm(struct rank *rank)
{
    if (rank->comm == HOCCL_COMM_NULL)
        return;
    if (rank->failed)
        HOCCL_CommAbort(rank->comm);
    else
        RANK_OK(rank, HOCCL_CommDestroy(rank->comm));
}

static void with_context(struct rank *rank)
{
    if (!rank->bare && !RANK_OK(rank, HOCCL_CommInitRank(&rank->comm, rank->size, rank->id, rank->rank)))
        return;
    rank->body(rank);
    end_comm(rank);
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;

    if (!RANK_CUDA(rank, cuInit(0)) || !RANK_CUDA(rank, cuDevicePrimaryCtxRetain(&rank->context, rank->rank)))
        return NULL;
    if (RANK_CUDA(rank, cuCtxSetCurrent(rank->context)))
        with_context(rank);
    cuCtxSetCurrent(NULL);
    RANK_CUDA(rank, cuDevicePrimaryCtxRelease(rank->rank));
    return NULL;
}

static void run(int size, void (*body)(struct rank *), void *arg, bool bare)
{
    struct rank *ranks = calloc((size_t)size, sizeof *ranks);
    char text[sizeof ranks->text] = "";
    HOCCL_UniqueId id;

    assert_non_null(ranks);
    if (HOCCL_GetUniqueId(&id))
        fail_msg("HOCCL_GetUniqueId: %s", HOCCL_GetLastError());
    alarm(getenv("LONG_TESTS") ? 10 * RANKS_SECONDS : RANKS_SECONDS); /* its default action ends the program */
    for (int i = 0; i < size; i++) {
        ranks[i] = (struct rank){.rank = i, .size = size, .arg = arg, .id = id, .bare = bare, .body = body};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < size; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (!ranks[i].failed)
            continue;
        print_error("%s\n", ranks[i].text);
        if (!*text)
            memcpy(text, ranks[i].text, sizeof text);
    }
    alarm(0);
    free(ranks);
    if (*text)
        fail_msg("%s", text);
}

void ranks_run(int size, void (*body)(struct rank *), void *arg)
{
    run(size, body, arg, false);
}

void ranks_run_bare(int size, void (*body)(struct rank *), void *arg)
{
    run(size, body, arg, true);
}

/* ---- an exchange ------------------------------------------------------------------------------------------------- */

static unsigned char pattern(size_t at, int from, int to, unsigned key)
{
    return (unsigned char)((at * 7 + (at >> 8) * 13) ^ ((unsigned)from * 31 + (unsigned)to * 101 + key * 17 + 1));
}

/* One row of `bytes` for each rank: what is sent to it, then, below, what came from it. */
struct rows {
    int rank, size;
    size_t bytes;
    unsigned key;
    unsigned char *host;
    CUdeviceptr out, in;
    CUstream stream;
};

static void fill(struct rows *x)
{
    for (int peer = 0; peer < x->size; peer++)
        for (size_t i = 0; i < x->bytes; i++)
            x->host[(size_t)peer * x->bytes + i] = pattern(i, x->rank, peer, x->key);
}

static bool verify(struct rank *rank, const struct rows *x)
{
    for (int peer = 0; peer < x->size; peer++)
        for (size_t i = 0; i < x->bytes && peer != x->rank; i++)
            if (x->host[(size_t)peer * x->bytes + i] != pattern(i, peer, x->rank, x->key))
                return note(rank, "byte %zu of %zu from rank %d is wrong", i, x->bytes, peer);
    return true;
}

static bool post(struct rank *rank, HOCCL_Comm comm, const struct rows *x)
{
    if (!RANK_OK(rank, HOCCL_GroupStart()))
        return false;
    for (int peer = 0; peer < x->size; peer++) {
        size_t row = (size_t)peer * x->bytes;
        if (peer == x->rank)
            continue;
        RANK_OK(rank, HOCCL_Send((const void *)(x->out + row), x->bytes, HOCCL_BYTE, peer, comm, x->stream));
        RANK_OK(rank, HOCCL_Recv((void *)(x->in + row), x->bytes, HOCCL_BYTE, peer, comm, x->stream));
    }
    return RANK_OK(rank, HOCCL_GroupEnd());
}

static bool exchange(struct rank *rank, HOCCL_Comm comm, struct rows *x)
{
    HOCCL_Result error = HOCCL_SUCCESS;
    size_t all = (size_t)x->size * x->bytes;

    fill(x);
    return RANK_CUDA(rank, cuMemcpyHtoD(x->out, x->host, all)) && RANK_CUDA(rank, cuStreamSynchronize(NULL)) &&
           post(rank, comm, x) &&
           RANK_CUDA(rank, cuStreamSynchronize(x->stream)) && RANK_OK(rank, HOCCL_CommGetAsyncError(comm, &error)) &&
           RANK_OK(rank, error) && RANK_CUDA(rank, cuMemcpyDtoH(x->host, x->in, all)) && verify(rank, x);
}

bool rank_exchange(struct rank *rank, HOCCL_Comm comm, size_t bytes, unsigned key)
{
    struct rows x = {.bytes = bytes, .key = key};
    bool good;

    if (!RANK_OK(rank, HOCCL_CommSize(comm, &x.size)) || !RANK_OK(rank, HOCCL_CommRank(comm, &x.rank)))
        return false;
    x.host = malloc((size_t)x.size * bytes + 1);
    if (!RANK_TRUE(rank, x.host))
        return false;
    good = RANK_CUDA(rank, cuStreamCreate(&x.stream, CU_STREAM_NON_BLOCKING)) &&
           RANK_CUDA(rank, cuMemAlloc(&x.out, (size_t)x.size * bytes + 1)) &&
           RANK_CUDA(rank, cuMemAlloc(&x.in, (size_t)x.size * bytes + 1)) && exchange(rank, comm, &x);
    if (x.in)
        cuMemFree(x.in);
    if (x.out)
        cuMemFree(x.out);
    if (x.stream)
        cuStreamDestroy(x.stream);
    free(x.host);
    return good;
}

/* ---- what is held ------------------------------------------------------------------------------------------------ */

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    if (!d)
        return -1;
    for (struct dirent *e; (e = readdir(d));)
        n += *e->d_name != '.';
    closedir(d);
    return n;
}

int ranks_descriptors(void)
{
    return entries("/proc/self/fd");
}

int ranks_threads(void)
{
    return entries("/proc/self/task");
}

bool ranks_settle(int descriptors, int threads)
{
    for (int i = 0; i < 500; i++) {
        if (ranks_descriptors() <= descriptors && ranks_threads() <= threads)
            return true;
        usleep(10000);
    }
    print_error("%d descriptors (at most %d expected), %d threads (%d)\n", ranks_descriptors(), descriptors, ranks_threads(),
                threads);
    return false;
}

void ranks_hold(int *descriptors, int *threads)
{
    for (int same = 0; same < 20; same++) {
        if (*descriptors != ranks_descriptors() || *threads != ranks_threads())
            same = 0;
        *descriptors = ranks_descriptors();
        *threads = ranks_threads();
        usleep(10000);
    }
}

void ranks_environment(int devices)
{
    char text[16];

    snprintf(text, sizeof text, "%d", devices);
    setenv("HOCCL_DEVICE", "emu", 0);
    setenv("HOCCL_EMU_DEVICES", text, 0);
    if (!strcmp(getenv("HOCCL_DEVICE"), "emu"))
        unsetenv("CUDA_VISIBLE_DEVICES");
}
