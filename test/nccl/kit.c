/* SPDX-License-Identifier: Apache-2.0 */
/* See kit.h. */
#include "kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool nccl_ok(struct rank *rank, ncclResult_t result, const char *call, const char *file, int line)
{
    char text[640];

    if (result == ncclSuccess)
        return true;
    snprintf(text, sizeof text, "%s: %s: %s", call, ncclGetErrorString(result), ncclGetLastError(NULL));
    return rank_true(rank, false, text, file, line);
}

bool nccl_fails(struct rank *rank, ncclResult_t result, ncclResult_t wanted, const char *words, const char *call, const char *file,
                int line)
{
    char text[1024];

    if (result == wanted && strstr(ncclGetLastError(NULL), words))
        return true;
    snprintf(text, sizeof text, "%s: %s: \"%s\" instead of %s with \"%s\"", call, ncclGetErrorString(result), ncclGetLastError(NULL),
             ncclGetErrorString(wanted), words);
    return rank_true(rank, false, text, file, line);
}

void nccl_good(ncclResult_t result)
{
    if (result != ncclSuccess)
        fail_msg("%s: %s", ncclGetErrorString(result), ncclGetLastError(NULL));
}

void nccl_bad(ncclResult_t result, ncclResult_t wanted, const char *words)
{
    if (result != wanted || !strstr(ncclGetLastError(NULL), words))
        fail_msg("%s: \"%s\" instead of %s with \"%s\"", ncclGetErrorString(result), ncclGetLastError(NULL),
                 ncclGetErrorString(wanted), words);
}

static unsigned char byte_at(size_t i, int from, int to, unsigned key)
{
    return (unsigned char)((i * 7 + (i >> 8) * 13 + (i >> 16) * 29) ^ ((unsigned)from * 31 + (unsigned)to * 101 + key * 17 + 1));
}

bool nccl_fill(struct rank *rank, void *buf, size_t bytes, int from, int to, unsigned key)
{
    unsigned char *host = malloc(bytes + 1);
    bool good = RANK_TRUE(rank, host);

    for (size_t i = 0; good && i < bytes; i++)
        host[i] = byte_at(i, from, to, key);
    good = good && (!bytes || RANK_CUDA(rank, cuMemcpyHtoD((CUdeviceptr)buf, host, bytes))) && RANK_CUDA(rank, cuStreamSynchronize(NULL));
    free(host);
    return good;
}

bool nccl_verify(struct rank *rank, const void *buf, size_t bytes, int from, int to, unsigned key)
{
    unsigned char *host = malloc(bytes + 1);
    bool good = RANK_TRUE(rank, host) && (!bytes || RANK_CUDA(rank, cuMemcpyDtoH(host, (CUdeviceptr)buf, bytes)));
    char text[128];

    for (size_t i = 0; good && i < bytes; i++) {
        if (host[i] == byte_at(i, from, to, key))
            continue;
        snprintf(text, sizeof text, "byte %zu of %zu from %d to %d, key %u, is right", i, bytes, from, to, key);
        good = rank_true(rank, false, text, __FILE__, __LINE__);
    }
    free(host);
    return good;
}

bool nccl_sync(struct rank *rank, ncclComm_t comm, CUstream stream)
{
    ncclResult_t error = ncclInternalError;

    return RANK_CUDA(rank, cuStreamSynchronize(stream)) && NCCL_OK(rank, ncclCommGetAsyncError(comm, &error)) && NCCL_OK(rank, error);
}

ncclResult_t nccl_settled(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;

    for (int i = 0; i < 20000 && state == ncclInProgress; i++) {
        ncclResult_t r = ncclCommGetAsyncError(comm, &state);
        if (r != ncclSuccess)
            return r;
        usleep(1000);
    }
    return state;
}
