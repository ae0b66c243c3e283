/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks of one operation share, after the model of nccl-tests: options, sizes, timing, checks, the table.
 *
 * A program says what its operation is (struct bench_program) and calls bench_main. For each size: warm-up operations,
 * then a barrier, then ITERS operations (with -m N, groups of N) enqueued back to back and one wait for the stream. The
 * time of an operation is that of the slowest rank divided by their number. With -c N, N more operations run one at a
 * time, each with data of its own, and every byte of each is checked, and that none was written behind the end. */
#ifndef EXAMPLES_BENCH_H
#define EXAMPLES_BENCH_H

#include "common.h"

#include <getopt.h>
#include <pthread.h>

/* What one rank sends and receives in one operation: for each rank, where and how many bytes. */
struct layout {
    size_t *send_at, *send, *receive_at, *receive;
    size_t shown;     /* bytes in the table's first column */
    size_t count;     /* in its second */
    size_t bus_bytes; /* what the busiest rank moves in one direction: busbw is this over time */
};

struct options {
    size_t first, last, step_bytes, step_factor;
    int iterations, warmup, checks, threads;
    int group;      /* timed operations in one group */
    int registered; /* 0: plain buffers; 1: registered with the communicator; 2: of HOCCL_MemAlloc */
    const char *json;
    bool raw, launch;
};

/* What one rank works with. */
struct bench {
    const struct bench_program *program;
    struct job job;
    struct options options;
    CUstream stream;
    CUdeviceptr out, in, times; /* times: a double for each rank */
    CUdeviceptr rows;           /* for JSON: what every rank sends to every other, uint64_t */
    size_t out_bytes, in_bytes;
    void *handles[2];    /* of their registrations, or NULL */
    unsigned char *seen; /* pinned: what was received, and what stands behind it */
    unsigned messages;   /* checked so far: the number of the next one */
    double *launches;    /* seconds of each timed enqueue */
    struct layout layout;
    pthread_barrier_t *settled; /* where ranks are threads; else NULL */
};

struct bench_program {
    const char *name;
    const char *what;    /* printed: what an operation is */
    const char *formula; /* printed: what the columns mean */
    bool same_for_all;   /* all destinations get the same bytes, which stand at send_at[0] */
    bool in_place;       /* also measured with each rank's own bytes where they are received */

    /* Fill in the layout of one operation of this size, which is smaller for smaller sizes. */
    void (*lay_out)(const struct bench *bench, size_t bytes, struct layout *layout);
    void (*enqueue)(const struct bench *bench, const struct layout *layout, const void *out, void *in);

    /* Options of its own, or NULL: names for getopt_long (ends with zeros), a part of the usage text, and what takes
     * the letter (above 255) of one. */
    const struct option *names;
    const char *usage;
    bool (*take)(int letter, const char *value);
};

/* One way of running one size. */
struct result {
    double seconds, launch_median, launch_p99;
    size_t wrong;
};

/* One line of the table. */
struct row {
    size_t bytes, count, bus_bytes;
    struct result out_of_place, in_place;
    double raw_seconds;
    uint64_t *traffic; /* for JSON: bytes from each rank (row) to each (column); else NULL */
};

int bench_main(const struct bench_program *program, int argc, char **argv);

/* The largest of every rank's value, at every rank; also a barrier. */
double bench_largest(const struct bench *bench, double value);

/* The element that is larger than this part of all; sorts them. */
double quantile(double *values, size_t count, double part);

/* bench_table.c: on rank 0, the text and the JSON of it. */
struct table;
struct table *table_open(const struct bench *bench);
void table_row(struct table *table, const struct row *row);
void table_close(struct table *table, bool wrong, long sm_work);

#endif
