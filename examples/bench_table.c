/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks' table, as text in the shape of nccl-tests and as JSON. */
#include "bench.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct table {
    const struct bench *bench;
    json_t *rows;
};

static double rate(size_t bytes, double seconds)
{
    return seconds > 0 ? 1e-9 * (double)bytes / seconds : 0;
}

struct table *table_open(const struct bench *bench)
{
    const struct options *options = &bench->options;
    const struct bench_program *program = bench->program;
    struct table *table = malloc(sizeof *table);

    if (!table)
        fail("no memory for the table");
    *table = (struct table){bench, json_array()};
    printf("# %s: %d ranks on %s (%s), %d timed operations, %d warm-up, %d checked\n", program->name, bench->job.size,
           bench->job.gpu, bench->job.driver, options->iterations, options->warmup, options->checks);
    if (options->group > 1)
        printf("# groups of %d operations: the time is one operation's, --launch that of a group\n", options->group);
    printf("# %s\n# time: the slowest rank's; %s\n", program->what, program->formula);
    if (options->raw)
        printf(
            "# raw: plain copies of what the busiest rank moves, from rank 0's GPU to another, one direction; of raw = "
            "busbw / raw\n");
    if (program->in_place)
        printf("#%11s %12s %6s %37s %37s\n", "", "", "", "out of place", "in place");
    printf("#%11s %12s %6s", "size", "count", "type");
    for (int i = 0; i <= program->in_place; i++)
        printf(" %10s %8s %8s %8s", "time", "algbw", "busbw", "#wrong");
    printf("%s%s\n", options->raw ? "      raw   of raw" : "", options->launch ? "   launch      p99" : "");
    printf("#%11s %12s %6s", "(B)", "(elements)", "");
    for (int i = 0; i <= program->in_place; i++)
        printf(" %10s %8s %8s %8s", "(us)", "(GB/s)", "(GB/s)", "");
    printf("%s%s\n", options->raw ? "   (GB/s)         " : "", options->launch ? "     (us)     (us)" : "");
    return table;
}

static void print_result(const struct bench *bench, const struct row *row, const struct result *result)
{
    printf(" %10.2f %8.2f %8.2f", 1e6 * result->seconds, rate(row->bytes, result->seconds),
           rate(row->bus_bytes, result->seconds));
    if (bench->options.checks)
        printf(" %8zu", result->wrong);
    else
        printf(" %8s", "N/A");
}

static void add_result(const struct bench *bench, json_t *object, const struct row *row, const struct result *result)
{
    json_object_set_new(object, "time_us", json_real(1e6 * result->seconds));
    json_object_set_new(object, "algbw_GBps", json_real(rate(row->bytes, result->seconds)));
    json_object_set_new(object, "busbw_GBps", json_real(rate(row->bus_bytes, result->seconds)));
    if (bench->options.checks)
        json_object_set_new(object, "wrong", json_integer((json_int_t)result->wrong));
    if (bench->options.launch) {
        json_object_set_new(object, "launch_p50_us", json_real(1e6 * result->launch_median));
        json_object_set_new(object, "launch_p99_us", json_real(1e6 * result->launch_p99));
    }
}

/* A line of numbers for each rank, as hoccl-plan reads them. */
static json_t *traffic_lines(const uint64_t *traffic, int ranks)
{
    enum { DIGITS = 21 };
    json_t *lines = json_array();
    char *line = malloc((size_t)ranks * DIGITS + 1);

    if (!line)
        fail("no memory for a line of %d numbers", ranks);
    for (int source = 0; source < ranks; source++) {
        char *end = line;
        for (int destination = 0; destination < ranks; destination++)
            end += sprintf(end, "%s%" PRIu64, destination ? "," : "", traffic[source * ranks + destination]);
        json_array_append_new(lines, json_string(line));
    }
    free(line);
    return lines;
}

void table_row(struct table *table, const struct row *row)
{
    const struct bench *bench = table->bench;
    double raw = rate(row->bus_bytes, row->raw_seconds);
    json_t *object = json_object(), *in_place;

    printf(" %11zu %12zu %6s", row->bytes, row->count, "byte");
    print_result(bench, row, &row->out_of_place);
    if (bench->program->in_place)
        print_result(bench, row, &row->in_place);
    if (bench->options.raw)
        printf(" %8.2f %8.3f", raw, raw > 0 ? rate(row->bus_bytes, row->out_of_place.seconds) / raw : 0);
    if (bench->options.launch)
        printf(" %8.2f %8.2f", 1e6 * row->out_of_place.launch_median, 1e6 * row->out_of_place.launch_p99);
    printf("\n");

    json_object_set_new(object, "bytes", json_integer((json_int_t)row->bytes));
    json_object_set_new(object, "count", json_integer((json_int_t)row->count));
    add_result(bench, object, row, &row->out_of_place);
    if (bench->program->in_place) {
        json_object_set_new(object, "in_place", in_place = json_object());
        add_result(bench, in_place, row, &row->in_place);
    }
    if (bench->options.raw)
        json_object_set_new(object, "raw_GBps", json_real(raw));
    if (row->traffic)
        json_object_set_new(object, "traffic", traffic_lines(row->traffic, bench->job.size));
    json_array_append_new(table->rows, object);
}

void table_close(struct table *table, bool wrong, long sm_work)
{
    const struct bench *bench = table->bench;
    const struct options *options = &bench->options;
    json_t *all =
        json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:o, s:o}", "program", bench->program->name, "ranks", bench->job.size,
                  "gpu", bench->job.gpu, "driver", bench->job.driver, "iterations", options->iterations, "agg_iters",
                  options->group, "sm_work", sm_work < 0 ? json_null() : json_integer(sm_work), "rows", table->rows);

    printf("# SM work of rank 0: %s\n", sm_work < 0 ? "not measured" : sm_work ? "NOT ZERO" : "0");
    printf("# %s\n", wrong ? "FAILED: wrong bytes" : options->checks ? "every checked byte was right" : "not checked");
    if (options->json && json_dump_file(all, options->json, JSON_INDENT(2)))
        fail("%s cannot be written", options->json);
    json_decref(all);
    free(table);
}
