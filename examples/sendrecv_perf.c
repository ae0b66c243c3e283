/* SPDX-License-Identifier: Apache-2.0 */
/* Send and receive in a ring, as nccl-tests' sendrecv_perf does it, between processes: every rank sends to rank + 1 and
 * receives from rank - 1 at the same time, in one group on one stream.
 *
 * For each size: warm-up operations, then a barrier, then ITERS operations enqueued back to back and one wait for the
 * stream. The time of an operation is that of the slowest rank divided by ITERS. With -c N, N more operations run one
 * at a time, each with data of its own, and every byte of each is checked, and that none was written behind the end. */
#include "common.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 };

static const char usage[] =
    "usage: mpirun -np N sendrecv_perf [options]\n"
    "  -b, --minbytes SIZE    first size (32M)\n"
    "  -e, --maxbytes SIZE    last size (32M)\n"
    "  -f, --stepfactor N     from one size to the next: times N\n"
    "  -i, --stepbytes SIZE   from one size to the next: plus SIZE (1M)\n"
    "  -n, --iters N          timed operations of each size (20)\n"
    "  -w, --warmup_iters N   operations before the timed ones (1)\n"
    "  -c, --check N          checked operations of each size (1), 0 for none\n"
    "  -J, --json FILE        write the table as JSON too\n"
    "      --raw              also time plain copies of the size from rank 0's GPU to another, and the ratio\n"
    "      --launch           also time how long the calling thread takes to enqueue one operation\n"
    "  -h, --help\n"
    "sizes: 8, 64K, 1M, 1G\n";

struct options {
    size_t first, last, step_bytes, step_factor;
    int iterations, warmup, checks;
    const char *json;
    bool raw, launch;
};

/* What one rank works with. */
struct bench {
    struct job job;
    struct options options;
    int right, left;
    CUstream stream;
    CUdeviceptr out, in, times; /* times: a double for each rank */
    unsigned char *seen;        /* pinned: what was received, and GUARD bytes behind it */
    unsigned messages;          /* checked so far: the number of the next one */
    double *launches;           /* seconds of each timed enqueue */
};

/* A GPU of this process other than its own, as the target of plain copies. */
struct peer {
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
};

/* One line of the table. */
struct row {
    size_t bytes, wrong;
    double seconds, raw_seconds, launch_median, launch_p99;
};

/* ---- Options ---- */

static bool option_take(struct options *options, int letter, const char *value)
{
    switch (letter) {
    case 'b':
        options->first = size_parse(value);
        return true;
    case 'e':
        options->last = size_parse(value);
        return true;
    case 'f':
        options->step_factor = (size_t)atoi(value);
        return true;
    case 'i':
        options->step_bytes = size_parse(value);
        return true;
    case 'n':
        options->iterations = atoi(value);
        return true;
    case 'w':
        options->warmup = atoi(value);
        return true;
    case 'c':
        options->checks = atoi(value);
        return true;
    case 'J':
        options->json = value;
        return true;
    case 'r':
        options->raw = true;
        return true;
    case 'l':
        options->launch = true;
        return true;
    default:
        return false;
    }
}

static struct options options_parse(int argc, char **argv)
{
    static const struct option names[] = {
        {"minbytes", 1, NULL, 'b'},  {"maxbytes", 1, NULL, 'e'}, {"stepfactor", 1, NULL, 'f'},
        {"stepbytes", 1, NULL, 'i'}, {"iters", 1, NULL, 'n'},    {"warmup_iters", 1, NULL, 'w'},
        {"check", 1, NULL, 'c'},     {"json", 1, NULL, 'J'},     {"raw", 0, NULL, 'r'},
        {"launch", 0, NULL, 'l'},    {"help", 0, NULL, 'h'},     {NULL, 0, NULL, 0}};
    struct options options = {32 << 20, 32 << 20, 1 << 20, 0, 20, 1, 1, NULL, false, false};
    int letter;

    while ((letter = getopt_long(argc, argv, "b:e:f:i:n:w:c:J:h", names, NULL)) != -1) {
        if (option_take(&options, letter, optarg))
            continue;
        fputs(usage, letter == 'h' ? stdout : stderr);
        exit(letter == 'h' ? 0 : 2);
    }
    if (options.iterations < 1 || options.warmup < 0 || options.checks < 0 || options.step_factor == 1 ||
        (!options.step_factor && !options.step_bytes)) {
        fputs(usage, stderr);
        exit(2);
    }
    return options;
}

/* ---- One operation, and the exchange of times ---- */

