/* SPDX-License-Identifier: Apache-2.0 */
/* How long the calling thread takes to enqueue an operation, whatever its size: Send alone (in even ranks, to rank + 1,
 * which receives), Send and Recv as one group in a ring, AllGather.
 *
 * Every operation is enqueued on an idle stream, timed, and waited for, so that neither a full stream queue nor another
 * operation counts; the first few of each size are not. The figures are the slowest rank's median and 99th percentile.
 *
 * The last column is the floor: the bare write and wait that every operation enqueues, after the same wait for an
 * operation of the same size. A thread that has waited for milliseconds finds the driver cold, whatever it enqueues. */
#include "bench.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEND, SEND_RECV, ALLGATHER, BARE, KINDS };
static const char *const kinds[] = {"Send", "group Send+Recv", "AllGather", "bare driver call"};

static bool persistent; /* operations are started from requests */
static HOCCL_Request to_right, from_left, gather;
static CUdeviceptr word; /* of host memory: what a bare call writes and waits for */

static const char usage[] =
    "usage: mpirun -np N launch_cost [options]\n"
    "  -b, --minbytes SIZE    first size (8)\n"
    "  -e, --maxbytes SIZE    last size (1G; 64M on emulated GPUs)\n"
    "  -f, --stepfactor N     from one size to the next (8)\n"
    "  -n, --iters N          timed operations of each size (200)\n"
    "  -p, --persistent       start requests that were made before (HOCCL_Send_init, HOCCL_Start)\n"
    "  -J, --json FILE        write the table as JSON too\n"
    "  -h, --help\n";

struct settings {
    size_t first, last, factor;
    int iterations;
    const char *json;
};

static struct settings settings_parse(int argc, char **argv)
{
    static const struct option names[] = {
        {"minbytes", 1, NULL, 'b'}, {"maxbytes", 1, NULL, 'e'}, {"stepfactor", 1, NULL, 'f'}, {"iters", 1, NULL, 'n'},
        {"json", 1, NULL, 'J'},     {"help", 0, NULL, 'h'},     {"persistent", 0, NULL, 'p'}, {NULL, 0, NULL, 0}};
    struct settings s = {8, 0, 8, 200, NULL};
    int letter;

    while ((letter = getopt_long(argc, argv, "b:e:f:n:pJ:h", names, NULL)) != -1) {
        if (letter == 'b')
            s.first = size_parse(optarg);
        else if (letter == 'e')
            s.last = size_parse(optarg);
        else if (letter == 'f')
            s.factor = (size_t)atoi(optarg);
        else if (letter == 'n')
            s.iterations = atoi(optarg);
        else if (letter == 'p')
            persistent = true;
        else if (letter == 'J')
            s.json = optarg;
        else {
            fputs(usage, letter == 'h' ? stdout : stderr);
            exit(letter == 'h' ? 0 : 2);
        }
    }
    if (!s.first || s.factor < 2 || s.iterations < 1) {
        fputs(usage, stderr);
        exit(2);
    }
    return s;
}

