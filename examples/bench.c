/* SPDX-License-Identifier: Apache-2.0 */
/* Options, memory, timing and checks of the benchmarks: see bench.h. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GUARD = 64 };

static const char usage[] =
    "  -b, --minbytes SIZE    first size (32M)\n"
    "  -e, --maxbytes SIZE    last size (32M)\n"
    "  -f, --stepfactor N     from one size to the next: times N\n"
    "  -i, --stepbytes SIZE   from one size to the next: plus SIZE (1M)\n"
    "  -n, --iters N          timed operations of each size (20)\n"
    "  -m, --agg_iters N      operations in one group (1); -n counts the groups\n"
    "  -w, --warmup_iters N   operations before the timed ones (1)\n"
    "  -c, --check N          checked operations of each size (1), 0 for none\n"
    "  -R, --register KIND    buffers: 0 plain (0), 1 registered, 2 of HOCCL_MemAlloc\n"
    "  -g, --ngpus N          N ranks as threads of one process, without mpirun\n"
    "  -J, --json FILE        write the table as JSON too, with the bytes that each rank (row) sends to each\n"
    "      --raw              also time plain copies of what a rank moves, from rank 0's GPU to another\n"
    "      --launch           also time how long the calling thread takes to enqueue one operation\n";

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
    case 'm':
        options->group = atoi(value);
        return true;
    case 'w':
        options->warmup = atoi(value);
        return true;
    case 'c':
        options->checks = atoi(value);
        return true;
    case 'g':
        options->threads = atoi(value);
        return true;
    case 'R':
        options->registered = atoi(value);
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

static _Noreturn void print_usage(const struct bench_program *program, bool asked)
{
    fprintf(asked ? stdout : stderr, "usage: mpirun -np N %s [options]\n%s%s  -h, --help\nsizes: 8, 64K, 1M, 1G\n",
            program->name, usage, program->usage ? program->usage : "");
    exit(asked ? 0 : 2);
}

static struct options options_parse(const struct bench_program *program, int argc, char **argv)
{
    static const struct option common[] = {
        {"minbytes", 1, NULL, 'b'},  {"maxbytes", 1, NULL, 'e'}, {"stepfactor", 1, NULL, 'f'},
        {"stepbytes", 1, NULL, 'i'}, {"iters", 1, NULL, 'n'},    {"warmup_iters", 1, NULL, 'w'},
        {"agg_iters", 1, NULL, 'm'}, {"check", 1, NULL, 'c'},    {"ngpus", 1, NULL, 'g'},
        {"json", 1, NULL, 'J'},      {"register", 1, NULL, 'R'}, {"raw", 0, NULL, 'r'},
        {"launch", 0, NULL, 'l'},    {"help", 0, NULL, 'h'}};
    enum { COMMON = sizeof common / sizeof *common, MOST = COMMON + 8 };
    struct options options = {32 << 20, 32 << 20, 1 << 20, 0, 20, 1, 1, 0, 1, 0, NULL, false, false};
    struct option names[MOST + 1] = {{NULL, 0, NULL, 0}};
    int letter;

    memcpy(names, common, sizeof common);
    for (int i = 0; program->names && program->names[i].name && i < MOST - COMMON; i++)
        names[COMMON + i] = program->names[i];
    while ((letter = getopt_long(argc, argv, "b:e:f:i:n:m:w:c:g:R:J:h", names, NULL)) != -1)
        if (!option_take(&options, letter, optarg) && !(program->take && program->take(letter, optarg)))
            print_usage(program, letter == 'h');
    if (options.threads < 0 || options.registered < 0 || options.registered > 2 || options.iterations < 1 ||
        options.group < 1 || options.warmup < 0 || options.checks < 0 || options.step_factor == 1 ||
        (!options.step_factor && !options.step_bytes) || optind < argc)
        print_usage(program, false);
    return options;
}

/* ---- One operation, and the exchange of times ---- */

/* Wait for the stream; a failed operation also releases it, so ask the communicator too. */
static void finish(const struct bench *bench)
{
    HOCCL_Result error;

    check_cuda(cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(bench->job.comm, &error), "HOCCL_CommGetAsyncError");
    check_hoccl(error, "operation");
}