static void enqueue(const struct bench *bench, size_t bytes)
{
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    check_hoccl(HOCCL_Send((const void *)bench->out, bytes, HOCCL_BYTE, bench->right, HOCCL_COMM_WORLD, bench->stream),
                "HOCCL_Send");
    check_hoccl(HOCCL_Recv((void *)bench->in, bytes, HOCCL_BYTE, bench->left, HOCCL_COMM_WORLD, bench->stream),
                "HOCCL_Recv");
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

/* Wait for the stream; a failed operation also releases it, so ask the communicator too. */
static void finish(const struct bench *bench)
{
    HOCCL_Result error;

    check_cuda(cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &error), "HOCCL_CommGetAsyncError");
    check_hoccl(error, "operation");
}

/* The largest of every rank's value, at every rank; also a barrier. Every rank sends its value to all others. */
static double largest(const struct bench *bench, double value)
{
    const struct job *job = &bench->job;
    CUdeviceptr own = bench->times + (size_t)job->rank * sizeof(double);
    double other;

    copy_in(own, &value, sizeof value);
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    for (int peer = 0; peer < job->size; peer++) {
        if (peer == job->rank)
            continue;
        check_hoccl(HOCCL_Send((const void *)own, 1, HOCCL_FP64, peer, HOCCL_COMM_WORLD, bench->stream), "HOCCL_Send");
        check_hoccl(HOCCL_Recv((void *)(bench->times + (size_t)peer * sizeof(double)), 1, HOCCL_FP64, peer,
                               HOCCL_COMM_WORLD, bench->stream),
                    "HOCCL_Recv");
    }
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    finish(bench);
    for (int peer = 0; peer < job->size; peer++) {
        check_cuda(cuMemcpyDtoH(&other, bench->times + (size_t)peer * sizeof(double), sizeof other), "cuMemcpyDtoH");
        value = other > value ? other : value;
    }
    return value;
}

/* ---- Measuring ---- */

static double time_operations(struct bench *bench, size_t bytes)
{
    double start, enqueued;

    for (int i = 0; i < bench->options.warmup; i++)
        enqueue(bench, bytes);
    finish(bench);
    largest(bench, 0);

    start = enqueued = now();
    for (int i = 0; i < bench->options.iterations; i++) {
        enqueue(bench, bytes);
        bench->launches[i] = now() - enqueued;
        enqueued += bench->launches[i];
    }
    finish(bench);
    return largest(bench, (now() - start) / bench->options.iterations);
}