static void enqueue_bare(const struct bench *bench)
{
    CUstreamBatchMemOpParams p[2] = {{0}};

    p[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    p[0].writeValue.address = word;
    p[0].writeValue.value = 1;
    p[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    p[1].waitValue.address = word;
    p[1].waitValue.value = 1;
    p[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    check_cuda(cuStreamBatchMemOp(bench->stream, 2, p, 0), "cuStreamBatchMemOp");
}

static void start(HOCCL_Request request, const struct bench *bench)
{
    check_hoccl(HOCCL_Start(request, bench->stream), "HOCCL_Start");
}

static void send_right(const struct bench *bench, size_t bytes)
{
    const struct job *job = &bench->job;
    const void *out = (const void *)bench->out;
    int right = (job->rank + 1) % job->size;

    if (persistent)
        start(to_right, bench);
    else
        check_hoccl(HOCCL_Send(out, bytes, HOCCL_BYTE, right, job->comm, bench->stream), "HOCCL_Send");
}

static void receive_left(const struct bench *bench, size_t bytes)
{
    const struct job *job = &bench->job;
    void *in = (void *)bench->in;
    int left = (job->rank - 1 + job->size) % job->size;

    if (persistent)
        start(from_left, bench);
    else
        check_hoccl(HOCCL_Recv(in, bytes, HOCCL_BYTE, left, job->comm, bench->stream), "HOCCL_Recv");
}

static void all_gather(const struct bench *bench, size_t bytes)
{
    const struct job *job = &bench->job;
    const void *out = (const void *)bench->out;
    void *in = (void *)bench->in;
    size_t count = bytes / (size_t)job->size;

    if (persistent)
        start(gather, bench);
    else
        check_hoccl(HOCCL_AllGather(out, in, count, HOCCL_BYTE, job->comm, bench->stream), "HOCCL_AllGather");
}

/* Enqueue one operation of this rank; false if it has no part in it that is timed. */
static bool enqueue(const struct bench *bench, int kind, size_t bytes)
{
    const struct job *job = &bench->job;

    if (kind == BARE) {
        enqueue_bare(bench);
    } else if (kind == ALLGATHER) {
        all_gather(bench, bytes);
    } else if (kind == SEND_RECV) {
        check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
        send_right(bench, bytes);
        receive_left(bench, bytes);
        check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
    } else if (job->rank % 2) {
        receive_left(bench, bytes);
        return false;
    } else if (job->rank + 1 < job->size)
        send_right(bench, bytes);
    return kind != SEND || job->rank + 1 < job->size;
}

static void requests_make(const struct bench *bench, size_t bytes)
{
    const struct job *job = &bench->job;
    const void *out = (const void *)bench->out;
    void *in = (void *)bench->in;
    int right = (job->rank + 1) % job->size, left = (job->rank - 1 + job->size) % job->size;
    size_t count = bytes / (size_t)job->size;

    check_hoccl(HOCCL_Send_init(out, bytes, HOCCL_BYTE, right, job->comm, &to_right), "HOCCL_Send_init");
    check_hoccl(HOCCL_Recv_init(in, bytes, HOCCL_BYTE, left, job->comm, &from_left), "HOCCL_Recv_init");
    check_hoccl(HOCCL_AllGather_init(out, in, count, HOCCL_BYTE, job->comm, &gather), "HOCCL_AllGather_init");
}

static void requests_free(void)
{
    check_hoccl(HOCCL_RequestFree(to_right), "HOCCL_RequestFree");
    check_hoccl(HOCCL_RequestFree(from_left), "HOCCL_RequestFree");
    check_hoccl(HOCCL_RequestFree(gather), "HOCCL_RequestFree");
}

/* The seconds of each enqueue; how many there are. */
static size_t measure(const struct bench *bench, int kind, size_t bytes, int iterations)
{
    const int untimed = iterations < 10 ? 1 : 5;
    size_t count = 0;

    for (int i = -untimed; i < iterations; i++) {
        if (kind == BARE) {
            enqueue(bench, SEND_RECV, bytes);
            check_cuda(cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
        }
        double start = now();
        bool timed = enqueue(bench, kind, bytes);
        double seconds = now() - start;
        if (timed && i >= 0)
            bench->launches[count++] = seconds;
        check_cuda(cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
    }
    return count;
}

static void run_size(const struct bench *bench, const struct settings *settings, size_t bytes, json_t *rows)
{
    json_t *row = json_pack("{s:I}", "bytes", (json_int_t)bytes);
    bool first = bench->job.rank == 0;

    if (persistent)
        requests_make(bench, bytes);
    if (first)
        printf(" %11zu", bytes);
    for (int kind = 0; kind < KINDS; kind++) {
        double median = 0, late = 0;
        size_t count = 0;
        bench_largest(bench, 0);
        if (kind != SEND || bench->job.size > 1)
            count = measure(bench, kind, bytes, settings->iterations);
        if (count) {
            median = quantile(bench->launches, count, 0.5);
            late = quantile(bench->launches, count, 0.99);
        }
        median = bench_largest(bench, median);
        late = bench_largest(bench, late);
        if (first)
            printf(" %9.2f %9.2f", 1e6 * median, 1e6 * late);
        json_object_set_new(row, kinds[kind], json_pack("{s:f, s:f}", "p50_us", 1e6 * median, "p99_us", 1e6 * late));
    }
    if (first)
        printf("\n");
    if (persistent)
        requests_free();
    json_array_append_new(rows, row);
}

static void table_write(const struct bench *bench, const struct settings *settings, json_t *rows)
{
    json_t *all = json_pack("{s:s, s:b, s:i, s:s, s:s, s:i, s:O}", "program", "launch_cost", "persistent", persistent,
                            "ranks", bench->job.size, "gpu", bench->job.gpu, "driver", bench->job.driver, "iterations",
                            settings->iterations, "rows", rows);

    if (json_dump_file(all, settings->json, JSON_INDENT(2)))
        fail("%s cannot be written", settings->json);
    json_decref(all);
}

int main(int argc, char **argv)
{
    struct settings settings = settings_parse(argc, argv);
    json_t *rows = json_array();
    struct bench bench = {.program = NULL};

    job_open(&bench.job);
    if (!settings.last)
        settings.last = job_sm_work() < 0 ? (size_t)1 << 30 : (size_t)64 << 20;
    bench.launches = calloc((size_t)settings.iterations, sizeof *bench.launches);
    if (!bench.launches)
        fail("no memory for %d timings", settings.iterations);
    void *host;
    check_cuda(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    check_cuda(cuMemHostGetDevicePointer(&word, host, 0), "cuMemHostGetDevicePointer");
    check_cuda(cuStreamCreate(&bench.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check_cuda(cuMemAlloc(&bench.out, settings.last), "cuMemAlloc");
    check_cuda(cuMemAlloc(&bench.in, settings.last), "cuMemAlloc");
    check_cuda(cuMemAlloc(&bench.times, (size_t)bench.job.size * sizeof(double)), "cuMemAlloc");
    if (bench.job.rank == 0) {
        printf("# launch_cost: %d ranks on %s (%s), %d of each size%s\n", bench.job.size, bench.job.gpu,
               bench.job.driver, settings.iterations, persistent ? ", started from requests" : "");
        printf(
            "# microseconds of the calling thread, the slowest rank's; AllGather: size = what a rank has at the end\n");
        printf("#%11s %19s %19s %19s %19s\n", "size", kinds[0], kinds[1], kinds[2], kinds[3]);
        printf("#%11s %9s %9s %9s %9s %9s %9s %9s %9s\n", "(B)", "p50", "p99", "p50", "p99", "p50", "p99", "p50",
               "p99");
    }
    for (size_t bytes = settings.first; bytes <= settings.last; bytes *= settings.factor)
        run_size(&bench, &settings, bytes, rows);
    if (bench.job.rank == 0 && settings.json)
        table_write(&bench, &settings, rows);
    json_decref(rows);
    check_cuda(cuStreamDestroy(bench.stream), "cuStreamDestroy");
    check_cuda(cuMemFree(bench.out), "cuMemFree");
    check_cuda(cuMemFree(bench.in), "cuMemFree");
    check_cuda(cuMemFree(bench.times), "cuMemFree");
    free(bench.launches);
    job_close();
    return 0;
}