/* In place, a rank's own bytes stand where it would receive them. */
static void enqueue(const struct bench *bench, bool in_place)
{
    const struct layout *layout = &bench->layout;
    CUdeviceptr out = in_place ? bench->in + layout->receive_at[bench->job.rank] : bench->out;

    bench->program->enqueue(bench, layout, (const void *)out, (void *)bench->in);
}

/* Several at once: they overlap, and go into the same memory. */
static void enqueue_group(const struct bench *bench, bool in_place)
{
    int operations = bench->options.group;

    if (operations == 1) {
        enqueue(bench, in_place);
        return;
    }
    check_hoccl(HOCCL_GroupStart(), "HOCCL_GroupStart");
    for (int i = 0; i < operations; i++)
        enqueue(bench, in_place);
    check_hoccl(HOCCL_GroupEnd(), "HOCCL_GroupEnd");
}

double bench_largest(const struct bench *bench, double value)
{
    const struct job *job = &bench->job;
    CUdeviceptr own = bench->times + (size_t)job->rank * sizeof(double);
    double other;

    check_cuda(cuMemcpyHtoDAsync(own, &value, sizeof value, bench->stream), "cuMemcpyHtoDAsync");
    check_hoccl(HOCCL_AllGather((const void *)own, (void *)bench->times, 1, HOCCL_FP64, job->comm, bench->stream),
                "HOCCL_AllGather");
    finish(bench);
    for (int peer = 0; peer < job->size; peer++) {
        check_cuda(cuMemcpyDtoH(&other, bench->times + (size_t)peer * sizeof(double), sizeof other), "cuMemcpyDtoH");
        value = other > value ? other : value;
    }
    return value;
}

/* What every rank sends to every other in an operation of the present layout, at every rank. */
static uint64_t *gather_traffic(const struct bench *bench)
{
    size_t ranks = (size_t)bench->job.size, own = (size_t)bench->job.rank * ranks;
    uint64_t *all = calloc(ranks * ranks, sizeof *all);

    if (!all)
        fail("no memory for the traffic of %zu ranks", ranks);
    for (size_t peer = 0; peer < ranks; peer++)
        all[own + peer] = bench->layout.send[peer];
    copy_in(bench->rows + own * sizeof *all, all + own, ranks * sizeof *all);
    check_hoccl(HOCCL_AllGather((const void *)(bench->rows + own * sizeof *all), (void *)bench->rows, ranks,
                                HOCCL_UINT64, bench->job.comm, bench->stream),
                "HOCCL_AllGather");
    finish(bench);
    check_cuda(cuMemcpyDtoH(all, bench->rows, ranks * ranks * sizeof *all), "cuMemcpyDtoH");
    return all;
}

/* ---- Measuring ---- */

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

double quantile(double *values, size_t count, double part)
{
    size_t index = (size_t)((double)count * part);

    qsort(values, count, sizeof *values, compare_doubles);
    return values[index < count ? index : count - 1];
}

/* On a terminal: what is being done, in a line that the next row of the table overwrites. */
static void say(const struct bench *bench, const char *doing)
{
    if (bench->job.rank != 0 || !isatty(STDERR_FILENO))
        return;
    if (doing)
        fprintf(stderr, "\r%zu bytes: %s ... \r", bench->layout.shown, doing);
    else
        fprintf(stderr, "\r%60s\r", "");
}

static double time_operations(struct bench *bench, bool in_place)
{
    double start, enqueued;

    for (int i = 0; i < bench->options.warmup; i++)
        enqueue_group(bench, in_place);
    finish(bench);
    bench_largest(bench, 0);

    start = enqueued = now();
    for (int i = 0; i < bench->options.iterations; i++) {
        enqueue_group(bench, in_place);
        bench->launches[i] = now() - enqueued;
        enqueued += bench->launches[i];
    }
    finish(bench);
    return bench_largest(bench, (now() - start) / bench->options.iterations / bench->options.group);
}

/* ---- Checking ---- */

