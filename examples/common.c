/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples share. Patterns are made and checked by the CPU, so that nothing of it runs on the GPU. */
#include "common.h"

#include <ctype.h>
#include <hoccl_cuda.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE = 4 << 20 };

static __thread int my_rank = -1;

void fail(const char *format, ...)
{
    char text[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (my_rank >= 0)
        fprintf(stderr, "rank %d: %s\n", my_rank, text);
    else
        fprintf(stderr, "%s\n", text);
    exit(1);
}

void check_hoccl(HOCCL_Result result, const char *what)
{
    if (result != HOCCL_SUCCESS)
        fail("%s: %s: %s", what, HOCCL_GetErrorString(result), HOCCL_GetLastError());
}

void check_cuda(CUresult result, const char *what)
{
    const char *text = NULL;

    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorString(result, &text);
    fail("%s: %s (%d)", what, text ? text : "unknown error", result);
}

/* Who this rank is and what it runs on. */
static void job_look(struct job *job)
{
    check_hoccl(HOCCL_CommRank(job->comm, &job->rank), "HOCCL_CommRank");
    my_rank = job->rank;
    check_hoccl(HOCCL_CommSize(job->comm, &job->size), "HOCCL_CommSize");
    check_hoccl(HOCCL_CommDevice(job->comm, &job->device), "HOCCL_CommDevice");
    check_cuda(cuDeviceGetName(job->gpu, sizeof job->gpu, job->device), "cuDeviceGetName");
    job->driver = hoccl_cuda_driver_name();
}

void job_open(struct job *job)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_hoccl(HOCCL_Init(), "HOCCL_Init");
    job->comm = HOCCL_COMM_WORLD;
    job_look(job);
}

void job_open_thread(struct job *job, HOCCL_UniqueId id, int rank, int size)
{
    CUcontext context;
    int devices;

    my_rank = rank;
    check_cuda(cuInit(0), "cuInit");
    check_cuda(cuDeviceGetCount(&devices), "cuDeviceGetCount");
    check_cuda(cuDevicePrimaryCtxRetain(&context, rank % devices), "cuDevicePrimaryCtxRetain");
    check_cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check_hoccl(HOCCL_CommInitRank(&job->comm, size, id, rank), "HOCCL_CommInitRank");
    job_look(job);
}

void job_close_thread(struct job *job)
{
    check_hoccl(HOCCL_CommDestroy(job->comm), "HOCCL_CommDestroy");
    check_cuda(cuDevicePrimaryCtxRelease(job->device), "cuDevicePrimaryCtxRelease");
}

long job_sm_work(void)
{
    uint64_t work;

    return hoccl_cuda_sm_work(&work) ? (long)work : -1;
}

void job_close(void)
{
    check_hoccl(HOCCL_Finalize(), "HOCCL_Finalize");
}

size_t size_parse(const char *text)
{
    static const char units[] = "KMGT";
    const char *unit;
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = 0;

    if (*end && (unit = strchr(units, toupper((unsigned char)*end)))) {
        shift = 10 * (int)(unit - units + 1);
        end++;
    }
    if (!isdigit((unsigned char)*text) || *end || value > SIZE_MAX >> shift) {
        fprintf(stderr, "%s is not a size; write 8, 64K, 1M or 2G\n", text);
        exit(2);
    }
    return (size_t)value << shift;
}

double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The eight bytes number index of a message: a mixing function of 64 bits (SplitMix64's). */
static uint64_t pattern_word(uint64_t key, size_t index)
{
    uint64_t word = key + 0x9e3779b97f4a7c15u * (index + 1);

    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

static uint64_t pattern_key(struct message message)
{
    return pattern_word((uint64_t)message.source << 32 | (uint32_t)message.destination, message.number);
}

/* The pattern from offset on, which is a multiple of 8; writes whole words. */
static void pattern_make(unsigned char *to, size_t bytes, size_t offset, uint64_t key)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = pattern_word(key, (offset + at) / 8);
        memcpy(to + at, &word, 8);
    }
}

void copy_in(CUdeviceptr to, const void *from, size_t bytes)
{
    if (!bytes)
        return;
    check_cuda(cuMemcpyHtoD(to, from, bytes), "cuMemcpyHtoD");
    check_cuda(cuStreamSynchronize(NULL), "cuStreamSynchronize");
}

void pattern_fill(CUdeviceptr to, size_t bytes, struct message message)
{
    unsigned char *piece = malloc(PIECE);

    if (!piece)
        fail("no memory for %d bytes", PIECE);
    for (size_t offset = 0; offset < bytes; offset += PIECE) {
        size_t part = bytes - offset < PIECE ? bytes - offset : PIECE;
        pattern_make(piece, part, offset, pattern_key(message));
        copy_in(to + offset, piece, part);
    }
    free(piece);
}

void pattern_fill_host(void *to, size_t bytes, struct message message)
{
    uint64_t key = pattern_key(message), last;
    size_t whole = bytes / 8 * 8;

    pattern_make(to, whole, 0, key);
    pattern_make((unsigned char *)&last, bytes - whole, whole, key);
    memcpy((unsigned char *)to + whole, &last, bytes - whole);
}

size_t pattern_check(const unsigned char *data, size_t bytes, struct message message, size_t *offset, int *expected)
{
    uint64_t key = pattern_key(message), word;
    size_t wrong = 0;

    for (size_t at = 0; at < bytes; at += 8) {
        size_t part = bytes - at < 8 ? bytes - at : 8;
        word = pattern_word(key, at / 8);
        if (!memcmp(data + at, &word, part))
            continue;
        for (size_t i = 0; i < part; i++) {
            int right = ((unsigned char *)&word)[i];
            if (data[at + i] == right)
                continue;
            if (!wrong++) {
                *offset = at + i;
                *expected = right;
            }
        }
    }
    return wrong;
}
