/* SPDX-License-Identifier: Apache-2.0 */
/* The submitter: the one thread of a GPU object that makes driver calls which can hang.
 *
 * cudaFree, cudaFreeHost or a module load of the application behind a parked stream hold a lock of the driver that
 * every copy needs (measured). So the progress thread hands copies over in a ring and makes no such call itself (only
 * cuIpcGetMemHandle, which returns whatever else hangs): it can still see that a submission does not return, and still release the streams.
 *
 *   progress thread                 ring                        submitter
 *   job ← …; tail ← tail + 1  ────▶  job  ────────────────────▶ copy, then flag write behind it
 *   sees head move            ◀──── head ← head + 1 (taken and handed to the driver, or refused: job.result)
 *
 * Writers: jobs and `tail` the progress thread; `head`, `busy_since` and a job's `result` the submitter. */
#ifndef HOCCL_P2P_SUBMITTER_H
#define HOCCL_P2P_SUBMITTER_H

#include "base/atomic.h"
#include "base/doorbell.h"
#include "device/device.h"

#include <pthread.h>

#define HOCCL_JOBS 64u

enum hoccl_job_kind { HOCCL_JOB_COPY = 1, HOCCL_JOB_OPEN, HOCCL_JOB_CLOSE, HOCCL_JOB_PREPARE, HOCCL_JOB_DISPATCH, HOCCL_JOB_NUDGE };

/* Which way a copy goes, as seen from the GPU that makes it: each way has an engine of its own. HOST
 * is between two places of host memory, by the submitter itself. */
enum hoccl_direction { HOCCL_PUSH, HOCCL_PULL, HOCCL_D2H, HOCCL_H2D, HOCCL_HOST, HOCCL_DIRECTIONS };

struct hoccl_mapping;
struct hoccl_stage_view;
struct hoccl_dispatch;

struct hoccl_job {
    enum hoccl_job_kind kind;
    enum hoccl_direction direction; /* COPY */
    CUstream stream;                /* COPY: of the engine; NUDGE */
    CUdeviceptr to, from;           /* COPY: device addresses, or host addresses at the host's end */
    size_t bytes;
    uint32_t *host_flag; /* HOST: the flag, to be written by the CPU */
    CUdeviceptr flag; /* COPY: written with `value` when the bytes have landed; NUDGE: written at once */
    uint32_t value;
    uint32_t *result;              /* COPY: CUresult of the copy, published before the flag can be written */
    struct hoccl_mapping *mapping; /* OPEN, CLOSE */
    struct hoccl_stage_view *view;     /* PREPARE */
    struct hoccl_dispatch *dispatch;   /* DISPATCH */
};

struct hoccl_submitter {
    pthread_t thread;
    struct hoccl_doorbell bell;
    const struct hoccl_device *device;
    CUdeviceptr scratch; /* 2 × 16 bytes of the own GPU, for the switch that breaks zero SM */
    uint32_t stop;
    struct hoccl_job jobs[HOCCL_JOBS];
    uint32_t tail __attribute__((aligned(HOCCL_CACHE_LINE)));
    uint32_t head __attribute__((aligned(HOCCL_CACHE_LINE)));
    uint64_t busy_since; /* ns; 0: in no driver call */
    uint32_t broken;     /* a flag could not be enqueued: CUresult; nothing behind it will be seen to end */
};

HOCCL_Result hoccl_submitter_open(struct hoccl_submitter *s, const struct hoccl_device *device, CUdeviceptr scratch);

/* Ask the thread to end when the ring is empty, and wait for it at most `timeout` ns: false if it is stuck in the driver. */
bool hoccl_submitter_close(struct hoccl_submitter *s, uint64_t timeout);

/* The submitter's thread: the next job; false if there is none. */
bool hoccl_submitter_step(struct hoccl_submitter *s);

/* Progress thread: hand a job over; false if the ring is full. */
bool hoccl_submitter_give(struct hoccl_submitter *s, const struct hoccl_job *job);

/* Everything handed over has been given to the driver (or refused). */
bool hoccl_submitter_idle(const struct hoccl_submitter *s);

/* For how long the submitter has been in its present driver call, ns. */
uint64_t hoccl_submitter_stuck(const struct hoccl_submitter *s, uint64_t now);

#endif