static struct message message_of(const struct bench *bench, int source, int destination)
{
    return (struct message){source, bench->program->same_for_all ? -1 : destination, bench->messages};
}

static void fill(const struct bench *bench, bool in_place)
{
    const struct layout *layout = &bench->layout;
    int rank = bench->job.rank;

    if (in_place)
        pattern_fill(bench->in + layout->receive_at[rank], layout->receive[rank], message_of(bench, rank, rank));
    else if (bench->program->same_for_all)
        pattern_fill(bench->out + layout->send_at[0], layout->send[0], message_of(bench, rank, rank));
    else
        for (int peer = 0; peer < bench->job.size; peer++)
            pattern_fill(bench->out + layout->send_at[peer], layout->send[peer], message_of(bench, rank, peer));
}

static size_t end_of(const struct bench *bench, const size_t *at, const size_t *bytes)
{
    size_t end = 0;

    for (int peer = 0; peer < bench->job.size; peer++)
        if (bytes[peer] && at[peer] + bytes[peer] > end)
            end = at[peer] + bytes[peer];
    return end;
}

static size_t check_piece(const struct bench *bench, int source)
{
    const struct layout *layout = &bench->layout;
    size_t offset, wrong;
    int right;

    wrong = pattern_check(bench->seen + layout->receive_at[source], layout->receive[source],
                          message_of(bench, source, bench->job.rank), &offset, &right);
    if (wrong)
        fprintf(stderr,
                "rank %d: %zu of %zu bytes from rank %d are wrong, the first at offset %zu: 0x%02x, not 0x%02x\n",
                bench->job.rank, wrong, layout->receive[source], source, offset,
                bench->seen[layout->receive_at[source] + offset], right);
    return wrong;
}

/* One operation with data of its own; how many bytes of it, or behind its end, are wrong. The copy that is looked at
 * stands behind the operation in the stream, so it also shows whether stream order was kept. */
static size_t check_once(struct bench *bench, bool in_place)
{
    size_t end = end_of(bench, bench->layout.receive_at, bench->layout.receive), wrong = 0;
    unsigned char guard[GUARD];

    memset(guard, 0xa5, sizeof guard);
    fill(bench, in_place);
    check_cuda(cuMemcpyHtoDAsync(bench->in + end, guard, sizeof guard, bench->stream), "cuMemcpyHtoDAsync");
    enqueue(bench, in_place);
    check_cuda(cuMemcpyDtoHAsync(bench->seen, bench->in, end + GUARD, bench->stream), "cuMemcpyDtoHAsync");
    finish(bench);
    for (int source = 0; source < bench->job.size; source++)
        wrong += check_piece(bench, source);
    bench->messages++;
    if (memcmp(bench->seen + end, guard, sizeof guard)) {
        fprintf(stderr, "rank %d: something was written behind the end\n", bench->job.rank);
        wrong++;
    }
    return wrong;
}

static struct result measure(struct bench *bench, bool in_place)
{
    size_t count = (size_t)bench->options.iterations, wrong = 0;
    struct result result;

    say(bench, in_place ? "timing, in place" : "timing");
    result.seconds = time_operations(bench, in_place);
    result.launch_median = bench_largest(bench, quantile(bench->launches, count, 0.5));
    result.launch_p99 = bench_largest(bench, quantile(bench->launches, count, 0.99));
    say(bench, in_place ? "checking, in place" : "checking");
    for (int i = 0; i < bench->options.checks; i++)
        wrong += check_once(bench, in_place);
    result.wrong = (size_t)bench_largest(bench, (double)wrong);
    say(bench, NULL);
    return result;
}

/* ---- Plain copies, to compare with ---- */

/* Memory on the first other GPU that this one can copy to. */
struct peer {
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
};

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

