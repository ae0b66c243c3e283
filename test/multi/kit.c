/* SPDX-License-Identifier: Apache-2.0 */
/* See kit.h. */
#include "kit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXCHANGE 5000

struct job job;

static const char *name;
static CUstream stream;
static CUdeviceptr out, in;
static unsigned number;

static void on_alarm(int sig)
{
    char line[160];
    int n = snprintf(line, sizeof line, "rank %d: %s: HUNG\n", job.rank, name);
    (void)sig;
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        _exit(4);
    _exit(3);
}

void kit_open(unsigned seconds, const char *what)
{
    name = what;
    signal(SIGALRM, on_alarm);
    alarm(seconds);
    job_open(&job);
    stream = kit_stream();
    out = kit_memory(EXCHANGE);
    in = kit_guarded(EXCHANGE);
}

void kit_close(void)
{
    job_close();
    alarm(0);
}

CUstream kit_stream(void)
{
    CUstream s;
    check_cuda(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return s;
}

CUdeviceptr kit_memory(size_t bytes)
{
    CUdeviceptr p;
    check_cuda(cuMemAlloc(&p, bytes ? bytes : 1), "cuMemAlloc");
    return p;
}

CUdeviceptr kit_guarded(size_t bytes)
{
    CUdeviceptr p = kit_memory(bytes + 2 * GUARD);
    check_cuda(cuMemsetD8(p, GUARD_BYTE, bytes + 2 * GUARD), "cuMemsetD8");
    check_cuda(cuStreamSynchronize(NULL), "cuMemsetD8"); /* it may still run when the call returns */
    return p + GUARD;
}

void kit_guards(CUdeviceptr p, size_t bytes, const char *what)
{
    unsigned char seen[2 * GUARD];
    check_cuda(cuMemcpyDtoH(seen, p - GUARD, GUARD), "cuMemcpyDtoH");
    check_cuda(cuMemcpyDtoH(seen + GUARD, p + bytes, GUARD), "cuMemcpyDtoH");
    for (int i = 0; i < 2 * GUARD; i++)
        if (seen[i] != GUARD_BYTE)
            fail("%s: byte %d %s the buffer has been written", what, i % GUARD, i < GUARD ? "before" : "behind");
}

void kit_verify(CUdeviceptr p, size_t bytes, struct message message, const char *what)
{
    size_t at = 0;
    int right = 0;
    unsigned char *seen = malloc(bytes ? bytes : 1);
    if (!seen)
        fail("no memory for %zu bytes", bytes);
    if (bytes)
        check_cuda(cuMemcpyDtoH(seen, p, bytes), "cuMemcpyDtoH");
    size_t wrong = pattern_check(seen, bytes, message, &at, &right);
    if (wrong)
        fail("%s: %zu of %zu bytes are wrong, the first at %zu: 0x%02x, not 0x%02x", what, wrong, bytes, at, seen[at], right);
    free(seen);
}

HOCCL_Result kit_async_error(void)
{
    HOCCL_Result e;
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &e), "HOCCL_CommGetAsyncError");
    return e;
}

void kit_sync(CUstream s, const char *what)
{
    check_cuda(cuStreamSynchronize(s), what);
    check_hoccl(kit_async_error(), what);
}

HOCCL_Result kit_send(CUdeviceptr p, size_t bytes, int peer, CUstream s)
{
    return HOCCL_Send(kit_pointer(p), bytes, HOCCL_BYTE, peer, HOCCL_COMM_WORLD, s);
}

HOCCL_Result kit_recv(CUdeviceptr p, size_t bytes, int peer, CUstream s)
{
    return HOCCL_Recv(kit_pointer(p), bytes, HOCCL_BYTE, peer, HOCCL_COMM_WORLD, s);
}

void kit_exchange(const char *what)
{
    int right = (job.rank + 1) % job.size, left = (job.rank + job.size - 1) % job.size;
    number++;
    pattern_fill(out, EXCHANGE, (struct message){job.rank, right, number});
    check_hoccl(HOCCL_GroupStart(), what);
    check_hoccl(kit_send(out, EXCHANGE, right, stream), what);
    check_hoccl(kit_recv(in, EXCHANGE, left, stream), what);
    check_hoccl(HOCCL_GroupEnd(), what);
    kit_sync(stream, what);
    kit_verify(in, EXCHANGE, (struct message){left, job.rank, number}, what);
    kit_guards(in, EXCHANGE, what);
}

void kit_expect(HOCCL_Result got, HOCCL_Result want, const char *words, const char *what)
{
    const char *text = got ? HOCCL_GetLastError() : "";
    if (got != want)
        fail("%s: it returned \"%s\" (%s), not \"%s\"", what, HOCCL_GetErrorString(got), text, HOCCL_GetErrorString(want));
    if (!strstr(text, words))
        fail("%s: the text does not say \"%s\": %s", what, words, text);
}

static void mark_path(char *path, size_t bytes, const char *mark)
{
    const char *folder = getenv("TMPDIR"), *run = getenv("PMIX_NAMESPACE");
    snprintf(path, bytes, "%s/mark-%s-%s", folder ? folder : "/tmp", run ? run : "alone", mark);
}

void kit_tell(const char *mark)
{
    char path[512];
    mark_path(path, sizeof path, mark);
    FILE *f = fopen(path, "w");
    if (!f)
        fail("%s: %m", path);
    fclose(f);
}

bool kit_heard(const char *mark)
{
    char path[512];
    mark_path(path, sizeof path, mark);
    return access(path, F_OK) == 0;
}

void kit_hear(const char *mark)
{
    while (!kit_heard(mark))
        usleep(2000);
}

void kit_meet(const char *mark)
{
    char one[64];
    snprintf(one, sizeof one, "%s-%d", mark, job.rank);
    kit_tell(one);
    for (int p = 0; p < job.size; p++) {
        snprintf(one, sizeof one, "%s-%d", mark, p);
        kit_hear(one);
    }
}
