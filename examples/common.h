/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples share: errors, sizes, a clock, the data pattern, and what is known of the GPU. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <cuda.h>
#include <hoccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The rank of this process or thread, the number of ranks, and what they run on. */
struct job {
    HOCCL_Comm comm;
    int rank, size, device;
    char gpu[128];
    const char *driver;
};

/* Join the job and find out the above; the GPU's context is current afterwards. Leaves the program on failure. */
void job_open(struct job *job);
void job_close(void);

/* The same for a job whose ranks are threads of one process, all with one id: this thread is a rank of it. */
void job_open_thread(struct job *job, HOCCL_UniqueId id, int rank, int size);
void job_close_thread(struct job *job);

/* Pieces of work that this process has put on SMs so far; -1 on a real GPU, which cannot tell. */
long job_sm_work(void);

/* Print "rank N: …" on standard error and leave with status 1, which ends the whole job. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fail with what was called and the library's own text if the result is not success. */
void check_hoccl(HOCCL_Result result, const char *what);
void check_cuda(CUresult result, const char *what);

/* "8", "64K", "1M", "2G" (powers of 1024) to bytes; leaves the program with status 2 on anything else. */
size_t size_parse(const char *text);

/* Seconds of the monotonic clock. */
double now(void);

/* A message is known by who sends it, who receives it, and its number among all messages between the two. */
struct message {
    int source, destination;
    unsigned number;
};

/* Copy to the GPU and wait until it is there. (cuMemcpyHtoD may return before bytes of pageable memory have landed, and
 * non-blocking streams do not wait for it.) */
void copy_in(CUdeviceptr to, const void *from, size_t bytes);

/* Put the message's pattern into device memory: every byte depends on source, destination, number and offset. */
void pattern_fill(CUdeviceptr to, size_t bytes, struct message message);

/* The same into host memory. */
void pattern_fill_host(void *to, size_t bytes, struct message message);

/* How many of the bytes, which came from the GPU, differ from the message's pattern; where the first one is, what it is
 * and what it should be, if any. */
size_t pattern_check(const unsigned char *data, size_t bytes, struct message message, size_t *offset, int *expected);

#endif