/* As many as timed operations, one direction, by rank 0 alone, of what the busiest rank moves. */
static double time_copies(struct bench *bench, const struct peer *peer)
{
    size_t bytes = bench->layout.bus_bytes;
    double start, seconds = 0;

    say(bench, "plain copies");
    if (bench->job.rank == 0 && bytes) {
        check_cuda(cuMemcpyDtoDAsync(peer->memory, bench->out, bytes, bench->stream), "cuMemcpyDtoDAsync");
        check_cuda(cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
        start = now();
        for (int i = 0; i < bench->options.iterations; i++)
            check_cuda(cuMemcpyDtoDAsync(peer->memory, bench->out, bytes, bench->stream), "cuMemcpyDtoDAsync");
        check_cuda(cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
        seconds = (now() - start) / bench->options.iterations;
    }
    say(bench, NULL);
    return bench_largest(bench, seconds);
}

/* ---- Memory ---- */

/* A whole number of 2 MiB: copies into memory of another size lose 28 % when both directions are busy (H200: 284
 * instead of 392 GB/s). */
static size_t round_up(size_t bytes)
{
    return (bytes + ((size_t)2 << 20) - 1) >> 21 << 21;
}

/* As -R says: plain, registered, or HOCCL's. */
static void buffer_new(const struct bench *bench, CUdeviceptr *buffer, size_t bytes, void **handle)
{
    void *memory;

    if (bench->options.registered == 2) {
        check_hoccl(HOCCL_MemAlloc(&memory, bytes), "HOCCL_MemAlloc");
        *buffer = (CUdeviceptr)memory;
        return;
    }
    check_cuda(cuMemAlloc(buffer, bytes), "cuMemAlloc");
    if (bench->options.registered)
        check_hoccl(HOCCL_CommRegister(bench->job.comm, (void *)*buffer, bytes, handle), "HOCCL_CommRegister");
}

static void buffer_free(const struct bench *bench, CUdeviceptr buffer, void *handle)
{
    if (bench->options.registered == 2) {
        check_hoccl(HOCCL_MemFree((void *)buffer), "HOCCL_MemFree");
        return;
    }
    check_hoccl(HOCCL_CommDeregister(bench->job.comm, handle), "HOCCL_CommDeregister");
    check_cuda(cuMemFree(buffer), "cuMemFree");
}

static size_t *sizes_new(const struct bench *bench)
{
    size_t *sizes = calloc((size_t)bench->job.size, sizeof *sizes);

    if (!sizes)
        fail("no memory for %d sizes", bench->job.size);
    return sizes;
}

/* With its job open. */
static void bench_open(struct bench *bench)
{
    struct layout *layout = &bench->layout;

    *layout = (struct layout){.send_at = sizes_new(bench),
                              .send = sizes_new(bench),
                              .receive_at = sizes_new(bench),
                              .receive = sizes_new(bench)};
    bench->program->lay_out(bench, bench->options.last, layout);
    bench->out_bytes = end_of(bench, layout->send_at, layout->send);
    if (bench->options.raw && layout->bus_bytes > bench->out_bytes)
        bench->out_bytes = layout->bus_bytes;
    bench->out_bytes = round_up(bench->out_bytes + GUARD);
    bench->in_bytes = round_up(end_of(bench, layout->receive_at, layout->receive) + GUARD);
    bench->launches = calloc((size_t)bench->options.iterations, sizeof *bench->launches);
    if (!bench->launches)
        fail("no memory for %d timings", bench->options.iterations);
    check_cuda(cuStreamCreate(&bench->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    buffer_new(bench, &bench->out, bench->out_bytes, &bench->handles[0]);
    buffer_new(bench, &bench->in, bench->in_bytes, &bench->handles[1]);
    check_cuda(cuMemAllocHost((void **)&bench->seen, bench->in_bytes), "cuMemAllocHost");
    check_cuda(cuMemAlloc(&bench->times, (size_t)bench->job.size * sizeof(double)), "cuMemAlloc");
    if (bench->options.json)
        check_cuda(cuMemAlloc(&bench->rows, (size_t)bench->job.size * (size_t)bench->job.size * sizeof(uint64_t)),
                   "cuMemAlloc");
}

static void bench_close(struct bench *bench)
{
    check_cuda(cuStreamDestroy(bench->stream), "cuStreamDestroy");
    buffer_free(bench, bench->out, bench->handles[0]);
    buffer_free(bench, bench->in, bench->handles[1]);
    check_cuda(cuMemFree(bench->times), "cuMemFree");
    if (bench->rows)
        check_cuda(cuMemFree(bench->rows), "cuMemFree");
    check_cuda(cuMemFreeHost(bench->seen), "cuMemFreeHost");
    free(bench->launches);
    free(bench->layout.send_at);
    free(bench->layout.send);
    free(bench->layout.receive_at);
    free(bench->layout.receive);
}

/* ---- All of it ---- */

static struct row run_size(struct bench *bench, size_t bytes, const struct peer *peer)
{
    struct row row = {.bytes = 0};

    bench->program->lay_out(bench, bytes, &bench->layout);
    row.bytes = bench->layout.shown;
    row.count = bench->layout.count;
    row.bus_bytes = bench->layout.bus_bytes;
    row.out_of_place = measure(bench, false);
    if (bench->program->in_place)
        row.in_place = measure(bench, true);
    if (bench->options.raw)
        row.raw_seconds = time_copies(bench, peer);
    if (bench->options.json)
        row.traffic = gather_traffic(bench);
    return row;
}

/* One rank, from its open job on. */
static bool run(struct bench *bench)
{
    const struct options *options = &bench->options;
    struct table *table = NULL;
    struct peer peer = {0};
    size_t wrong = 0;
    long sm_work;

    bench_open(bench);
    if (options->raw && bench->job.rank == 0)
        peer_open(&peer, &bench->job, bench->out_bytes);
    if (bench->job.rank == 0)
        table = table_open(bench);
    sm_work = job_sm_work();
    for (size_t bytes = options->first; bytes <= options->last;
         bytes = options->step_factor ? bytes * options->step_factor : bytes + options->step_bytes) {
        struct row row = run_size(bench, bytes, &peer);
        wrong += row.out_of_place.wrong + row.in_place.wrong;
        if (table)
            table_row(table, &row);
        free(row.traffic);
        if (bytes == 0 && options->step_factor)
            break;
    }
    sm_work = sm_work < 0 ? -1 : job_sm_work() - sm_work;
    if (table)
        table_close(table, wrong != 0, sm_work);
    if (bench->settled)
        pthread_barrier_wait(bench->settled); /* cuMemFree waits for every parked stream of the process */
    if (options->raw && bench->job.rank == 0)
        peer_close(&peer);
    bench_close(bench);
    return !wrong && sm_work <= 0;
}

struct thread {
    pthread_t thread;
    struct bench bench;
    HOCCL_UniqueId id;
    int rank;
    bool good;
};

static void *run_thread(void *argument)
{
    struct thread *thread = argument;
    struct bench *bench = &thread->bench;

    job_open_thread(&bench->job, thread->id, thread->rank, bench->options.threads);
    thread->good = run(bench);
    job_close_thread(&bench->job);
    return NULL;
}

static bool run_threads(const struct bench_program *program, const struct options *options)
{
    struct thread *threads = calloc((size_t)options->threads, sizeof *threads);
    pthread_barrier_t settled;
    bool good = true;
    HOCCL_UniqueId id;

    if (!threads)
        fail("no memory for %d threads", options->threads);
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_hoccl(HOCCL_GetUniqueId(&id), "HOCCL_GetUniqueId");
    pthread_barrier_init(&settled, NULL, (unsigned)options->threads);
    for (int rank = 0; rank < options->threads; rank++) {
        threads[rank] = (struct thread){
            .bench = {.program = program, .options = *options, .settled = &settled}, .id = id, .rank = rank};
        if (pthread_create(&threads[rank].thread, NULL, run_thread, &threads[rank]))
            fail("a thread for rank %d could not be started", rank);
    }
    for (int rank = 0; rank < options->threads; rank++) {
        pthread_join(threads[rank].thread, NULL);
        good &= threads[rank].good;
    }
    free(threads);
    return good;
}

int bench_main(const struct bench_program *program, int argc, char **argv)
{
    struct bench bench = {.program = program, .options = options_parse(program, argc, argv)};
    bool good;

    if (bench.options.threads)
        return !run_threads(program, &bench.options);
    job_open(&bench.job);
    good = run(&bench);
    job_close();
    return !good;
}