/* Plain copies of the same size and number, one direction, by rank 0 alone. */
static double time_copies(struct bench *bench, const struct peer *peer, size_t bytes)
{
    double start, seconds = 0;

    if (bench->job.rank == 0) {
        check_cuda(cuMemcpyDtoDAsync(peer->memory, bench->out, bytes, bench->stream), "cuMemcpyDtoDAsync");
        check_cuda(cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
        start = now();
        for (int i = 0; i < bench->options.iterations; i++)
            check_cuda(cuMemcpyDtoDAsync(peer->memory, bench->out, bytes, bench->stream), "cuMemcpyDtoDAsync");
        check_cuda(cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
        seconds = (now() - start) / bench->options.iterations;
    }
    return largest(bench, seconds);
}

/* One operation with data of its own; how many bytes of it, or behind its end, are wrong. The copy that is looked at
 * stands behind the receive in the stream, so it also shows whether stream order was kept. */
static size_t check_once(struct bench *bench, size_t bytes)
{
    struct message sent = {bench->job.rank, bench->right, bench->messages};
    struct message received = {bench->left, bench->job.rank, bench->messages++};
    unsigned char guard[GUARD];
    size_t wrong, offset;
    int right;

    memset(guard, 0xa5, sizeof guard);
    pattern_fill(bench->out, bytes, sent);
    copy_in(bench->in + bytes, guard, sizeof guard);
    largest(bench, 0);
    enqueue(bench, bytes);
    check_cuda(cuMemcpyDtoHAsync(bench->seen, bench->in, bytes + GUARD, bench->stream), "cuMemcpyDtoHAsync");
    finish(bench);
    wrong = pattern_check(bench->seen, bytes, received, &offset, &right);
    if (wrong)
        fprintf(stderr, "rank %d: %zu bytes: %zu wrong from rank %d, the first at offset %zu: 0x%02x, not 0x%02x\n",
                bench->job.rank, bytes, wrong, bench->left, offset, bench->seen[offset], right);
    if (memcmp(bench->seen + bytes, guard, sizeof guard)) {
        fprintf(stderr, "rank %d: %zu bytes: something was written behind the end\n", bench->job.rank, bytes);
        wrong++;
    }
    return wrong;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static struct row measure(struct bench *bench, const struct peer *peer, size_t bytes)
{
    struct row row = {.bytes = bytes};
    size_t count = (size_t)bench->options.iterations, wrong = 0;

    row.seconds = time_operations(bench, bytes);
    qsort(bench->launches, count, sizeof *bench->launches, compare_doubles);
    row.launch_median = largest(bench, bench->launches[count / 2]);
    row.launch_p99 = largest(bench, bench->launches[(count * 99 + 99) / 100 - 1]);
    if (bench->options.raw)
        row.raw_seconds = time_copies(bench, peer, bytes);
    for (int i = 0; i < bench->options.checks; i++)
        wrong += check_once(bench, bytes);
    row.wrong = (size_t)largest(bench, (double)wrong);
    return row;
}

/* ---- The table ---- */

static double rate(size_t bytes, double seconds)
{
    return seconds > 0 ? 1e-9 * (double)bytes / seconds : 0;
}

static void table_head(const struct bench *bench)
{
    const struct options *options = &bench->options;

    printf("# sendrecv_perf: %d ranks on %s (%s), %d timed operations, %d warm-up, %d checked\n", bench->job.size,
           bench->job.gpu, bench->job.driver, options->iterations, options->warmup, options->checks);
    printf("# every rank sends to rank + 1 and receives from rank - 1; time: the slowest rank's; "
           "algbw = size / time; busbw = algbw\n");
    if (options->raw)
        printf("# raw: plain copies of the size from rank 0's GPU to another, one direction; of raw = algbw / raw\n");
    printf("#%11s %12s %6s %10s %8s %8s %8s", "size", "count", "type", "time", "algbw", "busbw", "#wrong");
    printf("%s%s\n", options->raw ? "      raw   of raw" : "", options->launch ? "   launch      p99" : "");
    printf("#%11s %12s %6s %10s %8s %8s %8s", "(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", "");
    printf("%s%s\n", options->raw ? "   (GB/s)         " : "", options->launch ? "     (us)     (us)" : "");
}

static void table_row(const struct options *options, const struct row *row)
{
    double algbw = rate(row->bytes, row->seconds), raw = rate(row->bytes, row->raw_seconds);

    printf(" %11zu %12zu %6s %10.2f %8.2f %8.2f", row->bytes, row->bytes, "byte", 1e6 * row->seconds, algbw, algbw);
    if (options->checks)
        printf(" %8zu", row->wrong);
    else
        printf(" %8s", "N/A");
    if (options->raw)
        printf(" %8.2f %8.3f", raw, raw > 0 ? algbw / raw : 0);
    if (options->launch)
        printf(" %8.2f %8.2f", 1e6 * row->launch_median, 1e6 * row->launch_p99);
    printf("\n");
}

static json_t *json_row(const struct options *options, const struct row *row)
{
    json_t *object = json_pack("{s:I, s:f, s:f}", "bytes", (json_int_t)row->bytes, "time_us", 1e6 * row->seconds,
                               "algbw_GBps", rate(row->bytes, row->seconds));

    if (options->checks)
        json_object_set_new(object, "wrong", json_integer((json_int_t)row->wrong));
    if (options->raw)
        json_object_set_new(object, "raw_GBps", json_real(rate(row->bytes, row->raw_seconds)));
    if (options->launch) {
        json_object_set_new(object, "launch_p50_us", json_real(1e6 * row->launch_median));
        json_object_set_new(object, "launch_p99_us", json_real(1e6 * row->launch_p99));
    }
    return object;
}

static void json_write(const struct bench *bench, json_t *rows, long sm_work)
{
    json_t *all = json_pack("{s:s, s:i, s:s, s:s, s:i, s:o, s:O}", "program", "sendrecv_perf", "ranks", bench->job.size,
                            "gpu", bench->job.gpu, "driver", bench->job.driver, "iterations", bench->options.iterations,
                            "sm_work", sm_work < 0 ? json_null() : json_integer(sm_work), "rows", rows);

    if (json_dump_file(all, bench->options.json, JSON_INDENT(2)))
        fail("%s cannot be written", bench->options.json);
    json_decref(all);
}

/* ---- Memory ---- */

static void bench_open(struct bench *bench)
{
    /* A whole number of 2 MiB: copies into memory of another size lose 28 % when both directions are busy (H200). */
    size_t room = (bench->options.last + GUARD + ((size_t)2 << 20) - 1) >> 21 << 21;
    unsigned char zeros[GUARD] = {0};

    job_open(&bench->job);
    bench->right = (bench->job.rank + 1) % bench->job.size;
    bench->left = (bench->job.rank - 1 + bench->job.size) % bench->job.size;
    bench->launches = calloc((size_t)bench->options.iterations, sizeof *bench->launches);
    if (!bench->launches)
        fail("no memory for %d timings", bench->options.iterations);
    check_cuda(cuStreamCreate(&bench->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&bench->out, room), "cuMemAlloc");
    check_cuda(cuMemAlloc(&bench->in, room), "cuMemAlloc");
    check_cuda(cuMemAllocHost((void **)&bench->seen, room), "cuMemAllocHost");
    check_cuda(cuMemAlloc(&bench->times, (size_t)bench->job.size * sizeof(double)), "cuMemAlloc");
    copy_in(bench->out, zeros, sizeof zeros);
}

static void bench_close(struct bench *bench)
{
    check_cuda(cuStreamDestroy(bench->stream), "cuStreamDestroy");
    check_cuda(cuMemFree(bench->out), "cuMemFree");
    check_cuda(cuMemFree(bench->in), "cuMemFree");
    check_cuda(cuMemFree(bench->times), "cuMemFree");
    check_cuda(cuMemFreeHost(bench->seen), "cuMemFreeHost");
    free(bench->launches);
    job_close();
}

/* Memory on the first other GPU that this one can copy to. */
static void peer_open(struct peer *peer, const struct job *job, size_t bytes)
{
    int count, reachable = 0;
    CUcontext own;

    check_cuda(cuDeviceGetCount(&count), "cuDeviceGetCount");
    for (peer->device = 0; peer->device < count; peer->device++) {
        if (peer->device == job->device)
            continue;
        check_cuda(cuDeviceCanAccessPeer(&reachable, job->device, peer->device), "cuDeviceCanAccessPeer");
        if (reachable)
            break;
    }
    if (!reachable)
        fail("--raw needs a second GPU that rank 0 sees and can copy to");
    check_cuda(cuCtxGetCurrent(&own), "cuCtxGetCurrent");
    check_cuda(cuDevicePrimaryCtxRetain(&peer->context, peer->device), "cuDevicePrimaryCtxRetain");
    check_cuda(cuCtxSetCurrent(peer->context), "cuCtxSetCurrent");
    check_cuda(cuMemAlloc(&peer->memory, bytes), "cuMemAlloc");
    check_cuda(cuCtxSetCurrent(own), "cuCtxSetCurrent");
    CUresult enabled = cuCtxEnablePeerAccess(peer->context, 0);
    if (enabled != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        check_cuda(enabled, "cuCtxEnablePeerAccess");
}

static void peer_close(struct peer *peer)
{
    check_cuda(cuMemFree(peer->memory), "cuMemFree");
    check_cuda(cuDevicePrimaryCtxRelease(peer->device), "cuDevicePrimaryCtxRelease");
}

int main(int argc, char **argv)
{
    struct bench bench = {.options = options_parse(argc, argv)};
    const struct options *options = &bench.options;
    json_t *rows = json_array();
    struct peer peer = {0};
    size_t wrong = 0;
    long sm_work;

    bench_open(&bench);
    if (options->raw && bench.job.rank == 0)
        peer_open(&peer, &bench.job, options->last);
    if (bench.job.rank == 0)
        table_head(&bench);
    sm_work = job_sm_work();
    for (size_t bytes = options->first; bytes <= options->last;
         bytes = options->step_factor ? bytes * options->step_factor : bytes + options->step_bytes) {
        struct row row = measure(&bench, &peer, bytes);
        wrong += row.wrong;
        if (bench.job.rank == 0) {
            table_row(options, &row);
            json_array_append_new(rows, json_row(options, &row));
        }
        if (bytes == 0 && options->step_factor)
            break;
    }
    sm_work = sm_work < 0 ? -1 : job_sm_work() - sm_work;
    if (bench.job.rank == 0) {
        printf("# SM work of rank 0: %s\n", sm_work < 0 ? "not measured" : sm_work ? "NOT ZERO" : "0");
        printf("# %s\n", wrong             ? "FAILED: wrong bytes"
                         : options->checks ? "every checked byte was right"
                                           : "not checked");
        if (options->json)
            json_write(&bench, rows, sm_work);
        if (options->raw)
            peer_close(&peer);
    }
    json_decref(rows);
    bench_close(&bench);
    return wrong || sm_work > 0;
}
